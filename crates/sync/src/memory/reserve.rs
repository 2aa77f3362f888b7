//! Reserve: memory is asked for before it is taken, so that a full machine is an error and not the end of the process.
//!
//! # Theory
//! Linux promises more memory than it has, and ends a process when the promise is called in. A program that fills memory on behalf of
//! others, as a file system does, therefore looks at what is [left](super::machine) first, and leaves some of it for everything else:
//!
//! ```text
//!   |<----------------------- a bound: machine, control group, process ---------------------->|
//!   |  in use                    |  granted, a quarter |        to be asked again   |  floor   |
//!                                |  CPU 0 | CPU 1 |    |                            |
//! ```
//!
//! To look takes tens of microseconds. So of what is found above the floor a quarter may be granted until somebody
//! looks again: each look finds what others, in this process and in others, have taken meanwhile, and several that look
//! at the same moment do not take it all. Each CPU gets a credit from the granted amount, and takes from it without
//! asking. Where little is left, credits become small, and in the end nothing is granted.
//!
//! Freed memory is not given back here: the next look finds it.
//!
//! Where the system tells nothing, everything is granted.
//!
//! # Cost
//! [`take`](Reserve::take): a read-modify-write of the own CPU's line; a mutex for each credit; and a look for each quarter of what is
//! left, or once a second. [`is_short`](Reserve::is_short): a load of a line that is written when that changes.

use super::Short;
use super::machine::Bound;
use crate::face::atomic::{AtomicBool, AtomicI64, Ordering};
use crate::percpu::PerCpu;
use crate::time::{Duration, Instant};
use crate::{CachePadded, Mutex, OnceLock};

/// The largest credit of a CPU.
const CREDIT_MAX: u64 = 4 << 20;
/// The floor is so small a part of a bound, ...
const FLOOR_PART: u64 = 16;
/// ... within these limits, but at most a quarter of the bound.
const FLOOR_MIN: u64 = 16 << 20;
const FLOOR_MAX: u64 = 512 << 20;
/// The grant between two looks is this fraction of the remaining memory.
const GRANTED_PART: u64 = 4;
/// A look is good for so long.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// The memory that may be taken.
pub struct Reserve {
    /// Bytes that each CPU may take without asking; below 0 while somebody asks. *atomic, alone*
    credits: OnceLock<PerCpu<AtomicI64>>,
    /// Little is left. *atomic, alone*
    is_short: CachePadded<AtomicBool>,
    /// How the bounds are found. *immutable*
    look: fn() -> Vec<Bound>,
    looked: Mutex<Option<Looked>>,
}

/// The memory at the last look.
struct Looked {
    when: Instant,
    /// Above the floor of the nearest bound.
    left: u64,
    /// The part that was granted since.
    granted: u64,
}

impl Reserve {
    /// A reserve within the bounds that `look` finds.
    pub const fn new(look: fn() -> Vec<Bound>) -> Reserve {
        Reserve {
            credits: OnceLock::new(),
            is_short: CachePadded::new(AtomicBool::new(false)),
            look,
            looked: Mutex::new(None),
        }
    }

    /// Whether so little is left that even the smallest use should be asked for.
    #[inline]
    pub fn is_short(&self) -> bool {
        // Relaxed: a hint.
        self.is_short.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, all or none.
    ///
    /// # Errors
    /// [`Short`] when they are not there.
    pub fn take(&self, bytes: u64) -> Result<(), Short> {
        let credit = self.credits.get_or_init(PerCpu::default).here();
        let wanted = i64::try_from(bytes).map_err(|_| Short)?;
        // Relaxed, all of these: a number that stands alone.
        if credit.fetch_sub(wanted, Ordering::Relaxed) >= wanted {
            return Ok(());
        }
        let granted = self.grant(bytes);
        // If nothing is granted, the request returns to the credit; otherwise it stays taken.
        credit.fetch_add(granted.unwrap_or(bytes).cast_signed(), Ordering::Relaxed);
        granted.map(drop).ok_or(Short)
    }

    /// A credit for a caller that needs `bytes`.
    #[cold]
    fn grant(&self, bytes: u64) -> Option<u64> {
        let cpus = self.credits.get().map_or(1, PerCpu::len) as u64;
        let mut looked = self.looked.lock();
        let fresh = looked.take().filter(|looked| {
            bytes <= (looked.left / GRANTED_PART).saturating_sub(looked.granted)
                && looked.when.elapsed() < LOOK_AFTER
        });
        let now = looked.insert(fresh.unwrap_or_else(|| Looked {
            when: Instant::now(),
            left: left_of(&(self.look)()),
            granted: 0,
        }));
        // Relaxed: a hint.
        self.is_short.store(now.left < 4 * CREDIT_MAX * cpus, Ordering::Relaxed);
        if bytes > now.left {
            return None;
        }
        let credit = CREDIT_MAX.min(now.left / (4 * GRANTED_PART * cpus)).max(bytes);
        now.granted += credit;
        Some(credit)
    }

    /// The memory that could be taken now, as far as visible; `u64::MAX` without a bound.
    pub fn left(&self) -> u64 {
        left_of(&(self.look)())
    }

    /// The least of all memory that any bound allows; `None` where there is no bound.
    pub fn total(&self) -> Option<u64> {
        (self.look)().iter().map(|bound| bound.total).min()
    }
}

/// Memory above the floor of the nearest bound.
fn left_of(bounds: &[Bound]) -> u64 {
    bounds.iter().map(|bound| bound.left.saturating_sub(floor_of(bound.total))).min().unwrap_or(u64::MAX)
}

/// The part of a bound that is never granted.
fn floor_of(total: u64) -> u64 {
    (total / FLOOR_PART).clamp(FLOOR_MIN, FLOOR_MAX).min(total / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::AtomicU64;

    const TOTAL: u64 = 1 << 30;

    /// A machine with one bound, of which so much is in use.
    macro_rules! machine {
        ($used:ident) => {{
            fn look() -> Vec<Bound> {
                vec![Bound { total: TOTAL, left: TOTAL - $used.load(Ordering::Relaxed) }]
            }
            Reserve::new(look)
        }};
    }

    #[test]
    fn takers_are_refused_before_the_floor_is_reached_and_granted_again_when_something_is_freed() {
        static USED: AtomicU64 = AtomicU64::new(0);
        let reserve = machine!(USED);
        let mut taken = 0;
        while reserve.take(4096).is_ok() {
            USED.fetch_add(4096, Ordering::Relaxed);
            taken += 4096;
        }
        let most = TOTAL - floor_of(TOTAL);
        assert!(taken <= most + CREDIT_MAX && taken > most - (1 << 20), "{taken} of {most}");
        assert!(reserve.is_short() && reserve.take(4096).is_err());
        USED.store(TOTAL / 2, Ordering::Relaxed);
        assert_eq!(reserve.take(4096), Ok(()));
        assert!(!reserve.is_short());
    }

    #[test]
    fn two_processes_that_look_in_turn_do_not_take_more_than_there_is_together() {
        static USED: AtomicU64 = AtomicU64::new(0);
        let reserves = [machine!(USED), machine!(USED)];
        // Memory is taken late: what was granted is in use only when the other has been granted as much.
        let mut refused = 0;
        while refused < 2 {
            let granted = reserves.iter().filter(|reserve| reserve.take(1 << 20).is_ok()).count() as u64;
            refused = 2 - granted;
            USED.fetch_add(granted << 20, Ordering::Relaxed);
        }
        assert!(USED.load(Ordering::Relaxed) < TOTAL - floor_of(TOTAL) / 2);
    }

    #[test]
    fn absurd_demands_are_refused_and_leave_no_trace() {
        static USED: AtomicU64 = AtomicU64::new(0);
        let reserve = machine!(USED);
        assert_eq!([reserve.take(u64::MAX), reserve.take(TOTAL)], [Err(Short), Err(Short)]);
        assert_eq!(reserve.take(TOTAL / 2), Ok(()));
        assert_eq!(reserve.left(), TOTAL - floor_of(TOTAL));
    }

    #[test]
    fn where_nothing_is_known_everything_is_granted() {
        let reserve = Reserve::new(Vec::new);
        assert_eq!((reserve.take(1 << 60), reserve.is_short()), (Ok(()), false));
    }

    #[test]
    fn a_floor_leaves_most_of_a_small_bound() {
        assert_eq!(floor_of(40 << 20), 10 << 20);
        assert_eq!(floor_of(256 << 20), 16 << 20);
        assert_eq!(floor_of(1 << 40), FLOOR_MAX);
    }
}
