//! Adopt: finding inodes by their numbers, for a kernel that knew them before this process opened the file system, and for
//! handles of files.
//!
//! # Theory
//! The record of an inode says its *holder*, a directory that has a name of it. It is written with each change of a name, so it is
//! true in each push; it is 0 when a file lost a name in its holder and has others, or when an earlier program wrote the record.
//! An inode of which no name is in memory is made from its record, and stands apart: a name that is loaded later finds it there. So
//! nothing but the record is read, and of a directory those above it. An inode is not made twice:
//! - if the names of its holder are in memory, the inode is among them;
//! - if they are not, the holder has not changed since the tree was written, so it has the name. An inode that is in memory and
//!   has a name in a directory whose names are not stands apart.
//!
//! Devices, fifos and sockets, and inodes whose holder is not known, are found by a search among the names of all directories.
//!
//! *Later.* A kernel knows many inodes and uses few, so most of them are looked for when it names them, if it does. An
//! inode that it knows keeps being found by its number as long as it has a name; before it loses one, observers are
//! told ([`Observer::name_leaves`](crate::Observer::name_leaves)), and those that know it by its number keep it from
//! there on. An inode that lost its last name before the file system was opened must be adopted at once, but is listed
//! in memory.

use super::keys::{Key, ino_of};
use super::record::{InodeRecord, named};
use super::{Durable, errno};
use crate::inode::WeakInode;
use crate::superblock::{ROOT_INO, SharedRef};
use crate::{Errno, FileType, Inode, InodeRef, Superblock};
use sluice_sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};

impl Superblock {
    /// Ensures that no later process gives out the inode numbers which this process gives out and may lose: a kernel
    /// that knows such an inode would confuse the two. The caller calls this before it creates any file, and after it
    /// has [adopted](Self::adopt) inodes: this call makes changes durable.
    ///
    /// # Errors
    /// As any change.
    pub fn reserve_numbers(&self) -> Result<(), Errno> {
        let Some(durable) = self.root().shared.durable() else { return Ok(()) };
        let mut transaction = durable.begin(0)?;
        // Relaxed: nothing is made meanwhile.
        durable.cover(durable.numbers.load(Ordering::Relaxed), &mut transaction);
        drop(transaction);
        durable.sync()
    }

    /// The inode with the number `ino`, which has a name, of a file system with a store.
    ///
    /// # Errors
    /// `ESTALE` if there is none, or the file system is in memory; the store's.
    pub fn find_inode(&self, ino: u64) -> Result<InodeRef, Errno> {
        let root = self.root();
        let durable = root.shared.durable().ok_or(Errno::ESTALE)?;
        if let Some(inode) = durable.find(root, ino)? {
            return Ok(inode);
        }
        if ino < durable.first && durable.record(ino)?.is_none() {
            // It was lost with another process, or removed.
            return Err(Errno::ESTALE);
        }
        // Names may have changed since the tree was written.
        durable.sync()?;
        durable.store.checkpoint().map_err(|error| errno(&error))?;
        if let Some(inode) = durable.find(root, ino)? {
            return Ok(inode);
        }
        let is_there = durable.record(ino)?.is_some() && !durable.is_orphan(ino)?;
        let found = is_there.then(|| self.find_by_names(BTreeSet::from([ino])).remove(&ino));
        found.flatten().ok_or(Errno::ESTALE)
    }

    /// Whether an inode of this number may have been made by a process that had the store open before this one.
    pub fn may_be_older(&self, ino: u64) -> bool {
        self.root().shared.durable().is_some_and(|durable| ino < durable.first)
    }

    /// The inodes that lost their last name while they were open, before this process opened the file system, and that nobody has adopted.
    pub fn nameless_inodes(&self) -> BTreeSet<u64> {
        self.root().shared.durable().map_or_else(BTreeSet::new, |durable| durable.pending.removals.found())
    }

    /// Makes everything durable, and the contents of files without a name, too: another process of this machine will serve programs that
    /// have these files open. From here on pushes collect such files.
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    pub fn sync_nameless(&self) -> Result<(), Errno> {
        let Some(durable) = self.root().shared.durable() else { return Ok(()) };
        durable.pending.takes_nameless.store(true, Ordering::SeqCst);
        // A push is not made for files without a name alone: their changes are in no transaction. The bound of numbers stays.
        let mut transaction = durable.begin(0)?;
        durable.renew_bound(&mut transaction);
        drop(transaction);
        self.sync()
    }

    /// Brings the tree of the store up to what is durable, so that it can be closed, or opened, sooner. In memory that is nothing.
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    pub fn checkpoint(&self) -> Result<(), Errno> {
        let Some(durable) = self.root().shared.durable() else { return Ok(()) };
        self.sync()?;
        durable.store.checkpoint().map_err(|error| errno(&error))
    }

    /// Returns the given inodes that lost their last name while they were open and before the first change of this
    /// process. The result keeps them alive if the caller gets it before the first change becomes durable, because that
    /// deletes them. Inodes that have a name cost no read. Directories without a name are not found.
    pub fn adopt_nameless(&self, wanted: &BTreeSet<u64>) -> BTreeMap<u64, InodeRef> {
        let root = self.root();
        let Some(durable) = root.shared.durable() else { return BTreeMap::new() };
        let mut nameless = durable.pending.removals.found();
        nameless.extend(durable.adopted.lock().keys());
        let adopt = |ino: &u64| Some((*ino, durable.adopt_orphan(&root.shared, *ino)?));
        wanted.intersection(&nameless).filter_map(adopt).collect()
    }

    /// Finds the inodes with these numbers, when nothing was changed yet, those [without a name](Self::adopt_nameless), too.
    pub fn adopt(&self, wanted: &BTreeSet<u64>) -> BTreeMap<u64, InodeRef> {
        let root = self.root();
        let mut left = BTreeSet::new();
        let mut found = BTreeMap::new();
        for &ino in wanted {
            let known = root.shared.durable().and_then(|durable| {
                // An inode that cannot be loaded is not there.
                durable.adopt_orphan(&root.shared, ino).or_else(|| durable.find(root, ino).ok().flatten())
            });
            match known {
                Some(inode) => drop(found.insert(ino, inode)),
                // An inode that is neither in memory nor recorded has no name.
                None => {
                    let may_be_named = |durable: &Durable| {
                        durable.record(ino).is_ok_and(|record| record.is_some())
                            && durable.is_orphan(ino).is_ok_and(|is_orphan| !is_orphan)
                    };
                    left.extend(root.shared.durable().is_none_or(may_be_named).then_some(ino));
                }
            }
        }
        found.append(&mut self.find_by_names(left));
        found
    }

    /// Finds the given inodes by a search among the names of the store's tree. Reads names until all are found.
    fn find_by_names(&self, mut left: BTreeSet<u64>) -> BTreeMap<u64, InodeRef> {
        let mut found = BTreeMap::new();
        if left.remove(&ROOT_INO) {
            found.insert(ROOT_INO, self.root().clone());
        }
        if let Some(durable) = self.root().shared.durable() {
            for (dir, inos) in durable.directories_of(left) {
                // A directory that cannot be loaded is not there.
                let dir = durable.find(self.root(), dir).ok().flatten();
                let names = dir.and_then(|dir| dir.list_names(|inode| inos.contains(&inode.ino())).ok());
                found.extend(names.into_iter().flatten().map(|(_, inode)| (inode.ino(), inode)));
            }
            return found;
        }
        let mut directories = vec![self.root().clone()];
        while let Some(dir) = directories.pop()
            && !left.is_empty()
        {
            for (_, inode) in dir.list_names(|_| true).unwrap_or_default() {
                if left.remove(&inode.ino()) {
                    found.insert(inode.ino(), inode.clone());
                }
                if inode.is_dir() {
                    directories.push(inode);
                }
            }
        }
        found
    }
}

impl Inode {
    /// Notes that directory `dir` has a name of it.
    pub(crate) fn set_holder(&self, dir: &Inode) {
        self.stored().into_iter().for_each(|stored| stored.set_holder(dir.ino()));
    }
}

impl Durable {
    /// The inode `ino`, if it is in memory or its record says where a name of it is.
    fn find(&self, root: &InodeRef, ino: u64) -> Result<Option<InodeRef>, Errno> {
        // So that names neither come nor leave.
        let _loading = self.loading.lock();
        let (mut way, mut at) = (Vec::new(), ino);
        let mut found = loop {
            if at == ROOT_INO {
                break Some(root.clone());
            }
            if let Some(inode) = self.names().find(at).or_else(|| self.names().with_names(at)) {
                break Some(inode);
            }
            if way.iter().any(|(ino, _)| *ino == at) || self.is_orphan(at)? {
                return Ok(None);
            }
            let Some(bytes) = self.record(at)? else { return Ok(None) };
            let record = InodeRecord::decode(&bytes).ok_or(Errno::EIO)?;
            let is_dir = FileType::from_mode(record.mode) == Some(FileType::Directory);
            let Some(holder) = record.holder else { return Ok(None) };
            if let Some(dir) = self.names().with_names(holder) {
                let named = dir.as_dir()?.list(|inode| inode.ino() == at).pop();
                match named {
                    Some((_, inode)) => break Some(inode),
                    None => return Ok(None),
                }
            }
            way.push((at, bytes));
            if !is_dir {
                break None;
            }
            at = holder;
        };
        for (ino, bytes) in way.into_iter().rev() {
            let record = InodeRecord::decode(&bytes).ok_or(Errno::EIO)?;
            let inode = self.revive_from(&root.shared, ino, found, record)?;
            self.names().set_apart([inode.clone()]);
            found = Some(inode);
        }
        Ok(found)
    }

    /// By directory, the inodes with these numbers of which it has a name, says the tree: one directory for each.
    fn directories_of(&self, mut left: BTreeSet<u64>) -> BTreeMap<u64, BTreeSet<u64>> {
        let mut directories = BTreeMap::<_, BTreeSet<u64>>::new();
        if !left.is_empty() {
            // A name that cannot be read is not there.
            let _ = self.scan(Key::all_names(), &mut |key, value| {
                let found = named(value).filter(|ino| left.remove(ino)).zip(ino_of(key));
                if let Some((ino, dir)) = found {
                    directories.entry(dir).or_default().insert(ino);
                }
                !left.is_empty()
            });
        }
        directories
    }

    fn record(&self, ino: u64) -> Result<Option<Vec<u8>>, Errno> {
        self.store.get(&Key::inode(ino)).map_err(|error| errno(&error))
    }

    /// Whether inode `ino` has no name, and is to be deleted.
    fn is_orphan(&self, ino: u64) -> Result<bool, Errno> {
        let found = self.store.get(&Key::orphan(ino)).map_err(|error| errno(&error))?;
        Ok(found.is_some())
    }

    /// The file `ino`, if it has no name and is to be deleted: it will be when its last user lets go.
    fn adopt_orphan(&self, shared: &SharedRef, ino: u64) -> Option<InodeRef> {
        // The lock ensures that all callers share a single inode.
        let _loading = self.loading.lock();
        let adopted = self.adopted.lock().get(&ino).cloned();
        if let Some(inode) = adopted.and_then(|adopted| adopted.follow()) {
            return Some(inode);
        }
        let gone = self.pending.removals.take(ino)?;
        match self.revive_nameless(shared, ino) {
            Ok(inode) if !inode.is_dir() => {
                // The inode was not counted, because it was about to be deleted.
                shared.count_found(1, inode.bytes_charged());
                inode.count_found_for_quota();
                self.store.hold_back_anyway(inode.data.unwritten_pages());
                self.nameless.exceed(1);
                let weak = WeakInode::to(&inode);
                let before = self.adopted.lock().insert(ino, weak);
                drop(before);
                Some(inode)
            }
            _ => {
                self.pending.removals.put(gone);
                None
            }
        }
    }

    fn revive_nameless(&self, shared: &SharedRef, ino: u64) -> Result<InodeRef, Errno> {
        let bytes = self.record(ino)?.ok_or(Errno::ENOENT)?;
        let mut record = InodeRecord::decode(&bytes).ok_or(Errno::EIO)?;
        record.nlink = 0;
        self.revive_from(shared, ino, None, record)
    }
}
