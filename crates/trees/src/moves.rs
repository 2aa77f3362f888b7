//! Moves: which files of an older snapshot have other names in a newer one.
//!
//! # Theory
//! Two inodes of two snapshots are one file if they have one [origin](sluice_vfs::Inode::origin). The trees are walked side by side. A name that leads to
//! the same file in both, in a directory that is the same in both, is *settled*, unless the file has several names. All other old
//! names are collected first, and then the new names that lead to one of these files.
//!
//! An origin is a hint: a part of a tree that was restored beside the original gives two files one origin. Two such files have no counterpart,
//! and are compared and sent by their names. In a snapshot of an earlier version no file has an origin, and each name is settled.
//!
//! # Cost
//! Two walks through names and inodes, and one if nothing lost a name. In memory: each lost name, and the names of directories above.

use crate::stream::pairs::{EntryPair, PairStep, PairWalk};
use sluice_vfs::{Cred, Errno, InodeRef};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// Names from the top to a directory or file.
pub(crate) type PathNames = Vec<Box<[u8]>>;

/// A name in the directory with a number.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PlacedName {
    dir: u64,
    name: Box<[u8]>,
}

/// The unsettled names of a file in one tree.
struct Sighting {
    ino: u64,
    /// Which sighting it was.
    order: usize,
    names: Vec<PlacedName>,
    /// Another file has the same origin.
    is_doubtful: bool,
}

/// The sightings in one tree.
#[derive(Default)]
struct Sightings {
    by_origin: HashMap<u64, Sighting>,
    places: DirPlaces,
}

/// The names of all directories with an entry that was seen, and of the directories above.
#[derive(Default)]
struct DirPlaces(HashMap<u64, PlacedName>);

impl DirPlaces {
    /// The path of this name from the top.
    fn path(&self, name: &PlacedName) -> PathNames {
        let mut path = vec![name.name.clone()];
        let mut dir = name.dir;
        while let Some(place) = self.0.get(&dir) {
            path.push(place.name.clone());
            dir = place.dir;
        }
        path.reverse();
        path
    }
}

/// A file that both trees have, with a name that is not settled.
pub(crate) struct MovedFile {
    /// The number of the old inode.
    pub(crate) old_ino: u64,
    /// The number under which its first old name is put aside. None if it keeps one of its names.
    pub(crate) aside: Option<usize>,
    old: Vec<PlacedName>,
    new: Vec<PlacedName>,
}

impl MovedFile {
    /// Whether it had several names that are not settled.
    pub(crate) fn had_several(&self) -> bool {
        self.old.len() > 1
    }
}

/// The files that moved between two trees.
#[derive(Default)]
pub(crate) struct Moves {
    /// By the number of the new inode.
    files: HashMap<u64, MovedFile>,
    /// The numbers of the old inodes.
    old: HashSet<u64>,
    /// The old names that are put aside: those in a directory come before it.
    aside: Vec<PlacedName>,
    /// The old names that are put aside, for look-ups.
    away: HashSet<PlacedName>,
    /// The directories of each tree.
    old_places: DirPlaces,
    new_places: DirPlaces,
}

impl Moves {
    /// # Errors
    /// The store's.
    pub(crate) fn between(old: &InodeRef, new: &InodeRef) -> Result<Moves, Errno> {
        let mut gone = Sightings::default();
        walk(old, new, &mut |levels, entry| {
            if let Some(inode) = &entry.old {
                gone.see(levels, |level| level.old, &entry.name, inode);
            }
        })?;
        if gone.by_origin.is_empty() {
            return Ok(Moves::default());
        }
        // For a new directory the old one that it goes on from.
        let mut directories = HashMap::new();
        let mut come = Sightings::default();
        walk(old, new, &mut |levels, entry| {
            if let (Some(inode), Some(level)) = (&entry.new, levels.last())
                && inode.origin().is_some_and(|origin| gone.by_origin.contains_key(&origin))
            {
                if level.is_settled {
                    directories.insert(level.new, level.old);
                }
                come.see(levels, |level| level.new, &entry.name, inode);
            }
        })?;
        let mut pairs = Vec::new();
        for (origin, new) in come.by_origin {
            let old = gone.by_origin.remove(&origin);
            if let Some(old) = old.filter(|old| !old.is_doubtful && !new.is_doubtful) {
                directories.insert(new.ino, old.ino);
                pairs.push((old, new));
            }
        }
        let places = Moves { old_places: gone.places, new_places: come.places, ..Moves::default() };
        Ok(places.with(pairs, &directories))
    }

    fn with(mut self, mut pairs: Vec<(Sighting, Sighting)>, directories: &HashMap<u64, u64>) -> Moves {
        // A directory was seen before its entries.
        pairs.sort_by_key(|(old, _)| std::cmp::Reverse(old.order));
        for (old, new) in pairs {
            let stays = new.names.iter().any(|name| {
                let was_in = directories.get(&name.dir);
                old.names.iter().any(|had| Some(&had.dir) == was_in && had.name == name.name)
            });
            let mut aside = None;
            if let Some(first) = old.names.first().filter(|_| !stays) {
                aside = Some(self.aside.len());
                self.aside.push(first.clone());
                self.away.insert(first.clone());
            }
            self.old.insert(old.ino);
            self.files.insert(new.ino, MovedFile { old_ino: old.ino, aside, old: old.names, new: new.names });
        }
        self
    }

    /// The paths in the old tree that are put aside, in this order.
    pub(crate) fn aside(&self) -> impl Iterator<Item = PathNames> {
        self.aside.iter().map(|name| self.old_places.path(name))
    }

    /// Whether `name` in the old directory `dir` is put aside.
    pub(crate) fn is_away(&self, dir: &InodeRef, name: &[u8]) -> bool {
        !self.away.is_empty() && self.away.contains(&PlacedName { dir: dir.ino(), name: name.into() })
    }

    /// The file that the new inode `ino` goes on from, if it is one of these files.
    pub(crate) fn file(&self, ino: u64) -> Option<&MovedFile> {
        self.files.get(&ino)
    }

    /// If the new inode `ino` was put aside: its number there, and the file below `top`, the top of the old tree.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn put_aside(
        &self,
        top: Option<&InodeRef>,
        ino: u64,
    ) -> Result<Option<(u64, InodeRef)>, Errno> {
        let number = self.file(ino).and_then(|file| file.aside);
        let (Some(number), Some(top)) = (number, top) else { return Ok(None) };
        let path = self.old_places.path(&self.aside[number]);
        let cred = Cred::root();
        let found = path.iter().try_fold(top.clone(), |dir, name| dir.lookup(&cred, name))?;
        Ok(Some((number as u64, found)))
    }

    /// Whether the old inode `ino` goes on as one of these files.
    pub(crate) fn goes_on(&self, ino: u64) -> bool {
        self.old.contains(&ino)
    }

    /// The path that the new file `ino`, now at `path`, had and does not have any more. None if it was at `path` before.
    pub(crate) fn from(&self, ino: u64, path: &[u8]) -> Option<Vec<u8>> {
        let file = self.files.get(&ino)?;
        let joined = |places: &DirPlaces, names: &[PlacedName]| -> Vec<Vec<u8>> {
            names.iter().map(|name| places.path(name).join(&b'/')).collect()
        };
        let had = joined(&self.old_places, &file.old);
        let has = joined(&self.new_places, &file.new);
        let was_here = had.iter().any(|had| had == path);
        had.into_iter().find(|had| !was_here && !has.contains(had))
    }
}

/// A directory on the way, of one tree or of both.
struct MoveLevel {
    name: Box<[u8]>,
    /// The numbers of its inodes.
    old: u64,
    new: u64,
    /// A directory that is the same in both trees, and stands in another such directory.
    is_settled: bool,
}

impl Sightings {
    /// Notes that `name` in the last one of `levels`, of which the tree has the inodes `of`, leads to `inode`.
    fn see(&mut self, levels: &[MoveLevel], of: fn(&MoveLevel) -> u64, name: &[u8], inode: &InodeRef) {
        let (Some(origin), Some(level)) = (inode.origin(), levels.last()) else { return };
        let (ino, order) = (inode.ino(), self.by_origin.len());
        let first = || Sighting { ino, order, names: Vec::new(), is_doubtful: false };
        let seen = self.by_origin.entry(origin).or_insert_with(first);
        seen.is_doubtful |= seen.ino != ino;
        seen.names.push(PlacedName { dir: of(level), name: name.into() });
        for pair in levels.windows(2).rev() {
            let [above, level] = pair else { return };
            // Then those above are there, too.
            let place = || PlacedName { dir: of(above), name: level.name.clone() };
            match self.places.0.entry(of(level)) {
                Entry::Occupied(_) => return,
                Entry::Vacant(vacant) => drop(vacant.insert(place())),
            }
        }
    }
}

/// Whether a name that leads to `old` and `new`, in directories that are the same, is settled.
fn is_settled(old: &InodeRef, new: &InodeRef) -> bool {
    let has_several = |inode: &InodeRef| !inode.is_dir() && inode.stat().nlink > 1;
    match (old.origin(), new.origin()) {
        (Some(was), Some(is)) => was == is && !has_several(old) && !has_several(new),
        _ => true,
    }
}

/// Calls `see` with each entry that is not settled, and the directories on the way to it.
fn walk(old: &InodeRef, new: &InodeRef, see: &mut dyn FnMut(&[MoveLevel], &EntryPair)) -> Result<(), Errno> {
    let mut walk = PairWalk::begin(Some(old), new)?;
    let mut levels =
        vec![MoveLevel { name: Box::default(), old: old.ino(), new: new.ino(), is_settled: true }];
    while let Some(step) = walk.next()? {
        let PairStep::Entry(entry) = step else {
            levels.pop();
            continue;
        };
        let is_settled = levels.last().is_some_and(|level| level.is_settled)
            && matches!((&entry.old, &entry.new), (Some(old), Some(new)) if is_settled(old, new));
        if !is_settled {
            see(&levels, &entry);
        }
        if entry.leads_to_dir() {
            let ino = |inode: &Option<InodeRef>| inode.as_ref().map_or(0, |inode| inode.ino());
            let (old, new) = (ino(&entry.old), ino(&entry.new));
            levels.push(MoveLevel { name: entry.name, old, new, is_settled });
        }
    }
    Ok(())
}
