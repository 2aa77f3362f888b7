//! Usage: what a cached object says of itself: whether it was found lately, how many hold it, or that it has gone.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | pins | `unpin` | `pin`, `leave` | what was done under the pin |

use crate::face::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::face::{Mutant, seeded};

/// The mark of an object that has gone; the bits below it then mean nothing.
const GONE: u32 = 1 << 31;

/// The part of a cached object that says how it is used.
#[derive(Debug)]
pub struct Usage {
    /// Whether it was found since it was last looked at. *atomic*
    found: AtomicBool,
    /// How many hold it, or [`GONE`]. *atomic (pins)*
    pins: AtomicU32,
    /// Whose queues it stands in. *atomic; written once, before the object is published*
    home: AtomicU32,
}

/// The result of the attempt to let an object go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It has gone now, and this caller alone may let go of it.
    Left,
    /// Somebody holds it.
    Held,
    /// It had gone before.
    Gone,
}

impl Usage {
    /// The usage of a new object, pinned by its maker.
    #[allow(clippy::new_without_default)] // the pin is the maker's to put
    pub fn new() -> Usage {
        Usage { found: AtomicBool::new(false), pins: AtomicU32::new(1), home: AtomicU32::new(0) }
    }

    /// Notes that the object was found, for as long as it takes until the next look at it.
    #[inline]
    pub fn touch(&self) {
        // Relaxed: a hint, here and in was_found().
        if !self.found.load(Ordering::Relaxed) {
            self.found.store(true, Ordering::Relaxed);
        }
    }

    /// Holds the object; false if it has gone, and must be read again.
    #[inline]
    pub fn pin(&self) -> bool {
        // Acquire(pins): what others did under pins that they put; pairs with Release(pins) in unpin().
        !self.is_gone() && self.pins.fetch_add(1, Ordering::Acquire) & GONE == 0
    }

    /// Puts a pin back.
    #[inline]
    pub fn unpin(&self) {
        // Release(pins): what we did under the pin; pairs with Acquire(pins) in pin() and leave().
        let pins = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(pins & !GONE > 0, "more pins were put than taken");
    }

    /// Whether the object has gone.
    #[inline]
    pub fn is_gone(&self) -> bool {
        // Relaxed: a caller that gets no pin touches nothing.
        self.pins.load(Ordering::Relaxed) & GONE != 0
    }

    /// Whether it was found since the last call.
    pub(super) fn was_found(&self) -> bool {
        // Relaxed: a hint. That of a hit between the two is lost.
        let found = self.found.load(Ordering::Relaxed);
        if found {
            self.found.store(false, Ordering::Relaxed);
        }
        found
    }

    /// Lets the object go if exactly `pins` hold it. No pin is got from then on.
    pub(super) fn leave(&self, pins: u32) -> Leave {
        if seeded(Mutant::LeaveInTwoSteps) {
            if self.pins.load(Ordering::Acquire) != pins {
                return Leave::Held;
            }
            self.pins.store(GONE, Ordering::Relaxed);
            return Leave::Left;
        }
        // Acquire(pins): all that was done under pins; pairs with Release(pins) in unpin(). A failure publishes nothing.
        match self.pins.compare_exchange(pins, GONE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Leave::Left,
            Err(now) if now & GONE != 0 => Leave::Gone,
            Err(_) => Leave::Held,
        }
    }

    pub(super) fn home(&self) -> usize {
        // Relaxed: written before the object was published, as the rest of it.
        self.home.load(Ordering::Relaxed) as usize
    }

    pub(super) fn set_home(&self, cpu: usize) {
        // Relaxed: see home().
        self.home.store(u32::try_from(cpu).expect("CPU numbers are small"), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_pinned_does_not_leave_and_what_has_left_is_not_pinned() {
        let usage = Usage::new();
        assert_eq!(usage.leave(0), Leave::Held);
        assert!(usage.pin());
        usage.unpin();
        usage.unpin();
        assert_eq!((usage.leave(0), usage.leave(0)), (Leave::Left, Leave::Gone));
        assert!(!usage.pin() && usage.is_gone());
    }

    #[test]
    fn a_touch_is_seen_by_one_look() {
        let usage = Usage::new();
        assert!(!usage.was_found());
        usage.touch();
        usage.touch();
        assert!(usage.was_found() && !usage.was_found());
    }
}
