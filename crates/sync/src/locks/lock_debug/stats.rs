//! Lock statistics: what was counted of a class of locks, as plain numbers.

use std::fmt::Write;

/// The counts of one class.
#[derive(Clone, Debug, Default)]
pub struct ClassStats {
    /// The class name, or the place where its locks are made.
    pub class: String,
    /// How often a lock of the class was taken.
    pub acquisitions: u64,
    /// How often it was not free.
    pub contentions: u64,
    /// For how long those waited that found it taken.
    pub wait: Times,
    /// For how long it was held.
    pub hold: Times,
    /// Where it was taken, the longest waits first.
    pub sites: Vec<SiteStats>,
}

/// Statistics of one place that takes locks of a class.
#[derive(Clone, Debug, Default)]
pub struct SiteStats {
    /// File and line.
    pub site: String,
    /// How often it took one.
    pub acquisitions: u64,
    /// How often it had to wait.
    pub contentions: u64,
    /// For how long, together.
    pub wait_ns: u64,
}

/// Times: how many, how long, how distributed.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Buckets that are not empty: the shortest time of each, and how many times fell into it; ascending.
    pub buckets: Vec<(u64, u64)>,
}

impl Times {
    /// A time that the share `part` (0 to 1) of them does not exceed, a quarter too long at most; 0 if there are none.
    pub fn percentile(&self, part: f64) -> u64 {
        let mut left = (self.count as f64 * part).ceil() as u64;
        for (at, (_, count)) in self.buckets.iter().enumerate() {
            if *count >= left {
                let next = self.buckets.get(at + 1).map_or(self.max_ns, |(next, _)| *next);
                return next.min(self.max_ns);
            }
            left -= count;
        }
        self.max_ns
    }

    /// The mean, 0 if there are none.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.count).unwrap_or(0)
    }
}

/// Places of a class that the table names.
const SITES_SHOWN: usize = 3;

/// The classes as a table for people, the longest waits first: times in nanoseconds.
pub fn table(classes: &[ClassStats]) -> String {
    let mut classes: Vec<_> = classes.iter().collect();
    classes.sort_by_key(|class| std::cmp::Reverse((class.wait.total_ns, class.acquisitions)));
    let wide = classes.iter().map(|class| class.class.len()).max().unwrap_or(0).max(10);
    let mut text = format!(
        "{:wide$} {:>12} {:>10} {:>8} {:>8} {:>10} {:>8} {:>8} {:>10}\n",
        "lock class", "taken", "waited", "wait p50", "p99", "max", "hold p50", "p99", "max"
    );
    for class in classes {
        let (wait, hold) = (&class.wait, &class.hold);
        let _ = writeln!(
            text,
            "{:wide$} {:>12} {:>10} {:>8} {:>8} {:>10} {:>8} {:>8} {:>10}",
            class.class,
            class.acquisitions,
            class.contentions,
            wait.percentile(0.5),
            wait.percentile(0.99),
            wait.max_ns,
            hold.percentile(0.5),
            hold.percentile(0.99),
            hold.max_ns
        );
        for site in class.sites.iter().take(SITES_SHOWN) {
            let _ = writeln!(
                text,
                "  {:>12} taken, {:>10} waited {:>12} ns  {}",
                site.acquisitions, site.contentions, site.wait_ns, site.site
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_the_buckets_and_never_exceed_the_longest() {
        let times =
            Times { count: 100, total_ns: 9_000, max_ns: 900, buckets: vec![(8, 50), (32, 49), (896, 1)] };
        assert_eq!((times.percentile(0.5), times.percentile(0.99), times.percentile(1.0)), (32, 896, 900));
        assert_eq!((times.mean_ns(), Times::default().percentile(0.5)), (90, 0));
    }
}
