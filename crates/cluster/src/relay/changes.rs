//! Changes: what a kernel was told is done and may not be durable: the nodes, and the processes that asked for it.
//!
//! # Theory
//! A server that takes over goes on from what is durable: a prefix of what the last one did. A change that was answered
//! before a request was made comes before what that request did. So the change is durable if the store
//! [says](crate::guest::Lost::executed) that this request was executed, and so is each change that was itself executed.
//! All other changes count as lost.
//!
//! ```text
//!   answered:   a  b  c  d  e        d was made after b was answered, and d is durable: a and b are
//!   executed:            d           c and e are lost
//! ```
//!
//! A process goes on, and may build on what is lost: on a name that it gave, in a file that it writes next. So its next FSYNC fails,
//! whatever file it is of, as the disk's would after a failed write: then it does not say of anything that it is durable.

use super::InFlight;
use sluice_fuse::internal::CallingProcess;
use sluice_fuse::internal::abi::InHeader;
use sluice_sync::Arc;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// The number of changes, and of threads that made earlier ones, that are remembered.
const RECENT_MAX: usize = 1 << 16;

/// The changes of a kernel.
#[derive(Default)]
pub(super) struct Changes {
    /// The number of changes of nodes until now.
    count: u64,
    /// Nodes that were changed since everything was durable, each with the count at its last change.
    unsynced: HashMap<u64, u64>,
    /// Changes in the order of their answers, as long as no later sync made them durable.
    recent: VecDeque<AnsweredChange>,
    /// Processes with older changes that are not remembered singly, each with the count at its last such change.
    earlier: BTreeMap<Arc<CallingProcess>, u64>,
    /// The process of each thread that changed something since everything was durable: a thread may end before its process does.
    callers: HashMap<u32, Option<Arc<CallingProcess>>>,
    /// The count up to which single changes are no longer remembered, then the count up to which changes are durable.
    forgotten: u64,
    durable: u64,
    /// Processes that are to be told.
    untold: BTreeSet<Arc<CallingProcess>>,
    /// Some were lost, now or earlier.
    are_lost: bool,
}

/// An answered change.
struct AnsweredChange {
    /// The request's number.
    number: u64,
    /// The counts at the time of the request and at the time of its answer.
    made: u64,
    answered: u64,
    /// The process that asked for it, if the mount can see it.
    caller: Option<Arc<CallingProcess>>,
}

/// A request that is under way when the server changes.
pub(super) struct UnderWay {
    pub(super) number: u64,
    /// The number of changes when the request was made.
    pub(super) made: u64,
    /// It was answered, and the next server executes it.
    pub(super) is_behind: bool,
}

impl UnderWay {
    pub(super) fn all(requests: &HashMap<u64, InFlight>) -> Vec<UnderWay> {
        let all = requests.iter();
        all.map(|(&number, request)| UnderWay { number, made: request.changes, is_behind: request.is_behind })
            .collect()
    }
}

impl Changes {
    /// How many there were until now.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The kernel is told that a request of `threads` has changed `nodes`, if there are any. The request was made after
    /// `made` changes.
    pub(super) fn answered(
        &mut self,
        header: &InHeader,
        nodes: [Option<u64>; 2],
        made: u64,
        threads: &[u32],
    ) {
        if nodes == [None; 2] {
            return;
        }
        for nodeid in nodes.into_iter().flatten() {
            self.count += 1;
            self.unsynced.insert(nodeid, self.count);
        }
        let (number, answered) = (header.unique, self.count);
        for &thread in threads {
            if self.recent.len() == RECENT_MAX
                && let Some(first) = self.recent.pop_front()
            {
                self.remember_caller(first);
            }
            // While its request is answered the thread is there. For a mount in another pid namespace the number is 0.
            let caller = self
                .callers
                .entry(thread)
                .or_insert_with(|| CallingProcess::of(thread).map(Arc::new))
                .clone();
            self.recent.push_back(AnsweredChange { number, made, answered, caller });
        }
    }

    /// Keeps the process of a change that is no longer remembered. When these are many, dead processes are dropped.
    fn remember_caller(&mut self, change: AnsweredChange) {
        self.forgotten = change.answered;
        let Some(caller) = change.caller else { return };
        if self.earlier.len() >= RECENT_MAX && !self.earlier.contains_key(&caller) {
            self.earlier.retain(|process, _| process.lives());
        }
        self.earlier.insert(caller, change.answered);
    }

    /// Changes up to this count are durable.
    pub(super) fn synced(&mut self, count: u64) {
        self.earlier.retain(|_, last| *last > count);
        // Another thread may get a number.
        self.callers.clear();
        self.unsynced.retain(|_, last| *last > count);
        while self.recent.front().is_some_and(|change| change.answered <= count) {
            self.recent.pop_front();
        }
        self.durable = self.durable.max(count);
    }

    /// The kernel does not know `nodeid` any more.
    pub(super) fn forget(&mut self, nodeid: u64) {
        self.unsynced.remove(&nodeid);
    }

    /// Another server continues from the durable state, with the requests in `executed`, and with others `under_way`.
    /// Returns the nodes of which something is lost.
    pub(super) fn taken_over(&mut self, executed: &BTreeSet<u64>, under_way: &[UnderWay]) -> Vec<u64> {
        let made = self.recent.iter().map(|change| (change.number, change.made));
        let made = made.chain(under_way.iter().map(|request| (request.number, request.made)));
        let made = made.filter(|(number, _)| executed.contains(number)).map(|(_, made)| made);
        let durable = made.max().unwrap_or(0).max(self.durable);
        let behind: BTreeSet<_> =
            under_way.iter().filter(|request| request.is_behind).map(|request| request.number).collect();
        let is_kept =
            |change: &AnsweredChange| executed.contains(&change.number) || behind.contains(&change.number);
        self.recent.retain(|change| change.answered > durable);
        let kept = self.recent.iter().take_while(|change| durable >= self.forgotten && is_kept(change));
        // All changes up to this count survive.
        let kept = kept.last().map_or(durable, |change| change.answered);
        self.are_lost |= !self.recent.iter().all(is_kept);
        let lost =
            self.recent.iter().filter(|change| !is_kept(change)).filter_map(|change| change.caller.clone());
        self.untold.extend(lost);
        // For changes that are no longer remembered, the process's last change decides: a false alarm is better than
        // silence.
        let earlier = std::mem::take(&mut self.earlier).into_iter().filter(|(_, last)| *last > durable);
        self.untold.extend(earlier.map(|(process, _)| process));
        self.untold.retain(|process| process.lives());
        self.callers.clear();
        // If this server dies, the next takeover may lose changes that it executes now.
        self.recent.retain(|change| behind.contains(&change.number));
        let settled = self.recent.front().map_or(self.count, |change| change.answered - 1);
        (self.durable, self.forgotten) = (settled, settled);
        let lost: Vec<_> =
            self.unsynced.extract_if(|_, last| *last > kept).map(|(nodeid, _)| nodeid).collect();
        self.unsynced.retain(|_, last| *last > settled);
        self.are_lost |= !lost.is_empty();
        lost
    }

    /// Whether changes were lost when another server took over, or would be if there is none.
    pub(super) fn are_lost(&self, has_server: bool) -> bool {
        self.are_lost || !has_server && self.count > self.durable
    }

    /// Whether all are durable.
    pub(super) fn are_durable(&self) -> bool {
        self.count == self.durable
    }

    /// Whether each living process has been told of the changes that were lost.
    pub(super) fn are_told(&mut self) -> bool {
        self.untold.retain(|process| process.lives());
        self.untold.is_empty() && !self.are_lost
    }

    /// Whether the process of `thread` is to be told now that something is lost.
    pub(super) fn take_untold(&mut self, thread: u32) -> bool {
        !self.untold.is_empty()
            && CallingProcess::of(thread).is_some_and(|process| self.untold.remove(&process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;
    use zerocopy::FromZeros;

    fn of(number: u64) -> InHeader {
        InHeader { unique: number, ..InHeader::new_zeroed() }
    }

    fn under_way(number: u64, made: u64, is_behind: bool) -> UnderWay {
        UnderWay { number, made, is_behind }
    }

    fn sorted(mut nodes: Vec<u64>) -> Vec<u64> {
        nodes.sort_unstable();
        nodes
    }

    #[test]
    fn what_was_answered_before_a_durable_request_was_made_is_durable_and_so_is_what_was_executed() {
        // The first two overlap. Which nodes are lost, by what was executed.
        for (executed, lost) in [
            (vec![], vec![1, 2, 3, 4]),
            (vec![10], vec![1, 2, 3, 4]),
            (vec![11], vec![1, 2, 3, 4]),
            (vec![12], vec![3, 4]),
            (vec![12, 13], vec![4]),
            (vec![12, 13, 14], vec![]),
            (vec![15], vec![]),
        ] {
            let mut changes = Changes::default();
            changes.answered(&of(9), [Some(1), Some(2)], 0, &[0]);
            changes.synced(2);
            changes.answered(&of(10), [Some(1), None], 2, &[0]);
            changes.answered(&of(11), [Some(2), None], 2, &[0]);
            changes.answered(&of(12), [Some(1), None], 4, &[0]);
            changes.answered(&of(13), [Some(3), None], 4, &[0]);
            changes.answered(&of(14), [Some(4), None], 5, &[0]);
            let executed = executed.into_iter().collect();
            assert_eq!(
                sorted(changes.taken_over(&executed, &[under_way(15, 7, false)])),
                lost,
                "{executed:?}"
            );
            assert_eq!(changes.are_lost(true), !lost.is_empty());
            assert!(changes.taken_over(&executed, &[]).is_empty(), "once");
        }
    }

    #[test]
    fn a_process_that_goes_on_is_told_once_and_no_other() {
        let own = process::id();
        let mut changes = Changes::default();
        changes.answered(&of(1), [Some(1), None], 0, &[own]);
        changes.answered(&of(2), [Some(1), None], 1, &[1]);
        assert!(!changes.take_untold(own), "nothing is lost");
        changes.taken_over(&[1].into(), &[]);
        assert!(!changes.take_untold(own), "what it did is durable");
        assert!(changes.take_untold(1));
        changes.answered(&of(3), [Some(1), None], 2, &[own]);
        changes.taken_over(&BTreeSet::new(), &[]);
        assert!(!changes.take_untold(1) && changes.take_untold(own) && !changes.take_untold(own));
    }

    #[test]
    fn what_the_next_server_executes_is_lost_only_if_that_one_dies_too() {
        let own = process::id();
        let mut changes = Changes::default();
        changes.answered(&of(1), [Some(1), None], 0, &[own]);
        changes.answered(&of(2), [Some(2), None], 1, &[own]);
        assert!(!changes.are_lost(true) && changes.are_lost(false));
        assert!(changes.taken_over(&[1].into(), &[under_way(2, 1, true)]).is_empty());
        assert!(!changes.take_untold(own));
        assert_eq!(changes.taken_over(&BTreeSet::new(), &[]), [2]);
        assert!(changes.take_untold(own));
    }

    #[test]
    fn a_process_is_told_of_changes_of_a_thread_that_has_ended() {
        let own = process::id();
        let mut changes = Changes::default();
        let change = |changes: &mut Changes| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            assert_ne!(thread, own);
            changes.answered(&of(1), [Some(1), None], 0, &[thread]);
        };
        sluice_sync::thread::scope(|scope| scope.spawn(|| change(&mut changes)).join().expect("no panic"));
        changes.taken_over(&BTreeSet::new(), &[]);
        assert!(changes.take_untold(own));
    }

    #[test]
    fn a_process_is_told_of_changes_that_are_too_many_to_be_remembered() {
        let own = process::id();
        let changes_after = |durable: u64| {
            let mut changes = Changes::default();
            changes.answered(&of(1), [Some(1), None], 0, &[own]);
            for number in 2..RECENT_MAX as u64 + 10 {
                changes.answered(&of(number), [Some(2), None], number - 1, &[1]);
            }
            changes.synced(durable);
            changes.taken_over(&BTreeSet::new(), &[]);
            changes
        };
        let mut changes = changes_after(0);
        assert!(changes.take_untold(own) && !changes.take_untold(own));
        assert!(changes.earlier.is_empty());
        assert!(!changes_after(1).take_untold(own), "what it did is durable");
    }

    #[test]
    fn where_changes_are_not_remembered_only_what_was_made_after_them_tells_that_they_are_durable() {
        let last = RECENT_MAX as u64 + 1;
        for (made, lost) in [(last, 0), (0, last + 1)] {
            let mut changes = Changes::default();
            for number in 0..last {
                changes.answered(&of(number), [Some(number), None], number, &[0]);
            }
            changes.answered(&of(last), [Some(last), None], made, &[0]);
            assert_eq!(changes.recent.len(), RECENT_MAX);
            assert_eq!(changes.taken_over(&[last].into(), &[]).len() as u64, lost);
        }
    }
}
