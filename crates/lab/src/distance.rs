//! Distance: how long a cache line takes from one CPU to another.
//!
//! # Theory
//! Two threads, each on its CPU, write a word in turn; half of a round is the time that the line takes. CPUs that share
//! a cache are near, others several times as far (docs/measurements.md, section 24): then whatever two tasks share
//! costs so much more. A host may move virtual CPUs meanwhile, and figures before and after the move must not be
//! compared.

use sluice_sync::atomic::{AtomicU32, Ordering};
use sluice_sync::face::hint;
use sluice_sync::{CachePadded, cpu, thread};
use std::time::{Duration, Instant};

/// How often the line goes to and fro.
const ROUNDS: u32 = 10_000;
/// For so long at most: one of the CPUs may be another's.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often a waiting thread looks at the line before it looks at the clock.
const LOOKS: u64 = 4096;
/// Distances of which one is so many times the other are of different kinds.
const OTHER_KIND: f64 = 3.0;

/// Nanoseconds that a line takes from CPU `one` to CPU `other`. `None` if the CPUs are equal or busy, or if the caller
/// may not use them.
pub fn between(one: usize, other: usize) -> Option<f64> {
    if one == other {
        return None;
    }
    let turn = CachePadded::new(AtomicU32::new(0));
    let play = |cpu: usize, first: u32| {
        cpu::pin(cpu).ok()?;
        let begun = Instant::now();
        for round in 0..ROUNDS {
            let mine = 2 * round + first;
            wait_for(&turn, mine, begun)?;
            // Release: pairs with Acquire in wait_for().
            turn.store(mine + 1, Ordering::Release);
        }
        Some(begun.elapsed().as_secs_f64() * 1e9 / f64::from(2 * ROUNDS))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| play(other, 1));
        let one = scope.spawn(|| play(one, 0)).join().ok()?;
        other.join().ok()?.and(one)
    })
}

/// Waits until it is the turn `mine`. `None` if the turn does not come within [`PATIENCE`] of `begun`.
#[inline]
fn wait_for(turn: &AtomicU32, mine: u32, begun: Instant) -> Option<()> {
    let mut looks = 0_u64;
    // Acquire: pairs with Release in between(). Nothing but the line is handed on.
    while turn.load(Ordering::Acquire) != mine {
        looks += 1;
        if looks.is_multiple_of(LOOKS) && begun.elapsed() > PATIENCE {
            return None;
        }
        hint::spin_loop();
    }
    Some(())
}

/// A warning about figures between which these distances, in nanoseconds, were measured; `None` if the distances are of
/// one kind.
pub fn warning(distances: &[f64]) -> Option<String> {
    let (nearest, farthest) =
        distances.iter().fold((f64::MAX, 0.0_f64), |(low, high), at| (low.min(*at), high.max(*at)));
    (farthest > OTHER_KIND * nearest).then(|| {
        format!(
            "the CPUs were moved: a cache line went from one to another in {nearest:.0} ns at times and in {farthest:.0} at \
             others; repeat, or compare only what alternates within one row"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_time_between_two_cpus_and_there_is_none_to_where_one_is_or_may_not_be() {
        if let [one, other, ..] = cpu::allowed()[..] {
            // Another program may have a CPU for longer than the patience lasts.
            let distance =
                (0..100).find_map(|_| between(one, other)).expect("both CPUs at once, in one of 100 tries");
            assert!(distance > 0.0);
            assert_eq!((between(one, one), between(one, usize::MAX)), (None, None));
        }
    }

    #[test]
    fn only_distances_of_two_kinds_are_worth_a_warning() {
        assert_eq!((warning(&[]), warning(&[21.0]), warning(&[21.0, 40.0, 25.0])), (None, None, None));
        let said = warning(&[185.2, 21.4, 24.0]).expect("they differ");
        assert!(said.contains("in 21 ns") && said.contains("in 185"), "{said}");
    }
}
