//! Patience: how long to spin for a sleeping lock before sleeping.
//!
//! # Theory
//! Spinning pays while the owner runs: it will unlock sooner than a sleeper could be woken. On the simulated
//! machine that is known ([`thread::running`]) and a spinner stays until the owner is seen not running.
//! Natively nobody can tell, so a spinner spins a bounded time, about as long as sleeping and being woken
//! costs: then at worst it wastes as much as it could have won (the ski-rental argument: within twice the best).
//! Readers are counted, not named, so nobody can tell of them either.
//!
//! How often to look meanwhile? A look at a lock whose owner is about to lock again takes the line from it; a pause
//! lets a free lock wait. So one looks ever more rarely, until a look finds that nobody has written the line since the
//! last ([`hint::is_quiet`]): then the owner is in one long section, looking is free until it lets go, and one looks
//! all the time. A thread that last found a quiet line makes its first pause short, too.
//!
//! Lining up behind other spinners ([`SpinnerQueue`](crate::spinner::SpinnerQueue)) takes the lock's line away from the
//! owner twice, to come and to go, and the second time the lock is already held meanwhile. So where it is not known that
//! it pays, a spinner looks a few times before. With two threads nearly all locks are got so.

use crate::face::atomic::AtomicU64;
use crate::face::time::{Duration, Instant};
use crate::face::{SHRUNK, hint, thread};

/// How patient threads are with a sleeping lock where nobody knows whether its owner runs; in turns of a waiting loop,
/// where nothing else is said.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From the first look at the lock to the second.
    pub pause_first: u32,
    /// The first pause of a thread that last found the line of a lock quiet.
    pub pause_quiet: u32,
    /// Between two looks at most.
    pub pause_max: u32,
    /// Turns of spinning for the lock before the thread joins the line of spinners.
    pub turns_alone: u32,
    /// Turns of spinning for the lock before sleeping.
    pub turns_max: u32,
    /// Turns of waiting to be first of the spinners.
    pub turns_in_line: u32,
    /// Turns of spinning in the queue of sleepers before the thread really sleeps.
    pub turns_queued: u32,
    /// How often the first sleeper may see the lock go to somebody else before it is handed over to it.
    pub bypass_max: u32,
}

impl Pace {
    /// The measured values that the locks of this crate use (`examples/pace.rs`, docs/measurements.md, section 18).
    pub const MEASURED: Pace = if SHRUNK {
        Pace {
            pause_first: 1,
            pause_quiet: 1,
            pause_max: 1,
            turns_alone: 0,
            turns_max: 1,
            turns_in_line: 1,
            turns_queued: 1,
            bypass_max: 1,
        }
    } else {
        Pace {
            // Less, and two threads take the lock's line from each other all the time; more, and a section of a third
            // of a microsecond is waited for too long.
            pause_first: 3,
            pause_quiet: 1,
            pause_max: 128,
            // Four looks, or more at a quiet line. Where it is known which threads run, the one that looks does so until the
            // lock is free.
            turns_alone: if thread::KNOWS_WHO_RUNS { 0 } else { 45 },
            turns_max: 400,
            turns_in_line: 400,
            turns_queued: 40,
            bypass_max: 64,
        }
    };
}

/// For how long one spins while readers have the lock: twice what sleeping and being woken costs ...
const READERS_WAIT: Duration = Duration::from_micros(if SHRUNK { 0 } else { 10 });
/// ... and for each reader the time to let go of a word that all the others write, too ...
const READER_WAIT: Duration = Duration::from_nanos(if SHRUNK { 0 } else { 500 });
/// ... which that many can be queueing for at most.
const READERS_MAX: u32 = 64;

/// The advice of [`SpinPatience::spin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinVerdict {
    /// Look at the lock again.
    Again,
    /// Sleep.
    Sleep,
}

/// One thread's patience with one lock.
pub(crate) struct SpinPatience {
    pace: Pace,
    turns: u32,
    /// When readers will have been waited for long enough.
    readers_until: Option<Instant>,
}

impl SpinPatience {
    pub(crate) fn new(pace: Pace) -> Self {
        SpinPatience { pace, turns: 0, readers_until: None }
    }

    /// Whether the thread has not yet spun long enough to join the line.
    pub(crate) fn is_young(&self) -> bool {
        self.turns < self.pace.turns_alone
    }

    /// Spins one turn for the lock that `owner` has (none: it is just changing hands), by the lock's word, of which
    /// `unchanged` tells whether it still says so.
    pub(crate) fn spin(&mut self, owner: Option<u32>, unchanged: impl Fn() -> bool) -> SpinVerdict {
        match owner.and_then(thread::running) {
            Some(false) => return SpinVerdict::Sleep,
            // Until the lock's line changes, or the owner stops running.
            Some(true) => hint::spin_loop(),
            None => {
                if self.turns >= self.pace.turns_max {
                    return SpinVerdict::Sleep;
                }
                // Ever rarer looks: each takes the line away from an owner that may be about to lock again.
                let first = if hint::was_quiet() { self.pace.pause_quiet } else { self.pace.pause_first };
                let pause = (self.turns + first).min(self.pace.pause_max);
                self.turns += pause;
                hint::pause(pause);
                if hint::is_quiet(&unchanged) {
                    self.linger(unchanged);
                }
            }
        }
        SpinVerdict::Again
    }

    /// Looks all the time while the word is `unchanged`, until it is time to line up, or to sleep.
    fn linger(&mut self, unchanged: impl Fn() -> bool) {
        let until = if self.is_young() { self.pace.turns_alone } else { self.pace.turns_max };
        while self.turns < until && unchanged() {
            self.turns += 1;
            hint::spin_loop();
        }
    }

    /// Spins while `owner` names a thread that looks like letting go soon.
    pub(crate) fn outlast(mut self, owner: impl Fn() -> Option<u32>) {
        while let Some(now) = owner() {
            if self.spin(Some(now), || owner() == Some(now)) == SpinVerdict::Sleep {
                return;
            }
        }
    }

    /// Spins one turn while `readers` readers have the lock, whose word was `seen`.
    pub(crate) fn spin_for_readers(&mut self, word: &AtomicU64, seen: u64, readers: u64) -> SpinVerdict {
        let now = Instant::now();
        let wait = READERS_WAIT + READER_WAIT * u32::try_from(readers).unwrap_or(u32::MAX).min(READERS_MAX);
        if now >= *self.readers_until.get_or_insert(now + wait) {
            return SpinVerdict::Sleep;
        }
        hint::watch(word, seen, self.pace.pause_max);
        // The next time in line: of writers only the first there is let in ahead of new readers.
        self.turns = self.turns.max(self.pace.turns_alone);
        SpinVerdict::Again
    }
}
