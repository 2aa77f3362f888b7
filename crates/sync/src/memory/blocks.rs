//! Blocks: memory kept by the thread that made it for the next object of its size that it makes.
//!
//! # Theory
//! Files are made, opened, closed and removed all the time, and each time objects come and go. They are found dead in
//! batches, of an epoch or of a grace period, more than an allocator's own cache of a thread holds; so a thread keeps blocks
//! of each size itself, up to a bound.
//!
//! A block goes home: a thread that frees it *sends* it to the thread that made it, or to the next thread with that one's slot. It
//! is sent in parcels, to a box that its thread empties when it has no block of a size left. The reason is that a CPU prefetches
//! memory near what it uses. When some threads have ended and others have freed what they left, the blocks of two threads lie
//! among each other, and each CPU takes lines from the other that it never uses. Between two chips that halves the gain of a second
//! thread (docs/measurements.md, section 22).
//!
//! On simulated machines, where allocation costs nothing and a run must not depend on the one before it, under loom, under Miri and
//! with `--cfg sluice_unpooled` nothing is kept.
//!
//! # Cost
//! A block that the own thread made: lines of that thread. Another's: one mutex for [`PARCEL`] blocks, and one for all that have come
//! into the box. A thread that finds the box empty writes nothing. Memory: 4 bytes for each block.
//!
//! # Sources
//! Blocks that go home: Leijen, Zorn and de Moura, "Mimalloc: Free List Sharding in Action" (APLAS 2019).

use crate::face::atomic::{AtomicUsize, Ordering};
use crate::face::cell::UnsafeCell;
use crate::face::{
    CachePadded, DETERMINISTIC, NearTable, SHRUNK, SlotTable, const_new, global, near_table, thread,
};
use crate::{Mutex, MutexGuard, drain};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The alignments of blocks: what the allocator gives anyway, and a line.
const ALIGNMENTS: [usize; 2] = [16, 64];
/// Sizes are rounded up to so much more than a multiple of the alignment: allocators keep 8 bytes of their own before
/// each block.
const BEYOND: [usize; 2] = [8, 56];
/// How many sizes there are of each alignment: larger blocks are not kept.
const SIZES: usize = 32;
/// Whether blocks are kept at all.
const ARE_KEPT: bool = !(DETERMINISTIC || SHRUNK || cfg!(sluice_unpooled));
/// How many blocks of one size a thread keeps.
const KEPT_MAX: usize = 2048;
/// How many of these blocks return to the allocator at once.
const LOAD: usize = KEPT_MAX / 2;
/// How many blocks a thread sends at once.
const PARCEL: usize = 64;
/// How many blocks lie in a box: more that are sent go back to the allocator.
const BOX_MAX: usize = 2 * KEPT_MAX;

/// The trailer of each kept block: the slot of the thread that allocated it.
type Home = u32;

global! {
    static STORE: Store = Store::new();
}

/// All blocks that are kept.
struct Store {
    /// By thread slot. *each of its thread alone*
    own: NearTable<ThreadBlocks>,
    /// By thread slot: what others have sent there.
    boxes: SlotTable<CachePadded<Inbox>>,
}

/// A block of memory that nobody uses.
struct Block(NonNull<u8>);

// SAFETY: it owns memory of the global allocator, which any thread may use and free.
unsafe impl Send for Block {}

/// The blocks that one thread keeps and no other thread accesses.
#[derive(Default)]
struct ThreadBlocks(UnsafeCell<Blocks>);

// SAFETY: only Store::with_own() looks into it, on the thread whose it is.
unsafe impl Sync for ThreadBlocks {}

/// The blocks that a thread keeps.
struct Blocks {
    /// Its own, by alignment and size.
    kept: [[Vec<Block>; SIZES]; ALIGNMENTS.len()],
    /// Blocks of other threads, to be sent.
    parcel: Vec<(Home, BlockKind, Block)>,
}

/// Blocks that others have sent to a thread.
#[derive(Default)]
struct Inbox {
    blocks: Mutex<Vec<(BlockKind, Block)>>,
    /// How many there are. *atomic (hint); written under `blocks`*
    count: AtomicUsize,
}

/// The kind of block that an object of this layout needs.
#[derive(Clone, Copy)]
pub(crate) struct BlockKind {
    /// The shelf for blocks of this kind, by alignment and size; None if such blocks are not kept.
    place: Option<(usize, usize)>,
    layout: Layout,
}

impl BlockKind {
    /// The kind for objects of `layout`, which is not empty.
    pub(crate) const fn of(layout: Layout) -> BlockKind {
        let at = if layout.align() <= ALIGNMENTS[0] { 0 } else { 1 };
        let grain = ALIGNMENTS[at];
        let size = (layout.size() + size_of::<Home>()).saturating_sub(BEYOND[at]).div_ceil(grain);
        match Layout::from_size_align(size * grain + BEYOND[at], grain) {
            Ok(whole) if ARE_KEPT && size < SIZES && layout.align() <= grain => {
                BlockKind { place: Some((at, size)), layout: whole }
            }
            _ => BlockKind { place: None, layout },
        }
    }

    /// Whether blocks of this kind are kept at all.
    fn is_kept(self) -> bool {
        self.place.is_some()
    }

    /// A block: the last that the calling thread was given back, or a new one.
    #[inline]
    pub(crate) fn allocate(self) -> NonNull<u8> {
        let kept = if self.is_kept() { STORE.with_own(|own, _| own.take(self)) } else { None };
        kept.unwrap_or_else(|| self.allocate_elsewhere())
    }

    /// Allocates a block when the calling thread keeps none.
    #[cold]
    fn allocate_elsewhere(self) -> NonNull<u8> {
        if self.is_kept()
            && STORE.open_box()
            && let Some(block) = STORE.with_own(|own, _| own.take(self))
        {
            return block;
        }
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc(self.layout) };
        let block = NonNull::new(block).unwrap_or_else(|| handle_alloc_error(self.layout));
        if self.is_kept() {
            // SAFETY: a new block of this kind, which is kept, and ours.
            unsafe { self.home(block).write(thread::slot()) };
        }
        block
    }

    /// Where a block says whose it is: behind the object.
    ///
    /// # Safety
    /// The block is of this kind, and blocks of this kind are kept.
    unsafe fn home(self, block: NonNull<u8>) -> NonNull<Home> {
        // SAFETY: within the block, by `of()`, which rounds its size up to a multiple of what `Home` is aligned to.
        unsafe { block.add(self.layout.size() - size_of::<Home>()) }.cast()
    }

    /// Keeps `block` for the thread that made it.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate) of an equal kind, and is not used again.
    #[inline]
    pub(crate) unsafe fn free(self, block: NonNull<u8>) {
        if !self.is_kept() {
            // SAFETY: by contract.
            return unsafe { self.give_to_allocator(block) };
        }
        // SAFETY: a block of this kind, by contract, which is kept; written when it was made.
        let home = unsafe { self.home(block).read() };
        let block = Block(block);
        let is_full = STORE.with_own(|own, slot| match home == slot {
            true => own.keep(self, block),
            false => own.pack(home, self, block),
        });
        if is_full {
            self.make_room(home);
        }
    }

    /// Called when the calling thread, which was given a block of this kind with home `home`, holds too many blocks:
    /// its own or foreign ones.
    #[cold]
    fn make_room(self, home: Home) {
        if home != thread::slot() {
            return STORE.send();
        }
        let load = STORE.with_own(|own, _| own.unload(self));
        drain::note_freed(load.len() * self.layout.size());
        // SAFETY: it was kept as blocks of this kind.
        load.into_iter().for_each(|Block(block)| unsafe { self.give_to_allocator(block) });
    }

    /// # Safety
    /// The contract of [`free`](Self::free).
    unsafe fn give_to_allocator(self, block: NonNull<u8>) {
        // SAFETY: by contract.
        unsafe { dealloc(block.as_ptr(), self.layout) };
    }
}

impl Store {
    const_new! {
        /// Nothing is kept.
        fn new() -> Self {
            Store { own: near_table!(ThreadBlocks(UnsafeCell::new(Blocks::new()))), boxes: SlotTable::new() }
        }
    }

    /// Calls `use_it` with the calling thread's blocks and its slot. `use_it` may allocate, and calls no function of
    /// this file except methods of `Blocks`.
    #[inline]
    fn with_own<R>(&self, use_it: impl FnOnce(&mut Blocks, Home) -> R) -> R {
        let slot = thread::slot();
        let own = self.own.get(slot);
        // SAFETY: one thread at a time has a slot, and the next one gets it when the kernel knows this one no more. Only
        // this file calls this function, and never nested: `use_it` calls no function that reaches here.
        own.0.with_mut(|own| use_it(unsafe { &mut *own }, slot))
    }

    /// Sends foreign blocks of the calling thread to their home threads.
    fn send(&self) {
        let mut parcel = self.with_own(|own, _| std::mem::take(&mut own.parcel));
        while let Some((home, ..)) = parcel.last() {
            let home = *home;
            let of_home = parcel.extract_if(.., |(other, ..)| *other == home);
            self.boxes.get(home).put(of_home.map(|(_, kind, block)| (kind, block)));
        }
        // Its memory.
        self.with_own(|own, _| own.parcel = parcel);
    }

    /// Keeps what others have sent to the calling thread. False if there was nothing.
    fn open_box(&self) -> bool {
        let inbox = self.boxes.get(thread::slot());
        // Relaxed: a hint; the mutex publishes the blocks.
        if inbox.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut sent = inbox.lock();
        let is_any = !sent.is_empty();
        self.with_own(|own, _| sent.drain(..).for_each(|(kind, block)| _ = own.keep(kind, block)));
        is_any
    }
}

/// Returns blocks in the boxes that no thread has fetched to the allocator.
#[cfg(not(any(feature = "loom", feature = "sim", miri)))]
pub(crate) fn empty_boxes() {
    for inbox in STORE.boxes.iter() {
        let sent = std::mem::take(&mut *inbox.lock());
        for (kind, Block(block)) in sent {
            drain::note_freed(kind.layout.size());
            // SAFETY: the block was packed with this kind.
            unsafe { kind.give_to_allocator(block) };
        }
    }
}

/// How many bytes lie in boxes.
pub(crate) fn boxed_bytes() -> usize {
    let of_box = |inbox: &CachePadded<Inbox>| {
        inbox.blocks.lock().iter().map(|(kind, _)| kind.layout.size()).sum::<usize>()
    };
    STORE.boxes.iter().map(of_box).sum()
}

impl Default for Blocks {
    fn default() -> Self {
        Blocks::new()
    }
}

impl Blocks {
    const_new! {
        /// Nothing is kept.
        fn new() -> Self {
            Blocks { kept: [const { [const { Vec::new() }; SIZES] }; ALIGNMENTS.len()], parcel: Vec::new() }
        }
    }

    /// A block of `kind` that was kept.
    #[inline]
    fn take(&mut self, kind: BlockKind) -> Option<NonNull<u8>> {
        let (at, size) = kind.place?;
        self.kept[at][size].pop().map(|Block(block)| block)
    }

    /// Keeps `block`, one of `kind`, which are kept. True if the thread now has too many blocks of this kind.
    #[inline]
    fn keep(&mut self, kind: BlockKind, block: Block) -> bool {
        let Some((at, size)) = kind.place else { return false };
        let kept = &mut self.kept[at][size];
        kept.push(block);
        kept.len() > KEPT_MAX
    }

    /// Keeps `block`, one of `kind`, until it is sent to `home`. True if it is time to send them.
    fn pack(&mut self, home: Home, kind: BlockKind, block: Block) -> bool {
        self.parcel.push((home, kind, block));
        self.parcel.len() >= PARCEL
    }

    /// A load of blocks of `kind`, the oldest: what was freed last is still in the CPU's cache.
    fn unload(&mut self, kind: BlockKind) -> Vec<Block> {
        let Some((at, size)) = kind.place else { return Vec::new() };
        self.kept[at][size].drain(..LOAD).collect()
    }
}

impl Inbox {
    /// The blocks, locked to be taken.
    fn lock(&self) -> MutexGuard<'_, Vec<(BlockKind, Block)>> {
        let blocks = self.blocks.lock();
        // Relaxed: as in open_box().
        self.count.store(0, Ordering::Relaxed);
        blocks
    }

    /// Adds `blocks` up to the box's capacity.
    fn put(&self, blocks: impl Iterator<Item = (BlockKind, Block)>) {
        let mut own = self.blocks.lock();
        for (kind, block) in blocks {
            if own.len() < BOX_MAX {
                own.push((kind, block));
            } else {
                drain::note_freed(kind.layout.size());
                // SAFETY: the block was packed with this kind.
                unsafe { kind.give_to_allocator(block.0) };
            }
        }
        // Relaxed: as in open_box().
        self.count.store(own.len(), Ordering::Relaxed);
    }
}

// The interpreter and the address sanitizer are to see each object's memory come and go: nothing is kept there.
#[cfg(all(test, not(any(feature = "loom", miri, sluice_unpooled))))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn addr(block: &Block) -> usize {
        block.0.as_ptr().addr()
    }

    fn make(kind: BlockKind, count: usize) -> Vec<Block> {
        (0..count).map(|_| Block(kind.allocate())).collect()
    }

    fn free(kind: BlockKind, blocks: Vec<Block>) {
        // SAFETY: from `make`, and used by nobody.
        blocks.into_iter().for_each(|Block(block)| unsafe { kind.free(block) });
    }

    #[test]
    fn a_block_goes_home_whoever_frees_it() {
        let kind = const { BlockKind::of(Layout::new::<[u64; 57]>()) };
        // The other thread may have some of a parcel already, and does not send it before it is full.
        let own = make(kind, 2 * PARCEL);
        let made: HashSet<_> = own.iter().map(addr).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                free(kind, own);
                let others = make(kind, PARCEL);
                assert!(others.iter().all(|block| !made.contains(&addr(block))), "the wrong home");
                free(kind, others);
            });
        });
        let again = make(kind, PARCEL);
        assert!(again.iter().all(|block| made.contains(&addr(block))), "from elsewhere");
        free(kind, again);
    }

    #[test]
    fn what_does_not_fit_into_a_box_or_among_what_is_kept_goes_back_to_the_allocator() {
        let kind = const { BlockKind::of(Layout::new::<[u64; 59]>()) };
        let own = make(kind, BOX_MAX + 2 * PARCEL);
        thread::scope(|scope| {
            scope.spawn(|| free(kind, own));
        });
        // Blocks of another kind come to the box too: those of an earlier thread with this slot.
        let inbox = STORE.boxes.get(thread::slot());
        let in_box = || {
            let blocks = inbox.blocks.lock();
            (blocks.len(), blocks.iter().filter(|(other, _)| other.place == kind.place).count())
        };
        let (all, sent) = in_box();
        assert_eq!(all, BOX_MAX);
        free(kind, make(kind, 1));
        assert_eq!(in_box().1, 0);
        let kept = STORE.with_own(|own, _| kind.place.map(|(at, size)| own.kept[at][size].len()));
        assert_eq!(kept, Some(sent - LOAD));
    }
}
