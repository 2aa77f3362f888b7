//! Repair: mends the faults that a check of a store has found.

use super::{CheckedTree, Fix, LOST_AND_FOUND, judged};
use crate::durable::keys::Key;
use crate::durable::owners;
use crate::durable::record::{self, InodeRecord};
use crate::quota::NO_QUOTA;
use crate::superblock::ROOT_INO;
use crate::{FileType, InodeFlags, Superblock, Timestamp};
use sluice_store::disk::Disk;
use sluice_store::{Look, Options, Report, Store, StoreError};
use sluice_sync::Arc;
use std::mem;

impl Superblock {
    /// Mends what [`check_store`](Self::check_store) finds, as far as it can be.
    ///
    /// # Errors
    /// [`StoreError`]: then some may be mended.
    pub fn repair_store(disk: Arc<dyn Disk>) -> Result<(), StoreError> {
        Store::cut_log(&*disk)?;
        let options = Options::default().background(false);
        Superblock::repair_opened(
            |look| Store::check(disk.clone(), look, &mut |_| ()),
            || Store::open(disk.clone(), options.clone()),
        )
    }

    /// Mends a store whose records `check` shows and which `open` opens; see [`repair_store`](Self::repair_store).
    ///
    /// # Errors
    /// [`StoreError`]: then some may be mended.
    pub fn repair_opened(
        check: impl Fn(&mut dyn Look) -> Result<Report, StoreError>,
        open: impl Fn() -> Result<Store, StoreError>,
    ) -> Result<(), StoreError> {
        // Two rounds: a removed record may have named extents that other records name, too.
        for _ in 0..2 {
            let (report, mut tree) = judged(&check)?;
            if !report.whole {
                return Err(StoreError::Damaged("not all records can be read".into()));
            }
            if tree.fixes.is_empty() {
                break;
            }
            let store = open()?;
            for fix in mem::take(&mut tree.fixes) {
                tree.mend(&store, fix)?;
            }
            // The sums of all files are stale: the next opening counts anew.
            tree.numbers.map_or(Ok(()), |numbers| tree.mend(&store, Fix::Numbers(numbers)))?;
            store.close()?;
        }
        let store = open()?;
        store.mend_counts(&mut CheckedTree::default())?;
        store.close()
    }
}

impl CheckedTree {
    fn mend(&mut self, store: &Store, fix: Fix) -> Result<(), StoreError> {
        match fix {
            Fix::Remove(key) => self.change(store, &key, None),
            Fix::Discard(ino) => {
                let mut gone = vec![Key::inode(ino).to_vec(), Key::cut_off(ino).to_vec()];
                for keys in [Key::chunks(ino), Key::xattrs(ino)] {
                    store.scan(&keys.start, &keys.end, &mut |key, _| {
                        gone.push(key.to_vec());
                        true
                    })?;
                }
                gone.iter().try_for_each(|key| self.change(store, key, None))
            }
            Fix::Count(ino) => self.count(store, ino),
            Fix::Unwritten(ino) => {
                let mended =
                    store.get(&Key::inode(ino))?.and_then(|value| self.unwritten.mended(ino, &value));
                mended.map_or(Ok(()), |value| self.change(store, &Key::inode(ino), Some(&value)))
            }
            Fix::Numbers(numbers) => {
                self.numbers = Some(numbers);
                self.change(store, &Key::common(), Some(&record::common(numbers, None)))
            }
            Fix::Owners(place, owners, bytes) => {
                let value = owners::encode(u32::try_from(owners).unwrap_or(u32::MAX), bytes);
                self.change(store, &Key::owners(place), (owners > 1).then_some(&value[..]))
            }
            Fix::Quota(ino, number) => {
                let key = Key::inode(ino);
                let Some(value) = store.get(&key)? else { return Ok(()) };
                let Some(record) = InodeRecord::decode_head(&value) else { return Ok(()) };
                let value = InodeRecord { quota: number, ..record }.encode();
                self.change(store, &key, Some(&value))
            }
            Fix::Adopt(ino) => {
                let dir = self.lost_and_found(store)?;
                let Some(node) = self.node_mut(ino) else { return Ok(()) };
                node.names = 1;
                let value = record::name_value(ino, node.file_type);
                self.change(store, &Key::name(dir, format!("#{ino}").as_bytes()), Some(&value))?;
                self.count(store, ino)
            }
        }
    }

    /// Writes what was counted into the record of inode `ino`.
    fn count(&mut self, store: &Store, ino: u64) -> Result<(), StoreError> {
        let (Some(node), Some(value)) = (self.node(ino), store.get(&Key::inode(ino))?) else { return Ok(()) };
        let Some(mut record) = InodeRecord::decode_head(&value) else { return Ok(()) };
        if node.file_type != FileType::Directory {
            record.nlink = node.names;
        }
        record.pages = self.pages(ino);
        record.has_xattrs |= node.xattrs;
        record.holder = record.holder.filter(|_| node.is_held);
        self.change(store, &Key::inode(ino), Some(&record.encode()))
    }

    /// The directory for what has no name. It is made if need be.
    fn lost_and_found(&mut self, store: &Store) -> Result<u64, StoreError> {
        let is_it = |place: &(u64, Vec<u8>)| place.0 == ROOT_INO && place.1 == LOST_AND_FOUND;
        if let Some((ino, _)) = self.places.iter().find(|(_, place)| is_it(place)) {
            return Ok(*ino);
        }
        let ino = self.numbers.unwrap_or(0).max(self.nodes.last().map_or(0, |node| node.ino + 1));
        let then = Timestamp::unpack(0);
        let record = InodeRecord {
            flags: InodeFlags::empty(),
            is_read_only: false,
            has_xattrs: false,
            mode: FileType::Directory.mode_bits() | 0o700,
            uid: 0,
            gid: 0,
            nlink: 0,
            size: 0,
            pages: 0,
            rdev: 0,
            holder: Some(ROOT_INO),
            atime: then,
            mtime: then,
            ctime: then,
            born: then,
            origin: 0,
            quota: NO_QUOTA,
            tail: &[],
        };
        self.mend(store, Fix::Numbers(ino + 1))?;
        self.change(store, &Key::inode(ino), Some(&record.encode()))?;
        let value = record::name_value(ino, FileType::Directory);
        self.change(store, &Key::name(ROOT_INO, LOST_AND_FOUND), Some(&value))?;
        self.places.insert(ino, (ROOT_INO, LOST_AND_FOUND.to_vec()));
        Ok(ino)
    }

    /// Puts or removes one record.
    fn change(&mut self, store: &Store, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        self.changes += 1;
        let mut change = store.begin((key.len() + value.map_or(0, <[u8]>::len) + 16) as u64)?;
        match value {
            Some(value) => change.put(key, self.changes, value),
            None => change.remove(key, self.changes),
        }
        Ok(())
    }
}
