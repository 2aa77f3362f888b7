//! The host: temporary directories, their abilities, and the tree in one as it compares with that of an `Fs`.

use super::trees::{ACL, Abilities, Node, Tree, extents, name_first};
use rustix::fs::{AtFlags, Dir, FileType as HostType, Mode, OFlags, SeekFrom};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("sluice-host-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn abilities(dir: &Path) -> Abilities {
    let file = dir.join("probe");
    std::fs::write(&file, "").unwrap();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(&file, name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    let found = Abilities {
        root: rustix::process::geteuid().is_root(),
        user_xattrs: set("user.probe", b"x"),
        acls: set("system.posix_acl_access", ACL),
    };
    std::fs::remove_file(&file).unwrap();
    for (able, what) in [
        (found.root, "owners, device nodes and trusted. attributes, since this is not root"),
        (found.user_xattrs, "user. attributes, which the temporary directory does not keep"),
        (found.acls, "POSIX ACLs, which the temporary directory does not keep"),
    ] {
        if !able {
            eprintln!("SKIPPED: {what}");
        }
    }
    found
}

/// The tree at `top` on the host, paths from there.
pub(crate) fn on_host(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut first = HashMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        let path = if below.as_os_str().is_empty() { top.to_path_buf() } else { top.join(&below) };
        let stat = rustix::fs::statat(rustix::fs::CWD, &path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let mut node = Node {
            mode: stat.st_mode,
            owner: (stat.st_uid, stat.st_gid),
            atime: Some((stat.st_atime, u32::try_from(stat.st_atime_nsec).unwrap())),
            mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap()),
            rdev: stat.st_rdev,
            contents: Vec::new(),
            extents: Vec::new(),
            same_as: first.entry(stat.st_ino).or_insert_with(|| below.clone()).clone(),
            xattrs: host_xattrs(&path),
        };
        let flags = OFlags::NOATIME | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match HostType::from_raw_mode(stat.st_mode) {
            HostType::RegularFile => {
                let fd = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
                let mut file = std::fs::File::from(fd);
                file.read_to_end(&mut node.contents).unwrap();
                node.extents = extents(|offset| {
                    let start = rustix::fs::seek(&file, SeekFrom::Data(offset)).ok()?;
                    Some((start, rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap()))
                });
            }
            HostType::Directory => {
                let fd = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
                for entry in Dir::read_from(&fd).unwrap() {
                    let entry = entry.unwrap();
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        pending.push(below.join(OsStr::from_bytes(name)));
                    }
                }
            }
            HostType::Symlink => {
                node.atime = None;
                node.contents = std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec();
            }
            _ => {}
        }
        tree.insert(below, node);
    }
    name_first(tree)
}

fn host_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut buf = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut buf).unwrap_or(0);
    let names: Vec<Vec<u8>> =
        buf[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    let mut xattrs = BTreeMap::new();
    for name in names {
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(&name), &mut buf).unwrap();
        // A security module of the host may add labels of its own.
        if !name.starts_with(b"security.") {
            xattrs.insert(name, buf[..len].to_vec());
        }
    }
    xattrs
}
