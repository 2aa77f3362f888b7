//! Idle: what a drain does for threads that have dropped references and count no more.
//!
//! # Theory
//! The drain takes part in the rounds as any thread does: it flushes its own cache, visits laggards, whose reviews it
//! takes over if they are idle, and frees what is dead by the epochs. It flushes at each pass, and is no member between
//! passes: other threads would wait for its flush, and retire it as idle. The reviews stay in its cache meanwhile.
//! Their epochs go on without it, and a thread that settles finds them there, as the cache is known.
//!
//! It visits laggards in an epoch that has lasted since the pass before. By then each thread that works has been flushed, or
//! counts so little that the visit costs it nothing.

use super::cache::Keepers;
use super::rounds::Epoch;
use super::world::{CacheWorld, world};
use crate::face::Host;

/// The drain's state between two passes.
#[derive(Default)]
pub struct Draining {
    /// The epoch at the end of the last pass.
    epoch: Option<Epoch>,
}

impl Draining {
    /// Does for the caller's process what a drain does in one pass. True if work remains: other threads count, or
    /// objects wait for the end of their review.
    pub fn pass(&mut self) -> bool {
        world(Host::here()).drain(&mut self.epoch)
    }
}

/// Whether any thread counts references, or did so lately.
pub fn is_counting() -> bool {
    world(Host::here()).rounds.now().members() > 0
}

/// How many objects wait for the end of a review, of all threads. Stops all counting for a moment.
pub fn in_review() -> usize {
    world(Host::here()).in_review()
}

impl CacheWorld {
    fn drain(&self, last: &mut Option<Epoch>) -> bool {
        let own = self.shard();
        let is_enlisted = self.own(own).is_enlisted();
        if !is_enlisted {
            drop(self.enlist(own));
        }
        while self.review_own(last) {}
        let mut cache = self.own(own);
        if let Some(epoch) = own.flushed() {
            cache.flush(Keepers::NONE, &self.rounds);
            cache.stand_down();
            own.set_flushed(None);
            self.rounds.leave_flushed(epoch);
        }
        let now = self.rounds.now();
        *last = Some(now.epoch());
        now.members() > 0 || cache.reviews() > 0
    }

    /// Flushes the calling thread's cache, those of laggards if the epoch is still the `last`, and frees what is dead.
    /// True if dead objects remain that must be freed before the next flush of another cache.
    fn review_own(&self, last: &mut Option<Epoch>) -> bool {
        let own = self.shard();
        let mut cache = self.own(own);
        if !cache.is_enlisted() {
            // Somebody has retired it, and has its reviews.
            return false;
        }
        let (now, found) = self.flush_and_review(own, &mut cache);
        drop(cache);
        if last.take() == Some(now.epoch()) {
            self.flush_laggards(own, now.epoch(), false);
        }
        let is_alone = self.rounds.now().members() == 1;
        found.free(self) > 0 || is_alone && self.own(own).reviews() > 0
    }

    /// How many objects wait for the end of a review.
    fn in_review(&self) -> usize {
        self.visit_known(|caches| caches.iter().map(|cache| cache.reviews()).sum())
    }
}
