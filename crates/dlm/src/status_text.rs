//! Status text: what a node knows as text in the manner of `/proc/locks`, and as JSON.

use crate::node::{NodeStatus, Statistics};
use crate::{Key, Mode, Range};
use serde_json::{Value, json};
use std::fmt::Write;

/// As text: the resources that the node is master of, numbered, one line for each grant, and below it one with an arrow for each
/// that waits; then the locks that the node has cached. `now` is the time of the node's clock.
pub(crate) fn text(status: &NodeStatus, now: u64) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for (number, resource) in (1..).zip(&status.resources) {
        let key = |range: &Range| Key { name: resource.name.clone(), range: *range };
        for (node, range, mode, token) in &resource.grants {
            let (mode, key, moves) = (mode.name(), key(range), resource.moves);
            let token = format!("{}.{}", token.epoch, token.number);
            let _ = writeln!(text, "{number}: GRANTED {mode} node {node} {key} token {token} moves {moves}");
        }
        for (node, range, mode, since) in &resource.waiters {
            let (mode, key, waited) = (mode.name(), key(range), seconds(now, *since));
            let _ = writeln!(text, "{number}: -> WAITING {mode} node {node} {key} for {waited:.3} s");
        }
    }
    for lock in status.locks.iter().filter(|lock| lock.cached.is_some() || !lock.waiters.is_empty()) {
        let cached = lock.cached.map_or("--", Mode::name);
        let _ = write!(text, "CACHED {cached} {} for {:.3} s", lock.key, seconds(now, lock.granted_at));
        for (mode, count) in &lock.holders {
            let _ = write!(text, " {}:{count}", mode.name());
        }
        for mode in &lock.waiters {
            let _ = write!(text, " ->{}", mode.name());
        }
        let _ = match lock.wanted {
            Some(mode) => writeln!(text, " wanted {}", mode.name()),
            None => writeln!(text),
        };
    }
    text
}

/// As JSON, in one line.
pub(crate) fn json(status: &NodeStatus, statistics: &Statistics, now: u64) -> String {
    let key = |key: &Key| {
        let name = key.name.bytes().escape_ascii().to_string();
        json!({ "shard": key.shard(), "name": name, "start": key.range.start(), "end": key.range.end() })
    };
    let resources = status.resources.iter().map(|resource| {
        let of = |range: &Range| key(&Key { name: resource.name.clone(), range: *range });
        let grants = resource.grants.iter().map(|(node, range, mode, token)| {
            json!({ "node": node.0, "key": of(range), "mode": mode.name(), "token": [token.epoch, token.number],
                "lock_token": token.as_number() })
        });
        let waiters = resource.waiters.iter().map(|(node, range, mode, since)| {
            let waited = seconds(now, *since);
            json!({ "node": node.0, "key": of(range), "mode": mode.name(), "waited_s": waited })
        });
        let (grants, waiters): (Vec<_>, Vec<_>) = (grants.collect(), waiters.collect());
        let name = resource.name.bytes().escape_ascii().to_string();
        json!({ "name": name, "moves": resource.moves, "grants": grants, "waiters": waiters })
    });
    let locks = status.locks.iter().map(|lock| {
        let holders = lock.holders.iter().map(|(mode, count)| (mode.name().to_string(), Value::from(*count)));
        json!({
            "key": key(&lock.key),
            "cached": lock.cached.map(Mode::name),
            "for_s": seconds(now, lock.granted_at),
            "holders": Value::Object(holders.collect()),
            "waiters": lock.waiters.iter().map(|mode| mode.name()).collect::<Vec<_>>(),
            "wanted": lock.wanted.map(Mode::name),
            "value": lock.value.as_ref().map(|value| value.bytes.escape_ascii().to_string()),
            "value_is_certain": lock.value.as_ref().map(|value| value.is_certain),
        })
    });
    let (resources, locks): (Vec<_>, Vec<_>) = (resources.collect(), locks.collect());
    let counts = json!({
        "sent": statistics.sent.get(),
        "received": statistics.received.get(),
        "requests": statistics.requests.get(),
        "grants": statistics.grants.get(),
        "revokes": statistics.revokes.get(),
        "handed": statistics.handed.get(),
        "probes": statistics.probes.get(),
        "deadlocks": statistics.deadlocks.get(),
    });
    json!({ "node": status.node.0, "resources": resources, "locks": locks, "counts": counts }).to_string()
        + "\n"
}

fn seconds(now: u64, since: u64) -> f64 {
    now.saturating_sub(since) as f64 / 1e9
}
