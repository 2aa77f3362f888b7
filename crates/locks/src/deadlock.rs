//! WaitGraph: which process waits for which, over all files of a domain.
//!
//! # Theory
//! Nodes are processes. A wait (one blocked request, named by its ticket) has one edge to each process that
//! holds a lock in its way; it needs *all* of them to let go, so a cycle through any edge is a deadlock. A
//! process with several blocked threads has several waits. The graph never has a cycle, because [`wait`]
//! refuses the edge that would close one; so a new edge need only be searched from its far end for its origin.
//!
//! # Cost
//! A check visits each process reachable from the blockers once, and each of their waits once.
//!
//! [`wait`]: WaitGraph::wait

use std::collections::{HashMap, HashSet};

/// The wait-for graph of a domain. *Protected by the domain's graph lock.*
#[derive(Default)]
pub(crate) struct WaitGraph {
    waits: HashMap<u64, Wait>,
    /// The waits of each process that has any.
    by_process: HashMap<u64, Vec<u64>>,
}

struct Wait {
    process: u64,
    blockers: Vec<u64>,
}

/// The wait would close a cycle.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle;

impl WaitGraph {
    /// Says that the wait `ticket` of `process` is for exactly `blockers`. If that closes a cycle, the wait is
    /// not (or no longer) in the graph.
    pub(crate) fn wait(&mut self, ticket: u64, process: u64, blockers: Vec<u64>) -> Result<(), Cycle> {
        let known = self.waits.get(&ticket).map_or(&[][..], |wait| &wait.blockers);
        let added = blockers.iter().copied().filter(|blocker| !known.contains(blocker)).collect();
        if self.reaches(added, process) {
            self.remove(ticket);
            return Err(Cycle);
        }
        if self.waits.insert(ticket, Wait { process, blockers }).is_none() {
            self.by_process.entry(process).or_default().push(ticket);
        }
        Ok(())
    }

    /// Drops the edges of the wait `ticket` that do not lead to one of `blockers`.
    pub(crate) fn retain(&mut self, ticket: u64, blockers: &[u64]) {
        if let Some(wait) = self.waits.get_mut(&ticket) {
            wait.blockers.retain(|blocker| blockers.contains(blocker));
        }
    }

    /// Forgets the wait `ticket`, if it is there.
    pub(crate) fn remove(&mut self, ticket: u64) {
        let Some(wait) = self.waits.remove(&ticket) else { return };
        if let Some(tickets) = self.by_process.get_mut(&wait.process) {
            tickets.retain(|&other| other != ticket);
            if tickets.is_empty() {
                self.by_process.remove(&wait.process);
            }
        }
    }

    /// True if nobody waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.by_process.is_empty()
    }

    /// True if `target` is among `open` or can be reached from there.
    fn reaches(&self, mut open: Vec<u64>, target: u64) -> bool {
        let mut seen: HashSet<u64> = open.iter().copied().collect();
        while let Some(process) = open.pop() {
            if process == target {
                return true;
            }
            for ticket in self.by_process.get(&process).into_iter().flatten() {
                for &blocker in self.waits.get(ticket).map_or(&[][..], |wait| &wait.blockers) {
                    if seen.insert(blocker) {
                        open.push(blocker);
                    }
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_that_closes_a_long_cycle_is_refused() {
        let mut graph = WaitGraph::default();
        for process in 0..100 {
            assert_eq!(graph.wait(process, process, vec![process + 1]), Ok(()));
        }
        assert_eq!(graph.wait(100, 100, vec![0]), Err(Cycle));
        assert_eq!(graph.wait(100, 100, vec![200]), Ok(()));
    }

    #[test]
    fn a_cycle_through_the_second_blocker_or_the_second_thread_is_found() {
        let mut graph = WaitGraph::default();
        assert_eq!(graph.wait(1, 1, vec![7, 2]), Ok(()));
        assert_eq!(graph.wait(2, 2, vec![8]), Ok(()));
        assert_eq!(graph.wait(3, 2, vec![9]), Ok(()));
        assert_eq!(graph.wait(4, 9, vec![1]), Err(Cycle));
    }

    #[test]
    fn an_edge_that_is_gone_closes_no_cycle() {
        let mut graph = WaitGraph::default();
        assert_eq!(graph.wait(1, 1, vec![2, 3]), Ok(()));
        graph.retain(1, &[3]);
        assert_eq!(graph.wait(2, 2, vec![1]), Ok(()));
        assert_eq!(graph.wait(3, 3, vec![1]), Err(Cycle));
        graph.remove(1);
        assert_eq!(graph.wait(3, 3, vec![1]), Ok(()));
    }

    #[test]
    fn a_wait_whose_new_blocker_closes_a_cycle_leaves_the_graph() {
        let mut graph = WaitGraph::default();
        assert_eq!(graph.wait(1, 1, vec![2]), Ok(()));
        assert_eq!(graph.wait(2, 3, vec![1]), Ok(()));
        assert_eq!(graph.wait(1, 1, vec![2, 3]), Err(Cycle));
        graph.remove(2);
        assert!(graph.is_empty());
    }
}
