//! LostChanges: for a person, the changes in a log that a damaged batch keeps from being applied.
//!
//! # Theory
//! Each file has several records. A person asks for files, so the parts of one inode that were changed make one line. The names
//! among the lost records are known to [`ToldPaths`], for inodes that have no name in the tree.

use super::keys::{self, ino_of, name_of};
use super::record;
use super::told::ToldPaths;
use std::collections::BTreeMap;

/// The lost changes of each inode.
#[derive(Debug, Default)]
pub(super) struct LostChanges(BTreeMap<u64, LostParts>);

/// The changed parts of one inode.
#[derive(Debug, Default)]
struct LostParts {
    name: bool,
    attributes: bool,
    contents: bool,
    xattrs: bool,
    deletion: bool,
    /// For a directory: names that were removed from it.
    removed: Vec<Vec<u8>>,
}

impl LostChanges {
    /// Takes a lost record. Without a value, the record removes its key or changes a part of its value.
    pub(super) fn see(&mut self, key: &[u8], value: Option<&[u8]>, told: &mut ToldPaths) {
        let Some(ino) = ino_of(key) else { return };
        match (key.first(), value) {
            (Some(&keys::NAME), Some(value)) => {
                if let Some((named, _)) = record::named_type(value) {
                    told.see_lost(named, ino, name_of(key));
                    self.parts(named).name = true;
                }
            }
            (Some(&keys::NAME), None) => self.parts(ino).removed.push(name_of(key).to_vec()),
            (Some(&keys::INODE), Some(_)) => self.parts(ino).attributes = true,
            (Some(&keys::INODE), None) | (Some(&keys::ORPHAN), Some(_)) => self.parts(ino).deletion = true,
            (Some(&keys::DATA), _) => self.parts(ino).contents = true,
            // A record without a name only asks for a commit.
            (Some(&keys::XATTR), _) if !name_of(key).is_empty() => self.parts(ino).xattrs = true,
            // Counts, and what the file system notes for itself.
            _ => {}
        }
    }

    fn parts(&mut self, ino: u64) -> &mut LostParts {
        self.0.entry(ino).or_default()
    }

    /// A line for each inode, with the marks of `told` for paths.
    pub(super) fn lines(&self, told: &ToldPaths) -> Vec<String> {
        let mut lines = Vec::new();
        for (&ino, parts) in &self.0 {
            let kinds = [
                (parts.name, "name"),
                (parts.attributes, "attributes"),
                (parts.contents, "contents"),
                (parts.xattrs, "extended attributes"),
                (parts.deletion, "deletion"),
            ];
            let changed: Vec<&str> =
                kinds.into_iter().filter(|(is_changed, _)| *is_changed).map(|(_, part)| part).collect();
            if !changed.is_empty() {
                lines.push(format!("changes of {}: {}", told.mark(ino), changed.join(", ")));
            }
            for name in &parts.removed {
                let name = String::from_utf8_lossy(name);
                lines.push(format!("removal of the name {name:?} from {}", told.mark(ino)));
            }
        }
        lines
    }
}
