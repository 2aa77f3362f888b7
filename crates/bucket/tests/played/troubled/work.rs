//! Work: ten workloads of a file system, and the trees that each of their calls makes.

use sluice_vfs::{Errno, File, FileType, Fs};
use std::collections::BTreeMap;

/// A tree: contents by path; none of a directory.
pub(crate) type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// One call.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    MakeDir(&'static str),
    /// Writes so many bytes to a file, with this stamp.
    Write(String, usize, u8),
    /// Writes so many bytes at an offset.
    WriteAt(String, usize, usize, u8),
    Append(String, usize, u8),
    Truncate(String, usize),
    Rename(String, String),
    Remove(String),
    Copy(String, String),
    CloneTree(&'static str, &'static str),
    RemoveTree(&'static str),
    Fsync(String),
    Sync,
}

use Call::{
    Append, CloneTree, Copy, Fsync, MakeDir, Remove, RemoveTree, Rename, Sync, Truncate, Write, WriteAt,
};

/// Bytes that nothing else has.
fn bytes(len: usize, stamp: u8) -> Vec<u8> {
    (0..len).map(|at| stamp ^ (at / 509) as u8 | 1).collect()
}

impl Call {
    pub(crate) fn is_sync(&self) -> bool {
        matches!(self, Sync | Fsync(_))
    }

    pub(crate) fn run(&self, fs: &Fs) -> Result<(), Errno> {
        let file = |path: &str| sluice_vfs::OpenOptions::new().read(true).write(true).open(fs, path);
        match self {
            MakeDir(path) => fs.create_dir(path),
            Write(path, len, stamp) => fs.write(path, bytes(*len, *stamp)),
            WriteAt(path, at, len, stamp) => file(path)?.write_all_at(&bytes(*len, *stamp), *at as u64),
            Append(path, len, stamp) => fs.append(path, bytes(*len, *stamp)),
            Truncate(path, len) => file(path)?.set_len(*len as u64),
            Rename(from, to) => fs.rename(from, to),
            Remove(path) => fs.remove_file(path),
            Copy(from, to) => fs.copy(from, to).map(drop),
            CloneTree(from, to) => fs.clone_tree(from, to),
            RemoveTree(path) => fs.remove_dir_all(path),
            Fsync(path) => File::open(fs, path)?.sync_all(),
            Sync => fs.sync(),
        }
    }

    pub(crate) fn model(&self, tree: &mut Tree) {
        fn contents<'t>(tree: &'t mut Tree, path: &str) -> &'t mut Vec<u8> {
            tree.get_mut(path).and_then(Option::as_mut).expect("a file")
        }
        let below = |tree: &Tree, dir: &str| -> Vec<String> {
            let is_below = |path: &&String| *path == dir || path.starts_with(&format!("{dir}/"));
            tree.keys().filter(is_below).cloned().collect()
        };
        match self {
            MakeDir(path) => drop(tree.insert((*path).to_owned(), None)),
            Write(path, len, stamp) => drop(tree.insert(path.clone(), Some(bytes(*len, *stamp)))),
            WriteAt(path, at, len, stamp) => {
                let file = contents(tree, path);
                file.resize(file.len().max(at + len), 0);
                file[*at..at + len].copy_from_slice(&bytes(*len, *stamp));
            }
            Append(path, len, stamp) => contents(tree, path).extend(bytes(*len, *stamp)),
            Truncate(path, len) => contents(tree, path).resize(*len, 0),
            Rename(from, to) => {
                for path in below(tree, from) {
                    let moved = tree.remove(&path).expect("listed");
                    tree.insert(format!("{to}{}", &path[from.len()..]), moved);
                }
            }
            Remove(path) => drop(tree.remove(path)),
            Copy(from, to) => drop(tree.insert(to.clone(), tree[from].clone())),
            CloneTree(from, to) => {
                for path in below(tree, from) {
                    tree.insert(format!("{to}{}", &path[from.len()..]), tree[&path].clone());
                }
            }
            RemoveTree(path) => below(tree, path).iter().for_each(|path| drop(tree.remove(path))),
            Fsync(_) | Sync => {}
        }
    }
}

fn name(prefix: &str, number: usize) -> String {
    format!("/{prefix}{number}")
}

/// The calls of ten workloads, by name.
pub(crate) fn workloads() -> Vec<(&'static str, Vec<Call>)> {
    let large = 300_000;
    let each = |count: usize, calls: &dyn Fn(usize) -> Vec<Call>| -> Vec<Call> {
        (0..count).flat_map(calls).collect()
    };
    vec![
        ("create and fsync", each(6, &|n| vec![Write(name("f", n), 5_000, n as u8), Fsync(name("f", n))])),
        (
            "rewrite",
            each(5, &|n| {
                vec![
                    Write("/f".into(), large, n as u8),
                    Sync,
                    WriteAt("/f".into(), n * 70_000, 9_000, 99),
                    Sync,
                ]
            }),
        ),
        (
            "append",
            [
                vec![Write("/log".into(), 10, 1)],
                each(8, &|n| vec![Append("/log".into(), 3_000, n as u8), Fsync("/log".into())]),
            ]
            .concat(),
        ),
        (
            "truncate",
            each(4, &|n| {
                vec![
                    Write("/f".into(), large, n as u8),
                    Sync,
                    Truncate("/f".into(), 100_001 + n),
                    Fsync("/f".into()),
                    Truncate("/f".into(), 200_000),
                    Sync,
                ]
            }),
        ),
        (
            "rename",
            each(5, &|n| {
                vec![
                    Write("/new".into(), 40_000, n as u8),
                    Fsync("/new".into()),
                    Rename("/new".into(), "/current".into()),
                    Sync,
                ]
            }),
        ),
        (
            "remove",
            [
                each(8, &|n| vec![Write(name("f", n), 80_000, n as u8)]),
                vec![Sync],
                each(8, &|n| {
                    if n % 2 == 0 { vec![Remove(name("f", n)), Sync] } else { vec![Remove(name("f", n))] }
                }),
                vec![Sync],
            ]
            .concat(),
        ),
        (
            "clone",
            [
                vec![MakeDir("/d"), Write("/d/a".into(), large, 1), Write("/d/b".into(), 700, 2), Sync],
                vec![Copy("/d/a".into(), "/c".into()), Sync, CloneTree("/d", "/e"), Sync],
                vec![
                    WriteAt("/e/a".into(), 5_000, 80_000, 7),
                    Remove("/d/a".into()),
                    Sync,
                    RemoveTree("/d"),
                    Sync,
                ],
            ]
            .concat(),
        ),
        (
            "many small files",
            each(4, &|part| {
                let files = (0..60).map(|n| Write(name("s", part * 60 + n), 300 + 97 * n, n as u8));
                files.chain([Sync]).collect()
            }),
        ),
        (
            "a large file",
            vec![
                Write("/large".into(), 6 << 20, 3),
                Sync,
                WriteAt("/large".into(), 3 << 20, 5 << 20, 4),
                Fsync("/large".into()),
                Remove("/large".into()),
                Sync,
            ],
        ),
        (
            "trees of directories",
            [
                vec![
                    MakeDir("/a"),
                    MakeDir("/a/b"),
                    MakeDir("/a/b/c"),
                    Write("/a/b/c/x".into(), 90_000, 1),
                    Sync,
                ],
                vec![Rename("/a/b".into(), "/b".into()), Sync, MakeDir("/a/z"), Fsync("/a".into())],
                vec![Write("/b/y".into(), 10, 2), Sync, RemoveTree("/b"), Sync],
            ]
            .concat(),
        ),
    ]
}

/// The tree of `fs`.
pub(crate) fn tree(fs: &Fs) -> Result<Tree, String> {
    fn add(fs: &Fs, dir: &str, tree: &mut Tree) -> Result<(), String> {
        let said = |path: &str| {
            let path = path.to_owned();
            move |error: Errno| format!("{path}: {error}")
        };
        let shown = if dir.is_empty() { "/" } else { dir };
        for entry in fs.read_dir(shown).map_err(said(shown))? {
            let entry = entry.map_err(said(shown))?;
            let path = format!("{dir}/{}", entry.name().to_string_lossy());
            if entry.file_type().is_ok_and(FileType::is_dir) {
                tree.insert(path.clone(), None);
                add(fs, &path, tree)?;
            } else {
                let found = fs.read(&path).map_err(said(&path))?;
                tree.insert(path, Some(found));
            }
        }
        Ok(())
    }
    let mut all = Tree::new();
    add(fs, "", &mut all)?;
    Ok(all)
}
