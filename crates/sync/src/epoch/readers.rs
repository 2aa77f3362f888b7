//! Readers: which threads are inside right now, each on a line of its own.
//!
//! # Theory
//! A reader that writes only its own line costs other readers nothing. The side that must know whether anybody
//! is inside (a grace period, a writer) pays instead: it looks at every line.
//!
//! ```text
//!   reader                         the other side
//!   word := stamp                  flag or pointer := new
//!   light barrier       <---->     heavy barrier
//!   load flag or pointer           load word, for each line
//! ```
//!
//! The lines belong to threads, not to CPUs. A thread that is moved to another CPU in the middle of
//! announcing itself takes its line along, so a plain load and store are enough where a line of the CPU would
//! need a locked instruction; and no two threads ever write one line.
//!
//! The low 16 bits of `word` count how deep the thread is inside; the stamp stands above them, and stays when the thread
//! leaves. So leaving takes one off at every depth. Entering asks first: a CPU that has guessed the answer goes on
//! while the store that left the section before is still under way, which an addition would wait for.
//!
//! *Without a barrier* one thing can be known: a thread that has entered with a young stamp has left what was older. Threads
//! that work enter all the time, so the other side looks first for young stamps, and only idle threads are left. For these
//! it takes a barrier, once: it *retires* them, and they are passed over until they come back.
//!
//! ```text
//!   standing:   PRESENT --- is outside, it seems ---> SUSPECT --- barrier; is outside ---> RETIRED
//!                  ^                                     |                                    |
//!                  +---- the thread enters again: store, fence ------------------------------+
//! ```
//!
//! # Invariants
//! - L1 only the thread of a line's slot writes `word`; a guard never leaves its thread;
//! - L2 a line lives as long as its table, so it may be looked at whenever;
//! - L3 one thread at a time makes lines SUSPECT and RETIRED; only a line's own thread makes it PRESENT.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | announce | `enter`: light barrier after the store | [`heavy_barrier`] before the scan | that we are inside |
//! | leave | `leave`: Release store of `word` | Acquire load of `word` in the scan | that our loads are done |
//! | young | `enter`: Release store of `word` | Acquire load of `word` in the scan | that our loads in older sections are done |
//! | wake | `leave`: light barrier after the store | heavy barrier after `sleeper` is made odd | that we have left |
//! | retire | the retiring thread: Release exchange; `come_back`: Release store | Acquire load in the scan | that we had left; that we are back |
//!
//! *announce*, both interleavings: if the heavy barrier takes effect in the reader's thread before its store of
//! `word`, its later loads see everything stored before the barrier; if after, the scan sees the store.
//! *wake*, likewise: either the waiter sees that the reader left, or the reader sees the sleeper.
//! *retire*, twice. Before: if the barrier takes effect in the reader's thread before it looks at `standing`, it finds itself
//! suspected and comes back; if after, the scan sees it inside. After: both `come_back` and a scan have a fence, the one between
//! its store and what the section loads, the other between what it unlinked and its load of `standing`. Either the scan finds
//! the reader back, or the section sees what was unlinked.
//!
//! # Cost
//! Entering and leaving: one store each to the thread's own line, which no other CPU writes except to sleep on
//! it or to retire its thread; no read-modify-write. A scan reads one line per thread slot ever used with this table.
//!
//! # Sources
//! Desnoyers et al., "User-Level Implementations of Read-Copy Update" (2012), the membarrier flavour; membarrier(2).

use crate::face::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::face::{
    Mutant, NearTable, SHRUNK, const_new, futex, hint, light_barrier, membarrier, membarrier_works,
    near_table, registered_barrier, seeded, thread,
};

/// The part of `word` that counts the depth.
const DEPTH: u64 = 0xffff;
/// A stamp for readers that need none.
pub(crate) const INSIDE: u64 = 1;
/// In `sleeper`: membarrier(2) does not work here, so leaving needs a fence.
const FENCED: u32 = 1 << 31;
/// Turns that a waiter spins on a reader's line before it sleeps.
const SPIN_BEFORE_SLEEP: u32 = if SHRUNK { 1 } else { 200 };

/// How often a thread that waits for all readers looks, all in all, whether those at work have begun another section ...
const LOOKS_BEFORE_BARRIER: u32 = if SHRUNK { 1 } else { 16 };
/// ... and for how many turns it lets them alone in between. Together some microseconds, as to interrupt a few CPUs takes.
const TURNS_BETWEEN_LOOKS: u32 = 16;

/// One thread's line.
#[derive(Default)]
pub(crate) struct ReaderLine {
    /// Stamp and depth. *owner only; others read it (announce, leave)*
    word: AtomicU64,
    /// Odd while somebody sleeps, or is about to, until this thread leaves; the rest counts the wake-ups, so that
    /// a second waiter cannot make the first one miss the wake-up that was meant for both. *atomic (wake)*
    sleeper: AtomicU32,
    /// [`PRESENT`], [`SUSPECT`] or [`RETIRED`]. *atomic (retire; L3)*
    standing: AtomicU32,
}

/// The thread may be inside whenever it likes.
const PRESENT: u32 = 0;
/// Like [`PRESENT`], and another thread is about to retire it.
const SUSPECT: u32 = 1;
/// The thread is outside until it says that it is back.
const RETIRED: u32 = 2;

/// The facts about all threads that are visible without a barrier.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// All have passed.
    Passed,
    /// Somebody is inside.
    Inside,
    /// Somebody seemed to be outside, and may have been about to enter.
    Unknown,
}

impl ReaderLine {
    /// Nobody is inside.
    #[cfg(not(feature = "loom"))]
    const fn new() -> ReaderLine {
        ReaderLine { word: AtomicU64::new(0), sleeper: AtomicU32::new(0), standing: AtomicU32::new(PRESENT) }
    }

    /// [`Readers::enter`] for the thread whose line this is, where membarrier(2) works.
    #[inline]
    fn enter(&self, stamp: impl FnOnce() -> u64) {
        // Relaxed: our own store (L1).
        let word = self.word.load(Ordering::Relaxed);
        let word = if is_inside(word) { deeper(word) } else { stamp() };
        // Release(young): our loads in older sections are done; pairs with Acquire(young) in the scan. The barrier orders it
        // with the loads that follow (announce).
        self.word.store(word, Ordering::Release);
        if !seeded(Mutant::AnnounceWithoutBarrier) {
            // Barrier(announce): pairs with heavy_barrier() before a scan.
            registered_barrier();
        }
    }

    /// How deep the calling thread, whose line this is, is inside.
    pub(crate) fn own_depth(&self) -> u64 {
        // Relaxed: our own store (L1).
        self.word.load(Ordering::Relaxed) & DEPTH
    }

    /// The stamp of the calling thread, whose line this is, with depth 1.
    pub(crate) fn stamp(&self) -> u64 {
        // Relaxed: our own store (L1).
        self.word.load(Ordering::Relaxed) & !DEPTH | INSIDE
    }

    /// The missing part of [`enter`](Self::enter) without membarrier(2): a fence, and a mark that makes leaving take a
    /// fence too.
    fn fence(&self) {
        // Relaxed: only this thread needs to see the mark.
        self.sleeper.fetch_or(FENCED, Ordering::Relaxed);
        light_barrier();
    }

    /// To be called after each entering by a retired thread: tells that the thread, whose line this is, is back.
    #[inline]
    pub(crate) fn come_back(&self) {
        // Relaxed: the barrier in enter() orders it (retire).
        if self.standing.load(Ordering::Relaxed) != PRESENT && !seeded(Mutant::RetiredAndInside) {
            self.come_back_slowly();
        }
    }

    #[cold]
    fn come_back_slowly(&self) {
        // Release(retire): a thread that finds us back finds that we are inside; pairs with Acquire(retire) in scan(). A store would come
        // after the retirement too, although we may have seen the suspicion only; but the model checker does not know.
        self.standing.swap(PRESENT, Ordering::Release);
        // SeqCst(retire): pairs with the fence in scan().
        fence(Ordering::SeqCst);
    }

    /// Whether the thread is outside until it says that it is back.
    fn is_retired(&self) -> bool {
        // Acquire(retire): pairs with Release(retire) in retire_suspect(), and in come_back().
        self.standing.load(Ordering::Acquire) == RETIRED
    }

    /// As far as can be seen, the thread is outside: it is about to be retired.
    fn suspect(&self) {
        // Relaxed: the barrier orders it (retire).
        self.standing.store(SUSPECT, Ordering::Relaxed);
    }

    /// Retires the thread if it is suspected and has not come back. It was seen outside after the barrier.
    fn retire_suspect(&self) {
        // Release(retire): that it had left, as we have seen; pairs with Acquire(retire) in is_retired().
        _ = self.standing.compare_exchange(SUSPECT, RETIRED, Ordering::Release, Ordering::Relaxed);
    }

    /// [`Readers::enter`] where something else than the barrier orders the store before every scan.
    pub(crate) fn enter_ordered(&self) {
        // Relaxed: the caller's lock publishes it.
        self.word.store(INSIDE, Ordering::Relaxed);
    }

    /// Takes back one entrance.
    #[inline]
    pub(crate) fn leave(&self) {
        // Relaxed: our own store (L1).
        let word = self.word.load(Ordering::Relaxed);
        debug_assert!(is_inside(word), "leaving without having entered");
        // Release(leave): our loads are done; pairs with Acquire(leave) in the scan.
        self.word.store(word - 1, Ordering::Release);
        // Barrier(wake): pairs with heavy_barrier() in wait_for(). Where it is not enough, `FENCED` says so.
        registered_barrier();
        // Relaxed: a flag that publishes nothing.
        if self.sleeper.load(Ordering::Relaxed) & (FENCED | 1) != 0 {
            self.leave_slow();
        }
    }

    #[cold]
    fn leave_slow(&self) {
        // Barrier(wake): as in leave(), with a fence where membarrier(2) does not work.
        light_barrier();
        // Relaxed: a flag that publishes nothing.
        if self.sleeper.load(Ordering::Relaxed) & 1 != 0 && self.own_depth() == 0 {
            // Relaxed: the sleeper looks at `word` again, with Acquire. The word is odd, and only this thread makes it
            // even.
            self.sleeper.fetch_add(1, Ordering::Relaxed);
            futex::wake(&self.sleeper, u32::MAX);
        }
    }

    /// Waits until `passed` holds of the word.
    fn wait_for(&self, passed: impl Fn(u64) -> bool) {
        for _ in 0..SPIN_BEFORE_SLEEP {
            // Acquire(leave): pairs with Release(leave) in leave().
            if passed(self.word.load(Ordering::Acquire)) {
                return;
            }
            hint::spin_loop();
        }
        loop {
            // Relaxed: the barrier orders it (wake). It may stay odd after we are gone: one needless wake-up.
            let sleeper = self.sleeper.fetch_or(1, Ordering::Relaxed) | 1;
            // Barrier(wake): pairs with light_barrier() in leave().
            heavy_barrier();
            // Acquire(leave): as above.
            if passed(self.word.load(Ordering::Acquire)) {
                return;
            }
            futex::wait(&self.sleeper, sleeper, None);
        }
    }
}

/// Whether the thread whose line holds `word` is inside.
#[inline]
pub(crate) fn is_inside(word: u64) -> bool {
    word & DEPTH != 0
}

#[cold]
fn deeper(word: u64) -> u64 {
    assert!(word & DEPTH < DEPTH, "a thread nests 65,535 read sections at most: are guards forgotten?");
    word + 1
}

/// The lines of all threads.
pub(crate) struct Readers {
    /// By thread slot.
    lines: NearTable<ReaderLine>,
}

impl Readers {
    const_new! {
        /// Nobody is inside.
        pub(crate) fn new() -> Self {
            Readers { lines: near_table!(ReaderLine::new()) }
        }
    }

    /// Announces the calling thread and gives its line, to leave by. `stamp` has depth 1; a thread that is inside already
    /// goes one level deeper and keeps the stamp it has.
    #[inline]
    pub(crate) fn enter(&self, stamp: impl FnOnce() -> u64) -> &ReaderLine {
        match self.lines.near(thread::ready_slot()) {
            Some(line) => {
                line.enter(stamp);
                line
            }
            None => self.enter_far(stamp),
        }
    }

    /// [`enter`](Self::enter) for a thread with a high slot or none yet, or without membarrier(2).
    #[cold]
    fn enter_far(&self, stamp: impl FnOnce() -> u64) -> &ReaderLine {
        let line = self.own();
        line.enter(stamp);
        if !membarrier_works() {
            line.fence();
        }
        line
    }

    /// The calling thread's line.
    fn own(&self) -> &ReaderLine {
        self.lines.get(thread::slot())
    }

    /// Whether the calling thread is inside.
    pub(crate) fn own_inside(&self) -> bool {
        self.own().own_depth() != 0
    }

    /// Whether `passed` holds of every word now. Call [`heavy_barrier`] before the first look.
    pub(crate) fn all(&self, passed: impl Fn(u64) -> bool) -> bool {
        // Acquire(leave): pairs with Release(leave) in leave().
        self.lines.iter().all(|line| passed(line.word.load(Ordering::Acquire)))
    }

    /// Whether all threads have passed that are not retired: those whose words are young, since they began after what the
    /// caller has changed.
    pub(crate) fn scan(&self, is_young: impl Fn(u64) -> bool) -> Scan {
        // SeqCst(retire): pairs with the fence in come_back().
        fence(Ordering::SeqCst);
        let mut scan = Scan::Passed;
        for line in self.lines.iter() {
            // Acquire(young, leave): pairs with Release in enter() and leave().
            match line.word.load(Ordering::Acquire) {
                // Nothing else is asked of a line that its thread writes all the time.
                word if is_young(word) => {}
                _ if line.is_retired() => {}
                word if is_inside(word) => return Scan::Inside,
                _ => scan = Scan::Unknown,
            }
        }
        scan
    }

    /// Gives threads that have not passed the time to begin another section, for a caller that is outside and can wait a little.
    /// Returns whether all have passed; see [`scan`](Self::scan).
    pub(crate) fn pass_soon(&self, is_young: impl Fn(u64) -> bool) -> bool {
        // SeqCst(retire): pairs with the fence in come_back().
        fence(Ordering::SeqCst);
        let own = self.own();
        let mut looks = LOOKS_BEFORE_BARRIER;
        for line in self.lines.iter().filter(|line| !std::ptr::eq(*line, own)) {
            // Acquire(young): as in scan().
            while !is_young(line.word.load(Ordering::Acquire)) && !line.is_retired() {
                if looks == 0 {
                    return false;
                }
                looks -= 1;
                hint::pause(TURNS_BETWEEN_LOOKS);
            }
        }
        true
    }

    /// Takes a barrier, so that all threads outside have passed, and retires threads that seem to idle. Returns whether all have
    /// passed; see [`scan`](Self::scan). One thread at a time may call it (L3).
    pub(crate) fn retire(&self, is_young: impl Fn(u64) -> bool) -> bool {
        for line in self.lines.iter().filter(|line| !line.is_retired()) {
            // Relaxed: a hint of whom to retire.
            let word = line.word.load(Ordering::Relaxed);
            if !is_young(word) && !is_inside(word) {
                line.suspect();
            }
        }
        // Barrier(announce, retire): pairs with the light barrier in enter().
        heavy_barrier();
        let mut have_passed = true;
        for line in self.lines.iter().filter(|line| !line.is_retired()) {
            // Acquire(young, leave): as in scan().
            match line.word.load(Ordering::Acquire) {
                word if is_young(word) => {}
                word if is_inside(word) => have_passed = false,
                _ => line.retire_suspect(),
            }
        }
        have_passed
    }

    /// Waits until `passed` has held of every word. Call [`heavy_barrier`] before.
    pub(crate) fn wait_for_all(&self, passed: impl Fn(u64) -> bool) {
        for line in self.lines.iter() {
            // Acquire(leave): as in all().
            if !passed(line.word.load(Ordering::Acquire)) {
                line.wait_for(&passed);
            }
        }
    }
}

/// The expensive side of the asymmetric barrier: membarrier(2), or a fence where readers use one too.
pub(crate) fn heavy_barrier() {
    while !membarrier() {
        if !membarrier_works() {
            // SeqCst: pairs with the fence that light_barrier() then is; interleavings in the header.
            fence(Ordering::SeqCst);
            return;
        }
        // The kernel may be out of memory for a moment.
        thread::yield_now();
    }
}
