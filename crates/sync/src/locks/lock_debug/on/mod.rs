//! Lock debugging, compiled in: what every acquisition and release of a watched lock does.
//!
//! # Theory
//! ```text
//!   lock:    services off? -> lock, nothing else
//!            edges from what the thread holds, cycle? -> report        (order)
//!            try; not free: clock, lock, clock                         (counters)
//!            push on the thread's stack                                (held)
//!   unlock:  pop; clock, count the time held
//! ```
//! The check comes before the wait, so a deadlock is reported by the thread that would complete it. This module uses
//! `std`'s memory, not the face's: the machine does not charge it.

mod counters;
mod held;
mod order;
mod registry;
#[cfg(test)]
mod tests;

pub use counters::{lock_stats, reset_lock_stats};
pub use order::observed_order;
pub(super) use registry::ClassId;

use super::ask::Mode;
use super::{Ask, ClassStats, Dependency, LockClass, RECORD, SiteStats, Times};
use crate::face::time::Instant;
use held::HeldLock;
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether this build has the services.
pub const COMPILED_IN: bool = true;

const ORDER: u8 = 1;
const STATS: u8 = 2;

/// Which services are on: the order check in builds with assertions, as tests are. *atomic, read-mostly*
static SERVICES: AtomicU8 = AtomicU8::new(if cfg!(debug_assertions) { ORDER } else { 0 });

fn switch(service: u8, on: bool) {
    // Relaxed: each acquisition goes by what it sees, and its release by what the acquisition did.
    if on {
        SERVICES.fetch_or(service, Ordering::Relaxed);
    } else {
        SERVICES.fetch_and(!service, Ordering::Relaxed);
    }
}

/// Switches the order check on or off, for locks that are taken from now on.
pub fn check_order(on: bool) {
    switch(ORDER, on);
}

/// Switches the statistics on or off, for locks that are taken from now on.
pub fn collect_stats(on: bool) {
    switch(STATS, on);
}

/// To which class a lock belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Watch {
    /// To that of this name.
    Class(&'static LockClass),
    /// To those that were made here.
    Place(&'static Location<'static>),
    /// No class: the lock is a part of another lock, which is watched.
    Part,
}

impl Watch {
    /// The class of the place that calls.
    #[track_caller]
    pub(crate) const fn here() -> Self {
        Watch::Place(Location::caller())
    }

    /// The named class.
    pub(crate) const fn class(class: &'static LockClass) -> Self {
        Watch::Class(class)
    }

    /// No class.
    pub(crate) const fn none() -> Self {
        Watch::Part
    }

    /// Takes the lock by `lock`, and says so to the services that are on. `try_lock` must do the same or fail.
    #[inline]
    #[track_caller]
    pub(crate) fn lock<R>(
        &self,
        ask: Ask,
        try_lock: impl FnOnce() -> Option<R>,
        lock: impl FnOnce() -> R,
    ) -> (R, Held) {
        // Relaxed: see switch().
        let services = SERVICES.load(Ordering::Relaxed);
        if services == 0 {
            return (lock(), Held::NOT);
        }
        let site = Location::caller();
        let Some(entry) = self.checked(services, ask, site) else { return (lock(), Held::NOT) };
        if services & STATS == 0 {
            return (lock(), Held(held::push(entry)));
        }
        let (got, waited) = match try_lock() {
            Some(got) => (got, None),
            None => {
                let begin = Instant::now();
                (lock(), Some(begin.elapsed()))
            }
        };
        counters::taken(entry.class, site, waited);
        (got, Held(held::push(HeldLock { since: Some(Instant::now()), ..entry })))
    }

    /// Announces that the thread will take the lock, perhaps after a wait.
    #[inline]
    #[track_caller]
    pub(crate) fn about_to_lock(&self, ask: Ask) {
        // Relaxed: see switch().
        let services = SERVICES.load(Ordering::Relaxed);
        if services != 0 {
            self.checked(services, ask, Location::caller());
        }
    }

    /// The lock was taken without waiting.
    #[inline]
    #[track_caller]
    pub(crate) fn tried(&self, ask: Ask) -> Held {
        // Relaxed: see switch().
        let services = SERVICES.load(Ordering::Relaxed);
        if services == 0 { Held::NOT } else { self.tried_watched(services, ask, Location::caller()) }
    }

    #[cold]
    fn tried_watched(&self, services: u8, ask: Ask, site: &'static Location<'static>) -> Held {
        let Some(class) = registry::class_of(self) else { return Held::NOT };
        let mut since = None;
        if services & STATS != 0 {
            counters::taken(class, site, None);
            since = Some(Instant::now());
        }
        Held(held::push(HeldLock { class, ask, lock: self.address(), waits: false, site, since }))
    }

    /// Checks the order; `None` if the lock is not watched.
    ///
    /// # Panics
    /// In builds with assertions, if the order is wrong.
    #[inline(never)]
    fn checked(&self, services: u8, ask: Ask, site: &'static Location<'static>) -> Option<HeldLock> {
        let class = registry::class_of(self)?;
        let mut entry = HeldLock { class, ask, lock: self.address(), waits: true, site, since: None };
        if services & ORDER != 0 {
            let verdict = held::with(|stack| order::check(stack, &entry));
            match verdict.unwrap_or(order::OrderVerdict::Fine) {
                order::OrderVerdict::Fine => {}
                order::OrderVerdict::Again => entry.waits = false,
                order::OrderVerdict::Wrong(finding) => report(&finding),
            }
        }
        Some(entry)
    }

    /// Names the lock while it stays where it is, as it must while it is held.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Findings that were written to standard error, each once. *protected by itself*
static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Says what is wrong: by a panic where tests run, else on standard error.
fn report(finding: &str) {
    if cfg!(debug_assertions) && !std::thread::panicking() {
        panic!("{finding}");
    }
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.insert(finding.to_owned()) {
        eprintln!("{finding}");
    }
}

/// A guard's place on its thread's stack; taken off when dropped.
#[derive(Debug)]
pub(crate) struct Held(u32);

impl Held {
    /// The place of those that are not on the stack: locks taken while the services were off.
    const NOWHERE: u32 = u32::MAX;
    const NOT: Held = Held(Held::NOWHERE);

    /// Takes it off now.
    pub(crate) fn release(&mut self) {
        let entry = self.is_on().then(|| held::pop(self.0)).flatten();
        if let Some((class, since)) = entry.and_then(|entry| Some((entry.class, entry.since?))) {
            counters::held(class, since.elapsed());
        }
        self.0 = Held::NOWHERE;
    }

    /// The lock is shared from now on; the new guard takes over.
    pub(crate) fn downgrade(&mut self) -> Held {
        if self.is_on() {
            held::change(self.0, |entry| entry.ask.mode = Mode::Shared);
        }
        std::mem::replace(self, Held::NOT)
    }

    fn is_on(&self) -> bool {
        self.0 != Held::NOWHERE
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if self.is_on() {
            self.release();
        }
    }
}
