//! Large: directories whose names alone exceed the whole limit of memory, and the warning about them.
//!
//! The names of a directory are in memory all together (`names.rs`), so such a directory exceeds the limit of memory while it is used.

use super::Durable;
use super::names::NameSet;
use crate::InodeRef;
use crate::superblock::INODE_BYTES;
/// So many directories are told of.
const TOLD_MAX: usize = 64;

impl Durable {
    /// Warns, once for each directory, of directories in memory whose names exceed the limit of memory.
    pub(super) fn warn_of_large(&self) {
        // With a limit of 0, that of a test, everything leaves.
        if self.names().limit() == 0 {
            return;
        }
        let limit = self.memory_use().limit;
        let most = limit / INODE_BYTES;
        for (dir, names) in self.names().larger_than(most) {
            if self.names().is_new_of_large(dir.ino()) {
                log::warn!("{}", warning(&dir, names, limit));
            }
        }
    }
}

impl NameSet {
    /// The directories in memory that have more than `most` names, and how many.
    fn larger_than(&self, most: u64) -> Vec<(InodeRef, u64)> {
        let directories = self.with_names_here();
        let sizes = directories.iter().map(|dir| dir.as_dir().map_or(0, |inner| inner.names.sums().entries));
        let both = directories.iter().zip(sizes).filter(|(_, names)| *names > most);
        both.map(|(dir, names)| (InodeRef::clone(dir), names)).collect()
    }

    /// Whether nobody was told of the large directory `ino` yet.
    fn is_new_of_large(&self, ino: u64) -> bool {
        let mut told = self.told_of_large.lock();
        told.len() < TOLD_MAX && told.insert(ino)
    }
}

/// The line about the directory `dir` with so many `names`, where a `limit` of bytes was set.
fn warning(dir: &InodeRef, names: u64, limit: u64) -> String {
    let place = dir.known_path().map_or_else(
        || format!("the directory that `find -inum {}` shows", dir.ino()),
        |path| format!("the directory {} of the mount", path.display()),
    );
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    format!(
        "{place} has {names} names, which take about {} MiB of memory while it is used, beyond the {} MiB of memory=: \
         spread its files over several directories, or give more",
        mib(names * INODE_BYTES),
        mib(limit)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::tests::limited;

    #[test]
    fn a_directory_that_is_larger_than_all_names_may_be_is_told_of_once_by_its_path() {
        const LIMIT: u64 = 1 << 20;
        let (_disk, fs) = limited(LIMIT);
        let most = LIMIT / INODE_BYTES;
        fs.create_dir_all("/a/large").expect("room");
        let durable = fs.superblock().root().shared.durable().expect("a store");
        for n in 0..most / 2 {
            fs.write(format!("/a/large/{n}"), "").expect("room");
        }
        assert!(durable.names().larger_than(most).is_empty());
        for n in 0..4 * most {
            fs.write(format!("/a/large/more-{n}"), "").expect("room");
        }
        let found = durable.names().larger_than(most);
        let [(dir, names)] = &found[..] else { panic!("{} are large", found.len()) };
        assert_eq!(*names, most / 2 + 4 * most);
        let line = warning(dir, *names, LIMIT);
        assert!(
            line.starts_with("the directory /a/large of the mount has 4608 names, which take about 5 MiB"),
            "{line}"
        );
        assert!(
            line.contains("beyond the 1 MiB of memory=: spread its files over several directories"),
            "{line}"
        );
        // A call that made room has told it.
        assert!(!durable.names().is_new_of_large(dir.ino()));
        assert!(durable.names().is_new_of_large(7) && !durable.names().is_new_of_large(7));
        let line = warning(&fs.superblock().root().clone(), 5_000, LIMIT);
        assert!(line.starts_with("the directory / of the mount has 5000 names"), "{line}");
    }
}
