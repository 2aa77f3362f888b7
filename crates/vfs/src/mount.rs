//! Mount: file systems and bind mounts put together to one tree of names.
//!
//! # Theory
//! A mount stands on a directory of another mount and hides it. Directories have exactly one name, so the
//! pair (mount below, inode of the directory) says where a mount stands. Each directory counts the mounts
//! that stand on it, in any namespace: a path walk looks at the table only where that count is not zero.
//!
//! Nobody who walks a path writes a line that others use: mounts are referred to by [`Ref`], the table is read in a
//! read section, and the users of a mount are counted by CPU.
//!
//! A mount is busy while a descriptor or working directory lies in it, or another mount stands on it. A lazy
//! unmount takes a busy mount and all that stands on it out of the tree at once; it lives on for its users.
//!
//! # Invariants
//! - I1: `mounts_here` of a directory is the number of attached mounts that stand on it.
//! - I2: a mount is in `by_place` exactly while it is in `places` (the root mount is in neither).

use crate::inode::settle;
use crate::lock_class::MOUNT_TABLE;
use crate::{Errno, Inode, InodeRef, Superblock};
use bitflags::bitflags;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::percpu::Counter;
use sluice_sync::rcu::{self, Guard, RcuCell};
use sluice_sync::{Arc, BrLock, Ref};
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
    /// Descriptors and working directories in this mount. *By CPU; added to under `changing`.*
    users: Counter,
    /// Taken out of the tree while nobody used it. *Atomic; written under `changing`.*
    gone: AtomicBool,
}

/// A file as seen in the tree: which inode, reached through which mount.
#[derive(Clone)]
pub(crate) struct Location {
    pub(crate) mount: Ref<Mount>,
    pub(crate) inode: InodeRef,
}

/// As [`Location`], borrowed: by who walks, for the read section `'g`.
#[derive(Clone, Copy)]
pub(crate) struct Place<'g> {
    pub(crate) mount: &'g Ref<Mount>,
    pub(crate) inode: &'g InodeRef,
}

/// All mounts of one namespace.
pub(crate) struct MountTable {
    /// The mount at "/". *Immutable.*
    root: Ref<Mount>,
    /// Which mount stands where. *Replaced under `changing`.*
    tree: RcuCell<Tree>,
    /// Read by who begins to use a mount, written by who changes the tree. Not waited for in a read section.
    changing: BrLock<()>,
    /// Releases the mounts, before the file system and not as a part of it.
    _settle: SettleOnDrop,
    /// The file system at "/". *Immutable.*
    root_superblock: Arc<Superblock>,
}

/// Which mount stands where.
#[derive(Clone)]
struct Tree {
    next_id: u64,
    /// Mounts by the mount and inode number that they stand on.
    by_place: HashMap<(u64, u64), Ref<Mount>>,
    /// Where the mount of each number stands.
    places: HashMap<u64, Location>,
}

/// Releases what a namespace held when it goes: else that waits until references are used elsewhere.
struct SettleOnDrop;

impl Drop for SettleOnDrop {
    fn drop(&mut self) {
        settle();
    }
}

impl Mount {
    fn new(id: u64, superblock: Arc<Superblock>, root: InodeRef, flags: MountFlags) -> Ref<Mount> {
        // Differences stay with their CPUs: only the exact sum is ever asked for.
        let users = Counter::with_batch(0, i64::MAX);
        Ref::new(Mount { id, superblock, root, flags, users, gone: AtomicBool::new(false) })
    }

    /// Counts another user while there is one, or of a mount that may go: it lives on as after a lazy unmount.
    pub(crate) fn join(&self) {
        self.users.add(1);
    }

    /// Ends what [`MountTable::enter_service`] or [`join`](Self::join) began.
    pub(crate) fn leave(&self) {
        self.users.add(-1);
    }

    /// # Errors
    /// `EROFS` on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<(), Errno> {
        if self.flags.contains(MountFlags::RDONLY) { Err(Errno::EROFS) } else { Ok(()) }
    }

    pub(crate) fn updates_atime(&self) -> bool {
        !self.flags.intersects(MountFlags::NOATIME | MountFlags::RDONLY)
    }
}

impl Location {
    pub(crate) fn new(mount: &Ref<Mount>, inode: InodeRef) -> Location {
        Location { mount: mount.clone(), inode }
    }

    /// The same, borrowed.
    pub(crate) fn place(&self) -> Place<'_> {
        Place { mount: &self.mount, inode: &self.inode }
    }
}

impl Place<'_> {
    /// The same, held by references.
    pub(crate) fn to_location(self) -> Location {
        Location { mount: self.mount.clone(), inode: self.inode.clone() }
    }

    pub(crate) fn is_same(self, other: Place<'_>) -> bool {
        self.mount.id == other.mount.id && self.inode.is_same(other.inode)
    }

    pub(crate) fn is_mount_root(self) -> bool {
        self.mount.root.is_same(self.inode)
    }
}

impl MountTable {
    pub(crate) fn new(superblock: Arc<Superblock>) -> MountTable {
        let root_inode = superblock.root().clone();
        MountTable {
            root: Mount::new(1, superblock.clone(), root_inode, MountFlags::empty()),
            tree: RcuCell::new(
                rcu::domain(),
                Tree { next_id: 2, by_place: HashMap::new(), places: HashMap::new() },
            ),
            changing: BrLock::with_class(&MOUNT_TABLE, ()),
            _settle: SettleOnDrop,
            root_superblock: superblock,
        }
    }

    /// The file system at "/".
    pub(crate) fn root_superblock(&self) -> &Arc<Superblock> {
        &self.root_superblock
    }

    /// Counts a user of `mount`, who calls [`Mount::leave`] in the end.
    ///
    /// # Errors
    /// `ESTALE` when `mount` was taken away, unused, since it was found.
    pub(crate) fn enter_service(&self, mount: &Mount) -> Result<(), Errno> {
        // So that `detach` sees the user, or we see that it has been there.
        let _steady = self.changing.read();
        // Relaxed: written under the write lock.
        if mount.gone.load(Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        mount.users.add(1);
        Ok(())
    }

    /// Where `mount` stands; nowhere if it is the root or was taken away.
    fn place_of<'g>(&'g self, mount: &Mount, section: &'g Guard<'_>) -> Option<Place<'g>> {
        if mount.id == self.root.id {
            return None;
        }
        self.tree.load(section).places.get(&mount.id).map(Location::place)
    }

    /// Each file system in the tree, once.
    pub(crate) fn superblocks(&self) -> Vec<Arc<Superblock>> {
        let mut all = vec![self.root_superblock.clone()];
        for mount in self.tree.load(&self.tree.read()).by_place.values() {
            if !all.iter().any(|known| known.dev() == mount.superblock.dev()) {
                all.push(mount.superblock.clone());
            }
        }
        all
    }

    /// "/", on top of all that may be mounted on it.
    pub(crate) fn root<'g>(&'g self, section: &'g Guard<'_>) -> Place<'g> {
        self.enter(Place { mount: &self.root, inode: &self.root.root }, section)
    }

    /// From a directory to the root of the topmost mount that stands on it, if any does.
    #[inline]
    pub(crate) fn enter<'g>(&'g self, at: Place<'g>, section: &'g Guard<'_>) -> Place<'g> {
        match at.inode.as_dir() {
            Ok(dir) if dir.has_mounts() => self.enter_mounts(at, section),
            _ => at,
        }
    }

    /// As [`enter`](Self::enter), of a directory that somebody has mounted on, in whichever namespace.
    #[cold]
    fn enter_mounts<'g>(&'g self, mut at: Place<'g>, section: &'g Guard<'_>) -> Place<'g> {
        let tree = self.tree.load(section);
        while let Some(mount) = tree.by_place.get(&(at.mount.id, at.inode.ino())) {
            at = Place { mount, inode: &mount.root };
        }
        at
    }

    /// The directory above `at`, across mounts; at the top of the tree `at` itself.
    pub(crate) fn parent<'g>(&'g self, at: Place<'g>, section: &'g Guard<'_>) -> Place<'g> {
        let at = self.below_mounts(at, section);
        let above = if at.is_mount_root() { None } else { Inode::parent_in(at.inode, section) };
        let inode = above.unwrap_or(at.inode);
        self.enter(Place { mount: at.mount, inode }, section)
    }

    /// Where the directory `at` has its name: steps from a mount's root down to what it stands on.
    pub(crate) fn below_mounts<'g>(&'g self, mut at: Place<'g>, section: &'g Guard<'_>) -> Place<'g> {
        while at.is_mount_root()
            && let Some(place) = self.place_of(at.mount, section)
        {
            at = place;
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
        let _changing = self.changing.write();
        let mut tree = self.copy_of_tree();
        // Whoever mounted here in the meantime is stood upon, not replaced.
        let mut on = on.clone();
        while let Some(above) = tree.by_place.get(&(on.mount.id, on.inode.ino())) {
            on = Location { inode: above.root.clone(), mount: above.clone() };
        }
        let counted = on.inode.as_dir().unwrap_or(point);
        counted.count_mount()?;
        let id = tree.next_id;
        tree.next_id += 1;
        tree.by_place.insert((on.mount.id, on.inode.ino()), Mount::new(id, superblock, root, flags));
        tree.places.insert(id, on);
        self.tree.replace(tree);
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
        let _changing = self.changing.write();
        let mut tree = self.copy_of_tree();
        if !tree.places.contains_key(&at.mount.id) {
            return Err(if at.mount.id == self.root.id { Errno::EBUSY } else { Errno::EINVAL });
        }
        let lazy = flags.contains(UmountFlags::DETACH);
        // Under the write lock nobody begins to use the mount, so the sum is exact, or too large by who just leaves.
        if !lazy && (at.mount.users.sum() != 0 || !tree.standing_on(at.mount.id).is_empty()) {
            return Err(Errno::EBUSY);
        }
        // Relaxed: read under the read lock.
        at.mount.gone.store(!lazy, Ordering::Relaxed);
        let mut going = vec![at.mount.id];
        while let Some(id) = going.pop() {
            going.extend(tree.standing_on(id));
            tree.remove(id);
        }
        self.tree.replace(tree);
        Ok(())
    }

    fn copy_of_tree(&self) -> Tree {
        self.tree.load(&self.tree.read()).clone()
    }
}

impl Tree {
    /// The numbers of the mounts that stand on the mount `id`.
    fn standing_on(&self, id: u64) -> Vec<u64> {
        let on_it = self.places.iter().filter(|(_, place)| place.mount.id == id);
        on_it.map(|(standing, _)| *standing).collect()
    }

    fn remove(&mut self, id: u64) {
        let Some(place) = self.places.remove(&id) else { return };
        self.by_place.remove(&(place.mount.id, place.inode.ino()));
        if let Ok(dir) = place.inode.as_dir() {
            dir.uncount_mount();
        }
    }
}

impl Drop for MountTable {
    /// The directories that mounts stood on may live on in file systems that other namespaces use.
    fn drop(&mut self) {
        let mut tree = self.copy_of_tree();
        let ids: Vec<u64> = tree.places.keys().copied().collect();
        ids.into_iter().for_each(|id| tree.remove(id));
    }
}
