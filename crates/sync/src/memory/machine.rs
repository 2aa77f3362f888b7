//! Machine: how much memory this process may still take before the system ends it or refuses.
//!
//! # Theory
//! Several bounds hold at once, and the nearest counts:
//!
//! | bound | of it is left |
//! |---|---|
//! | the machine's memory | `MemAvailable` |
//! | each control group around the process, `memory.max` (`memory.limit_in_bytes`) | that, without what is in use and cannot be dropped |
//! | `RLIMIT_AS`, `RLIMIT_DATA` | that, without what is mapped |
//! | with `vm.overcommit_memory = 2`: `CommitLimit` | that, without `Committed_AS` |
//!
//! # Cost
//! About ten small files of /proc and /sys: tens of microseconds.

use rustix::process::{Resource, getrlimit};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// One bound, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The bound itself.
    pub total: u64,
    /// The rest that is not in use.
    pub left: u64,
}

/// The bounds that hold now. Empty where the system does not tell.
pub fn bounds() -> Vec<Bound> {
    let mut bounds = Vec::new();
    if let Ok(info) = read_to_string("/proc/meminfo") {
        let commits_are_bounded =
            read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
        bounds.extend(of_machine(&info, commits_are_bounded));
    }
    if let Ok(groups) = read_to_string("/proc/self/cgroup") {
        bounds.extend(of_groups(&groups, Path::new("/sys/fs/cgroup")));
    }
    bounds.extend(of_process());
    bounds
}

fn of_machine(info: &str, commits_are_bounded: bool) -> Vec<Bound> {
    let bytes = |name| kilobytes(info, name).map(|kilobytes| kilobytes * 1024);
    let memory = bytes("MemTotal:").zip(bytes("MemAvailable:"));
    let memory = memory.map(|(total, left)| Bound { total, left });
    let commits = bytes("CommitLimit:").zip(bytes("Committed_AS:")).filter(|_| commits_are_bounded);
    let commits = commits.map(|(total, used)| Bound { total, left: total.saturating_sub(used) });
    memory.into_iter().chain(commits).collect()
}

/// The number behind `name` at the begin of a line.
fn kilobytes(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Bounds of the control groups listed in `groups`, and of their ancestors, as seen below `root`.
fn of_groups(groups: &str, root: &Path) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match controllers {
            "" => &UNIFIED,
            _ if controllers.split(',').any(|name| name == "memory") => &SEPARATE,
            _ => continue,
        };
        let top = root.join(version.below);
        // A group that lies outside of what is seen here begins with "/..": its bounds are unknown, but for the top's.
        let within: PathBuf =
            path.trim_start_matches('/').split('/').take_while(|name| *name != "..").collect();
        bounds.extend(within.ancestors().filter_map(|group| version.bound(&top.join(group))));
    }
    bounds
}

/// The files of a control group.
struct Version {
    /// Where its hierarchy is mounted.
    below: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: pages of files, which are dropped when memory is needed.
    droppable: [&'static str; 2],
}

const UNIFIED: Version = Version {
    below: "",
    limit: "memory.max",
    usage: "memory.current",
    droppable: ["active_file ", "inactive_file "],
};
const SEPARATE: Version = Version {
    below: "memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    droppable: ["total_active_file ", "total_inactive_file "],
};

impl Version {
    /// The bound of `group`, if it has one.
    fn bound(&self, group: &Path) -> Option<Bound> {
        let number = |name| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        // "max" is no number; where there is no limit, older kernels tell one near 2^63.
        let total = number(self.limit).filter(|limit| *limit < 1 << 62)?;
        let used = number(self.usage)?;
        let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
        let droppable: u64 = self.droppable.iter().filter_map(|name| kilobytes(&stat, name)).sum();
        Some(Bound { total, left: total.saturating_sub(used.saturating_sub(droppable)) })
    }
}

/// The bounds of the process.
fn of_process() -> Vec<Bound> {
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    if limits.iter().all(Option::is_none) {
        return Vec::new();
    }
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let used = ["VmSize:", "VmData:"].map(|name| kilobytes(&status, name).unwrap_or(0) * 1024);
    let bounds = limits.into_iter().zip(used);
    bounds
        .filter_map(|(limit, used)| limit.map(|total| Bound { total, left: total.saturating_sub(used) }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:   600 kB\nCommitLimit: 800 kB\n\
                        Committed_AS:  900 kB\n";

    #[test]
    fn the_machine_bounds_memory_and_if_it_is_strict_what_is_promised() {
        let memory = Bound { total: 1000 << 10, left: 600 << 10 };
        assert_eq!(of_machine(INFO, false), [memory]);
        assert_eq!(of_machine(INFO, true), [memory, Bound { total: 800 << 10, left: 0 }]);
        assert_eq!(of_machine("nonsense", true), []);
    }

    #[test]
    fn each_control_group_around_the_process_bounds_it() {
        let root = std::env::temp_dir().join(format!("sluice-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("a new directory");
            std::fs::write(path, text).expect("there is room");
        };
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 1\nactive_file 100\ninactive_file 200\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "600\n");
        write("memory/c/memory.limit_in_bytes", "500\n");
        write("memory/c/memory.usage_in_bytes", "800\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let found = |groups| of_groups(groups, &root);
        let (inner, older) = (Bound { total: 1000, left: 600 }, Bound { total: 500, left: 0 });
        assert_eq!(found("0::/a/b\n"), [inner]);
        assert_eq!(found("5:cpu,memory:/c\n2:cpu:/a\n"), [older]);
        assert_eq!(found("0::/../elsewhere\nnonsense\n"), []);
        std::fs::remove_dir_all(&root).expect("it is there");
    }

    #[test]
    fn this_machine_tells_its_bounds() {
        let bounds = bounds();
        assert!(!bounds.is_empty() && bounds.iter().all(|bound| bound.left <= bound.total), "{bounds:?}");
        assert!(bounds.iter().all(|bound| bound.total > 1 << 20), "{bounds:?}");
    }
}
