//! Trees to copy, and what there is to compare of them, in an `Fs`.

use sluice_vfs::{Cred, Fd, FileType, Fs, OpenFlags, Process, SetTime, Timestamp, Whence, XattrFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The facts of a file that must be equal. Two names of one file have the same `same_as`: the first of them.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Node {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    /// None for symbolic links, which are read by the comparison itself.
    pub(crate) atime: Option<(i64, u32)>,
    pub(crate) mtime: (i64, u32),
    pub(crate) rdev: u64,
    pub(crate) contents: Vec<u8>,
    pub(crate) extents: Vec<(u64, u64)>,
    pub(crate) same_as: PathBuf,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(crate) type Tree = BTreeMap<PathBuf, Node>;

/// The abilities that the host gives this test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    pub(crate) root: bool,
    pub(crate) user_xattrs: bool,
    pub(crate) acls: bool,
}

/// `user::rwx, user:10:r--, group::r-x, mask::r-x, other::---`. The 10 is a line end, which must not matter.
pub(crate) const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 4, 0, 10, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16,
    0, 5, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

/// Fills `at` in `fs` with a file of every kind that the host can take.
pub(crate) fn plant(fs: &Fs, at: &str, can: Abilities) {
    let p = fs.process(Cred::root());
    p.umask(0);
    p.mkdir(at, 0o755).or_else(|e| if at == "/" { Ok(()) } else { Err(e) }).unwrap();
    p.chdir(at).unwrap();
    p.mkdir("dir", 0o755).unwrap();
    p.mkdir("dir/deeper", 0o755).unwrap();
    p.mkdir("empty", 0o755).unwrap();
    write(&p, "plain", &[(0, b"hello\n")], 6);
    write(&p, "nothing", &[], 0);
    let block = vec![7; 65536];
    write(&p, "dir/holes", &[(1 << 20, &block), (3 << 20, b"end")], (3 << 20) + 3);
    write(&p, "dir/tail", &[(0, &block)], 5 << 20);
    write(&p, "dir/all-hole", &[], 1 << 20);
    write(&p, "dir/two-chunks", &[(0, &vec![3; (2 << 20) + 17])], (2 << 20) + 17);
    write(&p, "new\nline \u{1b}[31m=%", &[(0, b"odd name")], 8);
    p.mknod(Path::new(OsStr::from_bytes(b"not-\xff-utf8")), FileType::Regular, 0o644, 0).unwrap();
    let long = format!("dir/{}", "n".repeat(255));
    write(&p, &long, &[(0, b"long name")], 9);
    p.symlink("l".repeat(300), "dir/long-link").unwrap();
    p.symlink("dir/deeper", "link").unwrap();
    p.symlink("/nowhere", "dangling").unwrap();
    p.link("plain", "dir/deeper/second").unwrap();
    p.link("dir/holes", "third").unwrap();
    p.link("link", "dir/same-link").unwrap();
    p.mknod("fifo", FileType::Fifo, 0o640, 0).unwrap();
    p.mknod("socket", FileType::Socket, 0o600, 0).unwrap();
    if can.root {
        p.mknod("null", FileType::CharDevice, 0o666, rustix::fs::makedev(1, 3)).unwrap();
        p.mknod("disk", FileType::BlockDevice, 0o660, rustix::fs::makedev(259, 70_000)).unwrap();
        for name in ["plain", "dir/holes", "empty", "fifo", "dir/deeper"] {
            p.lchown(name, Some(12_345), Some(4_000_000_000)).unwrap();
        }
        p.lchown("link", Some(7), Some(8)).unwrap();
    } else {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        for entry in fs.walk(at).map(Result::unwrap) {
            p.lchown(&entry.path, Some(uid), Some(gid)).unwrap();
        }
    }
    p.chmod("plain", 0o4751).unwrap();
    p.chmod("nothing", 0o2755).unwrap();
    p.chmod("empty", 0o1777).unwrap();
    p.chmod("dir/deeper", 0o2550).unwrap();
    p.chmod("dir/tail", 0o400).unwrap();
    let set = |path: &str, name: &str, value: &[u8]| {
        p.lsetxattr(path, name.as_bytes(), value, XattrFlags::empty()).unwrap();
    };
    if can.user_xattrs {
        set("plain", "user.lines", b"one\n12 path=/evil\ntwo\0\n");
        set("plain", "user.empty", b"");
        set("dir", "user.on a=directory%3D", &[9; 1000]);
    }
    if can.acls {
        set("nothing", "system.posix_acl_access", ACL);
        set("dir", "system.posix_acl_default", ACL);
    }
    if can.root {
        set("link", "trusted.on-link", b"t");
        set("fifo", "trusted.on-fifo", b"t");
    }
    // The directories after what is in them, or their times would change again.
    let mut paths: Vec<PathBuf> = fs.walk(at).map(|entry| entry.unwrap().path).collect();
    paths.sort();
    paths.reverse();
    for (index, path) in paths.iter().enumerate() {
        let index = u32::try_from(index).unwrap();
        let sec = if index == 3 { -5 } else { 1_000_000_000 + i64::from(index) };
        let at = |add| Some(SetTime::At(Timestamp { sec: sec + add, nsec: 123_456_000 + index }));
        p.utimensat(Fd::CWD, path, [at(9), at(0)], sluice_vfs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn write(p: &Process, path: &str, parts: &[(i64, &[u8])], size: i64) {
    let fd = p.open(path, OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::EXCL, 0o644).unwrap();
    for (offset, data) in parts {
        assert_eq!(p.pwrite(fd, data, *offset), Ok(data.len()));
    }
    p.ftruncate(fd, size).unwrap();
    p.close(fd).unwrap();
}

/// The tree at `at` in `fs`, paths from there.
pub(crate) fn inside(fs: &Fs, at: &str) -> Tree {
    let p = fs.process(Cred::root());
    let mut tree = Tree::new();
    let mut first = HashMap::new();
    for entry in fs.walk(at).map(Result::unwrap) {
        let (path, stat) = (entry.path, entry.stat);
        let below = path.strip_prefix(at).unwrap().to_path_buf();
        let mut node = Node {
            mode: stat.mode,
            owner: (stat.uid, stat.gid),
            atime: Some((stat.atime.sec, stat.atime.nsec)),
            mtime: (stat.mtime.sec, stat.mtime.nsec),
            rdev: stat.rdev,
            contents: Vec::new(),
            extents: Vec::new(),
            same_as: first.entry(stat.ino).or_insert_with(|| below.clone()).clone(),
            xattrs: BTreeMap::new(),
        };
        match stat.file_type() {
            FileType::Regular => {
                let fd = p.open(&path, OpenFlags::NOATIME, 0).unwrap();
                node.contents = vec![0; usize::try_from(stat.size).unwrap()];
                let mut filled = 0;
                while filled < node.contents.len() {
                    filled += p.read(fd, &mut node.contents[filled..]).unwrap();
                }
                node.extents = extents(|offset| {
                    let start = p.lseek(fd, offset.cast_signed(), Whence::Data).ok()?;
                    Some((start, p.lseek(fd, start.cast_signed(), Whence::Hole).unwrap()))
                });
                p.close(fd).unwrap();
            }
            FileType::Symlink => {
                node.atime = None;
                node.contents = p.readlink(&path).unwrap().as_os_str().as_bytes().to_vec();
            }
            _ => {}
        }
        for name in p.llistxattr(&path).unwrap() {
            let value = p.lgetxattr(&path, &name).unwrap();
            node.xattrs.insert(name, value);
        }
        tree.insert(below, node);
    }
    // `walk` reads the directories, which touches them; the stat of each was taken before.
    name_first(tree)
}

pub(crate) fn extents(mut next: impl FnMut(u64) -> Option<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    let mut offset = 0;
    while let Some((start, end)) = next(offset) {
        all.push((start, end));
        offset = end;
    }
    all
}

/// Names the groups of hard links by their first path in order, however the tree was walked.
pub(crate) fn name_first(mut tree: Tree) -> Tree {
    let mut first: HashMap<PathBuf, PathBuf> = HashMap::new();
    for (path, node) in &tree {
        first.entry(node.same_as.clone()).or_insert_with(|| path.clone());
    }
    for node in tree.values_mut() {
        node.same_as = first[&node.same_as].clone();
    }
    tree
}

/// Fails with the first path that differs.
pub(crate) fn assert_equal(left: &Tree, right: &Tree) {
    for path in left.keys().chain(right.keys()) {
        let (left, right) = (left.get(path), right.get(path));
        let short = |node: Option<&Node>| {
            node.cloned().map(|mut node| {
                node.contents.truncate(100);
                node
            })
        };
        assert!(left == right, "{path:?} differs:\n{:?}\n{:?}", short(left), short(right));
    }
}
