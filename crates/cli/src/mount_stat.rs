//! Mount statistics: what the server of a mount has counted, for a person, and as it changes.

use crate::mount_locks::{from_server, hot_table};
use sluice_console::failure::Result;
use sluice_console::table::{Table, duration, grouped};
use sluice_fuse::control::{FileSystemStat, HotFile, Latency, MountStat, ObjectRequests};

/// The bound below or at which `share` of the requests are, for a person.
pub(crate) fn quantile(latency: &Latency, share: f64) -> String {
    let wanted = (latency.count() as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    let bucket = latency.buckets.iter().find(|(_, count)| {
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

/// From the line that the server answers.
///
/// # Errors
/// When it is of another version's form.
pub(crate) fn parse(json: &[u8]) -> Result<MountStat> {
    from_server(json)
}

/// For a person.
pub(crate) fn text(stat: &MountStat) -> String {
    let mut table = Table::with_left_columns(1);
    table.line(["", "", "p50", "p99"]);
    table.line(["transport", &stat.transport]);
    if let Some(cause) = &stat.restart_cause {
        table.line(["the last server's end", cause]);
    }
    if let Some(why) = stat.file_system.iter().find_map(|known| known.failure.as_ref()) {
        table.line(["read-only, since", why]);
    }
    if let Some(why) = stat.file_system.iter().find_map(|known| known.snapshot_failure.as_ref()) {
        table.line(["snapshots fail, since", why]);
    }
    if let Some(why) = stat.file_system.iter().find_map(|known| known.scrub_failure.as_ref()) {
        table.line(["the scrub fails, since", why]);
    }
    for (name, value) in &stat.cluster {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let label =
            if name == "cluster" { name.clone() } else { format!("cluster {}", name.replace('_', " ")) };
        table.line([label, value]);
    }
    for (name, value) in gauges(stat) {
        table.line([name.replace('_', " "), grouped(value as f64)]);
    }
    let store = stat.file_system.iter().find_map(|known| known.store.as_ref());
    if let Some(store) = store.filter(|store| store.compressed && store.contents_written_stored_bytes > 0) {
        let ratio = store.contents_written_bytes as f64 / store.contents_written_stored_bytes as f64;
        table.line(["compression ratio since the mount".to_owned(), format!("{ratio:.2}")]);
    }
    for (kind, requests) in object_requests(stat) {
        let count = requests.latency.count();
        let [p50, p99] = [0.5, 0.99].map(|share| quantile(&requests.latency, share));
        table.line([
            format!("object {kind}, {} failed or not found", requests.failed),
            grouped(count as f64),
            p50,
            p99,
        ]);
    }
    for (name, count) in by_count(stat) {
        let [p50, p99] = quantiles_since(stat, name, None);
        table.line([format!("  {name}"), grouped(count as f64), p50, p99]);
    }
    table.render() + &hottest(stat)
}

/// The screen of `sluice top`: the counts since `earlier`, `seconds` ago.
pub(crate) fn screen(stat: &MountStat, earlier: &MountStat, seconds: f64) -> String {
    let rate = |now: u64, then: u64| grouped(now.saturating_sub(then) as f64 / seconds.max(1e-3));
    let mut table = Table::with_left_columns(1);
    table.line(["request", "per second", "in all", "p50", "p99"]);
    table.line([
        "all".to_owned(),
        rate(stat.requests_total, earlier.requests_total),
        grouped(stat.requests_total as f64),
    ]);
    let mut kinds: Vec<(&str, u64, u64)> = (by_count(stat).into_iter())
        .map(|(name, count)| (name, count, earlier.requests.get(name).copied().unwrap_or(0)))
        .collect();
    kinds.sort_by_key(|&(_, now, then)| std::cmp::Reverse(now.saturating_sub(then)));
    for (name, now, then) in kinds {
        let [p50, p99] = quantiles_since(stat, name, Some(earlier));
        table.line([name.to_owned(), rate(now, then), grouped(now as f64), p50, p99]);
    }
    let gauges = gauges(stat).into_iter().filter(|(name, _)| *name != "requests");
    let gauges: Vec<String> =
        gauges.map(|(name, value)| format!("{} {}", name.replace('_', " "), grouped(value as f64))).collect();
    format!("{}\n\n{}{}", gauges.join("   "), table.render(), hottest(stat))
}

/// p50 and p99 of the requests of a kind since `earlier`, or since the mount began.
fn quantiles_since(stat: &MountStat, kind: &str, earlier: Option<&MountStat>) -> [String; 2] {
    let before = earlier.and_then(|earlier| earlier.latency.get(kind));
    let latency = stat.latency.get(kind).map(|latency| latency.since(before)).unwrap_or_default();
    [0.5, 0.99].map(|share| quantile(&latency, share))
}

/// The files whose locks were waited for most, below an empty line; nothing where nobody waited.
fn hottest(stat: &MountStat) -> String {
    let waited: Vec<HotFile> = hot_locks(stat).filter(|file| file.waits > 0).cloned().collect();
    if waited.is_empty() { String::new() } else { format!("\nhottest locks\n{}", hot_table(&waited)) }
}

pub(crate) fn hot_locks(stat: &MountStat) -> impl Iterator<Item = &HotFile> {
    stat.file_system.iter().flat_map(|known| &known.hot_locks)
}

/// By kind; none where the server has no object store.
pub(crate) fn object_requests(stat: &MountStat) -> impl Iterator<Item = (&String, &ObjectRequests)> {
    stat.file_system.iter().flat_map(|known| &known.objects).flat_map(|objects| &objects.object_requests)
}

/// The known gauges.
pub(crate) fn gauges(stat: &MountStat) -> Vec<(&'static str, u64)> {
    let mut gauges = vec![
        ("requests", stat.requests_total),
        ("known_inodes", stat.known_inodes),
        ("open_files", stat.open_files),
        ("waiting_locks", stat.waiting_locks),
        ("resident_bytes", stat.resident_bytes),
    ];
    gauges.extend(stat.restarts.map(|count| ("restarts", count)));
    gauges.extend(stat.file_system.iter().flat_map(gauges_of_file_system));
    gauges
}

/// The kinds of request, the most frequent first.
fn by_count(stat: &MountStat) -> Vec<(&str, u64)> {
    let mut kinds: Vec<_> = stat.requests.iter().map(|(name, &count)| (name.as_str(), count)).collect();
    kinds.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    kinds
}

fn gauges_of_file_system(stat: &FileSystemStat) -> Vec<(&'static str, u64)> {
    let used = stat.blocks.saturating_sub(stat.blocks_free).saturating_mul(stat.block_size);
    let objects = stat.objects.clone().unwrap_or_default();
    let mut gauges = vec![
        ("live_inodes", stat.live_inodes),
        ("data_bytes", used),
        ("file_bytes", stat.file_bytes),
        ("left_bytes", stat.left_bytes),
        ("deferred_calls", stat.deferred_calls),
        ("deferred_bytes", stat.deferred_bytes),
        ("objects_in_review", stat.objects_in_review),
        ("spare_page_bytes", stat.spare_page_bytes),
        ("spare_block_bytes", stat.spare_block_bytes),
        ("memory_limit_bytes", stat.memory_limit_bytes),
        ("memory_used_bytes", stat.memory_used_bytes),
        ("inodes_in_memory", stat.inodes_in_memory),
        ("inodes_apart", stat.inodes_apart),
        ("directories_in_memory", stat.directories_in_memory),
        ("directory_departures", stat.directory_departures),
        ("cache_lookups", objects.cache_lookups),
        ("cache_hits", objects.cache_hits),
        ("cache_bytes", objects.cache_bytes),
        ("write_stalls", objects.write_stalls),
    ];
    gauges.extend(stat.dirty_bytes.map(|bytes| ("dirty_bytes", bytes)));
    if let Some(store) = &stat.store {
        gauges.extend([
            ("encrypted", store.encrypted.into()),
            ("compressed", store.compressed.into()),
            ("contents_stored_bytes", store.contents_stored_bytes),
            ("contents_written_bytes", store.contents_written_bytes),
            ("contents_written_stored_bytes", store.contents_written_stored_bytes),
        ]);
    }
    if let Some(scrub) = &stat.scrub {
        gauges.extend([
            ("scrub_age_seconds", scrub.scrub_age_seconds),
            ("scrub_unfinished", scrub.scrub_unfinished),
            ("scrub_bytes", scrub.scrub_bytes),
            ("scrub_total_bytes", scrub.scrub_total_bytes),
            ("scrub_damaged", scrub.scrub_damaged),
        ]);
        gauges.extend(scrub.scrub_end_age_seconds.map(|age| ("scrub_end_age_seconds", age)));
    }
    gauges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MountPlace, prometheus};
    use sluice_fuse::control::StoreStat;

    const LINE: &[u8] = br#"{"requests_total":30,"requests":{"LOOKUP":10,"READ":20},
        "latency":{"READ":{"ns_total":40000,"buckets":[[1023,15],[2047,4],[81919,1]]}},
        "object_requests":{"put":{"failed":2,"ns_total":9000000,"buckets":[[1000000,3],[5000000,1],[18446744073709551615,1]]}},
        "hot_locks":[{"inode":12,"held":1,"waiting":1,"grants":9,"waits":5,"bypasses":0,"wait_ns_total":8000000,
        "wait_ns_max":4000000}],"known_inodes":3,"live_inodes":4,"open_files":0,"waiting_locks":1,
        "resident_bytes":7000000,"block_size":4096,"blocks":10,"blocks_free":7}"#;

    fn place() -> MountPlace {
        MountPlace { directory: "/srv".into(), store: "ram".into() }
    }

    #[test]
    fn the_answer_of_a_server_reads_as_text_and_as_metrics() {
        let stat = parse(LINE).unwrap();
        assert!(text(&stat).contains("data bytes") && text(&stat).contains("12,288"), "{}", text(&stat));
        let metrics = prometheus(&stat, &place());
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
            text(&stat).contains("1.0 us  81.9 us") && text(&stat).contains("hottest locks"),
            "{}",
            text(&stat)
        );
        let put = text(&stat).lines().find(|line| line.starts_with("object put")).map(str::to_owned);
        assert!(
            put.is_some_and(|put| put.contains("2 failed")
                && put.contains("1.0 ms")
                && put.ends_with("longer")),
            "{}",
            text(&stat)
        );
        assert!(parse(b"{}").is_err());
    }

    #[test]
    fn a_scrub_that_cannot_go_on_is_told_with_its_reason() {
        let mut stat = parse(LINE).unwrap();
        stat.file_system.as_mut().unwrap().scrub_failure = Some("I/O error (EIO)".into());
        let told = text(&stat);
        assert!(told.contains("the scrub fails, since") && told.contains("I/O error (EIO)"), "{told}");
    }

    #[test]
    fn how_a_store_keeps_contents_is_told_with_the_ratio_of_a_compressed_one() {
        let mut stat = parse(LINE).unwrap();
        let kept = StoreStat {
            encrypted: true,
            compressed: true,
            contents_stored_bytes: 8192,
            contents_written_bytes: 30_000,
            contents_written_stored_bytes: 12_288,
        };
        stat.file_system.as_mut().unwrap().store = Some(kept);
        let (told, metrics) = (text(&stat), prometheus(&stat, &place()));
        assert!(told.contains("compression ratio since the mount") && told.contains("2.44"), "{told}");
        for line in
            ["sluicefs_encrypted 1\n", "sluicefs_compressed 1\n", "sluicefs_contents_stored_bytes 8192\n"]
        {
            assert!(metrics.contains(line), "{metrics}");
        }
        stat.file_system.as_mut().unwrap().store.as_mut().unwrap().compressed = false;
        assert!(
            !text(&stat).contains("ratio") && prometheus(&stat, &place()).contains("sluicefs_compressed 0\n")
        );
        stat.file_system.as_mut().unwrap().store = None;
        assert!(!text(&stat).contains("encrypted") && !prometheus(&stat, &place()).contains("compressed"));
    }

    #[test]
    fn of_a_node_that_is_not_the_owner_nothing_is_told_that_it_cannot_know() {
        let stat = parse(
            br#"{"requests_total":30,"requests":{"READ":30},"latency":{},"known_inodes":3,"open_files":1,
            "waiting_locks":2,"resident_bytes":7,"transport":"relay",
            "cluster":{"cluster":"work","node":2,"role":"guest","epoch":5,"recalls":4,"dirty_bytes":4096}}"#,
        )
        .unwrap();
        let (text, metrics) = (text(&stat), prometheus(&stat, &place()));
        for name in ["live inodes", "data bytes", "write stalls", "memory used"] {
            let metric = format!("sluicefs_{}", name.replace(' ', "_"));
            assert!(!text.contains(name) && !metrics.contains(&metric), "{name}: {text}{metrics}");
        }
        assert!(text.contains("waiting locks") && text.contains("cluster recalls"), "{text}");
        let lines = [
            "# TYPE sluicefs_cluster_info gauge\nsluicefs_cluster_info{role=\"guest\"} 1\n",
            "# TYPE sluicefs_cluster_recalls counter\nsluicefs_cluster_recalls 4\n",
            "sluicefs_cluster_dirty_bytes 4096\n",
            "sluicefs_waiting_locks 2\n",
        ];
        assert!(lines.iter().all(|line| metrics.contains(line)), "{metrics}");
        assert!(!metrics.contains("work"), "names are no numbers: {metrics}");
    }

    #[test]
    fn a_screen_shows_rates_with_the_busiest_first() {
        let earlier = parse(LINE).unwrap();
        let mut now = earlier.clone();
        now.requests_total += 8;
        now.requests.insert("LOOKUP".into(), 18);
        let shown = screen(&now, &earlier, 2.0);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[3].starts_with("all") && lines[3].contains(" 4 "), "{shown}");
        assert!(lines[4].starts_with("LOOKUP"), "{shown}");
        now.latency.get_mut("READ").unwrap().buckets[1].1 += 7;
        let shown = screen(&now, &earlier, 2.0);
        let read = shown.lines().find(|line| line.starts_with("READ")).unwrap();
        assert!(read.ends_with("2.0 us  2.0 us"), "of this second alone: {read}");
    }
}
