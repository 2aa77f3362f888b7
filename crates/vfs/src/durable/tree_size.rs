//! Tree size: the bytes of a tree in a store, as its records say.

use super::chunk::Chunk;
use super::keys::Key;
use super::record::{self, InodeRecord};
use super::{Durable, errno, owners};
use crate::data::PAGE;
use crate::{Errno, FileType, TreeSize};
use std::collections::BTreeSet;

impl Durable {
    /// Brings the tree of the store up to the newest changes, so that [`size_of_tree`](Self::size_of_tree) counts them.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn update_tree(&self) -> Result<(), Errno> {
        // The second push removes chunks that the first one cuts off.
        for _ in 0..2 {
            self.sync()?;
        }
        self.store.checkpoint().map_err(|error| errno(&error))
    }

    /// The bytes of the files below directory `top`, which nobody changes, as the records in the tree say. Contents that files share
    /// are in extents with several owners.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn size_of_tree(&self, top: u64) -> Result<TreeSize, Errno> {
        let (mut size, mut directories, mut met) = (TreeSize::default(), vec![top], BTreeSet::new());
        while let Some(dir) = directories.pop() {
            let mut files = Vec::new();
            self.scan(Key::names(dir), &mut |_, value| {
                match record::named_type(value) {
                    Some((ino, bits)) if bits == FileType::Directory.mode_bits() => directories.push(ino),
                    Some((ino, bits)) if bits == FileType::Regular.mode_bits() => files.push(ino),
                    _ => {}
                }
                true
            })?;
            for ino in files {
                let record = self.store.get(&Key::inode(ino)).map_err(|error| errno(&error))?;
                let links =
                    record.as_deref().and_then(InodeRecord::decode_head).map_or(1, |record| record.nlink);
                if links < 2 || met.insert(ino) {
                    self.add_file(ino, &mut size)?;
                }
            }
        }
        Ok(size)
    }

    fn add_file(&self, ino: u64, size: &mut TreeSize) -> Result<(), Errno> {
        let mut extents = Vec::new();
        self.scan(Key::chunks(ino), &mut |_, value| {
            let Some(chunk) = Chunk::decode(value) else { return true };
            let here = chunk.held.as_ref().map_or(chunk.present, |held| held.patched);
            size.private_bytes += u64::from(here.count_ones()) * PAGE;
            extents.extend(chunk.held.map(|held| held.extent));
            true
        })?;
        for extent in extents {
            let owners = self.store.get(&Key::owners(extent.place())).map_err(|error| errno(&error))?;
            match owners.as_deref().and_then(owners::decode) {
                Some(_) => size.shared_bytes += extent.allocated(),
                None => size.private_bytes += extent.allocated(),
            }
        }
        Ok(())
    }
}
