//! Hot lines: cache lines of the simulated machine, and places in the source, where CPUs waited most.

use serde::{Deserialize, Serialize};

/// A cache line of the simulated machine that CPUs waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotLine {
    /// The type and field that lie in it.
    pub name: String,
    /// CPUs that wrote it.
    pub writers: usize,
    /// Cycles that CPUs waited for it per operation.
    pub wait_cycles_per_op: f64,
}

/// A place in the source where CPUs of the simulated machine waited for cache lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotPlace {
    /// File and line.
    pub name: String,
    /// How many cache lines they waited for there.
    pub lines: u64,
    /// How often a line had to be brought, per operation.
    pub misses_per_op: f64,
    /// Cycles that CPUs waited there per operation.
    pub wait_cycles_per_op: f64,
}
