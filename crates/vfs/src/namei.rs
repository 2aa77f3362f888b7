//! Namei: from a path to the file it names.
//!
//! # Theory
//! A walk goes component by component; each directory on the way must be one that the caller may search. A
//! symbolic link's target takes the place of its component, at most [`SYMLOOP_MAX`] times. Calls that add or
//! remove a name stop one component early: they need the directory and the name.
//!
//! # Cost
//! One shared directory lock per component. (The scaling walk without stores to shared memory replaces this.)

use crate::mount::{Location, MountTable};
use crate::{Access, Cred, Errno, FileType, PATH_MAX, SYMLOOP_MAX};
use std::borrow::Cow;

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// A name to look up.
    Name(Vec<u8>),
    /// ".".
    Dot,
    /// "..".
    DotDot,
    /// There is none: the path is "/".
    Root,
}

/// A path walked up to its last component.
pub(crate) struct Parent {
    pub(crate) dir: Location,
    pub(crate) last: Last,
    /// The path ends in a slash: only a directory will do.
    pub(crate) trailing_slash: bool,
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

impl Parent {
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
    pub(crate) fn resolve(&mut self, start: &Location, path: &[u8], follow: bool) -> Result<Location, Errno> {
        let mut parent = self.parent_of(start, path)?;
        loop {
            let found = self.last_of(&parent)?;
            if found.inode.file_type() != FileType::Symlink || !(follow || parent.trailing_slash) {
                if parent.trailing_slash && !found.inode.is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(found);
            }
            parent = self.follow(&parent, &found)?;
        }
    }

    /// The file that a walked path's last component names; a symbolic link is not followed.
    pub(crate) fn last_of(&self, parent: &Parent) -> Result<Location, Errno> {
        match &parent.last {
            Last::Root | Last::Dot => Ok(parent.dir.clone()),
            Last::DotDot => Ok(self.mounts.parent(&parent.dir)),
            Last::Name(name) => self.child(&parent.dir, name),
        }
    }

    /// Goes on at the target of `link`, which `parent`'s last component names.
    pub(crate) fn follow(&mut self, parent: &Parent, link: &Location) -> Result<Parent, Errno> {
        let mut target = self.read_link(link)?;
        if parent.trailing_slash {
            target.push(b'/');
        }
        self.walk(parent.dir.clone(), Cow::Owned(target))
    }

    /// Walks `path`, from `start` if relative, up to its last component.
    ///
    /// # Errors
    /// `ENOENT` for an empty path, `ENAMETOOLONG`, and those of each step: `ENOENT`, `ENOTDIR`, `EACCES`,
    /// `ELOOP`.
    pub(crate) fn parent_of(&mut self, start: &Location, path: &[u8]) -> Result<Parent, Errno> {
        check_path(path)?;
        self.walk(start.clone(), Cow::Borrowed(path))
    }

    fn walk(&mut self, mut at: Location, path: Cow<'_, [u8]>) -> Result<Parent, Errno> {
        let mut path = path;
        let mut rest = 0;
        loop {
            if rest == 0 && path.first() == Some(&b'/') {
                at = self.mounts.root();
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
            let after = &path[rest + component.len()..];
            if after.iter().all(is_slash) {
                let last = match component {
                    b"." => Last::Dot,
                    b".." => Last::DotDot,
                    name => Last::Name(name.to_vec()),
                };
                return Ok(Parent { dir: at, last, trailing_slash: !after.is_empty() });
            }
            let next = match component {
                b"." => at.clone(),
                b".." => self.mounts.parent(&at),
                name => self.child(&at, name)?,
            };
            match next.inode.file_type() {
                FileType::Directory => {
                    at = next;
                    rest += component.len();
                }
                FileType::Symlink => {
                    let mut target = self.read_link(&next)?;
                    target.extend_from_slice(after);
                    path = Cow::Owned(target);
                    rest = 0;
                }
                _ => return Err(Errno::ENOTDIR),
            }
        }
    }

    fn child(&self, dir: &Location, name: &[u8]) -> Result<Location, Errno> {
        let inode = dir.inode.lookup(self.cred, name)?;
        Ok(self.mounts.enter(Location::new(&dir.mount, inode)))
    }

    fn read_link(&mut self, link: &Location) -> Result<Vec<u8>, Errno> {
        if self.links_followed >= SYMLOOP_MAX {
            return Err(Errno::ELOOP);
        }
        self.links_followed += 1;
        link.inode.read_link()
    }
}
