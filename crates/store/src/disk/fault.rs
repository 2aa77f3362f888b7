//! FaultDisk: a disk whose n-th write or flush fails, for tests.

use super::{Disk, DiskFile};
use crate::encryption::Cipher;
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicU64, Ordering};
use std::io;

/// A disk that fails at one write, resize, flush or change of a name, or from it on.
#[derive(Debug, Clone)]
pub struct FaultDisk {
    below: Arc<dyn Disk>,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    /// Steps that changed something, or tried to. *atomic, alone*
    steps: AtomicU64,
    /// The step that fails, counted from 0. *immutable*
    at: u64,
    /// All later ones fail too. *immutable*
    lasts: bool,
    /// The errno of a failing step. *immutable*
    errno: i32,
}

#[derive(Debug)]
struct FaultFile {
    below: Arc<dyn DiskFile>,
    plan: Arc<Plan>,
}

impl FaultDisk {
    /// A disk on top of `below` whose step number `at` fails with `errno`; with `lasts`, and all that follow.
    pub fn new(below: Arc<dyn Disk>, at: u64, lasts: bool, errno: i32) -> FaultDisk {
        FaultDisk { below, plan: Arc::new(Plan { steps: AtomicU64::new(0), at, lasts, errno }) }
    }

    /// How many steps there have been.
    pub fn steps(&self) -> u64 {
        self.plan.steps.load(Ordering::SeqCst)
    }
}

impl Plan {
    fn step(&self) -> io::Result<()> {
        let step = self.steps.fetch_add(1, Ordering::SeqCst);
        let fails = step == self.at || self.lasts && step > self.at;
        if fails { Err(io::Error::from_raw_os_error(self.errno)) } else { Ok(()) }
    }
}

impl Disk for FaultDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(super::shared(FaultFile { below: self.below.open(name)?, plan: self.plan.clone() }))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.plan.step()?;
        Ok(super::shared(FaultFile { below: self.below.create(name, len)?, plan: self.plan.clone() }))
    }

    fn cipher(&self) -> Option<Arc<Cipher>> {
        self.below.cipher()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.below.names()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.below.free_bytes()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.plan.step()?;
        self.below.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.plan.step()?;
        self.below.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.plan.step()?;
        self.below.sync_names()
    }
}

impl DiskFile for FaultFile {
    fn size(&self) -> io::Result<u64> {
        self.below.size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.plan.step()?;
        self.below.set_size(size)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.plan.step()?;
        self.below.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.plan.step()?;
        self.below.punch(offset, len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.below.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.plan.step()?;
        self.below.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.step()?;
        self.below.sync()
    }
}
