//! Inode: one file: its attributes, its contents, and what hangs on it.
//!
//! # Theory
//! An inode lives as long as an [`InodeRef`] to it: in a directory entry, an open file, a working
//! directory, a FUSE mount's handle. So a file that lost its last name stays readable until its last user
//! lets go. Each thread counts references on its own lines ([`sluice_sync::refcache`]), so opening one file
//! from every CPU writes no line of it; in return, storage is released by `Drop` some time after the last user
//! let go, or when a call asks for exact answers ([`settle`]).
//!
//! Fields that the same calls write stand together, with gaps between the groups. So calls that change different things
//! of one file share no line, nor do calls that only open it, or read and write what is there:
//! ```text
//!   | number, type, times | mode and owner, links | size ... | where pages are |
//!     each tick at most     chmod           link    append     first and last page
//! ```
//!
//! A directory and its parent hold each other. Removing the name breaks the cycle; a whole file system is
//! taken apart by [`Superblock`](crate::Superblock)'s `Drop`.
//!
//! # Invariants
//! - I1: `nlink` counts the names of a file; for a directory it is 2 plus its subdirectories, 0 once removed,
//!   and not kept but added up.
//! - I2: a directory whose names are marked dead has no names and gets none.
//! - I3: the parent pointer of a live directory leads to the directory that holds its name.

use crate::at_once::{AtOnce, WouldWait};
use crate::attributes::{Acls, Attr};
use crate::data::{FileData, PAGE, PAGE_SIZE, Space};
use crate::dir::Dir;
use crate::durable::Stored;
use crate::links::Links;
use crate::lock_class::{INODE_ATTR, INODE_XATTRS};
use crate::ops::xattr::Xattrs;
use crate::quota::NO_QUOTA;
use crate::stat::{S_IALLUGO, Stat, Timestamp};
use crate::superblock::{Shared, charged};
use crate::times::Times;
use crate::watch::hook;
use crate::{Cred, Errno, FileType, ObserverId};
use sluice_locks::FileLocks;
use sluice_sync::atomic::{AtomicU8, AtomicU32, Ordering};
use sluice_sync::name_fields;
use sluice_sync::rcu::{self, RcuCell};
use sluice_sync::refcache::{self, Ref, Standing};
use sluice_sync::{Gap, Mutex, OnceLock, SeqLock, WeakRef};
use std::fmt;
use std::ops::Range;

/// One file of a [`Superblock`](crate::Superblock).
#[repr(C)]
pub struct Inode {
    /// Inode number. *Immutable.*
    ino: u64,
    /// The state that all inodes of the file system share. *Immutable.*
    pub(crate) shared: Ref<Shared, Standing>,
    /// Type, and contents of what is no regular file. *Immutable; directories are protected by their own locks.*
    pub(crate) body: Body,
    /// Extended attributes and file locks, once there are any. Every close looks at it: not beside the count of
    /// references. *Set once.*
    extra: OnceLock<Box<Extra>>,
    /// *Each protected by itself.*
    pub(crate) times: Times,
    /// When the inode was made: a packed [`Timestamp`]. *Immutable.*
    born: u64,
    /// See [`flag`]. *Atomic (independent bits).*
    flags: AtomicU8,
    _who_opens: Gap<3>,
    /// For which moment it is kept: see [`moment`](crate::moment). *Atomic (kept); written while a tree is copied.*
    kept: AtomicU32,
    /// The number of the [quota](crate::quota) that it belongs to. *Atomic; changed with the contents locked.*
    pub(crate) quota: AtomicU32,
    /// Owner and mode. *Protected by itself.*
    pub(crate) attr: SeqLock<Attr, 2>,
    /// The names of what is no directory. *Protected by itself.*
    pub(crate) links: Links,
    /// The number of the inode that was copied, of a file in a snapshot or a file that came back from there; 0 of others. *Immutable; beside
    /// its use it keeps the links apart from the size.*
    origin: u64,
    /// Contents of a regular file. *Protected by their own locks.*
    pub(crate) data: FileData,
}

/// The bits of an inode's `flags`.
pub(crate) mod flag {
    /// A cache above may have pages of the contents, and newer bytes in them. Set once.
    pub(crate) const CACHED: u8 = 1;
    /// There may be extended attributes. Set once.
    pub(crate) const XATTRS: u8 = 2;
    /// Names, or contents, are in the store only. Cleared once.
    pub(crate) const PARTIAL: u8 = 4;
    /// The store, or a transaction, has a record of it. Set once.
    pub(crate) const RECORDED: u8 = 8;
    /// It never had a name.
    pub(crate) const UNNAMED: u8 = 16;
    /// It is listed because a read moved its access time.
    pub(crate) const TOUCHED: u8 = 32;
    /// The inode belongs to a snapshot, and stays the same until the snapshot is deleted.
    pub(crate) const READ_ONLY: u8 = 64;
    /// A directory without a name, which is to be removed with the whole tree below. Set once.
    pub(crate) const LOST: u8 = 128;
}

/// A counted reference to an inode. The inode lives as long as there is one.
#[derive(Clone)]
pub struct InodeRef(Ref<Inode>);

/// Leads to an inode as long as there is a reference, and is none.
#[derive(Clone)]
pub(crate) struct WeakInode(WeakRef<Inode>);

impl WeakInode {
    /// One to this inode.
    pub(crate) fn to(inode: &InodeRef) -> WeakInode {
        WeakInode(WeakRef::to(&inode.0))
    }

    /// Whether there is no reference any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// The inode, if there was a reference.
    pub(crate) fn follow(&self) -> Option<InodeRef> {
        self.0.follow().map(InodeRef)
    }
}

/// The space of pages that stay with a store.
struct Elsewhere;

impl Space for Elsewhere {
    fn reserve(&self, _pages: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn release(&self, _pages: u64) {}
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dev, kind) = (self.shared.dev, self.file_type());
        f.debug_struct("Inode")
            .field("ino", &self.ino)
            .field("dev", &dev)
            .field("type", &kind)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl InodeRef {
    /// The counted reference itself.
    pub(crate) fn counted(&self) -> &Ref<Inode> {
        &self.0
    }

    /// All attributes. Mode and owner are read at one moment, each other attribute at a moment of its own.
    pub fn stat(&self) -> Stat {
        if self.must_load() {
            // An error shows when a name is looked up.
            let _ = self.load_names();
        }
        Inode::stat(self)
    }

    /// The target of a symbolic link; `update_atime`: the link's access time moves.
    ///
    /// # Errors
    /// `EINVAL` for any other type of file.
    pub fn read_link(&self, update_atime: bool) -> Result<Vec<u8>, Errno> {
        match &self.body {
            Body::Symlink(target) => {
                if update_atime {
                    self.touch_atime();
                }
                Ok(target.to_vec())
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Releases everything that lost its last holder by now, for exact answers: not for every call. Does nothing inside
/// a read section or a destructor, since it waits for them.
pub(crate) fn settle() {
    if !rcu::domain().is_reading() && !refcache::in_destructor() {
        rcu::domain().flush();
        refcache::settle();
    }
}

/// The fields that only some inodes have.
pub(crate) struct Extra {
    pub(crate) xattrs: Mutex<Xattrs>,
    /// *Changed only under the writers of `attr`, see there.*
    pub(crate) acls: OnceLock<RcuCell<Acls>>,
    locks: OnceLock<FileLocks>,
    /// The state that a durable file system keeps for it. *Set when it is made.*
    pub(crate) stored: OnceLock<Box<Stored>>,
    /// [`InodeFlags`](crate::InodeFlags). *Atomic (stands alone); changed only under the writers of `attr`.*
    pub(crate) flags: AtomicU32,
}

impl Default for Extra {
    fn default() -> Self {
        let xattrs = Mutex::with_class(&INODE_XATTRS, Xattrs::default());
        Extra {
            xattrs,
            acls: OnceLock::new(),
            locks: OnceLock::new(),
            stored: OnceLock::new(),
            flags: AtomicU32::new(0),
        }
    }
}

/// Type, and contents of what is no regular file.
pub(crate) enum Body {
    Regular,
    Directory(Box<Dir>),
    Symlink(Box<[u8]>),
    Special { file_type: FileType, rdev: u64 },
}

/// The attributes that a new inode begins with.
pub(crate) struct InodeInit {
    pub(crate) file_type: FileType,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    /// The inode number of the original of a copy; 0: it is no copy.
    pub(crate) origin: u64,
    /// The time of the inode's creation, and the initial value of its other times.
    pub(crate) born: Timestamp,
}

/// The charge for a symbolic link's target of `len` bytes. A short target is free, as on tmpfs.
pub(crate) fn charged_target(len: usize) -> u64 {
    if len >= 128 { charged(len as u64) } else { 0 }
}

impl Body {
    fn file_type(&self) -> FileType {
        match self {
            Body::Regular => FileType::Regular,
            Body::Directory(_) => FileType::Directory,
            Body::Symlink(_) => FileType::Symlink,
            Body::Special { file_type, .. } => *file_type,
        }
    }

    /// The bytes that this body takes from the file system's size limit: a symbolic link's target, if that is long.
    /// Pages of files are counted as they come.
    pub(crate) fn charged(&self) -> u64 {
        match self {
            Body::Symlink(target) => charged_target(target.len()),
            _ => 0,
        }
    }

    pub(crate) fn new_directory(parent: Option<InodeRef>) -> Body {
        Body::Directory(Box::new(Dir::new(parent)))
    }
}

impl Inode {
    /// A new inode with a number that was never used before, in `quota`; reachable only by the returned reference.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`.
    pub(crate) fn make(
        shared: &Ref<Shared, Standing>,
        quota: u32,
        init: InodeInit,
        body: Body,
    ) -> Result<InodeRef, Errno> {
        let charge = body.charged();
        shared.charge(charge)?;
        let ino = shared.new_ino().inspect_err(|_| shared.discharge(charge))?;
        let inode = Inode::allocate(shared, ino, init, body);
        if quota != NO_QUOTA {
            inode.set_quota_number(quota);
            inode.charge_quota()?;
        }
        if shared.has_hook(hook::MOMENT) {
            inode.set_kept_for(shared.moments.word_of_new());
        }
        Ok(inode)
    }

    /// A new inode with the number `ino`, which was counted when it was taken, as was its body.
    pub(crate) fn allocate(
        shared: &Ref<Shared, Standing>,
        ino: u64,
        init: InodeInit,
        body: Body,
    ) -> InodeRef {
        debug_assert_eq!(body.file_type(), init.file_type);
        let attr = Attr::new(init.mode & S_IALLUGO, init.uid, init.gid);
        let inode = Ref::new_with(|| Inode {
            ino,
            shared: shared.clone(),
            body,
            extra: OnceLock::new(),
            times: Times::new(init.born),
            born: init.born.pack(),
            flags: AtomicU8::new(0),
            _who_opens: Gap::new(),
            kept: AtomicU32::new(0),
            quota: AtomicU32::new(NO_QUOTA),
            attr: SeqLock::with_class(&INODE_ATTR, attr),
            links: Links::new(init.nlink),
            origin: init.origin,
            data: FileData::new(),
        });
        name_fields!(inode, Inode { ino, shared, body, extra, times, born, attr, links, data });
        if let Some(durable) = inode.shared.durable() {
            durable.count_inode();
            // Nobody else knows the inode yet.
            inode.extra().stored.get_or_init(Box::default).name_fields();
        }
        InodeRef(inode)
    }

    /// Whether its names must be loaded before its attributes are known.
    #[inline]
    pub(crate) fn must_load(&self) -> bool {
        self.has(flag::PARTIAL) && self.as_dir().is_ok_and(|dir| !dir.is_away())
    }

    /// For which moment it is kept, or copied.
    #[inline]
    pub(crate) fn kept_for(&self) -> u32 {
        // Acquire(kept): it was copied; pairs with Release(kept) in set_kept_for().
        self.kept.load(Ordering::Acquire)
    }

    pub(crate) fn set_kept_for(&self, moment: u32) {
        // Release(kept): what was copied was read before, so who sees this may change it; pairs with Acquire(kept) in kept_for().
        self.kept.store(moment, Ordering::Release);
    }

    /// True when `other` is the same inode.
    pub fn is_same(&self, other: &Inode) -> bool {
        std::ptr::eq(self, other)
    }

    /// The inode number: unique in the file system, never used again.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// The number of the inode that this one was before it was copied to a snapshot, or came back from one; else its own number. So two
    /// snapshots have the same number for the same file. `None` in a snapshot of an earlier version: nobody knows.
    pub fn origin(&self) -> Option<u64> {
        match self.origin {
            0 => (!self.is_read_only()).then_some(self.ino),
            origin => Some(origin),
        }
    }

    /// The origin in the inode's record: 0 if it is the inode itself.
    pub(crate) fn origin_if_other(&self) -> u64 {
        self.origin
    }

    /// Distinguishes, in a file handle, this inode from inodes of other file systems and from an earlier inode of the
    /// same number that a crash lost. In a store it stays the same. Not 0.
    pub fn generation(&self) -> u32 {
        // Fibonacci hashing: each bit of both reaches the upper half.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        // Relaxed: see the field.
        let identity = self.shared.identity.load(Ordering::Relaxed);
        ((identity.rotate_left(32) ^ self.born).wrapping_mul(SPREAD) >> 32) as u32 | 1
    }

    /// The device number of the file system that the inode belongs to.
    pub fn dev(&self) -> u64 {
        self.shared.dev
    }

    /// The file's type.
    pub fn file_type(&self) -> FileType {
        self.body.file_type()
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    pub(crate) fn is_symlink(&self) -> bool {
        matches!(self.body, Body::Symlink(_))
    }

    /// All attributes. Mode and owner are read at one moment, each other attribute at a moment of its own.
    ///
    /// A directory of a durable file system whose names are not loaded yet shows the size and link count of an empty
    /// directory: see [`InodeRef::stat`].
    pub fn stat(&self) -> Stat {
        self.stat_with(self.attr.read())
    }

    /// The result of [`stat`](Self::stat), unless that waits for a lock.
    #[inline]
    pub(crate) fn stat_at_once(&self) -> AtOnce<Stat> {
        // Threads that change a directory's names count them apart; the counts are added up.
        match self.attr.try_read() {
            Some(attr) if !self.is_dir() => Ok(self.stat_with(attr)),
            _ => Err(WouldWait),
        }
    }

    #[inline(always)]
    fn stat_with(&self, attr: Attr) -> Stat {
        // A single match on the type computes all fields that depend on the type.
        let (file_type, nlink, size, pages, rdev) = match &self.body {
            Body::Regular => (FileType::Regular, self.links.count(), self.data.size(), self.data.pages(), 0),
            Body::Special { file_type, rdev } => (*file_type, self.links.count(), 0, 0, *rdev),
            body => (body.file_type(), self.nlink(), self.size(), 0, 0),
        };
        Stat {
            dev: self.shared.dev,
            ino: self.ino,
            mode: file_type.mode_bits() | attr.mode,
            nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev,
            size,
            blksize: PAGE_SIZE as u32,
            blocks: pages * (PAGE / 512),
            atime: self.times.atime(),
            mtime: self.times.mtime(),
            ctime: self.times.ctime(),
            btime: self.born(),
        }
    }

    /// When the inode was made.
    pub(crate) fn born(&self) -> Timestamp {
        Timestamp::unpack(self.born)
    }

    /// The size that `stat` shows, in bytes.
    pub(crate) fn size(&self) -> u64 {
        match &self.body {
            Body::Regular => self.data.size(),
            Body::Directory(dir) => dir.stat_size(),
            Body::Symlink(target) => target.len() as u64,
            Body::Special { .. } => 0,
        }
    }

    /// How many pages of contents it holds.
    pub(crate) fn pages(&self) -> u64 {
        if matches!(self.body, Body::Regular) { self.data.pages() } else { 0 }
    }

    /// The bytes that the inode takes from the file system's size limit.
    pub(crate) fn bytes_charged(&self) -> u64 {
        self.pages() * PAGE + self.body.charged() + self.extra_charged()
    }

    /// The charge for extended attributes and ACLs, in bytes.
    pub(crate) fn extra_charged(&self) -> u64 {
        // An inode without this part has no ACLs either.
        let of = |extra: &Extra| extra.xattrs.lock().charged() + self.with_acls(|_, acls| acls.charged());
        self.extra_if_any().map_or(0, of)
    }

    /// The link count that `stat` shows.
    pub(crate) fn nlink(&self) -> u32 {
        match &self.body {
            Body::Directory(dir) => dir.nlink(),
            _ => self.links.count(),
        }
    }

    /// True while a name leads to it; of the root directory always.
    pub fn has_name(&self) -> bool {
        match &self.body {
            Body::Directory(dir) => !dir.names.is_dead(),
            _ => self.links.count() > 0,
        }
    }

    /// The file locks of this inode.
    pub fn locks(&self) -> &FileLocks {
        let extra = self.extra();
        extra.locks.get_or_init(|| FileLocks::new(&self.shared.lock_domain, self.shared.dev, self.ino))
    }

    /// The file locks, when there have ever been any.
    pub fn locks_if_any(&self) -> Option<&FileLocks> {
        self.extra.get().and_then(|extra| extra.locks.get())
    }

    pub(crate) fn extra(&self) -> &Extra {
        self.extra.get_or_init(Box::default)
    }

    /// The state that a durable file system keeps for the inode; none in memory.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        self.extra.get()?.stored.get().map(|stored| &**stored)
    }

    pub(crate) fn extra_if_any(&self) -> Option<&Extra> {
        self.extra.get().map(|extra| &**extra)
    }

    /// Notes that an observer may cache pages of the contents from now on, so that calls ask the observer for newer
    /// data.
    pub fn note_cached(&self) {
        if !self.is_cached() {
            self.raise(flag::CACHED);
        }
    }

    /// Sets flags.
    pub(crate) fn raise(&self, flags: u8) {
        // Relaxed: the flags stand alone, but for PARTIAL, see clear_partial().
        self.flags.fetch_or(flags, Ordering::Relaxed);
    }

    /// Names, or contents, are in memory now.
    pub(crate) fn clear_partial(&self) {
        // Release(partial): what was loaded; pairs with Acquire(partial) in has().
        self.flags.fetch_and(!flag::PARTIAL, Ordering::Release);
    }

    /// Clears flags that stand alone: whether this call did, and no other one.
    pub(crate) fn lower(&self, flags: u8) -> bool {
        // Relaxed: see raise().
        self.flags.fetch_and(!flags, Ordering::Relaxed) & flags != 0
    }

    /// Whether one of these flags is set.
    #[inline]
    pub(crate) fn has(&self, flags: u8) -> bool {
        // Acquire(partial): what was loaded; pairs with Release(partial) in clear_partial().
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    /// Whether an observer may have newer bytes than the file.
    #[inline]
    pub(crate) fn is_cached(&self) -> bool {
        // A kernel that has newer bytes got the page after this was set, through system calls, which order both.
        self.has(flag::CACHED)
    }

    /// Has the observers but `via` hand down what is newer with them in `bytes`.
    #[inline]
    pub(crate) fn write_back_caches(&self, via: Option<ObserverId>, bytes: Range<u64>) {
        if self.is_cached() {
            self.shared.notify_but(via, |observer| observer.write_back(self.ino, bytes.clone()));
        }
    }

    #[inline]
    pub(crate) fn notify_attributes(&self, cred: &Cred) {
        self.shared.notify(cred, |observer| observer.attributes_changed(self.ino));
    }

    #[inline]
    pub(crate) fn notify_data(&self, cred: &Cred, offset: u64, len: u64) {
        self.shared.notify(cred, |observer| observer.data_changed(self.ino, offset, len));
    }
}

impl std::ops::Deref for InodeRef {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.0
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if self.shared.durable().is_some() && self.leave_memory() {
            // The evicted inode still takes its share of the file system's size limit.
            return self.data.clear(&Elsewhere);
        }
        self.shared.uncount_inode();
        self.shared.discharge(self.body.charged() + self.extra_charged());
        self.discharge_quota();
        self.data.clear(&*self.shared);
    }
}
