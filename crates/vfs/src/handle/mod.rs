//! Handles: open files and directories as values that close themselves, in the manner of `std::fs`.
//!
//! A handle is a [`Process`] with one descriptor, counted by all clones of the handle. So a handle lives as long as its
//! users, on any thread, and has the permissions of that process.
//!
//! Calls return [`Errno`], which `?` turns into [`std::io::Error`]. The traits of `std::io` return the latter.

mod dir;
mod entries;
mod file;
mod options;

pub use dir::Dir;
pub use entries::{DirEntry, ReadDir};
pub use file::File;
pub use options::OpenOptions;

use crate::{AtFlags, Errno, Fd, OpenFlags, Process, Stat};
use sluice_sync::Arc;
use std::path::Path;

/// A descriptor and the process that has it. Dropping it closes the descriptor.
#[derive(Debug)]
struct ProcessFd {
    process: Arc<Process>,
    fd: Fd,
}

impl ProcessFd {
    /// Opens `path`, seen from the directory `dir` of `process`.
    fn open(
        process: &Arc<Process>,
        dir: Fd,
        path: &Path,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<ProcessFd, Errno> {
        Ok(ProcessFd { fd: process.openat(dir, path, flags, mode)?, process: process.clone() })
    }

    /// A further descriptor of the same open file.
    fn dup(&self) -> Result<ProcessFd, Errno> {
        Ok(ProcessFd { fd: self.process.dup(self.fd)?, process: self.process.clone() })
    }

    fn stat(&self, path: &Path, flags: AtFlags) -> Result<Stat, Errno> {
        self.process.fstatat(self.fd, path, flags)
    }
}

impl Drop for ProcessFd {
    fn drop(&mut self) {
        // The descriptor is ours alone and open, so there is nothing that could go wrong and be told.
        let _ = self.process.close(self.fd);
    }
}
