//! Options: limits, owner and store of a new file system.

use crate::{Fs, SnapshotPeriod, SnapshotSchedule, Superblock};
use sluice_store::{Options as StoreOptions, StoreError};
use std::path::Path;

/// Limits, owner and store of a file system that a program makes or opens.
///
/// Each field has a method that sets it, or, for owner and group of the root, [`root_owner`](Self::root_owner); [`Fs::builder`] gives
/// the defaults.
///
/// ```
/// use sluice_vfs::{Errno, Fs};
///
/// let fs = Fs::builder().size_limit(1 << 20).inode_limit(100).root_owner(1000, 1000).build();
/// assert_eq!(fs.write("/large", vec![1; 2 << 20]), Err(Errno::ENOSPC));
/// assert_eq!(fs.metadata("/")?.uid, 1000);
/// # Ok::<(), Errno>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The most bytes of file data, extended attributes, access control lists and long targets of symbolic links, rounded down to
    /// whole pages; none for no limit.
    pub size_limit: Option<u64>,
    /// The most inodes, the root included; none for no limit.
    pub inode_limit: Option<u64>,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Refuse with `EDEADLK` a blocking POSIX lock that would close a cycle of waiters.
    pub deadlock_detection: bool,
    /// The most file locks, held and waited for; beyond, requests fail with `ENOLCK`. None means no limit, and locks
    /// are not counted.
    pub lock_limit: Option<u64>,
    /// The most file locks of one owner, a process or an open file, likewise. None for no limit.
    pub owner_lock_limit: Option<u64>,
    /// Let only the owner of a file, or a user that may read and write the file, give it another name, as Linux does with
    /// `fs.protected_hardlinks = 1`. POSIX allows everybody.
    pub protected_hardlinks: bool,
    /// The most bytes of contents, names and inodes that a durable file system keeps in memory: about, and but for what is in use
    /// and the names of one directory. None for half of the machine's. In memory it means nothing.
    pub memory_limit: Option<u64>,
    /// Snapshots of the whole tree are taken by the clock, on a thread of its own, and deleted when newer ones are enough. None for no
    /// such snapshots.
    pub snapshots: Option<SnapshotSchedule>,
    /// A durable file system is scrubbed by the clock, on a thread of its own: one scrub begins in each such period, or when the
    /// file system is opened, if none has begun in the period. An interrupted scrub goes on. Without it the caller scrubs, and a
    /// file system in memory has no store.
    pub scrub: Option<SnapshotPeriod>,
    /// The [key](Superblock::name_key) of a process that served the file system before: positions in directories are the same then.
    pub name_key: Option<u64>,
    /// How the store of a durable file system works. In memory it means nothing.
    pub store: StoreOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            size_limit: None,
            inode_limit: None,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            deadlock_detection: true,
            lock_limit: None,
            owner_lock_limit: None,
            protected_hardlinks: false,
            memory_limit: None,
            snapshots: None,
            scrub: None,
            name_key: None,
            store: StoreOptions::default(),
        }
    }
}

sluice_sync::setters!(Options {
    size_limit: u64 => Some(size_limit);
    inode_limit: u64 => Some(inode_limit);
    root_mode: u32 => root_mode;
    deadlock_detection: bool => deadlock_detection;
    lock_limit: u64 => Some(lock_limit);
    owner_lock_limit: u64 => Some(owner_lock_limit);
    protected_hardlinks: bool => protected_hardlinks;
    memory_limit: u64 => Some(memory_limit);
    snapshots: SnapshotSchedule => Some(snapshots);
    scrub: SnapshotPeriod => Some(scrub);
    name_key: u64 => Some(name_key);
    store: StoreOptions => store;
});

impl Options {
    /// Owner and group of a new root directory.
    #[must_use]
    pub fn root_owner(mut self, uid: u32, gid: u32) -> Options {
        (self.root_uid, self.root_gid) = (uid, gid);
        self
    }

    /// A new, empty file system in memory.
    pub fn build(self) -> Fs {
        Fs::with_superblock(Superblock::new(self))
    }

    /// Makes an empty file system that survives, in the directory `dir` of the host; see [`Fs::create_store`].
    ///
    /// # Errors
    /// Errors of [`Superblock::create`].
    pub fn create_store(self, dir: impl AsRef<Path>) -> Result<Fs, StoreError> {
        Superblock::create(dir, self).map(Fs::with_superblock)
    }

    /// Opens the file system in the directory `dir` of the host; see [`Fs::open_store`].
    ///
    /// # Errors
    /// Errors of [`Superblock::open`].
    pub fn open_store(self, dir: impl AsRef<Path>) -> Result<Fs, StoreError> {
        Superblock::open(dir, self).map(Fs::with_superblock)
    }
}
