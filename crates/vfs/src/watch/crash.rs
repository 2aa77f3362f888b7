//! Crash: what would be left of a file system if the power failed now.
//!
//! # Theory
//! A program may rely on the guarantees of `fsync` in POSIX, as journalling file systems keep them:
//! - after `fsync` of a file (`fdatasync`, and a write with `O_SYNC`, count as one) its contents, its attributes and its names are there;
//! - after `fsync` of a directory: its attributes, its own name, and earlier changes of names in it;
//! - after `sync` and `syncfs` all is;
//! - what they need is there with them: the directory in which a name stands, and the changes on which theirs depends;
//! - a change of names is there whole or not at all: a rename never loses the file, or shows it twice;
//! - the tree holds together, whatever is lost.
//!
//! Other changes may survive or not: each change of names or attributes whose predecessors survive; each write whole,
//! in part by sectors of 512 bytes, or not at all, in any order, even if the file's name or size survives. Ranges of a
//! file whose bytes were lost read as zeros. `journal.rs` says what depends on what.
//!
//! The rules are the same with a store below, though that keeps more: a program that gets on with these is right on either, and
//! on ext4, XFS and btrfs.

use super::hook;
use super::journal::{ChangedAttributes, Edit, Image, Journal, Touched};
use super::losses::{LossKind, Losses};
use super::names::Slot;
use crate::inode::{Body, InodeInit};
use crate::quota::NO_QUOTA;
use crate::{Errno, FileType, Fs, InodeRef, Options, Superblock};
use sluice_sync::Arc;
use sluice_sync::random::Random;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The changes of one path that a crash may lose; see [`Fs::unsynced`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsynced {
    /// Where it is, from the root of the file system on; or was, if the name is gone.
    pub path: PathBuf,
    /// Bytes of contents that a crash may lose.
    pub bytes: u64,
    /// Whether the path leads to this file, or to none, may be lost.
    pub name: bool,
    /// Changes of mode, owner, times or extended attributes may be lost.
    pub attributes: bool,
}

impl Fs {
    /// From now on it is known what a crash would leave of the file system at the bottom of this tree; what it holds
    /// now counts as durable. This makes the file system slower, and serializes its changes. Called while no other
    /// thread changes it.
    ///
    /// # Errors
    /// Errors of [`Superblock::track_crashes`].
    pub fn track_crashes(&self) -> Result<(), Errno> {
        self.superblock().track_crashes()
    }

    /// The file system as it would be after a power failure now, in memory and without limits, for a test to look into: everything that was
    /// synchronised, and of the rest what `seed` chooses. With seed 0 nothing of the rest is there, with seed 1 everything.
    ///
    /// ```
    /// use sluice_vfs::{File, Fs};
    ///
    /// let fs = Fs::new();
    /// fs.track_crashes()?;
    /// fs.write("/balance.new", "100")?;
    /// // A rename without an fsync: the name may get to the disk before the bytes.
    /// fs.rename("/balance.new", "/balance")?;
    /// let read = |seed| fs.crash_clone(seed)?.read_to_string("/balance");
    /// assert!((0..100).any(|seed| read(seed) == Ok(String::new())));
    ///
    /// File::open(&fs, "/balance")?.sync_all()?;
    /// assert!((0..100).all(|seed| read(seed) == Ok("100".into())));
    /// assert!(fs.unsynced()?.is_empty());
    /// # Ok::<(), sluice_vfs::Errno>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Superblock::crash_clone`].
    pub fn crash_clone(&self, seed: u64) -> Result<Fs, Errno> {
        self.superblock().crash_clone(seed).map(Fs::with_superblock)
    }

    /// Lists, sorted by path, the changes that a crash now would lose; empty if there are none.
    ///
    /// # Errors
    /// Errors of [`Superblock::unsynced`].
    pub fn unsynced(&self) -> Result<Vec<Unsynced>, Errno> {
        self.superblock().unsynced()
    }

    /// Makes calls on the file system at the bottom of this tree fail from now on, as `fault` says; see [`Superblock::inject`].
    ///
    /// ```
    /// use sluice_vfs::{Errno, Fs};
    ///
    /// let fs = Fs::new();
    /// let full = fs.inject("write:ENOSPC:path=/log:nth=2".parse().expect("a rule"))?;
    /// fs.append("/log", "first")?;
    /// assert_eq!(fs.append("/log", "second"), Err(Errno::ENOSPC));
    /// fs.superblock().clear_fault(full);
    /// fs.append("/log", "second")?;
    /// # Ok::<(), Errno>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Superblock::inject`].
    pub fn inject(&self, fault: crate::Fault) -> Result<crate::FaultId, Errno> {
        self.superblock().inject(fault)
    }
}

impl Superblock {
    /// Tracks the effects of a crash of this file system from now on; see [`Fs::track_crashes`].
    ///
    /// # Errors
    /// The store's, when what is there cannot be loaded.
    pub fn track_crashes(&self) -> Result<(), Errno> {
        self.write_back_all()?;
        let shared = &self.root().shared;
        let mut state = shared.watch_names(self)?;
        state.journal = Some(Journal::begin(self)?);
        shared.set_hook(hook::CRASHES, true);
        Ok(())
    }

    /// A file system as a crash could leave this one; see [`Fs::crash_clone`]. Caches above the file system are asked for newer
    /// data, which counts as not synchronised.
    ///
    /// # Errors
    /// `EINVAL` unless it is [tracked](Self::track_crashes).
    pub fn crash_clone(&self, seed: u64) -> Result<Arc<Superblock>, Errno> {
        self.write_back_all()?;
        let watch = self.root().shared.watch().ok_or(Errno::EINVAL)?;
        let state = watch.lock();
        let journal = state.journal.as_ref().ok_or(Errno::EINVAL)?;
        let losses = Losses::chosen(journal, seed);
        Crash { journal, losses: &losses }.superblock(self.options_after_a_crash())
    }

    /// The changes of this file system that a crash now may lose; see [`Fs::unsynced`].
    ///
    /// # Errors
    /// `EINVAL` unless it is [tracked](Self::track_crashes).
    pub fn unsynced(&self) -> Result<Vec<Unsynced>, Errno> {
        self.write_back_all()?;
        let watch = self.root().shared.watch().ok_or(Errno::EINVAL)?;
        let state = watch.lock();
        let journal = state.journal.as_ref().ok_or(Errno::EINVAL)?;
        let names = state.names.as_ref().ok_or(Errno::EINVAL)?;
        let mut found = BTreeMap::new();
        let mut at = |path: PathBuf, add: &dyn Fn(&mut Unsynced)| {
            let new = Unsynced { path: path.clone(), bytes: 0, name: false, attributes: false };
            add(found.entry(path).or_insert(new));
        };
        let path_of = |slot: &Slot| names.path(slot).or_else(|| journal.image.names.path(slot));
        for step in &journal.steps {
            for path in step.names.iter().filter_map(|(slot, _)| path_of(slot)) {
                at(path, &|unsynced| unsynced.name = true);
            }
            // With a name come the attributes of what it leads to.
            if step.names.is_empty() {
                for path in step.attributes.keys().flat_map(|ino| names.paths(*ino)) {
                    at(path, &|unsynced| unsynced.attributes = true);
                }
            }
        }
        for (ino, edits) in &journal.edits {
            let bytes = bytes_of(edits);
            names.paths(*ino).into_iter().for_each(|path| at(path, &|unsynced| unsynced.bytes = bytes));
        }
        Ok(found.into_values().collect())
    }

    /// The options of a file system that a crash leaves: no limits.
    pub(super) fn options_after_a_crash(&self) -> Options {
        Options { size_limit: None, inode_limit: None, ..self.root().shared.options.clone() }
    }

    /// Has caches above hand down what is newer with them.
    pub(super) fn write_back_all(&self) -> Result<(), Errno> {
        if !self.root().shared.is_observed() {
            return Ok(());
        }
        super::for_each_directory(self, |_, _, inode| {
            inode.write_back_caches(None, 0..u64::MAX);
            Ok(())
        })
    }
}

/// Bytes that some of `edits` concern.
fn bytes_of(edits: &[Edit]) -> u64 {
    let mut ranges: Vec<_> = edits.iter().map(Edit::concerned).collect();
    ranges.sort_by_key(|range| range.start);
    let (mut sum, mut end) = (0, 0);
    for range in ranges {
        sum += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    sum
}

/// A crash that is being made.
pub(super) struct Crash<'j> {
    pub(super) journal: &'j Journal,
    pub(super) losses: &'j Losses,
}

impl Crash<'_> {
    /// The file system that is left, in memory.
    pub(super) fn superblock(&self, options: Options) -> Result<Arc<Superblock>, Errno> {
        let mut image = self.journal.image.without_contents();
        let mut lost = Touched::default();
        for step in &self.journal.steps {
            if !lost.meets(step) && !self.losses.of_step(step) {
                image.apply(step);
            } else {
                lost.add(step);
            }
        }
        self.build(&image, options)
    }

    /// A file system like `image`.
    fn build(&self, image: &Image, options: Options) -> Result<Arc<Superblock>, Errno> {
        let root = image.attributes.get(&crate::superblock::ROOT_INO).ok_or(Errno::EIO)?;
        let superblock = Superblock::with_root(crate::superblock::Shared::in_memory(options), root.init());
        root.restore(superblock.root())?;
        let mut met: BTreeMap<u64, InodeRef> = BTreeMap::new();
        let mut pending = vec![(superblock.root().ino(), superblock.root().clone())];
        while let Some((ino, dir)) = pending.pop() {
            for (name, child) in image.names.within(ino) {
                if let Some(met) = met.get(&child) {
                    met.links.add()?;
                    dir.enter(name, met.clone())?;
                    continue;
                }
                let attributes = image.attributes.get(&child).ok_or(Errno::EIO)?;
                let inode = self.inode(image, child, attributes, &dir)?;
                dir.enter(name, inode.clone())?;
                if inode.is_dir() {
                    pending.push((child, inode));
                } else {
                    met.insert(child, inode);
                }
            }
        }
        Ok(superblock)
    }

    fn inode(
        &self,
        image: &Image,
        ino: u64,
        attributes: &ChangedAttributes,
        dir: &InodeRef,
    ) -> Result<InodeRef, Errno> {
        let mut attributes = attributes.clone();
        let body = match attributes.file_type {
            FileType::Regular => Body::Regular,
            FileType::Directory => Body::new_directory(Some(dir.clone())),
            FileType::Symlink => Body::Symlink(attributes.target.clone()),
            file_type => Body::Special { file_type, rdev: attributes.rdev },
        };
        let inode = crate::Inode::make(&dir.shared, NO_QUOTA, attributes.init(), body)?;
        if inode.file_type() == FileType::Regular {
            let (data, space) = (&inode.data, &*dir.shared);
            if let Some(contents) = self.journal.image.contents.get(&ino) {
                data.copy_whole(space, contents)?;
            }
            // Contents of a copy that came with a step.
            if let Some(contents) = image.contents.get(&ino) {
                data.copy_whole(space, contents)?;
            }
            for edit in self.journal.edits.get(&ino).into_iter().flatten() {
                match self.losses.of_edit(ino, edit) {
                    None => {
                        edit.apply(data, space)?;
                        attributes.after(edit);
                    }
                    Some(LossKind::Torn(seed)) => {
                        let mut random = Random::new(seed);
                        edit.apply_torn(data, space, || random.below(2) == 0)?;
                    }
                    Some(LossKind::Whole) if edit.is_barrier() => break,
                    Some(LossKind::Whole) => (),
                }
            }
        }
        attributes.restore(&inode)?;
        Ok(inode)
    }
}

impl ChangedAttributes {
    /// The first state of an inode with these attributes.
    fn init(&self) -> InodeInit {
        let ChangedAttributes { file_type, mode, uid, gid, born, .. } = *self;
        let nlink = if file_type == FileType::Directory { 2 } else { 1 };
        InodeInit { file_type, mode, uid, gid, nlink, origin: 0, born }
    }

    /// Gives `inode`, which began so, the rest.
    fn restore(&self, inode: &InodeRef) -> Result<(), Errno> {
        self.xattrs.iter().try_for_each(|(name, value)| inode.restore_xattr(name, value, true))?;
        inode.put_flags(self.flags);
        inode.times.set(Some(self.atime), Some(self.mtime));
        inode.change_ctime(self.ctime);
        Ok(())
    }
}
