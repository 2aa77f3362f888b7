//! Range lock: ranges of bytes, shared or exclusive; ranges that do not overlap are held at once.
//!
//! # Theory
//! Every request, held or waiting, stands in one table. A new request counts those in the table that conflict
//! with it, its *blockers*, and waits until they are gone. A request that leaves takes one from the count of each
//! that it blocked, and wakes those at zero.
//!
//! ```text
//!   held     A [0, 4) excl         C [8, 12) shared
//!   waiting  B [2, 10) excl  blockers: A, C
//!   waiting  D [9, 11) shared  blockers: B       although C alone would admit it
//!   at once  E [20, 30) excl  blockers: none
//! ```
//!
//! So conflicting requests are served in the order of arrival: no wide range starves, and everything else runs
//! in parallel. A request that nothing blocks does not sleep and wakes nobody.
//!
//! # Clients must
//! Not ask for a range that conflicts with one that the same thread holds: it would wait for itself.
//!
//! # Invariants
//! - R1 a request's `blockers` is the number of earlier conflicting requests in the table;
//! - R2 a request with `blockers == 0` holds its range.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | table | the table's mutex | the table's mutex | data of the range, when nobody waited |
//! | turn | `unlock`: Release store of the waiter's word | `wait`: Acquire load | the same, when somebody did |
//!
//! # Cost
//! lock, unlock: the table's mutex for one pass over the ranges held and waited for *now*, which are as many as
//! threads are at work in the file. The table's line is the shared line of the data path.
//!
//! # Used by
//! Nothing of the product. A file's contents had one for each range of bytes; since pages carry sequence counts of their own
//! (`SeqBytes`) a write takes its page alone, and the file's table is no shared line any more.
//!
//! # Sources
//! Kara, "Implement range locks" (kernel mailing list, 2013), for the counted blockers.

use sluice_sync::Mutex;
use sluice_sync::face::atomic::{AtomicU32, Ordering};
use sluice_sync::face::{CachePadded, SHRUNK, SlotTable, const_new, futex, global, hint, thread};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// Turns that a waiter spins on its word before it sleeps.
const SPIN_BEFORE_SLEEP: u32 = if SHRUNK { 1 } else { 100 };

const WAITING: u32 = 0;
const PARKED: u32 = 1;
const GRANTED: u32 = 2;

global! {
    /// Each thread's word, on which it waits for its turn: for one range at a time. *atomic (turn)*
    static TURNS: SlotTable<CachePadded<AtomicU32>> = SlotTable::new();
}

#[derive(Debug)]
struct NumberedRange {
    /// Requests are numbered in the order of arrival. *immutable*
    number: u64,
    /// *immutable*
    range: Range<u64>,
    /// *immutable*
    exclusive: bool,
    /// How many earlier requests must go first (R1).
    blockers: u32,
    /// The thread that waits, if `blockers` is not 0. *immutable*
    slot: u32,
}

impl NumberedRange {
    fn conflicts_with(&self, range: &Range<u64>, exclusive: bool) -> bool {
        let start = self.range.start.max(range.start);
        let end = self.range.end.min(range.end);
        (exclusive || self.exclusive) && start < end
    }
}

#[derive(Debug)]
struct NumberedRanges {
    /// In no order.
    requests: Vec<NumberedRange>,
    /// The next request's number.
    next: u64,
}

/// Locks on ranges of one object, such as a file's bytes.
#[derive(Debug)]
pub struct RangeLock {
    table: Mutex<NumberedRanges>,
}

/// A held range; released when dropped.
#[must_use = "the range is released at once when the guard is dropped"]
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    number: u64,
    /// Holders are kept by thread, so a guard stays on its thread.
    marker: PhantomData<*const ()>,
}

impl RangeLock {
    const_new! {
        /// A lock of which no range is held.
        pub fn new() -> Self {
            RangeLock { table: Mutex::new(NumberedRanges { requests: Vec::new(), next: 0 }) }
        }
    }

    /// Holds `range` together with other readers of it; sleeps while a writer before us has part of it. An empty
    /// range conflicts with nothing.
    pub fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, false)
    }

    /// Holds `range` alone; sleeps while anybody before us has part of it.
    pub fn write(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, true)
    }

    /// Holds `range` together with other readers of it; `None` if a writer before us has part of it.
    pub fn try_read(&self, range: Range<u64>) -> Option<RangeGuard<'_>> {
        self.try_lock(range, false)
    }

    /// Holds `range` alone; `None` if anybody before us has part of it.
    pub fn try_write(&self, range: Range<u64>) -> Option<RangeGuard<'_>> {
        self.try_lock(range, true)
    }

    fn lock(&self, range: Range<u64>, exclusive: bool) -> RangeGuard<'_> {
        RangeGuard { lock: self, number: self.enter(&range, exclusive), marker: PhantomData }
    }

    fn try_lock(&self, range: Range<u64>, exclusive: bool) -> Option<RangeGuard<'_>> {
        let number = self.try_enter(&range, exclusive)?;
        Some(RangeGuard { lock: self, number, marker: PhantomData })
    }

    /// Adds a request, waits until it holds its range, and returns its number.
    fn enter(&self, range: &Range<u64>, exclusive: bool) -> u64 {
        let mut table = self.table.lock();
        let blockers = table.blockers(range, exclusive);
        let slot = if blockers == 0 { 0 } else { thread::slot() };
        if blockers > 0 {
            // Relaxed: the table's mutex publishes it to the thread that grants.
            TURNS.get(slot).store(WAITING, Ordering::Relaxed);
        }
        let number = table.add(range.clone(), exclusive, blockers, slot);
        drop(table);
        if blockers > 0 {
            wait(TURNS.get(slot));
        }
        number
    }

    /// Adds a request and returns its number, unless it had to wait.
    fn try_enter(&self, range: &Range<u64>, exclusive: bool) -> Option<u64> {
        let mut table = self.table.lock();
        (table.blockers(range, exclusive) == 0).then(|| table.add(range.clone(), exclusive, 0, 0))
    }

    fn unlock(&self, number: u64) {
        let mut sleepers = Vec::new();
        let mut table = self.table.lock();
        let gone = table.remove(number);
        for request in &mut table.requests {
            if request.number > number && request.conflicts_with(&gone.range, gone.exclusive) {
                request.blockers -= 1;
                if request.blockers == 0 {
                    // Release(turn): what was written under the range; pairs with Acquire(turn) in wait(). Writes of
                    // earlier blockers came to us with the mutex.
                    if TURNS.get(request.slot).swap(GRANTED, Ordering::Release) == PARKED {
                        sleepers.push(request.slot);
                    }
                }
            }
        }
        drop(table);
        // System calls outside the mutex. A waiter may have gone on and wait for something else: spurious there.
        for slot in sleepers {
            futex::wake(TURNS.get(slot), 1);
        }
    }
}

impl NumberedRanges {
    fn blockers(&self, range: &Range<u64>, exclusive: bool) -> u32 {
        let conflicting = self.requests.iter().filter(|request| request.conflicts_with(range, exclusive));
        u32::try_from(conflicting.count()).unwrap_or(u32::MAX)
    }

    fn add(&mut self, range: Range<u64>, exclusive: bool, blockers: u32, slot: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        self.requests.push(NumberedRange { number, range, exclusive, blockers, slot });
        number
    }

    fn remove(&mut self, number: u64) -> NumberedRange {
        let at = self.requests.iter().position(|request| request.number == number);
        self.requests.swap_remove(at.expect("a guard's request is in the table"))
    }
}

/// Waits until the word says that it is our turn.
fn wait(turn: &AtomicU32) {
    for _ in 0..SPIN_BEFORE_SLEEP {
        // Acquire(turn): what was written under the range; pairs with Release(turn) in unlock().
        if turn.load(Ordering::Acquire) == GRANTED {
            return;
        }
        hint::spin_loop();
    }
    // Acquire(turn): as above, also when the exchange fails.
    if turn.compare_exchange(WAITING, PARKED, Ordering::Relaxed, Ordering::Acquire).is_err() {
        return;
    }
    // Acquire(turn): as above.
    while turn.load(Ordering::Acquire) == PARKED {
        futex::wait(turn, PARKED, None);
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.unlock(self.number);
    }
}

impl fmt::Debug for RangeGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeGuard").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Default for RangeLock {
    fn default() -> Self {
        RangeLock::new()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use sluice_sync::atomic::AtomicU64;

    #[test]
    fn disjoint_ranges_and_readers_are_held_at_once() {
        let lock = RangeLock::new();
        let (_a, _b) = (lock.write(0..10), lock.write(10..20));
        let (_c, _d) = (lock.read(20..30), lock.read(25..35));
        assert!(lock.try_write(9..11).is_none() && lock.try_write(29..30).is_none());
        assert!(lock.try_read(5..6).is_none() && lock.try_read(20..22).is_some());
        let _empty = lock.try_write(5..5).expect("an empty range conflicts with nothing");
    }

    #[test]
    fn a_later_reader_does_not_pass_a_waiting_writer() {
        let lock = RangeLock::new();
        let reader = lock.read(0..10);
        thread::scope(|scope| {
            let writer = scope.spawn(|| drop(lock.write(0..20)));
            while lock.table.lock().requests.len() < 2 {
                thread::yield_now();
            }
            assert!(lock.try_read(5..6).is_none(), "the writer came first");
            assert!(lock.try_read(20..30).is_some());
            drop(reader);
            writer.join().expect("the writer ends");
        });
        assert!(lock.table.lock().requests.is_empty());
    }

    #[test]
    fn overlapping_writers_exclude_each_other_byte_by_byte() {
        let lock = RangeLock::new();
        let bytes: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let rounds = if SHRUNK { 10 } else { 5_000 };
        thread::scope(|scope| {
            for step in [3usize, 5, 7, 11] {
                let (lock, bytes) = (&lock, &bytes);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let start = round * step % 12;
                        let _range = lock.write(start as u64..start as u64 + 4);
                        for byte in &bytes[start..start + 4] {
                            // Relaxed, in two steps: only the range keeps others out.
                            let value = byte.load(Ordering::Relaxed);
                            byte.store(value + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let total: u64 = bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).sum();
        assert_eq!(total, 4 * 4 * rounds as u64);
    }
}
