//! The simulated face: atomics, cells, spinning and parking of the simulated multiprocessor.
//!
//! On a simulated CPU everything is charged to the machine. Off it (setting up before a run, looking at the
//! result after) the same types behave as plain memory and the calls as the operating system's.

mod counted;
mod once;

pub use counted::{Arc, Weak};
pub use once::{LazyLock, OnceLock};
/// For threads of the host: a simulated CPU would hold up the others.
pub use std::sync::Barrier;

/// Atomic integers and pointers, and their memory orderings.
pub mod atomic {
    pub use sluice_machine::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
}

/// Memory that locks protect: each access is charged with moving the lines of the value.
pub mod cell {
    use sluice_machine::cell::{touch_read, touch_write};

    /// [`std::cell::UnsafeCell`] behind closures that the machine sees.
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
        #[track_caller]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            touch_read(self.0.get(), size_of_val(&self.0));
            f(self.0.get())
        }

        /// Calls `f` with a pointer for writing.
        #[inline]
        #[track_caller]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            touch_write(self.0.get(), size_of_val(&self.0));
            f(self.0.get())
        }
    }
}

/// Blocks of bytes in atomic words: a copy is charged line by line.
pub mod words {
    use sluice_machine::cell::{touch_read, touch_write};

    pub use std::sync::atomic::AtomicU64 as Word;

    /// Charges reading these words.
    #[inline]
    #[track_caller]
    pub fn will_load(words: &[Word]) {
        touch_read(words, size_of_val(words));
    }

    /// Charges writing these words.
    #[inline]
    #[track_caller]
    pub fn will_store(words: &[Word]) {
        touch_write(words, size_of_val(words));
    }
}

/// Waiting without sleeping. The machine lets a spinner rest until the line that it watches changes.
pub mod hint {
    use super::atomic::{AtomicU32, AtomicU64, Ordering};

    pub use super::super::quiet::{is_quiet, was_quiet};
    pub use sluice_machine::spin_loop;

    /// Cycles of one turn of a bounded wait.
    const TURN_CYCLES: u64 = 40;

    /// Waits about as long as `turns` turns of a waiting loop, without looking at memory.
    #[inline]
    pub fn pause(turns: u32) {
        sluice_machine::pause(turns.into());
    }

    /// Waits for `word` to change from `seen`, for as long as `turns` turns of a waiting loop at most.
    #[inline]
    #[track_caller]
    pub fn watch(word: &AtomicU64, seen: u64, turns: u32) {
        sluice_machine::spin_until_for(word, u64::from(turns) * TURN_CYCLES, |now| now != seen);
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
        #[inline]
        #[track_caller]
        pub fn turn(&mut self) {
            spin_loop();
        }
    }

    /// Spins until `done` holds of the word's value, and returns that value.
    #[inline]
    #[track_caller]
    pub fn spin_until(word: &AtomicU32, _order: Ordering, done: impl Fn(u32) -> bool) -> u32 {
        sluice_machine::spin_until(word, done)
    }

    /// Spins until `done` holds of the word's value, and returns that value; `None` after `turns` turns.
    #[inline]
    #[track_caller]
    pub fn spin_until_for(
        word: &AtomicU32,
        turns: u32,
        _order: Ordering,
        done: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        sluice_machine::spin_until_for(word, u64::from(turns) * TURN_CYCLES, done)
    }
}

/// Parking on a 32-bit word, at the machine's costs of system call, sleep and wake-up.
pub mod futex {
    use super::super::Wait;
    use super::atomic::AtomicU32;
    use sluice_machine::{Parked, cycles_per_us, park, unpark};
    use std::time::Duration;

    /// Sleeps while `word` holds `expected`, for at most `timeout`, until woken.
    #[track_caller]
    pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
        let cycles = timeout.map(|limit| {
            u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).saturating_mul(cycles_per_us()) / 1000
        });
        match park(word, expected, cycles) {
            Parked::Woken => Wait::Woken,
            Parked::Changed => Wait::Changed,
            Parked::TimedOut => Wait::TimedOut,
        }
    }

    /// Wakes at most `count` of the CPUs that sleep on `word`; says how many.
    #[track_caller]
    pub fn wake(word: &AtomicU32, count: u32) -> usize {
        unpark(word, count as usize)
    }
}

/// Halting and kicking a virtual CPU, for paravirtual spin locks.
pub mod vcpu {
    use super::atomic::{AtomicU32, Ordering};
    use std::cell::RefCell;
    use std::collections::HashMap;

    std::thread_local! {
        /// Which CPUs halt for which word: the hypervisor's own memory, not charged.
        static HALTED: RefCell<HashMap<usize, Vec<usize>>> = RefCell::default();
    }

    /// Halts while `word` holds `expected`, until kicked. May return early.
    #[track_caller]
    pub fn halt(word: &AtomicU32, expected: u32) {
        let address = std::ptr::from_ref(word).addr();
        let cpu = sluice_machine::cpu();
        HALTED.with_borrow_mut(|halted| halted.entry(address).or_default().push(cpu));
        // A kick from here on ends the halt at once. SeqCst: either the kicker finds us in the table or we
        // see its store (the machine is sequentially consistent; this only says what is meant).
        if word.load(Ordering::SeqCst) == expected {
            sluice_machine::halt();
        }
        HALTED.with_borrow_mut(|halted| {
            if let Some(cpus) = halted.get_mut(&address) {
                cpus.retain(|other| *other != cpu);
            }
        });
    }

    /// Ends the halt of every CPU that halted for `word`.
    pub fn kick(word: &AtomicU32) {
        let address = std::ptr::from_ref(word).addr();
        let cpus = HALTED.with_borrow(|halted| halted.get(&address).cloned());
        cpus.into_iter().flatten().for_each(sluice_machine::kick);
    }
}

/// CPU numbers: the machine's.
pub mod cpu {
    /// The simulated CPU that the caller runs on; 0 off the machine.
    #[inline]
    pub fn current() -> usize {
        sluice_machine::cpu()
    }

    /// How many CPUs the machine has.
    pub fn count() -> usize {
        sluice_machine::cpus()
    }

    /// One more than the highest CPU number that [`current`] can return: the size of a table indexed by CPU.
    pub fn possible() -> usize {
        sluice_machine::cpus()
    }

    /// The memory node of the calling CPU.
    pub fn node() -> usize {
        sluice_machine::node()
    }

    /// The numbers of the CPUs that the calling thread may run on: all.
    pub fn allowed() -> Vec<usize> {
        (0..count()).collect()
    }

    /// Simulated threads do not move.
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

/// Threads. On the machine every CPU is one thread; it can start no others.
pub mod thread {
    use super::atomic::AtomicU32;

    pub use std::thread::{
        Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, ThreadId, current, panicking, park,
        park_timeout, scope, spawn,
    };

    /// The slots that each host thread takes: its own, and one for each CPU that it simulates.
    const SLOTS: u32 = 1024;
    const _: () = assert!(sluice_machine::CPUS_MAX < SLOTS as usize);

    /// A small number that no other CPU of this machine, nor thread of the host, has.
    #[inline]
    pub fn slot() -> u32 {
        // Lossless: checked above.
        super::super::slot::current() * SLOTS + lane() as u32
    }

    /// The slot: [`membarrier`](super::membarrier) always works here.
    #[inline]
    pub(crate) fn ready_slot() -> u32 {
        slot()
    }

    /// By what a lock names the calling thread as its owner: the slot plus one.
    #[inline]
    pub(crate) fn signature() -> u32 {
        slot() + 1
    }

    /// Which of the threads that the calling one plays it is now: itself, or a CPU, counted from 1.
    #[inline]
    pub(crate) fn lane() -> usize {
        if sluice_machine::on_machine() { 1 + sluice_machine::cpu() } else { 0 }
    }

    /// Whether [`running`] can tell: on the machine.
    pub(crate) const KNOWS_WHO_RUNS: bool = true;

    /// Whether the CPU in `slot` is running now; `None` off the machine.
    #[inline]
    #[track_caller]
    pub fn running(slot: u32) -> Option<bool> {
        let cpu = (slot % SLOTS).checked_sub(1)?;
        (sluice_machine::on_machine() && (cpu as usize) < sluice_machine::cpus())
            .then(|| sluice_machine::is_running(cpu as usize))
    }

    /// Lets others run: on the machine, one pause.
    pub fn yield_now() {
        if sluice_machine::on_machine() {
            sluice_machine::pause(1);
        } else {
            std::thread::yield_now();
        }
    }

    /// Sleeps: on the machine, in simulated time.
    pub fn sleep(time: std::time::Duration) {
        if sluice_machine::on_machine() {
            super::futex::wait(&AtomicU32::new(0), 0, Some(time));
        } else {
            std::thread::sleep(time);
        }
    }
}

/// Clocks: on the machine, simulated time since the run began.
pub mod time {
    use std::ops::{Add, AddAssign, Sub};
    use std::sync::LazyLock;

    pub use std::time::{Duration, SystemTime, UNIX_EPOCH};

    /// The wall clock before a run: any date that is the same in every process.
    const SET_UP: Duration = Duration::from_secs(1_000_000_000);
    /// The wall clock when a run begins, later than the setup.
    const RUN_BEGINS: Duration = Duration::from_secs(1_000_000_001);

    /// The wall clock: it stands still off the machine, and goes with the machine's time on it.
    pub fn wall() -> SystemTime {
        let since = if sluice_machine::on_machine() { RUN_BEGINS + Instant::now().0 } else { SET_UP };
        UNIX_EPOCH + since
    }

    /// How often the wall clock ticks for calls that read it coarsely.
    const TICK: Duration = Duration::from_millis(4);

    /// The wall clock as of its last tick, as whole seconds since 1970 and nanoseconds below one second.
    pub fn realtime_coarse() -> (i64, u32) {
        let since = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Lossless: below one second.
        let into_tick = u128::from(since.subsec_nanos()) % TICK.as_nanos();
        (since.as_secs().cast_signed(), since.subsec_nanos() - into_tick as u32)
    }

    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

    /// A point in time. Points of a run and points outside it do not compare.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(Duration);

    impl Instant {
        /// Now.
        pub fn now() -> Self {
            if sluice_machine::on_machine() {
                let (now, rate) = (sluice_machine::now(), sluice_machine::cycles_per_us());
                let nanos = u128::from(now) * 1000 / u128::from(rate);
                Instant(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
            } else {
                Instant(START.elapsed())
            }
        }

        /// Time since then.
        pub fn elapsed(&self) -> Duration {
            Self::now().duration_since(*self)
        }

        /// Time from `earlier` until this instant; zero if `earlier` was later.
        pub fn duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// Time from `earlier` until this instant; zero if `earlier` was later.
        pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }

        /// The point `time` later, if there is one.
        pub fn checked_add(&self, time: Duration) -> Option<Self> {
            self.0.checked_add(time).map(Instant)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;
        fn add(self, time: Duration) -> Self {
            Instant(self.0 + time)
        }
    }

    impl AddAssign<Duration> for Instant {
        fn add_assign(&mut self, time: Duration) {
            self.0 += time;
        }
    }

    impl Sub for Instant {
        type Output = Duration;
        fn sub(self, earlier: Self) -> Duration {
            self.duration_since(earlier)
        }
    }
}

/// A full memory barrier on every CPU of the machine, paid for by the caller and by each that is interrupted.
#[must_use]
pub fn membarrier() -> bool {
    sluice_machine::membarrier();
    true
}

/// Always.
#[inline]
pub fn membarrier_works() -> bool {
    true
}

/// The cheap side of [`membarrier`]: free.
#[inline]
pub fn light_barrier() {
    sluice_machine::atomic::compiler_fence(atomic::Ordering::SeqCst);
}

/// The [`light_barrier`]: [`membarrier`] always works here.
pub fn registered_barrier() {
    light_barrier();
}
