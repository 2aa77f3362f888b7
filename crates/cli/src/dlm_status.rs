//! Dlm status: the locks of a cluster, as their masters tell them.

use crate::args::DlmAction;
use crate::cluster_place::{place, warn_of_loose_keys};
use serde_json::{Value, json};
use sluice_cluster::Cluster;
use sluice_console::failure::Result;
use sluice_console::output::Output;
use sluice_dlm::ask_status_at;
use sluice_sync::time::Duration;
use std::fmt::Write as _;
use std::io;

pub(crate) fn dlm(DlmAction::Status { json, identity, cluster: text }: DlmAction) -> Result<()> {
    let place = place(&text)?;
    let cluster = Cluster::open(&place)?;
    let keys = identity.unwrap_or_else(|| place.keys());
    warn_of_loose_keys(&keys);
    let identity = cluster.identity(&keys)?;
    let view = cluster.lock_membership()?.view(0, Duration::ZERO)?;
    let mut members = Vec::new();
    for (node, member) in &view.members {
        let told = match member.is_alive {
            true => ask_status_at(&member.address, cluster.name(), &identity),
            false => Err(io::ErrorKind::TimedOut.into()),
        };
        let told = told.and_then(|text| Ok(serde_json::from_str::<Value>(&text)?));
        let state = match (&told, member.is_alive) {
            (_, false) => "dead",
            (Ok(_), _) => "alive",
            (Err(_), _) => "silent",
        };
        let mut about = told.unwrap_or_else(|_| json!({ "node": node.0 }));
        about["state"] = state.into();
        about["address"] = member.address.clone().into();
        members.push(about);
    }
    let text =
        if json { members.iter().map(|member| format!("{member}\n")).collect() } else { table(&members) };
    Output::plain().give(text.as_bytes())
}

/// As text: a line for each member, then each lock with its holders and requests.
fn table(members: &[Value]) -> String {
    // Writing to a String cannot fail.
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:>6} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}  address",
        "member", "state", "requests", "grants", "revokes", "sent", "received"
    );
    for member in members {
        let _ = write!(text, "{:>6} {:>7}", member["node"], word(&member["state"]));
        for count in ["requests", "grants", "revokes", "sent", "received"] {
            let count =
                member["counts"][count].as_u64().map_or_else(|| "-".into(), |count| count.to_string());
            let _ = write!(text, " {count:>8}");
        }
        let _ = writeln!(text, "  {}", word(&member["address"]));
    }
    for (member, resource) in
        members.iter().flat_map(|member| each(&member["resources"]).map(move |one| (member, one)))
    {
        let _ = writeln!(text, "\n{}: master {}", word(&resource["name"]), member["node"]);
        for grant in each(&resource["grants"]) {
            let (node, mode) = (&grant["node"], mode(&grant["mode"]));
            let holder = members.iter().find(|member| member["node"] == *node).unwrap_or(&Value::Null);
            let lock =
                each(&holder["locks"]).find(|lock| lock["key"] == grant["key"]).unwrap_or(&Value::Null);
            let value =
                lock["value"].as_str().map_or_else(String::new, |value| format!(", value \"{value}\""));
            let _ = writeln!(text, "  held {mode} by member {node}, token {}{value}", grant["lock_token"]);
        }
        for waiter in each(&resource["waiters"]) {
            let waited = waiter["waited_s"].as_f64().unwrap_or(0.0);
            let _ = writeln!(
                text,
                "  -> wanted {} by member {} for {waited:.1} s",
                mode(&waiter["mode"]),
                waiter["node"]
            );
        }
    }
    text
}

fn each(array: &Value) -> impl Iterator<Item = &Value> {
    array.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A mode in the words of `sluice lock`.
fn mode(name: &Value) -> &str {
    match word(name) {
        "EX" => "exclusively",
        "PR" => "shared",
        other => other,
    }
}
