//! Namei: from a path to the file it names.
//!
//! # Theory
//! A walk goes component by component; each directory on the way must be one that the caller may search. A
//! symbolic link's target takes the place of its component, at most [`SYMLOOP_MAX`] times. Calls that add or
//! remove a name stop one component early: they need the directory and the name.
//!
//! A walk is one RCU read section. On its way it borrows inodes from the tables that name them, and mounts from
//! the mount table; references are taken by callers that need the file for longer than the section.
//!
//! A thread remembers paths that it has walked before: `recall.rs`.
//!
//! # Clients must
//! Pass paths that [`check_path`] accepted.
//!
//! # Cost
//! No store to shared memory and no allocation, symbolic links aside (a thread's first walk makes room for what it remembers).

use crate::at_once::{AtOnce, WouldWait, decided};
use crate::mount::{Location, LocationRef, MountTable};
use crate::recall::PathRecording;
use crate::{Access, Cred, Errno, FileType, InodeRef, PATH_MAX, SYMLOOP_MAX};
use sluice_sync::rcu::{self, Guard};
use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;

/// A walk for which names were loaded so often does not let others leave memory any more.
const LOADS_MAX: u32 = 4;

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

/// One path walk. It outlives the guards of its read sections; within each section it borrows inodes and mounts that
/// live as long as the section.
pub(crate) struct Namei<'g> {
    mounts: &'g MountTable,
    pub(crate) cred: &'g Cred,
    links_followed: Cell<usize>,
    /// The directory whose names must be loaded before the walk can go on.
    wanted: Cell<Option<InodeRef>>,
    /// How often names were loaded.
    loads: Cell<u32>,
    /// The thread should remember this path from now on.
    pub(crate) should_record: Cell<bool>,
}

/// A walk along one path: where it is, and what is left of the path.
pub(crate) struct Walk<'g, 'p> {
    pub(crate) dir: LocationRef<'g>,
    pub(crate) path: Cow<'p, [u8]>,
    /// Where the next component begins, or the end of the path.
    pub(crate) begin: usize,
    /// The part that should be remembered.
    pub(crate) recording: Option<PathRecording<'g>>,
}

/// The component of a path that begins where a walk is.
#[derive(Clone, Copy)]
pub(crate) struct Component {
    pub(crate) end: usize,
    /// Where the next one begins. Unless it is `end`, slashes come between, or at the end of the path.
    pub(crate) after: usize,
}

/// Checks what can be said of a path before any file is looked at.
///
/// # Errors
/// `ENOENT` for an empty path, `ENAMETOOLONG`, `EINVAL` for one with a NUL.
pub(crate) fn check_path(path: &[u8]) -> Result<(), Errno> {
    match path {
        [] => Err(Errno::ENOENT),
        _ if path.len() >= PATH_MAX => Err(Errno::ENAMETOOLONG),
        _ if find_byte(path, 0) < path.len() => Err(Errno::EINVAL),
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

impl<'g> Namei<'g> {
    /// A walk of a path that passed [`check_path`].
    pub(crate) fn new(mounts: &'g MountTable, cred: &'g Cred) -> Self {
        Namei {
            mounts,
            cred,
            links_followed: Cell::new(0),
            wanted: Cell::new(None),
            loads: Cell::new(0),
            should_record: Cell::new(false),
        }
    }

    /// The file that `path` names, from `start` if relative. A symbolic link at the end is followed if
    /// `follow`, or if a slash comes after it.
    ///
    /// # Errors
    /// Errors of each step: `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`.
    pub(crate) fn find(
        &self,
        start: Option<LocationRef<'g>>,
        path: &[u8],
        follow: bool,
        section: &'g Guard<'_>,
    ) -> AtOnce<LocationRef<'g>> {
        let mut walk = self.begin(start, Cow::Borrowed(path), section);
        self.recall_dirs(&mut walk, section);
        while let Some(name) = walk.component(self.cred)? {
            let found = self.child(&mut walk, name, section)?;
            let goes_on = name.after > name.end || (follow && found.inode.is_symlink());
            if walk.is_last(name) && (found.inode.is_dir() || !goes_on) {
                return Ok(found);
            }
            self.go_on(&mut walk, name, found, section)?;
        }
        Ok(walk.dir)
    }

    /// The file that a walked path's last component names; a symbolic link is not followed.
    pub(crate) fn last_of(&self, parent: &Parent<'_>) -> Result<Location, Errno> {
        loop {
            let found = {
                let section = rcu::domain().read();
                self.last_in(parent.dir.place(), &parent.last, &section).map(LocationRef::to_location)
            };
            match decided(found) {
                Some(found) => return found,
                None => self.load_wanted()?,
            }
        }
    }

    /// The walk came to a look into `dir`, whose names are not in memory.
    #[cold]
    pub(crate) fn want(&self, dir: &InodeRef) {
        self.wanted.set(Some(dir.clone()));
    }

    /// Loads the names for the lack of which a walk ended with [`WouldWait`]. Called in no section.
    ///
    /// # Errors
    /// The store's.
    #[cold]
    pub(crate) fn load_wanted(&self) -> Result<(), Errno> {
        let dir = self.wanted.take().ok_or(Errno::EIO)?;
        self.loads.set(self.loads.get() + 1);
        // For the last directory of a long path the first must not leave for ever.
        if self.loads.get() <= LOADS_MAX { dir.load_names() } else { dir.load_names_beside() }
    }

    /// Loads the wanted names for a walk that begins again where it had followed so many links; see
    /// [`load_wanted`](Self::load_wanted).
    #[cold]
    pub(crate) fn load_and_go_back(&self, links_followed: usize) -> Result<(), Errno> {
        self.links_followed.set(links_followed);
        self.load_wanted()
    }

    fn last_in(
        &self,
        dir: LocationRef<'g>,
        last: &Last<'_>,
        section: &'g Guard<'_>,
    ) -> AtOnce<LocationRef<'g>> {
        match last {
            Last::Root | Last::Dot => Ok(dir),
            Last::DotDot => Ok(dir.above(section)),
            Last::Name(name) => self.look_up(dir, name, section),
        }
    }

    /// Goes on at the target of `link`, which `parent`'s last component names.
    pub(crate) fn follow(&self, parent: &Parent<'_>, link: &Location) -> Result<Parent<'static>, Errno> {
        let mut target = self.target(link.place())?;
        if parent.trailing_slash {
            target.push(b'/');
        }
        let followed = self.links_followed.get();
        loop {
            let walked = {
                let section = rcu::domain().read();
                let start = Some(parent.dir.place());
                self.walk(start, Cow::Owned(target.clone()), &section).map(Parent::into_owned)
            };
            match decided(walked) {
                Some(walked) => return walked,
                None => self.load_and_go_back(followed)?,
            }
        }
    }

    /// Walks `path`, from `start` if relative, up to its last component.
    ///
    /// # Errors
    /// Errors of [`find`](Self::find).
    #[inline(always)]
    pub(crate) fn to_parent<'p>(
        &self,
        start: Option<LocationRef<'g>>,
        path: &'p [u8],
        section: &'g Guard<'_>,
    ) -> AtOnce<Parent<'p, LocationRef<'g>>> {
        match self.recall_parent(start, path, section) {
            Some(parent) => Ok(parent),
            None => self.walk(start, Cow::Borrowed(path), section),
        }
    }

    /// [`to_parent`](Self::to_parent), whatever the thread remembers.
    fn walk<'p>(
        &self,
        start: Option<LocationRef<'g>>,
        path: Cow<'p, [u8]>,
        section: &'g Guard<'_>,
    ) -> AtOnce<Parent<'p, LocationRef<'g>>> {
        let mut walk = self.begin(start, path, section);
        self.record_dirs(&mut walk, section);
        while let Some(name) = walk.component(self.cred)? {
            if walk.is_last(name) {
                let Walk { dir, path, begin, .. } = walk;
                let last = match &path[begin..name.end] {
                    b"." => Last::Dot,
                    b".." => Last::DotDot,
                    _ => Last::Name(part(path, begin..name.end)),
                };
                return Ok(Parent { dir, last, trailing_slash: name.after > name.end });
            }
            let found = self.child(&mut walk, name, section)?;
            self.go_on(&mut walk, name, found, section)?;
        }
        Ok(Parent { dir: walk.dir, last: Last::Root, trailing_slash: false })
    }

    /// A walk of `path`, from `start` if relative, "/" in its absence.
    #[inline]
    fn begin<'p>(
        &self,
        start: Option<LocationRef<'g>>,
        path: Cow<'p, [u8]>,
        section: &'g Guard<'_>,
    ) -> Walk<'g, 'p> {
        let dir = self.start(start, &path, section);
        let begin = skip_slashes(&path, 0);
        Walk { dir, path, begin, recording: None }
    }

    /// Where a walk of `path` begins, which is at `start` if relative, at "/" in its absence.
    #[inline]
    pub(crate) fn start(
        &self,
        start: Option<LocationRef<'g>>,
        path: &[u8],
        section: &'g Guard<'_>,
    ) -> LocationRef<'g> {
        match start {
            Some(start) if path.first() != Some(&b'/') => start,
            _ => self.mounts.root(section),
        }
    }

    /// Goes from component `name`, which is `found`, to the next, or to where a symbolic link leads.
    ///
    /// # Errors
    /// `ENOTDIR`, `ELOOP`.
    #[inline(always)]
    fn go_on(
        &self,
        walk: &mut Walk<'g, '_>,
        name: Component,
        found: LocationRef<'g>,
        section: &'g Guard<'_>,
    ) -> Result<(), Errno> {
        match found.inode.file_type() {
            FileType::Directory => (walk.dir, walk.begin) = (found, name.after),
            FileType::Symlink => {
                let mut path = self.target(found)?;
                path.extend_from_slice(&walk.path[name.end..]);
                *walk = self.begin(Some(walk.dir), Cow::Owned(path), section);
            }
            _ => return Err(Errno::ENOTDIR),
        }
        Ok(())
    }

    /// Resolves the component `name` in the walk's current directory, which the caller may search.
    #[inline]
    fn child(
        &self,
        walk: &mut Walk<'g, '_>,
        name: Component,
        section: &'g Guard<'_>,
    ) -> AtOnce<LocationRef<'g>> {
        match walk.recording {
            None => self.look_up(walk.dir, &walk.path[walk.begin..name.end], section),
            Some(_) => self.child_recorded(walk, name, section),
        }
    }

    /// Resolves `name` in `dir`, which the caller may search.
    #[inline]
    pub(crate) fn look_up(
        &self,
        dir: LocationRef<'g>,
        name: &[u8],
        section: &'g Guard<'_>,
    ) -> AtOnce<LocationRef<'g>> {
        match name {
            b"." => Ok(dir),
            b".." => Ok(dir.above(section)),
            _ => {
                let found = dir.inode.lookup_in(name, section).inspect_err(|error| {
                    if *error == WouldWait {
                        self.want(dir.inode);
                    }
                });
                Ok(LocationRef { inode: found?, ..dir }.enter(section))
            }
        }
    }

    /// The target of the symbolic link at `link`, which is about to be followed.
    #[cold]
    fn target(&self, link: LocationRef<'_>) -> Result<Vec<u8>, Errno> {
        let followed = self.links_followed.get();
        if followed >= SYMLOOP_MAX {
            return Err(Errno::ELOOP);
        }
        self.links_followed.set(followed + 1);
        link.inode.read_link(link.mount.updates_atime())
    }
}

impl Walk<'_, '_> {
    /// The component that comes next, if there is one, in a directory that `cred` may search.
    ///
    /// # Errors
    /// `EACCES`.
    #[inline(always)]
    fn component(&self, cred: &Cred) -> Result<Option<Component>, Errno> {
        if self.begin == self.path.len() {
            return Ok(None);
        }
        self.dir.inode.access(cred, Access::EXEC)?;
        let end = self.begin + find_byte(&self.path[self.begin..], b'/');
        Ok(Some(Component { end, after: skip_slashes(&self.path, end) }))
    }

    fn is_last(&self, name: Component) -> bool {
        name.after == self.path.len()
    }
}

impl<'p> Parent<'p, LocationRef<'_>> {
    /// This parent, for longer than the section.
    pub(crate) fn into_owned(self) -> Parent<'p> {
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

/// Where the slashes of `path` from `from` on end.
#[inline]
fn skip_slashes(path: &[u8], from: usize) -> usize {
    let mut at = from;
    while path.get(at) == Some(&b'/') {
        at += 1;
    }
    at
}

/// Where `byte` is first in `bytes`; their length if it is nowhere. Eight at a time: names are short.
#[inline]
fn find_byte(bytes: &[u8], byte: u8) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let (words, rest) = bytes.as_chunks();
    for (number, word) in words.iter().enumerate() {
        let differing = u64::from_le_bytes(*word) ^ (ONES * u64::from(byte));
        // The lowest bit that stands here is in the first byte that is 0: a borrow only leaves those.
        let zeros = differing.wrapping_sub(ONES) & !differing & (ONES << 7);
        if zeros != 0 {
            return 8 * number + zeros.trailing_zeros() as usize / 8;
        }
    }
    8 * words.len() + rest.iter().position(|here| *here == byte).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::find_byte;

    #[test]
    fn a_byte_is_found_where_it_is_first() {
        for len in 0..20 {
            let mut bytes = vec![b'/' + 1; len];
            assert_eq!(find_byte(&bytes, b'/'), len);
            for at in (0..len).rev() {
                bytes[at] = b'/';
                assert_eq!(find_byte(&bytes, b'/'), at, "{len} bytes");
            }
        }
        assert_eq!(find_byte(b"\x01\x00\x01\x00\xff\x80\x00\x01", 0), 1);
        assert_eq!(find_byte(b"\xff\x80\x01\x81\x7f\xfe\x02\x03", 0), 8);
    }
}
