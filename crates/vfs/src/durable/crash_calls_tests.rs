//! Calls that the crash tests make: workloads of one or two on a small tree, as CrashMonkey's ACE makes them.

use crate::{
    AtFlags, Errno, FallocateMode, Fd, FileType, OpenFlags, Process, RenameFlags, SetTime, Timestamp,
    XattrFlags,
};

pub(super) const USER: &[u8] = b"user.note";
const ACL: &[u8] = b"system.posix_acl_access";

/// A call of a workload. A failed call is no fault: workloads are made without a look at the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Create(&'static str),
    Write(&'static str, u64, usize),
    Append(&'static str, usize),
    Truncate(&'static str, i64),
    Fallocate(&'static str, FallocateMode, i64, i64),
    Reflink(&'static str, &'static str),
    Clone(&'static str, &'static str),
    Unlink(&'static str),
    /// While it is open, and written to afterwards: of a file with one name, so that nobody sees what is written.
    UnlinkOpen(&'static str),
    /// All is synchronised while it is open.
    UnlinkOpenSync(&'static str),
    Mkdir(&'static str),
    Rmdir(&'static str),
    Link(&'static str, &'static str),
    Symlink(&'static str, &'static str),
    Mknod(&'static str),
    Tmpfile(&'static str, &'static str),
    Rename(&'static str, &'static str, RenameFlags),
    Chmod(&'static str, u32),
    Chown(&'static str, u32),
    Times(&'static str),
    SetXattr(&'static str, usize),
    RemoveXattr(&'static str),
    SetAcl(&'static str),
    Sync,
    Fsync(&'static str),
    /// Synchronises after each write.
    WriteSync(&'static str),
    /// Reads all of it.
    Read(&'static str),
}
use Call::*;

/// The target of a link, longer than what else a change puts down.
const LONG: &str = match std::str::from_utf8(&[b't'; 3_000]) {
    Ok(target) => target,
    Err(_) => "",
};
pub(super) const NONE: RenameFlags = RenameFlags::empty();
pub(super) const KEEP: FallocateMode = FallocateMode::KEEP_SIZE;

/// The calls that workloads are made of, on the tree of `begin`.
const CALLS: &[Call] = &[
    Create("/new"),
    Create("/d/new"),
    Write("/f", 0, 10),
    Write("/f", 3_000, 5_000),
    Write("/d/g", 60_000, 20_000),
    Write("/f", 0, 200_000),
    Write("/b", 70_000, 10),
    Write("/b", 80_000, 11),
    Write("/b", 0, 100_000),
    Append("/f", 100),
    Truncate("/f", 0),
    Truncate("/d/g", 70_000),
    Truncate("/f", 500_000),
    Truncate("/b", 0),
    Truncate("/b", 3_000),
    Fallocate("/d/g", FallocateMode::PUNCH_HOLE.union(KEEP), 4_096, 70_000),
    Fallocate("/d/g", FallocateMode::COLLAPSE_RANGE, 0, 65_536),
    Fallocate("/d/g", FallocateMode::INSERT_RANGE, 4_096, 65_536),
    Fallocate("/f", FallocateMode::ZERO_RANGE, 10, 50_000),
    Fallocate("/f", FallocateMode::empty(), 8_000, 100_000),
    Fallocate("/b", KEEP, 90_000, 200_000),
    Reflink("/d/g", "/f"),
    Clone("/d", "/e/c"),
    Clone("/b", "/c"),
    Unlink("/f"),
    Unlink("/b"),
    UnlinkOpen("/f"),
    UnlinkOpen("/b"),
    Mkdir("/d/n"),
    Rmdir("/e"),
    Link("/f", "/d/l"),
    Symlink("target", "/d/s"),
    Mknod("/d/p"),
    Link("/s", "/d/s2"),
    Rename("/s", "/d/s", NONE),
    Rename("/s", "/s2", RenameFlags::EXCHANGE),
    Unlink("/s"),
    Tmpfile("/d", "/d/t"),
    Rename("/f", "/d/f", NONE),
    Rename("/f", "/d/g", NONE),
    Rename("/f", "/b", NONE),
    Rename("/d/g", "/new", NONE),
    Rename("/f", "/d/g", RenameFlags::EXCHANGE),
    Rename("/f", "/moved", RenameFlags::WHITEOUT),
    Rename("/d", "/e", NONE),
    Rename("/e", "/d/e", NONE),
    Rename("/e", "/d", RenameFlags::EXCHANGE),
    Chmod("/f", 0o4711),
    Chown("/d", 7),
    Times("/f"),
    SetXattr("/f", 65_536),
    SetXattr("/d", 5),
    RemoveXattr("/d/g"),
    SetAcl("/f"),
    WriteSync("/f"),
    Read("/b"),
];

/// The tree that workloads begin with.
pub(super) const BEGIN: &[Call] = &[
    Mkdir("/d"),
    Mkdir("/e"),
    Create("/f"),
    Write("/f", 0, 100),
    Create("/d/g"),
    Write("/d/g", 0, 150_000),
    Create("/b"),
    Write("/b", 0, 100_000),
    SetXattr("/d/g", 3),
    Link("/d/g", "/hard"),
    Symlink(LONG, "/s"),
    Symlink(LONG, "/s2"),
];

fn bytes(len: usize, from: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8 + 1).collect()
}

impl Call {
    pub(super) fn run(self, process: &Process) -> Result<(), Errno> {
        let open = |path: &str, how| process.open(path, how, 0o666);
        let with = |path: &str, how, act: &dyn Fn(Fd) -> Result<(), Errno>| {
            let fd = open(path, how)?;
            let done = act(fd);
            process.close(fd)?;
            done
        };
        let (write, append) = (OpenFlags::WRONLY, OpenFlags::WRONLY | OpenFlags::APPEND);
        match self {
            Create(path) => with(path, write | OpenFlags::CREAT | OpenFlags::EXCL, &|_| Ok(())),
            Write(path, at, len) => with(path, write, &|fd| {
                process.pwrite(fd, &bytes(len, at as usize + len), at as i64).map(drop)
            }),
            Append(path, len) => with(path, append, &|fd| process.write(fd, &bytes(len, 7)).map(drop)),
            Truncate(path, size) => process.truncate(path, size),
            Fallocate(path, mode, at, len) => with(path, write, &|fd| process.fallocate(fd, mode, at, len)),
            Reflink(from, to) => with(from, OpenFlags::RDONLY, &|source| {
                with(to, write, &|target| {
                    process.copy_file_range(source, None, target, None, 1 << 20).map(drop)
                })
            }),
            Clone(from, to) => process.clone_tree(from, to),
            Unlink(path) => process.unlink(path),
            UnlinkOpen(path) => with(path, OpenFlags::RDWR, &|fd| {
                process.unlink(path)?;
                process.write(fd, b"nobody will read this").map(drop)
            }),
            UnlinkOpenSync(path) => with(path, OpenFlags::RDWR, &|_| {
                process.unlink(path)?;
                process.fs().sync()
            }),
            Mkdir(path) => process.mkdir(path, 0o755),
            Rmdir(path) => process.rmdir(path),
            Link(old, new) => process.link(old, new),
            Symlink(target, path) => process.symlink(target, path),
            Mknod(path) => process.mknod(path, FileType::CharDevice, 0o600, 0x103),
            Tmpfile(dir, name) => with(dir, OpenFlags::TMPFILE | OpenFlags::RDWR, &|fd| {
                process.write(fd, &bytes(5_000, 0))?;
                process.fsetxattr(fd, USER, b"unnamed", XattrFlags::empty())?;
                process.linkat(fd, "", Fd::CWD, name, AtFlags::EMPTY_PATH)
            }),
            Rename(old, new, flags) => process.renameat2(Fd::CWD, old, Fd::CWD, new, flags),
            Chmod(path, mode) => process.chmod(path, mode),
            Chown(path, uid) => process.chown(path, Some(uid), None),
            Times(path) => {
                let at = |sec| SetTime::At(Timestamp { sec, nsec: 5 });
                process.utimens(path, [Some(at(1)), Some(at(2))])
            }
            SetXattr(path, len) => process.setxattr(path, USER, &bytes(len, 1), XattrFlags::empty()),
            RemoveXattr(path) => process.removexattr(path, USER),
            SetAcl(path) => process.setxattr(path, ACL, &acl(), XattrFlags::empty()),
            Sync => process.fs().sync(),
            Fsync(path) => with(path, OpenFlags::RDONLY, &|fd| process.fsync(fd)),
            Read(path) => process.fs().read(path).map(drop),
            WriteSync(path) => {
                with(path, write | OpenFlags::SYNC, &|fd| process.write(fd, &bytes(50, 90)).map(drop))
            }
        }
    }

    /// Whether all that was done before it is durable when it returns.
    pub(super) fn synchronises(self) -> bool {
        matches!(self, Sync | Fsync(_) | WriteSync(_) | UnlinkOpenSync(_))
    }
}

/// An access control list with a named user.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Every workload of one call and, of those of two, each `stride`-th, from `first` on.
pub(super) fn workloads(first: usize, stride: usize) -> impl Iterator<Item = Vec<Call>> {
    let one = CALLS.iter().map(|call| vec![*call, Sync]);
    let pairs = CALLS.iter().flat_map(|first| CALLS.iter().map(move |second| [*first, *second]));
    let two =
        pairs.enumerate().filter(move |(n, _)| n % stride == first).map(|(n, [first, second])| match n % 4 {
            0 => vec![first, second, Sync],
            1 => vec![first, Sync, second, Sync],
            2 => vec![first, second],
            _ => vec![first, Fsync("/f"), second, Fsync("/d")],
        });
    one.chain(two)
}
