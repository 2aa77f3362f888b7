//! Rwsem: the sleeping reader-writer lock, made so that as a write lock it is worth a mutex.
//!
//! # Theory
//! One word names the owner, as a mutex's does: a writer signs with its name in the step that
//! takes the lock. A spinning writer therefore always knows for which owner; the lock of 2016, whose owner stood
//! in a second word and was empty for a moment, ended the spinning there and lost a quarter to the mutex.
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 63 | `CROWD` | more readers than there can be threads: guards were leaked |
//! | 35..63 | readers | how many readers have the lock, or just tried to (see below) |
//! | 4..35 | writer | the writer's signature, or 0 |
//! | 3 | `WRITER_NEXT` | readers have the lock, and a writer is first of the threads that spin for it |
//! | 2 | `NO_SPIN` | readers have the lock, and somebody has already spun for them in vain |
//! | 1 | `HANDOFF` | nobody new may take the lock: it goes to the first waiter |
//! | 0 | `WAITERS` | the last to let go must wake the first waiter |
//!
//! A reader adds itself with one unconditional add, so that readers do not retry against each other. If the
//! add met a writer, a flag that asks for manners, or waiters, the reader is a *phantom*: it goes to the slow
//! path, which makes it a holder after all or takes it back. A phantom can hold up a writer for a moment;
//! taking it back therefore counts as letting go.
//!
//! A thread that finds the lock taken spins, readers and writers in one line (`SpinnerQueue`), and sleeps when the
//! owner does not run or a bound is reached:
//! ```text
//!   has it:      W1 | R2 R3 | W4 | R5       in line behind them:  R6 R7 W8 R9
//!                     ^ a run of readers goes in together: R3 takes the lock while R2 reads
//! ```
//! A lock under a mutex would let all of these in one by one, at the same cost of handing over; so no mixture
//! of readers and writers does worse than a mutex. Readers that sleep at once do: they are counted in while
//! they wake up, which takes longer than most critical sections, and meanwhile the lock is held by nobody.
//!
//! Which goes first:
//! - a free lock with sleepers may be **stolen** by the first in line or by a first reader: strict first-come
//!   order would let the lock idle while the sleeper wakes;
//! - readers that come while a writer is first in line queue behind it (`WRITER_NEXT`), so that it waits for
//!   the readers that it found and no others; readers do not join others past a sleeper either;
//! - when a sleeping reader's turn comes **all** sleeping readers go together, also those behind writers: groups
//!   of readers kept apart by writers (reader fragmentation) would serialise them;
//! - a first waiter that was bypassed too often sets `HANDOFF`: bypassing is bounded.
//!
//! # Invariants
//! - R1 if the wait queue is not empty, then `WAITERS` is set, or its first is a writer that was signalled and
//!   has not yet tried, or a thread that let go is on its way to wake it;
//! - R2 with `WAITERS` set, the thread that makes writer and readers zero wakes the first waiter;
//! - R3 a writer signs only while there are neither readers nor phantoms; a reader is a holder only if its add
//!   met no writer, or it was granted the lock while there was none;
//! - R4 `WAITERS` and `HANDOFF` change only under the queue's lock;
//! - R5 `WRITER_NEXT` is set only by a writer that is first in line, which takes the lock or clears it again.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | unlock | the access that takes reader or writer off | the access that puts one on | the protected value |
//! | wake | `wait_queue` | `park` | the value, to readers that were granted the lock |
//!
//! # Cost
//! Uncontended: one read-modify-write each way, for readers as for writers.
//!
//! # Sources
//! The kernel's kernel/locking/rwsem.c: non-spinnable state, hand-off, reader stealing, a bound in time for spinning
//! on readers. It let readers spin from 2019 to 2020, each for itself, which split them into small groups;
//! in one line they cannot be split further than they came. The discussion of 2016 about i_mutex and i_rwsem:
//! why spinning must not end at an empty owner.

use crate::face::atomic::{AtomicU64, Ordering};
use crate::face::{Mutant, const_new, seeded, thread};
use crate::spin_policy::{SpinPatience, SpinVerdict};

pub use crate::spin_policy::Pace;
use crate::spinner::{Look, QueuePlace, SpinnerQueue};
use crate::wait_queue::{LockedQueue, WaitQueue, Want, park, wants};
use std::marker::PhantomData;

const WAITERS: u64 = 1 << 0;
const HANDOFF: u64 = 1 << 1;
const NO_SPIN: u64 = 1 << 2;
const WRITER_NEXT: u64 = 1 << 3;
const FLAGS: u64 = WAITERS | HANDOFF | NO_SPIN | WRITER_NEXT;
const WRITER_SHIFT: u32 = 4;
const WRITER: u64 = ((1 << 31) - 1) << WRITER_SHIFT;
const READER: u64 = 1 << 35;
const CROWD: u64 = 1 << 63;

/// The decisions on which designers of reader-writer locks disagree; the lab compares policies.
pub trait RwsemPolicy: Send + Sync + 'static {
    /// Its name in reports.
    const NAME: &'static str;
    /// Readers spin in the same line as writers. Otherwise they sleep at once.
    const READERS_SPIN: bool;
    /// For how long threads spin, and are bypassed.
    const PACE: Pace = Pace::MEASURED;
}

/// The policy of [`crate::RwLock`].
#[derive(Debug)]
pub struct Current;

impl RwsemPolicy for Current {
    const NAME: &'static str = "rwsem";
    const READERS_SPIN: bool = true;
}

/// A reader-writer lock that protects nothing by itself.
pub struct RawRwsem<P: RwsemPolicy = Current> {
    /// See the table above. *atomic (unlock)*
    count: AtomicU64,
    spinners: SpinnerQueue,
    waiters: WaitQueue,
    policy: PhantomData<P>,
}

fn held(count: u64) -> bool {
    count & !FLAGS != 0
}

fn sign() -> u64 {
    u64::from(thread::signature()) << WRITER_SHIFT
}

fn writer_of(count: u64) -> Option<u32> {
    // Lossless: 31 bits.
    (((count & WRITER) >> WRITER_SHIFT) as u32).checked_sub(1)
}

/// Whether a writer may take the lock.
fn admits_writer(count: u64) -> bool {
    !held(count) && count & HANDOFF == 0
}

/// Whether a reader may take the lock. Joining others past a sleeper would keep that out for ever.
fn admits_reader(count: u64) -> bool {
    count & (WRITER | HANDOFF | CROWD) == 0 && (count & WAITERS == 0 || !held(count))
}

impl<P: RwsemPolicy> Default for RawRwsem<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: RwsemPolicy> RawRwsem<P> {
    const_new! {
        /// An unlocked lock.
        pub fn new() -> Self {
            RawRwsem {
                count: AtomicU64::new(0),
                spinners: SpinnerQueue::new(),
                waiters: WaitQueue::new(),
                policy: PhantomData,
            }
        }
    }

    /// Locks for reading.
    ///
    /// # Panics
    /// If a quarter of a thousand million read guards were leaked.
    #[inline]
    pub fn read(&self) {
        if let Err(before) = self.add_reader() {
            self.read_slow(before);
        }
    }

    /// Adds a reader. If nobody objects, it is a holder; else what the add met, see [`read_slow`](Self::read_slow).
    #[inline]
    fn add_reader(&self) -> Result<(), u64> {
        // Acquire(unlock): pairs with Release(unlock) in unlock_write().
        let before = self.count.fetch_add(READER, Ordering::Acquire);
        if before & (WRITER | WAITERS | HANDOFF | WRITER_NEXT | CROWD) == 0 { Ok(()) } else { Err(before) }
    }

    /// Locks for reading if nobody has the lock for writing or waits for it, in one step.
    pub(crate) fn read_uncontended(&self) -> bool {
        let added = self.add_reader().is_ok();
        if !added {
            self.unlock_read();
        }
        added
    }

    /// Locks for reading if that is possible now.
    #[inline]
    pub fn try_read(&self) -> bool {
        // Relaxed: only to see whether trying is worth it.
        if !admits_reader(self.count.load(Ordering::Relaxed)) {
            return false;
        }
        // Acquire(unlock): pairs with Release(unlock) in unlock_write(). Not an exchange: as long as enough
        // readers come and go it would fail.
        let admitted = admits_reader(self.count.fetch_add(READER, Ordering::Acquire));
        if !admitted {
            self.unlock_read();
        }
        admitted
    }

    /// Unlocks after [`read`](Self::read).
    #[inline]
    pub fn unlock_read(&self) {
        // Release(unlock): our reads come before the next writer's writes; pairs with Acquire(unlock) there.
        let now = self.count.fetch_sub(READER, Ordering::Release) - READER;
        if now & WAITERS != 0 && !held(now) {
            self.wake();
        }
    }

    /// Locks for writing.
    #[inline]
    pub fn write(&self) {
        if !self.write_uncontended() {
            self.write_slow();
        }
    }

    /// Locks for writing in one step, if the lock is free and has no waiters.
    #[inline]
    pub(crate) fn write_uncontended(&self) -> bool {
        // Acquire(unlock): pairs with Release(unlock) in both unlocks. A failure publishes nothing.
        self.count.compare_exchange(0, sign(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Locks for writing if the lock is free now.
    #[inline]
    pub fn try_write(&self) -> bool {
        self.take_write()
    }

    /// Unlocks after [`write`](Self::write).
    #[inline]
    pub fn unlock_write(&self) {
        // Release(unlock): the protected value; pairs with Acquire(unlock) in read() and write().
        if self.count.fetch_sub(sign(), Ordering::Release) & WAITERS != 0 {
            self.wake();
        }
    }

    /// Turns a write lock into a read lock: no other writer comes between.
    pub fn downgrade(&self) {
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        // Release(unlock): the protected value, to the readers that come now.
        while let Err(now) = self.count.compare_exchange_weak(
            count,
            (count & !WRITER) + READER,
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            count = now;
        }
        if count & WAITERS != 0 {
            self.wake();
        }
    }

    /// Takes the lock for writing if it is free and not promised to a waiter.
    fn take_write(&self) -> bool {
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        while admits_writer(count) {
            let new = count & WAITERS | sign();
            // Acquire(unlock): pairs with Release(unlock) in both unlocks.
            match self.count.compare_exchange_weak(count, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => count = now,
            }
        }
        false
    }

    /// Takes the lock if that is possible now.
    fn take(&self, want: Want) -> bool {
        match want {
            Want::Read => self.try_read(),
            Want::Write => self.take_write(),
        }
    }

    /// The caller's add met `before`: it is a holder after all, or a phantom that is taken back and waits.
    #[cold]
    fn read_slow(&self, before: u64) {
        if before & CROWD != 0 {
            // Relaxed: takes back what we added.
            self.count.fetch_sub(READER, Ordering::Relaxed);
            panic!("too many readers of one lock: are read guards being leaked?");
        }
        // Stealing. R3: no writer was there, so the add itself made us a holder; it is only a question of manners.
        if admits_reader(before) && before & WRITER_NEXT == 0 {
            return;
        }
        if seeded(Mutant::PhantomLeavesQuietly) {
            self.count.fetch_sub(READER, Ordering::Release);
        } else {
            self.unlock_read();
        }
        if !(P::READERS_SPIN && self.spin(Want::Read)) {
            self.sleep(Want::Read);
        }
    }

    #[cold]
    fn write_slow(&self) {
        if !self.spin(Want::Write) {
            self.sleep(Want::Write);
        }
    }

    /// Sleeps until the lock is ours.
    fn sleep(&self, want: Want) {
        let slot = thread::slot();
        let mut queue = self.waiters.lock();
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        // Last chance before sleeping, and the promise that somebody will wake us (R1).
        loop {
            let (admitted, taken) = match want {
                Want::Read => (admits_reader(count), count + READER),
                Want::Write => (admits_writer(count), count & WAITERS | sign()),
            };
            if !admitted && (queue.first().is_some() || count & WAITERS != 0) {
                break;
            }
            let new = if admitted { taken } else { count | WAITERS };
            // Acquire(unlock): pairs with Release(unlock) in both unlocks. The flag publishes nothing.
            match self.count.compare_exchange(count, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if admitted => return,
                Ok(_) => break,
                Err(now) => count = now,
            }
        }
        queue.enqueue(slot, want);
        loop {
            drop(queue);
            park(slot, P::PACE.turns_queued);
            if want == Want::Read {
                // Granted: the thread that woke us counted us in while no writer had the lock.
                return;
            }
            // Signalled, so first. The owner of the moment may be about to go.
            // Relaxed: a hint.
            SpinPatience::new(P::PACE).outlast(|| writer_of(self.count.load(Ordering::Relaxed)));
            queue = self.waiters.lock();
            if self.take_as_first(&mut queue) {
                return;
            }
            queue.wait_again(slot);
        }
    }

    /// The first waiter, a writer, takes the lock, or sets `WAITERS` on its owners' count.
    fn take_as_first(&self, queue: &mut LockedQueue<'_>) -> bool {
        let mut bypassed = None;
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        loop {
            let free = !held(count);
            let new = if free {
                // HANDOFF was for us. WAITERS for those behind us (R1).
                sign() | if queue.more_than_one() { WAITERS } else { 0 }
            } else if *bypassed.get_or_insert_with(|| queue.bypass(P::PACE.bypass_max)) {
                count | WAITERS | HANDOFF
            } else {
                count | WAITERS
            };
            // Acquire(unlock): pairs with Release(unlock) in both unlocks.
            match self.count.compare_exchange(count, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if free => {
                    queue.dequeue();
                    return true;
                }
                Ok(_) => return false,
                Err(now) => count = now,
            }
        }
    }

    /// Spins for the lock. True if it was taken.
    fn spin(&self, want: Want) -> bool {
        self.spinners.spin(P::PACE, |patience, place| {
            let look = self.look(want, patience, place);
            if look == Look::GiveUp && place == QueuePlace::First && want == Want::Write {
                self.renounce();
            }
            look
        })
    }

    /// Looks at the lock for a thread that spins for it.
    fn look(&self, want: Want, patience: &mut SpinPatience, place: QueuePlace) -> Look {
        if self.take(want) {
            return Look::Taken;
        }
        // Relaxed: a hint.
        let count = self.count.load(Ordering::Relaxed);
        let readers = if count & WRITER == 0 { count / READER } else { 0 };
        if count & HANDOFF != 0 || readers > 0 && count & NO_SPIN != 0 {
            return Look::GiveUp;
        }
        if readers == 0 {
            // Relaxed: a hint.
            let unchanged = || self.count.load(Ordering::Relaxed) == count;
            if patience.spin(writer_of(count), unchanged) == SpinVerdict::Sleep {
                return Look::GiveUp;
            }
        } else if place == QueuePlace::First && want == Want::Write && count & WRITER_NEXT == 0 {
            // Relaxed: a flag for other threads, which publishes nothing. Unconditionally: an exchange would
            // fail for as long as enough readers come and go.
            self.count.fetch_or(WRITER_NEXT, Ordering::Relaxed);
        } else if patience.spin_for_readers(&self.count, count, readers) == SpinVerdict::Sleep {
            // Relaxed: a hint, set only on the word that we gave up on. Readers may stay long; the next
            // writer need not find out again.
            let new = count | NO_SPIN;
            let _ = self.count.compare_exchange(count, new, Ordering::Relaxed, Ordering::Relaxed);
            return Look::GiveUp;
        }
        Look::Again
    }

    /// The writer that was next has given up spinning (R5).
    #[cold]
    fn renounce(&self) {
        // Relaxed: as where it is set.
        if self.count.load(Ordering::Relaxed) & WRITER_NEXT != 0 {
            self.count.fetch_and(!WRITER_NEXT, Ordering::Relaxed);
        }
    }

    /// Somebody let go and `WAITERS` was set (R2).
    #[cold]
    fn wake(&self) {
        self.wake_in(self.waiters.lock());
    }

    /// Signals the first waiter if it is a writer, or grants the lock to all waiting readers if it is one;
    /// unless another thread holds the lock meanwhile: then that one does so (R2).
    fn wake_in(&self, mut queue: LockedQueue<'_>) {
        let mut bypassed = None;
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        while count & WAITERS != 0 {
            let Some(first) = queue.first() else { return };
            // A writer that has the lock blocks all; to ask which ones would cost a miss.
            let readers = if count & WRITER == 0 && wants(first) == Want::Read { queue.readers() } else { 0 };
            let blocked = held(count) && readers == 0;
            let new = if blocked {
                if !*bypassed.get_or_insert_with(|| queue.bypass(P::PACE.bypass_max)) || count & HANDOFF != 0
                {
                    return;
                }
                count | HANDOFF
            } else if readers > 0 {
                // The readers' turn: all of them. WAITERS stays for the writers among them (R1).
                let rest = if queue.only_readers() { count & !FLAGS } else { count & !(HANDOFF | NO_SPIN) };
                rest + u64::from(readers) * READER
            } else {
                count & !(WAITERS | NO_SPIN)
            };
            // Acquire(unlock): what the last writer did, to be handed on by grant(); pairs with
            // Release(unlock) in unlock_write().
            match self.count.compare_exchange(count, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if blocked => return,
                Ok(_) if readers > 0 => {
                    let chain = queue.take_readers();
                    drop(queue);
                    return chain.grant();
                }
                Ok(_) => return queue.signal(),
                Err(now) => count = now,
            }
        }
    }
}

impl<P: RwsemPolicy> std::fmt::Debug for RawRwsem<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Relaxed: for the eye only.
        let count = self.count.load(Ordering::Relaxed);
        write!(f, "{}(readers: {}, writer: {})", P::NAME, count / READER, count & WRITER != 0)
    }
}
