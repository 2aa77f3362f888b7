//! Shrink: makes a failing sequence as short as it gets.
//!
//! # Theory
//! Delta debugging (Zeller and Hildebrandt, 2002, `ddmin`): take ever smaller pieces away as long as what is left still
//! fails in the same way. The result is minimal in that no single step can be left out.
//!
//! # Cost
//! O(n log n) runs when few steps matter, O(n^2) at worst; `budget` bounds it.

use crate::op::ProcessOp;

/// A shortest subsequence of `steps` that still `fails`, found with at most `budget` trials.
pub fn shrink(
    steps: Vec<ProcessOp>,
    budget: usize,
    mut fails: impl FnMut(&[ProcessOp]) -> bool,
) -> Vec<ProcessOp> {
    let mut steps = steps;
    let mut left = budget;
    let mut piece = steps.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        let mut removed = false;
        while start < steps.len() {
            if left == 0 {
                return steps;
            }
            left -= 1;
            let end = (start + piece).min(steps.len());
            let rest = [&steps[..start], &steps[end..]].concat();
            if fails(&rest) {
                steps = rest;
                removed = true;
            } else {
                start = end;
            }
        }
        match (piece, removed) {
            (1, false) => return steps,
            (1, true) => {}
            _ => piece = piece.div_ceil(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::word::Fd;

    fn close(fd: i32) -> ProcessOp {
        ProcessOp { process: 0, op: Op::Close { fd: Fd(fd) } }
    }

    #[test]
    fn two_steps_that_matter_are_found_among_a_thousand() {
        let steps: Vec<ProcessOp> = (0..1000).map(close).collect();
        let fails = |steps: &[ProcessOp]| steps.contains(&close(17)) && steps.contains(&close(803));
        assert_eq!(shrink(steps, 10_000, fails), vec![close(17), close(803)]);
    }

    #[test]
    fn an_exhausted_budget_leaves_a_sequence_that_still_fails() {
        let steps: Vec<ProcessOp> = (0..1000).map(close).collect();
        let fails = |steps: &[ProcessOp]| steps.contains(&close(17));
        assert!(fails(&shrink(steps, 5, fails)));
    }
}
