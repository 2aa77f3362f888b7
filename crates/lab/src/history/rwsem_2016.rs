//! The rwsem of 2016, as it was when directories went from a mutex to it.
//!
//! # Theory
//! A count says whether the lock is taken and whether anybody sleeps; the owner stands in a word of its own,
//! signed after the lock was taken and emptied before it is released. Three habits cost it:
//! - a writer that finds the lock taken and the owner empty does not spin: readers might have the lock;
//! - a spinner whose owner leaves looks at the count at once, and if the lock is not free yet it gives up;
//! - as long as somebody sleeps every unlock wakes the first sleeper, though a spinner is about to take the
//!   lock: the sleeper finds it taken and sleeps again.
//!
//! So a few spins that end early (1% with unlink1, against 0.05% under the mutex) put a task to sleep, and from
//! then on every unlock pays for a wake-up.
//!
//! The spinners' line is our MCS lock: without preemption the kernel's is the same. The list of sleepers is
//! behind our queued spin lock.
//!
//! # Sources
//! kernel/locking/rwsem-xadd.c of Linux 4.6, and the mails of 2016 on unlink1.

use super::sync::atomic::{AtomicU32, Ordering};
use super::sync::face::{futex, hint, thread};
use super::sync::{CachePadded, SlotTable};
use super::zoo::{Mcs, Queued, RawSpinLock, SpinLock};
use std::collections::VecDeque;

const WRITER: u32 = 1 << 0;
const WAITING: u32 = 1 << 1;
const READER: u32 = 1 << 2;
const ACTIVE: u32 = !WAITING;

/// The initial states.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

// Relaxed below where an owner is read or written: a hint. SeqCst elsewhere: the machine is sequentially
// consistent, and elsewhere nothing has to be argued that the source does not ask about.

struct Sleeper {
    slot: u32,
    reads: bool,
}

/// The lock.
pub struct Rwsem2016 {
    /// How many hold it, and whether any thread sleeps. *atomic*
    count: AtomicU32,
    /// The writer's slot plus one, or 0. *written by the writer*
    owner: AtomicU32,
    /// The thread that has this looks at `owner` and `count`; the others line up.
    spinner: Mcs,
    /// First come first.
    sleepers: SpinLock<VecDeque<Sleeper>, Queued>,
    /// For each thread whether it sleeps. *atomic*
    states: SlotTable<CachePadded<AtomicU32>>,
}

impl Default for Rwsem2016 {
    fn default() -> Self {
        Rwsem2016 {
            count: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            spinner: Mcs::new(),
            sleepers: SpinLock::new(VecDeque::new()),
            states: SlotTable::new(),
        }
    }
}

impl Rwsem2016 {
    /// Locks for writing.
    pub fn write(&self) {
        let free = self.count.compare_exchange(0, WRITER, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !free && !self.spin() {
            self.sleep_to_write();
        }
        self.owner.store(thread::slot() + 1, Ordering::Relaxed);
    }

    /// Unlocks after [`write`](Self::write).
    pub fn unlock_write(&self) {
        self.owner.store(0, Ordering::Relaxed);
        self.let_go(WRITER);
    }

    /// Locks for reading.
    pub fn read(&self) {
        if self.count.fetch_add(READER, Ordering::SeqCst) & (WRITER | WAITING) != 0 {
            self.sleep_to_read();
        }
    }

    /// Unlocks after [`read`](Self::read).
    pub fn unlock_read(&self) {
        self.let_go(READER);
    }

    fn let_go(&self, what: u32) {
        let now = self.count.fetch_sub(what, Ordering::SeqCst) - what;
        if now == WAITING {
            self.wake(&mut self.sleepers.lock());
        }
    }

    /// Optimistic spinning. True if the lock was taken.
    fn spin(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == 0 && self.count.load(Ordering::SeqCst) & ACTIVE != 0 {
            return false;
        }
        let line = self.spinner.lock();
        let taken = self.spin_as_first();
        self.spinner.unlock(line);
        taken
    }

    fn spin_as_first(&self) -> bool {
        loop {
            let owner = self.owner.load(Ordering::Relaxed);
            if owner != 0 && hint::spin_until(&self.owner, Ordering::Relaxed, |now| now != owner) == 0 {
                // The lock is free, or readers have it: so it was thought.
                if self.count.load(Ordering::SeqCst) & ACTIVE != 0 {
                    return false;
                }
            }
            let count = self.count.load(Ordering::SeqCst);
            if count & ACTIVE == 0
                && self
                    .count
                    .compare_exchange(count, count | WRITER, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            {
                return true;
            }
            hint::spin_loop();
        }
    }

    fn state(&self) -> &AtomicU32 {
        self.states.get(thread::slot())
    }

    #[cold]
    fn sleep_to_write(&self) {
        let mut sleepers = self.sleepers.lock();
        sleepers.push_back(Sleeper { slot: thread::slot(), reads: false });
        self.count.fetch_or(WAITING, Ordering::SeqCst);
        let state = self.state();
        state.store(ASLEEP, Ordering::SeqCst);
        loop {
            let last = sleepers.len() == 1;
            let new = WRITER | if last { 0 } else { WAITING };
            if self.count.compare_exchange(WAITING, new, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                let me = sleepers.iter().position(|sleeper| sleeper.slot == thread::slot());
                me.and_then(|me| sleepers.remove(me));
                return state.store(AWAKE, Ordering::SeqCst);
            }
            drop(sleepers);
            loop {
                futex::wait(state, ASLEEP, None);
                state.store(ASLEEP, Ordering::SeqCst);
                if self.count.load(Ordering::SeqCst) & ACTIVE == 0 {
                    break;
                }
            }
            sleepers = self.sleepers.lock();
        }
    }

    #[cold]
    fn sleep_to_read(&self) {
        let mut sleepers = self.sleepers.lock();
        let state = self.state();
        state.store(ASLEEP, Ordering::SeqCst);
        sleepers.push_back(Sleeper { slot: thread::slot(), reads: true });
        self.count.fetch_or(WAITING, Ordering::SeqCst);
        let now = self.count.fetch_sub(READER, Ordering::SeqCst) - READER;
        if now & ACTIVE == 0 {
            self.wake(&mut sleepers);
        }
        drop(sleepers);
        // The thread that woke us has counted us in.
        while state.load(Ordering::SeqCst) == ASLEEP {
            futex::wait(state, ASLEEP, None);
        }
    }

    /// Wakes the first sleeper if it wants to write, or lets the readers in that stand before the first writer.
    fn wake(&self, sleepers: &mut VecDeque<Sleeper>) {
        let Some(first) = sleepers.front() else { return };
        if !first.reads {
            return self.rouse(first.slot);
        }
        let readers = sleepers.iter().take_while(|sleeper| sleeper.reads).count();
        // Held off by our count no writer can come between. A writer may have come before: its release wakes the
        // sleepers then.
        let before = self.count.fetch_add(readers as u32 * READER, Ordering::SeqCst);
        if before & WRITER != 0 {
            self.let_go_of_some(readers as u32 * READER, sleepers);
            return;
        }
        let granted: Vec<Sleeper> = sleepers.drain(..readers).collect();
        if sleepers.is_empty() {
            self.count.fetch_and(!WAITING, Ordering::SeqCst);
        }
        granted.iter().for_each(|sleeper| self.rouse(sleeper.slot));
    }

    /// Takes a grant back that a writer was faster than; wakes if that writer has gone meanwhile.
    fn let_go_of_some(&self, what: u32, sleepers: &mut VecDeque<Sleeper>) {
        if self.count.fetch_sub(what, Ordering::SeqCst) - what == WAITING {
            self.wake(sleepers);
        }
    }

    fn rouse(&self, slot: u32) {
        let state = self.states.get(slot);
        if state.swap(AWAKE, Ordering::SeqCst) == ASLEEP {
            futex::wake(state, 1);
        }
    }
}
