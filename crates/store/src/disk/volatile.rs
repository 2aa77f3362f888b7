//! VolatileDisk: another disk without its flushes, for a store that needs to survive no crash.

use super::{Disk, DiskFile, shared};
use crate::encryption::Cipher;
use sluice_sync::Arc;
use std::io;

/// A disk that ignores flushes.
#[derive(Debug)]
pub(crate) struct VolatileDisk(Arc<dyn Disk>);

#[derive(Debug)]
struct VolatileFile(Arc<dyn DiskFile>);

impl VolatileDisk {
    pub(crate) fn new(below: Arc<dyn Disk>) -> VolatileDisk {
        VolatileDisk(below)
    }
}

impl Disk for VolatileDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.open(name).map(|file| shared(VolatileFile(file)))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(name, len).map(|file| shared(VolatileFile(file)))
    }

    fn cipher(&self) -> Option<Arc<Cipher>> {
        self.0.cipher()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }

    fn unlock(&self) {
        self.0.unlock();
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for VolatileFile {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_size(size)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch(offset, len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
