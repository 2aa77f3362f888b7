//! Paths: from inode numbers to names, by a walk through the whole tree.
//!
//! An inode does not know its names. A caller that asks for names pays for one walk, which finds all of them.

use crate::{InodeRef, Superblock};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

impl InodeRef {
    /// A path to this directory from the root of its file system, as far as names in memory tell.
    pub(crate) fn known_path(&self) -> Option<PathBuf> {
        let (mut names, mut dir) = (Vec::new(), self.clone());
        loop {
            let above = dir.parent().filter(|above| above.ino() != dir.ino());
            let Some(above) = above else { break };
            let mut own = None;
            above.as_dir().ok()?.visit_names(|name, inode| {
                if inode.ino() == dir.ino() {
                    own = Some(name.to_vec());
                }
            });
            names.push(own?);
            dir = above;
        }
        let names = names.iter().rev().map(|name| OsStr::from_bytes(name));
        Some(std::iter::once(OsStr::new("/")).chain(names).collect())
    }
}

impl Superblock {
    /// A path, from the root of this file system on, to each of the inodes `wanted` that has one. Files that are moved
    /// during the walk may be missed.
    pub fn paths(&self, wanted: impl IntoIterator<Item = u64>) -> HashMap<u64, PathBuf> {
        let mut wanted: HashSet<u64> = wanted.into_iter().collect();
        let mut paths = HashMap::new();
        if wanted.remove(&self.root().ino()) {
            paths.insert(self.root().ino(), PathBuf::from("/"));
        }
        let mut directories = vec![(self.root().clone(), PathBuf::from("/"))];
        while let Some((inode, at)) = directories.pop()
            && !wanted.is_empty()
        {
            // A directory that cannot be loaded is left out.
            let found = inode.list_names(|child| child.is_dir() || wanted.contains(&child.ino()));
            for (name, child) in found.unwrap_or_default() {
                let path = at.join(OsStr::from_bytes(&name));
                if wanted.remove(&child.ino()) {
                    paths.insert(child.ino(), path.clone());
                }
                if child.is_dir() {
                    directories.push((child, path));
                }
            }
        }
        paths
    }
}
