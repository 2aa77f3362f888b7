//! Coherence: whether programs on several mounts of one tree see one file system.
//!
//! # Theory
//! ```text
//!   plan ──> programs on each mount make calls at once ──> history: begin, end and answer of each call
//!   history ──> order: one order of the calls in which a model of a file system gives the same answers
//!   no order ──> shrink: few calls without an order ──> wrong: one line in the field's words
//! ```
//! A history is short and about four names, so that the search for an order ends. Each history has directories of its own, so that
//! histories are independent.
//!
//! This crate starts no processes and has no limits of time: `sluice check-coherence` has both.
//!
//! # Sources
//! Herlihy and Wing, *Linearizability* (TOPLAS 1990). The search is that of Wing and Gong (JPDC 1993) with Lowe's memory of states
//! (*Testing for linearizability*, 2017); calls on names that no call connects are judged apart (Horn and Kroening, *Faster
//! linearizability checking via P-compositionality*, 2015).

#![forbid(unsafe_code)]

mod call;
mod model;
mod order;
mod plan;
mod program;
mod shrink;
mod wrong;

pub use call::{SharedAnswer, SharedCall, SharedLockKind, SharedName, TimedCall};
pub use order::{RoundRules, RoundVerdict, find_order};
pub use plan::{Offered, RoundPlan, plan_round};
pub use program::{CallTimes, SharedDir, monotonic_ns, offered_in};
pub use shrink::shrink;
pub use wrong::what_is_wrong;
