//! Generate: sequences of operations that follow from a seed.
//!
//! # Theory
//! Names, descriptors, sizes and users come from small pools (see the `pool` module), so that operations
//! collide: a name is created, linked, renamed over and removed by different users within a few steps. No
//! model of the file system guides the choice; calls that fail are as welcome as calls that succeed, and a
//! sequence stays valid when the shrinker takes steps away.

use crate::op::{Op, ProcessOp};
use crate::pool::{Limits, Pool};
use crate::word::{Bytes, CWD, Fd, List, Mode, Target, TimeArg};
use sluice_sync::random::Random;
use sluice_vfs::{AtFlags, OpenFlags};

type Make = fn(&mut Pool) -> Op;

/// Every operation with its weight.
const MENU: &[(usize, Make)] = &[
    (75, open),
    (16, |p| Op::Close { fd: p.fd() }),
    (5, |p| Op::Dup { fd: p.fd() }),
    (4, |p| Op::Dup2 { fd: p.fd(), to: p.fd() }),
    (20, |p| Op::Read { fd: p.fd(), len: p.read_length() }),
    (20, |p| Op::Pread { fd: p.fd(), len: p.read_length(), offset: p.offset() }),
    (8, |p| Op::Readv { fd: p.fd(), lens: List(lengths(p)), offset: some_offset(p) }),
    (30, |p| Op::Write { fd: p.fd(), data: p.data() }),
    (30, |p| Op::Pwrite { fd: p.fd(), data: p.data(), offset: p.offset() }),
    (8, |p| Op::Writev { fd: p.fd(), parts: List(parts(p)), offset: some_offset(p) }),
    (40, |p| Op::Lseek { fd: p.fd(), offset: p.offset(), whence: p.whence() }),
    (15, |p| Op::Truncate { path: p.file_path(), len: p.size() }),
    (20, |p| Op::Ftruncate { fd: p.fd(), len: p.size() }),
    (25, |p| Op::Fallocate {
        fd: p.fd(),
        mode: p.fallocate_mode(),
        offset: p.offset(),
        len: p.reserve_len(),
    }),
    (4, |p| Op::Fsync { fd: p.fd(), data_only: p.random.below(2) as u32 }),
    (12, copy_range),
    (45, |p| stat(p, true)),
    (25, |p| Op::Fstat { fd: p.fd() }),
    (10, |p| stat(p, false)),
    (25, chmod),
    (12, |p| Op::Fchmod { fd: p.fd(), mode: p.mode() }),
    (25, chown),
    (10, |p| Op::Fchown { fd: p.fd(), uid: p.uid(), gid: p.gid() }),
    (25, utimens),
    (12, |p| Op::Futimens { fd: p.fd(), atime: p.time(), mtime: p.time() }),
    (2, |p| Op::Statfs { path: p.path() }),
    (2, |p| Op::Fstatfs { fd: p.fd() }),
    (20, access),
    (35, link),
    (25, symlink),
    (15, |p| Op::Readlink { at: p.at(), path: p.file_path() }),
    (25, unlink),
    (40, |p| Op::Mkdir { at: p.at(), path: p.new_path(), mode: p.mode() }),
    (15, mknod),
    (50, |p| Op::Rename {
        from_at: p.at(),
        from: p.path(),
        to_at: p.at(),
        to: p.path(),
        flags: p.rename_flags(),
    }),
    (20, |p| Op::Readdir { fd: if p.random.chance(60) { Fd(0) } else { p.fd() } }),
    (6, |p| Op::Umask { mask: Mode([0, 0o022, 0o077, 0o027, 0o777, 0o7000][p.random.below(6)]) }),
    (8, |p| Op::Chdir { path: p.directory() }),
    (5, |p| Op::Fchdir { fd: p.fd() }),
    (6, |_| Op::Getcwd {}),
    (4, |p| Op::Fork { child: p.random.below(p.processes()) }),
    (20, |p| Op::GetXattr { of: p.target(), name: p.xattr_name() }),
    (30, |p| Op::SetXattr {
        of: p.target(),
        name: p.xattr_name(),
        value: p.xattr_value(),
        flags: p.xattr_flags(),
    }),
    (25, set_acl),
    (10, |p| Op::ListXattr { of: p.target() }),
    (10, |p| Op::RemoveXattr { of: p.target(), name: p.xattr_name() }),
    (6, |p| Op::GetFl { fd: p.fd() }),
    (6, set_fl),
    (40, |p| Op::SetLock {
        fd: p.fd(),
        owner: p.lock_owner(),
        kind: p.lock_kind(),
        whence: p.lock_whence(),
        start: p.small_offset(),
        len: p.small_offset(),
    }),
    (15, |p| Op::GetLock {
        fd: p.fd(),
        owner: p.lock_owner(),
        kind: p.lock_kind(),
        whence: p.lock_whence(),
        start: p.small_offset(),
        len: p.small_offset(),
    }),
    (15, |p| Op::Flock { fd: p.fd(), kind: p.lock_kind() }),
];

fn open(p: &mut Pool) -> Op {
    let flags = p.open_flags();
    let path = if flags.contains(OpenFlags::DIRECTORY) { p.directory() } else { p.path() };
    Op::Open { at: p.at(), path, flags, mode: p.mode() }
}

fn lengths(p: &mut Pool) -> Vec<usize> {
    (0..p.random.below(4)).map(|_| p.length()).collect()
}

fn parts(p: &mut Pool) -> Vec<crate::word::Data> {
    (0..p.random.below(4)).map(|_| p.data()).collect()
}

fn some_offset(p: &mut Pool) -> Option<i64> {
    p.random.chance(50).then(|| p.offset())
}

fn copy_range(p: &mut Pool) -> Op {
    // Short: the host's tmpfs fills the holes that it copies.
    let (from, to, len) = (p.fd(), p.fd(), p.length());
    Op::CopyRange { from, from_offset: some_offset(p), to, to_offset: some_offset(p), len }
}

const FOLLOW_OR_NOT: [AtFlags; 2] = [AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW];

fn stat(p: &mut Pool, plain: bool) -> Op {
    let flags = p.at_flags(&FOLLOW_OR_NOT);
    let (at, path) = (p.at(), p.path_for(flags));
    if plain { Op::Stat { at, path, flags } } else { Op::Statx { at, path, flags } }
}

fn chmod(p: &mut Pool) -> Op {
    let flags = p.at_flags(&[AtFlags::empty(), AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW]);
    Op::Chmod { at: p.at(), path: p.path_for(flags), mode: p.mode(), flags }
}

fn chown(p: &mut Pool) -> Op {
    let flags = p.at_flags(&FOLLOW_OR_NOT);
    Op::Chown { at: p.at(), path: p.path_for(flags), uid: p.uid(), gid: p.gid(), flags }
}

fn utimens(p: &mut Pool) -> Op {
    let flags = p.at_flags(&FOLLOW_OR_NOT);
    Op::Utimens { at: p.at(), path: p.path_for(flags), atime: p.time(), mtime: p.time(), flags }
}

fn access(p: &mut Pool) -> Op {
    let flags =
        p.at_flags(&[AtFlags::empty(), AtFlags::empty(), AtFlags::EACCESS, AtFlags::SYMLINK_NOFOLLOW]);
    let mode = if p.random.chance(3) { 8 } else { p.random.below(8) as u32 };
    Op::Access { at: p.at(), path: p.path_for(flags), mode, flags }
}

fn link(p: &mut Pool) -> Op {
    let flags = p.at_flags(&[AtFlags::empty(), AtFlags::empty(), AtFlags::SYMLINK_FOLLOW]);
    let from = if flags.contains(AtFlags::EMPTY_PATH) { p.path_for(flags) } else { p.file_path() };
    Op::Link { from_at: p.at(), from, to_at: p.at(), to: p.new_path(), flags }
}

fn symlink(p: &mut Pool) -> Op {
    let to = match p.random.below(50) {
        0 => Bytes(vec![b't'; 4095]),
        1..25 => p.file_path(),
        _ => p.path(),
    };
    Op::Symlink { to, at: p.at(), path: p.new_path() }
}

fn unlink(p: &mut Pool) -> Op {
    let flags = p.at_flags(&[AtFlags::empty(), AtFlags::empty(), AtFlags::REMOVEDIR]);
    Op::Unlink { at: p.at(), path: p.path(), flags }
}

fn mknod(p: &mut Pool) -> Op {
    let (kind, rdev) = p.special_kind();
    Op::Mknod { at: p.at(), path: p.new_path(), kind, mode: Mode(p.mode().0 & 0o7777), rdev }
}

fn set_acl(p: &mut Pool) -> Op {
    let name = if p.random.chance(50) { "system.posix_acl_access" } else { "system.posix_acl_default" };
    let name = Bytes(name.as_bytes().to_vec());
    Op::SetXattr { of: p.target(), name, value: p.acl(), flags: p.xattr_flags() }
}

fn set_fl(p: &mut Pool) -> Op {
    let mut flags = p.open_flags();
    if p.random.chance(50) {
        flags |= OpenFlags::APPEND;
    }
    Op::SetFl { fd: p.fd(), flags }
}

/// The sequence of about `length` steps that follows from `seed`.
pub fn sequence(seed: u64, length: usize, limits: Limits) -> Vec<ProcessOp> {
    let mut pool = Pool::new(Random::new(seed), limits);
    let mut steps = prelude(&mut pool);
    // A run of steps by one process on one file finds more than the same steps far apart.
    let mut process = 0;
    let mut focus: Option<Bytes> = None;
    while steps.len() < length {
        if pool.random.chance(30) {
            // The superuser, the first, gets farther than the others.
            process = if pool.random.chance(30) { 0 } else { pool.random.below(limits.processes) };
        }
        if pool.random.chance(15) {
            focus = pool.random.chance(70).then(|| pool.path());
        }
        let mut point = pool.random.below(MENU.iter().map(|(weight, _)| weight).sum::<usize>());
        let (_, make) = (MENU.iter())
            .find(|(weight, _)| match point.checked_sub(*weight) {
                Some(rest) => {
                    point = rest;
                    false
                }
                None => true,
            })
            .expect("the point lies below the sum of the weights");
        let mut op = make(&mut pool);
        if let Some(path) = focus.as_ref().filter(|_| pool.random.chance(40)) {
            aim(&mut op, path);
        }
        steps.push(ProcessOp { process, op });
    }
    steps
}

/// Makes the operation act on `path`, when it takes one path.
fn aim(op: &mut Op, focus: &Bytes) {
    match op {
        Op::Open { at, path, .. }
        | Op::Stat { at, path, .. }
        | Op::Chmod { at, path, .. }
        | Op::Chown { at, path, .. }
        | Op::Utimens { at, path, .. }
        | Op::Access { at, path, .. }
            if at.0 == CWD =>
        {
            *path = focus.clone();
        }
        Op::Truncate { path, .. } => *path = focus.clone(),
        Op::SetXattr { of: Target::File(path), .. }
        | Op::GetXattr { of: Target::File(path), .. }
        | Op::RemoveXattr { of: Target::File(path), .. }
        | Op::ListXattr { of: Target::File(path) } => *path = focus.clone(),
        _ => {}
    }
}

/// A tree to start from, so that the first steps find something.
fn prelude(p: &mut Pool) -> Vec<ProcessOp> {
    let cwd = Fd(CWD);
    let path = |text: &str| Bytes(text.as_bytes().to_vec());
    let mut steps = vec![Op::Chmod { at: cwd, path: path("."), mode: Mode(0o777), flags: AtFlags::empty() }];
    for name in ["a", "b", "a/b"] {
        steps.push(Op::Mkdir { at: cwd, path: path(name), mode: Mode(0o755) });
    }
    for name in ["c", "d", "a/c"] {
        let flags = OpenFlags::CREAT | OpenFlags::RDWR;
        steps.push(Op::Open { at: cwd, path: path(name), flags, mode: Mode(0o666) });
        steps.push(Op::Write { fd: Fd(0), data: p.data() });
        steps.push(Op::Close { fd: Fd(0) });
        steps.push(Op::Chmod { at: cwd, path: path(name), mode: Mode(0o666), flags: AtFlags::empty() });
    }
    let mut steps: Vec<ProcessOp> = steps.into_iter().map(|op| ProcessOp { process: 0, op }).collect();
    // Everybody starts with a directory, two files and an unnamed one open.
    for process in 0..p.processes() {
        for (name, flags) in [
            (".", OpenFlags::DIRECTORY),
            ("c", OpenFlags::RDWR),
            ("d", OpenFlags::RDWR),
            (".", OpenFlags::TMPFILE | OpenFlags::RDWR),
        ] {
            let op = Op::Open { at: cwd, path: path(name), flags, mode: p.mode() };
            steps.push(ProcessOp { process, op });
        }
    }
    let old = TimeArg::At(1_000_000_000, 0);
    for name in ["a", "b", "a/b", "c", "d"] {
        let (path, flags) = (path(name), AtFlags::empty());
        for op in [
            Op::Chmod { at: cwd, path: path.clone(), mode: p.mode(), flags },
            Op::Chown { at: cwd, path: path.clone(), uid: p.uid(), gid: p.gid(), flags },
            Op::Utimens { at: cwd, path, atime: old, mtime: old, flags },
        ] {
            steps.push(ProcessOp { process: 0, op });
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{from_text, to_text};

    #[test]
    fn a_seed_always_gives_the_same_sequence_and_its_text_gives_it_back() {
        let limits = Limits { processes: 4, ..Limits::default() };
        let steps = sequence(42, 3000, limits);
        assert_eq!(steps, sequence(42, 3000, limits));
        assert_ne!(steps, sequence(43, 3000, limits));
        assert_eq!(from_text(&to_text(&steps)), Ok(steps));
    }

    #[test]
    fn a_confined_sequence_never_leaves_its_directory() {
        let limits = Limits { confined: true, no_sticky: true, processes: 1 };
        let text = to_text(&sequence(1, 20_000, limits));
        for leaves in ["\"/", "\"..\"", "\"../", "/../", "/..\""] {
            assert!(!text.contains(leaves), "{leaves}");
        }
    }
}
