//! Objects: the global count before each value, and what it says about the value's end.
//!
//! ```text
//!   word:  | global count, signed ............ | DIRTY | REVIEW |
//! ```
//!
//! | bit | set | cleared |
//! |---|---|---|
//! | REVIEW | the count came to 0 and the object is in a queue | by review, if the count is not 0 |
//! | DIRTY | a CPU gave up the object, whatever it had counted, during the review | when a review begins |

use crate::blocks::BlockKind;
use crate::face::atomic::{AtomicI64, Ordering};
use crate::face::{Birth, Host, Mutant, name_value, seeded};
use std::alloc::Layout;
use std::ptr::NonNull;

/// The object is in a review queue.
const REVIEW: i64 = 1;
/// Somebody used the object while it was under review.
const DIRTY: i64 = 2;
/// One reference.
const ONE: i64 = 4;

/// What stands before each value.
pub(super) struct Header {
    /// See above. *atomic (count)*
    word: AtomicI64,
    /// Frees the object, of whatever type. *immutable*
    free: unsafe fn(Object),
    /// *immutable*
    home: Host,
    /// *immutable*
    birth: Birth,
}

/// A value and its count.
#[repr(C)]
pub(super) struct Counted<T> {
    pub(super) header: Header,
    pub(super) value: T,
}

impl<T> Counted<T> {
    const KIND: BlockKind = BlockKind::of(Layout::new::<Counted<T>>());
}

impl<T: Send + Sync + 'static> Counted<T> {
    /// A new object with one reference, of what `make` makes. (If that panics, a block is lost.)
    #[inline]
    pub(super) fn allocate(make: impl FnOnce() -> T) -> NonNull<Counted<T>> {
        let home = Host::here();
        let header = Header { word: AtomicI64::new(ONE), free: free::<T>, home, birth: Birth::now() };
        let counted = Self::KIND.allocate().cast::<Counted<T>>();
        // SAFETY: a new block of our kind: large enough, aligned, and nobody else's.
        unsafe { counted.write(Counted { header, value: make() }) };
        // SAFETY: written above, and only we know it.
        name_value(unsafe { &counted.as_ref().value }, std::any::type_name::<T>(), "");
        counted
    }
}

/// A pointer to an object of some type that is not freed yet: each is in a [`Ref`](super::Ref), a cache or a review
/// queue, and these hold nothing else (R3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Object(NonNull<Header>);

// SAFETY: it stands for a reference to a `Counted<T>` with `T: Send + Sync` (bound of `Ref`), which any thread may free.
unsafe impl Send for Object {}

/// What a review finds.
pub(super) enum Review {
    /// No reference is left.
    Dead,
    /// Used meanwhile, and unreferenced again, or so it seems: another review.
    Again,
    /// References are left.
    Live,
}

impl Object {
    pub(super) fn of<T>(counted: NonNull<Counted<T>>) -> Object {
        Object(counted.cast())
    }

    fn header(&self) -> &Header {
        // SAFETY: an `Object` is not freed while somebody holds it (R3), and only [`free`] makes more than `&` of it.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn home(&self) -> Host {
        self.header().home
    }

    pub(super) fn birth(&self) -> Birth {
        self.header().birth
    }

    pub(super) fn addr(self) -> usize {
        self.0.addr().get()
    }

    /// Whether a cache may keep the count `delta` over its flush, as one of `caches`: see *what a cache keeps*.
    pub(super) fn spares(self, delta: i64, caches: i64) -> bool {
        // Relaxed: a review that began in time is seen, as in add(), and it began with a count of 0.
        let count = self.header().word.load(Ordering::Relaxed) >> ONE.trailing_zeros();
        let is_far_from_zero = count > 0 && delta.saturating_mul(-2 * caches) <= count;
        delta != 0 && (is_far_from_zero || seeded(Mutant::KeptAtZero))
    }

    /// Whether the global count is 1.
    pub(super) fn is_one(self) -> bool {
        // Acquire(count): uses of the value by those that gave their references up.
        self.header().word.load(Ordering::Acquire) & !(REVIEW | DIRTY) == ONE
    }

    /// Adds what a CPU counted and now gives up. True if the caller must begin a review.
    pub(super) fn add(self, delta: i64) -> bool {
        let word = &self.header().word;
        if delta == 0 {
            if seeded(Mutant::CancelledUsesForgotten) {
                return false;
            }
            // Relaxed: a review that began in time is seen, see *review* in the table of orderings.
            if word.load(Ordering::Relaxed) & (REVIEW | DIRTY) == REVIEW {
                // A review that has ended meanwhile leaves a mark that nobody looks at.
                word.fetch_or(DIRTY, Ordering::Relaxed);
            }
            return false;
        }
        let next = |now: i64| {
            let count = (now & !(REVIEW | DIRTY)) + delta * ONE;
            match (now & REVIEW != 0, count) {
                (true, _) => count | REVIEW | DIRTY,
                (false, 0) => REVIEW,
                (false, _) => count,
            }
        };
        // AcqRel(count): uses of the value before references were dropped; pairs with itself and with review().
        let update = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| Some(next(now)));
        update.is_ok_and(|before| before & REVIEW == 0 && next(before) == REVIEW)
    }

    /// Judges an object two epochs after its review began.
    pub(super) fn review(self) -> Review {
        let word = &self.header().word;
        loop {
            // Acquire(count): uses of the value by others, before it is dropped.
            let now = word.load(Ordering::Acquire);
            let (next, verdict) = match now {
                REVIEW => return Review::Dead,
                _ if now & !DIRTY == REVIEW => (REVIEW, Review::Again),
                _ => (now & !(REVIEW | DIRTY), Review::Live),
            };
            // Relaxed: only its own word is said; a review that begins anew does so with a flush, which has a fence.
            if word.compare_exchange(now, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return verdict;
            }
        }
    }

    /// Judges an object of which no CPU holds a count.
    pub(super) fn review_exact(self) -> Review {
        match self.review() {
            Review::Again => Review::Dead,
            verdict => verdict,
        }
    }

    /// Frees the object.
    ///
    /// # Safety
    /// A review found it dead, and this is done once.
    pub(super) unsafe fn free(self) {
        let free = self.header().free;
        // SAFETY: `free` is of the object's own type; the rest is the caller's.
        unsafe { free(self) }
    }
}

/// # Safety
/// `object` is a `Counted<T>` from [`Counted::allocate`], and nobody will use it again.
unsafe fn free<T>(object: Object) {
    // SAFETY: by contract; it is dropped once, and its block is not used any more.
    unsafe {
        object.0.cast::<Counted<T>>().drop_in_place();
        Counted::<T>::KIND.free(object.0.cast());
    }
}
