//! Chains: what hash tables are made of. Readers take no lock, writers lock a bucket, and it grows under both.
//!
//! # Theory
//! A node has a *place*, 64 bits made from its hash; a bucket has the places that begin with its number, in a list
//! sorted by place. So doubling the array splits buckets and changes no order, and a reader can go on behind
//! any place in an array of any length.
//!
//! A reader follows the lists inside an RCU read section. A writer locks the bucket by a bit in its head pointer,
//! and an unlinked node is freed after a grace period.
//!
//! A resize makes a second array and moves one bucket after the other; each later write moves a few. A node
//! has two links and the arrays use them alternately, so a moved node is in its old chain *and* in its new one:
//!
//! ```text
//!   old array   [ a ]--.                    [ a|MOVED ]--.  (still walked by readers that
//!                      v link 0      =>                  v   came before the mark)
//!                     N1 -> N2 -> N3                    N1 -> N2 -> N3
//!   new array   [ ] [ ]                     [ N1 -> N2 ] [ N3 ]   link 1
//! ```
//!
//! When all nodes of a bucket are in their new chains, the old head gets the mark *moved* and its chain never changes
//! again. A reader that finds the mark goes to the new array. A reader that came before the mark walks the old chain to
//! its end, with all nodes that the bucket had when the reader came. So readers neither wait nor repeat.
//!
//! When all buckets are moved, the new array becomes the current one, and the old one is freed after a grace
//! period. The next resize may begin only after that grace period, because it reuses the old chains' links.
//!
//! A walk over all buckets skips those of a sparse array that were never used (`used.rs`).
//!
//! An array is replaced by a smaller one at one moment, by a thread that has all its buckets locked (`resize.rs`).
//!
//! A table is *closed* by locking all buckets, finding them empty, and marking them moved to nowhere.
//!
//! # Lock order
//! Buckets of one array by number; bucket of the old array, then bucket of the new one. To close is to hold all of
//! an array that is not being moved. Under a bucket's lock no other lock of this module is taken.
//!
//! # Invariants
//! - H1 a chain changes only under its bucket's lock, and never after its head is marked moved;
//! - H2 a node is reachable from the array in which its bucket is not moved, for as long as it is in the table;
//! - H3 an array and a node are freed a grace period after the last pointer to them is gone;
//! - H4 a chain is sorted by place.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | bucket | unlock: Release store of the head | lock: Acquire exchange; readers' Acquire load | chain and nodes |
//! | chain | Release store of a link | readers' Acquire load of a link | the nodes behind it |
//! | array | Release store of `next`, `current` | Acquire load | the new array |
//!
//! # Sources
//! The kernel's rhashtable and its two-link ancestor (Herbert Xu's bridge multicast table, 2010); Triplett,
//! McKenney and Walpole, "Resizable, Scalable, Concurrent Hash Tables via Relativistic Programming" (2011).

mod array;
mod progress;
mod ready;
mod resize;
mod used;

pub(crate) use self::array::{Array, ChainPlace, LockedBucket, Unlinked, is_locked};
pub(crate) use self::used::Seen;

use self::array::{Attempt, closed, is_array};
use self::resize::Retired;
use crate::face::atomic::{AtomicPtr, Ordering};
use crate::face::thread;
use crate::rcu::{Domain, Guard};
use std::ptr;

/// How often a thread that tried in vain to lock a bucket has looked at it.
const SEEN_LOCKED: u32 = 1;

/// An element of a chain.
pub(crate) trait Node: Sized + 'static {
    /// The head of a chain.
    type Bucket: Bucket<Self>;

    /// The counts of nodes, in a bucket or on a CPU.
    type Count: Default + Send + Sync;

    /// Whether threads that found nodes remember them, for an era of the domain ([`Guard::era`]).
    const REMEMBERED: bool = false;

    /// By array: the next node of the chain. *written under the bucket's lock; atomic (chain)*
    fn links(&self) -> &[AtomicPtr<Self>; 2];

    /// Never changes.
    fn place(&self) -> u64;

    /// Frees a node.
    ///
    /// # Safety
    /// The node was given to [`LockedBucket::insert`], and nobody will use it again.
    unsafe fn free(node: *mut Self);

    /// Counts the node in `to` and no longer in `from`.
    fn carry(&self, _from: &Self::Count, _to: &Self::Count) {}
}

/// The links of a node that is in no chain.
pub(crate) fn unlinked<N>() -> [AtomicPtr<N>; 2] {
    [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())]
}

/// The head of a chain, and what is counted with it.
pub(crate) trait Bucket<N: Node>: Send + Sync {
    /// Without nodes.
    fn empty() -> Self;

    /// Where the chain begins. *atomic (bucket)*
    fn head(&self) -> &AtomicPtr<N>;

    /// The counter of its nodes, unless the CPUs count.
    fn count(&self) -> &N::Count;
}

/// A bucket of nodes that nobody counts here.
impl<N: Node<Count = ()>> Bucket<N> for AtomicPtr<N> {
    fn empty() -> Self {
        AtomicPtr::new(ptr::null_mut())
    }

    fn head(&self) -> &AtomicPtr<N> {
        self
    }

    fn count(&self) -> &() {
        &()
    }
}

/// The current array, and the one that it may be moved to.
pub(crate) struct Chains<N: Node> {
    /// The array that readers begin at, from `Box::into_raw`; null before the first node, and [`closed`] at the
    /// end. *atomic (array)*
    current: AtomicPtr<Array<N>>,
    /// *immutable*
    pub(crate) domain: &'static Domain,
}

// SAFETY: it owns its nodes, which are `Send + Sync`, and its arrays.
unsafe impl<N: Node + Send + Sync> Send for Chains<N> {}
// SAFETY: nodes are shared by reference inside read sections and freed on other threads, for which they are
// `Send + Sync`; chains are changed under bucket locks (H1).
unsafe impl<N: Node + Send + Sync> Sync for Chains<N> {}

impl<N: Node + Send + Sync> Chains<N> {
    /// No chains, and no memory used, before the first lock.
    pub(crate) fn new(domain: &'static Domain) -> Self {
        Chains { current: AtomicPtr::new(ptr::null_mut()), domain }
    }

    #[inline]
    pub(crate) fn read(&self) -> Guard<'_> {
        self.domain.read()
    }

    /// The array that readers begin at, unless there is none.
    ///
    /// # Panics
    /// If `guard` is a section of another domain.
    #[inline]
    pub(crate) fn current<'g>(&'g self, guard: &'g Guard<'_>) -> Option<&'g Array<N>> {
        assert!(guard.is_of(self.domain), "the read section belongs to another domain");
        // Acquire(array): the buckets; pairs with Release(array) in finish() and begin().
        let array = self.current.load(Ordering::Acquire);
        // SAFETY: the array was current inside the section, so it is freed after it (H3).
        is_array(array).then(|| unsafe { &*array })
    }

    /// Identifies the table among all tables of the same era and of sections that began in it, until the table is resized. For
    /// tables of nodes that are [remembered](Node::REMEMBERED).
    #[inline]
    pub(crate) fn identity(&self) -> *mut Array<N> {
        // Relaxed: only compared.
        self.current.load(Ordering::Relaxed)
    }

    /// Makes the first array, of `buckets` buckets, a power of two, unless there is one or the table is closed.
    #[cold]
    pub(crate) fn begin(&self, buckets: usize) {
        let array = Box::into_raw(Box::new(Array::first_of_all(buckets)));
        // Release(array): pairs with Acquire(array) in current().
        let begun =
            self.current.compare_exchange(ptr::null_mut(), array, Ordering::Release, Ordering::Relaxed);
        if begun.is_err() {
            // SAFETY: from `Box::into_raw`, and published nowhere.
            drop(unsafe { Box::from_raw(array) });
        }
    }

    /// Whether the table is closed for good.
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: a closed table has nothing to be seen.
        self.current.load(Ordering::Relaxed) == closed()
    }

    /// The bucket of `place`, locked, in whichever array it is now; none if there is no array. It waits outside sections: a
    /// resize waits for those, and would make the wait shorter.
    #[inline]
    pub(crate) fn lock(&self, place: u64) -> Option<LockedBucket<'_, N>> {
        self.try_lock(place).or_else(|| self.lock_slowly(place))
    }

    /// The variant of [`lock`](Self::lock) that may be called in a section: also none if the holder keeps the lock for
    /// long, for example because it lost its CPU.
    #[inline]
    pub(crate) fn lock_soon(&self, place: u64) -> Option<LockedBucket<'_, N>> {
        let mut looks = SEEN_LOCKED;
        self.try_lock(place).or_else(|| match self.attempt(place, &mut looks) {
            Attempt::Locked(bucket) => Some(bucket),
            Attempt::Moved | Attempt::Busy => None,
        })
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, place: u64) -> Option<LockedBucket<'_, N>> {
        let mut looks = SEEN_LOCKED;
        loop {
            match self.attempt(place, &mut looks) {
                Attempt::Locked(bucket) => return Some(bucket),
                Attempt::Moved => return None,
                Attempt::Busy => thread::yield_now(),
            }
        }
    }

    /// Tries for a while to lock the bucket of `place`, after so many `looks`. Returns `Moved` if the table is closed.
    #[cold]
    #[inline(never)]
    fn attempt(&self, place: u64, looks: &mut u32) -> Attempt<'_, N> {
        let section = self.read();
        let mut current = self.current(&section);
        while let Some(array) = current {
            match array.attempt(place, looks) {
                Attempt::Locked(bucket) => return Attempt::Locked(self.outlive_section(bucket)),
                Attempt::Busy => return Attempt::Busy,
                // The thread that had it locked was moving it. Moved to nowhere: closed.
                Attempt::Moved => (current, *looks) = (array.next(&section), 0),
            }
        }
        Attempt::Moved
    }

    /// Locks the bucket; none also if it is locked, or moved to a newer array. See [`lock`](Self::lock).
    #[inline]
    pub(crate) fn try_lock(&self, place: u64) -> Option<LockedBucket<'_, N>> {
        let section = self.read();
        Some(self.outlive_section(self.current(&section)?.try_lock(place)?))
    }

    /// Extends the lifetime of `bucket`, a bucket of this table, beyond the section in which it was found.
    fn outlive_section<'t>(&'t self, bucket: LockedBucket<'_, N>) -> LockedBucket<'t, N> {
        // SAFETY: the section may end before the bucket is unlocked. But a locked bucket is not moved, and an array is
        // freed only after all its buckets are moved, or by `&mut` of this table.
        unsafe { std::mem::transmute::<LockedBucket<'_, N>, LockedBucket<'t, N>>(bucket) }
    }

    /// Frees a node of this table when its readers are gone. May wait: see [`Domain::defer`].
    pub(crate) fn free_later(&self, node: Unlinked<N>) {
        // SAFETY: runs a grace period after the node was taken out of the chain that readers are led to; older
        // chains are walked only by sections that began before its bucket was moved (H1, H3).
        self.domain.defer(move || unsafe { node.free() });
    }

    /// The chain of `place`, null if empty, and its array; None if the table has no array.
    #[inline]
    pub(crate) fn chain<'g>(&'g self, place: u64, guard: &'g Guard<'_>) -> Option<(*mut N, &'g Array<N>)> {
        self.current(guard)?.chain(place, guard)
    }
}

impl<N: Node> Drop for Chains<N> {
    fn drop(&mut self) {
        // Relaxed: `&mut self`. Readers and helpers borrow the table, so none is left; a resize may be half done.
        let mut array = self.current.load(Ordering::Relaxed);
        while is_array(array) {
            let retired = Retired(array);
            // SAFETY: from `Box::into_raw`; nobody else is left, and a node is freed by the array in which it is not moved (H2).
            array = unsafe { (*array).free_nodes() };
            if N::REMEMBERED {
                // A later allocation at this address must not be mistaken for the array, even by sections that go on.
                // In a section of its own: a destructor must not wait.
                let _section = self.domain.read();
                // SAFETY: no pointer to the array is followed any more.
                self.domain.defer(move || unsafe { retired.free() });
            } else {
                // SAFETY: likewise.
                unsafe { retired.free() };
            }
        }
    }
}
