//! Sleeps: how often threads have gone to sleep.

use std::fs;

/// How often the threads of this process that are called `name` have gone to sleep so far.
pub(crate) fn sleeps(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let status = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let named = status.filter(|status| status.lines().any(|line| line == format!("Name:\t{name}")));
    let count = |status: String| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
    };
    named.filter_map(count).sum()
}
