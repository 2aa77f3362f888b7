//! Model: what each call does to the tree, to what is open and to the locks, and what it answers.

use super::call::{Answer, Attr, Call, Path, Seen, Slot, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ESTALE: i32 = 116;

/// A file, by the call that made it.
pub(crate) type Id = usize;
/// A node's open file.
pub(crate) type Handle = (usize, Slot);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct File {
    pub(crate) is_dir: bool,
    pub(crate) bytes: Vec<u8>,
    /// Nobody knows what is in it: it had no name when an owner died.
    pub(crate) is_vague: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Opened {
    pub(crate) file: Id,
    appends: bool,
    /// A write of its node is lost: its next fsync must say so.
    pub(crate) owes_error: bool,
    /// Its lock was taken by another: nothing can be done with it any more.
    has_lost_lock: bool,
}

/// Names and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Names {
    pub(crate) names: BTreeMap<Path, Id>,
    pub(crate) files: BTreeMap<Id, File>,
}

/// The state of the whole file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) tree: Arc<Names>,
    pub(crate) open: BTreeMap<Handle, Opened>,
    pub(crate) locks: BTreeMap<Id, Handle>,
    /// Files of which a lock has ended because its node was not heard of: it may be held again when that comes back before another node has it.
    pub(crate) stolen: BTreeSet<Id>,
}

impl Names {
    pub(crate) fn names_of(&self, file: Id) -> u32 {
        self.names.values().filter(|other| **other == file).count() as u32
    }

    /// As a program sees it that looks at everything.
    pub(crate) fn seen(&self) -> Tree {
        let seen = |file: Id| match &self.files[&file] {
            File { is_dir: true, .. } => Seen::Dir,
            File { bytes, .. } => Seen::File(bytes.clone(), self.names_of(file)),
        };
        self.names.iter().map(|(path, file)| (*path, seen(*file))).collect()
    }

    fn find(&self, path: Path) -> Result<Id, i32> {
        self.names.get(&path).copied().ok_or(ENOENT)
    }

    fn is_dir(&self, file: Id) -> bool {
        self.files[&file].is_dir
    }

    fn make(&mut self, path: Path, file: Id, is_dir: bool) -> Result<(), i32> {
        if self.names.contains_key(&path) {
            return Err(EEXIST);
        }
        self.names.insert(path, file);
        self.files.insert(file, File { is_dir, bytes: Vec::new(), is_vague: false });
        Ok(())
    }

    fn rename(&mut self, old: Path, new: Path) -> Result<(), i32> {
        let moved = self.find(old)?;
        match self.names.get(&new) {
            Some(&replaced) if replaced == moved => return Ok(()),
            Some(&replaced) => match (self.is_dir(moved), self.is_dir(replaced)) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                _ => {}
            },
            None => {}
        }
        self.names.remove(&old);
        self.names.insert(new, moved);
        Ok(())
    }
}

impl State {
    /// Does a call. `id`: the file that it makes. `may_steal`: which nodes' locks may have ended.
    ///
    /// # Errors
    /// Errors of the call.
    pub(crate) fn perform(
        &mut self,
        node: usize,
        id: Id,
        call: &Call,
        may_steal: &dyn Fn(usize) -> bool,
    ) -> Result<Answer, i32> {
        let handle = |slot: Slot| (node, slot);
        match *call {
            Call::Make(slot, path, appends) => {
                self.close(handle(slot));
                Arc::make_mut(&mut self.tree).make(path, id, false)?;
                self.open.insert(
                    handle(slot),
                    Opened { file: id, appends, owes_error: false, has_lost_lock: false },
                );
            }
            Call::Open(slot, path, appends) => {
                self.close(handle(slot));
                let file = self.tree.find(path)?;
                return self.open_found(node, slot, file, appends);
            }
            Call::Close(slot) => self.close(handle(slot)),
            Call::Write(slot, offset, bytes) => {
                let opened = self.living(handle(slot))?;
                let file = Arc::make_mut(&mut self.tree).files.get_mut(&opened.file).ok_or(EIO)?;
                let at = if opened.appends { file.bytes.len() } else { offset as usize };
                file.bytes.resize(file.bytes.len().max(at + 8), 0);
                file.bytes[at..at + 8].copy_from_slice(&bytes);
            }
            Call::Read(slot) => {
                let opened = self.opened(handle(slot))?;
                return Ok(Answer::Bytes(self.tree.files.get(&opened.file).ok_or(EIO)?.bytes.clone()));
            }
            Call::Truncate(slot, size) => {
                let opened = self.opened(handle(slot))?;
                let file = Arc::make_mut(&mut self.tree).files.get_mut(&opened.file).ok_or(EIO)?;
                file.bytes.resize(size as usize, 0);
            }
            Call::Fsync(slot) => {
                let opened = self.open.get_mut(&handle(slot)).ok_or(EIO)?;
                if std::mem::take(&mut opened.owes_error)
                    || opened.has_lost_lock
                    || !self.tree.files.contains_key(&opened.file)
                {
                    return Err(EIO);
                }
            }
            Call::TryLock(slot) => {
                let opened = self.living(handle(slot))?;
                match self.locks.get(&opened.file) {
                    Some(holder) if *holder != handle(slot) => {
                        if !may_steal(holder.0) {
                            return Err(EAGAIN);
                        }
                        self.stolen.insert(opened.file);
                        if let Some(robbed) = self.open.get_mut(holder) {
                            robbed.has_lost_lock = true;
                        }
                    }
                    _ => {}
                }
                self.locks.insert(opened.file, handle(slot));
            }
            Call::Unlock(slot) => self.locks.retain(|_, holder| *holder != handle(slot)),
            Call::Stat(path) => {
                let file = self.tree.find(path)?;
                return Ok(Answer::Attr(self.attr(file)));
            }
            Call::Rename(old, new) => {
                Arc::make_mut(&mut self.tree).rename(old, new)?;
            }
            Call::Link(old, new) => {
                let file = self.tree.find(old)?;
                return self.link_found(file, new);
            }
            Call::Unlink(path) | Call::Rmdir(path) => {
                let file = self.tree.find(path)?;
                let wants_dir = matches!(call, Call::Rmdir(_));
                if self.tree.is_dir(file) != wants_dir {
                    return Err(if wants_dir { ENOTDIR } else { EISDIR });
                }
                Arc::make_mut(&mut self.tree).names.remove(&path);
            }
            Call::Mkdir(path) => Arc::make_mut(&mut self.tree).make(path, id, true)?,
            Call::DropCaches => {}
            Call::Look => return Ok(Answer::Tree(self.tree.seen())),
        }
        Ok(Answer::Done)
    }

    /// Opens a file that was found.
    ///
    /// # Errors
    /// `EINVAL` for a directory, `ENOENT` for a file that is gone.
    pub(crate) fn open_found(
        &mut self,
        node: usize,
        slot: Slot,
        file: Id,
        appends: bool,
    ) -> Result<Answer, i32> {
        self.close((node, slot));
        if !self.tree.files.contains_key(&file) {
            return Err(ENOENT);
        }
        if self.tree.is_dir(file) {
            return Err(EINVAL);
        }
        self.open.insert((node, slot), Opened { file, appends, owes_error: false, has_lost_lock: false });
        Ok(Answer::Done)
    }

    /// Gives a file that was found another name.
    ///
    /// # Errors
    /// `EEXIST` if the name exists, `ENOENT` for a file that is gone, `EPERM` for a directory.
    pub(crate) fn link_found(&mut self, file: Id, new: Path) -> Result<Answer, i32> {
        if self.tree.names.contains_key(&new) {
            return Err(EEXIST);
        }
        if self.tree.names_of(file) == 0 {
            return Err(ENOENT);
        }
        if self.tree.is_dir(file) {
            return Err(EPERM);
        }
        Arc::make_mut(&mut self.tree).names.insert(new, file);
        Ok(Answer::Done)
    }

    /// Also what a program does with a slot before it opens another file there, if it can.
    fn close(&mut self, handle: Handle) {
        self.open.remove(&handle);
        self.locks.retain(|_, holder| *holder != handle);
    }

    fn opened(&self, handle: Handle) -> Result<Opened, i32> {
        self.open.get(&handle).cloned().ok_or(EIO)
    }

    fn living(&self, handle: Handle) -> Result<Opened, i32> {
        self.opened(handle).and_then(|opened| if opened.has_lost_lock { Err(EIO) } else { Ok(opened) })
    }

    /// The attributes of a file.
    pub(crate) fn attr(&self, file: Id) -> Attr {
        let File { is_dir, bytes, .. } = &self.tree.files[&file];
        Attr { size: bytes.len() as u64, nlink: self.tree.names_of(file), is_dir: *is_dir }
    }

    /// An owner dies, and the next goes on with the tree as it was. Files stay open and locked.
    pub(crate) fn take_over(&mut self, durable: &Arc<Names>) {
        self.tree = durable.clone();
        let named: BTreeSet<Id> = durable.names.values().copied().collect();
        let tree = Arc::make_mut(&mut self.tree);
        tree.files.iter_mut().for_each(|(file, of)| of.is_vague |= !named.contains(file));
    }
}
