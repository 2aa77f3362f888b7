//! Received: a snapshot that is made file by file, from what another file system sent, and is there when it is whole.
//!
//! # Theory
//! The tree is made in a directory of its own in the root, which no listing has and no snapshot contains: only the server changes that
//! directory, as that of the snapshots. Beside the tree stands a directory for files that are on their way from one place in the tree to another. When the caller keeps the tree, it is copied to its name as any snapshot is, sharing all
//! contents: the name is there with the whole tree or not at all. The directory goes when the caller lets go, or after a crash with the next
//! tree that is begun.
//!
//! A caller that wants to go on later [leaves](NewSnapshot::leave) the tree with a note of its own, which is written last. While it works it
//! [notes](NewSnapshot::note) how far it is, in an extended attribute, which changes in one step: a crash keeps a prefix of all changes, so what the note
//! says is done, and at most what was done between it and the next one is done besides.

use crate::moment::CopyKind;
use crate::ops::create::check_name;
use crate::ops::remove::MayDelete;
use crate::{
    Cred, Errno, InodeFlags, InodeRef, NewInode, NewKind, RenameFlags, Superblock, XATTR_SIZE_MAX, XattrFlags,
};
use sluice_sync::atomic::Ordering;
use std::fmt;

/// The directory in the root in which a tree is made.
const RECEIVING: &[u8] = b".receiving";
/// The name of the tree in there.
const TREE: &[u8] = b"tree";
/// The directory in there with files that were put aside, by their numbers, and with the note.
const ASIDE: &[u8] = b"aside";
const NOTE: &[u8] = b"note";
/// The attribute of that directory with the note of a caller at work.
const RUNNING: &[u8] = b"trusted.sluice.note";
/// The longest note, in bytes.
const NOTE_MAX: u64 = 1 << 20;

/// A tree that becomes a snapshot. Dropped before, it is removed.
pub struct NewSnapshot<'s> {
    superblock: &'s Superblock,
    top: InodeRef,
    aside: InodeRef,
    /// It stays for another attempt.
    is_left: bool,
}

impl fmt::Debug for NewSnapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSnapshot").field("top", &self.top).finish_non_exhaustive()
    }
}

impl Superblock {
    /// The top of the snapshot `name`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` (no snapshot), `EACCES` as of [`snapshots`](Self::snapshots), the store's.
    pub fn snapshot_top(&self, name: &[u8]) -> Result<InodeRef, Errno> {
        if check_name(name).is_err() {
            return Err(Errno::ENOENT);
        }
        let top = self.snapshots_dir()?.lookup(&Cred::root(), name)?;
        top.as_dir()?;
        Ok(top)
    }

    /// Begins a tree that becomes a snapshot: with the contents of the snapshot `base`, or empty. An unfinished tree of an
    /// earlier attempt is removed.
    ///
    /// # Errors
    /// `EBUSY`: another is being made; `EEXIST`: somebody else's `.receiving` is in the root; errors of [`snapshot_top`](Self::snapshot_top) and of [`InodeRef::clone_tree`].
    pub fn begin_snapshot(&self, base: Option<&[u8]>) -> Result<NewSnapshot<'_>, Errno> {
        let base = base.map(|base| self.snapshot_top(base)).transpose()?;
        if self.is_receiving.swap(true, Ordering::SeqCst) {
            return Err(Errno::EBUSY);
        }
        self.make_place(base).inspect_err(|_| self.is_receiving.store(false, Ordering::SeqCst))
    }

    fn make_place(&self, base: Option<InodeRef>) -> Result<NewSnapshot<'_>, Errno> {
        let (cred, root) = (Cred::root(), self.root());
        remove_place(root)?;
        let new = NewInode { kind: NewKind::Directory, mode: 0o700, umask: 0 };
        let place = root.create(&cred, RECEIVING, &new)?;
        let top = match base {
            None => place.create(&cred, TREE, &new)?,
            Some(base) => {
                base.clone_as(CopyKind::Return, &cred, &place, TREE)?;
                place.lookup(&cred, TREE)?
            }
        };
        let aside = place.create(&cred, ASIDE, &new)?;
        place.close_to_changes(&cred)?;
        Ok(NewSnapshot { superblock: self, top, aside, is_left: false })
    }

    /// Takes up the tree that was [left](NewSnapshot::leave) here, or whose maker died, with its last note. `None` if there is none.
    ///
    /// # Errors
    /// `EBUSY`: another is being made; the store's.
    pub fn resume_snapshot(&self) -> Result<Option<(NewSnapshot<'_>, Vec<u8>)>, Errno> {
        if self.is_receiving.swap(true, Ordering::SeqCst) {
            return Err(Errno::EBUSY);
        }
        let found = self.find_left();
        if !matches!(found, Ok(Some(_))) {
            self.is_receiving.store(false, Ordering::SeqCst);
        }
        let Some((top, aside, note)) = found? else { return Ok(None) };
        let new = NewSnapshot { superblock: self, top, aside, is_left: false };
        new.note(&note)?;
        match remove(&new.aside, NOTE) {
            // Its maker died.
            Err(Errno::ENOENT) => {}
            removed => removed?,
        }
        Ok(Some((new, note)))
    }

    /// The tree that was left, the directory beside it, and the note.
    fn find_left(&self) -> Result<Option<(InodeRef, InodeRef, Vec<u8>)>, Errno> {
        let cred = Cred::root();
        let look = || {
            let place = self.root().lookup(&cred, RECEIVING)?;
            if !place.is_read_only() {
                return Err(Errno::ENOENT);
            }
            let (top, aside) = (place.lookup(&cred, TREE)?, place.lookup(&cred, ASIDE)?);
            let note = match aside.lookup(&cred, NOTE) {
                Err(Errno::ENOENT) => {
                    let running = aside.get_xattr(&cred, RUNNING);
                    return running.map(|note| (top, aside, note));
                }
                note => note?,
            };
            let mut bytes = vec![0; note.stat().size.min(NOTE_MAX) as usize];
            let read = note.read_at(0, &mut bytes, false)?;
            bytes.truncate(read);
            Ok((top, aside, bytes))
        };
        match look() {
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENODATA) => Ok(None),
            found => found.map(Some),
        }
    }
}

/// Removes the directory of a tree that did not become a snapshot, if there is one in `root`.
///
/// # Errors
/// `EEXIST`: somebody else made one of that name; the store's.
fn remove_place(root: &InodeRef) -> Result<(), Errno> {
    let place = match root.lookup(&Cred::root(), RECEIVING) {
        Err(Errno::ENOENT) => return Ok(()),
        place => place?,
    };
    // Before the snapshot was closed, at most the tree was there.
    let is_ours = place.is_dir()
        && (place.is_read_only()
            || place.list_names(|_| true)?.iter().all(|(name, _)| [TREE, ASIDE].contains(&&**name)));
    if is_ours { remove(root, RECEIVING) } else { Err(Errno::EEXIST) }
}

/// Removes `name` in `dir` with its whole tree, whatever keeps that from changes.
fn remove(dir: &InodeRef, name: &[u8]) -> Result<(), Errno> {
    let (cred, may): (_, MayDelete) = (Cred::root(), |_, _, _| Ok(()));
    let found = dir.lookup(&cred, name)?;
    if found.is_dir() {
        found.remove_below(&cred, may)?;
        dir.rmdir_if(&cred, name, may)
    } else {
        dir.unlink_if(&cred, name, may)
    }
}

impl NewSnapshot<'_> {
    /// The top of the tree.
    pub fn top(&self) -> &InodeRef {
        &self.top
    }

    /// Removes `name` in the directory `dir` of the tree, with all that is below it.
    ///
    /// # Errors
    /// `ENOENT`; the store's.
    pub fn remove(&self, dir: &InodeRef, name: &[u8]) -> Result<(), Errno> {
        remove(dir, name)
    }

    /// Puts `name` in the directory `dir` of the tree aside, under a `number` that nothing has there.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`; the store's.
    pub fn put_aside(&self, dir: &InodeRef, name: &[u8], number: u64) -> Result<(), Errno> {
        let place = number.to_string();
        dir.rename(&Cred::root(), name, &self.aside, place.as_bytes(), RenameFlags::NOREPLACE)
    }

    /// Gives what was put aside under `number` the new name `name` in the directory `dir` of the tree: that file or directory.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`; the store's.
    pub fn put_back(&self, number: u64, dir: &InodeRef, name: &[u8]) -> Result<InodeRef, Errno> {
        let (cred, place) = (Cred::root(), number.to_string());
        let found = self.aside.lookup(&cred, place.as_bytes())?;
        self.aside.rename(&cred, place.as_bytes(), dir, name, RenameFlags::NOREPLACE)?;
        Ok(found)
    }

    /// Whether something was put aside under `number`.
    pub fn is_aside(&self, number: u64) -> bool {
        self.aside.lookup(&Cred::root(), number.to_string().as_bytes()).is_ok()
    }

    /// Puts down `note`, in the place of the one before: with it [`Superblock::resume_snapshot`] takes the tree up after a crash. By then the changes
    /// before the note were made, and perhaps some of those after it. A note that is too long for an extended attribute is none.
    ///
    /// # Errors
    /// The store's.
    pub fn note(&self, note: &[u8]) -> Result<(), Errno> {
        let cred = Cred::root();
        if note.len() <= XATTR_SIZE_MAX {
            return self.aside.set_xattr(&cred, RUNNING, note, XattrFlags::empty());
        }
        match self.aside.remove_xattr(&cred, RUNNING) {
            Err(Errno::ENODATA) => Ok(()),
            removed => removed,
        }
    }

    /// Leaves the tree here, with `note`, until [`Superblock::resume_snapshot`] takes it up or another tree is begun. Over a store it is
    /// durable when this returns.
    ///
    /// # Errors
    /// The store's, and then the tree is removed.
    pub fn leave(mut self, note: &[u8]) -> Result<(), Errno> {
        let cred = Cred::root();
        // The note says that the rest is there.
        self.superblock.root().shared.sync()?;
        let file =
            self.aside.create(&cred, NOTE, &NewInode { kind: NewKind::Regular, mode: 0o600, umask: 0 })?;
        let mut written = 0;
        while written < note.len() {
            written += file.write_at(&cred, written as u64, &note[written..])?;
        }
        self.superblock.root().shared.sync()?;
        self.is_left = true;
        Ok(())
    }

    /// Sets these flags of a file of the tree. A link, pipe, socket or device has those alone that its directory gave; the next change of
    /// the file puts them down.
    ///
    /// # Errors
    /// `EINVAL`: other flags than these; the store's.
    pub fn set_flags(&self, inode: &InodeRef, flags: InodeFlags) -> Result<(), Errno> {
        match inode.set_flags(&Cred::root(), flags) {
            Err(Errno::ENOTTY) if InodeFlags::INHERITED.contains(flags) => {
                inode.put_flags(flags);
                Ok(())
            }
            Err(Errno::ENOTTY) => Err(Errno::EINVAL),
            set => set,
        }
    }

    /// The tree is the snapshot `name` from now on. Over a store it is durable then.
    ///
    /// # Errors
    /// Errors of [`Superblock::take_snapshot`].
    pub fn keep(self, name: &[u8]) -> Result<(), Errno> {
        self.superblock.keep_as_snapshot(&self.top, name)
    }
}

impl Drop for NewSnapshot<'_> {
    fn drop(&mut self) {
        if !self.is_left {
            // A tree that cannot be removed now is removed when the next one is begun.
            let _ = remove_place(self.superblock.root());
        }
        self.superblock.is_receiving.store(false, Ordering::SeqCst);
    }
}
