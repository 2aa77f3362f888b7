//! Gate: a disk for tests whose writers can be stopped.

use super::{Disk, DiskFile, shared};
use crate::encryption::Cipher;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::{Arc, Condvar, Mutex};
use std::io;

/// Stops one writer until it is opened; a broken gate stops each writer for good, by a panic in the writing code.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
    pub(crate) is_broken: AtomicBool,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { state: Mutex::new((false, false)), changed: Condvar::new(), is_broken: AtomicBool::new(false) }
    }

    /// The next writer stops.
    pub(crate) fn close(&self) {
        *self.state.lock() = (true, false);
    }

    pub(crate) fn open(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }

    /// Waits until a writer has stopped.
    pub(crate) fn await_caller(&self) {
        let mut state = self.state.lock();
        while !state.1 {
            state = self.changed.wait(state);
        }
    }

    fn pass(&self) {
        assert!(!self.is_broken.load(Ordering::SeqCst), "planned");
        let mut state = self.state.lock();
        if *state == (true, false) {
            state.1 = true;
            self.changed.notify_all();
            while state.0 {
                state = self.changed.wait(state);
            }
        }
    }
}

/// A disk whose writes pass a gate.
#[derive(Debug)]
pub(crate) struct GateDisk {
    pub(crate) below: Arc<dyn Disk>,
    pub(crate) gate: Arc<Gate>,
}

#[derive(Debug)]
pub(crate) struct GateFile(pub(crate) Arc<dyn DiskFile>, pub(crate) Arc<Gate>);

impl Disk for GateDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(shared(GateFile(self.below.open(name)?, self.gate.clone())))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.below.create(name, len)
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
        self.below.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.below.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.below.sync_names()
    }
}

impl DiskFile for GateFile {
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
        self.1.pass();
        self.0.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}
