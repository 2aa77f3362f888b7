//! Refcache: shared ownership whose references cost only the own thread's line.
//!
//! # Theory
//! Counting references in the object makes the object's line the one that every CPU writes. Here each thread
//! has a small *cache* of counts, and adds what it counted to the object's *global count* only now and then: when
//! another object needs the place in the cache, or when the cache is flushed.
//!
//! ```text
//!   thread 0   [ inode 7: +3 ]  [ inode 9: -1 ] ...        counts, each on the thread's own lines
//!   thread 1   [ inode 7: -2 ]  ...
//!                     \______ flush ______
//!                                         v
//!   object     | global count 1 | value |                   references = global count + all cached counts
//! ```
//!
//! A global count of 0 therefore proves nothing: the first reference's end may have been flushed before the
//! second one's begin. Such an object goes under *review*. Time is cut into *epochs*; in each, every cache is
//! flushed once. An object is dead if two epochs after its review began its count was still 0 and no cache
//! had given it up meanwhile, not even with a count of 0:
//!
//! ```text
//!   epoch            e         |        e + 1       |   e + 2
//!   cache 0   flush .......... T ........... flush  |
//!   cache 1        flush ..... T . flush            |            a cache that did not hold the object when
//!                      ^ review begins              ^ judged     it was flushed in e+1 had not counted
//!                                                                it since its flush in e: so not at T
//! ```
//!
//! So at the boundary T nothing was counted in any cache and the global count was 0: there was no reference, and
//! a reference can only be made from another one. (That a cache's count is 0 at its flushes is not enough: a
//! reference may hop from cache to cache, ahead of the flushes. This is where we differ from the paper.)
//!
//! *Kept counts.* A directory in which all threads create files is counted by all of them in each epoch, and almost
//! always has references from lasting objects: no judgement is needed. So where the global count is above 0 a flush
//! keeps the count of an object in the cache, unless it is negative and as many such as there are caches would take
//! away more than half of the global count; the object's line is only read. The proof stands, since a cache that finds
//! the global count at 0 gives the object up. And nothing lives for ever: when no reference is left, all cached counts
//! together are the opposite of the global one, the negative ones that may be kept are at most half of that, and so
//! each epoch at least halves it.
//!
//! *Separate ways.* An object has one way in each cache, and evicts any other object of the same way. Were a mount,
//! which every open counts, among the files, then each thread that opens the file that shares its way would write the
//! mount's line. So the few lasting values have ways of their own.
//!
//! *When a cache is flushed.* Every `TURNS` counts, and more rarely among hundreds, a thread flushes its cache and
//! looks whether it was the last of the epoch. A thread that has flushed `PATIENCE` times more in an epoch, fewer times
//! among hundreds, flushes the caches of all laggards. A laggard that has counted nothing in a whole epoch is
//! *retired*: its cache is no more waited for until its owner counts again. The thread that retires it takes over its
//! reviews, to free what is dead in parts. Other objects are freed by the thread in whose cache their count came to 0,
//! mostly the one that made them. Each thread's garbage is thus some times `TURNS` objects, and as much more as is
//! dropped until a thread that lost its CPU while it counted has it again. A background thread frees the garbage of
//! idle threads (`idle.rs`).
//!
//! *Weak references* (`weak.rs`) keep nothing. A value to which one leads is reviewed twice: when it is found dead, they are made to lead
//! nowhere, and it is freed if it is found dead again.
//!
//! # Clients must
//! - reach a `&Ref` only while it exists: hold another reference, or be in an RCU section inside which the `Ref` was
//!   reachable from a structure that drops its own only after a grace period;
//! - not wait for other threads while they borrow what a slot holds, see `slot.rs`;
//! - not expect a value to be dropped at once: [`settle`] does that, and is not cheap;
//! - expect `T`'s destructor on any thread that uses references, with none of this module's locks held.
//!
//! # Lock order
//! `known`, then caches in its order. Under these no other lock is taken and no destructor runs. While a thread borrows, which
//! holds its cache, it may try locks and count, but wait for nobody.
//!
//! # Invariants
//! - R1 references = global count + the sum of all cached counts;
//! - R2 an object whose global count is 0 is in exactly one review queue, others are in at most one;
//! - R3 what is in a cache or a queue is not freed;
//! - R4 a thread frees objects only outside destructors that it runs itself: chains do not recurse.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | count | a cache gives up an object | the next one; review | uses of the value |
//! | flushed | flush: the pending counted down | the last one's count | that the cache's earlier counts are in |
//! | epoch | its begin (`rounds.rs`) | flush | all flushes of the epoch before |
//!
//! *review*, both interleavings: the queue that begins a review and the thread that ends an epoch have a fence
//! between their store and what follows. Either the review's begin reads the new epoch, and waits one longer,
//! or every flush after the epoch's begin sees the object under review.
//!
//! # Cost
//! clone, drop: the own cache's lock (stores to the thread's own line, no read-modify-write) and its way. Nothing of
//! the object is read or written. A borrow: the same lock alone. A flush: one load for each object counted, one read-modify-write for each whose count is
//! neither 0 nor kept, and one of what all flushes count down. A visit to laggards: one membarrier(2). An object's memory
//! is a block (`blocks.rs`). Memory: 16 bytes for an object, 19 KiB for a thread that counts.
//!
//! # Sources
//! Clements, Kaashoek and Zeldovich, "RadixVM: Scalable address spaces for multithreaded applications" (EuroSys
//! 2013), section 3.1.

mod cache;
mod idle;
#[allow(unsafe_code)]
mod object;
mod rounds;
mod shard;
#[allow(unsafe_code)]
mod slot;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod weak;
#[allow(unsafe_code)]
mod world;

pub use self::idle::{Draining, in_review, is_counting};
pub use self::slot::RefSlot;
pub use self::weak::WeakRef;

use self::object::{Counted, Object};
use self::world::world;
use crate::face::Host;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

/// A reference to a shared value, as [`Arc`](std::sync::Arc), that costs no shared line. The value is dropped some
/// time after its last reference. `S` says how long such values stay.
pub struct Ref<T: Send + Sync + 'static, S: Stay = Passing> {
    counted: NonNull<Counted<T>>,
    marker: PhantomData<(Counted<T>, S)>,
}

/// How long values stay: it decides which ways may count them.
pub trait Stay: 'static {
    /// Lasting values have ways that passing values do not take.
    const STANDS: bool;
}

/// Many values, that come and go.
pub enum Passing {}

/// Few values, that stay, and that most operations count.
pub enum Standing {}

impl Stay for Passing {
    const STANDS: bool = false;
}

impl Stay for Standing {
    const STANDS: bool = true;
}

// SAFETY: a reference gives `&T` on any thread and lets any thread drop the value: `T: Send + Sync`.
unsafe impl<T: Send + Sync + 'static, S: Stay> Send for Ref<T, S> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync + 'static, S: Stay> Sync for Ref<T, S> {}

impl<T: Send + Sync + 'static> Ref<T> {
    /// The first reference to `value`.
    #[inline]
    pub fn new(value: T) -> Ref<T> {
        Ref::new_with(|| value)
    }

    /// Like [`new`](Self::new), with the value constructed in place by `make`.
    #[inline]
    pub fn new_with(make: impl FnOnce() -> T) -> Ref<T> {
        Ref { counted: Counted::allocate(make), marker: PhantomData }
    }
}

impl<T: Send + Sync + 'static> Ref<T, Standing> {
    /// The first reference to `value`, one of few that stay and that most operations count.
    pub fn standing(value: T) -> Ref<T, Standing> {
        Ref { counted: Counted::allocate(|| value), marker: PhantomData }
    }
}

impl<T: Send + Sync + 'static, S: Stay> Ref<T, S> {
    /// Whether both refer to the same value.
    #[inline]
    pub fn ptr_eq(a: &Ref<T, S>, b: &Ref<T, S>) -> bool {
        a.counted == b.counted
    }

    /// Where the value is.
    #[inline]
    pub fn as_ptr(this: &Ref<T, S>) -> *const T {
        std::ptr::from_ref(&**this)
    }

    #[inline]
    fn count(&self, delta: i64) {
        let object = Object::of(self.counted);
        world(object.home()).count::<S>(object, delta);
    }
}

impl<T: Send + Sync + 'static, S: Stay> Clone for Ref<T, S> {
    #[inline]
    fn clone(&self) -> Ref<T, S> {
        self.count(1);
        Ref { counted: self.counted, marker: PhantomData }
    }
}

impl<T: Send + Sync + 'static, S: Stay> Drop for Ref<T, S> {
    #[inline]
    fn drop(&mut self) {
        self.count(-1);
    }
}

impl<T: Send + Sync + 'static, S: Stay> Deref for Ref<T, S> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this reference is counted (R1), so the object is freed after it; nobody makes a `&mut` before.
        unsafe { &self.counted.as_ref().value }
    }
}

impl<T: fmt::Debug + Send + Sync + 'static, S: Stay> fmt::Debug for Ref<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Takes the reference out of `this`, still counted.
fn into_counted<T: Send + Sync + 'static>(this: Ref<T>) -> *mut Counted<T> {
    std::mem::ManuallyDrop::new(this).counted.as_ptr()
}

/// Drops every value whose last reference is gone now, and those that then lose theirs. Stops all counting for a
/// moment: for exact answers (statistics, unmount, looking for leaks), not for every call.
///
/// References that wait for a grace period are not gone yet: flush their RCU domain first. Does nothing in a destructor
/// of such a value, or while the caller borrows one: it would wait for itself, or for a thread that waits for this one.
pub fn settle() {
    world(Host::here()).settle();
}

/// For each of `refs`, whether it was the only reference to its value at a moment during the call; more references may
/// exist since. Costs as much as [`settle`]; returns false for every object where `settle` does nothing.
///
/// ```
/// use sluice_sync::{Ref, refcache::sole};
///
/// let (one, two) = (Ref::new(1), Ref::new(2));
/// let other = two.clone();
/// assert_eq!(sole([&one, &two, &other]), [true, false, false]);
/// drop(other);
/// assert_eq!(sole([&two]), [true]);
/// ```
pub fn sole<'r, T: Send + Sync + 'static>(refs: impl IntoIterator<Item = &'r Ref<T>>) -> Vec<bool> {
    world(Host::here()).sole(&mut refs.into_iter().map(|one| Object::of(one.counted)))
}

/// Whether the caller is in the destructor of a value whose last reference is gone. It may have been called anywhere
/// that a reference is used, under whatever locks, and must not wait for others.
pub fn in_destructor() -> bool {
    world(Host::here()).is_freeing()
}
