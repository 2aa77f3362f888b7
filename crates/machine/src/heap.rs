//! Heap: an allocator under which two objects of a simulated run never share a line.
//!
//! # Theory
//! The allocator of the host puts small objects side by side, elsewhere in every process. On the machine
//! that would be false sharing by chance, and another count of cycles each time. A program that wants the same
//! counts in every process, or wants to know which lines two activities share for a reason, takes this heap:
//!
//! ```
//! #[global_allocator]
//! static HEAP: sluice_machine::Heap = sluice_machine::Heap;
//! ```
//!
//! On a simulated CPU, and while [`Machine::prepare`](crate::Machine::prepare) sets up, memory comes from an arena in
//! pieces of whole lines, as from an allocator with a cache for each CPU. Everywhere else it comes from the system, for
//! the price of one look at a thread-local. That a piece is an arena's shows in its address. Memory that is given back
//! between runs belongs to no CPU, and goes to the next CPU that has no free memory of its own.
//!
//! Each thread of the host has an arena: what a machine gets does not depend on those that others run meanwhile. A piece
//! goes to the arena of the thread that gives it back.
//!
//! # Invariants
//! - I1: chunks are never given back, so an address in a chunk stays an arena's.
//! - I2: a piece is on one free list, of its size, or with a user.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cpu::{cpu, in_simulation, on_machine};
use crate::cpu_set::CPUS_MAX;
use crate::engine::LINE_BYTES;

/// Bytes of a chunk, which the host backs with memory as it is touched.
const CHUNK_BYTES: usize = 64 << 20;
const CHUNKS_MAX: usize = 256;
/// Pieces are powers of two from a line to this; larger ones come from the system, which maps whole pages.
const PIECE_MAX: usize = 1 << 20;
const SIZES: usize = (PIECE_MAX / LINE_BYTES).ilog2() as usize + 1;

/// Where chunks begin, those of all arenas; 0: none yet. *atomic (set once)*
static CHUNKS: [AtomicUsize; CHUNKS_MAX] = [const { AtomicUsize::new(0) }; CHUNKS_MAX];

/// As many as there are chunks, since each needs one: of more threads that simulate, some share an arena.
static ARENAS: [Mutex<Arena>; CHUNKS_MAX] = [const { Mutex::new(Arena::new()) }; CHUNKS_MAX];
/// How many threads have an arena.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of this thread's arena, once it needed an arena.
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A part of the memory. *All protected by its lock in `ARENAS`*
struct Arena {
    /// The beginning of the memory that was never given out.
    next: usize,
    /// The end of that memory.
    end: usize,
    /// For each [`owner`] and size the address of the first free piece, which holds that of the next. A CPU gets its
    /// freed pieces again first: no line moves between CPUs for the allocator's sake.
    free: [[usize; SIZES]; 1 + CPUS_MAX],
}

/// The arena of the calling thread.
fn arena() -> MutexGuard<'static, Arena> {
    let mine = MINE.get().unwrap_or_else(|| {
        // Relaxed: only that the numbers differ matters.
        let new = THREADS.fetch_add(1, Ordering::Relaxed) % ARENAS.len();
        MINE.set(Some(new));
        new
    });
    ARENAS[mine].lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator that gives every object lines of its own, and the same ones in every process: see above.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// Which free list serves `layout`; `None`: the system does.
fn size_of_piece(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(LINE_BYTES).next_power_of_two();
    (bytes <= PIECE_MAX).then(|| (bytes / LINE_BYTES).ilog2() as usize)
}

fn in_arena(address: usize) -> bool {
    for chunk in &CHUNKS {
        // Relaxed: a piece comes from a thread that saw its chunk and those before, and handing it over publishes all of it.
        let start = chunk.load(Ordering::Relaxed);
        if start == 0 {
            return false;
        }
        if (start..start + CHUNK_BYTES).contains(&address) {
            return true;
        }
    }
    false
}

/// Whose pieces are given back off the machine.
const NOBODY: usize = 0;

/// The owner of a piece that the caller gives back.
fn owner() -> usize {
    if on_machine() { 1 + cpu() } else { NOBODY }
}

impl Arena {
    const fn new() -> Arena {
        Arena { next: 0, end: 0, free: [[0; SIZES]; 1 + CPUS_MAX] }
    }

    /// A free piece that the caller may have, or null.
    fn take_free(&mut self, size: usize) -> *mut u8 {
        let of = if self.free[owner()][size] != 0 { owner() } else { NOBODY };
        let free = &mut self.free[of][size];
        let piece = ptr::with_exposed_provenance_mut::<usize>(*free);
        if !piece.is_null() {
            // SAFETY: the piece is free (I2) and at least a line long; give_back() wrote the link there.
            *free = unsafe { piece.read() };
        }
        piece.cast()
    }

    /// A piece of `LINE_BYTES << size` bytes at a multiple of its size, or null.
    fn take(&mut self, size: usize) -> *mut u8 {
        let piece = self.take_free(size);
        if !piece.is_null() {
            return piece;
        }
        let bytes = LINE_BYTES << size;
        let mut start = self.next.next_multiple_of(bytes);
        if start + bytes > self.end {
            if !self.grow() {
                return ptr::null_mut();
            }
            start = self.next.next_multiple_of(bytes);
        }
        self.next = start + bytes;
        ptr::with_exposed_provenance_mut(start)
    }

    fn grow(&mut self) -> bool {
        let layout = Layout::from_size_align(CHUNK_BYTES, PIECE_MAX).expect("powers of two");
        // SAFETY: the layout is not empty.
        let start = unsafe { System.alloc(layout) };
        if start.is_null() {
            return false;
        }
        let address = start.expose_provenance();
        // Relaxed, both: see in_arena().
        let claim = |chunk: &AtomicUsize| {
            chunk.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if !CHUNKS.iter().any(claim) {
            // SAFETY: from the system with this layout, and known to nobody.
            unsafe { System.dealloc(start, layout) };
            return false;
        }
        (self.next, self.end) = (address, address + CHUNK_BYTES);
        true
    }

    fn give_back(&mut self, piece: *mut u8, size: usize) {
        let free = &mut self.free[owner()][size];
        // SAFETY: the caller had the piece from take() and gives up all use of it; it is a line or more, aligned.
        unsafe { piece.cast::<usize>().write(*free) };
        *free = piece.expose_provenance();
    }
}

// SAFETY: pieces are as long and as aligned as asked (size_of_piece), disjoint (I2), and stay valid until given
// back; memory that is not the arena's is the system's, with the layout that the caller gave.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if in_simulation()
            && let Some(size) = size_of_piece(layout)
        {
            let piece = arena().take(size);
            if !piece.is_null() {
                return piece;
            }
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if in_arena(memory.addr()) {
            let size = size_of_piece(layout).expect("only pieces lie in the arena");
            arena().give_back(memory, size);
            return;
        }
        // SAFETY: it is not the arena's, so it is the system's, and the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !in_arena(memory.addr()) && !in_simulation() {
            // SAFETY: as in dealloc().
            return unsafe { System.realloc(memory, layout, bytes) };
        }
        // SAFETY: the caller promises that `bytes` fits a layout of this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: `wanted` is not empty, by the caller's promise; both blocks are live, different, and as long
        // as the shorter of the two; the old one is given up with the layout that it came with.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                ptr::copy_nonoverlapping(memory, new, layout.size().min(bytes));
                self.dealloc(memory, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Machine;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    #[test]
    fn pieces_of_a_simulation_are_whole_lines_and_go_back_from_anywhere() {
        let layout = Layout::from_size_align(24, 8).unwrap();
        let machine = Machine::named("uma-2");
        let take = || {
            // SAFETY: the layout is not empty.
            unsafe { Heap.alloc(layout) }
        };
        let pieces: Vec<*mut u8> = machine.prepare(1, || (0..100).map(|_| take()).collect());
        let mut lines: Vec<usize> = pieces.iter().map(|piece| piece.addr() / LINE_BYTES).collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 100);
        assert!(pieces.iter().all(|piece| in_arena(piece.addr())));
        for piece in pieces {
            // SAFETY: each was taken with this layout and is given back once.
            unsafe { Heap.dealloc(piece, layout) };
        }
        let outside = take();
        assert!(!in_arena(outside.addr()));
        // SAFETY: as above.
        unsafe { Heap.dealloc(outside, layout) };
    }

    #[test]
    fn what_a_run_leaves_and_is_dropped_after_it_serves_every_cpu_of_the_next() {
        let layout = Layout::from_size_align(24, 8).unwrap();
        let run = || {
            let pieces = RefCell::new(BTreeSet::new());
            Machine::named("uma-2").run(2, |_| {
                // SAFETY: the layout is not empty.
                let taken = (0..20).map(|_| unsafe { Heap.alloc(layout) });
                pieces.borrow_mut().extend(taken);
            });
            let pieces = pieces.into_inner();
            // SAFETY: each was taken with this layout and is given back once.
            pieces.iter().for_each(|&piece| unsafe { Heap.dealloc(piece, layout) });
            pieces
        };
        let first = run();
        assert!(first.len() == 40 && first == run());
    }

    #[test]
    fn a_machine_gets_nothing_that_another_thread_gave_back() {
        let layout = Layout::from_size_align(24, 8).unwrap();
        let run = move || {
            let piece = Cell::new(0);
            Machine::named("uma-2").run(1, |_| {
                // SAFETY: the layout is not empty; what was taken with it is given back once.
                unsafe {
                    let taken = Heap.alloc(layout);
                    piece.set(taken.addr());
                    Heap.dealloc(taken, layout);
                }
            });
            piece.get()
        };
        let mine = run();
        assert_ne!(std::thread::spawn(run).join().unwrap(), mine);
        assert_eq!(run(), mine);
    }

    #[test]
    fn contents_survive_a_move_between_the_arena_and_the_system() {
        let machine = Machine::named("uma-2");
        let layout = Layout::from_size_align(100, 4).unwrap();
        // SAFETY: the layouts are not empty; each block is given up once, with its last layout; only bytes
        // that were written are read.
        unsafe {
            let small = machine.prepare(1, || Heap.alloc(layout));
            small.write_bytes(7, 100);
            let large = machine.prepare(1, || Heap.realloc(small, layout, 4 << 20));
            assert!(!in_arena(large.addr()));
            let layout = Layout::from_size_align(4 << 20, 4).unwrap();
            let small = Heap.realloc(large, layout, 50);
            assert!((0..50).all(|at| *small.add(at) == 7));
            Heap.dealloc(small, Layout::from_size_align(50, 4).unwrap());
        }
    }
}
