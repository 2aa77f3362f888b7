//! Blocks: memory kept by the thread that freed it for the next object of its size that it makes.
//!
//! # Theory
//! Files are made, opened, closed and removed all the time, and each time objects come and go. They are found dead in
//! batches, of an epoch or of a grace period, more than an allocator's own cache of a thread holds; so a thread keeps blocks
//! of each size itself, up to a bound.
//! What one has too much of is what another lacks: one makes files and another removes them, or finds dead what a thread
//! made that is idle now. So it goes in loads to a *depot* that all share, and those who have none left take a load there.
//! Given back to the allocator it would go to the heap of the thread that made it, under a lock that this one needs too.
//!
//! On simulated machines, where allocation costs nothing and a run must not depend on the one before it, and under
//! loom, nothing is kept.
//!
//! # Cost
//! A block that the own thread keeps: lines of that thread. A load of the depot: one mutex for [`LOAD`] blocks. Who finds
//! the depot empty writes nothing.
//!
//! # Sources
//! Bonwick and Adams, "Magazines and Vmem" (USENIX 2001).

use crate::Mutex;
use crate::face::atomic::{AtomicUsize, Ordering};
use crate::face::cell::UnsafeCell;
use crate::face::{
    CachePadded, DETERMINISTIC, NearTable, SHRUNK, SlotTable, const_new, global, near_table, thread,
};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The alignments of blocks: what the allocator gives anyway, and a line.
const ALIGNMENTS: [usize; 2] = [16, 64];
/// Sizes are rounded up to so much more than a multiple of the alignment: allocators keep 8 bytes of their own before
/// each block.
const BEYOND: [usize; 2] = [8, 0];
/// How many sizes there are of each alignment: larger blocks are not kept.
const SIZES: usize = 32;
/// How many blocks of one size a thread keeps.
const KEPT_MAX: usize = 2048;
/// How many of them change hands at once.
const LOAD: usize = KEPT_MAX / 2;
/// How many loads of one size the depot keeps.
const LOADS_MAX: usize = 8;

global! {
    static STORE: Store = Store::new();
}

/// All blocks that are kept.
struct Store {
    /// By thread slot. *each of its thread alone*
    own: NearTable<Own>,
    /// What threads have freed and do not need. *each shelf protected by its mutex*
    depot: Depot,
}

/// A block of memory that nobody uses.
struct Block(NonNull<u8>);

// SAFETY: it owns memory of the global allocator, which any thread may use and free.
unsafe impl Send for Block {}

/// What one thread keeps, which no other looks at.
#[derive(Default)]
struct Own(UnsafeCell<Blocks>);

// SAFETY: only Store::with_own() looks into it, on the thread whose it is.
unsafe impl Sync for Own {}

/// Blocks by their kinds.
struct Blocks {
    /// By alignment and size.
    kept: [[Vec<Block>; SIZES]; ALIGNMENTS.len()],
}

/// What kind of block an object of this layout needs.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Where blocks of this kind are kept, by alignment and size; nowhere if they are not.
    place: Option<(usize, usize)>,
    layout: Layout,
}

impl Kind {
    /// Of objects of `layout`, which is not empty.
    pub(crate) const fn of(layout: Layout) -> Kind {
        let at = if layout.align() <= ALIGNMENTS[0] { 0 } else { 1 };
        let grain = ALIGNMENTS[at];
        let size = layout.size().saturating_sub(BEYOND[at]).div_ceil(grain);
        match Layout::from_size_align(size * grain + BEYOND[at], grain) {
            Ok(whole) if !DETERMINISTIC && !SHRUNK && size < SIZES && layout.align() <= grain => {
                Kind { place: Some((at, size)), layout: whole }
            }
            _ => Kind { place: None, layout },
        }
    }

    /// Whether blocks of this kind are kept at all.
    fn is_kept(self) -> bool {
        self.place.is_some()
    }

    /// Where loads of this kind are kept.
    fn shelf(self) -> Option<u32> {
        // Lossless: there are few sizes.
        self.place.map(|(at, size)| (at * SIZES + size) as u32)
    }

    /// A block: the last that the calling thread gave back, one of another thread's, or a new one.
    #[inline]
    pub(crate) fn allocate(self) -> NonNull<u8> {
        let kept = if self.is_kept() { STORE.with_own(|own| own.take(self)) } else { None };
        kept.unwrap_or_else(|| self.allocate_elsewhere())
    }

    /// As [`allocate`](Self::allocate), when the calling thread keeps none.
    #[cold]
    fn allocate_elsewhere(self) -> NonNull<u8> {
        if let Some(load) = STORE.depot.take(self) {
            let kept = STORE.with_own(|own| {
                own.refill(self, load);
                own.take(self)
            });
            if let Some(block) = kept {
                return block;
            }
        }
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc(self.layout) };
        NonNull::new(block).unwrap_or_else(|| handle_alloc_error(self.layout))
    }

    /// Keeps `block` for whoever needs one next.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate) of an equal kind, and nobody will use it again.
    #[inline]
    pub(crate) unsafe fn free(self, block: NonNull<u8>) {
        if !self.is_kept() {
            // SAFETY: by contract.
            return unsafe { self.give_to_allocator(block) };
        }
        // SAFETY: by contract.
        let too_many = STORE.with_own(|own| unsafe { own.give(self, block) });
        if too_many {
            self.hand_on();
        }
    }

    /// Gives a load to others, when the calling thread keeps too many.
    #[cold]
    fn hand_on(self) {
        if let Some(load) = STORE.with_own(|own| own.unload(self)) {
            STORE.depot.put(self, load);
        }
    }

    /// # Safety
    /// As [`free`](Self::free).
    unsafe fn give_to_allocator(self, block: NonNull<u8>) {
        // SAFETY: by contract.
        unsafe { dealloc(block.as_ptr(), self.layout) };
    }
}

impl Store {
    const_new! {
        /// Nothing is kept.
        fn new() -> Self {
            Store { own: near_table!(Own(UnsafeCell::new(Blocks::new()))), depot: Depot::new() }
        }
    }

    /// What `use_it` makes of what the calling thread keeps. It may allocate, and calls nothing of this file's but
    /// `Blocks`.
    #[inline]
    fn with_own<R>(&self, use_it: impl FnOnce(&mut Blocks) -> R) -> R {
        let own = self.own.get(thread::slot());
        // SAFETY: one thread at a time has a slot, and the next one gets it when the kernel knows this one no more. All
        // calls are in this file, and none is made within another, as `use_it` calls nothing that does.
        own.0.with_mut(|own| use_it(unsafe { &mut *own }))
    }
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
            Blocks { kept: [const { [const { Vec::new() }; SIZES] }; ALIGNMENTS.len()] }
        }
    }

    /// A block of `kind` that was kept.
    #[inline]
    fn take(&mut self, kind: Kind) -> Option<NonNull<u8>> {
        let (at, size) = kind.place?;
        self.kept[at][size].pop().map(|Block(block)| block)
    }

    /// Keeps `block`. True if these are too many of its kind.
    ///
    /// # Safety
    /// As [`Kind::free`]; the kind is one that is kept.
    #[inline]
    unsafe fn give(&mut self, kind: Kind, block: NonNull<u8>) -> bool {
        let Some((at, size)) = kind.place else { return false };
        let kept = &mut self.kept[at][size];
        kept.push(Block(block));
        kept.len() > KEPT_MAX
    }

    /// A load of blocks of `kind`, the oldest: what was freed last is still in the CPU's cache.
    fn unload(&mut self, kind: Kind) -> Option<Load> {
        let (at, size) = kind.place?;
        Some(self.kept[at][size].drain(..LOAD).collect())
    }

    /// Keeps a load of blocks of `kind`, of which there are none left.
    fn refill(&mut self, kind: Kind, load: Load) {
        if let Some((at, size)) = kind.place {
            self.kept[at][size] = load;
        }
    }
}

/// Blocks of one kind that change hands.
type Load = Vec<Block>;

/// What threads keep for each other.
struct Depot {
    /// By alignment and size.
    shelves: SlotTable<CachePadded<Shelf>>,
}

/// The loads of one kind.
#[derive(Default)]
struct Shelf {
    loads: Mutex<Vec<Load>>,
    /// How many there are. *atomic (hint); written under `loads`*
    count: AtomicUsize,
}

impl Depot {
    const_new! {
        /// Nothing is kept.
        fn new() -> Self {
            Depot { shelves: SlotTable::new() }
        }
    }

    /// A load of `kind`, if there is one.
    fn take(&self, kind: Kind) -> Option<Load> {
        let shelf = self.shelves.get(kind.shelf()?);
        // Relaxed: a hint; the mutex publishes the load.
        if shelf.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut loads = shelf.loads.lock();
        let load = loads.pop();
        // Relaxed: as above.
        shelf.count.store(loads.len(), Ordering::Relaxed);
        load
    }

    /// Keeps `load`, or gives it back to the allocator.
    fn put(&self, kind: Kind, load: Load) {
        let Some(number) = kind.shelf() else { return };
        let shelf = self.shelves.get(number);
        let mut loads = shelf.loads.lock();
        if loads.len() < LOADS_MAX {
            loads.push(load);
            // Relaxed: as in take().
            shelf.count.store(loads.len(), Ordering::Relaxed);
            return;
        }
        drop(loads);
        for Block(block) in load {
            // SAFETY: it was given as one of this kind, and nobody uses it.
            unsafe { kind.give_to_allocator(block) };
        }
    }
}
