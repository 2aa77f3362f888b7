//! Whole trees: import from and export to the host and tar archives, and snapshots.

mod directories;
mod malformed;
mod snapshots;
mod tar_archives;
mod trees;
