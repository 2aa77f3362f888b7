//! Import from and export to the host and tar archives.

mod directories;
mod malformed;
mod tar_archives;
mod trees;
