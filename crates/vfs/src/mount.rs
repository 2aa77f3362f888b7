//! Mount: file systems and bind mounts put together to one tree of names.
//!
//! # Theory
//! A mount stands on a directory of another mount and hides it. The directory keeps the list of the mounts that stand
//! on it, in whichever namespace, so a walk that crosses a mount point looks at that
//! directory and no other, and mounting elsewhere does not disturb it.
//!
//! Walking a path writes no line that others use: mounts are referred to by [`Ref`], lists are read in a read
//! section, and each thread counts the users of a mount for itself.
//!
//! A mount is busy while a descriptor or working directory lies in it, or another mount stands on it: all these are its
//! users. A lazy unmount takes a busy mount and all that stands on it out of the tree at once; it lives on for its
//! users.
//!
//! ```text
//!   begin to use a mount          unmount
//!   count a user                  gone := true
//!   gone? then count back         users? then gone := false, EBUSY
//! ```
//! One of the two sees the other (*gone*): by the barrier of [`Tally`], which an unmount pays for.
//!
//! # Invariants
//! - I1: `mounts_here` of a directory is the number of attached mounts that stand on it.
//! - I2: a mount is in `attached` exactly while it is in the list of the directory that it stands on (the root mount is
//!   in neither).

use crate::inode::settle;
use crate::lock_class::MOUNT_TABLE;
use crate::open_files::Processes;
use crate::superblock::Shared;
use crate::{Errno, Inode, InodeRef, Superblock};
use bitflags::bitflags;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::percpu::Tally;
use sluice_sync::rcu::{self, Guard};
use sluice_sync::refcache::{Ref, Standing};
use sluice_sync::{Arc, CachePadded, Mutex};

bitflags! {
    /// Options of one mount.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct MountFlags: u32 {
        /// Nothing may be changed through this mount.
        const RDONLY = 1;
        /// Reading through this mount leaves access times alone.
        const NOATIME = 1024;
        /// Listing through this mount leaves the access times of directories alone.
        const NODIRATIME = 2048;
    }

    /// How to unmount.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct UmountFlags: u32 {
        /// Lazily: out of the tree now, for good when the last user is gone.
        const DETACH = 2;
    }
}

/// A reference to a mount.
pub(crate) type MountRef = Ref<Mount, Standing>;

/// One mount: a part of a file system, from `root` down.
pub(crate) struct Mount {
    /// Number, unique in the namespace. *Immutable.*
    pub(crate) id: u64,
    /// Keeps the file system alive. *Immutable.*
    pub(crate) superblock: Arc<Superblock>,
    /// Top directory. *Immutable.*
    pub(crate) root: InodeRef,
    /// Where it stands; nowhere, if it is the bottom of the tree. *Immutable.*
    on: Option<Location>,
    /// *Immutable.*
    flags: MountFlags,
    /// Descriptors, working directories and mounts in this mount. *Per thread (gone).*
    users: Tally<1>,
    /// Taken out of the tree while nobody used it, or being so. *Atomic (gone); written under `attached`.*
    gone: AtomicBool,
    /// Out of the tree for good: nothing is above its root. *Atomic (stands alone).*
    detached: AtomicBool,
}

/// A file as seen in the tree: which inode, reached through which mount.
#[derive(Clone)]
pub(crate) struct Location {
    pub(crate) mount: MountRef,
    pub(crate) inode: InodeRef,
}

/// A [`Location`] that a walk borrows for the read section `'g`.
#[derive(Clone, Copy)]
pub(crate) struct LocationRef<'g> {
    pub(crate) mount: &'g MountRef,
    pub(crate) inode: &'g InodeRef,
}

/// All mounts of one namespace.
pub(crate) struct MountTable {
    /// The mount at "/". *Immutable.*
    root: MountRef,
    /// Its file system is over a store. *Immutable.*
    is_over_store: bool,
    /// The mounts in the tree. Held by a call that changes it, not waited for in a read section.
    attached: CachePadded<Mutex<Attached>>,
    /// The processes that use this tree. *Immutable.*
    processes: Arc<Processes>,
    /// Releases the mounts, if need be: before the file system, and not as a part of it.
    settle: SettleOnDrop,
    /// The file system at "/". *Immutable.*
    root_superblock: Arc<Superblock>,
}

/// The mounts in the tree but the one at its bottom.
struct Attached {
    next_id: u64,
    mounts: Vec<MountRef>,
}

/// Whether to release at once what a namespace held when it goes: else that waits until references are used elsewhere.
struct SettleOnDrop(bool);

impl Drop for SettleOnDrop {
    fn drop(&mut self) {
        if self.0 {
            settle();
        }
    }
}

impl Mount {
    fn new(
        id: u64,
        superblock: Arc<Superblock>,
        root: InodeRef,
        on: Option<Location>,
        flags: MountFlags,
    ) -> MountRef {
        let (gone, detached) = (AtomicBool::new(false), AtomicBool::new(false));
        Ref::standing(Mount { id, superblock, root, on, flags, users: Tally::new(), gone, detached })
    }

    /// Where it stands in the tree.
    fn place(&self) -> Option<LocationRef<'_>> {
        // Relaxed: a walk that began before it was taken away may still lead there.
        if self.detached.load(Ordering::Relaxed) { None } else { self.on.as_ref().map(Location::place) }
    }

    /// Whether this stands on a directory of `below`.
    pub(crate) fn stands_on(&self, below: &MountRef) -> bool {
        self.on.as_ref().is_some_and(|on| Ref::ptr_eq(&on.mount, below))
    }

    /// Counts another user while there is one, or of a mount that may go: it lives on as after a lazy unmount.
    pub(crate) fn join(&self) {
        self.users.add(0, 1);
    }

    /// Ends what [`MountTable::enter_service`] or [`join`](Self::join) began.
    pub(crate) fn leave(&self) {
        self.users.add(0, -1);
    }

    /// # Errors
    /// `EROFS` on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<(), Errno> {
        if self.flags.contains(MountFlags::RDONLY) { Err(Errno::EROFS) } else { Ok(()) }
    }

    pub(crate) fn updates_atime(&self) -> bool {
        !self.flags.intersects(MountFlags::NOATIME | MountFlags::RDONLY)
    }

    pub(crate) fn updates_dir_atime(&self) -> bool {
        self.updates_atime() && !self.flags.contains(MountFlags::NODIRATIME)
    }
}

impl Location {
    pub(crate) fn new(mount: &MountRef, inode: InodeRef) -> Location {
        Location { mount: mount.clone(), inode }
    }

    /// This location, borrowed.
    pub(crate) fn place(&self) -> LocationRef<'_> {
        LocationRef { mount: &self.mount, inode: &self.inode }
    }
}

impl<'g> LocationRef<'g> {
    /// This location, held by references.
    #[inline]
    pub(crate) fn to_location(self) -> Location {
        Location { mount: self.mount.clone(), inode: self.inode.clone() }
    }

    pub(crate) fn is_same(self, other: LocationRef<'_>) -> bool {
        Ref::ptr_eq(self.mount, other.mount) && self.inode.is_same(other.inode)
    }

    pub(crate) fn is_mount_root(self) -> bool {
        self.mount.root.is_same(self.inode)
    }

    /// From a directory to the root of the topmost mount that stands on it, if any does.
    #[inline]
    pub(crate) fn enter(self, section: &'g Guard<'_>) -> LocationRef<'g> {
        match self.inode.as_dir() {
            Ok(dir) if dir.has_mounts() => self.enter_mounts(section),
            _ => self,
        }
    }

    /// [`enter`](Self::enter) for a directory that somebody has mounted on, in whichever namespace.
    #[cold]
    fn enter_mounts(self, section: &'g Guard<'_>) -> LocationRef<'g> {
        let mut at = self;
        while let Ok(dir) = at.inode.as_dir()
            && let Some(mount) = dir.mount_on(at.mount, section)
        {
            at = LocationRef { mount, inode: &mount.root };
        }
        at
    }

    /// Where the directory has its name: from a mount's root down to what it stands on.
    pub(crate) fn below_mounts(self) -> LocationRef<'g> {
        let mut at = self;
        while at.is_mount_root()
            && let Some(place) = at.mount.place()
        {
            at = place;
        }
        at
    }

    /// The directory above, across mounts; at the top of the tree itself.
    pub(crate) fn above(self, section: &'g Guard<'_>) -> LocationRef<'g> {
        let at = self.below_mounts();
        let above = if at.is_mount_root() { None } else { Inode::parent_in(at.inode, section) };
        LocationRef { inode: above.unwrap_or(at.inode), ..at }.enter(section)
    }
}

impl MountTable {
    pub(crate) fn new(superblock: Arc<Superblock>) -> MountTable {
        let root_inode = superblock.root().clone();
        let attached = Attached { next_id: 2, mounts: Vec::new() };
        let processes = Processes::new();
        superblock.trees().add(&processes);
        MountTable {
            is_over_store: root_inode.shared.durable().is_some(),
            root: Mount::new(1, superblock.clone(), root_inode, None, MountFlags::empty()),
            attached: CachePadded::new(Mutex::with_class(&MOUNT_TABLE, attached)),
            processes,
            settle: SettleOnDrop(false),
            root_superblock: superblock,
        }
    }

    /// The file system at "/".
    pub(crate) fn root_superblock(&self) -> &Arc<Superblock> {
        &self.root_superblock
    }

    /// The file system at "/", if it is over a store.
    #[inline]
    pub(crate) fn root_over_store(&self) -> Option<&Shared> {
        self.is_over_store.then(|| &*self.root.root.shared)
    }

    /// The processes that use this tree.
    pub(crate) fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// Counts a user of `mount`, which calls [`Mount::leave`] in the end.
    ///
    /// # Errors
    /// `ESTALE` when `mount` was taken away, unused, since it was found.
    pub(crate) fn enter_service(&self, mount: &Mount) -> Result<(), Errno> {
        loop {
            // Acquire(gone): see the header.
            mount.users.add(0, 1);
            if !mount.gone.load(Ordering::Acquire) {
                return Ok(());
            }
            mount.leave();
            // Whether it goes is decided under the lock.
            let _decided = self.attached.lock();
            // Relaxed: written under the lock.
            if mount.gone.load(Ordering::Relaxed) {
                return Err(Errno::ESTALE);
            }
        }
    }

    /// Each file system in the tree, once.
    pub(crate) fn superblocks(&self) -> Vec<Arc<Superblock>> {
        let mut all = vec![self.root_superblock.clone()];
        for mount in &self.attached.lock().mounts {
            if !all.iter().any(|known| known.dev() == mount.superblock.dev()) {
                all.push(mount.superblock.clone());
            }
        }
        all
    }

    /// The root of the topmost mount on "/".
    pub(crate) fn root<'g>(&'g self, section: &'g Guard<'_>) -> LocationRef<'g> {
        LocationRef { mount: &self.root, inode: &self.root.root }.enter(section)
    }

    /// Mounts `root` of `superblock` on the directory `on`.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` when the directory was removed; `EROFS` (in a snapshot).
    pub(crate) fn attach(
        &self,
        superblock: Arc<Superblock>,
        root: InodeRef,
        on: &Location,
        flags: MountFlags,
    ) -> Result<(), Errno> {
        on.inode.as_dir()?;
        root.as_dir()?;
        superblock.trees().add(&self.processes);
        let mut attached = self.attached.lock();
        // A mount that another thread made here meanwhile is covered, not replaced.
        let on = on.place().enter(&rcu::domain().read()).to_location();
        let point = on.inode.as_dir()?;
        on.inode.check_changes()?;
        point.count_mount()?;
        on.mount.join();
        let (id, point) = (attached.next_id, on.inode.clone());
        let mount = Mount::new(id, superblock, root, Some(on), flags);
        attached.next_id += 1;
        attached.mounts.push(mount.clone());
        point.as_dir()?.change_mounts(|here| here.push(mount));
        Ok(())
    }

    /// Takes the mount whose root is `at` out of the tree.
    ///
    /// # Errors
    /// `EINVAL` when `at` is no mount's root; `EBUSY` when it is the root of the tree, in use, or something
    /// stands on it (unless `DETACH`).
    pub(crate) fn detach(&self, at: &Location, flags: UmountFlags) -> Result<(), Errno> {
        if !at.place().is_mount_root() {
            return Err(Errno::EINVAL);
        }
        let mount = &at.mount;
        let mut attached = self.attached.lock();
        if !attached.mounts.iter().any(|there| Ref::ptr_eq(there, mount)) {
            return Err(if Ref::ptr_eq(mount, &self.root) { Errno::EBUSY } else { Errno::EINVAL });
        }
        if !flags.contains(UmountFlags::DETACH) {
            // Release(gone), both: see the header. The sum is exact, or too large by a user that is just leaving.
            mount.gone.store(true, Ordering::Release);
            mount.users.barrier();
            if mount.users.sum(0) != 0 {
                mount.gone.store(false, Ordering::Release);
                return Err(Errno::EBUSY);
            }
        }
        attached.remove(mount);
        Ok(())
    }
}

impl Attached {
    /// Takes `mount` and all that stands on it out of the tree.
    fn remove(&mut self, mount: &MountRef) {
        let mut going = vec![mount.clone()];
        while let Some(mount) = going.pop() {
            going.extend(self.mounts.iter().filter(|standing| standing.stands_on(&mount)).cloned());
            self.mounts.retain(|there| !Ref::ptr_eq(there, &mount));
            mount.detached.store(true, Ordering::Relaxed);
            if let Some(on) = &mount.on
                && let Ok(dir) = on.inode.as_dir()
            {
                dir.change_mounts(|here| here.retain(|there| !Ref::ptr_eq(there, &mount)));
                dir.uncount_mount();
                on.mount.leave();
            }
        }
    }
}

impl Drop for MountTable {
    /// The directories that mounts stood on may live on in file systems that other namespaces use.
    fn drop(&mut self) {
        for superblock in self.superblocks() {
            self.settle.0 |= superblock.should_settle_after();
        }
        let attached = self.attached.get_mut();
        while let Some(mount) = attached.mounts.last().cloned() {
            attached.remove(&mount);
        }
    }
}
