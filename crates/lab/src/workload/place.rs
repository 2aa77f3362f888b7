//! Place: whose directory a task's file is in, and whether others use the same file.

use super::{Seat, wrong};
use crate::target::{CallResult, Calls, Handle, Open, write_all};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

/// Where the file of a task is: how much it shares with the other tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FilePlace {
    /// A file of one's own in a directory of one's own.
    Own,
    /// A file of one's own in the directory of all.
    Beside,
    /// The one file of all.
    Same,
}

/// A file at a place.
pub(super) struct Spot {
    pub(super) path: String,
    pub(super) shared: bool,
}

impl Seat {
    /// The task's file at `place`.
    pub(super) fn spot(&self, place: FilePlace) -> Spot {
        let path = match place {
            FilePlace::Own => format!("{}/file", self.dir),
            FilePlace::Beside => format!("{}/file-{}", self.shared, self.index),
            FilePlace::Same => format!("{}/file", self.shared),
        };
        Spot { path, shared: place == FilePlace::Same }
    }
}

impl Spot {
    /// Makes the file, with `data` at `offset`. Every task of a shared file does so with the same data, or at an
    /// offset of its own, so that it does not matter which task comes first.
    pub(super) fn make(&self, calls: &mut dyn Calls, data: &[u8], offset: u64) -> CallResult<()> {
        let file = self.open_new(calls)?;
        let written = write_all(calls, file, data, offset);
        calls.close(file)?;
        written
    }

    /// Makes the file, as [`make`](Self::make) does, but empty, and leaves it open.
    pub(super) fn open_new(&self, calls: &mut dyn Calls) -> CallResult<Handle> {
        calls.open(&self.path, if self.shared { Open::Create(0o600) } else { Open::New(0o600) })
    }

    /// Removes the file, unless others may still use it: what is shared goes with the directory of the run.
    pub(super) fn remove(&self, calls: &mut dyn Calls) -> CallResult<()> {
        if self.shared { Ok(()) } else { calls.unlink(&self.path) }
    }
}

/// Makes a directory unless another task has made it already.
pub(super) fn make_dir(calls: &mut dyn Calls, path: &str) -> CallResult<()> {
    match calls.mkdir(path) {
        Err(Errno::EEXIST) => Ok(()),
        other => other,
    }
}

/// Checks that there is nothing at `path`.
pub(super) fn check_absent(calls: &mut dyn Calls, path: &str) -> Result<()> {
    match calls.stat(path) {
        Err(Errno::ENOENT) => Ok(()),
        other => wrong(format!("{path}, which was removed, answers {other:?}")),
    }
}
