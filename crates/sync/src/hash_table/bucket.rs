//! Buckets: heads with a lock bit and a moved bit, the arrays that hold them, and the nodes of their chains.
//!
//! ```text
//!   head:  | pointer to the first node ....................... | MOVED | LOCKED |
//! ```
//!
//! Nodes are at least four bytes aligned, so the two low bits of a pointer are free.

use crate::face::atomic::{AtomicPtr, AtomicUsize, Ordering};
use crate::face::hint;
use crate::rcu::Guard;
use std::borrow::Borrow;
use std::ptr;

/// Somebody changes the chain.
const LOCKED: usize = 1;
/// The chain's nodes are in the next array.
const MOVED: usize = 2;

/// An entry of the table.
pub(super) struct Node<K, V> {
    /// By array parity: the next node of the chain. *written under the bucket's lock; atomic (chain)*
    pub(super) links: [AtomicPtr<Node<K, V>>; 2],
    /// *immutable*
    pub(super) hash: u64,
    /// *immutable*
    pub(super) key: K,
    /// *immutable*
    pub(super) value: V,
}

impl<K, V> Node<K, V> {
    pub(super) fn new(hash: u64, key: K, value: V) -> Self {
        let links = [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())];
        Node { links, hash, key, value }
    }
}

/// An array of buckets.
pub(super) struct Array<K, V> {
    /// A power of two of them. *each: atomic (bucket)*
    heads: Box<[AtomicPtr<Node<K, V>>]>,
    /// Which of a node's links its chains use. *immutable*
    pub(super) link: usize,
    /// The array that this one is moved to; null while there is none. *atomic (array), set once*
    next: AtomicPtr<Array<K, V>>,
    /// The first bucket that nobody has undertaken to move. *atomic*
    claimed: AtomicUsize,
    /// How many buckets are moved. *atomic (array)*
    moved: AtomicUsize,
}

fn bits<T>(head: *mut T) -> usize {
    head.addr() & (LOCKED | MOVED)
}

fn node<T>(head: *mut T) -> *mut T {
    head.map_addr(|addr| addr & !(LOCKED | MOVED))
}

fn with_bits<T>(node: *mut T, bits: usize) -> *mut T {
    node.map_addr(|addr| addr | bits)
}

impl<K, V> Array<K, V> {
    pub(super) fn new(len: usize, link: usize) -> Self {
        debug_assert!(len.is_power_of_two() && link < 2);
        const { assert!(align_of::<Node<(), ()>>() > LOCKED | MOVED, "no room for the bits") };
        Array {
            heads: (0..len).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            link,
            next: AtomicPtr::new(ptr::null_mut()),
            claimed: AtomicUsize::new(0),
            moved: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    #[inline]
    fn head(&self, hash: u64) -> &AtomicPtr<Node<K, V>> {
        // The high half of a 64-bit hash does not matter before there are 2^32 buckets.
        &self.heads[hash as usize & (self.heads.len() - 1)]
    }

    /// The first node of the chain of `hash`, or null; `None` if the bucket is moved.
    #[inline]
    pub(super) fn first(&self, hash: u64) -> Option<*mut Node<K, V>> {
        // Acquire(bucket): the chain, or the mark and with it all new chains; pairs with Release(bucket).
        let head = self.head(hash).load(Ordering::Acquire);
        (head.addr() & MOVED == 0).then(|| node(head))
    }

    /// The array that this one is being moved to.
    #[inline]
    pub(super) fn next<'g>(&self, _guard: &'g Guard<'_>) -> Option<&'g Array<K, V>> {
        // Acquire(array): pairs with Release(array) in set_next().
        // SAFETY: null, or an array that is freed a grace period after it stopped being the current one,
        // which it has not been yet when this one could be found inside the section.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// Begins a move to `next`, once.
    pub(super) fn set_next(&self, next: Box<Array<K, V>>) {
        // Release(array): pairs with Acquire(array) in next().
        self.next.store(Box::into_raw(next), Ordering::Release);
    }

    /// The address of the array that this one is moved to, to make it the current one.
    pub(super) fn next_ptr(&self) -> *mut Array<K, V> {
        // Acquire(array): as in next().
        self.next.load(Ordering::Acquire)
    }

    /// Undertakes to move up to `count` buckets; says which.
    pub(super) fn claim(&self, count: usize) -> std::ops::Range<usize> {
        // Relaxed: only who gets which counts. The first look keeps the number from growing for ever.
        if self.claimed.load(Ordering::Relaxed) >= self.len() {
            return 0..0;
        }
        let first = self.claimed.fetch_add(count, Ordering::Relaxed).min(self.len());
        first..(first + count).min(self.len())
    }

    /// Notes that `count` more buckets are moved. True if these were the last.
    pub(super) fn note_moved(&self, count: usize) -> bool {
        // AcqRel(array): who completes the number hands on that all chains are in place.
        count > 0 && self.moved.fetch_add(count, Ordering::AcqRel) + count == self.len()
    }

    /// Locks the bucket of `hash`; `None` if it is moved.
    pub(super) fn lock(&self, hash: u64) -> Option<Locked<'_, K, V>> {
        self.lock_head(self.head(hash))
    }

    /// Locks bucket `at`; `None` if it is moved.
    pub(super) fn lock_at(&self, at: usize) -> Option<Locked<'_, K, V>> {
        self.lock_head(&self.heads[at])
    }

    fn lock_head<'a>(&'a self, head: &'a AtomicPtr<Node<K, V>>) -> Option<Locked<'a, K, V>> {
        let mut turns = 0u32;
        loop {
            // Acquire(bucket): a mark is followed to the next array, as in first().
            let now = head.load(Ordering::Acquire);
            if now.addr() & MOVED != 0 {
                return None;
            }
            let locked = with_bits(now, LOCKED);
            // Acquire(bucket): the chain as the last owner left it; pairs with Release(bucket) in Drop.
            if now.addr() & LOCKED == 0
                && head.compare_exchange(now, locked, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Some(Locked { array: self, head, first: now });
            }
            hint::spin_loop();
            turns += 1;
            // The owner may have lost its CPU in the middle of its few instructions.
            if turns.is_multiple_of(64) {
                crate::thread::yield_now();
            }
        }
    }

    /// Calls `visit` for every node of the buckets that are not moved.
    pub(super) fn for_each_unmoved(&self, guard: &Guard<'_>, mut visit: impl FnMut(&Node<K, V>)) {
        let _ = guard;
        for head in &self.heads {
            // Acquire(bucket): as in first().
            let head = head.load(Ordering::Acquire);
            let mut at = if head.addr() & MOVED == 0 { node(head) } else { ptr::null_mut() };
            // SAFETY: found in a chain inside the section, as in HashTable::get().
            while let Some(found) = unsafe { at.as_ref() } {
                visit(found);
                // Acquire(chain): as in HashTable::get().
                at = found.links[self.link].load(Ordering::Acquire);
            }
        }
    }

    /// Frees the nodes of all buckets that are not moved; returns the next array.
    ///
    /// # Safety
    /// Nobody else may use this array, the next one or their nodes, now or later.
    pub(super) unsafe fn free_nodes(self) -> *mut Array<K, V> {
        for head in &self.heads {
            // Relaxed throughout: the caller is alone.
            let head = head.load(Ordering::Relaxed);
            let mut at = if head.addr() & MOVED == 0 { node(head) } else { ptr::null_mut() };
            while !at.is_null() {
                // SAFETY: nodes come from `Box::into_raw` in push(); this one is in the one chain that is not
                // moved, so it is freed once.
                let owned = unsafe { Box::from_raw(at) };
                at = owned.links[self.link].load(Ordering::Relaxed);
            }
        }
        self.next.load(Ordering::Relaxed)
    }
}

/// A bucket whose lock the caller holds; unlocks it when dropped.
pub(super) struct Locked<'a, K, V> {
    array: &'a Array<K, V>,
    head: &'a AtomicPtr<Node<K, V>>,
    /// What the head becomes when it is unlocked, with [`MOVED`] or without a bit.
    first: *mut Node<K, V>,
}

/// A node's place in a locked chain.
pub(super) struct Place<K, V> {
    /// The node before it; null if it is the first.
    before: *mut Node<K, V>,
    node: *mut Node<K, V>,
}

impl<K, V> Locked<'_, K, V> {
    pub(super) fn array_len(&self) -> usize {
        self.array.len()
    }

    /// The node after `node` in this chain.
    fn after(&self, node: *mut Node<K, V>) -> *mut Node<K, V> {
        // Relaxed: under the bucket's lock (H1).
        // SAFETY: `node` is in the chain that we have locked, so it is not freed.
        unsafe { &*node }.links[self.array.link].load(Ordering::Relaxed)
    }

    /// Finds `key`; says also how many nodes were looked at.
    pub(super) fn find<Q>(&self, hash: u64, key: &Q) -> (Option<Place<K, V>>, usize)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let (mut before, mut at, mut walked) = (ptr::null_mut(), self.first, 0);
        // SAFETY: nodes of a locked chain are not freed.
        while let Some(found) = unsafe { at.as_ref() } {
            if found.hash == hash && found.key.borrow() == key {
                return (Some(Place { before, node: at }), walked);
            }
            (before, at) = (at, self.after(at));
            walked += 1;
        }
        (None, walked)
    }

    /// Puts `node` in front.
    pub(super) fn push(&mut self, node: Box<Node<K, V>>) {
        self.push_raw(Box::into_raw(node));
    }

    fn push_raw(&mut self, node: *mut Node<K, V>) {
        // Relaxed: published with the head, in Drop. Readers of a moved chain use the other link.
        // SAFETY: new, or in the old chain whose bucket is locked too; not freed either way.
        unsafe { &*node }.links[self.array.link].store(self.first, Ordering::Relaxed);
        self.first = node;
    }

    /// Takes the node out of the chain.
    pub(super) fn unlink(&mut self, place: Place<K, V>) -> Unlinked<K, V> {
        let next = self.after(place.node);
        // SAFETY: null, or in the locked chain.
        match unsafe { place.before.as_ref() } {
            None => self.first = next,
            // Release(chain): a reader that gets to `next` past us must see its contents, although it was
            // pushed under an earlier owner's lock; pairs with Acquire(chain) in HashTable::get().
            Some(before) => before.links[self.array.link].store(next, Ordering::Release),
        }
        Unlinked(place.node)
    }

    /// Puts the chain's nodes into the buckets of `new` as well.
    pub(super) fn copy_to(&self, new: &Array<K, V>) {
        let mut at = self.first;
        // SAFETY: nodes of a locked chain are not freed.
        while let Some(found) = unsafe { at.as_ref() } {
            let mut target = new.lock(found.hash).expect("an array is not moved before it is complete");
            target.push_raw(at);
            drop(target);
            at = self.after(at);
        }
    }

    /// Marks the bucket as moved and unlocks it: the chain is final (H1).
    pub(super) fn mark_moved(mut self) {
        self.first = with_bits(self.first, MOVED);
    }
}

impl<K, V> Drop for Locked<'_, K, V> {
    fn drop(&mut self) {
        debug_assert_eq!(bits(self.first) & LOCKED, 0);
        // Release(bucket): the chain, the nodes and, with the mark, the new chains; pairs with Acquire(bucket) in
        // lock() and first().
        self.head.store(self.first, Ordering::Release);
    }
}

/// A node that is in no chain that a new reader is led to.
pub(super) struct Unlinked<K, V>(*mut Node<K, V>);

// SAFETY: it owns the node; keys and values are `Send`.
unsafe impl<K: Send, V: Send> Send for Unlinked<K, V> {}

impl<K, V> Unlinked<K, V> {
    /// # Safety
    /// No reader may be left that could have found the node.
    pub(super) unsafe fn free(self) {
        // SAFETY: from `Box::into_raw` in push(), unlinked once under its bucket's lock.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
