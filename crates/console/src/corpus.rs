//! Corpus: a real source tree to unpack, search and delete: crates from Cargo's download cache.
//!
//! Cargo keeps what it has downloaded as `.crate` archives; building this project leaves thousands of files
//! of source there. Where there are none (a vendored or distribution build), a tree is generated instead.

use crate::failure::Result;
use flate2::read::GzDecoder;
use sluice_sync::Arc;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

/// An entry of the tree. Directories come before what they hold.
pub struct CorpusEntry {
    /// Relative path, without `.` or `..`.
    pub path: String,
    /// The kind of entry.
    pub kind: CorpusKind,
}

/// The kinds of things in a source tree.
pub enum CorpusKind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Permission bits.
        mode: u32,
        /// Contents.
        data: Arc<[u8]>,
    },
    /// A symbolic link.
    Symlink {
        /// Where it points.
        to: String,
    },
}

/// A tree in memory.
pub struct Corpus {
    /// The entries, in the order of their creation.
    pub entries: Vec<CorpusEntry>,
    /// Where it comes from, for a person.
    pub origin: String,
}

impl Corpus {
    /// Crates from Cargo's cache until there are about `wanted` entries; a generated tree when there are
    /// fewer than half as many. At least `wanted / 2` entries in any case.
    pub fn load(wanted: usize) -> Corpus {
        let archives = archives();
        let mut packed = Packed::default();
        let mut used = 0;
        for archive in &archives {
            if packed.entries.len() >= wanted {
                break;
            }
            // A download may be broken off or damaged: leave out what cannot be read.
            used += usize::from(packed.add_archive(archive).is_ok());
        }
        if packed.entries.len() < wanted / 2 {
            return Corpus::generated(wanted);
        }
        Corpus { entries: packed.entries, origin: format!("{used} crates from Cargo's cache") }
    }

    /// A made-up tree of `wanted` entries or a few more, always the same.
    pub fn generated(wanted: usize) -> Corpus {
        const FILES_PER_DIRECTORY: usize = 20;
        let mut entries = Vec::new();
        let mut module = 0;
        while entries.len() < wanted {
            let dir = format!("module-{module:03}");
            entries.push(CorpusEntry { path: dir.clone(), kind: CorpusKind::Directory });
            let source = format!("{dir}/src");
            entries.push(CorpusEntry { path: source.clone(), kind: CorpusKind::Directory });
            for number in 0..FILES_PER_DIRECTORY {
                let text = generated_source(module, number);
                let mode = if number == 0 { 0o755 } else { 0o644 };
                let data = text.into_bytes().into();
                entries.push(CorpusEntry {
                    path: format!("{source}/part_{number}.rs"),
                    kind: CorpusKind::File { mode, data },
                });
            }
            entries.push(CorpusEntry {
                path: format!("{dir}/main.rs"),
                kind: CorpusKind::Symlink { to: "src/part_0.rs".into() },
            });
            module += 1;
        }
        Corpus { entries, origin: "a generated tree (Cargo's cache has no crates)".into() }
    }

    /// How many regular files there are.
    pub fn files(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.kind, CorpusKind::File { .. })).count()
    }

    /// The sizes of all files together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| if let CorpusKind::File { data, .. } = &entry.kind { data.len() as u64 } else { 0 })
            .sum()
    }

    /// Writes the tree as one uncompressed tar archive.
    ///
    /// # Errors
    /// Errors of `to`.
    pub fn write_tar(&self, to: impl Write) -> Result<()> {
        let mut tar = tar::Builder::new(to);
        for entry in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(1_700_000_000);
            match &entry.kind {
                CorpusKind::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(0o755);
                    header.set_size(0);
                    tar.append_data(&mut header, &entry.path, std::io::empty())?;
                }
                CorpusKind::File { mode, data } => {
                    header.set_mode(*mode);
                    header.set_size(data.len() as u64);
                    tar.append_data(&mut header, &entry.path, &data[..])?;
                }
                CorpusKind::Symlink { to } => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, &entry.path, to)?;
                }
            }
        }
        tar.into_inner()?.flush()?;
        Ok(())
    }
}

/// A file of Rust source with a few hundred to a few thousand bytes.
fn generated_source(module: usize, number: usize) -> String {
    let mut text = format!("//! Part {number} of module {module}.\n\n");
    let attribute = if number.is_multiple_of(7) { "#[inline]\n" } else { "" };
    for function in 0..5 + (module * 7 + number * 13) % 40 {
        text.push_str(&format!(
            "/// Step {function}.\n{attribute}pub fn step_{function}(value: u64) -> u64 {{\n    value.rotate_left({}) ^ {}\n}}\n\n",
            function % 64,
            module * 1000 + number * 10 + function
        ));
    }
    text
}

/// Cargo's downloaded archives, sorted by name.
fn archives() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let Some(home) = home else { return Vec::new() };
    let mut archives: Vec<PathBuf> = read_dir(&home.join("registry/cache"))
        .flat_map(|registry| read_dir(&registry))
        .filter(|path| path.extension().is_some_and(|extension| extension == "crate"))
        .collect();
    archives.sort();
    archives
}

fn read_dir(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Entries gathered from archives, without repetition.
#[derive(Default)]
struct Packed {
    entries: Vec<CorpusEntry>,
    paths: BTreeSet<String>,
}

impl Packed {
    fn add_archive(&mut self, archive: &Path) -> Result<()> {
        let mut tar = tar::Archive::new(GzDecoder::new(File::open(archive)?));
        for entry in tar.entries()? {
            let mut entry = entry?;
            let Some(path) = plain_path(&entry.path()?) else { continue };
            let kind = match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    let mut data = Vec::new();
                    entry.read_to_end(&mut data)?;
                    CorpusKind::File { mode: entry.header().mode()? & 0o755 | 0o600, data: data.into() }
                }
                tar::EntryType::Symlink => match entry.link_name()?.as_deref().and_then(Path::to_str) {
                    Some(to) => CorpusKind::Symlink { to: to.to_owned() },
                    None => continue,
                },
                _ => continue,
            };
            self.add(path, kind);
        }
        Ok(())
    }

    /// Adds an entry after the directories that it needs. A second one of the same path is left out.
    fn add(&mut self, path: String, kind: CorpusKind) {
        for (at, _) in path.match_indices('/') {
            if self.paths.insert(path[..at].to_owned()) {
                self.entries.push(CorpusEntry { path: path[..at].to_owned(), kind: CorpusKind::Directory });
            }
        }
        if self.paths.insert(path.clone()) {
            self.entries.push(CorpusEntry { path, kind });
        }
    }
}

/// `path` as text when it stays below its start and uses no odd parts.
fn plain_path(path: &Path) -> Option<String> {
    let plain = path.components().all(|component| matches!(component, Component::Normal(_)));
    path.to_str().filter(|text| plain && !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_survives_the_way_through_tar() {
        let corpus = Corpus::generated(100);
        assert!(corpus.entries.len() >= 100 && corpus.files() > 80 && corpus.bytes() > 10_000);
        let mut archive = Vec::new();
        corpus.write_tar(&mut archive).unwrap();
        let mut tar = tar::Archive::new(&archive[..]);
        let mut count = 0;
        for (packed, entry) in tar.entries().unwrap().zip(&corpus.entries) {
            let mut packed = packed.unwrap();
            assert_eq!(
                packed.path().unwrap().to_str().map(|path| path.trim_end_matches('/')),
                Some(&*entry.path)
            );
            if let CorpusKind::File { data, .. } = &entry.kind {
                let mut found = Vec::new();
                packed.read_to_end(&mut found).unwrap();
                assert_eq!(found, **data);
            }
            count += 1;
        }
        assert_eq!(count, corpus.entries.len());
    }

    #[test]
    fn directories_come_before_their_contents_and_nothing_comes_twice() {
        for corpus in [Corpus::generated(300), Corpus::load(500)] {
            let mut seen = BTreeSet::new();
            for entry in &corpus.entries {
                if let Some((parent, _)) = entry.path.rsplit_once('/') {
                    assert!(seen.contains(parent), "{} comes before its directory", entry.path);
                }
                assert!(seen.insert(entry.path.as_str()), "{} comes twice", entry.path);
            }
        }
    }

    #[test]
    fn a_path_that_leaves_the_tree_is_not_taken() {
        for path in ["../x", "/etc/passwd", "a/../../b", ""] {
            assert_eq!(plain_path(Path::new(path)), None, "{path}");
        }
        assert_eq!(plain_path(Path::new("a/b.rs")).as_deref(), Some("a/b.rs"));
    }
}
