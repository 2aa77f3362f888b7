//! NoDisk: the disk of a store whose engine keeps everything: there are no files.

use super::{Disk, DiskFile};
use sluice_sync::Arc;
use std::io;

/// A disk on which nothing can be made.
#[derive(Debug)]
pub(crate) struct NoDisk;

impl Disk for NoDisk {
    fn open(&self, _name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn create(&self, _name: &str, _len: u64) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Free space is unknown here: the engine reports when it has no room.
    fn free_bytes(&self) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}
