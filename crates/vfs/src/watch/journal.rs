//! Journal: what is durable of a file system, by what programs may rely on, and what was done since.
//!
//! # Theory
//! ```text
//!   Image     what fsync has made durable            names, attributes, contents
//!   steps     changes of names and attributes        each whole or not at all
//!   edits     of each file, changes of contents      each whole, in part, or not at all
//! ```
//! *Steps* depend on earlier ones: on those that concern the same name or the same file; a change of a name in a
//! directory on those of the directory itself, and the other way round; of two that move directories the later on the
//! earlier. Two different names of one directory are independent. A crash may lose any step, together with all steps
//! that depend on it. So what is left is always a tree, as a journal leaves one; a journal that keeps an order of all
//! changes leaves one of these trees too.
//!
//! *Edits* are independent of each other and of steps, with one exception: an edit that cuts a file or moves its
//! contents takes all later edits of the file with it when lost, and is never torn.
//!
//! *Synchronising* a file makes durable its edits, and the steps that concern it; a directory, the steps that concern
//! it or a name in it; each with all steps that these depend on. Durable changes belong to the image from then on.

use super::caller::CalledBy;
use super::names::{Names, Slot};
use crate::data::{FileData, Space};
use crate::inode::Body;
use crate::{Errno, FileType, Inode, InodeFlags, InodeRef, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Attributes of an inode, as they are after a change.
#[derive(Clone, Debug)]
pub(super) struct ChangedAttributes {
    /// The change that they are those after.
    at: u64,
    pub(super) file_type: FileType,
    pub(super) rdev: u64,
    pub(super) target: Box<[u8]>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) flags: InodeFlags,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) born: Timestamp,
    /// Access control lists included.
    pub(super) xattrs: Vec<(Box<[u8]>, Vec<u8>)>,
}

impl ChangedAttributes {
    pub(super) fn of(inode: &Inode) -> ChangedAttributes {
        let (rdev, target) = match &inode.body {
            Body::Symlink(target) => (0, target.clone()),
            Body::Special { rdev, .. } => (*rdev, Box::default()),
            Body::Regular | Body::Directory(_) => (0, Box::default()),
        };
        let xattrs = inode.xattr_names().into_iter().filter_map(|name| {
            let value = inode.xattr_value(&name)?;
            Some((name, value))
        });
        let attr = inode.attr.read();
        ChangedAttributes {
            at: 0,
            file_type: inode.file_type(),
            rdev,
            target,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            flags: inode.flags(),
            atime: inode.times.atime(),
            mtime: inode.times.mtime(),
            ctime: inode.times.ctime(),
            born: inode.born(),
            xattrs: xattrs.collect(),
        }
    }

    /// Changes what `edit` changes of them, if it came later.
    pub(super) fn after(&mut self, edit: &Edit) {
        if edit.at > self.at {
            (self.at, self.mode) = (edit.at, edit.mode);
            (self.mtime, self.ctime) = edit.times;
        }
    }
}

/// A change of names and attributes.
#[derive(Clone, Default)]
pub(super) struct JournalStep {
    /// Where in the order of all changes it stands.
    pub(super) at: u64,
    pub(super) names: Vec<(Slot, Option<u64>)>,
    /// The attributes of each inode that it concerns.
    pub(super) attributes: BTreeMap<u64, ChangedAttributes>,
    /// Contents that came with it.
    pub(super) contents: Vec<(u64, Edit)>,
    /// A directory was given another name.
    pub(super) moves_directory: bool,
}

impl JournalStep {
    fn directories(&self) -> impl Iterator<Item = u64> {
        self.names.iter().map(|((dir, _), _)| *dir)
    }
}

/// The objects that some steps touch: a step that [`meets`](Self::meets) them depends on these steps, or they on it.
#[derive(Default)]
pub(super) struct Touched {
    inodes: BTreeSet<u64>,
    directories: BTreeSet<u64>,
    slots: BTreeSet<Slot>,
    moves_directory: bool,
}

impl Touched {
    pub(super) fn add(&mut self, step: &JournalStep) {
        self.inodes.extend(step.attributes.keys());
        self.directories.extend(step.directories());
        self.slots.extend(step.names.iter().map(|(slot, _)| slot.clone()));
        self.moves_directory |= step.moves_directory;
    }

    pub(super) fn meets(&self, step: &JournalStep) -> bool {
        let concerns = |ino: &u64| self.inodes.contains(ino) || self.directories.contains(ino);
        step.attributes.keys().any(concerns)
            || step.directories().any(|dir| self.inodes.contains(&dir))
            || step.names.iter().any(|(slot, _)| self.slots.contains(slot))
            || step.moves_directory && self.moves_directory
    }
}

/// A change of contents.
#[derive(Clone)]
pub(super) struct Edit {
    pub(super) at: u64,
    /// Where; to the end of all offsets if the file was cut or its contents were moved.
    pub(super) bytes: Range<u64>,
    /// Size of the file after it.
    pub(super) size: u64,
    /// The nonzero bytes in the range after the edit.
    pub(super) pieces: Vec<(u64, Vec<u8>)>,
    mode: u32,
    times: (Timestamp, Timestamp),
}

/// Storage without limits.
pub(super) struct Unlimited;

impl Space for Unlimited {
    fn reserve(&self, _pages: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn release(&self, _pages: u64) {}
}

impl Edit {
    /// The current contents of `inode` in `bytes`; none if it is no regular file.
    pub(super) fn of(inode: &Inode, bytes: Range<u64>) -> Option<Edit> {
        let Ok(data) = inode.data() else { return None };
        if !matches!(inode.body, Body::Regular) {
            return None;
        }
        let (size, mut pieces, mut at) = (data.size(), Vec::new(), bytes.start);
        while let Some(start) = data.seek_data(at).filter(|start| *start < bytes.end) {
            let hole = data.seek_hole(start).unwrap_or(size).min(bytes.end);
            let mut piece = vec![0; (hole - start) as usize];
            let read = data.read(start, &mut piece).unwrap_or_else(|| data.read_here(start, &mut piece));
            piece.truncate(read);
            pieces.push((start, piece));
            at = hole;
        }
        let times = (inode.times.mtime(), inode.times.ctime());
        Some(Edit { at: 0, bytes, size, pieces, mode: inode.attr.read().mode, times })
    }

    /// Whether later edits are nothing without it, and it is whole.
    pub(super) fn is_barrier(&self) -> bool {
        self.bytes.end == u64::MAX
    }

    /// Bytes of the file that it concerns.
    pub(super) fn concerned(&self) -> Range<u64> {
        self.bytes.start.min(self.size)..self.bytes.end.min(self.size)
    }

    /// Does it to `data`.
    pub(super) fn apply(&self, data: &FileData, space: &dyn Space) -> Result<(), Errno> {
        let Range { start, end } = self.concerned();
        if self.is_barrier() {
            data.truncate(space, self.size)?;
        } else if end > data.size() {
            data.truncate(space, end)?;
        }
        if end > start {
            data.punch_hole(space, start, end - start);
        }
        self.pieces.iter().try_for_each(|(at, piece)| data.write(space, *at, piece).map(drop))
    }

    /// Applies the edit to the sectors of `data` for which `takes` returns true.
    pub(super) fn apply_torn(
        &self,
        data: &FileData,
        space: &dyn Space,
        mut takes: impl FnMut() -> bool,
    ) -> Result<(), Errno> {
        for (start, piece) in &self.pieces {
            let mut at = 0;
            while at < piece.len() {
                // Sectors by their place in the file.
                let offset = start + at as u64;
                let end = piece.len().min(at + (SECTOR - offset % SECTOR) as usize);
                if takes() {
                    data.write(space, offset, &piece[at..end])?;
                }
                at = end;
            }
        }
        Ok(())
    }
}

/// The unit in which a write is torn.
const SECTOR: u64 = 512;

/// A tree apart from any file system.
#[derive(Default)]
pub(super) struct Image {
    pub(super) names: Names,
    pub(super) attributes: BTreeMap<u64, ChangedAttributes>,
    pub(super) contents: BTreeMap<u64, FileData>,
}

impl Image {
    /// Names and attributes alone.
    pub(super) fn without_contents(&self) -> Image {
        let Image { names, attributes, .. } = self;
        Image { names: names.clone(), attributes: attributes.clone(), contents: BTreeMap::new() }
    }

    /// Does `step`: the inodes that it took a name from.
    pub(super) fn apply(&mut self, step: &JournalStep) -> Vec<u64> {
        let nameless = step.names.iter().filter_map(|(slot, ino)| self.names.set(slot, *ino)).collect();
        self.attributes.extend(step.attributes.iter().map(|(ino, attributes)| (*ino, attributes.clone())));
        for (ino, edit) in &step.contents {
            // There is no limit.
            let _ = edit.apply(self.contents.entry(*ino).or_insert_with(FileData::new), &Unlimited);
        }
        nameless
    }

    /// Puts the inode there as it is now.
    fn add(&mut self, inode: &InodeRef) -> Result<(), Errno> {
        self.attributes.insert(inode.ino(), ChangedAttributes::of(inode));
        if matches!(inode.body, Body::Regular) {
            let contents = FileData::new();
            contents.copy_whole(&Unlimited, inode.data()?)?;
            self.contents.insert(inode.ino(), contents);
        }
        Ok(())
    }
}

/// The durable state, and the changes since.
#[derive(Default)]
pub(super) struct Journal {
    pub(super) image: Image,
    /// Oldest first.
    pub(super) steps: Vec<JournalStep>,
    /// The changes of each file, oldest first.
    pub(super) edits: BTreeMap<u64, Vec<Edit>>,
    /// Changes so far.
    next: u64,
}

impl Journal {
    /// All that `superblock` holds now is durable.
    pub(super) fn begin(superblock: &crate::Superblock) -> Result<Journal, Errno> {
        let mut image = Image::default();
        image.add(superblock.root())?;
        super::for_each_directory(superblock, |dir, name, inode| {
            image.names.set(&(dir.ino(), name.into()), Some(inode.ino()));
            if image.attributes.contains_key(&inode.ino()) { Ok(()) } else { image.add(inode) }
        })?;
        Ok(Journal { image, ..Journal::default() })
    }

    /// This journal, which has an image alone; contents are shared until one side changes them.
    pub(super) fn copied(&self) -> Journal {
        let mut image = self.image.without_contents();
        for (ino, contents) in &self.image.contents {
            let copy = FileData::new();
            // There is no limit.
            let _ = copy.copy_whole(&Unlimited, contents);
            image.contents.insert(*ino, copy);
        }
        Journal { image, ..Journal::default() }
    }

    /// Puts down a change.
    pub(super) fn put_down(&mut self, mut step: JournalStep, edits: Vec<(u64, Edit)>) {
        self.next += 1;
        step.attributes.values_mut().for_each(|attributes| attributes.at = self.next);
        if !step.names.is_empty() || !step.attributes.is_empty() {
            self.steps.push(JournalStep { at: self.next, ..step });
        }
        for (ino, edit) in edits {
            self.edits.entry(ino).or_default().push(Edit { at: self.next, ..edit });
        }
    }

    /// The place of the last change.
    pub(super) fn now(&self) -> u64 {
        self.next
    }

    /// Records that all changes of file `ino` up to the change `end` are durable; without a file, all changes.
    pub(super) fn synced(&mut self, ino: Option<u64>, end: u64) {
        let concerns = |step: &JournalStep| {
            ino.is_none_or(|ino| {
                step.attributes.contains_key(&ino) || step.directories().any(|dir| dir == ino)
            })
        };
        // From the newest on: a step that an earlier chosen one depends on is chosen too.
        let (mut wanted, mut left, mut done) = (Touched::default(), Vec::new(), Vec::new());
        for step in std::mem::take(&mut self.steps).into_iter().rev() {
            if step.at <= end && (concerns(&step) || wanted.meets(&step)) {
                wanted.add(&step);
                done.push(step);
            } else {
                left.push(step);
            }
        }
        self.steps.extend(left.into_iter().rev());
        let nameless: Vec<u64> = done.iter().rev().flat_map(|step| self.image.apply(step)).collect();
        let files: Vec<u64> = ino.map_or_else(|| self.edits.keys().copied().collect(), |ino| vec![ino]);
        files.into_iter().for_each(|ino| self.synced_contents(ino, end));
        self.drop_what_is_gone(nameless);
    }

    fn synced_contents(&mut self, ino: u64, end: u64) {
        let Some(edits) = self.edits.remove(&ino) else { return };
        let contents = self.image.contents.entry(ino).or_insert_with(FileData::new);
        let (done, left): (Vec<_>, Vec<_>) = edits.into_iter().partition(|edit| edit.at <= end);
        for edit in &done {
            // There is no limit.
            let _ = edit.apply(contents, &Unlimited);
        }
        if let (Some(last), Some(attributes)) = (done.last(), self.image.attributes.get_mut(&ino)) {
            attributes.after(last);
        }
        if !left.is_empty() {
            self.edits.insert(ino, left);
        }
    }

    /// Forgets those of these files that no name leads to, in the image or after some steps.
    fn drop_what_is_gone(&mut self, nameless: Vec<u64>) {
        for ino in nameless {
            let is_concerned = self.steps.iter().any(|step| step.attributes.contains_key(&ino));
            if !self.image.names.has(ino) && !is_concerned {
                self.image.attributes.remove(&ino);
                self.image.contents.remove(&ino);
                self.edits.remove(&ino);
            }
        }
    }
}

/// Called for each event with the process that makes it; the answer is stored with the event.
pub(super) type StampChange = Box<dyn Fn(u32) -> u64 + Send>;

/// The events of a file system since its tracking began.
pub(super) struct ChangeRecorder {
    pub(super) start: Journal,
    pub(super) names: Names,
    pub(super) events: Vec<PastEvent>,
    pub(super) stamp: StampChange,
}

/// A change or a synchronisation.
pub(super) struct PastEvent {
    pub(super) process: u32,
    pub(super) stamp: u64,
    pub(super) what: PastKind,
}

pub(super) enum PastKind {
    Change(JournalStep, Vec<(u64, Edit)>),
    /// All changes of this file up to that place are durable; without a file, all changes.
    Sync(Option<u64>, u64),
}

impl ChangeRecorder {
    fn add(&mut self, what: PastKind) {
        let process = CalledBy::here();
        self.events.push(PastEvent { process, stamp: (self.stamp)(process), what });
    }

    pub(super) fn changed(&mut self, step: &JournalStep, edits: &[(u64, Edit)]) {
        self.add(PastKind::Change(step.clone(), edits.to_vec()));
    }

    pub(super) fn synced(&mut self, ino: Option<u64>, end: u64) {
        self.add(PastKind::Sync(ino, end));
    }
}
