//! Digest: a tree as a number of 32 bytes, which is the same wherever the tree stands.
//!
//! SHA-256 of each entry, names in order of their bytes, and a directory's entries behind it. An entry counts with its name, type, mode,
//! owner, device, target, size, times of modification and change, flags, extended attributes; of a further name of a file, which one that is. Not
//! counted are access and birth times, numbers of inodes, and contents.

use super::facts::InodeFacts;
use super::frame::DIGEST;
use super::pairs::{PairStep, PairWalk};
use sha2::{Digest, Sha256};
use sluice_vfs::{FileType, InodeRef};
use std::collections::HashMap;
use std::io;

/// The digest of the tree below `top`.
///
/// # Errors
/// The store's.
pub(super) fn digest(top: &InodeRef) -> io::Result<[u8; DIGEST]> {
    let mut sums = TreeSums { hash: Sha256::new(), met: HashMap::new() };
    let mut walk = PairWalk::begin(None, top)?;
    sums.entry(b"", top)?;
    while let Some(step) = walk.next()? {
        match step {
            PairStep::Entry(entry) => {
                if let Some(new) = &entry.new {
                    sums.entry(&entry.name, new)?;
                }
            }
            PairStep::Leave => sums.field(b"up"),
        }
    }
    Ok(sums.hash.finalize().into())
}

struct TreeSums {
    hash: Sha256,
    /// Files of several names, in the order in which they were met.
    met: HashMap<u64, u64>,
}

impl TreeSums {
    /// A field cannot be taken for another: its length comes first.
    fn field(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    fn entry(&mut self, name: &[u8], inode: &InodeRef) -> io::Result<()> {
        self.field(name);
        let stat = inode.stat();
        if !inode.is_dir() && stat.nlink > 1 {
            let next = self.met.len() as u64;
            match self.met.get(&inode.ino()).copied() {
                Some(first) => {
                    self.field(&first.to_le_bytes());
                    return Ok(());
                }
                None => drop(self.met.insert(inode.ino(), next)),
            }
        }
        let facts = InodeFacts::of(inode)?;
        let size = if facts.file_type == FileType::Regular { stat.size } else { 0 };
        let numbers = [
            u64::from(facts.file_type.mode_bits() | facts.mode),
            facts.uid.into(),
            facts.gid.into(),
            facts.rdev,
            size,
            facts.times.mtime.sec as u64,
            facts.times.mtime.nsec.into(),
            facts.times.ctime.sec as u64,
            facts.times.ctime.nsec.into(),
            facts.times.flags.bits().into(),
            facts.xattrs.len() as u64,
        ];
        self.field(numbers.map(u64::to_le_bytes).as_flattened());
        self.field(&facts.target);
        for (key, value) in &facts.xattrs {
            self.field(key);
            self.field(value);
        }
        Ok(())
    }
}
