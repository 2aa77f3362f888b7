//! Model: how each call changes names, contents, descriptors and locks, and its answer.

use crate::call::{
    EAGAIN, EEXIST, EIO, EISDIR, ENOENT, ENOTDIR, EPERM, NAMES, SharedAnswer, SharedCall, SharedName, WORD,
};
use sluice_sync::Arc;
use std::collections::{BTreeMap, BTreeSet};

/// A file, by the call that made it.
pub(crate) type ModelFileId = usize;
/// A descriptor: the program and its slot.
pub(crate) type ModelDescriptor = (usize, u8);
/// No errno: the program has no such descriptor, by this order.
pub(crate) const NO_DESCRIPTOR: i32 = -1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelFile {
    pub(crate) is_dir: bool,
    pub(crate) bytes: Vec<u8>,
    /// Nobody knows its contents: it had no name when changes were lost.
    pub(crate) is_vague: bool,
}

/// Names and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelTree {
    pub(crate) names: [Option<ModelFileId>; NAMES],
    pub(crate) files: BTreeMap<ModelFileId, ModelFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelLock {
    pub(crate) file: ModelFileId,
    pub(crate) is_shared: bool,
}

/// The state of the whole file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelState {
    pub(crate) tree: Arc<ModelTree>,
    pub(crate) open: BTreeMap<ModelDescriptor, ModelFileId>,
    pub(crate) locks: BTreeMap<ModelDescriptor, ModelLock>,
    /// Descriptors through which something was written that is lost: the next fsync must say so.
    pub(crate) owed: BTreeSet<ModelDescriptor>,
}

impl ModelTree {
    pub(crate) fn find(&self, name: SharedName) -> Result<ModelFileId, i32> {
        self.names[name.index()].ok_or(ENOENT)
    }

    pub(crate) fn links(&self, file: ModelFileId) -> u64 {
        self.names.iter().filter(|named| **named == Some(file)).count() as u64
    }

    pub(crate) fn is_dir(&self, file: ModelFileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.is_dir)
    }

    fn make(&mut self, name: SharedName, file: ModelFileId, is_dir: bool) -> Result<(), i32> {
        if self.names[name.index()].is_some() {
            return Err(EEXIST);
        }
        self.names[name.index()] = Some(file);
        self.files.insert(file, ModelFile { is_dir, bytes: Vec::new(), is_vague: false });
        Ok(())
    }
}

impl ModelState {
    /// Does a call of `process`. `id`: the file that the call makes. A call that only looks changes nothing and answers
    /// [`SharedAnswer::Done`].
    ///
    /// # Errors
    /// Errors of the call.
    pub(crate) fn perform(
        &mut self,
        process: usize,
        id: ModelFileId,
        call: &SharedCall,
    ) -> Result<SharedAnswer, i32> {
        let descriptor = |slot: u8| (process, slot);
        match *call {
            SharedCall::Create { slot, name, .. } => {
                Arc::make_mut(&mut self.tree).make(name, id, false)?;
                self.open.insert(descriptor(slot), id);
            }
            SharedCall::Open { slot, name, .. } => {
                let file = self.tree.find(name)?;
                if self.tree.is_dir(file) {
                    return Err(EISDIR);
                }
                self.open.insert(descriptor(slot), file);
            }
            SharedCall::Close { slot } => {
                self.open.remove(&descriptor(slot));
                self.locks.remove(&descriptor(slot));
                self.owed.remove(&descriptor(slot));
            }
            SharedCall::Write { slot, offset, word } => {
                self.write(descriptor(slot), usize::try_from(offset).ok(), word)?;
            }
            SharedCall::Append { slot, word } => self.write(descriptor(slot), None, word)?,
            SharedCall::Truncate { slot, size } => {
                let bytes = self.bytes(descriptor(slot))?;
                bytes.resize(usize::try_from(size).unwrap_or(0), 0);
            }
            SharedCall::Lock { slot, shared, .. } => {
                let file = self.file(descriptor(slot))?;
                let excludes = |(holder, lock): (&ModelDescriptor, &ModelLock)| {
                    *holder != descriptor(slot) && lock.file == file && !(shared && lock.is_shared)
                };
                if self.locks.iter().any(excludes) {
                    return Err(EAGAIN);
                }
                self.locks.insert(descriptor(slot), ModelLock { file, is_shared: shared });
            }
            SharedCall::Unlock { slot, .. } => {
                self.locks.remove(&descriptor(slot));
            }
            SharedCall::Stat { name } => {
                self.tree.find(name)?;
            }
            SharedCall::ReadFile { name } => {
                let file = self.tree.find(name)?;
                if self.tree.is_dir(file) {
                    return Err(EISDIR);
                }
            }
            SharedCall::Rename { old, new } => {
                let moved = self.tree.find(old)?;
                return self.rename_found(moved, Some(old), new);
            }
            SharedCall::Link { old, new } => {
                let file = self.tree.find(old)?;
                return self.link_found(file, new);
            }
            SharedCall::Unlink { name } | SharedCall::Rmdir { name } => {
                let file = self.tree.find(name)?;
                let wants_dir = matches!(call, SharedCall::Rmdir { .. });
                if self.tree.is_dir(file) != wants_dir {
                    return Err(if wants_dir { ENOTDIR } else { EISDIR });
                }
                Arc::make_mut(&mut self.tree).names[name.index()] = None;
            }
            SharedCall::Mkdir { name } => Arc::make_mut(&mut self.tree).make(name, id, true)?,
            SharedCall::Fsync { slot } => {
                let is_lost = !self.tree.files.contains_key(&self.file(descriptor(slot))?);
                if self.owed.remove(&descriptor(slot)) || is_lost {
                    return Err(EIO);
                }
            }
            SharedCall::Read { slot } | SharedCall::Fstat { slot } => {
                self.file(descriptor(slot))?;
            }
            SharedCall::List { .. } => {}
        }
        Ok(SharedAnswer::Done)
    }

    /// Gives a file that was found the name `new`, and takes away `old`. Without `old` the name `new` must lead to the same file: then
    /// nothing moves.
    ///
    /// # Errors
    /// Errors of the call.
    pub(crate) fn rename_found(
        &mut self,
        moved: ModelFileId,
        old: Option<SharedName>,
        new: SharedName,
    ) -> Result<SharedAnswer, i32> {
        match self.tree.names[new.index()] {
            Some(replaced) if replaced == moved => return Ok(SharedAnswer::Done),
            Some(replaced) => match (self.tree.is_dir(moved), self.tree.is_dir(replaced)) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                _ => {}
            },
            None => {}
        }
        let old = old.ok_or(NO_DESCRIPTOR)?;
        let tree = Arc::make_mut(&mut self.tree);
        tree.names[old.index()] = None;
        tree.names[new.index()] = Some(moved);
        Ok(SharedAnswer::Done)
    }

    /// Gives a file that was found another name.
    ///
    /// # Errors
    /// Errors of the call.
    pub(crate) fn link_found(&mut self, file: ModelFileId, new: SharedName) -> Result<SharedAnswer, i32> {
        if self.tree.names[new.index()].is_some() {
            return Err(EEXIST);
        }
        if self.tree.links(file) == 0 {
            return Err(ENOENT);
        }
        if self.tree.is_dir(file) {
            return Err(EPERM);
        }
        Arc::make_mut(&mut self.tree).names[new.index()] = Some(file);
        Ok(SharedAnswer::Done)
    }

    /// Goes back to an earlier tree: changes were lost. Descriptors and locks stay.
    pub(crate) fn go_back(&mut self, earlier: &Arc<ModelTree>) {
        self.tree = earlier.clone();
        let tree = Arc::make_mut(&mut self.tree);
        let names = tree.names;
        tree.files.iter_mut().for_each(|(file, of)| of.is_vague |= !names.contains(&Some(*file)));
    }

    /// The file of a descriptor.
    pub(crate) fn file(&self, descriptor: ModelDescriptor) -> Result<ModelFileId, i32> {
        self.open.get(&descriptor).copied().ok_or(NO_DESCRIPTOR)
    }

    fn bytes(&mut self, descriptor: ModelDescriptor) -> Result<&mut Vec<u8>, i32> {
        let file = self.file(descriptor)?;
        let file = Arc::make_mut(&mut self.tree).files.get_mut(&file);
        file.map(|file| &mut file.bytes).ok_or(NO_DESCRIPTOR)
    }

    /// Writes a word at `at`, or to the end.
    fn write(&mut self, descriptor: ModelDescriptor, at: Option<usize>, word: [u8; WORD]) -> Result<(), i32> {
        let bytes = self.bytes(descriptor)?;
        let at = at.unwrap_or(bytes.len());
        bytes.resize(bytes.len().max(at + WORD), 0);
        bytes[at..at + WORD].copy_from_slice(&word);
        Ok(())
    }
}
