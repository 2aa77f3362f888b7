//! Rwsem: the sleeping reader-writer lock, made so that as a write lock it is worth a mutex.
//!
//! # Theory
//! One word says who has the lock, as a mutex's does: a writer signs with its thread's slot in the step that
//! takes the lock. A writer that spins therefore always knows for whom; the lock of 2016, whose owner stood
//! in a second word and was empty for a moment, ended the spinning there and lost a quarter to the mutex.
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 63 | `CROWD` | more readers than there can be threads: guards were leaked |
//! | 34..63 | readers | how many readers have the lock, or just tried to (see below) |
//! | 3..34 | writer | the writer's slot plus one, or 0 |
//! | 2 | `NO_SPIN` | readers have the lock, and a writer has already spun for them in vain |
//! | 1 | `HANDOFF` | nobody new may take the lock: it goes to the first waiter |
//! | 0 | `WAITERS` | whoever lets go last must wake the first waiter |
//!
//! A reader adds itself with one unconditional add, so that readers do not retry against each other. If the
//! add met a writer, a hand-off or waiters, the reader is a *phantom*: it goes to the slow path, which makes
//! it a holder after all or takes it back. A phantom can hold up a writer for a moment; taking it back
//! therefore counts as letting go.
//!
//! What a waiter meets, and why:
//! - a free lock with sleepers may be **stolen** by a spinner or by a first reader: strict first-come order
//!   would let the lock idle while the sleeper wakes;
//! - when a reader's turn comes **all** queued readers go together, also those behind writers: groups of
//!   readers kept apart by writers (reader fragmentation) would serialise them;
//! - readers do not spin: spinning readers make fragments too;
//! - a first waiter that was bypassed too often sets `HANDOFF`: bypassing is bounded.
//!
//! # Invariants
//! - R1 if the wait queue is not empty, then `WAITERS` is set, or its first is a writer that was signalled and
//!   has not yet tried, or a thread that let go is on its way to wake it;
//! - R2 with `WAITERS` set, whoever makes writer and readers zero wakes the first waiter;
//! - R3 a writer signs only while there are neither readers nor phantoms; a reader is a holder only if its add
//!   met no writer, or it was granted the lock while there was none;
//! - R4 `WAITERS` and `HANDOFF` change only under the queue's lock.
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
//! The kernel's kernel/locking/rwsem.c after 2020: non-spinnable state, hand-off, reader stealing instead of reader
//! spinning. The discussion of 2016 about i_mutex and i_rwsem: why spinning must not end at an empty owner.

use crate::face::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::face::{const_new, thread};
use crate::spin_policy::{Patience, Verdict};
use crate::spinner::SpinnerQueue;
use crate::wait_queue::{Locked, WaitQueue, Want, park};
use std::marker::PhantomData;

const WAITERS: u64 = 1 << 0;
const HANDOFF: u64 = 1 << 1;
const NO_SPIN: u64 = 1 << 2;
const FLAGS: u64 = WAITERS | HANDOFF | NO_SPIN;
const WRITER_SHIFT: u32 = 3;
const WRITER: u64 = ((1 << 31) - 1) << WRITER_SHIFT;
const READER: u64 = 1 << 34;
const CROWD: u64 = 1 << 63;

/// What a reader-writer lock does where its designers disagreed; the lab compares policies.
pub trait RwsemPolicy: Send + Sync + 'static {
    /// Its name in reports.
    const NAME: &'static str;
    /// Spinning writers learn from a second word who the owner is. It is written after the lock is taken and
    /// emptied before it is released, so it may be empty while a writer has the lock.
    const SEPARATE_OWNER: bool;
    /// A writer goes on spinning when that second word is empty.
    const SPIN_ON_EMPTY_OWNER: bool;
    /// A writer spins, for a bounded time, while readers have the lock.
    const SPIN_ON_READERS: bool;
    /// A first reader may take a free lock that sleepers wait for.
    const READERS_STEAL: bool;
}

/// The policy of [`crate::RwLock`]: what the kernel has learnt since 2016.
#[derive(Debug)]
pub struct Current;

impl RwsemPolicy for Current {
    const NAME: &'static str = "rwsem";
    const SEPARATE_OWNER: bool = false;
    const SPIN_ON_EMPTY_OWNER: bool = true;
    const SPIN_ON_READERS: bool = true;
    const READERS_STEAL: bool = true;
}

/// A reader-writer lock that protects nothing by itself.
pub struct RawRwsem<P: RwsemPolicy = Current> {
    /// See the table above. *atomic (unlock)*
    count: AtomicU64,
    /// The writer's slot plus one, or 0: a hint, under policies with a separate owner. *written by the writer*
    owner: AtomicU32,
    spinners: SpinnerQueue,
    waiters: WaitQueue,
    policy: PhantomData<P>,
}

fn held(count: u64) -> bool {
    count & !FLAGS != 0
}

fn sign(slot: u32) -> u64 {
    u64::from(slot + 1) << WRITER_SHIFT
}

fn writer_of(count: u64) -> Option<u32> {
    // Lossless: 31 bits.
    (((count & WRITER) >> WRITER_SHIFT) as u32).checked_sub(1)
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
                owner: AtomicU32::new(0),
                spinners: SpinnerQueue::new(),
                waiters: WaitQueue::new(),
                policy: PhantomData,
            }
        }
    }

    /// Locks for reading.
    ///
    /// # Panics
    /// If half a thousand million read guards were leaked.
    #[inline]
    pub fn read(&self) {
        // Acquire(unlock): pairs with Release(unlock) in unlock_write().
        let before = self.count.fetch_add(READER, Ordering::Acquire);
        if before & (WRITER | WAITERS | HANDOFF | CROWD) != 0 {
            self.read_slow(before);
        }
    }

    /// Locks for reading if that is possible now.
    #[inline]
    pub fn try_read(&self) -> bool {
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        while count & (WRITER | HANDOFF | CROWD) == 0 {
            // Acquire(unlock): pairs with Release(unlock) in unlock_write().
            match self.count.compare_exchange_weak(
                count,
                count + READER,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => count = now,
            }
        }
        false
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
        let own = sign(thread::slot());
        // Acquire(unlock): pairs with Release(unlock) in both unlocks. A failure publishes nothing.
        if self.count.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.write_slow(thread::slot());
        }
        self.sign_separately();
    }

    /// Locks for writing if the lock is free now.
    #[inline]
    pub fn try_write(&self) -> bool {
        let taken = self.take_write(sign(thread::slot()));
        if taken {
            self.sign_separately();
        }
        taken
    }

    /// Unlocks after [`write`](Self::write).
    #[inline]
    pub fn unlock_write(&self) {
        self.unsign_separately();
        let own = sign(thread::slot());
        // Release(unlock): the protected value; pairs with Acquire(unlock) in read() and write().
        if self.count.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.unlock_write_slow();
        }
    }

    #[cold]
    fn unlock_write_slow(&self) {
        // Release(unlock): as in unlock_write().
        if self.count.fetch_and(!WRITER, Ordering::Release) & WAITERS != 0 {
            self.wake();
        }
    }

    /// Turns a write lock into a read lock: no other writer comes between.
    pub fn downgrade(&self) {
        self.unsign_separately();
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

    #[inline]
    fn sign_separately(&self) {
        if P::SEPARATE_OWNER {
            // Relaxed: a hint.
            self.owner.store(thread::slot() + 1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn unsign_separately(&self) {
        if P::SEPARATE_OWNER {
            // Relaxed: a hint.
            self.owner.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the lock for writing if it is free and not promised to a waiter.
    fn take_write(&self, own: u64) -> bool {
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        while !held(count) && count & HANDOFF == 0 {
            let new = count & WAITERS | own;
            // Acquire(unlock): pairs with Release(unlock) in both unlocks.
            match self.count.compare_exchange_weak(count, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => count = now,
            }
        }
        false
    }

    /// The caller's add met `before`: it is a phantom, to be made a holder or taken back.
    #[cold]
    fn read_slow(&self, before: u64) {
        if before & CROWD != 0 {
            // Relaxed: takes back what we added.
            self.count.fetch_sub(READER, Ordering::Relaxed);
            panic!("too many readers of one lock: are read guards being leaked?");
        }
        // Stealing. R3: no writer was there, so the add itself made us a holder; it is only a question of
        // manners. A first reader may; one that joins others would keep a waiting writer out for ever.
        if P::READERS_STEAL && !held(before) && before & HANDOFF == 0 {
            return;
        }
        let slot = thread::slot();
        let mut queue = self.waiters.lock();
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        loop {
            if count & (WRITER | HANDOFF) == 0 && queue.first().is_none() {
                // Nobody stands before us, so we stay. R3: without a writer, our add holds off any
                // writer. Acquire(unlock): reads the count again after the writer's subtraction, by an
                // exchange that changes nothing; pairs with Release(unlock) in unlock_write().
                match self.count.compare_exchange(count, count, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return,
                    Err(now) => count = now,
                }
                continue;
            }
            // Release(unlock): a reader that was a holder lets go; it has read nothing, so this only keeps
            // the chain of releases whole. R1: WAITERS, unless a signalled writer stands before us.
            let waiters = if queue.first().is_none() { WAITERS } else { 0 };
            match self.count.compare_exchange(
                count,
                (count - READER) | waiters,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    count = (count - READER) | waiters;
                    break;
                }
                Err(now) => count = now,
            }
        }
        queue.enqueue(slot, Want::Read);
        // R2: taking the phantom back may be the last letting-go.
        if !held(count) && count & WAITERS != 0 {
            self.wake_in(queue);
        } else {
            drop(queue);
        }
        park(slot);
        // Granted: the thread that woke us counted us in while no writer had the lock.
    }

    #[cold]
    fn write_slow(&self, slot: u32) {
        if self.spin(slot) {
            return;
        }
        let own = sign(slot);
        let mut queue = self.waiters.lock();
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        // Last chance before sleeping, and the promise that somebody will wake us (R1).
        loop {
            if !held(count) && count & HANDOFF == 0 {
                let new = count & WAITERS | own;
                // Acquire(unlock): pairs with Release(unlock) in both unlocks.
                match self.count.compare_exchange(count, new, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return,
                    Err(now) => count = now,
                }
                continue;
            }
            if queue.first().is_some() || count & WAITERS != 0 {
                break;
            }
            // Relaxed: the flag publishes nothing but itself.
            match self.count.compare_exchange(count, count | WAITERS, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => count = now,
            }
        }
        queue.enqueue(slot, Want::Write);
        loop {
            drop(queue);
            park(slot);
            // Signalled, so first. The owner of the moment may be about to go.
            self.wait_for_owner();
            queue = self.waiters.lock();
            if self.take_as_first(&mut queue, own) {
                return;
            }
            queue.wait_again(slot);
        }
    }

    /// The first waiter, a writer, takes the lock, or sets `WAITERS` on the count of whoever has it.
    fn take_as_first(&self, queue: &mut Locked<'_>, own: u64) -> bool {
        let mut bypassed = None;
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        loop {
            let free = !held(count);
            let new = if free {
                // HANDOFF was for us. WAITERS for those behind us (R1).
                own | if queue.more_than_one() { WAITERS } else { 0 }
            } else if *bypassed.get_or_insert_with(|| queue.bypass()) {
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

    /// Spins in line for the lock. True if it was taken for writing.
    fn spin(&self, slot: u32) -> bool {
        if !self.spinners.join(slot) {
            return false;
        }
        let taken = self.spin_as_first(sign(slot));
        self.spinners.leave(slot);
        taken
    }

    fn spin_as_first(&self, own: u64) -> bool {
        let mut patience = Patience::new();
        loop {
            if self.take_write(own) {
                return true;
            }
            // Relaxed: a hint.
            let count = self.count.load(Ordering::Relaxed);
            let readers = held(count) && count & WRITER == 0;
            if count & HANDOFF != 0 || readers && (!P::SPIN_ON_READERS || count & NO_SPIN != 0) {
                return false;
            }
            let Some(owner) = self.owner(count) else { return false };
            if patience.spin(owner) == Verdict::Sleep {
                if readers {
                    // Relaxed: a hint, set only on the word that we gave up on. Readers may stay long; the
                    // next writer need not find out again.
                    let _ = self.count.compare_exchange(
                        count,
                        count | NO_SPIN,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                }
                return false;
            }
        }
    }

    /// The owner as far as the policy lets a spinner know; `None` if it must not spin for that.
    fn owner(&self, count: u64) -> Option<Option<u32>> {
        if !P::SEPARATE_OWNER {
            return Some(writer_of(count));
        }
        // Relaxed: a hint.
        let owner = self.owner.load(Ordering::Relaxed).checked_sub(1);
        (owner.is_some() || P::SPIN_ON_EMPTY_OWNER).then_some(owner)
    }

    /// Spins, as the first waiter, while a writer that has the lock looks like it will unlock soon.
    fn wait_for_owner(&self) {
        let mut patience = Patience::new();
        // Relaxed: a hint.
        while let Some(owner) = writer_of(self.count.load(Ordering::Relaxed)) {
            if patience.spin(Some(owner)) == Verdict::Sleep {
                return;
            }
        }
    }

    /// Somebody let go and `WAITERS` was set (R2).
    #[cold]
    fn wake(&self) {
        self.wake_in(self.waiters.lock());
    }

    /// Signals the first waiter if it is a writer, or grants the lock to all waiting readers if it is one;
    /// unless somebody holds the lock meanwhile: then it is his to do (R2).
    fn wake_in(&self, mut queue: Locked<'_>) {
        let mut bypassed = None;
        // Relaxed: looked at again in the exchange.
        let mut count = self.count.load(Ordering::Relaxed);
        while count & WAITERS != 0 {
            let readers = match queue.first_wants() {
                Some(Want::Read) => queue.readers(),
                Some(Want::Write) => 0,
                None => return,
            };
            let blocked = if readers > 0 { count & WRITER != 0 } else { held(count) };
            let new = if blocked {
                if !*bypassed.get_or_insert_with(|| queue.bypass()) || count & HANDOFF != 0 {
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
