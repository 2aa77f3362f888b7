//! Lock debugging, compiled out: what a lock and a guard then carry has no size and does nothing.

use super::{Ask, ClassStats, Dependency, LockClass};

/// Whether this build has the services.
pub const COMPILED_IN: bool = false;

/// Does nothing in this build.
pub fn check_order(_on: bool) {}

/// Does nothing in this build.
pub fn collect_stats(_on: bool) {}

/// Nothing in this build.
pub fn lock_stats() -> Vec<ClassStats> {
    Vec::new()
}

/// Does nothing in this build.
pub fn reset_lock_stats() {}

/// Nothing in this build.
pub fn observed_order() -> Vec<Dependency> {
    Vec::new()
}

/// A class's number: none.
#[derive(Debug)]
pub(super) struct ClassId;

impl ClassId {
    pub(super) const fn new() -> Self {
        ClassId
    }
}

/// The class of a lock: none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch;

impl Watch {
    #[inline]
    pub(crate) const fn here() -> Self {
        Watch
    }

    #[inline]
    pub(crate) const fn class(_class: &'static LockClass) -> Self {
        Watch
    }

    #[inline]
    pub(crate) const fn none() -> Self {
        Watch
    }

    #[inline]
    pub(crate) fn lock<R>(
        &self,
        _ask: Ask,
        _try_lock: impl FnOnce() -> Option<R>,
        lock: impl FnOnce() -> R,
    ) -> (R, Held) {
        (lock(), Held)
    }

    #[inline]
    pub(crate) fn about_to_lock(&self, _ask: Ask) {}

    #[inline]
    pub(crate) fn tried(&self, _ask: Ask) -> Held {
        Held
    }
}

/// A guard's place among the locks that its thread holds: empty.
#[derive(Debug)]
pub(crate) struct Held;

impl Held {
    #[inline]
    pub(crate) fn release(&mut self) {}

    #[inline]
    pub(crate) fn downgrade(&mut self) -> Held {
        Held
    }
}
