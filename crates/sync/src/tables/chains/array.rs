//! Arrays of buckets: heads with a lock bit and a moved bit, and the sorted chains of nodes behind them.
//!
//! ```text
//!   head:  | pointer to the first node ............... | NOTED | MOVED | LOCKED |
//! ```
//!
//! Nodes are at least eight bytes aligned, so the three low bits of a pointer are free.

use super::progress::Progress;
use super::ready::ReadyWord;
use super::used::{Seen, Used};
use super::{Bucket, Node};
use crate::face::atomic::{AtomicPtr, Ordering};
use crate::face::{SHRUNK, cpu, hint, thread};
use crate::percpu::PerCpu;
use crate::rcu::Guard;
use std::ptr;

/// Somebody changes the chain.
const LOCKED: usize = 1;
/// The chain's nodes are in the next array.
const MOVED: usize = 2;
/// It is noted that the bucket was used: a thread that fills it again need not look at [`Used`]'s line.
const NOTED: usize = 4;
/// The address that stands for a forbidden successor: no array is ever there.
const CLOSED: usize = 1;
/// An array of at most so many buckets, ...
const COUNTING_BUCKETS: usize = if SHRUNK { 1 } else { 256 };
/// ... or up to this many for each CPU, counts in each bucket; a larger array has a count for each CPU.
const COUNTING_BUCKETS_A_CPU: usize = if SHRUNK { 0 } else { 64 };
/// An array that has more than so many times the buckets of the one before was not asked for by a number of nodes.
const DENSE_GROWTH: usize = if SHRUNK { 1 } else { 4 };
/// A thread that waits for a bucket looks after 1, 2, 4, ... turns, but not more rarely than after two to the power of this, ...
const PAUSE_BITS: u32 = if SHRUNK { 1 } else { 6 };
/// ... and after so many looks does something else first.
const LOOKS: u32 = 8;
/// A thread that waits for a bucket about to be moved leaves it, for so many looks, to the thread that moves it: one among
/// hundreds would not get it for a long time, and all of them wait for the larger array.
const LOOKS_LEFT_TO_MOVER: u32 = if SHRUNK { 2 } else { 64 };

/// The result of an attempt to lock a bucket.
pub(super) enum Attempt<'a, N: Node> {
    Locked(LockedBucket<'a, N>),
    /// It is moved to the next array.
    Moved,
    /// Somebody else still has it locked.
    Busy,
}

/// An array of buckets. Bucket `n` has the places whose top bits are `n`.
pub(crate) struct Array<N: Node> {
    /// A power of two of them. *each: atomic (bucket)*
    buckets: Box<[N::Bucket]>,
    /// The buckets that a walk over all buckets must visit. *see there*
    used: Used,
    /// Which of a node's links its chains use. *immutable*
    pub(super) link: usize,
    /// Counts of each CPU, if the buckets are too many to count in each. *immutable; each looks after itself*
    cpus: Option<PerCpu<N::Count>>,
    /// The successor to which this array is moved; null while none exists. *atomic (array)*
    next: AtomicPtr<Array<N>>,
    /// When it may be moved. *see there*
    pub(super) ready: ReadyWord,
    /// How far the move has come.
    progress: Progress,
}

fn node<T>(head: *mut T) -> *mut T {
    head.map_addr(|addr| addr & !(LOCKED | MOVED | NOTED))
}

fn with_bits<T>(node: *mut T, bits: usize) -> *mut T {
    node.map_addr(|addr| addr | bits)
}

/// Whether somebody has the bucket locked.
pub(crate) fn is_locked<N: Node>(bucket: &N::Bucket) -> bool {
    // Acquire(bucket): what its last owner counted; pairs with Release(bucket) in Drop.
    bucket.head().load(Ordering::Acquire).addr() & LOCKED != 0
}

/// The pointer that stands for no array, now or later.
pub(super) fn closed<N: Node>() -> *mut Array<N> {
    ptr::without_provenance_mut(CLOSED)
}

/// Whether `array` is neither null nor [`closed`].
pub(super) fn is_array<N: Node>(array: *mut Array<N>) -> bool {
    array.addr() > CLOSED
}

impl<N: Node> Array<N> {
    /// An array of empty buckets that may be moved at once.
    pub(super) fn first_of_all(len: usize) -> Self {
        Self::new(len, Used::all(), 0, ReadyWord::at_once())
    }

    /// An array of empty buckets for a move from this one.
    pub(super) fn successor(&self, len: usize) -> Self {
        let used = if len > DENSE_GROWTH * self.len() { Used::none(len) } else { Used::all() };
        Self::new(len, used, 1 - self.link, ReadyWord::unknown())
    }

    fn new(len: usize, used: Used, link: usize, ready: ReadyWord) -> Self {
        debug_assert!(len.is_power_of_two());
        const { assert!(align_of::<N>() > LOCKED | MOVED | NOTED, "no room for the bits") };
        Array {
            buckets: (0..len).map(|_| N::Bucket::empty()).collect(),
            used,
            link,
            cpus: (len > COUNTING_BUCKETS.max(COUNTING_BUCKETS_A_CPU * cpu::possible()))
                .then(PerCpu::default),
            next: AtomicPtr::new(ptr::null_mut()),
            ready,
            progress: Progress::of(len),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// How far a place is shifted to get its bucket, less one: with one bucket it is all of the place.
    fn shift(&self) -> u32 {
        u64::BITS - 1 - self.buckets.len().ilog2()
    }

    #[inline]
    fn at(&self, place: u64) -> usize {
        (place >> 1 >> self.shift()) as usize
    }

    /// The last place of the bucket that `place` is in.
    pub(crate) fn last_place(&self, place: u64) -> u64 {
        place | u64::MAX >> self.buckets.len().ilog2()
    }

    /// The first place from `place` on whose bucket was ever used: before it there is no node in this array, nor in
    /// the one that it is moved to, of those that were there when `seen` began. None at the end.
    #[inline]
    pub(crate) fn used_from(&self, place: u64, seen: Seen) -> Option<(u64, Seen)> {
        if self.is_dense() { Some((place, seen)) } else { self.used_from_in_bits(place, seen) }
    }

    /// [`used_from`](Self::used_from), of a sparse array.
    #[inline(never)]
    fn used_from_in_bits(&self, place: u64, seen: Seen) -> Option<(u64, Seen)> {
        let at = self.at(place);
        let (used, seen) = self.used.first_from(at, seen)?;
        Some((if used == at { place } else { (used as u64) << self.shift() << 1 }, seen))
    }

    /// The bucket of `place`.
    pub(crate) fn bucket(&self, place: u64) -> &N::Bucket {
        &self.buckets[self.at(place)]
    }

    /// The counter for nodes of the bucket of `place` that come or go on this CPU.
    pub(crate) fn count(&self, place: u64) -> &N::Count {
        self.cpus.as_ref().map_or_else(|| self.bucket(place).count(), PerCpu::here)
    }

    /// The counters of all CPUs; None if the buckets count.
    pub(crate) fn cpus(&self) -> Option<&PerCpu<N::Count>> {
        self.cpus.as_ref()
    }

    /// The buckets that may have been used.
    pub(crate) fn used_buckets(&self) -> impl Iterator<Item = &N::Bucket> {
        let (mut at, mut seen) = (0, Seen::default());
        std::iter::from_fn(move || {
            (at, seen) = self.used.first_from(at, seen)?;
            at += 1;
            self.buckets.get(at - 1)
        })
    }

    /// The first node of the chain of `place`, or null; `None` if the bucket is moved.
    #[inline]
    pub(crate) fn first(&self, place: u64) -> Option<*mut N> {
        // Acquire(bucket): the chain, or the mark and with it all new chains; pairs with Release(bucket).
        let head = self.buckets[self.at(place)].head().load(Ordering::Acquire);
        (head.addr() & MOVED == 0).then(|| node(head))
    }

    /// The node behind `node` in this array's chain, or null.
    #[inline]
    pub(crate) fn following(&self, node: &N) -> *mut N {
        // Acquire(chain): the nodes behind; pairs with Release(chain) in Locked.
        node.links()[self.link].load(Ordering::Acquire)
    }

    /// The array that this one is being moved to.
    #[inline]
    pub(crate) fn next<'g>(&self, _guard: &'g Guard<'_>) -> Option<&'g Array<N>> {
        let next = self.next_ptr();
        // SAFETY: an array that is freed a grace period after it stopped being the current one, which it has not
        // been yet when this one could be found inside the section.
        is_array(next).then(|| unsafe { &*next })
    }

    /// [`Chains::chain`](super::Chains::chain) from this array on, which was found inside the section.
    #[inline]
    pub(crate) fn chain<'g>(&'g self, place: u64, guard: &'g Guard<'_>) -> Option<(*mut N, &'g Array<N>)> {
        let mut array = self;
        loop {
            match array.first(place) {
                Some(first) => return Some((first, array)),
                None => array = array.next(guard)?,
            }
        }
    }

    /// Begins a move to `next`. False if one has begun already or never will.
    pub(super) fn set_next(&self, next: Box<Array<N>>) -> bool {
        let next = Box::into_raw(next);
        // Release(array): pairs with Acquire(array) in next_ptr().
        let set = self.next.compare_exchange(ptr::null_mut(), next, Ordering::Release, Ordering::Relaxed);
        if set.is_err() {
            // SAFETY: from `Box::into_raw`, and published nowhere.
            drop(unsafe { Box::from_raw(next) });
        }
        set.is_ok()
    }

    /// Sees to it that no move begins. False if a move has begun, or after an earlier call.
    pub(super) fn forbid_next(&self) -> bool {
        // Relaxed: nothing is published; moves are kept out by the exchange alone.
        self.next.compare_exchange(ptr::null_mut(), closed(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Undoes [`forbid_next`](Self::forbid_next).
    pub(super) fn allow_next(&self) {
        self.next.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Says that this array is moved to `next`, whose chains are complete. The caller has forbidden all moves.
    pub(super) fn set_forbidden_next(&self, next: Box<Array<N>>) {
        // Release(array): pairs with Acquire(array) in next_ptr().
        self.next.store(Box::into_raw(next), Ordering::Release);
    }

    /// The address of the array that this one is moved to.
    pub(super) fn next_ptr(&self) -> *mut Array<N> {
        // Acquire(array): pairs with Release(array) in set_next().
        self.next.load(Ordering::Acquire)
    }

    /// Whether a walk over all buckets looks at each, and not at those alone that were used.
    pub(crate) fn is_dense(&self) -> bool {
        self.used.are_all()
    }

    /// How far the move has come.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Locks the bucket of `place`; `None` if it is moved.
    pub(super) fn lock(&self, place: u64) -> Option<LockedBucket<'_, N>> {
        self.lock_at(self.at(place))
    }

    /// Locks bucket `at`, to move it; `None` if it is moved.
    pub(super) fn lock_at(&self, at: usize) -> Option<LockedBucket<'_, N>> {
        loop {
            // Always with short pauses: it waits for all others.
            match self.attempt_at(at, &mut 0, || false) {
                Attempt::Locked(bucket) => return Some(bucket),
                Attempt::Moved => return None,
                Attempt::Busy => thread::yield_now(),
            }
        }
    }

    /// Tries for a while to lock the bucket of `place`; `looks` were made at it before.
    pub(super) fn attempt(&self, place: u64, looks: &mut u32) -> Attempt<'_, N> {
        let at = self.at(place);
        self.attempt_at(at, looks, || self.progress.is_claimed(at))
    }

    /// Tries for a while to lock bucket `at`, which a waiting thread leaves to another while `is_wanted`.
    #[inline]
    fn attempt_at(&self, at: usize, looks: &mut u32, is_wanted: impl Fn() -> bool) -> Attempt<'_, N> {
        let head = self.buckets[at].head();
        loop {
            // Acquire(bucket): a mark is followed to the next array, as in first().
            let now = head.load(Ordering::Acquire);
            if now.addr() & MOVED != 0 {
                return Attempt::Moved;
            }
            let is_left = (1..LOOKS_LEFT_TO_MOVER).contains(looks) && is_wanted();
            let locked = with_bits(now, LOCKED);
            // Acquire(bucket): the chain as the last owner left it; pairs with Release(bucket) in Drop.
            if now.addr() & LOCKED == 0
                && !is_left
                && head.compare_exchange(now, locked, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Attempt::Locked(self.locked(at, *looks > 0));
            }
            // Each look takes the line from the owner, which is about to write it: the longer this takes, the rarer they are.
            hint::pause(1 << (*looks).min(PAUSE_BITS));
            *looks += 1;
            // The owner may have lost its CPU in the middle of its few instructions.
            if looks.is_multiple_of(LOOKS) {
                return Attempt::Busy;
            }
        }
    }

    /// Locks the bucket of `place` if it is neither locked nor moved.
    #[inline]
    pub(super) fn try_lock(&self, place: u64) -> Option<LockedBucket<'_, N>> {
        self.try_lock_at(self.at(place))
    }

    /// Locks bucket `at` if it is neither locked nor moved.
    #[inline]
    pub(super) fn try_lock_at(&self, at: usize) -> Option<LockedBucket<'_, N>> {
        let head = self.buckets[at].head();
        // Relaxed: only to see whether trying is worth it.
        let now = head.load(Ordering::Relaxed);
        if now.addr() & (MOVED | LOCKED) != 0 {
            return None;
        }
        // Acquire(bucket): as in lock_at().
        head.compare_exchange(now, with_bits(now, LOCKED), Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(self.locked(at, false))
    }

    /// Bucket `at`, which the caller has locked, and `waited` for.
    #[inline(always)]
    fn locked(&self, at: usize, waited: bool) -> LockedBucket<'_, N> {
        LockedBucket { array: self, seat: 2 * at + usize::from(waited) }
    }

    /// Calls `visit` for every node of the buckets that are not moved.
    pub(crate) fn for_each_unmoved(&self, _guard: &Guard<'_>, mut visit: impl FnMut(&N)) {
        for bucket in &self.buckets {
            // Acquire(bucket): as in first().
            let head = bucket.head().load(Ordering::Acquire);
            let mut at = if head.addr() & MOVED == 0 { node(head) } else { ptr::null_mut() };
            // SAFETY: found in a chain inside the section: freed a grace period after it was unlinked (H3).
            while let Some(found) = unsafe { at.as_ref() } {
                visit(found);
                at = self.following(found);
            }
        }
    }

    /// Frees the nodes of all buckets that are not moved; returns the next array.
    ///
    /// # Safety
    /// Nobody else may use this array, the next one or their nodes, now or later.
    pub(super) unsafe fn free_nodes(&self) -> *mut Array<N> {
        for bucket in &self.buckets {
            // Relaxed throughout: the caller is alone.
            let head = bucket.head().load(Ordering::Relaxed);
            let mut at = if head.addr() & MOVED == 0 { node(head) } else { ptr::null_mut() };
            // SAFETY: in the one chain that is not moved, so it is freed once, below.
            while let Some(found) = unsafe { at.as_ref() } {
                let following = found.links()[self.link].load(Ordering::Relaxed);
                // SAFETY: as above; nobody else is left by the caller's contract.
                unsafe { N::free(at) };
                at = following;
            }
        }
        self.next.load(Ordering::Relaxed)
    }
}

/// A bucket whose lock the caller holds; unlocks it when dropped.
///
/// Two words, which registers hold: it is on its way through many hands.
pub(crate) struct LockedBucket<'a, N: Node> {
    pub(crate) array: &'a Array<N>,
    /// Twice the bucket's number, plus one if another thread had the bucket locked at first.
    seat: usize,
}

/// A place in a locked chain: a node, or null at the end, and the node before it, null at the beginning.
pub(crate) struct ChainPlace<N> {
    before: *mut N,
    node: *mut N,
}

impl<N> Clone for ChainPlace<N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for ChainPlace<N> {}

impl<N> ChainPlace<N> {
    /// At the end of any chain; nothing can be put there.
    pub(crate) const END: ChainPlace<N> = ChainPlace { before: ptr::null_mut(), node: ptr::null_mut() };
}

impl<N: Node> LockedBucket<'_, N> {
    /// Whether this is also the bucket of `place`.
    pub(crate) fn covers(&self, place: u64) -> bool {
        self.array.at(place) == self.at()
    }

    fn at(&self) -> usize {
        self.seat / 2
    }

    /// The bucket.
    pub(crate) fn bucket(&self) -> &N::Bucket {
        &self.array.buckets[self.at()]
    }

    /// The head, which nobody else writes while the bucket is locked.
    fn head(&self) -> &'_ AtomicPtr<N> {
        self.bucket().head()
    }

    /// The first node of the chain.
    fn first(&self) -> *mut N {
        // Relaxed: under the bucket's lock (H1).
        node(self.head().load(Ordering::Relaxed))
    }

    /// Whether another thread had the bucket locked at first.
    pub(crate) fn waited(&self) -> bool {
        self.seat % 2 == 1
    }

    /// Whether the chain has no node.
    pub(super) fn is_empty(&self) -> bool {
        self.first().is_null()
    }

    /// The first node whose place is not before `place`, and the number of nodes before it.
    pub(crate) fn seek(&self, place: u64) -> (ChainPlace<N>, usize) {
        let (mut at, mut walked) = (ChainPlace { before: ptr::null_mut(), node: self.first() }, 0);
        while self.get(at).is_some_and(|node| node.place() < place) {
            at = self.step(at);
            walked += 1;
        }
        (at, walked)
    }

    /// The node at `at`; none at the end.
    pub(crate) fn get(&self, at: ChainPlace<N>) -> Option<&N> {
        // SAFETY: nodes of a locked chain are not freed; what was taken out of it is not freed before the thread that did so
        // has unlocked it.
        unsafe { at.node.as_ref() }
    }

    /// The node at `at`, also for the bytes behind it in its allocation; see [`get`](Self::get).
    pub(crate) fn get_raw(&self, at: ChainPlace<N>) -> *const N {
        at.node
    }

    /// The place behind the node at `at`; at the end `at` itself.
    pub(crate) fn step(&self, at: ChainPlace<N>) -> ChainPlace<N> {
        match self.get(at) {
            // Relaxed: under the bucket's lock (H1).
            Some(node) => {
                ChainPlace { before: at.node, node: node.links()[self.array.link].load(Ordering::Relaxed) }
            }
            None => at,
        }
    }

    /// Makes `node` follow what comes before `at`.
    fn link(&mut self, at: ChainPlace<N>, node: *mut N) {
        // SAFETY: null, or in the locked chain.
        match unsafe { at.before.as_ref() } {
            None => {
                // Relaxed: under the bucket's lock (H1).
                let noted = self.head().load(Ordering::Relaxed).addr() & NOTED;
                // Release(bucket): at once, so that a thread that changes two chains decides which change is seen first; pairs
                // with Acquire(bucket) in first().
                self.head().store(with_bits(node, noted | LOCKED), Ordering::Release);
            }
            // Release(chain): a reader that gets to `node` this way must see its contents, although it may have been
            // put in under an earlier owner's lock; pairs with Acquire(chain) in Array::following().
            Some(before) => before.links()[self.array.link].store(node, Ordering::Release),
        }
    }

    /// Puts `node` before the node at `at`, where it belongs by its place.
    ///
    /// # Safety
    /// The node is new and from where [`Node::free`] expects it; or it is in a locked chain of the array before, and
    /// not yet in this one.
    pub(crate) unsafe fn insert(&mut self, at: ChainPlace<N>, node: *mut N) {
        // Relaxed: published by link() or with the head. Readers of a moved chain use the other link.
        // SAFETY: by contract; not freed either way.
        unsafe { &*node }.links()[self.array.link].store(at.node, Ordering::Relaxed);
        self.note_used();
        self.link(at, node);
    }

    fn note_used(&mut self) {
        // Relaxed: under the bucket's lock (H1).
        let head = self.head().load(Ordering::Relaxed);
        if head.addr() & NOTED == 0 {
            self.array.used.note(self.at());
            // Release(bucket): as in link().
            self.head().store(with_bits(node(head), NOTED | LOCKED), Ordering::Release);
        }
    }

    /// Unlocks the bucket, and marks it with `marks`.
    fn unlock(&self, marks: usize) {
        // Relaxed: under the bucket's lock (H1).
        let head = self.head().load(Ordering::Relaxed);
        let marks = marks | (head.addr() & NOTED);
        // Release(bucket): the chain, the nodes and, with the mark, the new chains; pairs with Acquire(bucket) in
        // lock_at() and first().
        self.head().store(with_bits(node(head), marks), Ordering::Release);
    }

    /// Takes the node at `at`, which is not the end, out of the chain.
    pub(crate) fn unlink(&mut self, at: ChainPlace<N>) -> Unlinked<N> {
        let behind = self.step(at).node;
        self.link(at, behind);
        Unlinked(at.node)
    }

    /// Puts the chain's nodes into the buckets of `new` as well, where they count from now on.
    pub(super) fn copy_to(&self, new: &Array<N>) {
        let (mut at, _) = self.seek(0);
        while let Some(node) = self.get(at) {
            let place = node.place();
            let mut target = new.lock(place).expect("an array is not moved before it is complete");
            let (there, _) = target.seek(place);
            // SAFETY: it is in this locked chain, and copied once: a bucket is moved once.
            unsafe { target.insert(there, at.node) };
            node.carry(self.array.count(place), new.count(place));
            drop(target);
            at = self.step(at);
        }
    }

    /// Marks the bucket as moved and unlocks it: the chain is final (H1).
    pub(super) fn mark_moved(mut self) {
        self.note_used();
        self.unlock(MOVED);
        std::mem::forget(self);
    }
}

impl<N: Node> Drop for LockedBucket<'_, N> {
    fn drop(&mut self) {
        self.unlock(0);
    }
}

/// A node that is in no chain that a new reader is led to.
pub(crate) struct Unlinked<N>(*mut N);

// SAFETY: it owns the node, which is `Send`.
unsafe impl<N: Send> Send for Unlinked<N> {}

impl<N: Node> Unlinked<N> {
    /// # Safety
    /// No reader may be left that could have found the node.
    pub(crate) unsafe fn free(self) {
        // SAFETY: unlinked once under its bucket's lock; the rest is the caller's.
        unsafe { N::free(self.0) }
    }
}
