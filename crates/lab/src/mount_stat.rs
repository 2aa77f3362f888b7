//! Mount statistics: what the server of a mount has counted, for a person, for Prometheus, and as it changes.

use crate::failure::{Context, Failure, Result};
use crate::table::{Table, grouped};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What the control socket answers to `stat`, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MountStat {
    /// Requests since the mount began.
    pub requests_total: u64,
    /// The same by kind.
    pub requests: BTreeMap<String, u64>,
    /// Inodes that the kernel knows.
    pub known_inodes: u64,
    /// Inodes in memory.
    pub live_inodes: u64,
    /// Files open, where the server is told of it (`-o locks=sluice`).
    pub open_files: u64,
    /// Lock requests that wait.
    pub waiting_locks: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks there may be; 0: no limit.
    pub blocks: u64,
    /// Blocks of them that are free.
    pub blocks_free: u64,
}

impl MountStat {
    /// From the line that the server answers.
    ///
    /// # Errors
    /// When it is of another version's form.
    pub fn parse(json: &[u8]) -> Result<MountStat> {
        serde_json::from_slice(json)
            .map_err(|error| Failure::Failed(error.to_string()))
            .context(|| "the mount's server answers in another form; is it of another version?")
    }

    /// For a person.
    pub fn text(&self) -> String {
        let mut table = Table::with_left_columns(1);
        for (name, value) in self.gauges() {
            table.line([name.replace('_', " "), grouped(value as f64)]);
        }
        for (name, count) in self.by_count() {
            table.line([format!("  {name}"), grouped(count as f64)]);
        }
        table.render()
    }

    /// In the text format of Prometheus, version 0.0.4.
    pub fn prometheus(&self) -> String {
        let mut text = String::from("# TYPE sluicefs_requests_total counter\n");
        for (name, count) in &self.requests {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "sluicefs_requests_total{{kind=\"{name}\"}} {count}");
        }
        for (name, value) in self.gauges().into_iter().filter(|(name, _)| *name != "requests") {
            let _ = writeln!(text, "# TYPE sluicefs_{name} gauge\nsluicefs_{name} {value}");
        }
        text
    }

    /// One screen of `sluice top`: what happened since `earlier`, `seconds` ago.
    pub fn screen(&self, earlier: &MountStat, seconds: f64) -> String {
        let rate = |now: u64, then: u64| grouped(now.saturating_sub(then) as f64 / seconds.max(1e-3));
        let mut table = Table::with_left_columns(1);
        table.line(["request", "per second", "in all"]);
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
            table.line([name.to_owned(), rate(now, then), grouped(now as f64)]);
        }
        let gauges = self.gauges().into_iter().filter(|(name, _)| *name != "requests");
        let gauges: Vec<String> = gauges
            .map(|(name, value)| format!("{} {}", name.replace('_', " "), grouped(value as f64)))
            .collect();
        format!("{}\n\n{}", gauges.join("   "), table.render())
    }

    fn gauges(&self) -> [(&'static str, u64); 6] {
        let used = self.blocks.saturating_sub(self.blocks_free) * self.block_size;
        [
            ("requests", self.requests_total),
            ("known_inodes", self.known_inodes),
            ("live_inodes", self.live_inodes),
            ("open_files", self.open_files),
            ("waiting_locks", self.waiting_locks),
            ("data_bytes", used),
        ]
    }

    /// The kinds of request, the most frequent first.
    fn by_count(&self) -> Vec<(&str, u64)> {
        let mut kinds: Vec<_> = self.requests.iter().map(|(name, &count)| (name.as_str(), count)).collect();
        kinds.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = br#"{"requests_total":30,"requests":{"LOOKUP":10,"READ":20},"known_inodes":3,
        "live_inodes":4,"open_files":0,"waiting_locks":1,"block_size":4096,"blocks":10,"blocks_free":7}"#;

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
        assert!(MountStat::parse(b"{}").is_err());
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
    }
}
