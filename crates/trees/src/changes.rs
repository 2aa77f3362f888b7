//! Changes: how two trees of a file system differ, name by name.
//!
//! Names and attributes of both are read, and of contents what the two do not share
//! ([`InodeRef::first_difference`](sluice_vfs::InodeRef::first_difference)). Times of access and change do not count, nor does the time of modification of a
//! directory: the names that changed there are told themselves. A renamed file is removed at one name and created at the other, and the second change says
//! where the file [was](NameChange::from).

use crate::moves::Moves;
use crate::stream::facts::{InodeFacts, InodeTimes};
use crate::stream::layout::are_different;
use crate::stream::pairs::{EntryPair, PairStep, PairWalk};
use sluice_vfs::{FileType, InodeRef};
use std::io;

/// How a name changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It is in the new tree alone.
    Created,
    /// It was in the old tree alone. A name that leads to another type of file is removed and created.
    Removed,
    /// Contents, holes, the target or the number of the device differ; attributes may, too.
    Modified,
    /// Mode, owner, flags, extended attributes, or the time of modification differ.
    Attributes,
}

/// A name that leads to something else in the new tree than in the old one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameChange {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The path from the top.
    pub path: Vec<u8>,
    /// The type of the file in the new tree; or of one that was removed, in the old tree.
    pub file_type: FileType,
    /// The size in the old tree, of a regular file or a symbolic link.
    pub old_size: Option<u64>,
    /// The size in the new tree.
    pub size: Option<u64>,
    /// The path in the old tree, of a file or directory that was renamed: there it is no more. Between snapshots of earlier versions nobody
    /// knows.
    pub from: Option<Vec<u8>>,
}

/// Calls `tell` with each change between the directories `old` and `new` of one file system, and what is below them, in the order of their paths, name by
/// name. The tops themselves are compared as ".". The directory of the snapshots is left out.
///
/// # Errors
/// Errors of `tell`; the store's.
pub fn changes(
    old: &InodeRef,
    new: &InodeRef,
    tell: &mut dyn FnMut(&NameChange) -> io::Result<()>,
) -> io::Result<()> {
    let moves = Moves::between(old, new)?;
    let mut walk = PairWalk::begin(Some(old), new)?;
    let mut path = Vec::new();
    let top = EntryPair { name: (*b".").into(), old: Some(old.clone()), new: Some(new.clone()) };
    compare(&top, b".", &moves, tell)?;
    while let Some(step) = walk.next()? {
        match step {
            PairStep::Entry(entry) => {
                let start = path.len();
                if start > 0 {
                    path.push(b'/');
                }
                path.extend_from_slice(&entry.name);
                compare(&entry, &path, &moves, tell)?;
                if !entry.leads_to_dir() {
                    path.truncate(start);
                }
            }
            PairStep::Leave => {
                let parent = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                path.truncate(parent);
            }
        }
    }
    Ok(())
}

/// Tells the change of `entry`, if there is one.
fn compare(
    entry: &EntryPair,
    path: &[u8],
    moves: &Moves,
    tell: &mut dyn FnMut(&NameChange) -> io::Result<()>,
) -> io::Result<()> {
    let has_size = |inode: &&InodeRef| matches!(inode.file_type(), FileType::Regular | FileType::Symlink);
    let size = |inode: &Option<InodeRef>| inode.as_ref().filter(has_size).map(|inode| inode.stat().size);
    let mut change = |kind, (old, new): (&Option<InodeRef>, &Option<InodeRef>)| {
        let Some(shown) = new.as_ref().or(old.as_ref()) else { return Ok(()) };
        let file_type = shown.file_type();
        let from = new.as_ref().and_then(|new| moves.from(new.ino(), path));
        let (old_size, size) = (size(old), size(new));
        tell(&NameChange { kind, path: path.to_vec(), file_type, old_size, size, from })
    };
    match (&entry.old, &entry.new) {
        (Some(old), Some(new)) if old.file_type() == new.file_type() => {
            if let Some(kind) = difference(old, new)? {
                change(kind, (&entry.old, &entry.new))?;
            }
            Ok(())
        }
        (old, new) => {
            if old.is_some() {
                change(ChangeKind::Removed, (old, &None))?;
            }
            if new.is_some() {
                change(ChangeKind::Created, (&None, new))?;
            }
            Ok(())
        }
    }
}

/// How two files of one type differ.
fn difference(old: &InodeRef, new: &InodeRef) -> io::Result<Option<ChangeKind>> {
    let (was, is) = (InodeFacts::of(old)?, InodeFacts::of(new)?);
    if !was.is_like(&is) {
        return Ok(Some(ChangeKind::Modified));
    }
    let is_regular = is.file_type == FileType::Regular;
    if is_regular && (old.stat().size != new.stat().size || are_different(old, new)?) {
        return Ok(Some(ChangeKind::Modified));
    }
    let mtime = if is.file_type == FileType::Directory { is.times.mtime } else { was.times.mtime };
    let counted = InodeTimes { mtime, flags: was.times.flags, ..is.times };
    let is_same = was.has_attributes_of(&is) && counted == is.times;
    Ok((!is_same).then_some(ChangeKind::Attributes))
}
