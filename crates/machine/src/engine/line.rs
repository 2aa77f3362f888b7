//! A cache line as the coherence protocol sees it, and what each access does to it.
//!
//! # Theory
//! MESI with a directory. A line is *modified* or *exclusive* (one owner), *shared* (a set of CPUs), or in
//! memory only:
//!
//! ```text
//!             load by another                 store / rmw by another
//! M, E   ->   S {old owner, loader}           M {writer}
//! S      ->   S + loader                      M {writer}; the others lose their copies
//! memory ->   E {loader}                      M {writer}
//! ```
//! Caches are endless: a copy is lost only to another CPU's write, never to capacity.
//!
//! A transfer takes three messages: the request to the line's directory, its order to the CPU that has the
//! line, and the line to the requester. The directory serves one transfer at a time and queues the other requests,
//! first come, first served: n read-modify-writes of one line take n transfers. Until the order arrives,
//! the CPU that has the line may use it:
//!
//! ```text
//!   alone    C asks ------------> directory ------------> B has the line ------------> C has it
//!            |<----------- B keeps it: two thirds ------->|
//!
//!   queued   B's miss ends; C has asked before            order                        C has it
//!            |<-- B keeps it: one third ----------------->|
//! ```
//! So however many wait, a CPU that receives a line keeps it for a moment, and its next accesses hit: a
//! compare-and-swap that failed and is tried again at once succeeds.
//!
//! Loads of a shared line take it from no CPU: they overlap, a directory time apart (the serial directory that
//! makes ticket locks collapse: Boyd-Wickizer and others, "Non-scalable locks are dangerous", 2012).
//!
//! # Invariants
//! - I1: with an owner, `sharers` is the owner alone.
//! - I2: a CPU asleep on the line is in `sharers`.
//! - I3: of the CPUs in the queue only the first is due; the others have no entry in the clock tree.
//!
//! # Sources
//! Directories that block while a transfer is under way, and the three messages: Nagarajan, Sorin, Hill and
//! Wood, "A Primer on Memory Consistency and Cache Coherence", 2nd edition, chapter 8 \[R\]; that each takes a
//! third is assumed \[A\]. That queueing makes a transfer no faster: 32 threads that add to one word took 104 ns
//! each where a transfer takes 44 or 118 ns (folly's table) \[V\]. How long a line is kept: of two threads that did
//! nothing but add to one word, on two cores of a server, each did 3 additions a turn most often (56%), or 2
//! (31%); with computing in between 1 (73% to 93%). A third of a transfer there is 36 cycles, an addition 20.

use super::topology::Topology;
use crate::cpu_set::CpuSet;
use crate::spec::{Kind, Spec};

/// The `owner` of a line that is shared or in memory.
pub(crate) const NOBODY: u16 = u16::MAX;

/// In which state an access that missed found the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    Modified,
    Exclusive,
    Shared,
    Memory,
}

impl LineState {
    /// Whether an access of a line in this state takes something from another cache.
    fn takes(self, kind: Kind) -> bool {
        match self {
            LineState::Modified | LineState::Exclusive => true,
            LineState::Shared => kind.writes(),
            LineState::Memory => false,
        }
    }
}

/// One line: 64 bytes, so that a hit touches one line of the host.
#[repr(align(64))]
pub(crate) struct Line {
    /// The CPUs that have a copy.
    pub(crate) sharers: CpuSet,
    /// When the line is free for the next transfer, in cycles.
    pub(crate) busy_until: u64,
    /// The first CPU that waits at the directory, linked through [`CpuState`](super::CpuState), or `NOBODY`.
    pub(crate) first: u16,
    /// The CPU that came last; stale when `first` is `NOBODY`.
    pub(crate) last: u16,
    /// The time until which its owner has used it, in cycles; the owner may be ahead of its time.
    pub(crate) used_until: u64,
    /// Index into the engine's sets of sleepers, plus 1; 0 while nobody has slept on it.
    pub(crate) sleepers: u32,
    /// The CPU that has it alone, or `NOBODY`.
    pub(crate) owner: u16,
    /// The node whose memory backs it: that of the CPU that touched it first. Immutable.
    pub(crate) home: u8,
    /// Whether the owner has written.
    pub(crate) dirty: bool,
}

/// The cost of moving a line on this machine, as a table.
pub(crate) struct Prices {
    table: [[[u32; crate::spec::CLASSES_MAX]; 4]; 3],
    shared_load_busy: u64,
    /// The cheapest transfer that takes something from another cache (a load of a shared line takes nothing):
    /// no CPU can see sooner what another does.
    pub(crate) least: u64,
}

impl Prices {
    pub(crate) fn new(spec: &Spec) -> Prices {
        let mut table = [[[0; crate::spec::CLASSES_MAX]; 4]; 3];
        let mut least = u32::MAX;
        for (kind, states) in spec.transfer.rows().iter().enumerate() {
            for (state, row) in states.iter().enumerate() {
                table[kind][state][..row.len()].copy_from_slice(row);
                let harmless = kind == Kind::Load as usize && state == LineState::Shared as usize;
                if state != LineState::Memory as usize && !harmless {
                    least = row.iter().copied().fold(least, u32::min);
                }
            }
        }
        Prices { table, shared_load_busy: spec.costs.shared_load_busy.into(), least: least.into() }
    }

    #[inline]
    pub(crate) fn price(&self, kind: Kind, state: LineState, distance: usize) -> u64 {
        self.table[kind as usize][state as usize][distance].into()
    }
}

/// A transfer as planned: when it takes the line, or a copy, from the CPU that has it, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineTransfer {
    pub(crate) reached: u64,
    pub(crate) end: u64,
}

impl Line {
    pub(crate) fn new(home: usize) -> Line {
        let (sharers, home) = (CpuSet::default(), home as u8);
        let (owner, first, last) = (NOBODY, NOBODY, NOBODY);
        Line { sharers, busy_until: 0, used_until: 0, first, last, sleepers: 0, owner, home, dirty: false }
    }

    /// Whether `cpu` can do the access with its own copy.
    #[inline]
    pub(crate) fn hit(&self, kind: Kind, cpu: usize) -> bool {
        match kind {
            Kind::Load => self.sharers.contains(cpu),
            Kind::Store | Kind::Rmw => usize::from(self.owner) == cpu,
        }
    }

    /// An access with the CPU's own copy, which ends at `end`. A line's owner holds off CPUs that want the
    /// line, so no CPU sees a value before it was written, even where the owner runs ahead.
    #[inline]
    pub(crate) fn use_copy(&mut self, kind: Kind, cpu: usize, end: u64) {
        if usize::from(self.owner) == cpu {
            self.used_until = self.used_until.max(end);
            self.dirty |= kind.writes();
        }
    }

    /// The transfer that `cpu` has asked for at `since`, if it is next.
    pub(crate) fn plan(
        &self,
        kind: Kind,
        cpu: usize,
        since: u64,
        topology: &Topology,
        prices: &Prices,
    ) -> LineTransfer {
        debug_assert!(!self.hit(kind, cpu));
        let (found, distance) = self.find(kind, cpu, topology);
        let cost = prices.price(kind, found, distance);
        let end = since.max(self.busy_until) + cost;
        let reached =
            if found.takes(kind) { (since + 2 * cost / 3).max(self.busy_until + cost / 3) } else { since };
        LineTransfer { reached, end }
    }

    /// Moves the line to `cpu`, as planned. Gives the time when `cpu` goes on.
    pub(crate) fn fetch(&mut self, kind: Kind, cpu: usize, planned: LineTransfer, prices: &Prices) -> u64 {
        // An owner that ran ahead of its time may hold the transfer up.
        let end = planned.end.max(self.used_until);
        self.busy_until = if kind == Kind::Load && self.owner == NOBODY && !self.sharers.is_empty() {
            (planned.reached.max(self.busy_until) + prices.shared_load_busy).min(end)
        } else {
            end
        };
        if kind == Kind::Load && (self.owner != NOBODY || !self.sharers.is_empty()) {
            self.sharers.insert(cpu);
            self.owner = NOBODY;
            self.dirty = false;
        } else {
            self.own(cpu, kind.writes());
        }
        end
    }

    /// `cpu` has the line alone.
    pub(crate) fn own(&mut self, cpu: usize, dirty: bool) {
        self.sharers = CpuSet::only(cpu);
        self.owner = cpu as u16;
        self.dirty = dirty;
    }

    fn find(&self, kind: Kind, cpu: usize, topology: &Topology) -> (LineState, usize) {
        if self.owner != NOBODY {
            let state = if self.dirty { LineState::Modified } else { LineState::Exclusive };
            return (state, topology.distance(cpu, usize::from(self.owner)));
        }
        let sharer = match kind {
            Kind::Load => topology.nearest(cpu, &self.sharers),
            // An upgrade ends when the last sharer has answered.
            Kind::Store | Kind::Rmw => topology.farthest(cpu, &self.sharers),
        };
        match sharer {
            Some(distance) => (LineState::Shared, distance),
            None => (LineState::Memory, topology.to_memory(cpu, usize::from(self.home))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;

    /// Replays accesses `(kind, cpu, now)` of one line on opteron-32 and gives the end of each.
    fn ends(accesses: &[(Kind, usize, u64)]) -> (Vec<u64>, Line) {
        let spec = machines::find("opteron-32").expect("a named machine");
        let (topology, prices) = (Topology::new(&spec), Prices::new(&spec));
        let mut line = Line::new(0);
        let replay = accesses.iter().map(|&(kind, cpu, now)| match line.hit(kind, cpu) {
            true => {
                line.use_copy(kind, cpu, now + 3);
                now + 3
            }
            false => {
                let planned = line.plan(kind, cpu, now, &topology, &prices);
                line.fetch(kind, cpu, planned, &prices)
            }
        });
        (replay.collect(), line)
    }

    #[test]
    fn a_first_load_comes_from_memory_and_is_exclusive() {
        let (end, line) = ends(&[(Kind::Load, 0, 0), (Kind::Store, 0, 136)]);
        assert_eq!(end, [136, 139]);
        assert!(line.dirty && line.owner == 0);
        // Memory of node 0, asked from one hop and from two hops away.
        assert_eq!(ends(&[(Kind::Load, 8, 0)]).0, [247]);
        assert_eq!(ends(&[(Kind::Load, 16, 0)]).0, [327]);
    }

    #[test]
    fn a_load_of_anothers_line_shares_it() {
        let (end, line) = ends(&[(Kind::Store, 0, 0), (Kind::Load, 1, 1000), (Kind::Load, 0, 2000)]);
        assert_eq!(end, [136, 1081, 2003]);
        assert_eq!((line.owner, line.sharers.to_string().as_str()), (NOBODY, "0-1"));
        // Exclusive, not modified: 83 instead of 81.
        assert_eq!(ends(&[(Kind::Load, 0, 0), (Kind::Load, 1, 1000)]).0[1], 1083);
    }

    #[test]
    fn a_load_of_a_shared_line_pays_for_the_nearest_copy() {
        let share = [(Kind::Load, 0, 0), (Kind::Load, 16, 1000), (Kind::Load, 17, 2000)];
        assert_eq!(ends(&share).0[2], 2083);
    }

    #[test]
    fn an_upgrade_pays_for_the_farthest_copy() {
        let near = [(Kind::Load, 0, 0), (Kind::Load, 1, 1000), (Kind::Store, 0, 2000)];
        let far = [(Kind::Load, 0, 0), (Kind::Load, 1, 1000), (Kind::Load, 16, 2000), (Kind::Store, 0, 3000)];
        assert_eq!(ends(&near).0[2], 2246);
        let (end, line) = ends(&far);
        assert_eq!(end[3], 3296);
        assert_eq!(line.sharers, CpuSet::only(0), "the others have lost their copies");
    }

    #[test]
    fn read_modify_writes_at_once_queue() {
        let storm: Vec<_> = (0..8).map(|cpu| (Kind::Rmw, cpu, 0)).collect();
        let memory = 136;
        let expected: Vec<u64> = (0..8).map(|n| memory + n * 110).collect();
        assert_eq!(ends(&storm).0, expected);
    }

    #[test]
    fn loads_of_a_shared_line_overlap() {
        let spec = machines::find("opteron-32").expect("a named machine");
        let apart = u64::from(spec.costs.shared_load_busy);
        let (end, _) =
            ends(&[(Kind::Store, 0, 0), (Kind::Load, 1, 1000), (Kind::Load, 2, 1000), (Kind::Load, 3, 1000)]);
        assert_eq!(end[1..], [1081, 1081 + 83, 1081 + apart + 83]);
    }
}
