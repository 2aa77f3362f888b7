//! Cluster top: one screen about all nodes of a cluster, of what each did since the screen before.

use crate::mount_stat::{object_requests, quantile};
use crate::screens::fields;
use serde_json::{Value, json};
use sluice_console::table::{Table, grouped};
use sluice_fuse::control::{Latency, MountStat};
use sluice_sync::time::Duration;

/// The status of a node at one moment.
#[derive(Clone, Debug)]
pub(crate) struct NodeSample {
    /// Its number in the membership.
    pub(crate) node: u64,
    /// When it was asked, since a moment that is the same for all samples.
    pub(crate) at: Duration,
    /// Its answer; None if the node is silent.
    pub(crate) stat: Option<MountStat>,
}

/// The counts of a node that are shown as rates: the heading, and the counts that are added up for it.
const RATES: [(&str, &[&str]); 6] = [
    ("requests/s", &["requests"]),
    ("awaited/s", &["awaited"]),
    ("behind/s", &["behind"]),
    ("here/s", &["locks_decided", "answered_here"]),
    ("notices/s", &["notices"]),
    ("recalls/s", &["recalls"]),
];
/// Counts that are shown with their current values.
const GAUGES: [(&str, &str); 2] = [("waiting locks", "waiting_locks"), ("dirty bytes", "dirty_bytes")];
/// The requests to the object store that are shown.
const OBJECT_REQUESTS: [(&str, &str); 2] = [("PUT/s", "put"), ("GET/s", "get")];

/// The screen: a line for each node of `now`, with its counts since `earlier`.
pub(crate) fn screen(now: &[NodeSample], earlier: &[NodeSample]) -> String {
    let mut table = Table::with_left_columns(2);
    let rates = RATES.iter().map(|(heading, _)| *heading);
    let gauges = GAUGES.iter().map(|(heading, _)| *heading);
    let objects = OBJECT_REQUESTS.iter().flat_map(|(heading, _)| [*heading, "p50", "p99"]);
    table.line(["node", "role", "epoch", "guests"].into_iter().chain(rates).chain(gauges).chain(objects));
    for sample in now {
        let Some(stat) = &sample.stat else {
            table.line([sample.node.to_string(), "silent".to_owned()]);
            continue;
        };
        let before = earlier.iter().find(|before| before.node == sample.node);
        let before = before.and_then(|before| Some((before.at, before.stat.as_ref()?)));
        table.line(cells(sample, stat, before));
    }
    table.render()
}

/// A line of JSON: the fields of each node, and null for the counts of a silent node.
pub(crate) fn line(cluster: &str, now: &[NodeSample], earlier: &[NodeSample]) -> Value {
    let node = |sample: &NodeSample| {
        let before = earlier.iter().find(|before| before.node == sample.node);
        let seconds = before.map_or(0.0, |before| sample.at.saturating_sub(before.at).as_secs_f64());
        let before = before.and_then(|before| before.stat.as_ref());
        let mut fields = sample.stat.as_ref().map(|stat| fields(stat, before, seconds)).unwrap_or_default();
        fields.insert("node".into(), sample.node.into());
        fields.entry("stat").or_insert(Value::Null);
        Value::Object(fields)
    };
    json!({ "cluster": cluster, "nodes": now.iter().map(node).collect::<Vec<_>>() })
}

fn cells(sample: &NodeSample, stat: &MountStat, before: Option<(Duration, &MountStat)>) -> Vec<String> {
    let rate = |more: u64, since: Duration| {
        grouped(more as f64 / sample.at.saturating_sub(since).as_secs_f64().max(1e-3))
    };
    let role = stat.cluster.get("role").and_then(Value::as_str).unwrap_or_default();
    let mut cells = vec![sample.node.to_string(), role.to_owned()];
    cells.extend(["epoch", "guests"].map(|name| count(stat, name).to_string()));
    cells.extend(RATES.iter().map(|(_, names)| {
        // A new node has no earlier sample.
        before.map_or_else(unknown, |(since, earlier)| {
            let sum = |stat| names.iter().map(|name| count(stat, name)).sum::<u64>();
            rate(sum(stat).saturating_sub(sum(earlier)), since)
        })
    }));
    cells.extend(GAUGES.iter().map(|(_, name)| grouped(count(stat, name) as f64)));
    for (_, kind) in OBJECT_REQUESTS {
        // Only the owner makes any.
        let Some(now) = latency(stat, kind) else { break };
        let Some((since, earlier)) = before else {
            cells.extend([unknown(), unknown(), unknown()]);
            continue;
        };
        let latest = now.since(latency(earlier, kind));
        cells.push(rate(latest.count(), since));
        cells.extend([0.5, 0.99].map(|share| quantile(&latest, share)));
    }
    cells
}

/// The node's count `name`.
fn count(stat: &MountStat, name: &str) -> u64 {
    stat.cluster.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// How long the requests to the object store took that are of this kind.
fn latency<'s>(stat: &'s MountStat, kind: &str) -> Option<&'s Latency> {
    object_requests(stat).find(|(name, _)| *name == kind).map(|(_, requests)| &requests.latency)
}

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_stat::parse;

    fn sample(node: u64, at: u64, of_file_system: &str, cluster: &str) -> NodeSample {
        let json = format!(
            r#"{{"requests_total":0,"requests":{{}},"latency":{{}},"known_inodes":0,"open_files":0,"waiting_locks":0,
            "resident_bytes":0,{of_file_system}"cluster":{{{cluster}}}}}"#
        );
        let stat = parse(json.as_bytes()).expect("of the form of a server");
        NodeSample { node, at: Duration::from_secs(at), stat: Some(stat) }
    }

    fn owner(at: u64, puts: u64) -> NodeSample {
        let of_file_system = format!(
            r#""hot_locks":[],"live_inodes":9,"block_size":0,"blocks":0,"blocks_free":0,"object_requests":{{
            "put":{{"failed":0,"ns_total":1,"buckets":[[1000000,{puts}],[5000000,1]]}},
            "get":{{"failed":0,"ns_total":1,"buckets":[[2000000,7]]}}}},"#
        );
        sample(
            1,
            at,
            &of_file_system,
            r#""role":"owner","epoch":3,"guests":2,"requests":50,"dirty_bytes":12345"#,
        )
    }

    fn guest(at: u64, requests: u64) -> NodeSample {
        let cluster = format!(
            r#""role":"guest","epoch":3,"guests":0,"requests":{requests},"awaited":{},"behind":{},"locks_decided":3,
            "answered_here":{requests},"notices":8,"recalls":{},"waiting_locks":1,"dirty_bytes":77"#,
            requests / 2,
            requests / 4,
            requests / 10
        );
        sample(2, at, "", &cluster)
    }

    #[test]
    fn a_screen_has_a_line_for_each_node_with_what_it_did_since_the_one_before() {
        let silent = NodeSample { node: 3, at: Duration::ZERO, stat: None };
        let earlier = [owner(10, 100), guest(10, 1000), silent.clone()];
        let now = [owner(12, 180), guest(11, 1040), silent, sample(4, 12, "", r#""role":"waiting""#)];
        let text = screen(&now, &earlier);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let [heading, owner, guest, silent, new] = lines.as_slice() else { panic!("{text}") };
        assert_eq!(heading[..2], ["node", "role"]);
        // The averages cover two seconds, and only the requests of that time.
        let tail = ["40", "1.0", "ms", "1.0", "ms", "0", "-", "-"];
        let rates = ["0"; 6];
        assert_eq!(**owner, [&["1", "owner", "3", "2"], &rates[..], &["0", "12,345"], &tail].concat());
        assert_eq!(**guest, ["2", "guest", "3", "0", "40", "20", "10", "40", "0", "4", "1", "77"]);
        assert_eq!(**silent, ["3", "silent"]);
        assert_eq!(new[..5], ["4", "waiting", "0", "0", "-"]);
    }
}
