//! Space: what counts against the size of a file system, and the memory that it asks the machine for.

use super::{NAME_BYTES, SETTLES_AT_MIN, Shared, UNIT, UNITS_A_PAGE};
use crate::Errno;
use crate::data::{PAGE, Space};
use crate::inode::settle;
use sluice_sync::atomic::Ordering;
use sluice_sync::memory;

impl Shared {
    /// Counts space for `bytes` that are kept beside the pages of files, all or none.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), Errno> {
        self.take_units(bytes.div_ceil(UNIT))
    }

    /// The variant of [`charge`](Self::charge) for a caller that must not wait.
    ///
    /// # Errors
    /// `ENOSPC`, also when there is space that is given back later.
    pub(crate) fn charge_at_once(&self, bytes: u64) -> Result<(), Errno> {
        self.try_take_units(bytes.div_ceil(UNIT))
    }

    /// Gives back what is dead, if there is not space for `bytes`: before [`charge_at_once`](Self::charge_at_once).
    pub(crate) fn make_room(&self, bytes: u64) {
        if self.options.size_limit.is_some() && self.space.free() < bytes.div_ceil(UNIT) {
            settle();
        }
    }

    /// Gives back what [`charge`](Self::charge) has counted for `bytes`.
    pub(crate) fn discharge(&self, bytes: u64) {
        self.space.give(bytes.div_ceil(UNIT));
        // Noting is a write to a line that all CPUs share.
        if bytes >= PAGE {
            memory::note_freed(bytes);
        }
    }

    fn take_units(&self, units: u64) -> Result<(), Errno> {
        self.try_take_units(units).or_else(|_| {
            settle();
            self.try_after_making_room(|| self.try_take_units(units))
        })
    }

    fn try_take_units(&self, units: u64) -> Result<(), Errno> {
        let passed = self.space.take(units)?;
        if passed > 0 {
            self.settle_if_grown();
        }
        ask_machine(passed, units, UNIT).inspect_err(|_| self.space.give(units))
    }

    /// Calls `take`, which asks for memory; if memory is short, frees all that can be freed and calls it again.
    pub(super) fn try_after_making_room<T>(&self, take: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        take().or_else(|error| {
            if !memory::is_short() {
                return Err(error);
            }
            memory::make_room();
            take()
        })
    }

    /// Looks for what is dead when twice as much is in use as after the last look: files that were removed while they were open,
    /// or while a kernel remembered them, are noticed late, and their contents may be large.
    fn settle_if_grown(&self) {
        // Relaxed, both: a hint.
        if self.space.used() >= self.settles_at.load(Ordering::Relaxed) {
            settle();
            let next = self.space.used().saturating_mul(2).max(SETTLES_AT_MIN);
            self.settles_at.store(next, Ordering::Relaxed);
        }
    }

    /// Asks the machine for memory for a name that some inode is given.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn ask_for_name(&self) -> Result<(), Errno> {
        self.try_after_making_room(|| Ok(memory::take(NAME_BYTES)?))
    }
}

/// Asks the machine for memory for what was just `taken`, in units of so many bytes: for each use where memory is short, and else
/// once for the many that have `passed` a CPU's counter.
pub(super) fn ask_machine(passed: u64, taken: u64, unit_bytes: u64) -> Result<(), Errno> {
    match if memory::is_short() { taken } else { passed } {
        0 => Ok(()),
        units => Ok(memory::take(units.saturating_mul(unit_bytes))?),
    }
}

/// `bytes` rounded up to whole units of space.
pub(crate) fn charged(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT) * UNIT
}

impl Space for Shared {
    fn reserve(&self, pages: u64) -> Result<(), Errno> {
        // No file has so many pages that this overflows.
        self.take_units(pages * UNITS_A_PAGE)
    }

    fn reserve_unwritten(&self, pages: u64) -> Result<(), Errno> {
        // A store holds the disk's room back instead of the machine's memory.
        if self.durable().is_some() { self.reserve_shared(pages) } else { self.reserve(pages) }
    }

    fn hold_back(&self, pages: u64) -> Result<(), Errno> {
        match self.durable() {
            Some(durable) if !durable.hold_back(pages) => Err(Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    fn give_up(&self, pages: u64) {
        self.durable().into_iter().for_each(|durable| durable.give_up(pages));
    }

    fn reserve_shared(&self, pages: u64) -> Result<(), Errno> {
        // The machine is asked when one is written to: `will_touch`.
        let take = || self.space.take(pages * UNITS_A_PAGE).map(drop);
        take().or_else(|_| {
            settle();
            Ok(take()?)
        })
    }

    fn release(&self, pages: u64) {
        self.space.give(pages * UNITS_A_PAGE);
    }

    fn will_touch(&self, pages: u64) -> Result<(), Errno> {
        self.try_after_making_room(|| Ok(memory::take(pages * PAGE)?))
    }
}
