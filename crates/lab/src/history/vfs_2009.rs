//! VFS of 2009: open, close, create and unlink through global locks, and as the source split them.
//!
//! # Theory
//! *Before*: the list of open files under `files_lock`, all names and their list of unused ones under `dcache_lock`,
//! all inodes, their numbers and the superblock's list under `inode_lock`, the mount table under `vfsmount_lock`, and
//! one count of references to the mount. All are spin locks without order, as POWER had them, and each protects the
//! heads of lists that every holder writes. *Source*: the same work with the lists, the counts, the ranges of inode
//! numbers and the mount lock per CPU, and the locks of names and inodes split until each is one file's. Both leave the
//! directory's lines: its mutex for creating and unlinking, and its reference count during a walk.
//!
//! # Sources
//! The five cures of S4; single-task costs from the POWER7 table of July 2010: 384,558 opens and closes a second and
//! 145,891 creates and unlinks, at 3.5 GHz, are 9,100 and 24,000 cycles.

use super::sync::atomic::{AtomicU64, Ordering};
use super::sync::{CachePadded, Mutex};
use super::zoo::{RawSpinLock, Tas};
use super::{Cpu, Line};

/// Computing between the locks of an open with its close, in cycles.
const OPEN_CLOSE_REST: u64 = 8_000;
/// Computing between the locks of a create with its unlink, without the open and the close in it.
const CREATE_UNLINK_REST: u64 = 13_000;
/// Computing under a lock.
const INSIDE: u64 = 60;

/// A list with its lock.
#[derive(Default)]
struct LockedList {
    lock: CachePadded<Tas>,
    head: Line, // protected by `lock`
}

impl LockedList {
    /// Adds to the list, or removes from it.
    fn change(&self, cpu: &Cpu) {
        self.lock.lock();
        self.head.write();
        cpu.work(INSIDE);
        self.lock.unlock(());
    }
}

/// State that [`Design::Before`] has once and [`Design::Source`] once per CPU.
#[derive(Default)]
struct Part {
    files: LockedList,
    names: LockedList,
    inodes: LockedList,
    mounts: LockedList,
    mount_count: CachePadded<AtomicU64>,
}

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// As it was.
    Before,
    /// As the source built it.
    Source,
}

/// A file system, its mount, and some directories.
pub struct Vfs2009 {
    parts: Vec<Part>,
    directories: Vec<Directory>,
}

struct Directory {
    mutex: CachePadded<Mutex<()>>,
    references: CachePadded<AtomicU64>,
}

impl Vfs2009 {
    /// A file system with a directory for each of `cpus` CPUs, or a single directory.
    pub fn new(design: Design, cpus: usize, one_directory: bool) -> Vfs2009 {
        let directory = || Directory {
            mutex: CachePadded::new(Mutex::new(())),
            references: CachePadded::new(AtomicU64::new(1)),
        };
        let parts = if design == Design::Before { 1 } else { cpus };
        Vfs2009 {
            parts: std::iter::repeat_with(Part::default).take(parts).collect(),
            directories: std::iter::repeat_with(directory)
                .take(if one_directory { 1 } else { cpus })
                .collect(),
        }
    }

    fn part(&self, cpu: &Cpu) -> &Part {
        &self.parts[cpu.id() % self.parts.len()]
    }

    fn directory(&self, cpu: &Cpu) -> &Directory {
        &self.directories[cpu.id() % self.directories.len()]
    }

    /// One open with its close.
    pub fn open_close(&self, cpu: &Cpu) {
        let (part, directory) = (self.part(cpu), self.directory(cpu));
        part.mounts.change(cpu); // from the root into the mount
        // SeqCst here and below: the simulated machine knows no weaker order, and charges none.
        part.mount_count.fetch_add(1, Ordering::SeqCst);
        directory.references.fetch_add(1, Ordering::SeqCst);
        pause(cpu, OPEN_CLOSE_REST / 4);
        directory.references.fetch_sub(1, Ordering::SeqCst);
        part.names.change(cpu); // off the list of unused names
        pause(cpu, OPEN_CLOSE_REST / 4);
        part.files.change(cpu);
        pause(cpu, OPEN_CLOSE_REST / 4);
        part.files.change(cpu);
        part.names.change(cpu); // and back
        part.mount_count.fetch_sub(1, Ordering::SeqCst);
        pause(cpu, OPEN_CLOSE_REST / 4);
    }

    /// One create, with its open and close, and the unlink.
    pub fn create_unlink(&self, cpu: &Cpu) {
        let (part, directory) = (self.part(cpu), self.directory(cpu));
        {
            let _names_of_the_directory = directory.mutex.lock();
            part.names.change(cpu); // a new name below its parent
            part.inodes.change(cpu); // number, list of the superblock
            pause(cpu, CREATE_UNLINK_REST / 3);
            part.names.change(cpu); // the name gets its inode
        }
        self.open_close(cpu);
        {
            let _names_of_the_directory = directory.mutex.lock();
            pause(cpu, CREATE_UNLINK_REST / 3);
            part.names.change(cpu); // the name is dead
        }
        part.names.change(cpu); // and leaves its parent
        part.inodes.change(cpu); // off the lists
        part.inodes.change(cpu); // off the hash table
        pause(cpu, CREATE_UNLINK_REST / 3);
    }
}

/// Computes for about so long.
fn pause(cpu: &Cpu, cycles: u64) {
    cpu.work(cycles / 2 + cpu.random(cycles));
}
