//! Slot tables: one value for every thread slot, at an address that never changes.
//!
//! # Theory
//! Queues link waiting threads by slot number instead of by pointer. A node that lives as long as the
//! program can be looked at, woken and even written late without any question of lifetime, so queues need
//! no `unsafe`; the cost is one more load per hop. Chunk `n` holds `64 << n` values and is made when the
//! first thread of its range appears.

#[cfg(not(feature = "loom"))]
use std::sync::OnceLock;

const FIRST: usize = 64;

/// A value of `T` for every slot, made by `Default` at first use.
pub struct SlotTable<T> {
    /// Chunk `n` begins at slot `64 * (2^n - 1)`. *each set once*
    #[cfg(not(feature = "loom"))]
    chunks: [OnceLock<Box<[T]>>; 24],
    /// *immutable*
    #[cfg(feature = "loom")]
    values: Vec<T>,
}

#[cfg(not(feature = "loom"))]
impl<T: Default> SlotTable<T> {
    /// An empty table.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        SlotTable { chunks: [const { OnceLock::new() }; 24] }
    }

    /// The value of `slot`.
    #[inline]
    pub fn get(&self, slot: u32) -> &T {
        // Most slots are low.
        self.near(slot).unwrap_or_else(|| self.get_far(slot))
    }

    /// As [`get`](Self::get), if `slot` is one of the lowest and there are values of them.
    #[inline]
    pub(crate) fn near(&self, slot: u32) -> Option<&T> {
        self.chunks[0].get()?.get(slot as usize)
    }

    /// As [`get`](Self::get), of any slot.
    #[inline(never)]
    fn get_far(&self, slot: u32) -> &T {
        let at = slot as usize + FIRST;
        let chunk = (at.ilog2() - FIRST.ilog2()) as usize;
        let values = self.chunks[chunk].get_or_init(|| (0..FIRST << chunk).map(|_| T::default()).collect());
        &values[at - (FIRST << chunk)]
    }

    /// The value of `slot` if it was made.
    #[inline]
    pub fn peek(&self, slot: u32) -> Option<&T> {
        self.near(slot).or_else(|| self.peek_far(slot))
    }

    /// As [`peek`](Self::peek), of any slot.
    #[inline(never)]
    fn peek_far(&self, slot: u32) -> Option<&T> {
        let at = slot as usize + FIRST;
        let chunk = (at.ilog2() - FIRST.ilog2()) as usize;
        self.chunks.get(chunk)?.get()?.get(at - (FIRST << chunk))
    }

    /// The values made so far: at least those of every slot that was ever looked up.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.numbered().map(|(_, value)| value)
    }

    /// As [`iter`](Self::iter), each with its slot.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(chunk, values)| {
            let first = ((FIRST << chunk) - FIRST) as u32;
            (first..).zip(values.get().into_iter().flatten())
        })
    }
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

    /// As [`get`](Self::get), if there is such a slot.
    pub(crate) fn near(&self, slot: u32) -> Option<&T> {
        self.values.get(slot as usize)
    }

    /// Every value.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
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
}
