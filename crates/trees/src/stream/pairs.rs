//! Pairs: two trees that are walked side by side, by inodes.
//!
//! Each directory's names come in the order of their bytes. A name that leads to a directory on one side alone is an entry of that side; one that leads
//! to a directory on one side and to a file on the other are two entries, the old one first. The walk holds the names of the directories on
//! its way, no path is too long for it, and it moves no access time.

use sluice_vfs::{Errno, InodeRef, SNAPSHOTS};
use std::cmp::Ordering;
use std::vec;

/// A name with what it leads to: on the old side, the new one, or both.
#[derive(Clone)]
pub(crate) struct EntryPair {
    pub(crate) name: Box<[u8]>,
    pub(crate) old: Option<InodeRef>,
    pub(crate) new: Option<InodeRef>,
}

impl EntryPair {
    pub(crate) fn leads_to_dir(&self) -> bool {
        self.old.iter().chain(&self.new).any(|inode| inode.is_dir())
    }
}

/// A step of a walk.
pub(crate) enum PairStep {
    /// An entry; that of a directory comes before what is in it.
    Entry(EntryPair),
    /// All in the innermost directory has come.
    Leave,
}

/// A walk through two trees, or through one.
pub(crate) struct PairWalk {
    /// The entries that are still to come, of each directory on the way.
    levels: Vec<vec::IntoIter<EntryPair>>,
    /// The directory that the last entry leads to.
    down: Option<EntryPair>,
}

impl PairWalk {
    /// Begins below the two tops.
    pub(crate) fn begin(old: Option<&InodeRef>, new: &InodeRef) -> Result<PairWalk, Errno> {
        let down = Some(EntryPair { name: Box::default(), old: old.cloned(), new: Some(new.clone()) });
        let mut walk = PairWalk { levels: Vec::new(), down };
        walk.go_down()?;
        Ok(walk)
    }

    /// The next step; the last one leaves the top.
    pub(crate) fn next(&mut self) -> Result<Option<PairStep>, Errno> {
        self.go_down()?;
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        if let Some(entry) = level.next() {
            self.down = entry.leads_to_dir().then(|| entry.clone());
            return Ok(Some(PairStep::Entry(entry)));
        }
        self.levels.pop();
        Ok(Some(PairStep::Leave))
    }

    /// Does not go into the directory that came last: its end does not come either.
    pub(crate) fn skip(&mut self) {
        self.down = None;
    }

    /// Goes into the directory that came last beside `old`, instead of the directory that had the same name.
    pub(crate) fn go_beside(&mut self, old: Option<InodeRef>) {
        if let Some(down) = &mut self.down {
            down.old = old;
        }
    }

    fn go_down(&mut self) -> Result<(), Errno> {
        let Some(EntryPair { old, new, .. }) = self.down.take() else { return Ok(()) };
        let list = |dir: &Option<InodeRef>| dir.as_ref().map_or(Ok(Vec::new()), sorted);
        self.levels.push(merged(list(&old)?, list(&new)?).into_iter());
        Ok(())
    }
}

type NamedInode = (Box<[u8]>, InodeRef);

/// The names in `dir`, without the directory of the snapshots.
fn sorted(dir: &InodeRef) -> Result<Vec<NamedInode>, Errno> {
    let mut names = Vec::new();
    let is_root = dir.parent().is_some_and(|parent| parent.is_same(dir));
    dir.read_dir(0, false, &mut |entry| {
        let is_hidden = is_root && entry.name == SNAPSHOTS.as_bytes();
        if !is_hidden && ![&b"."[..], b".."].contains(&entry.name) {
            names.push((entry.name.into(), entry.inode.clone()));
        }
        true
    })?;
    names.sort_by(|one: &NamedInode, other: &NamedInode| one.0.cmp(&other.0));
    Ok(names)
}

fn merged(old: Vec<NamedInode>, new: Vec<NamedInode>) -> Vec<EntryPair> {
    let mut all = Vec::with_capacity(old.len().max(new.len()));
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return all,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.0.cmp(&new.0),
        };
        let was = if order.is_le() { old.next() } else { None };
        let is = if order.is_ge() { new.next() } else { None };
        match (was, is) {
            (Some((name, was)), Some((_, is))) if was.is_dir() == is.is_dir() => {
                all.push(EntryPair { name, old: Some(was), new: Some(is) });
            }
            (was, is) => {
                all.extend(was.map(|(name, was)| EntryPair { name, old: Some(was), new: None }));
                all.extend(is.map(|(name, is)| EntryPair { name, old: None, new: Some(is) }));
            }
        }
    }
}
