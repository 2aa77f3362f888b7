//! KeptDirectory: the directory of a store as a descriptor, by which the servers of one mount open the store one after the other.
//!
//! A directory may be moved while it is mounted, and another one may take its path. The next server of the mount must open the store that the
//! last one had, so the holder keeps a descriptor of the directory that its servers inherit, and tells its number.

use crate::bucket::Bucket;
use crate::store::directory_of;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{IntoRawFd, RawFd};
use std::path::{Path, PathBuf};

/// The number of a descriptor of the directory that has `store`, which this process and all that it starts have until they end; none for
/// a store that no directory has.
///
/// # Errors
/// The system's.
pub(crate) fn keep(store: &Path) -> io::Result<Option<RawFd>> {
    let Some(dir) = directory_of(store) else { return Ok(None) };
    // Without CLOEXEC: it is inherited.
    match rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
        Ok(kept) => Ok(Some(kept.into_raw_fd())),
        // The server says that this is no store.
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The address by which a server opens `store`, whose directory is the inherited descriptor `kept`, if there is one.
pub(crate) fn address(store: &Path, kept: Option<RawFd>) -> PathBuf {
    match kept {
        None => store.to_owned(),
        Some(kept) if Bucket::is_url(store) => format!("file:///proc/self/fd/{kept}").into(),
        Some(kept) => format!("/proc/self/fd/{kept}").into(),
    }
}
