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

use crate::face::Arc;
use crate::face::atomic::{AtomicI64, AtomicPtr, Ordering};
use crate::face::{Birth, Host, Mutant, name_value, seeded};
use crate::memory::blocks::BlockKind;
use std::alloc::Layout;
use std::ptr::{self, NonNull};

/// The object is in a review queue.
const REVIEW: i64 = 1;
/// Somebody used the object while it was under review.
const DIRTY: i64 = 2;
/// One reference.
const ONE: i64 = 4;

/// The words before each value.
pub(super) struct Header {
    /// See above. *atomic (count)*
    word: AtomicI64,
    /// How the object is freed. It lives as long as the object. *atomic (kind)*
    kind: AtomicPtr<ObjectKind>,
    /// *immutable*
    home: Host,
    /// *immutable*
    birth: Birth,
}

/// The shared state of all objects of a type, or of a single object with weak references, as part of a [`WeakKind`].
#[derive(Clone, Copy)]
struct ObjectKind {
    /// Frees the object, of whatever type.
    free: unsafe fn(Object),
    has_weak: bool,
}

/// The extra state of an object with weak references.
#[repr(C)]
struct WeakKind {
    kind: ObjectKind,
    slot: Arc<WeakSlot>,
}

/// Where the weak references to one object lead.
pub(super) struct WeakSlot {
    /// Null once the object was found dead. *atomic (weak)*
    pub(super) object: AtomicPtr<Header>,
    /// Where the object was made. *immutable*
    pub(super) home: Host,
}

impl WeakSlot {
    fn to(object: Object) -> WeakSlot {
        WeakSlot { object: AtomicPtr::new(object.address()), home: object.home() }
    }

    /// They lead nowhere from now on. True if they did before.
    fn end(&self) -> bool {
        // AcqRel(weak): before the flush that begins the next review; pairs with Acquire(weak) in WeakRef::follow().
        !self.object.swap(ptr::null_mut(), Ordering::AcqRel).is_null()
    }
}

/// A value and its count.
#[repr(C)]
pub(super) struct Counted<T> {
    pub(super) header: Header,
    pub(super) value: T,
}

impl<T> Counted<T> {
    const BLOCKS: BlockKind = BlockKind::of(Layout::new::<Counted<T>>());
}

impl<T: Send + Sync + 'static> Counted<T> {
    const KIND: &'static ObjectKind = &ObjectKind { free: free::<T>, has_weak: false };

    /// A new object with one reference, of what `make` makes. (If that panics, a block is lost.)
    #[inline]
    pub(super) fn allocate(make: impl FnOnce() -> T) -> NonNull<Counted<T>> {
        let home = Host::here();
        let kind = AtomicPtr::new(std::ptr::from_ref(Self::KIND).cast_mut());
        let header = Header { word: AtomicI64::new(ONE), kind, home, birth: Birth::now() };
        let counted = Self::BLOCKS.allocate().cast::<Counted<T>>();
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

/// The result of a review.
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

    /// The object to which a weak reference leads, if any.
    pub(super) fn found(address: *mut Header) -> Option<Object> {
        NonNull::new(address).map(Object)
    }

    pub(super) fn address(self) -> *mut Header {
        self.0.as_ptr()
    }

    /// The object as what it is, for a caller that knows its type.
    pub(super) fn counted<T>(self) -> NonNull<Counted<T>> {
        self.0.cast()
    }

    fn kind(&self) -> &ObjectKind {
        // Acquire(kind): pairs with AcqRel(kind) in weak().
        let kind = self.header().kind.load(Ordering::Acquire);
        // SAFETY: a constant, or what weak() made, which is dropped with the object.
        unsafe { &*kind }
    }

    /// Where its weak references lead, if any were made.
    fn weak_slot(&self) -> Option<&Arc<WeakSlot>> {
        let kind = self.kind();
        // SAFETY: only weak() makes such a kind, and it is the first part of a `WeakKind`.
        kind.has_weak.then(|| unsafe { &(*std::ptr::from_ref(kind).cast::<WeakKind>()).slot })
    }

    /// The slot of its weak references, made at the first call. The caller has a reference.
    pub(super) fn weak(self) -> Arc<WeakSlot> {
        if let Some(slot) = self.weak_slot() {
            return slot.clone();
        }
        let plain = *self.kind();
        let slot = Arc::new(WeakSlot::to(self));
        let made = WeakKind { kind: ObjectKind { has_weak: true, ..plain }, slot: slot.clone() };
        let made = Box::into_raw(Box::new(made));
        let (kind, old) = (&self.header().kind, std::ptr::from_ref(self.kind()).cast_mut());
        // SAFETY: as in kind().
        let is_first = !unsafe { (*old).has_weak }
            // AcqRel(kind): publishes the slot; pairs with Acquire(kind) in kind(), and with itself.
            && kind.compare_exchange(old, made.cast(), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_first {
            return slot;
        }
        // SAFETY: made above, and nobody else knows it.
        drop(unsafe { Box::from_raw(made) });
        self.weak_slot().map_or(slot, Arc::clone)
    }

    /// Its weak references lead nowhere from now on. True if they did before.
    pub(super) fn end_weak(self) -> bool {
        self.weak_slot().is_some_and(|slot| slot.end())
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
        let kind = std::ptr::from_ref(self.kind()).cast_mut();
        // SAFETY: as in kind().
        let ObjectKind { free, has_weak } = unsafe { *kind };
        // SAFETY: `free` is of the object's own type; the rest is the caller's.
        unsafe { free(self) }
        if has_weak {
            // SAFETY: weak() allocated `kind` for this object, and no thread reads the object any more.
            drop(unsafe { Box::from_raw(kind.cast::<WeakKind>()) });
        }
    }
}

/// # Safety
/// `object` is a `Counted<T>` from [`Counted::allocate`], and nobody will use it again.
unsafe fn free<T>(object: Object) {
    // SAFETY: by contract; the value is dropped once, and its block is not used any more.
    unsafe {
        object.0.cast::<Counted<T>>().drop_in_place();
        Counted::<T>::BLOCKS.free(object.0.cast());
    }
}
