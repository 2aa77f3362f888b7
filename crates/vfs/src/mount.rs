//! Mount: file systems and bind mounts put together to one tree of names.
//!
//! # Theory
//! A mount stands on a directory of another mount and hides it. Directories have exactly one name, so the
//! pair (mount below, inode of the directory) says where a mount stands. Each directory counts the mounts
//! that stand on it, in any namespace: a path walk looks at the table only where that count is not zero.
//!
//! A mount is busy while a descriptor or working directory lies in it, or another mount stands on it. A lazy
//! unmount takes a busy mount and all that stands on it out of the tree at once; it lives on for its users.
//!
//! # Invariants
//! - I1: `mounts_here` of a directory is the number of attached mounts that stand on it.
//! - I2: a mount is in the table exactly while its `place` is set (the root mount has neither).

use crate::{Errno, InodeRef, Superblock};
use bitflags::bitflags;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{Arc, Mutex, RwLock};
use std::collections::HashMap;

bitflags! {
    /// Options of one mount.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct MountFlags: u32 {
        /// Nothing may be changed through this mount.
        const RDONLY = 1;
        /// Reading through this mount leaves access times alone.
        const NOATIME = 1024;
    }

    /// How to unmount.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct UmountFlags: u32 {
        /// Lazily: out of the tree now, for good when the last user is gone.
        const DETACH = 2;
    }
}

/// One mount: a part of a file system, from `root` down.
pub(crate) struct Mount {
    /// Number, unique in the namespace. *Immutable.*
    pub(crate) id: u64,
    /// Keeps the file system alive. *Immutable.*
    pub(crate) superblock: Arc<Superblock>,
    /// Top directory. *Immutable.*
    pub(crate) root: InodeRef,
    /// *Immutable.*
    flags: MountFlags,
    /// Descriptors and working directories in this mount. *Atomic (counter).*
    users: AtomicU64,
    /// Where it stands; none for the root and for detached mounts. *Protected by itself, changed only under
    /// the table's write lock.*
    place: Mutex<Option<Location>>,
}

/// A file as seen in the tree: which inode, reached through which mount.
#[derive(Clone)]
pub(crate) struct Location {
    pub(crate) mount: Arc<Mount>,
    pub(crate) inode: InodeRef,
}

/// A location that somebody stays at, so that its mount counts as busy.
pub(crate) struct Pinned(Location);

/// All mounts of one namespace.
pub(crate) struct MountTable {
    /// The mount at "/". *Immutable.*
    root: Arc<Mount>,
    next_id: AtomicU64,
    /// Mounts by the mount and inode number that they stand on. *Protected by itself.*
    by_place: RwLock<HashMap<(u64, u64), Arc<Mount>>>,
}

impl Mount {
    fn new(id: u64, superblock: Arc<Superblock>, root: InodeRef, flags: MountFlags) -> Arc<Mount> {
        let (users, place) = (AtomicU64::new(0), Mutex::new(None));
        Arc::new(Mount { id, superblock, root, flags, users, place })
    }

    /// # Errors
    /// `EROFS` on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<(), Errno> {
        if self.flags.contains(MountFlags::RDONLY) { Err(Errno::EROFS) } else { Ok(()) }
    }

    pub(crate) fn updates_atime(&self) -> bool {
        !self.flags.intersects(MountFlags::NOATIME | MountFlags::RDONLY)
    }

    fn place(&self) -> Option<Location> {
        self.place.lock().clone()
    }
}

impl Location {
    pub(crate) fn new(mount: &Arc<Mount>, inode: InodeRef) -> Location {
        Location { mount: mount.clone(), inode }
    }

    pub(crate) fn is_same(&self, other: &Location) -> bool {
        self.mount.id == other.mount.id && self.inode.is_same(&other.inode)
    }

    pub(crate) fn is_mount_root(&self) -> bool {
        self.mount.root.is_same(&self.inode)
    }

    pub(crate) fn pin(self) -> Pinned {
        // Relaxed: the count is a hint for `umount`; the `Arc` keeps the mount alive.
        self.mount.users.fetch_add(1, Ordering::Relaxed);
        Pinned(self)
    }
}

impl std::ops::Deref for Pinned {
    type Target = Location;
    fn deref(&self) -> &Location {
        &self.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.mount.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MountTable {
    pub(crate) fn new(superblock: Arc<Superblock>) -> MountTable {
        let root_inode = superblock.root().clone();
        MountTable {
            root: Mount::new(1, superblock, root_inode, MountFlags::empty()),
            next_id: AtomicU64::new(2),
            by_place: RwLock::new(HashMap::new()),
        }
    }

    /// The file system at "/".
    pub(crate) fn root_superblock(&self) -> &Arc<Superblock> {
        &self.root.superblock
    }

    /// Each file system in the tree, once.
    pub(crate) fn superblocks(&self) -> Vec<Arc<Superblock>> {
        let mut all = vec![self.root.superblock.clone()];
        for mount in self.by_place.read().values() {
            if !all.iter().any(|known| known.dev() == mount.superblock.dev()) {
                all.push(mount.superblock.clone());
            }
        }
        all
    }

    /// The mount at "/" and its top, whatever may be mounted on it.
    pub(crate) fn bottom(&self) -> (&Arc<Mount>, &InodeRef) {
        (&self.root, &self.root.root)
    }

    /// "/", under all that may be mounted on it.
    pub(crate) fn root(&self) -> Location {
        self.enter(Location::new(&self.root, self.root.root.clone()))
    }

    /// From a directory to the root of the topmost mount that stands on it, if any does.
    pub(crate) fn enter(&self, mut at: Location) -> Location {
        loop {
            let Ok(dir) = at.inode.as_dir() else { return at };
            if !dir.has_mounts() {
                return at;
            }
            let key = (at.mount.id, at.inode.ino());
            let Some(mount) = self.by_place.read().get(&key).cloned() else { return at };
            at = Location { inode: mount.root.clone(), mount };
        }
    }

    /// The directory above `at`, across mounts; at the top of the tree `at` itself.
    pub(crate) fn parent(&self, at: &Location) -> Location {
        let mut at = at.clone();
        while at.is_mount_root() {
            match at.mount.place() {
                Some(place) => at = place,
                None => return self.enter(at),
            }
        }
        let parent = at.inode.parent().unwrap_or_else(|| at.inode.clone());
        self.enter(Location { mount: at.mount, inode: parent })
    }

    /// Where the directory `at` has its name: steps from a mount's root down to what it stands on.
    pub(crate) fn below_mounts(&self, at: &Location) -> Location {
        let mut at = at.clone();
        while at.is_mount_root() {
            match at.mount.place() {
                Some(place) => at = place,
                None => break,
            }
        }
        at
    }

    /// Mounts `root` of `superblock` on the directory `on`.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` when the directory was removed.
    pub(crate) fn attach(
        &self,
        superblock: Arc<Superblock>,
        root: InodeRef,
        on: &Location,
        flags: MountFlags,
    ) -> Result<(), Errno> {
        let point = on.inode.as_dir()?;
        root.as_dir()?;
        let mut by_place = self.by_place.write();
        // Whoever mounted here in the meantime is stood upon, not replaced.
        let mut on = on.clone();
        while let Some(above) = by_place.get(&(on.mount.id, on.inode.ino())) {
            on = Location { inode: above.root.clone(), mount: above.clone() };
        }
        let counted = on.inode.as_dir().unwrap_or(point);
        counted.count_mount()?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mount = Mount::new(id, superblock, root, flags);
        by_place.insert((on.mount.id, on.inode.ino()), mount.clone());
        *mount.place.lock() = Some(on);
        Ok(())
    }

    /// Takes the mount whose root is `at` out of the tree.
    ///
    /// # Errors
    /// `EINVAL` when `at` is no mount's root; `EBUSY` when it is the root of the tree, in use, or something
    /// stands on it (unless `DETACH`).
    pub(crate) fn detach(&self, at: &Location, flags: UmountFlags) -> Result<(), Errno> {
        if !at.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        let mut by_place = self.by_place.write();
        if at.mount.place().is_none() {
            return Err(if at.mount.id == self.root.id { Errno::EBUSY } else { Errno::EINVAL });
        }
        let on_it = |mount: &Arc<Mount>| -> Vec<Arc<Mount>> {
            let stands_on = |other: &&Arc<Mount>| other.place().is_some_and(|p| p.mount.id == mount.id);
            by_place.values().filter(stands_on).cloned().collect()
        };
        let lazy = flags.contains(UmountFlags::DETACH);
        if !lazy && (at.mount.users.load(Ordering::Relaxed) != 0 || !on_it(&at.mount).is_empty()) {
            return Err(Errno::EBUSY);
        }
        let mut going = vec![at.mount.clone()];
        let mut next = 0;
        while next < going.len() {
            going.extend(on_it(&going[next].clone()));
            next += 1;
        }
        for mount in going {
            let Some(place) = mount.place.lock().take() else { continue };
            by_place.remove(&(place.mount.id, place.inode.ino()));
            if let Ok(dir) = place.inode.as_dir() {
                dir.uncount_mount();
            }
        }
        Ok(())
    }
}

impl Drop for MountTable {
    /// The directories that mounts stood on may live on in file systems that other namespaces use.
    fn drop(&mut self) {
        for mount in self.by_place.get_mut().values() {
            if let Some(dir) = mount.place.lock().take().as_ref().and_then(|place| place.inode.as_dir().ok())
            {
                dir.uncount_mount();
            }
        }
    }
}
