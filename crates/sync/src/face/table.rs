//! Slot tables: one value for every thread slot, at an address that never changes.
//!
//! # Theory
//! Queues link waiting threads by slot number instead of by pointer. A node that lives as long as the
//! program can be looked at, woken and even written late without any question of lifetime, so queues need
//! no `unsafe`; the cost is one more load per hop. Chunk `n` holds `64 << n` values and is made when the
//! first thread of its range appears; of large chunks only the piece that it is in.
//!
//! Values that most calls reach stand in a [`NearTable`], which stores the lowest slots' values inline: no pointer is
//! followed. Slots are given out from the lowest on.

use super::{CachePadded, const_new};
#[cfg(not(feature = "loom"))]
use std::sync::OnceLock;

const FIRST: usize = 64;
/// How many values are made at once at most.
#[cfg(not(feature = "loom"))]
const PIECE: usize = 1024;
/// The chunks that are one piece.
#[cfg(not(feature = "loom"))]
const WHOLE: usize = 1 + (PIECE / FIRST).ilog2() as usize;
/// The chunks that are several.
#[cfg(not(feature = "loom"))]
const BROKEN: usize = 24 - WHOLE;

/// Values that are made together.
#[cfg(not(feature = "loom"))]
type Piece<T> = OnceLock<Box<[T]>>;

/// A value of `T` for every slot, made by `Default` at first use.
pub struct SlotTable<T> {
    /// Chunk `n` begins at slot `64 * (2^n - 1)`. *each set once*
    #[cfg(not(feature = "loom"))]
    whole: [Piece<T>; WHOLE],
    /// The chunks behind those. *each set once, with each of its pieces*
    #[cfg(not(feature = "loom"))]
    broken: [OnceLock<Box<[Piece<T>]>>; BROKEN],
    /// *immutable*
    #[cfg(feature = "loom")]
    values: Vec<T>,
}

#[cfg(not(feature = "loom"))]
impl<T: Default> SlotTable<T> {
    /// An empty table.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        SlotTable { whole: [const { OnceLock::new() }; WHOLE], broken: [const { OnceLock::new() }; BROKEN] }
    }

    /// The value of `slot`.
    #[inline]
    pub fn get(&self, slot: u32) -> &T {
        // Most slots are low.
        self.near(slot).unwrap_or_else(|| self.get_far(slot))
    }

    /// The variant of [`get`](Self::get) for the lowest slots, if their chunk exists.
    #[inline]
    fn near(&self, slot: u32) -> Option<&T> {
        self.whole[0].get()?.get(slot as usize)
    }

    /// [`get`](Self::get), of any slot.
    #[inline(never)]
    fn get_far(&self, slot: u32) -> &T {
        let (chunk, at) = place_of(slot);
        let (piece, len) = match chunk.checked_sub(WHOLE) {
            None => (&self.whole[chunk], FIRST << chunk),
            Some(broken) => {
                let pieces = self.broken[broken]
                    .get_or_init(|| (0..(FIRST << chunk) / PIECE).map(|_| OnceLock::new()).collect());
                (&pieces[at / PIECE], PIECE)
            }
        };
        &piece.get_or_init(|| (0..len).map(|_| T::default()).collect())[at % len]
    }

    /// The value of `slot` if it was made.
    #[inline]
    pub fn peek(&self, slot: u32) -> Option<&T> {
        self.near(slot).or_else(|| self.peek_far(slot))
    }

    /// [`peek`](Self::peek), of any slot.
    #[inline(never)]
    fn peek_far(&self, slot: u32) -> Option<&T> {
        let (chunk, at) = place_of(slot);
        match chunk.checked_sub(WHOLE) {
            None => self.whole[chunk].get()?.get(at),
            Some(broken) => self.broken.get(broken)?.get()?[at / PIECE].get()?.get(at % PIECE),
        }
    }

    /// The values made so far: at least those of every slot that was ever looked up.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.numbered().map(|(_, value)| value)
    }

    /// The values made so far, each with its slot; see [`iter`](Self::iter).
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &T)> {
        let first_of = |chunk: usize| ((FIRST << chunk) - FIRST) as u32;
        let whole = (0..).map(first_of).zip(&self.whole);
        let broken = (WHOLE..)
            .map(first_of)
            .zip(&self.broken)
            .flat_map(|(first, pieces)| (first..).step_by(PIECE).zip(pieces.get().into_iter().flatten()));
        whole.chain(broken).flat_map(|(first, values)| (first..).zip(values.get().into_iter().flatten()))
    }
}

/// The chunk of `slot`, and its index within the chunk.
#[cfg(not(feature = "loom"))]
#[inline]
fn place_of(slot: u32) -> (usize, usize) {
    let at = slot as usize + FIRST;
    let chunk = (at.ilog2() - FIRST.ilog2()) as usize;
    (chunk, at - (FIRST << chunk))
}

#[cfg(feature = "loom")]
impl<T: Default> SlotTable<T> {
    /// A table for as many threads as loom has.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let _ = FIRST;
        SlotTable { values: (0..::loom::MAX_THREADS).map(|_| T::default()).collect() }
    }

    /// The value of `slot`.
    pub fn get(&self, slot: u32) -> &T {
        &self.values[slot as usize]
    }

    /// The value of `slot`, if there is such a slot.
    pub(crate) fn peek(&self, slot: u32) -> Option<&T> {
        self.values.get(slot as usize)
    }

    /// Every value.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }
}

/// How many values stand in a [`NearTable`] itself.
pub(crate) const NEAR: usize = if cfg!(feature = "loom") { 0 } else { 32 };

/// A [`SlotTable`] whose values have lines of their own, and whose lowest slots stand in the table itself. Made by `near_table!`.
pub(crate) struct NearTable<T> {
    near: [CachePadded<T>; NEAR],
    /// Values of the slots from `NEAR` on; lower slots are unused.
    far: SlotTable<CachePadded<T>>,
}

impl<T: Default> NearTable<T> {
    const_new! {
        pub(crate) fn of(near: [CachePadded<T>; NEAR]) -> Self {
            NearTable { near, far: SlotTable::new() }
        }
    }

    /// The value of `slot`, if it is one of the lowest. Under loom all slots are near, so that their use is explored.
    #[inline]
    pub(crate) fn near(&self, slot: u32) -> Option<&T> {
        #[cfg(not(feature = "loom"))]
        let value = self.near.get(slot as usize);
        #[cfg(feature = "loom")]
        let value = self.far.peek(slot);
        value.map(|value| &**value)
    }

    /// The value of `slot`.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &T {
        self.near(slot).unwrap_or_else(|| self.far.get(slot))
    }

    /// The value of `slot` if it was made.
    #[inline]
    pub(crate) fn peek(&self, slot: u32) -> Option<&T> {
        self.near(slot).or_else(|| self.far.peek(slot).map(|value| &**value))
    }

    /// The values made so far: at least those of every slot that was ever looked up.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.near.iter().chain(self.far.iter()).map(|value| &**value)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::SHRUNK;
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn every_slot_has_a_value_of_its_own() {
        let table: SlotTable<AtomicU32> = SlotTable::new();
        let (near, far) = if SHRUNK { (20, 1_000) } else { (1_000, 100_000) };
        for slot in (0..near).chain([far]) {
            assert_eq!(table.get(slot).swap(slot + 1, Ordering::Relaxed), 0);
        }
        for slot in (0..near).chain([far]) {
            assert_eq!(table.get(slot).load(Ordering::Relaxed), slot + 1);
        }
        // Chunks that nobody asked for lie between: the numbers go on behind them.
        assert!(table.numbered().any(|(slot, _)| slot == far));
        let used = table.numbered().filter(|(_, value)| value.load(Ordering::Relaxed) != 0);
        assert!(used.into_iter().all(|(slot, value)| value.load(Ordering::Relaxed) == slot + 1));
    }

    #[test]
    fn a_far_slot_does_not_make_all_of_its_chunk() {
        let table: SlotTable<AtomicU32> = SlotTable::new();
        table.get((1 << 20) - 1).store(7, Ordering::Relaxed);
        assert_eq!(table.iter().count(), PIECE);
        let found = table.numbered().find(|(_, value)| value.load(Ordering::Relaxed) == 7);
        assert_eq!(found.map(|(slot, _)| slot), Some((1 << 20) - 1));
        assert!(table.peek((1 << 20) - 1 - PIECE as u32).is_none() && table.peek(3).is_none());
    }
}
