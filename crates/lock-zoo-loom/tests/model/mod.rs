//! How the models are run: bounded in involuntary switches and in time, so that each takes seconds at most.
//!
//! Most models are explored completely within these bounds. Three threads in a queue lock are not: there the
//! search stops after [`SECONDS_MAX`], having tried the executions with the fewest surprises first.

use std::time::Duration;

/// How long one model may search.
const SECONDS_MAX: u64 = 3;

/// Explores the executions of `f` with at most `preemptions` involuntary switches in each.
pub(crate) fn explore(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    // The clock is looked at this often.
    model.checkpoint_interval = 100;
    model.max_duration = Some(Duration::from_secs(SECONDS_MAX));
    model.check(f);
}
