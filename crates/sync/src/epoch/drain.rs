//! Drain: the thread that frees what threads leave that have become idle, and gives memory back to the system.
//!
//! # Theory
//! Dead memory waits: a node for a grace period, an object for two epochs. The threads that work see to both as they go
//! on, and keep what they free for what they make next. A thread that stops leaves its last batches, which may hold
//! gigabytes. So a thread that leaves something *asks*, and if no drain runs, one is started:
//!
//! ```text
//!   threads   work, ask        work    idle ...
//!   drain          | start |.......|.......|.......|.......|  end
//!                            pass    pass    pass    pass     nothing is left: pages, blocks and the allocator's
//!                            busy    busy    frees   frees    memory go back to the system
//! ```
//!
//! A pass takes what its owner has not touched since the pass before, by the ways that are there for others anyway: a bag's
//! mutex, an epoch's visit to laggards. A thread that works is left alone. When nothing is left the thread ends, so an idle
//! process has no wake-ups, and a library no thread for ever.
//!
//! On simulated machines, under loom and under Miri there is no such thread; [`Switch`], and what a pass does, are modelled.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | ask | what was left; then the load in [`Switch::ask`] | [`Switch::rest`]; then the last look | what was left |
//!
//! *ask*, both interleavings: what is left is left under a mutex that the last look takes too, or before a fence. Either the
//! look finds it, or the load comes after the store in `rest` and finds the switch off.
//!
//! # Cost
//! To ask: one load of a line that is written when a drain starts or ends. A pass: the mutex of each thread's bag, and one
//! barrier where a thread has not been flushed since the pass before.

use crate::face::atomic::{AtomicU32, Ordering, fence};
use crate::face::{Mutant, const_new, seeded};

#[cfg(not(any(feature = "loom", feature = "sim", miri)))]
pub use self::running::register;
#[cfg(not(any(feature = "loom", feature = "sim", miri)))]
pub(crate) use self::running::{ask, give_back, kept_bytes, note_freed};

const OFF: u32 = 0;
const ON: u32 = 1;

/// Whether somebody drains.
pub struct Switch(AtomicU32);

impl Switch {
    const_new! {
        /// Nobody does.
        pub fn new() -> Self {
            Switch(AtomicU32::new(OFF))
        }
    }

    /// For a thread that has left something, under a mutex that is still locked, or before a fence: whether the caller must
    /// start a drain.
    #[inline]
    pub fn ask(&self) -> bool {
        // Relaxed: see *ask*.
        self.0.load(Ordering::Relaxed) == OFF && self.turn_on()
    }

    /// Whether the caller has turned it on.
    #[cold]
    fn turn_on(&self) -> bool {
        // Acquire: the drain before has ended; pairs with Release in rest().
        self.0.compare_exchange(OFF, ON, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The drain is about to end: it must look once more, and [`resume`](Self::resume) if it finds something.
    pub fn rest(&self) {
        // Release: pairs with Acquire in turn_on().
        self.0.store(OFF, Ordering::Release);
        if !seeded(Mutant::RestWithoutFence) {
            // SeqCst(ask): pairs with the fence of a thread that asks; under a mutex it needs none.
            fence(Ordering::SeqCst);
        }
    }

    /// Whether the drain that rests is to go on. If not, another was started.
    pub fn resume(&self) -> bool {
        self.turn_on()
    }
}

impl Default for Switch {
    fn default() -> Self {
        Switch::new()
    }
}

/// Memory that is kept for reuse and can be given back.
pub trait Kept: Sync {
    /// How many bytes are kept.
    fn kept_bytes(&self) -> u64;

    /// How many bytes too many to be kept went back to the allocator since the last call of [`give_back`](Self::give_back).
    fn freed_bytes(&self) -> u64;

    /// Gives all back to the allocator.
    fn give_back(&self);
}

/// Lets a drain give back what `kept` keeps.
#[cfg(any(feature = "loom", feature = "sim", miri))]
pub fn register(_kept: &'static dyn Kept) {}

/// How many bytes are kept of what is registered.
#[cfg(any(feature = "loom", feature = "sim", miri))]
pub(crate) fn kept_bytes() -> u64 {
    0
}

/// Asks for a drain. To be called as [`Switch::ask`] says.
#[cfg(any(feature = "loom", feature = "sim", miri))]
#[inline]
pub(crate) fn ask() {}

/// Gives back what is kept, and the allocator's free memory to the system.
#[cfg(miri)]
pub(crate) fn give_back() {}

/// Notes that so many bytes went back to the allocator.
#[cfg(any(feature = "loom", feature = "sim", miri))]
#[inline]
pub(crate) fn note_freed(_bytes: usize) {}

/// The thread itself.
#[cfg(not(any(feature = "loom", feature = "sim", miri)))]
mod running {
    use super::{Kept, Switch};
    use crate::face::CachePadded;
    use crate::face::atomic::{AtomicU64, Ordering};
    use crate::memory::{self, blocks};
    use crate::time::Duration;
    use crate::{Mutex, rcu, refcache, thread};

    /// The time between two passes, ...
    const PAUSE_MIN: Duration = Duration::from_millis(200);
    /// ... and where all have work.
    const PAUSE_MAX: Duration = Duration::from_millis(500);
    /// So much must have gone back to the allocator before that is asked to give it back to the system, which takes it tens of
    /// microseconds and more.
    const TRIM_MIN: u64 = 1 << 20;
    /// The same while threads are at work. A thread that allocates meanwhile waits.
    const TRIM_AT_WORK_MIN: u64 = 64 << 20;

    static SWITCH: CachePadded<Switch> = CachePadded::new(Switch::new());
    /// Bytes that returned to the allocator since its last trim. *atomic, alone*
    static FREED: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
    /// The other owners of memory that can be given back.
    static KEPT: Mutex<Vec<&'static dyn Kept>> = Mutex::new(Vec::new());

    /// Lets a drain give back what `kept` keeps.
    pub fn register(kept: &'static dyn Kept) {
        KEPT.lock().push(kept);
    }

    /// Asks for a drain. To be called as [`Switch::ask`] says.
    #[inline]
    pub(crate) fn ask() {
        if SWITCH.ask() {
            start();
        }
    }

    /// Notes that so many bytes went back to the allocator.
    pub(crate) fn note_freed(bytes: usize) {
        // Relaxed: a number that stands alone.
        FREED.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How many bytes are kept of what is registered.
    pub(crate) fn kept_bytes() -> u64 {
        KEPT.lock().iter().map(|kept| kept.kept_bytes()).sum()
    }

    #[cold]
    fn start() {
        if thread::Builder::new().name("sluice-drain".into()).spawn(run).is_err() {
            // No thread can be had now. The next thread that asks tries again.
            SWITCH.rest();
        }
    }

    /// The draining thread has panicked in a client's destructor: another may drain.
    struct Panicked;

    impl Drop for Panicked {
        fn drop(&mut self) {
            if std::thread::panicking() {
                SWITCH.rest();
            }
        }
    }

    fn run() {
        let _panicked = Panicked;
        let mut counting = refcache::Draining::default();
        let (mut pause, mut freed_before) = (PAUSE_MIN, 0);
        loop {
            thread::sleep(pause);
            let (deferred, counts) = (rcu::domain().drain_idle(), counting.pass());
            if deferred == rcu::Drained::Nothing && !counts {
                give_back();
                SWITCH.rest();
                let is_left = rcu::domain().deferred() > 0 || refcache::is_counting();
                if !is_left || !SWITCH.resume() {
                    return;
                }
            }
            pause = if deferred == rcu::Drained::Some { PAUSE_MIN } else { PAUSE_MAX.min(pause * 2) };
            let freed = freed();
            if freed >= TRIM_AT_WORK_MIN && freed == freed_before {
                trim();
            }
            freed_before = freed;
        }
    }

    /// Bytes that returned to the allocator since its last trim.
    fn freed() -> u64 {
        let others: u64 = KEPT.lock().iter().map(|kept| kept.freed_bytes()).sum();
        // Relaxed: a number that stands alone.
        FREED.load(Ordering::Relaxed) + others
    }

    /// Returns kept memory to the allocator, and the allocator's free memory to the system, if the amount is worth it.
    pub(crate) fn give_back() {
        if freed() + kept_bytes() + blocks::boxed_bytes() as u64 >= TRIM_MIN {
            blocks::empty_boxes();
            trim();
        }
    }

    fn trim() {
        KEPT.lock().iter().for_each(|kept| kept.give_back());
        // Relaxed: a number that stands alone.
        FREED.store(0, Ordering::Relaxed);
        memory::trim();
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::Arc;
        use crate::atomic::AtomicBool;

        #[test]
        fn what_an_idle_thread_deferred_and_dropped_is_freed_and_the_drain_ends() {
            let freed = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let [deferred, dropped] = freed.clone();
            rcu::domain().defer(move || deferred.store(true, Ordering::Relaxed));
            struct Noted(Arc<AtomicBool>);
            impl Drop for Noted {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            drop(crate::Ref::new(Noted(dropped)));
            let start = crate::time::Instant::now();
            while !freed.iter().all(|freed| freed.load(Ordering::Relaxed)) {
                assert!(start.elapsed() < Duration::from_secs(60), "it is still there: {freed:?}");
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
