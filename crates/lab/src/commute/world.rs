//! World: the state of the reference model, and its path walk.
//!
//! Two worlds are equal when no program could tell them apart. So an object's number depends on its maker and not on
//! time: inodes, open files and mounts that one of two calls makes have the same number in either order. Times are left
//! out: within a tick of the clock nobody can tell. Unreachable objects are gone.

use sluice_vfs_sim::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Number of an inode, an open file or a mount.
pub(super) type Id = u32;

/// The maker of a call: 0 sets up, 1 and 2 are the two whose calls are compared.
pub(super) type Actor = usize;

/// Numbers of objects made by the actors 1 and 2 begin at this multiple of the actor's number.
const NUMBERS_OF_AN_ACTOR: Id = 1000;

/// The mount at "/".
pub(super) const ROOT_MOUNT: Id = 0;
/// The symbolic links that one walk follows.
const LINKS_MAX: usize = 40;

/// The contents of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// The value that fills each block.
    File(Vec<u8>),
    /// Names, and the directory above.
    Directory(BTreeMap<&'static str, Id>, Id),
    Symlink(&'static str),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileNode {
    pub(super) body: Body,
    pub(super) mode: u32,
    /// Names of a file; of a directory 1 until it is removed.
    pub(super) links: u32,
}

/// A file in a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(super) struct MountedFile {
    pub(super) mount: Id,
    pub(super) inode: Id,
}

/// An open file description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Open {
    pub(super) place: MountedFile,
    /// Blocks; of a directory: how many entries were read.
    pub(super) offset: i64,
    pub(super) write: bool,
    pub(super) append: bool,
}

/// Whose a range lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(super) enum RangeOwner {
    Process(usize),
    Open(Id),
}

/// Locks of one thing: its holders, and whether each holds it exclusively.
pub(super) type Holders<O> = BTreeMap<O, bool>;

/// Everything that programs can see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct World {
    pub(super) inodes: BTreeMap<Id, FileNode>,
    pub(super) opens: BTreeMap<Id, Open>,
    /// The descriptors of two processes.
    pub(super) processes: [BTreeMap<i32, Id>; 2],
    /// For each mount but the first: its root, and where it stands.
    pub(super) mounts: BTreeMap<Id, (Id, MountedFile)>,
    /// Roots of the file systems that the actors would mount.
    pub(super) spare_roots: [Id; 3],
    /// Range locks of each block of an inode.
    pub(super) ranges: BTreeMap<(Id, u8), Holders<RangeOwner>>,
    pub(super) flocks: BTreeMap<Id, Holders<Id>>,
    /// How many things were set up.
    made: Id,
}

/// A path walked up to its last component.
pub(super) struct Last {
    pub(super) dir: MountedFile,
    pub(super) name: &'static str,
}

impl World {
    /// An empty tree, and an empty file system for each actor to mount.
    pub(super) fn new() -> World {
        let root =
            |own: Id| (own, FileNode { body: Body::Directory(BTreeMap::new(), own), mode: 0o755, links: 1 });
        World {
            inodes: BTreeMap::from([root(0), root(1), root(2), root(3)]),
            opens: BTreeMap::new(),
            processes: [BTreeMap::new(), BTreeMap::new()],
            mounts: BTreeMap::new(),
            spare_roots: [1, 2, 3],
            ranges: BTreeMap::new(),
            flocks: BTreeMap::new(),
            made: 3,
        }
    }

    /// A number for what `actor` makes now. Each call makes at most one thing of a kind.
    pub(super) fn number(&mut self, actor: Actor) -> Id {
        if actor == 0 {
            self.made += 1;
            return self.made;
        }
        NUMBERS_OF_AN_ACTOR * actor as Id
    }

    pub(super) fn node(&self, place: MountedFile) -> &FileNode {
        &self.inodes[&place.inode]
    }

    pub(super) fn node_mut(&mut self, place: MountedFile) -> &mut FileNode {
        self.inodes.get_mut(&place.inode).expect("what is reachable is there")
    }

    /// The names of a directory.
    ///
    /// # Errors
    /// `ENOTDIR`.
    pub(super) fn names(&self, dir: MountedFile) -> Result<&BTreeMap<&'static str, Id>, Errno> {
        match &self.node(dir).body {
            Body::Directory(names, _) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn names_mut(&mut self, dir: MountedFile) -> &mut BTreeMap<&'static str, Id> {
        match &mut self.node_mut(dir).body {
            Body::Directory(names, _) => names,
            _ => unreachable!("the walk ended in a directory"),
        }
    }

    pub(super) fn is_dir(&self, place: MountedFile) -> bool {
        self.names(place).is_ok()
    }

    /// From a directory to the root of the topmost mount on it.
    fn enter(&self, mut at: MountedFile) -> MountedFile {
        while let Some((&mount, &(root, _))) = self.mounts.iter().find(|(_, (_, on))| *on == at) {
            at = MountedFile { mount, inode: root };
        }
        at
    }

    /// The file called `name` in `dir`.
    pub(super) fn child(&self, dir: MountedFile, name: &str) -> Result<MountedFile, Errno> {
        let inode = *self.names(dir)?.get(name).ok_or(Errno::ENOENT)?;
        Ok(self.enter(MountedFile { inode, ..dir }))
    }

    /// Walks `path` up to its last component.
    pub(super) fn parent_of(&self, path: &'static str) -> Result<Last, Errno> {
        let mut components = path.split('/').filter(|part| !part.is_empty()).peekable();
        let mut dir = self.enter(MountedFile { mount: ROOT_MOUNT, inode: 0 });
        loop {
            let name = components.next().expect("no path here is \"/\"");
            if !self.is_dir(dir) {
                return Err(Errno::ENOTDIR);
            }
            if components.peek().is_none() {
                return Ok(Last { dir, name });
            }
            dir = self.child(dir, name)?;
        }
    }

    /// The file that `path` names; a symbolic link at the end is followed if `follow`.
    pub(super) fn resolve(&self, path: &'static str, follow: bool) -> Result<MountedFile, Errno> {
        let mut path = path;
        for _ in 0..=LINKS_MAX {
            let last = self.parent_of(path)?;
            let found = self.child(last.dir, last.name)?;
            match &self.node(found).body {
                Body::Symlink(target) if follow => path = target,
                _ => return Ok(found),
            }
        }
        Err(Errno::ELOOP)
    }

    /// Whether a directory has something mounted on it, in any mount.
    pub(super) fn is_mount_point(&self, inode: Id) -> bool {
        self.mounts.values().any(|(_, on)| on.inode == inode)
    }

    /// Whether `above` is `inode` or on its way to the root of its file system.
    pub(super) fn is_above(&self, above: Id, inode: Id) -> bool {
        let mut at = inode;
        loop {
            if at == above {
                return true;
            }
            match &self.inodes[&at].body {
                Body::Directory(_, parent) if *parent != at => at = *parent,
                _ => return false,
            }
        }
    }

    /// Forgets what nobody can reach any more.
    pub(super) fn forget_unreachable(&mut self) {
        let used: BTreeSet<Id> = self.processes.iter().flat_map(|fds| fds.values().copied()).collect();
        self.opens.retain(|open, _| used.contains(open));
        let mut reached: BTreeSet<Id> = BTreeSet::new();
        let mut pending: Vec<Id> = self.spare_roots.to_vec();
        pending.push(0);
        pending.extend(self.mounts.values().flat_map(|(root, on)| [*root, on.inode]));
        pending.extend(self.opens.values().map(|open| open.place.inode));
        while let Some(inode) = pending.pop() {
            if reached.insert(inode)
                && let Body::Directory(names, _) = &self.inodes[&inode].body
            {
                pending.extend(names.values());
            }
        }
        self.inodes.retain(|inode, _| reached.contains(inode));
        for holders in self.ranges.values_mut() {
            holders.retain(
                |owner, _| !matches!(owner, RangeOwner::Open(open) if !self.opens.contains_key(open)),
            );
        }
        self.ranges.retain(|(inode, _), holders| !holders.is_empty() && reached.contains(inode));
        for holders in self.flocks.values_mut() {
            holders.retain(|open, _| self.opens.contains_key(open));
        }
        self.flocks.retain(|inode, holders| !holders.is_empty() && reached.contains(inode));
    }
}
