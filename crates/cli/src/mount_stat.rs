//! Mount statistics: what the server of a mount has counted, for a person, for Prometheus, and as it changes.

use crate::mount_locks::{HotFile, from_server, hot_table};
use serde::Deserialize;
use serde_json::Value;
use sluice_console::failure::Result;
use sluice_console::table::{Table, duration, grouped};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The parsed answer of the control socket to `stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct MountStat {
    /// How messages travel: `uring`, `classic`, or `relay` on a node of a cluster; nothing from a server of an earlier version.
    #[serde(default)]
    pub(crate) transport: String,
    /// Requests since the mount began.
    pub(crate) requests_total: u64,
    /// The same by kind.
    pub(crate) requests: BTreeMap<String, u64>,
    /// How long they took, by kind.
    pub(crate) latency: BTreeMap<String, Latency>,
    /// Inodes that the kernel knows.
    pub(crate) known_inodes: u64,
    /// Files open, where the server is told of it (`-o locks=sluice`).
    pub(crate) open_files: u64,
    /// Lock requests that wait.
    pub(crate) waiting_locks: u64,
    /// Memory of the server, all of it.
    pub(crate) resident_bytes: u64,
    /// Facts of the process that has the file system; None on a node of a cluster that is not the owner.
    #[serde(flatten)]
    pub(crate) file_system: Option<FileSystemStat>,
    /// For a node of a cluster: its role, the owner, the epoch, and its counts.
    #[serde(default)]
    pub(crate) cluster: BTreeMap<String, Value>,
}

/// The part of the answer that is of the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct FileSystemStat {
    /// The reason why changes are refused, if they are.
    #[serde(default)]
    pub(crate) failure: Option<String>,
    /// The files whose locks were waited for most, with `-o locks=sluice`.
    pub(crate) hot_locks: Vec<HotFile>,
    /// Inodes of the file system.
    pub(crate) live_inodes: u64,
    /// Bytes of a block.
    pub(crate) block_size: u64,
    /// Blocks there may be; 0: no limit.
    pub(crate) blocks: u64,
    /// Blocks of them that are free.
    pub(crate) blocks_free: u64,
    /// Bytes of files, extended attributes and the like.
    #[serde(default)]
    pub(crate) file_bytes: u64,
    /// Memory that the machine and its limits leave for the server.
    #[serde(default)]
    pub(crate) left_bytes: u64,
    /// Pieces of work that free something when no reader can see it any more.
    #[serde(default)]
    pub(crate) deferred_calls: u64,
    /// The bytes of pages among that.
    #[serde(default)]
    pub(crate) deferred_bytes: u64,
    /// Inodes and open files that seem to have lost their last reference.
    #[serde(default)]
    pub(crate) objects_in_review: u64,
    /// Pages without a file, kept for the next.
    #[serde(default)]
    pub(crate) spare_page_bytes: u64,
    /// Blocks for inodes and the like, kept for the next.
    #[serde(default)]
    pub(crate) spare_block_bytes: u64,
    /// Bytes that a file system with a store may have in memory; 0: there is none.
    #[serde(default)]
    pub(crate) memory_limit_bytes: u64,
    /// Bytes that these take.
    #[serde(default)]
    pub(crate) memory_used_bytes: u64,
    /// Inodes of the store that are in memory.
    #[serde(default)]
    pub(crate) inodes_in_memory: u64,
    /// Inodes in memory whose names are not in memory.
    #[serde(default)]
    pub(crate) inodes_apart: u64,
    /// Directories whose names are in memory.
    #[serde(default)]
    pub(crate) directories_in_memory: u64,
    /// How often the names of a directory have left memory.
    #[serde(default)]
    pub(crate) directory_departures: u64,
    /// For a file system with a store: bytes of contents that wait for the next push to it, by whole chunks.
    #[serde(default)]
    pub(crate) dirty_bytes: Option<u64>,
    /// For a store in an object store: requests by kind.
    #[serde(default)]
    pub(crate) object_requests: BTreeMap<String, ObjectRequests>,
    /// How often a part of an object was looked for in the cache on disk.
    #[serde(default)]
    pub(crate) cache_lookups: u64,
    /// The number of hits.
    #[serde(default)]
    pub(crate) cache_hits: u64,
    /// Bytes in that cache.
    #[serde(default)]
    pub(crate) cache_bytes: u64,
    /// For a store in an object store: how often a write waited until records in memory had become objects.
    #[serde(default)]
    pub(crate) write_stalls: u64,
}

/// How long requests of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Latency {
    /// All of them together, in nanoseconds.
    pub(crate) ns_total: u64,
    /// At most so many nanoseconds, and more than the bound before: so many requests.
    pub(crate) buckets: Vec<(u64, u64)>,
}

/// Requests of one kind to an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ObjectRequests {
    /// Requests that failed, and may have been repeated, or that found no such object, as a search for newer objects
    /// does.
    pub(crate) failed: u64,
    /// How long they took.
    #[serde(flatten)]
    pub(crate) latency: Latency,
}

impl Latency {
    /// The requests since `earlier`.
    pub(crate) fn since(&self, earlier: Option<&Latency>) -> Latency {
        let Some(earlier) = earlier else { return self.clone() };
        let before = |bound| earlier.buckets.iter().find(|(b, _)| *b == bound).map_or(0, |(_, count)| *count);
        let buckets = self.buckets.iter().map(|&(bound, count)| (bound, count.saturating_sub(before(bound))));
        Latency { ns_total: self.ns_total.saturating_sub(earlier.ns_total), buckets: buckets.collect() }
    }

    /// The number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The bound below or at which `share` of the requests are, for a person.
    pub(crate) fn quantile(&self, share: f64) -> String {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        match bucket {
            None => "-".to_owned(),
            // The last bucket has no bound.
            Some((u64::MAX, _)) => "longer".to_owned(),
            Some((bound, _)) => duration(*bound as f64),
        }
    }
}

impl MountStat {
    /// From the line that the server answers.
    ///
    /// # Errors
    /// When it is of another version's form.
    pub(crate) fn parse(json: &[u8]) -> Result<MountStat> {
        from_server(json)
    }

    /// For a person.
    pub(crate) fn text(&self) -> String {
        let mut table = Table::with_left_columns(1);
        table.line(["", "", "p50", "p99"]);
        table.line(["transport", &self.transport]);
        if let Some(why) = self.file_system.iter().find_map(|known| known.failure.as_ref()) {
            table.line(["read-only, since", why]);
        }
        for (name, value) in &self.cluster {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            table.line([format!("cluster {}", name.replace('_', " ")), value]);
        }
        for (name, value) in self.gauges() {
            table.line([name.replace('_', " "), grouped(value as f64)]);
        }
        for (kind, requests) in self.object_requests() {
            let count = requests.latency.count();
            let [p50, p99] = [0.5, 0.99].map(|share| requests.latency.quantile(share));
            table.line([
                format!("object {kind}, {} failed or not found", requests.failed),
                grouped(count as f64),
                p50,
                p99,
            ]);
        }
        for (name, count) in self.by_count() {
            let [p50, p99] = self.quantiles_since(name, None);
            table.line([format!("  {name}"), grouped(count as f64), p50, p99]);
        }
        table.render() + &self.hottest()
    }

    /// In the text format of Prometheus, version 0.0.4.
    pub(crate) fn prometheus(&self) -> String {
        let mut text = String::from("# TYPE sluicefs_requests_total counter\n");
        for (name, count) in &self.requests {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "sluicefs_requests_total{{kind=\"{name}\"}} {count}");
        }
        histograms(&mut text, "sluicefs_request_duration_seconds", self.latency.iter());
        let of_objects = self.object_requests().map(|(kind, requests)| (kind, &requests.latency));
        histograms(&mut text, "sluicefs_object_request_duration_seconds", of_objects);
        text.push_str("# TYPE sluicefs_object_requests_failed_total counter\n");
        for (kind, ObjectRequests { failed, .. }) in self.object_requests() {
            let _ = writeln!(text, "sluicefs_object_requests_failed_total{{kind=\"{kind}\"}} {failed}");
        }
        for (figure, of) in HOT_FIGURES {
            let _ = writeln!(text, "# TYPE sluicefs_hot_lock_{figure} gauge");
            for file in self.hot_locks() {
                let _ = writeln!(text, "sluicefs_hot_lock_{figure}{{inode=\"{}\"}} {}", file.inode, of(file));
            }
        }
        for (name, value) in self.gauges().into_iter().filter(|(name, _)| *name != "requests") {
            let _ = writeln!(text, "# TYPE sluicefs_{name} gauge\nsluicefs_{name} {value}");
        }
        self.of_cluster(&mut text);
        text
    }

    /// The numbers of a node of a cluster, and its role as a label.
    fn of_cluster(&self, text: &mut String) {
        if let Some(role) = self.cluster.get("role").and_then(Value::as_str) {
            let name = "sluicefs_cluster_info";
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# TYPE {name} gauge\n{name}{{role={role:?}}} 1");
        }
        for (name, value) in self.cluster.iter().filter_map(|(name, value)| Some((name, value.as_u64()?))) {
            let name = format!("sluicefs_cluster_{name}");
            let _ = writeln!(text, "# TYPE {name} gauge\n{name} {value}");
        }
    }

    /// The screen of `sluice top`: the counts since `earlier`, `seconds` ago.
    pub(crate) fn screen(&self, earlier: &MountStat, seconds: f64) -> String {
        let rate = |now: u64, then: u64| grouped(now.saturating_sub(then) as f64 / seconds.max(1e-3));
        let mut table = Table::with_left_columns(1);
        table.line(["request", "per second", "in all", "p50", "p99"]);
        table.line([
            "all".to_owned(),
            rate(self.requests_total, earlier.requests_total),
            grouped(self.requests_total as f64),
        ]);
        let mut kinds: Vec<(&str, u64, u64)> = (self.by_count().into_iter())
            .map(|(name, count)| (name, count, earlier.requests.get(name).copied().unwrap_or(0)))
            .collect();
        kinds.sort_by_key(|&(_, now, then)| std::cmp::Reverse(now.saturating_sub(then)));
        for (name, now, then) in kinds {
            let [p50, p99] = self.quantiles_since(name, Some(earlier));
            table.line([name.to_owned(), rate(now, then), grouped(now as f64), p50, p99]);
        }
        let gauges = self.gauges().into_iter().filter(|(name, _)| *name != "requests");
        let gauges: Vec<String> = gauges
            .map(|(name, value)| format!("{} {}", name.replace('_', " "), grouped(value as f64)))
            .collect();
        format!("{}\n\n{}{}", gauges.join("   "), table.render(), self.hottest())
    }

    /// p50 and p99 of the requests of a kind since `earlier`, or since the mount began.
    fn quantiles_since(&self, kind: &str, earlier: Option<&MountStat>) -> [String; 2] {
        let before = earlier.and_then(|earlier| earlier.latency.get(kind));
        let latency = self.latency.get(kind).map(|latency| latency.since(before)).unwrap_or_default();
        [0.5, 0.99].map(|share| latency.quantile(share))
    }

    /// The files whose locks were waited for most, below an empty line; nothing where nobody waited.
    fn hottest(&self) -> String {
        let waited: Vec<HotFile> = self.hot_locks().filter(|file| file.waits > 0).cloned().collect();
        if waited.is_empty() { String::new() } else { format!("\nhottest locks\n{}", hot_table(&waited)) }
    }

    fn hot_locks(&self) -> impl Iterator<Item = &HotFile> {
        self.file_system.iter().flat_map(|known| &known.hot_locks)
    }

    /// By kind; none where the server has no object store.
    pub(crate) fn object_requests(&self) -> impl Iterator<Item = (&String, &ObjectRequests)> {
        self.file_system.iter().flat_map(|known| &known.object_requests)
    }

    /// The known gauges.
    fn gauges(&self) -> Vec<(&'static str, u64)> {
        let mut gauges = vec![
            ("requests", self.requests_total),
            ("known_inodes", self.known_inodes),
            ("open_files", self.open_files),
            ("waiting_locks", self.waiting_locks),
            ("resident_bytes", self.resident_bytes),
        ];
        gauges.extend(self.file_system.iter().flat_map(FileSystemStat::gauges));
        gauges
    }

    /// The kinds of request, the most frequent first.
    fn by_count(&self) -> Vec<(&str, u64)> {
        let mut kinds: Vec<_> = self.requests.iter().map(|(name, &count)| (name.as_str(), count)).collect();
        kinds.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        kinds
    }
}

impl FileSystemStat {
    fn gauges(&self) -> Vec<(&'static str, u64)> {
        let used = self.blocks.saturating_sub(self.blocks_free).saturating_mul(self.block_size);
        let mut gauges = vec![
            ("live_inodes", self.live_inodes),
            ("data_bytes", used),
            ("file_bytes", self.file_bytes),
            ("left_bytes", self.left_bytes),
            ("deferred_calls", self.deferred_calls),
            ("deferred_bytes", self.deferred_bytes),
            ("objects_in_review", self.objects_in_review),
            ("spare_page_bytes", self.spare_page_bytes),
            ("spare_block_bytes", self.spare_block_bytes),
            ("memory_limit_bytes", self.memory_limit_bytes),
            ("memory_used_bytes", self.memory_used_bytes),
            ("inodes_in_memory", self.inodes_in_memory),
            ("inodes_apart", self.inodes_apart),
            ("directories_in_memory", self.directories_in_memory),
            ("directory_departures", self.directory_departures),
            ("cache_lookups", self.cache_lookups),
            ("cache_hits", self.cache_hits),
            ("cache_bytes", self.cache_bytes),
            ("write_stalls", self.write_stalls),
        ];
        gauges.extend(self.dirty_bytes.map(|bytes| ("dirty_bytes", bytes)));
        gauges
    }
}

/// Writes `latencies`, each with its kind, as the histogram `name` of Prometheus.
fn histograms<'a>(text: &mut String, name: &str, latencies: impl Iterator<Item = (&'a String, &'a Latency)>) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# TYPE {name} histogram");
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
    ("waiting", |file| file.waiting),
    ("grants", |file| file.grants),
    ("waits", |file| file.waits),
    ("wait_ns", |file| file.wait_ns_total),
];

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = br#"{"requests_total":30,"requests":{"LOOKUP":10,"READ":20},
        "latency":{"READ":{"ns_total":40000,"buckets":[[1023,15],[2047,4],[81919,1]]}},
        "object_requests":{"put":{"failed":2,"ns_total":9000000,"buckets":[[1000000,3],[5000000,1],[18446744073709551615,1]]}},
        "hot_locks":[{"inode":12,"held":1,"waiting":1,"grants":9,"waits":5,"bypasses":0,"wait_ns_total":8000000,
        "wait_ns_max":4000000}],"known_inodes":3,"live_inodes":4,"open_files":0,"waiting_locks":1,
        "resident_bytes":7000000,"block_size":4096,"blocks":10,"blocks_free":7}"#;

    #[test]
    fn the_answer_of_a_server_reads_as_text_and_as_metrics() {
        let stat = MountStat::parse(LINE).unwrap();
        assert!(stat.text().contains("data bytes") && stat.text().contains("12,288"), "{}", stat.text());
        let metrics = stat.prometheus();
        assert!(metrics.contains("sluicefs_requests_total{kind=\"READ\"} 20\n"), "{metrics}");
        assert!(
            metrics.contains("# TYPE sluicefs_waiting_locks gauge\nsluicefs_waiting_locks 1\n"),
            "{metrics}"
        );
        let lines = [
            "sluicefs_request_duration_seconds_bucket{kind=\"READ\",le=\"0.000002047\"} 19\n",
            "sluicefs_request_duration_seconds_bucket{kind=\"READ\",le=\"+Inf\"} 20\n",
            "sluicefs_request_duration_seconds_sum{kind=\"READ\"} 0.00004\n",
            "sluicefs_hot_lock_waits{inode=\"12\"} 5\n",
            "sluicefs_resident_bytes 7000000\n",
            "sluicefs_object_request_duration_seconds_bucket{kind=\"put\",le=\"0.005\"} 4\n",
            "sluicefs_object_request_duration_seconds_count{kind=\"put\"} 5\n",
            "sluicefs_object_requests_failed_total{kind=\"put\"} 2\n",
        ];
        assert!(lines.iter().all(|line| metrics.contains(line)), "{metrics}");
        assert!(
            stat.text().contains("1.0 us  81.9 us") && stat.text().contains("hottest locks"),
            "{}",
            stat.text()
        );
        let put = stat.text().lines().find(|line| line.starts_with("object put")).map(str::to_owned);
        assert!(
            put.is_some_and(|put| put.contains("2 failed")
                && put.contains("1.0 ms")
                && put.ends_with("longer")),
            "{}",
            stat.text()
        );
        assert!(MountStat::parse(b"{}").is_err());
    }

    #[test]
    fn of_a_node_that_is_not_the_owner_nothing_is_told_that_it_cannot_know() {
        let stat = MountStat::parse(
            br#"{"requests_total":30,"requests":{"READ":30},"latency":{},"known_inodes":3,"open_files":1,
            "waiting_locks":2,"resident_bytes":7,"transport":"relay",
            "cluster":{"cluster":"work","node":2,"role":"guest","epoch":5,"recalls":4,"dirty_bytes":4096}}"#,
        )
        .unwrap();
        let (text, metrics) = (stat.text(), stat.prometheus());
        for name in ["live inodes", "data bytes", "write stalls", "memory used"] {
            let metric = format!("sluicefs_{}", name.replace(' ', "_"));
            assert!(!text.contains(name) && !metrics.contains(&metric), "{name}: {text}{metrics}");
        }
        assert!(text.contains("waiting locks") && text.contains("cluster recalls"), "{text}");
        let lines = [
            "# TYPE sluicefs_cluster_info gauge\nsluicefs_cluster_info{role=\"guest\"} 1\n",
            "# TYPE sluicefs_cluster_recalls gauge\nsluicefs_cluster_recalls 4\n",
            "sluicefs_cluster_dirty_bytes 4096\n",
            "sluicefs_waiting_locks 2\n",
        ];
        assert!(lines.iter().all(|line| metrics.contains(line)), "{metrics}");
        assert!(!metrics.contains("work"), "names are no numbers: {metrics}");
    }

    #[test]
    fn a_screen_shows_rates_with_the_busiest_first() {
        let earlier = MountStat::parse(LINE).unwrap();
        let mut now = earlier.clone();
        now.requests_total += 8;
        now.requests.insert("LOOKUP".into(), 18);
        let screen = now.screen(&earlier, 2.0);
        let lines: Vec<&str> = screen.lines().collect();
        assert!(lines[3].starts_with("all") && lines[3].contains(" 4 "), "{screen}");
        assert!(lines[4].starts_with("LOOKUP"), "{screen}");
        now.latency.get_mut("READ").unwrap().buckets[1].1 += 7;
        let screen = now.screen(&earlier, 2.0);
        let read = screen.lines().find(|line| line.starts_with("READ")).unwrap();
        assert!(read.ends_with("2.0 us  2.0 us"), "of this second alone: {read}");
    }
}
