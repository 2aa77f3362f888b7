//! Inodes of a store that an observer, such as a kernel, remembers without using them.

use sluice_store::disk::crash::CrashDisk;
use sluice_sync::{Arc, Mutex};
use sluice_vfs::{Cred, Fs, InodeRef, Observer, Options, Superblock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// As a kernel: remembers inodes, and forgets them when it is told to.
struct Rememberer {
    inodes: Mutex<BTreeMap<u64, InodeRef>>,
    asked_for: AtomicUsize,
}

impl Observer for Rememberer {
    fn entry_changed(&self, _dir: u64, _name: &[u8], _child: Option<u64>) {}
    fn attributes_changed(&self, _ino: u64) {}
    fn data_changed(&self, _ino: u64, _offset: u64, _len: u64) {}
    fn memory_is_short(&self, inos: &[u64]) {
        self.asked_for.fetch_add(inos.len(), Ordering::SeqCst);
    }
}

#[test]
fn inodes_that_an_observer_forgets_leave_memory_and_it_is_asked_to() {
    const LIMIT: u64 = 1 << 20;
    let options = Options::default().memory_limit(LIMIT);
    let superblock = Superblock::create_on(Arc::new(CrashDisk::new()), options).expect("memory");
    let fs = Fs::with_superblock(superblock);
    let remembers =
        Arc::new(Rememberer { inodes: Mutex::new(BTreeMap::new()), asked_for: AtomicUsize::new(0) });
    fs.superblock().observe(remembers.clone()).expect("nobody wants to be alone");
    for n in 0..2_000 {
        if n % 50 == 0 {
            fs.create_dir(format!("/{n}")).expect("room");
        }
        let (dir, name) = ((n / 50 * 50).to_string(), n.to_string());
        fs.write(format!("/{dir}/{name}"), "contents").expect("room");
        let lookup = |parent: &InodeRef, name: &str| {
            parent.lookup(&Cred::root(), name.as_bytes()).expect("it is there")
        };
        let inode = lookup(&lookup(fs.superblock().root(), &dir), &name);
        remembers.inodes.lock().insert(inode.ino(), inode);
    }
    let in_memory = || fs.superblock().memory_use().expect("a store").inodes;
    assert!(in_memory() >= 2_000, "all are remembered");
    assert!(remembers.asked_for.load(Ordering::SeqCst) > 1_000);
    let remembered = std::mem::take(&mut *remembers.inodes.lock());
    for inode in remembered.into_values() {
        drop(inode);
        fs.superblock().forgotten(1);
    }
    let used = fs.superblock().memory_use().expect("a store").used;
    assert!(used <= LIMIT + LIMIT / 10, "{used} bytes of {LIMIT}");
    assert!(in_memory() < 1_000, "{} inodes", in_memory());
    assert!(fs.superblock().check_idle().is_clean(), "{}", fs.superblock().check_idle());
}
