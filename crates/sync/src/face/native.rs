//! The native face: the standard library, and Linux for parking, CPU numbers and the asymmetric barrier.

pub use std::sync::{Arc, Barrier, LazyLock, OnceLock, Weak};

/// Atomic integers and pointers, and their memory orderings.
pub mod atomic {
    pub use std::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
}

/// Memory that locks protect.
pub mod cell {
    /// [`std::cell::UnsafeCell`] behind closures, so that other faces can see each access.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell around `value`.
        pub const fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        /// Takes the value out.
        pub fn into_inner(self) -> T {
            self.0.into_inner()
        }
    }

    impl<T: ?Sized> UnsafeCell<T> {
        /// Calls `f` with a pointer for reading.
        #[inline]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer for writing.
        #[inline]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Blocks of bytes in atomic words.
pub mod words {
    pub use std::sync::atomic::AtomicU64 as Word;

    /// Tells a face that sees single accesses that these words are about to be read, as one piece.
    #[inline]
    pub fn will_load(_: &[Word]) {}

    /// Tells a face that sees single accesses that these words are about to be written, as one piece.
    #[inline]
    pub fn will_store(_: &[Word]) {}
}

/// Waiting without sleeping.
pub mod hint {
    use super::atomic::{AtomicU32, AtomicU64, Ordering};

    pub use super::super::quiet::{is_quiet, was_quiet};

    /// Tells the CPU that this is a turn of a waiting loop.
    #[inline]
    pub fn spin_loop() {
        std::hint::spin_loop();
    }

    /// Waits about as long as `turns` turns of a waiting loop, without looking at memory.
    #[inline]
    pub fn pause(turns: u32) {
        for _ in 0..turns {
            std::hint::spin_loop();
        }
    }

    /// Waits about as long as `turns` turns of a waiting loop for `word` to change from `seen`; where looking
    /// costs the writer of the word, as here, without looking.
    #[inline]
    pub fn watch(_word: &AtomicU64, _seen: u64, turns: u32) {
        pause(turns);
    }

    /// The turns of one wait. With more threads than CPUs the thread that would end the wait may need
    /// ours, so now and then the CPU is offered to it.
    #[derive(Debug, Default)]
    pub struct Waiting(u32);

    impl Waiting {
        /// A wait that begins.
        pub const fn new() -> Self {
            Waiting(0)
        }

        /// One turn.
        #[inline]
        pub fn turn(&mut self) {
            spin_loop();
            self.0 += 1;
            if self.0.is_multiple_of(256) {
                std::thread::yield_now();
            }
        }
    }

    /// Spins until `done` holds of the word's value, and returns that value.
    #[inline]
    pub fn spin_until(word: &AtomicU32, order: Ordering, done: impl Fn(u32) -> bool) -> u32 {
        let mut waiting = Waiting::new();
        loop {
            let value = word.load(order);
            if done(value) {
                return value;
            }
            waiting.turn();
        }
    }

    /// Spins until `done` holds of the word's value, and returns that value; `None` after `turns` turns.
    #[inline]
    pub fn spin_until_for(
        word: &AtomicU32,
        turns: u32,
        order: Ordering,
        done: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        for _ in 0..turns {
            let value = word.load(order);
            if done(value) {
                return Some(value);
            }
            spin_loop();
        }
        None
    }
}

/// Parking: threads sleep on a 32-bit word until another thread changes it and wakes them.
pub mod futex {
    use super::super::Wait;
    use super::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while `word` holds `expected`, for at most `timeout`, until woken. May wake spuriously.
    #[cfg(not(miri))]
    pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
        use rustix::io::Errno;
        use rustix::thread::futex::{Flags, Timespec, wait};
        let limit = timeout.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        match wait(word, Flags::PRIVATE, expected, limit.as_ref()) {
            Err(Errno::AGAIN) => Wait::Changed,
            Err(Errno::TIMEDOUT) => Wait::TimedOut,
            // An interrupted call, as by a signal handler, counts as a spurious wake-up.
            _ => Wait::Woken,
        }
    }

    /// Wakes at most `count` of the threads that sleep on `word`; says how many.
    #[cfg(not(miri))]
    pub fn wake(word: &AtomicU32, count: u32) -> usize {
        // The kernel takes a signed count. Waking a word fails only for an address that is not mapped.
        let count = count.min(i32::MAX.cast_unsigned());
        rustix::thread::futex::wake(word, rustix::thread::futex::Flags::PRIVATE, count).unwrap_or(0)
    }

    #[cfg(miri)]
    pub use emulated::{wait, wake};

    /// Parking without system calls, for the interpreter: one lock, one condition, everybody looks again.
    #[cfg(miri)]
    mod emulated {
        use super::{AtomicU32, Duration, Wait};
        use std::sync::atomic::Ordering;
        use std::sync::{Condvar, Mutex};

        /// How many sleep.
        static LOT: Mutex<usize> = Mutex::new(0);
        static WOKEN: Condvar = Condvar::new();

        /// As the system call.
        pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
            let mut lot = LOT.lock().expect("no panic under the lock");
            // Relaxed: the system call promises no ordering either.
            if word.load(Ordering::Relaxed) != expected {
                return Wait::Changed;
            }
            let limit = timeout.unwrap_or(Duration::from_secs(3600));
            *lot += 1;
            let (mut lot, result) = WOKEN.wait_timeout(lot, limit).expect("no panic under the lock");
            *lot -= 1;
            if result.timed_out() { Wait::TimedOut } else { Wait::Woken }
        }

        /// As the system call, but wakes everybody: each looks at its word again.
        pub fn wake(_: &AtomicU32, count: u32) -> usize {
            let lot = LOT.lock().expect("no panic under the lock");
            WOKEN.notify_all();
            (*lot).min(count as usize)
        }
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

/// CPU numbers: where the calling thread runs, and how many CPUs there are.
pub mod cpu {
    /// The number of the CPU that the calling thread runs on now. A hint: the thread may migrate at once,
    /// so whatever is done by this number must stay correct on another CPU.
    #[inline]
    pub fn current() -> usize {
        #[cfg(miri)]
        return super::thread::slot() as usize % 2;
        #[cfg(not(miri))]
        super::super::rseq::cpu().unwrap_or_else(rustix::thread::sched_getcpu)
    }

    /// How many CPUs this process may use, at least 1.
    pub fn count() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// One more than the highest CPU number that [`current`] can return, at least 1: the size of a table
    /// indexed by CPU.
    pub fn possible() -> usize {
        use std::sync::OnceLock;
        static POSSIBLE: OnceLock<usize> = OnceLock::new();
        *POSSIBLE.get_or_init(|| {
            let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok();
            let last = listed.and_then(|list| list.trim().rsplit([',', '-']).next()?.parse::<usize>().ok());
            last.map_or_else(count, |last| last + 1).max(count())
        })
    }

    /// The number of the memory node that the calling thread runs on now, 0 where there is only one.
    pub fn node() -> usize {
        use std::sync::OnceLock;
        static NODES: OnceLock<Vec<u32>> = OnceLock::new();
        let nodes = NODES.get_or_init(|| (0..possible()).map(node_of).collect());
        nodes.get(current()).copied().unwrap_or(0) as usize
    }

    /// The memory node of CPU `cpu`: its directory has an entry called `node<number>`.
    fn node_of(cpu: usize) -> u32 {
        let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}"));
        let mut names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.find_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok()).unwrap_or(0)
    }

    /// The numbers of the CPUs that the calling thread may run on, ascending; empty if the system does not
    /// tell.
    pub fn allowed() -> Vec<usize> {
        let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
    }

    /// Keeps the calling thread on CPU `cpu` until it is pinned elsewhere.
    ///
    /// # Errors
    /// The operating system's, when `cpu` does not exist or is not allowed to this process.
    pub fn pin(cpu: usize) -> std::io::Result<()> {
        let mut set = rustix::thread::CpuSet::new();
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        set.set(cpu);
        Ok(rustix::thread::sched_setaffinity(None, &set)?)
    }

    /// Lets the calling thread run on the CPUs numbered `cpus`, as [`allowed`] gives them.
    ///
    /// # Errors
    /// The operating system's, when this process may use none of them.
    pub fn allow(cpus: &[usize]) -> std::io::Result<()> {
        let mut set = rustix::thread::CpuSet::new();
        cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        Ok(rustix::thread::sched_setaffinity(None, &set)?)
    }
}

/// Threads.
pub mod thread {
    pub use std::thread::{
        Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, current, panicking, park,
        park_timeout, scope, sleep, spawn, yield_now,
    };

    /// A small number that no other live thread has; given out again after the thread ends.
    #[inline]
    pub fn slot() -> u32 {
        super::super::slot::current()
    }

    /// The slot, if it was asked for before and [`membarrier`](super::membarrier) works; else a number past all slots.
    #[inline]
    pub(crate) fn ready_slot() -> u32 {
        super::super::slot::ready()
    }

    /// By what a lock names the calling thread as its owner, not 0. The same for all threads: nobody could tell
    /// whether the owner runs, and the own slot would cost each lock a look into thread-local memory.
    #[inline]
    pub(crate) fn signature() -> u32 {
        1
    }

    /// The thread that the calling thread currently simulates: natively always the same one.
    #[cfg(any(feature = "lock-debug", debug_assertions))]
    #[inline]
    pub(crate) fn lane() -> usize {
        0
    }

    /// Whether [`running`] can tell.
    pub(crate) const KNOWS_WHO_RUNS: bool = false;

    /// Whether the thread in `slot` is running on a CPU now; `None` where nobody can tell.
    #[inline]
    pub fn running(_slot: u32) -> Option<bool> {
        None
    }
}

/// Clocks.
pub mod time {
    pub use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    /// The wall clock.
    #[inline]
    pub fn wall() -> SystemTime {
        SystemTime::now()
    }

    /// The wall clock as of the last timer tick, 1 to 10 ms ago, as whole seconds since 1970 and nanoseconds below
    /// one second. All CPUs see the same tick.
    #[inline]
    pub fn realtime_coarse() -> (i64, u32) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        // Lossless: nanoseconds are below one second.
        (now.tv_sec, now.tv_nsec as u32)
    }
}

/// A full memory barrier on every CPU that runs a thread of this process, paid for by the caller alone.
///
/// Pairs with a compiler fence ([`light_barrier`]) on the other side. True if the kernel did it; false where it
/// cannot, and then both sides need a fence: ask [`membarrier_works`] once, before choosing.
#[must_use]
pub fn membarrier() -> bool {
    membarrier_works() && barrier::everywhere()
}

/// The state of membarrier(2): 0 for unknown, else `WORKS` or `FAILS`. One byte and no lock, because every read section
/// looks at it.
static KNOWN: atomic::AtomicU8 = atomic::AtomicU8::new(0);
const WORKS: u8 = 1;
const FAILS: u8 = 2;

/// Whether [`membarrier`] works here; registers the process with the kernel at the first call.
#[inline]
pub fn membarrier_works() -> bool {
    // Relaxed: the value stands for itself; two threads may both register, to the same effect.
    match KNOWN.load(atomic::Ordering::Relaxed) {
        0 => register(),
        known => known == WORKS,
    }
}

#[cold]
fn register() -> bool {
    let works = barrier::register();
    // Relaxed: as in membarrier_works().
    KNOWN.store(if works { WORKS } else { FAILS }, atomic::Ordering::Relaxed);
    works
}

/// The cheap side of [`membarrier`]: keeps the compiler from moving memory accesses across it, and the CPU
/// too where the expensive side cannot do its part.
#[inline]
pub fn light_barrier() {
    use std::sync::atomic::{Ordering, compiler_fence};
    // Relaxed: as in membarrier_works(). While nothing is known yet, a fence is right whatever the answer.
    if KNOWN.load(Ordering::Relaxed) != WORKS {
        fence_instead();
    }
    // SeqCst: either the other side's membarrier() comes before our load, which then sees its store, or after
    // our store, which it then sees.
    compiler_fence(Ordering::SeqCst);
}

/// The [`light_barrier`] for callers that know that [`membarrier_works`].
#[inline]
pub fn registered_barrier() {
    // SeqCst: as in light_barrier().
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

#[cold]
fn fence_instead() {
    membarrier_works();
    // SeqCst: as in light_barrier(), with a fence on both sides.
    atomic::fence(atomic::Ordering::SeqCst);
}

#[cfg(not(miri))]
mod barrier {
    use rustix::thread::{MembarrierCommand, membarrier};

    pub(super) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    pub(super) fn everywhere() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

#[cfg(miri)]
mod barrier {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn everywhere() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::Wait;
    use super::atomic::{AtomicU32, Ordering};
    use super::{cpu, futex};
    use std::time::Duration;

    // The interpreter has no CPUs to pin to.
    #[cfg(not(miri))]
    #[test]
    fn a_thread_pinned_to_its_cpu_stays_there() {
        std::thread::spawn(|| {
            let here = cpu::current();
            cpu::pin(here).expect("a thread may be pinned to the CPU it runs on");
            assert_eq!(cpu::current(), here);
            assert_eq!(rustix::thread::sched_getcpu(), here, "rseq and the kernel agree");
            assert!(here < cpu::possible());
        })
        .join()
        .expect("the pinned thread ends");
    }

    #[test]
    fn pinning_to_a_cpu_past_every_limit_is_an_error_not_a_panic() {
        assert!(cpu::pin(usize::MAX).is_err());
        assert!(cpu::count() >= 1);
    }

    #[test]
    fn waiting_for_a_value_that_has_changed_does_not_sleep() {
        let word = AtomicU32::new(1);
        assert_eq!(futex::wait(&word, 0, None), Wait::Changed);
        assert_eq!(futex::wait(&word, 1, Some(Duration::from_millis(1))), Wait::TimedOut);
        assert_eq!(futex::wake(&word, u32::MAX), 0);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    futex::wait(&word, 0, None);
                }
            });
            word.store(1, Ordering::Release);
            futex::wake(&word, 1);
        });
    }
}
