//! Namei: from a path to the file it names.
//!
//! # Theory
//! A walk goes component by component; each directory on the way must be one that the caller may search. A
//! symbolic link's target takes the place of its component, at most [`SYMLOOP_MAX`] times. Calls that add or
//! remove a name stop one component early: they need the directory and the name.
//!
//! A walk is one RCU read section. On its way it borrows inodes from the tables that name them, and mounts from
//! the mount table; references are taken by who needs the file for longer than the section.
//!
//! # Clients must
//! Pass paths that [`check_path`] accepted.
//!
//! # Cost
//! No store to shared memory and no allocation, symbolic links aside.

use crate::mount::{Location, MountTable, Place};
use crate::{Access, Cred, Errno, FileType, Inode, PATH_MAX, SYMLOOP_MAX};
use sluice_sync::rcu::{self, Guard};
use std::borrow::Cow;
use std::ops::Range;

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

/// One path walk.
pub(crate) struct Namei<'a> {
    mounts: &'a MountTable,
    cred: &'a Cred,
    links_followed: usize,
}

/// How far a walk got along one path.
enum Walked<'g> {
    /// To the directory of the last component, which is these bytes of the path.
    Last { dir: Place<'g>, name: Range<usize>, trailing_slash: bool },
    /// To a symbolic link in `dir`: the path goes on with its target.
    Link { dir: Place<'g>, path: Vec<u8> },
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
    /// A walk of a path that passed [`check_path`].
    pub(crate) fn new(mounts: &'a MountTable, cred: &'a Cred) -> Self {
        Namei { mounts, cred, links_followed: 0 }
    }

    /// The file that `path` names, from `start` if relative. A symbolic link at the end is followed if
    /// `follow`, or if a slash comes after it.
    ///
    /// # Errors
    /// Those of each step: `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`.
    pub(crate) fn find<'g>(
        &mut self,
        start: Option<Place<'g>>,
        path: &[u8],
        follow: bool,
        section: &'g Guard<'_>,
    ) -> Result<Place<'g>, Errno>
    where
        'a: 'g,
    {
        let mut parent = self.walk(start, Cow::Borrowed(path), section)?;
        loop {
            let found = self.last_in(parent.dir, &parent.last, section)?;
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
        self.last_in(parent.dir.place(), &parent.last, &section).map(Place::to_location)
    }

    fn last_in<'g>(&self, dir: Place<'g>, last: &Last<'_>, section: &'g Guard<'_>) -> Result<Place<'g>, Errno>
    where
        'a: 'g,
    {
        match last {
            Last::Root | Last::Dot => Ok(dir),
            Last::DotDot => Ok(dir.above(section)),
            Last::Name(name) => self.child(dir, name, section),
        }
    }

    /// Goes on at the target of `link`, which `parent`'s last component names.
    pub(crate) fn follow(&mut self, parent: &Parent<'_>, link: &Location) -> Result<Parent<'static>, Errno> {
        let target = self.target(&link.inode, parent.trailing_slash)?;
        let section = rcu::domain().read();
        let start = Some(parent.dir.place());
        self.walk(start, Cow::Owned(target), &section).map(Parent::into_owned)
    }

    /// Walks `path`, from `start` if relative, up to its last component.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn parent_of<'p>(
        &mut self,
        start: Option<Place<'_>>,
        path: &'p [u8],
        section: &Guard<'_>,
    ) -> Result<Parent<'p>, Errno> {
        self.walk(start, Cow::Borrowed(path), section).map(Parent::into_owned)
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
        let mut start = start;
        loop {
            match self.descend(start, &path, section)? {
                Walked::Link { dir, path: target } => (start, path) = (Some(dir), Cow::Owned(target)),
                Walked::Last { dir, name, trailing_slash } => {
                    let last = match &path[name.clone()] {
                        b"" => Last::Root,
                        b"." => Last::Dot,
                        b".." => Last::DotDot,
                        _ => Last::Name(part(path, name)),
                    };
                    return Ok(Parent { dir, last, trailing_slash });
                }
            }
        }
    }

    /// As [`walk`](Self::walk), up to the first symbolic link.
    fn descend<'g>(
        &mut self,
        start: Option<Place<'g>>,
        path: &[u8],
        section: &'g Guard<'_>,
    ) -> Result<Walked<'g>, Errno>
    where
        'a: 'g,
    {
        let absolute = path.first() == Some(&b'/');
        let mut dir = match start {
            Some(start) if !absolute => start,
            _ => self.mounts.root(section),
        };
        let mut begin = skip(path, 0, |byte| byte == b'/');
        if begin == path.len() {
            return Ok(Walked::Last { dir, name: begin..begin, trailing_slash: false });
        }
        loop {
            if !dir.inode.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            dir.inode.access(self.cred, Access::EXEC)?;
            let end = skip(path, begin, |byte| byte != b'/');
            let after = skip(path, end, |byte| byte == b'/');
            if after == path.len() {
                return Ok(Walked::Last { dir, name: begin..end, trailing_slash: after > end });
            }
            let next = match &path[begin..end] {
                b"." => dir,
                b".." => dir.above(section),
                name => self.child(dir, name, section)?,
            };
            match next.inode.file_type() {
                FileType::Directory => (dir, begin) = (next, after),
                FileType::Symlink => {
                    let mut target = self.target(next.inode, false)?;
                    target.extend_from_slice(&path[end..]);
                    return Ok(Walked::Link { dir, path: target });
                }
                _ => return Err(Errno::ENOTDIR),
            }
        }
    }

    /// What `name` means in `dir`, which the caller may search.
    fn child<'g>(&self, dir: Place<'g>, name: &[u8], section: &'g Guard<'_>) -> Result<Place<'g>, Errno>
    where
        'a: 'g,
    {
        let inode = dir.inode.lookup_in(name, section)?;
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

/// The bytes of `path` in `range`.
fn part(path: Cow<'_, [u8]>, range: Range<usize>) -> Cow<'_, [u8]> {
    match path {
        Cow::Borrowed(path) => Cow::Borrowed(&path[range]),
        Cow::Owned(path) => Cow::Owned(path[range].to_vec()),
    }
}

/// Where the bytes of `path` from `from` on, of which `these` holds, end.
fn skip(path: &[u8], from: usize, these: impl Fn(u8) -> bool) -> usize {
    path[from..].iter().position(|byte| !these(*byte)).map_or(path.len(), |count| from + count)
}
