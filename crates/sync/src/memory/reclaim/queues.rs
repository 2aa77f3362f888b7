//! Queues: the cached objects of one CPU, in the order in which they will be asked to go.
//!
//! # Theory
//! See the module's head for what the three are for. Nothing moves in a queue but from its end to the end of another,
//! or around the last one.

use super::Reclaim;
use std::collections::VecDeque;
use std::ops::Deref;

/// One of so many objects at most is so new that its being found does not count.
const ARRIVALS: usize = 20;
/// If the new objects and those on probation exceed this fraction, they leave before kept objects.
const YOUNG: usize = 10;

#[derive(Debug)]
pub(super) struct Queues<H> {
    /// New ones.
    arrivals: VecDeque<H>,
    /// Objects that stay if they are found during probation.
    probation: VecDeque<H>,
    /// Objects that were found again.
    kept: VecDeque<H>,
    /// How many of all these have gone by themselves, or a few less.
    gone: usize,
    /// The bytes of those that have not gone.
    pub(super) charged: u64,
    /// How many bytes of the limit this CPU may still use without asking; below 0 while it looks for what it lacks.
    pub(super) credit: i64,
    /// Where it asked last among the others.
    pub(super) asked: usize,
}

impl<H: Deref<Target: Reclaim>> Queues<H> {
    pub(super) fn new() -> Self {
        Queues {
            arrivals: VecDeque::new(),
            probation: VecDeque::new(),
            kept: VecDeque::new(),
            gone: 0,
            charged: 0,
            credit: 0,
            asked: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.arrivals.len() + self.probation.len() + self.kept.len()
    }

    /// Takes in a new `object`, or one that is known to be wanted.
    pub(super) fn admit(&mut self, object: H, wanted: bool) {
        self.charged += object.charge();
        self.credit -= object.charge().cast_signed();
        if wanted {
            self.kept.push_back(object);
        } else {
            self.arrivals.push_back(object);
        }
        // Done at each arrival rather than when memory is short: then all objects would be new and without a history.
        while self.arrivals.len() * ARRIVALS > self.len()
            && let Some(object) = self.arrivals.pop_front()
        {
            object.usage().was_found();
            self.probation.push_back(object);
        }
    }

    /// Takes in an `object` that would not go.
    pub(super) fn keep(&mut self, object: H) {
        self.kept.push_back(object);
    }

    /// Takes out the object that should go next, after at most `looks` looks, which are counted down.
    pub(super) fn next_victim(&mut self, looks: &mut u32) -> Option<H> {
        while *looks > 0 {
            *looks -= 1;
            let young = self.arrivals.len() + self.probation.len();
            let object = if young * YOUNG > self.len() || self.kept.is_empty() {
                self.probation.pop_front().or_else(|| self.arrivals.pop_front())?
            } else {
                self.kept.pop_front()?
            };
            if !object.usage().was_found() {
                return Some(object);
            }
            self.kept.push_back(object);
        }
        None
    }

    /// Notes that one has gone. When those are many, all of them, for the caller to drop without the lock.
    pub(super) fn note_gone(&mut self) -> Vec<H> {
        self.gone += 1;
        if self.gone * 2 <= self.len() {
            return Vec::new();
        }
        self.gone = 0;
        let mut gone = Vec::new();
        for queue in [&mut self.arrivals, &mut self.probation, &mut self.kept] {
            let all = std::mem::take(queue);
            let (out, stay): (VecDeque<_>, _) = all.into_iter().partition(|object| object.usage().is_gone());
            *queue = stay;
            gone.extend(out);
        }
        gone
    }

    /// Notes that a gone object was met and taken out.
    pub(super) fn met_gone(&mut self) {
        self.gone = self.gone.saturating_sub(1);
    }
}
