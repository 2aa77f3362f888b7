//! The loom face: the model checker's atomics, cells and threads, and parking built from them.

pub use loom::lazy_static;
pub use loom::sync::{Arc, Barrier};

/// A place that is filled once. The checker must know its objects before other threads use them: here the place is
/// filled when it is made.
#[derive(Default)]
pub(crate) struct OnceLock<T>(T);

impl<T> OnceLock<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        Some(&self.0)
    }

    pub(crate) fn get_or_init(&self, _: impl FnOnce() -> T) -> &T {
        &self.0
    }
}

std::thread_local! {
    static SEEDED: std::cell::Cell<Option<super::Mutant>> = const { std::cell::Cell::new(None) };
}

/// Seeds `mutant`, or none, in the executions that the calling test explores from now on.
pub fn seed_mutant(mutant: Option<super::Mutant>) {
    SEEDED.set(mutant);
}

/// Whether `mutant` is seeded in this execution.
pub fn seeded(mutant: super::Mutant) -> bool {
    SEEDED.get() == Some(mutant)
}

/// Whether any mutant is seeded.
pub fn is_any_seeded() -> bool {
    SEEDED.get().is_some()
}

/// Atomic integers and pointers, and their memory orderings.
pub mod atomic {
    pub use loom::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
}

/// Memory that locks protect; every access is checked for a race.
pub mod cell {
    pub use loom::cell::UnsafeCell;
}

/// Blocks of bytes in atomic words.
pub mod words {
    pub use loom::sync::atomic::AtomicU64 as Word;

    /// Each access is seen by itself.
    pub fn will_load(_: &[Word]) {}

    /// Each access is seen by itself.
    pub fn will_store(_: &[Word]) {}
}

/// Waiting without sleeping: each turn lets another thread run.
pub mod hint {
    use super::atomic::{AtomicU32, AtomicU64, Ordering};

    pub use super::super::quiet::{is_quiet, was_quiet};
    pub use loom::hint::spin_loop;

    /// One turn, however many are asked for.
    #[track_caller]
    pub fn pause(_turns: u32) {
        spin_loop();
    }

    /// One turn.
    #[track_caller]
    pub fn watch(_word: &AtomicU64, _seen: u64, _turns: u32) {
        spin_loop();
    }

    /// The turns of one wait.
    #[derive(Debug, Default)]
    pub struct Waiting;

    impl Waiting {
        /// A wait that begins.
        pub const fn new() -> Self {
            Waiting
        }

        /// One turn.
        #[track_caller]
        pub fn turn(&mut self) {
            spin_loop();
        }
    }

    /// Spins until `done` holds of the word's value, and returns that value.
    #[track_caller]
    pub fn spin_until(word: &AtomicU32, order: Ordering, done: impl Fn(u32) -> bool) -> u32 {
        loop {
            let value = word.load(order);
            if done(value) {
                return value;
            }
            spin_loop();
        }
    }

    /// Spins until `done` holds of the word's value, and returns that value; `None` after `turns` turns.
    #[track_caller]
    pub fn spin_until_for(
        word: &AtomicU32,
        turns: u32,
        order: Ordering,
        done: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        (0..turns).find_map(|_| {
            let value = word.load(order);
            if !done(value) {
                spin_loop();
            }
            done(value).then_some(value)
        })
    }
}

/// Parking on a 32-bit word, emulated. Time does not exist: nothing ever times out, so that a lost wake-up
/// shows as a deadlock. Waking hands on all that the waker has seen, which is more than the system call
/// promises.
pub mod futex {
    use super::super::Wait;
    use super::atomic::{AtomicU32, Ordering};
    use loom::sync::Mutex;
    use loom::thread::{Thread, current, park};
    use std::time::Duration;

    loom::lazy_static! {
        /// Which threads sleep, and on which address.
        static ref LOT: Mutex<Vec<(usize, Thread)>> = Mutex::new(Vec::new());
    }

    fn address(word: &AtomicU32) -> usize {
        std::ptr::from_ref(word).addr()
    }

    /// Sleeps while `word` holds `expected`, until woken.
    #[track_caller]
    pub fn wait(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) -> Wait {
        let mut lot = LOT.lock().expect("no panic under the lock");
        // Relaxed: the system call promises no ordering either. A store made before wake() is seen here
        // or finds us in the lot, by the lock.
        if word.load(Ordering::Relaxed) != expected {
            return Wait::Changed;
        }
        lot.push((address(word), current()));
        drop(lot);
        park();
        Wait::Woken
    }

    /// Wakes at most `count` of the threads that sleep on `word`; says how many.
    #[track_caller]
    pub fn wake(word: &AtomicU32, count: u32) -> usize {
        let mut lot = LOT.lock().expect("no panic under the lock");
        let mut woken = Vec::new();
        lot.retain(|(at, sleeper)| {
            let take = *at == address(word) && woken.len() < count as usize;
            if take {
                woken.push(sleeper.clone());
            }
            !take
        });
        drop(lot);
        woken.iter().for_each(Thread::unpark);
        woken.len()
    }
}

/// Halting and kicking a virtual CPU, for paravirtual spin locks: here, parking a thread.
pub mod vcpu {
    use super::atomic::AtomicU32;

    /// Halts while `word` holds `expected`, until kicked. May return early.
    pub fn halt(word: &AtomicU32, expected: u32) {
        super::futex::wait(word, expected, None);
    }

    /// Ends the halt of every thread that halted on `word`.
    pub fn kick(word: &AtomicU32) {
        super::futex::wake(word, u32::MAX);
    }
}

/// CPU numbers: every thread has its own CPU, and there are two memory nodes.
pub mod cpu {
    /// The calling thread's slot.
    pub fn current() -> usize {
        super::thread::slot() as usize
    }

    /// How many CPUs there are: as many as loom has threads.
    pub fn count() -> usize {
        ::loom::MAX_THREADS
    }

    /// One more than the highest CPU number.
    pub fn possible() -> usize {
        ::loom::MAX_THREADS
    }

    /// Odd and even threads live on different memory nodes.
    pub fn node() -> usize {
        current() % 2
    }

    /// The numbers of the CPUs that the calling thread may run on: all.
    pub fn allowed() -> Vec<usize> {
        (0..count()).collect()
    }

    /// Threads do not move.
    ///
    /// # Errors
    /// None.
    pub fn pin(_cpu: usize) -> std::io::Result<()> {
        Ok(())
    }

    /// Threads do not move.
    ///
    /// # Errors
    /// None.
    pub fn allow(_cpus: &[usize]) -> std::io::Result<()> {
        Ok(())
    }
}

/// Threads.
pub mod thread {
    use super::atomic::{AtomicU32, Ordering};

    pub use loom::thread::{Builder, JoinHandle, Thread, ThreadId, current, park, spawn, yield_now};
    pub use std::thread::panicking;

    loom::lazy_static! {
        static ref NEXT: AtomicU32 = AtomicU32::new(0);
    }

    loom::thread_local! {
        // Relaxed: only the number's being different counts.
        static SLOT: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }

    /// A small number that no other thread of this execution has.
    pub fn slot() -> u32 {
        SLOT.with(|slot| *slot)
    }

    /// The slot: [`membarrier`](super::membarrier) always works here.
    pub(crate) fn ready_slot() -> u32 {
        slot()
    }

    /// By what a lock names the calling thread as its owner: the slot plus one.
    pub(crate) fn signature() -> u32 {
        slot() + 1
    }

    /// Whether [`running`] can tell.
    pub(crate) const KNOWS_WHO_RUNS: bool = false;

    /// Nobody can tell.
    pub fn running(_slot: u32) -> Option<bool> {
        None
    }
}

/// Clocks. Locks must not depend on them under loom.
pub mod time {
    pub use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    /// The wall clock.
    #[inline]
    pub fn wall() -> SystemTime {
        SystemTime::now()
    }

    /// A clock that stands.
    pub fn realtime_coarse() -> (i64, u32) {
        (0, 0)
    }
}

/// The expensive side of the asymmetric barrier, as a fence.
#[must_use]
pub fn membarrier() -> bool {
    // SeqCst: pairs with the fence in light_barrier(): one of the two sides sees the other's store.
    atomic::fence(atomic::Ordering::SeqCst);
    true
}

/// Always.
pub fn membarrier_works() -> bool {
    true
}

/// The cheap side of the asymmetric barrier. A fence here: the system call makes it one after the fact.
pub fn light_barrier() {
    // SeqCst: pairs with the fence in membarrier().
    atomic::fence(atomic::Ordering::SeqCst);
}

/// The [`light_barrier`]: [`membarrier`] always works here.
pub fn registered_barrier() {
    light_barrier();
}
