//! Whole trees: snapshots.

mod snapshots;
mod trees;
