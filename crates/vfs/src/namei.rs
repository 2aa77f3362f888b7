//! Namei: from a path to the file it names.
//!
//! # Theory
//! A walk goes component by component; each directory on the way must be one that the caller may search. A
//! symbolic link's target takes the place of its component, at most [`SYMLOOP_MAX`] times. Calls that add or
//! remove a name stop one component early: they need the directory and the name.
//!
//! A walk is one RCU read section. On its way it holds inodes and mounts by borrowing them from the tables that name
//! them, and takes references only of what it returns; [`Namei::look`] takes none at all.
//!
//! # Cost
//! No store to shared memory and no allocation, symbolic links aside.

use crate::mount::{Location, Mount, MountTable};
use crate::{Access, Cred, Errno, FileType, Inode, InodeRef, PATH_MAX, SYMLOOP_MAX};
use sluice_sync::Ref;
use sluice_sync::rcu::{self, Guard};
use std::borrow::Cow;

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last<'p> {
    /// A name to look up.
    Name(Cow<'p, [u8]>),
    /// ".".
    Dot,
    /// "..".
    DotDot,
    /// There is none: the path is "/".
    Root,
}

/// A path walked up to its last component.
pub(crate) struct Parent<'p, D = Location> {
    pub(crate) dir: D,
    pub(crate) last: Last<'p>,
    /// The path ends in a slash: only a directory will do.
    pub(crate) trailing_slash: bool,
}

/// A file on the way, held for the read section `'g`.
#[derive(Clone, Copy)]
pub(crate) struct Place<'g> {
    pub(crate) mount: &'g Ref<Mount>,
    pub(crate) inode: &'g InodeRef,
}

impl<'g> Place<'g> {
    pub(crate) fn of(location: &'g Location) -> Place<'g> {
        Place { mount: &location.mount, inode: &location.inode }
    }

    pub(crate) fn is_mount_root(&self) -> bool {
        self.mount.root.is_same(self.inode)
    }

    pub(crate) fn to_location(self) -> Location {
        Location { mount: self.mount.clone(), inode: self.inode.clone() }
    }
}

/// One path walk.
pub(crate) struct Namei<'a> {
    mounts: &'a MountTable,
    cred: &'a Cred,
    links_followed: usize,
}

/// Checks what can be said of a path before any file is looked at.
///
/// # Errors
/// `ENOENT` for an empty path, `ENAMETOOLONG`, `EINVAL` for one with a NUL.
pub(crate) fn check_path(path: &[u8]) -> Result<(), Errno> {
    match path {
        [] => Err(Errno::ENOENT),
        _ if path.len() >= PATH_MAX => Err(Errno::ENAMETOOLONG),
        _ if path.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

impl<D> Parent<'_, D> {
    /// The name to create or remove.
    ///
    /// # Errors
    /// `error` when the last component is not a name.
    pub(crate) fn name_or(&self, error: Errno) -> Result<&[u8], Errno> {
        match &self.last {
            Last::Name(name) => Ok(name),
            _ => Err(error),
        }
    }
}

impl<'a> Namei<'a> {
    pub(crate) fn new(mounts: &'a MountTable, cred: &'a Cred) -> Self {
        Namei { mounts, cred, links_followed: 0 }
    }

    /// The file that `path` names, from `start` if relative. A symbolic link at the end is followed if
    /// `follow`, or if a slash comes after it.
    pub(crate) fn resolve(
        &mut self,
        start: Option<&Location>,
        path: &[u8],
        follow: bool,
    ) -> Result<Location, Errno> {
        let section = rcu::domain().read();
        self.find(start, path, follow, &section).map(Place::to_location)
    }

    /// As [`resolve`](Self::resolve), for callers who only want to look at the file: no reference is taken.
    pub(crate) fn look<R>(
        &mut self,
        start: Option<&Location>,
        path: &[u8],
        follow: bool,
        look: impl FnOnce(&Place<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let section = rcu::domain().read();
        look(&self.find(start, path, follow, &section)?)
    }

    fn find<'g>(
        &mut self,
        start: Option<&'g Location>,
        path: &[u8],
        follow: bool,
        section: &'g Guard<'_>,
    ) -> Result<Place<'g>, Errno>
    where
        'a: 'g,
    {
        check_path(path)?;
        let mut parent = self.walk(start.map(Place::of), Cow::Borrowed(path), section)?;
        loop {
            let found = self.last_in(&parent, section)?;
            if found.inode.file_type() != FileType::Symlink || !(follow || parent.trailing_slash) {
                if parent.trailing_slash && !found.inode.is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(found);
            }
            let target = self.target(found.inode, parent.trailing_slash)?;
            parent = self.walk(Some(parent.dir), Cow::Owned(target), section)?;
        }
    }

    /// The file that a walked path's last component names; a symbolic link is not followed.
    pub(crate) fn last_of(&self, parent: &Parent<'_>) -> Result<Location, Errno> {
        let section = rcu::domain().read();
        let dir = Place::of(&parent.dir);
        let parent = Parent { dir, last: parent.last.clone(), trailing_slash: parent.trailing_slash };
        self.last_in(&parent, &section).map(Place::to_location)
    }

    fn last_in<'g>(
        &self,
        parent: &Parent<'_, Place<'g>>,
        section: &'g Guard<'_>,
    ) -> Result<Place<'g>, Errno> {
        match &parent.last {
            Last::Root | Last::Dot => Ok(parent.dir),
            Last::DotDot => Ok(parent.dir.above(section)),
            Last::Name(name) => self.child(parent.dir, name, section),
        }
    }

    /// Goes on at the target of `link`, which `parent`'s last component names.
    pub(crate) fn follow(&mut self, parent: &Parent<'_>, link: &Location) -> Result<Parent<'static>, Errno> {
        let target = self.target(&link.inode, parent.trailing_slash)?;
        let section = rcu::domain().read();
        let start = Some(Place::of(&parent.dir));
        self.walk(start, Cow::Owned(target), &section).map(Parent::into_owned)
    }

    /// Walks `path`, from `start` if relative, up to its last component.
    ///
    /// # Errors
    /// `ENOENT` for an empty path, `ENAMETOOLONG`, and those of each step: `ENOENT`, `ENOTDIR`, `EACCES`,
    /// `ELOOP`.
    pub(crate) fn parent_of<'p>(
        &mut self,
        start: Option<&Location>,
        path: &'p [u8],
    ) -> Result<Parent<'p>, Errno> {
        check_path(path)?;
        let section = rcu::domain().read();
        let parent = self.walk(start.map(Place::of), Cow::Borrowed(path), &section)?;
        Ok(parent.into_owned())
    }

    /// Walks `path`, from `start` if relative, "/" in its absence, up to its last component.
    fn walk<'g, 'p>(
        &mut self,
        start: Option<Place<'g>>,
        mut path: Cow<'p, [u8]>,
        section: &'g Guard<'_>,
    ) -> Result<Parent<'p, Place<'g>>, Errno>
    where
        'a: 'g,
    {
        let mut at = start.unwrap_or_else(|| self.root(section));
        let mut rest = 0;
        loop {
            if rest == 0 && path.first() == Some(&b'/') {
                at = self.root(section);
            }
            let is_slash = |b: &u8| *b == b'/';
            rest += path[rest..].iter().take_while(|b| is_slash(b)).count();
            let component = path[rest..].split(is_slash).next().unwrap_or_default();
            if component.is_empty() {
                return Ok(Parent { dir: at, last: Last::Root, trailing_slash: false });
            }
            if !at.inode.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            at.inode.access(self.cred, Access::EXEC)?;
            let end = rest + component.len();
            let after = &path[end..];
            if after.iter().all(is_slash) {
                let trailing_slash = !after.is_empty();
                let last = match component {
                    b"." => Last::Dot,
                    b".." => Last::DotDot,
                    _ => Last::Name(part(path, rest, end)),
                };
                return Ok(Parent { dir: at, last, trailing_slash });
            }
            let next = match component {
                b"." => at,
                b".." => at.above(section),
                name => self.child(at, name, section)?,
            };
            match next.inode.file_type() {
                FileType::Directory => {
                    at = next;
                    rest = end;
                }
                FileType::Symlink => {
                    let mut target = self.target(next.inode, false)?;
                    target.extend_from_slice(after);
                    path = Cow::Owned(target);
                    rest = 0;
                }
                _ => return Err(Errno::ENOTDIR),
            }
        }
    }

    fn root<'g>(&self, section: &'g Guard<'_>) -> Place<'g>
    where
        'a: 'g,
    {
        self.mounts.bottom().enter(section)
    }

    /// What `name` means in `dir`, which the caller may search.
    fn child<'g>(&self, dir: Place<'g>, name: &[u8], section: &'g Guard<'_>) -> Result<Place<'g>, Errno> {
        let inode = dir.inode.lookup_in(self.cred, name, section)?;
        Ok(Place { inode, ..dir }.enter(section))
    }

    /// The target of the symbolic link `link`, which is about to be followed.
    fn target(&mut self, link: &Inode, trailing_slash: bool) -> Result<Vec<u8>, Errno> {
        if self.links_followed >= SYMLOOP_MAX {
            return Err(Errno::ELOOP);
        }
        self.links_followed += 1;
        let mut target = link.read_link()?;
        if trailing_slash {
            target.push(b'/');
        }
        Ok(target)
    }
}

impl<'p> Parent<'p, Place<'_>> {
    fn into_owned(self) -> Parent<'p> {
        Parent { dir: self.dir.to_location(), last: self.last, trailing_slash: self.trailing_slash }
    }
}

/// The bytes of `path` from `from` to `to`.
fn part(path: Cow<'_, [u8]>, from: usize, to: usize) -> Cow<'_, [u8]> {
    match path {
        Cow::Borrowed(path) => Cow::Borrowed(&path[from..to]),
        Cow::Owned(path) => Cow::Owned(path[from..to].to_vec()),
    }
}
