//! Load: bringing names, inodes and contents from the store into memory.
//!
//! What is loaded has not changed since the store was opened, as a change would have loaded it. So the store's tree has it: what
//! the log held was brought there when the store was opened.

use super::chunk::Chunk;
use super::keys::{Key, chunk_of, name_of};
use super::record::{self, InodeRecord};
use super::{Durable, Stored, errno};
use crate::inode::{Body, InodeInit, flag};
use crate::stat::S_IALLUGO;
use crate::superblock::{ROOT_INO, SharedRef};
use crate::{Errno, FileType, Inode, InodeRef};
use sluice_store::Extent;
use sluice_sync::rcu;
use std::ops::Range;

impl InodeRef {
    /// If this is a directory: loads its names, unless they are in memory. Called outside of any read section and of any
    /// [`Section`](super::Section).
    ///
    /// # Errors
    /// The store's.
    #[inline]
    pub(crate) fn load_names(&self) -> Result<(), Errno> {
        if self.has(flag::PARTIAL) && self.is_dir() { self.load_names_now() } else { Ok(()) }
    }

    #[cold]
    fn load_names_now(&self) -> Result<(), Errno> {
        let durable = self.shared.durable().ok_or(Errno::EIO)?;
        debug_assert!(!rcu::domain().is_reading(), "a section would be held up");
        let _loading = durable.loading.lock();
        if !self.has(flag::PARTIAL) {
            return Ok(());
        }
        let mut found = Vec::new();
        durable.scan(Key::names(self.ino()), &mut |key, value| {
            found.push((name_of(key).to_vec(), record::named(value)));
            true
        })?;
        let names = &self.as_dir()?.names;
        for (name, ino) in found {
            let hash = self.shared.hasher.hash(&name);
            // An attempt that failed may have got so far.
            if names.get(hash, &name, &rcu::domain().read()).is_some() {
                continue;
            }
            let child = durable.child(self, ino.ok_or(Errno::EIO)?)?;
            let weight = child.weight();
            let mut entry = names.lock(hash, &name).ok_or(Errno::ENOENT)?;
            entry.insert(child, weight).map_err(|_| Errno::EIO)?;
        }
        self.clear_partial();
        Ok(())
    }
}

impl Inode {
    /// Loads the contents of a regular file, unless they are in memory. Called as [`InodeRef::load_names`].
    ///
    /// # Errors
    /// The store's.
    #[cold]
    pub(crate) fn load_contents(&self) -> Result<(), Errno> {
        let (Some(durable), Some(stored)) = (self.shared.durable(), self.stored()) else {
            return Err(Errno::EIO);
        };
        debug_assert!(!rcu::domain().is_reading(), "a section would be held up");
        let _loading = durable.loading.lock();
        if !self.has(flag::PARTIAL) {
            return Ok(());
        }
        let mut loaded = Ok(());
        durable.scan(Key::chunks(self.ino()), &mut |key, value| {
            loaded = self.load_chunk(durable, stored, key, value);
            loaded.is_ok()
        })?;
        loaded?;
        self.clear_partial();
        Ok(())
    }
}

impl Inode {
    /// Loads the chunk in the record with this key and value.
    fn load_chunk(&self, durable: &Durable, stored: &Stored, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        let (at, chunk) = chunk_of(key).zip(Chunk::decode(value)).ok_or(Errno::EIO)?;
        let read = |extent: &Extent, bytes: &mut [u8]| durable.store.read_extent(extent, 0, bytes);
        let bytes = chunk.bytes(read).map_err(|error| errno(&error))?;
        self.data.fill_chunk(&*self.shared, at, chunk.present, &bytes);
        stored.keep(at, chunk.held);
        Ok(())
    }
}

impl Durable {
    /// Visits the records with keys in `keys`, until `visit` says false.
    pub(super) fn scan(
        &self,
        keys: Range<Key>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Errno> {
        self.store.scan(&keys.start, &keys.end, visit).map_err(|error| errno(&error))
    }

    /// The inode `ino`, to which a name in `dir` leads.
    fn child(&self, dir: &InodeRef, ino: u64) -> Result<InodeRef, Errno> {
        if let Some(linked) = self.linked.lock().get(&ino) {
            return Ok(linked.clone());
        }
        let inode = self.revive(&dir.shared, ino, Some(dir.clone()))?;
        if inode.nlink() > 1 && !inode.is_dir() {
            self.linked.lock().insert(ino, inode.clone());
        }
        Ok(inode)
    }

    /// The inode `ino` as the store has it, without names and contents. If it is a directory, `parent` holds its name.
    pub(super) fn revive(
        &self,
        shared: &SharedRef,
        ino: u64,
        parent: Option<InodeRef>,
    ) -> Result<InodeRef, Errno> {
        let bytes = self.store.get(&Key::inode(ino)).map_err(|error| errno(&error))?.ok_or(Errno::EIO)?;
        self.revive_from(shared, ino, parent, InodeRecord::decode(&bytes).ok_or(Errno::EIO)?)
    }

    /// As [`revive`](Self::revive), with this `record`.
    pub(super) fn revive_from(
        &self,
        shared: &SharedRef,
        ino: u64,
        parent: Option<InodeRef>,
        record: InodeRecord,
    ) -> Result<InodeRef, Errno> {
        let file_type = FileType::from_mode(record.mode).ok_or(Errno::EIO)?;
        let body = match file_type {
            FileType::Regular => Body::Regular,
            FileType::Directory => Body::new_directory(parent),
            FileType::Symlink => Body::Symlink(record.target.into()),
            file_type => Body::Special { file_type, rdev: record.rdev },
        };
        let nlink = if file_type == FileType::Directory { 2 } else { record.nlink };
        let (mode, uid, gid) = (record.mode & S_IALLUGO, record.uid, record.gid);
        if ino != ROOT_INO {
            shared.count_loaded(body.charged(), record.pages);
        }
        let init = InodeInit { file_type, mode, uid, gid, nlink, born: record.born };
        let inode = Inode::allocate(shared, ino, init, body);
        inode.times.set(Some(record.atime), Some(record.mtime));
        inode.change_ctime(record.ctime);
        inode.put_flags(record.flags);
        if file_type == FileType::Regular && record.size > 0 {
            inode.data.preset(record.size, record.pages);
        }
        let is_partial = file_type == FileType::Directory || record.pages > 0;
        inode.raise(flag::RECORDED | if is_partial { flag::PARTIAL } else { 0 });
        if record.has_xattrs {
            let mut restored = Ok(());
            self.scan(Key::xattrs(ino), &mut |key, value| {
                restored = inode.restore_xattr(name_of(key), value);
                restored.is_ok()
            })?;
            restored?;
        }
        Ok(inode)
    }
}
