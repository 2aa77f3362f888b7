//! Audit: whether what a store holds is what its file system has, down to each record and each block. For tests.

use super::chunk::Chunk;
use super::keys::{Key, ino_of};
use super::owners;
use super::record::{self, InodeRecord};
use crate::Fs;
use sluice_store::Extent;
use std::collections::{BTreeMap, BTreeSet};

/// Checks that each record in the store belongs to a file with a name, that holders hold, and that records name what lives in the segments, each
/// block once. All is synchronised.
pub(super) fn audit(fs: &Fs) -> Result<(), String> {
    let root = fs.superblock().root();
    let durable = root.shared.durable().expect("a store");
    // Later pushes remove the remaining records of large files.
    while !durable.pending.is_idle() {
        durable.store.sync().map_err(|error| error.to_string())?;
    }
    durable.store.checkpoint().map_err(|error| error.to_string())?;
    let mut named = BTreeSet::from([root.ino()]);
    let mut others: Vec<Vec<u8>> = Vec::new();
    // By place: extents, with how many records name them; and what records say of that.
    let (mut extents, mut counts) = (BTreeMap::<u64, (Extent, u32)>::new(), BTreeMap::new());
    // The edges between directories and inodes: from name records, and from holders in inode records.
    let (mut places, mut holders) = (BTreeSet::<(u64, u64)>::new(), BTreeSet::new());
    let mut unwritten = 0;
    let visit = &mut |key: &[u8], value: &[u8]| {
        if key[0] == b'd' {
            let chunk = Chunk::decode(value).expect("the value of a chunk");
            if let Some(extent) = chunk.held.map(|held| held.extent) {
                extents.entry(extent.place()).or_insert((extent, 0)).1 += 1;
            }
        }
        if key[0] == b'e' {
            let (owners, _) = owners::decode(value).expect("the value of a count");
            counts.insert(ino_of(key).expect("a place"), owners);
        }
        if key[0] == b'i' {
            let record = InodeRecord::decode(value).expect("the value of an inode");
            unwritten += record.unwritten().map_or(0, |unwritten| unwritten.len());
            holders.extend(record.holder.zip(ino_of(key)));
        }
        match key[0] {
            b'n' => {
                let ino = record::named(value).expect("the value of a name");
                places.extend(ino_of(key).map(|dir| (dir, ino)));
                named.insert(ino);
            }
            b'c' | b'e' => {}
            _ => others.push(key.to_vec()),
        }
        true
    };
    durable.store.scan(b"a", b"z", visit).map_err(|error| error.to_string())?;
    if let Some((dir, ino)) = holders.difference(&places).next() {
        return Err(format!("directory {dir} has no name of inode {ino}, which says so"));
    }
    if unwritten != durable.store.held_back() {
        return Err(format!("{unwritten} unwritten pages, and room for {}", durable.store.held_back()));
    }
    for key in others {
        let ino = ino_of(&key).ok_or("a short key")?;
        if matches!(key[0], b'o' | b'b' | b'f') || !named.contains(&ino) {
            return Err(format!("a record {} of inode {ino} is left", char::from(key[0])));
        }
        if key[0] != b'i' && durable.store.get(&Key::inode(ino)).is_ok_and(|inode| inode.is_none()) {
            return Err(format!("inode {ino} has no record"));
        }
    }
    let shared = extents.iter().filter(|(_, (_, owners))| *owners > 1);
    let shared: BTreeMap<u64, u32> = shared.map(|(place, (_, owners))| (*place, *owners)).collect();
    if shared != counts {
        return Err(format!("of the owners of extents records say {counts:?}, and there are {shared:?}"));
    }
    let named = extents.values().map(|(extent, _)| extent.allocated()).sum::<u64>();
    let live = durable.store.stats().data_bytes;
    if named != live {
        return Err(format!("records name {named} bytes of segments, of which {live} live"));
    }
    for (extent, _) in extents.into_values() {
        let read = durable.store.read_extent(&extent, 0, &mut vec![0; extent.len() as usize]);
        read.map_err(|error| format!("{extent:?}: {error}"))?;
    }
    Ok(())
}
