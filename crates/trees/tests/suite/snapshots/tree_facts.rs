//! Tree facts: everything that can be asked of each file of a tree, for comparison.

use sluice_vfs::{Cred, Errno, FileType, InodeRef, Superblock, Timestamp};
use std::collections::BTreeMap;
use std::ops::Range;

/// A file without its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileFacts {
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) rdev: u64,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) flags: u32,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Contents of a file, or the target of a link.
    pub(super) contents: Vec<u8>,
    pub(super) data: Vec<Range<u64>>,
    /// The first of its names.
    pub(super) first_name: Vec<u8>,
    pub(super) nlink: u32,
}

/// A tree: paths from its top.
pub(super) type TreeFacts = BTreeMap<Vec<u8>, FileFacts>;

/// The facts of the snapshot `name`.
pub(super) fn of_snapshot(superblock: &Superblock, name: &str) -> TreeFacts {
    of_tree(&superblock.snapshot_top(name.as_bytes()).expect("it is there"))
}

/// The facts of the tree below `top`.
pub(super) fn of_tree(top: &InodeRef) -> TreeFacts {
    let (mut facts, mut firsts) = (TreeFacts::new(), BTreeMap::new());
    let mut left = vec![(Vec::new(), top.clone())];
    let mut inodes = BTreeMap::new();
    while let Some((path, inode)) = left.pop() {
        if inode.is_dir() {
            inode
                .read_dir(0, false, &mut |entry| {
                    if ![&b"."[..], b"..", b".snapshots"].contains(&entry.name) {
                        let below = if path.is_empty() {
                            entry.name.to_vec()
                        } else {
                            [&path, &b"/"[..], entry.name].concat()
                        };
                        left.push((below, entry.inode.clone()));
                    }
                    true
                })
                .expect("a directory");
        }
        inodes.insert(path, inode);
    }
    for (path, inode) in inodes {
        let first_name = firsts.entry(inode.ino()).or_insert_with(|| path.clone()).clone();
        facts.insert(path, of_file(&inode, first_name));
    }
    facts
}

fn of_file(inode: &InodeRef, first_name: Vec<u8>) -> FileFacts {
    let (stat, root) = (inode.stat(), Cred::root());
    let xattrs = inode.list_xattr(&root).into_iter();
    let xattrs = xattrs.map(|key| (key.clone(), inode.get_xattr(&root, &key).expect("it is listed")));
    let (contents, data) = match stat.file_type() {
        FileType::Regular => (contents(inode), data(inode)),
        FileType::Symlink => (inode.read_link(false).expect("a link"), Vec::new()),
        _ => (Vec::new(), Vec::new()),
    };
    let is_device = matches!(stat.file_type(), FileType::CharDevice | FileType::BlockDevice);
    FileFacts {
        mode: stat.mode,
        owner: (stat.uid, stat.gid),
        rdev: if is_device { stat.rdev } else { 0 },
        mtime: stat.mtime,
        ctime: stat.ctime,
        flags: inode.flags().bits(),
        xattrs: xattrs.collect(),
        contents,
        data,
        first_name,
        nlink: stat.nlink,
    }
}

fn contents(inode: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; inode.stat().size as usize];
    assert_eq!(inode.read_at(0, &mut bytes, false), Ok(bytes.len()));
    bytes
}

fn data(inode: &InodeRef) -> Vec<Range<u64>> {
    let (mut parts, mut offset) = (Vec::new(), 0);
    loop {
        match inode.seek_data(offset) {
            Ok(start) => {
                offset = inode.seek_hole(start).expect("the end is a hole");
                parts.push(start..offset);
            }
            Err(errno) => {
                assert_eq!(errno, Errno::ENXIO);
                return parts;
            }
        }
    }
}
