//! How the models are run: bounded in involuntary switches and in time, so that each takes seconds at most.
//!
//! Most models are explored completely within these bounds. Three threads in a queue lock are not: there the
//! search stops after [`SECONDS_MAX`], having tried the executions with the fewest surprises first.

use crate::face::is_any_seeded;
use std::time::Duration;

/// How long one model may search.
const SECONDS_MAX: u64 = 3;
/// How long it may search for a planted fault, which ends the search: the machine may be busy.
const SECONDS_MAX_FOR_A_FAULT: u64 = 120;

/// Explores the executions of `f` with at most `preemptions` involuntary switches in each.
pub(crate) fn explore(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let seconds = if is_any_seeded() { SECONDS_MAX_FOR_A_FAULT } else { SECONDS_MAX };
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    // The clock is looked at this often.
    model.checkpoint_interval = 100;
    model.max_duration = Some(Duration::from_secs(seconds));
    model.check(f);
}
