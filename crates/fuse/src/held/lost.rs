//! ToldLosses: the processes that are told of lost changes, which a server had answered before it died.
//!
//! # Theory
//! A change that was answered and is not durable is lost with its server. The next fsync of each process that asked for such
//! a change fails, for any file, since the process may build on the lost change. Each process that makes a changed file durable is told, too, once for each
//! such file. A process that was started later is told of a file only if nobody was: as for an error of a disk.

use super::changes::NotedChange;
use crate::calling_process::CallingProcess;
use crate::lock_class::LOST;
use sluice_sync::Mutex;
use sluice_sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// From so many processes on those that were told of a file are looked through for such that have ended.
const TOLD_MANY: usize = 1024;

/// The lost changes, and the processes that were told.
#[derive(Debug)]
pub(super) struct ToldLosses {
    /// Either nothing is lost, or all processes that could be told are told. *atomic (stands alone)*
    is_empty: AtomicBool,
    /// When this server took the mount over. *immutable*
    since: u64,
    untold: Mutex<Untold>,
}

#[derive(Debug, Default)]
struct Untold {
    processes: BTreeSet<CallingProcess>,
    nodes: HashMap<u64, ToldOf>,
}

/// The processes that were told of a node.
#[derive(Debug, Default)]
struct ToldOf {
    is_told: bool,
    processes: BTreeSet<CallingProcess>,
}

impl ToldOf {
    /// Whether the fsync of `process` fails now. `process` is none for a process of another PID namespace.
    fn tell(&mut self, process: Option<CallingProcess>, since: u64) -> bool {
        let was_told = std::mem::replace(&mut self.is_told, true);
        let Some(process) = process.filter(|process| process.was_there(since)) else { return !was_told };
        if self.processes.len() >= TOLD_MANY {
            self.processes.retain(CallingProcess::lives);
        }
        self.processes.insert(process)
    }
}

impl ToldLosses {
    /// These changes, and contents of `nameless`, are lost for a server that is there `since` that time.
    pub(super) fn new(lost: &[NotedChange], nameless: &BTreeSet<u64>, since: u64) -> ToldLosses {
        let nodes = lost.iter().map(|change| change.nodeid).chain(nameless.iter().copied());
        let mut latest = BTreeMap::new();
        lost.iter().for_each(|change| _ = latest.insert(change.process, change.time));
        // A process that has ended needs no answer, nor does a later one of its number.
        let processes = latest
            .into_iter()
            .filter_map(|(id, time)| CallingProcess::of(id).filter(|process| process.was_there(time)));
        let untold = Untold {
            processes: processes.collect(),
            nodes: nodes.map(|nodeid| (nodeid, ToldOf::default())).collect(),
        };
        ToldLosses {
            is_empty: AtomicBool::new(untold.nodes.is_empty()),
            since,
            untold: Mutex::with_class(&LOST, untold),
        }
    }

    /// Whether an fsync of `nodeid` by `thread` is to fail.
    pub(super) fn tell(&self, nodeid: u64, thread: u32) -> bool {
        // Relaxed: set before requests are served.
        if self.is_empty.load(Ordering::Relaxed) {
            return false;
        }
        let process = CallingProcess::of(thread);
        let mut untold = self.untold.lock();
        let by_process = process.is_some_and(|process| untold.processes.remove(&process));
        let by_node = untold.nodes.get_mut(&nodeid).is_some_and(|told| told.tell(process, self.since));
        by_process || by_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn lost(nodeid: u64, process: u32, time: u64) -> NotedChange {
        NotedChange { time, nodeid, process, ..NotedChange::new_zeroed() }
    }

    #[test]
    fn a_process_is_told_once_of_what_it_did_and_once_of_each_file() {
        let own = std::process::id();
        let changes = [lost(5, own, u64::MAX), lost(6, 0, 7)];
        let of = ToldLosses::new(&changes, &[9].into(), u64::MAX);
        assert!(of.tell(77, own), "another file: of what it did");
        assert!(!of.tell(77, own));
        assert!(of.tell(5, own) && !of.tell(5, own));
        assert!(of.tell(6, 1) && of.tell(6, own) && !of.tell(6, 1), "each that was there");
        assert!(of.tell(9, own));
        assert!(!of.tell(77, 1), "it did nothing");
        let of = ToldLosses::new(&[], &BTreeSet::new(), 0);
        assert!(!of.tell(5, own));
    }

    #[test]
    fn who_comes_later_is_told_only_if_nobody_was() {
        let own = std::process::id();
        let of = ToldLosses::new(&[lost(5, 0, 7), lost(6, 0, 7)], &BTreeSet::new(), 0);
        assert!(of.tell(5, own) && !of.tell(5, own) && !of.tell(5, 0));
        assert!(of.tell(6, 0), "one that cannot be seen");
        assert!(!of.tell(6, 0) && !of.tell(6, own));
        let of = ToldLosses::new(&[lost(5, own, 0)], &BTreeSet::new(), u64::MAX);
        assert!(!of.tell(77, own), "a later process of that number");
    }
}
