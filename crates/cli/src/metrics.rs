//! Metrics: the statistics of a mount in the text format of Prometheus, and what each figure is (`sluice stat --explain`).

use crate::figures::{COUNTERS, meaning};
use crate::mount_stat::{gauges, hot_locks, object_requests};
use serde_json::Value;
use sluice_console::table::Table;
use sluice_fuse::control::{HotFile, Latency, MountStat, ObjectRequests};
use std::fmt::Write as _;
use std::path::Path;

/// A table of the figures of `stat`, with their values and meanings.
pub(crate) fn explained(stat: &MountStat) -> String {
    let mut table = Table::with_left_columns(3);
    let cluster =
        stat.cluster.iter().filter_map(|(name, value)| Some((format!("cluster_{name}"), value.as_u64()?)));
    let own = gauges(stat)
        .into_iter()
        .map(|(name, value)| (if name == "requests" { "requests_total" } else { name }.to_owned(), value));
    for (name, value) in own.chain(cluster) {
        table.line([
            name.replace('_', " "),
            value.to_string(),
            meaning(&name).unwrap_or_default().to_owned(),
        ]);
    }
    table.render()
}

/// Writes what the metric `name` is, and its type.
fn begin(text: &mut String, name: &str, kind: Option<&str>) {
    let kind = kind.unwrap_or(if COUNTERS.contains(&name) { "counter" } else { "gauge" });
    // Writing to a String cannot fail.
    if let Some(meaning) = meaning(name) {
        let _ = writeln!(text, "# HELP sluicefs_{name} {meaning}");
    }
    let _ = writeln!(text, "# TYPE sluicefs_{name} {kind}");
}

/// A label's value: quoted as Prometheus wants it.
fn label(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

/// A mount, as the labels of its metrics have it.
#[derive(Clone, Debug)]
pub(crate) struct MountPlace {
    /// Where it is mounted.
    pub(crate) directory: String,
    /// Its store; "ram" in memory.
    pub(crate) store: String,
}

impl MountPlace {
    /// The mount on `dir`, of `store` or in memory.
    pub(crate) fn of(dir: &Path, store: Option<&Path>) -> MountPlace {
        let store = store.map_or_else(|| "ram".to_owned(), |store| store.display().to_string());
        MountPlace { directory: dir.display().to_string(), store }
    }
}

/// In the text format of Prometheus, version 0.0.4.
pub(crate) fn prometheus(stat: &MountStat, place: &MountPlace) -> String {
    let mut text = String::new();
    begin(&mut text, "mount_info", None);
    // Writing to a String cannot fail.
    let labels = [("directory", &place.directory), ("store", &place.store), ("version", &stat.version)];
    let labels = labels.map(|(name, value)| format!("{name}={}", label(value))).join(",");
    let _ = writeln!(text, "sluicefs_mount_info{{{labels}}} 1");
    begin(&mut text, "requests_total", Some("counter"));
    for (name, count) in &stat.requests {
        let _ = writeln!(text, "sluicefs_requests_total{{kind=\"{name}\"}} {count}");
    }
    histograms(&mut text, "request_duration_seconds", stat.latency.iter());
    let of_objects = object_requests(stat).map(|(kind, requests)| (kind, &requests.latency));
    histograms(&mut text, "object_request_duration_seconds", of_objects);
    begin(&mut text, "object_requests_failed_total", Some("counter"));
    for (kind, ObjectRequests { failed, .. }) in object_requests(stat) {
        let _ = writeln!(text, "sluicefs_object_requests_failed_total{{kind=\"{kind}\"}} {failed}");
    }
    for (figure, of) in HOT_FIGURES {
        begin(&mut text, figure, None);
        for file in hot_locks(stat) {
            let _ = writeln!(text, "sluicefs_{figure}{{inode=\"{}\"}} {}", file.inode, of(file));
        }
    }
    let gauges = gauges(stat).into_iter().filter(|(name, _)| *name != "requests");
    let capacity = stat.file_system.iter().filter(|known| known.blocks > 0);
    let capacity = capacity.flat_map(|known| {
        let bytes = |blocks: u64| blocks.saturating_mul(known.block_size);
        [("size_bytes", bytes(known.blocks)), ("free_bytes", bytes(known.blocks_free))]
    });
    for (name, value) in gauges.chain([("uptime_seconds", stat.uptime_seconds)]).chain(capacity) {
        begin(&mut text, name, None);
        let _ = writeln!(text, "sluicefs_{name} {value}");
    }
    of_cluster(stat, &mut text);
    text
}

/// The numbers of a node of a cluster, and its role as a label.
fn of_cluster(stat: &MountStat, text: &mut String) {
    if let Some(role) = stat.cluster.get("role").and_then(Value::as_str) {
        begin(text, "cluster_info", None);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "sluicefs_cluster_info{{role={}}} 1", label(role));
    }
    for (name, value) in stat.cluster.iter().filter_map(|(name, value)| Some((name, value.as_u64()?))) {
        let name = format!("cluster_{name}");
        begin(text, &name, None);
        let _ = writeln!(text, "sluicefs_{name} {value}");
    }
}

/// Writes `latencies`, each with its kind, as the histogram `figure` of Prometheus.
fn histograms<'a>(
    text: &mut String,
    figure: &str,
    latencies: impl Iterator<Item = (&'a String, &'a Latency)>,
) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    begin(text, figure, Some("histogram"));
    let name = format!("sluicefs_{figure}");
    for (kind, latency) in latencies {
        let mut seen = 0;
        for (bound, count) in &latency.buckets {
            seen += count;
            // The last one has no bound, and comes below in any case.
            if *bound != u64::MAX {
                let _ = writeln!(text, "{name}_bucket{{kind=\"{kind}\",le=\"{}\"}} {seen}", seconds(*bound));
            }
        }
        for (end, label) in [("_bucket", ",le=\"+Inf\""), ("_count", "")] {
            let _ = writeln!(text, "{name}{end}{{kind=\"{kind}\"{label}}} {seen}");
        }
        let _ = writeln!(text, "{name}_sum{{kind=\"{kind}\"}} {}", seconds(latency.ns_total));
    }
}

type HotFigure = (&'static str, fn(&HotFile) -> u64);

/// The metrics for Prometheus about each of the hottest locks.
const HOT_FIGURES: [HotFigure; 4] = [
    ("hot_lock_waiting", |file| file.waiting),
    ("hot_lock_grants", |file| file.grants),
    ("hot_lock_waits", |file| file.waits),
    ("hot_lock_wait_ns", |file| file.wait_ns_total),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_stat::parse;
    use std::collections::BTreeSet;

    /// The answer of a cluster's owner, with a store in an object store that was scrubbed.
    const FULL: &[u8] = br#"{"requests_total":30,"requests":{"READ":30},"version":"0.1.0","uptime_seconds":9,
        "latency":{"READ":{"ns_total":40000,"buckets":[[1023,15]]}},
        "object_requests":{"put":{"failed":2,"ns_total":9000000,"buckets":[[1000000,3]]}},
        "cache_lookups":1,"cache_hits":1,"cache_bytes":1,"write_stalls":0,"dirty_bytes":4096,
        "encrypted":true,"compressed":false,"contents_stored_bytes":1,"contents_written_bytes":1,
        "contents_written_stored_bytes":1,"scrub_age_seconds":5,"scrub_unfinished":0,"scrub_bytes":1,
        "scrub_total_bytes":1,"scrub_damaged":0,
        "hot_locks":[{"inode":12,"held":1,"waiting":1,"grants":9,"waits":5,"bypasses":0,"wait_ns_total":8000000,
        "wait_ns_max":4000000}],"known_inodes":3,"live_inodes":4,"open_files":0,"waiting_locks":1,
        "resident_bytes":7000000,"block_size":4096,"blocks":10,"blocks_free":7,
        "cluster":{"cluster":"work","node":2,"role":"owner","epoch":5,"requests":1,"awaited":1,"behind":1,
        "answered_here":1,"locks_decided":1,"notices":1,"notices_cut_short":0,"recalls":4,"reconnections":0,"waiting_locks":0,
        "dirty_bytes":4096}}"#;

    fn place() -> MountPlace {
        MountPlace::of(Path::new("/srv/a \"b\""), Some(Path::new("/stores/x")))
    }

    #[test]
    fn each_figure_has_a_meaning_and_a_type() {
        let text = prometheus(&parse(FULL).unwrap(), &place());
        let label =
            "sluicefs_mount_info{directory=\"/srv/a \\\"b\\\"\",store=\"/stores/x\",version=\"0.1.0\"} 1\n";
        assert!(text.contains(label), "{text}");
        assert!(
            text.contains("# TYPE sluicefs_cluster_recalls counter\nsluicefs_cluster_recalls 4\n"),
            "{text}"
        );
        assert!(text.contains("sluicefs_size_bytes 40960\n") && text.contains("sluicefs_free_bytes 28672\n"));
        let (mut typed, mut told) = (BTreeSet::new(), BTreeSet::new());
        for line in text.lines() {
            let word = |at| line.split(' ').nth(at).unwrap().to_owned();
            match line {
                line if line.starts_with("# TYPE ") => assert!(typed.insert(word(2)), "twice: {line}"),
                line if line.starts_with("# HELP ") => assert!(told.insert(word(2)), "twice: {line}"),
                _ => {
                    let name = line.split(['{', ' ']).next().unwrap();
                    let ends =
                        ["_bucket", "_count", "_sum"].into_iter().find_map(|end| name.strip_suffix(end));
                    assert!(typed.contains(name) || ends.is_some_and(|name| typed.contains(name)), "{line}");
                }
            }
        }
        let missing: Vec<_> = typed.difference(&told).collect();
        assert!(missing.is_empty(), "say what they are: {missing:?}");
    }

    #[test]
    fn the_board_and_the_alerts_name_metrics_that_there_are() {
        let text = prometheus(&parse(FULL).unwrap(), &place());
        for file in [
            include_str!("../../../contrib/prometheus/alerts.yml"),
            include_str!("../../../contrib/prometheus/grafana.json"),
        ] {
            let words = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names: BTreeSet<_> = words.filter(|word| word.starts_with("sluicefs_")).collect();
            assert!(names.len() > 5, "{names:?}");
            for name in names {
                let there = [" ", "{"].iter().any(|next| text.contains(&format!("\n{name}{next}")));
                assert!(there, "{name} is no metric");
            }
        }
        let board: Value =
            serde_json::from_str(include_str!("../../../contrib/prometheus/grafana.json")).unwrap();
        assert!(board["panels"].as_array().is_some_and(|panels| panels.len() >= 8));
    }

    #[test]
    fn an_explanation_has_a_line_for_each_figure() {
        let text = explained(&parse(FULL).unwrap());
        for line in
            ["waiting locks", "Lock requests that wait.", "cluster recalls", "scrub damaged", "data bytes"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
