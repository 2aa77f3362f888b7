//! Nowhere: where the output of a process in the background goes.

use rustix::fs::{CWD, Mode, OFlags};
use sluice_console::failure::{Context, Result};
use std::os::fd::OwnedFd;

/// The file into which anything may be written.
pub(crate) fn nowhere() -> Result<OwnedFd> {
    let null = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    null.map_err(std::io::Error::from).context(|| "/dev/null")
}

/// Standard output and standard error go nowhere from here on.
pub(crate) fn leave_the_pipes() -> Result<()> {
    leave_for(&nowhere()?)
}

/// Standard output and standard error go to `null` from here on.
pub(crate) fn leave_for(null: &OwnedFd) -> Result<()> {
    let left = rustix::stdio::dup2_stdout(null).and_then(|()| rustix::stdio::dup2_stderr(null));
    left.map_err(std::io::Error::from).context(|| "/dev/null")
}
