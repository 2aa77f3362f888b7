//! Whole trees: import from and export to the host and tar archives.

mod directories;
mod malformed;
mod on_host;
mod snapshots;
mod tar_archives;
#[path = "../../../vfs/tests/suite/host/trees.rs"]
mod trees;
