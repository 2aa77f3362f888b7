//! History: what the owners of locks asked for and were told, and whether it can be true.
//!
//! Every call is noted before it begins and after it has ended, in the one order in which the simulated machine did
//! everything. An owner's lock of a byte *may* be held from the beginning of the call that got it to the end of the call
//! that took it away, and *must* be held from the end of the former to the beginning of the latter.

use sluice_locks_sim::{Kind, LockError, Owner, Range};
use std::collections::BTreeSet;
use std::ops::Range as Span;

/// One of the lock spaces of the files, each of which has two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    /// Which file.
    pub(super) file: usize,
    /// Its flocks, or its byte ranges.
    pub(super) is_flock: bool,
}

/// The operation of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Lock(Kind),
    Unlock,
}

/// A call, from before it began until after it ended.
#[derive(Clone, Debug)]
pub(super) struct Call {
    owner: Owner,
    place: Place,
    range: Range,
    ask: Ask,
    time: Span<u64>,
    /// `None`: it has not ended.
    outcome: Option<Result<(), LockError>>,
}

/// A lock of a byte.
struct Hold {
    owner: Owner,
    place: Place,
    byte: u64,
    kind: Kind,
    may: Span<u64>,
    must: Span<u64>,
}

/// All calls of a run.
#[derive(Default)]
pub(super) struct History {
    calls: Vec<Call>,
    now: u64,
}

fn meet(a: &Span<u64>, b: &Span<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Call {
    fn changes(&self, owner: Owner, place: Place, byte: u64) -> bool {
        // When a flock fails, the lock that was to be converted is lost.
        let takes_effect = self.outcome == Some(Ok(())) || place.is_flock;
        (self.owner, self.place) == (owner, place) && self.covers(byte) && takes_effect
    }

    fn covers(&self, byte: u64) -> bool {
        (self.range.start()..=self.range.end()).contains(&byte)
    }

    fn is_kept_out_by(&self, owner: Owner, place: Place, kind: Kind) -> bool {
        let conflicts = matches!(self.ask, Ask::Lock(own) if own.conflicts(kind));
        self.owner != owner && self.place == place && conflicts
    }

    fn is_kept_out_by_hold(&self, hold: &Hold) -> bool {
        self.is_kept_out_by(hold.owner, hold.place, hold.kind) && self.covers(hold.byte)
    }

    fn has_waited_beside(&self, other: &Call) -> bool {
        let Ask::Lock(kind) = other.ask else { return false };
        self.is_kept_out_by(other.owner, other.place, kind)
            && meet(&self.time, &other.time)
            && (0..BYTES).any(|byte| self.covers(byte) && other.covers(byte))
    }
}

/// Bytes that locks are for; a flock is for all.
pub(super) const BYTES: u64 = 6;

impl History {
    /// Notes that a call begins; the result names it.
    pub(super) fn begin(&mut self, owner: Owner, place: Place, range: Range, ask: Ask) -> usize {
        self.now += 1;
        let time = self.now..u64::MAX;
        self.calls.push(Call { owner, place, range, ask, time, outcome: None });
        self.calls.len() - 1
    }

    /// Notes that the call ends so.
    pub(super) fn end(&mut self, call: usize, outcome: Result<(), LockError>) {
        self.now += 1;
        let call = &mut self.calls[call];
        assert_eq!(call.outcome.replace(outcome), None, "it ends once: {call:?}");
        call.time.end = self.now;
    }

    /// How many calls ended in `outcome`.
    pub(super) fn count(&self, outcome: Result<(), LockError>) -> usize {
        self.calls.iter().filter(|call| call.outcome == Some(outcome)).count()
    }

    /// The locks that the byte had, each until the owner's next call that took effect there.
    fn holds(&self) -> Vec<Hold> {
        let mut holds = Vec::new();
        for (number, call) in self.calls.iter().enumerate() {
            let (Ask::Lock(kind), Some(Ok(()))) = (call.ask, call.outcome) else { continue };
            let (owner, place) = (call.owner, call.place);
            for byte in (0..BYTES).filter(|byte| call.covers(*byte)) {
                let later = self.calls[number + 1..].iter();
                let next = later.clone().find(|next| next.changes(owner, place, byte));
                let ends = next.map_or(u64::MAX..u64::MAX, |next| next.time.clone());
                let (may, must) = (call.time.start..ends.end, call.time.end..ends.start);
                holds.push(Hold { owner, place, byte, kind, may, must });
            }
        }
        holds
    }

    /// Fails unless the locks excluded each other, and every refusal had a reason. `is_fair`: a request may also be
    /// refused, or wait, for the sake of one that waits.
    pub(super) fn check(&self, is_fair: bool) {
        let holds = self.holds();
        for (number, hold) in holds.iter().enumerate() {
            for other in &holds[..number] {
                let same = (hold.place, hold.byte) == (other.place, other.byte) && hold.owner != other.owner;
                let exclude = same && hold.kind.conflicts(other.kind);
                assert!(!exclude || !meet(&hold.must, &other.must), "both held:\n{}", self.told());
            }
        }
        for call in &self.calls {
            let is_true = match call.outcome {
                None => false,
                Some(Err(LockError::WouldBlock)) => {
                    let mut before = holds.iter().filter(|hold| meet(&hold.may, &call.time));
                    before.any(|hold| call.is_kept_out_by_hold(hold))
                        || is_fair && self.calls.iter().any(|other| call.has_waited_beside(other))
                }
                Some(Err(LockError::Deadlock)) => {
                    let moments = self.calls.iter().map(|call| call.time.start);
                    moments.filter(|at| call.time.contains(at)).any(|at| self.is_deadlock(call, at, &holds))
                }
                Some(_) => true,
            };
            assert!(is_true, "without a reason: {call:?}\n{}", self.told());
        }
    }

    /// True if at that moment a way may lead from `call` over processes that wait for each other back to its own.
    fn is_deadlock(&self, call: &Call, at: u64, holds: &[Hold]) -> bool {
        let waited_for = |waiting: &Call| -> Vec<Owner> {
            let there =
                holds.iter().filter(|hold| hold.may.contains(&at) && waiting.is_kept_out_by_hold(hold));
            there.map(|hold| hold.owner).filter(|owner| matches!(owner, Owner::Process(_))).collect()
        };
        let (mut open, mut seen) = (waited_for(call), BTreeSet::new());
        while let Some(owner) = open.pop() {
            if owner == call.owner {
                return true;
            }
            if seen.insert(owner) {
                let blocked = self.calls.iter().filter(|call| call.owner == owner && call.time.contains(&at));
                open.extend(blocked.flat_map(&waited_for));
            }
        }
        false
    }

    fn told(&self) -> String {
        self.calls.iter().map(|call| format!("{call:?}\n")).collect()
    }
}

fn process(number: u64) -> (Owner, Place) {
    (Owner::Process(number), Place { file: 0, is_flock: false })
}

/// A history of calls for byte `.1` by process `.0`, from `.2` of which each is noted at once.
fn history(calls: &[(u64, u64, Ask, Result<(), LockError>)]) -> History {
    let mut history = History::default();
    for &(number, byte, ask, outcome) in calls {
        let (owner, place) = process(number);
        let call = history.begin(owner, place, Range::new(byte, byte).expect("a range"), ask);
        history.end(call, outcome);
    }
    history
}

const WRITE: Ask = Ask::Lock(Kind::Exclusive);

#[test]
fn a_true_history_is_believed() {
    let calls =
        [(1, 0, WRITE, Ok(())), (2, 0, WRITE, Err(LockError::WouldBlock)), (1, 0, Ask::Unlock, Ok(()))];
    history(&calls).check(false);
}

#[test]
#[should_panic(expected = "both held")]
fn two_writers_of_a_byte_are_not_believed() {
    history(&[(1, 0, WRITE, Ok(())), (2, 0, WRITE, Ok(()))]).check(true);
}

#[test]
#[should_panic(expected = "without a reason")]
fn a_refusal_of_what_is_free_is_not_believed() {
    history(&[(1, 0, WRITE, Ok(())), (2, 1, WRITE, Err(LockError::WouldBlock))]).check(true);
}

#[test]
#[should_panic(expected = "without a reason")]
fn a_deadlock_with_somebody_who_does_not_wait_is_not_believed() {
    history(&[(1, 0, WRITE, Ok(())), (2, 0, WRITE, Err(LockError::Deadlock))]).check(true);
}
