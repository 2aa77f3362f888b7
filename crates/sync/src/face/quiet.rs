//! Whether a line is written, told by how long a look at it takes.
//!
//! # Theory
//! A thread that spins for a lock cannot see what its owner does. It may hold the lock for long: then looking often costs it
//! nothing until it lets go. Or it takes the lock over and over: then each look takes the line away from it. But a line
//! that nobody has written since one's last look is still in one's own cache, and looking again takes a few cycles; one
//! that was written comes from another CPU's cache, and that takes a hundred. The cycle counter tells them apart.
//!
//! It is a guess, and only a matter of speed: after an interrupt a line looks busy, and with a writer that is slower than
//! the pause between two looks it looks quiet.
//!
//! # Sources
//! Intel's "How to Benchmark Code Execution Times" for the fences about the counter; that such a look tells of other
//! CPUs is Yarom and Falkner, "FLUSH+RELOAD" (2014), for another use.

use std::cell::Cell;

std::thread_local! {
    static WAS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether the word at which `unchanged` looks, by one load, still says what it did, and nobody has written its line since
/// the last look, as far as can be told. No, where there is no fine counter of cycles, or no need: on the simulated machine
/// a waiting CPU rests until the line changes.
#[inline]
pub fn is_quiet(unchanged: impl FnOnce() -> bool) -> bool {
    ticks::is_quick(unchanged).inspect(|is_quick| WAS_QUIET.set(*is_quick)).unwrap_or(false)
}

/// The last answer of [`is_quiet`] to the calling thread, for an unchanged word.
#[inline]
pub fn was_quiet() -> bool {
    WAS_QUIET.get()
}

#[cfg(all(target_arch = "x86_64", not(any(miri, feature = "loom", feature = "sim"))))]
mod ticks {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    use std::hint::black_box;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Whether `look` took no longer than a look at one's own cache; none if it said no, as soon as it did.
    #[inline]
    pub(super) fn is_quick(look: impl FnOnce() -> bool) -> Option<bool> {
        let ticks = ticks_of(look)?;
        // Relaxed: the figure stands for itself; two threads may both find one.
        let quick = match OWN_CACHE.load(Ordering::Relaxed) {
            0 => calibrate(),
            quick => quick,
        };
        Some(ticks <= quick)
    }

    /// The most ticks that a look takes which finds its line in the CPU's own cache; 0 before they are known.
    static OWN_CACHE: AtomicU64 = AtomicU64::new(0);

    /// The ticks of the counter that `look` took, and the counting itself; none if it said no.
    #[inline]
    fn ticks_of(look: impl FnOnce() -> bool) -> Option<u64> {
        // SAFETY: every x86-64 CPU has both instructions, and neither touches memory. Linux lets a program read the
        // counter unless the program asks to be kept from it (PR_SET_TSC).
        let (now, loads_done) = (|| unsafe { _rdtsc() }, || unsafe { _mm_lfence() });
        let begin = now();
        loads_done();
        if !look() {
            return None;
        }
        loads_done();
        Some(now().wrapping_sub(begin))
    }

    /// Finds `OWN_CACHE`: half more than the look in the middle of some, as two of them may differ by a tick.
    #[cold]
    fn calibrate() -> u64 {
        let word = AtomicU64::new(0);
        // Relaxed: nobody else knows the word.
        let look = || black_box(&word).load(Ordering::Relaxed) == 0;
        let mut ticks = [(); 31].map(|()| ticks_of(look).unwrap_or(0));
        ticks.sort_unstable();
        let quick = (ticks[ticks.len() / 2] * 3 / 2).max(1);
        OWN_CACHE.store(quick, Ordering::Relaxed);
        quick
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, feature = "loom", feature = "sim")))))]
mod ticks {
    /// Nobody can tell.
    pub(super) fn is_quick(_look: impl FnOnce() -> bool) -> Option<bool> {
        None
    }
}

#[cfg(all(test, target_arch = "x86_64", not(any(miri, feature = "loom", feature = "sim"))))]
mod tests {
    use super::{is_quiet, was_quiet};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_line_of_ones_own_is_quiet_and_a_changed_word_is_not() {
        let word = AtomicU32::new(7);
        let quiet = || is_quiet(|| word.load(Ordering::SeqCst) == 7);
        // An interrupt may fall into one look, or two.
        assert!((0..1_000).any(|_| quiet()));
        let before = was_quiet();
        word.store(8, Ordering::SeqCst);
        assert!(!(0..1_000).any(|_| quiet()));
        assert_eq!(was_quiet(), before, "a changed word tells nothing of its line");
    }
}
