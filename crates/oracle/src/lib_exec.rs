//! In process: runs steps on [`Fs`] and [`Process`].

use crate::compare::Subject;
use crate::executor::{Executor, User, process_users, tester_caps};
use crate::op::{Op, ProcessOp};
use crate::view::{ListedEntry, LockView, Outcome, Value, View, names};
use crate::word::{LockKind, LockOwner, Target, TimeArg};
use sluice_sync::Arc;
use sluice_vfs::{
    Access, Cred, Errno, FallocateMode, Fd, FileLock, FileType, FlockOperation, Fs, LockType, OpenFlags,
    Options, Process, SetTime, Stat, Superblock, Timestamp, Whence,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Starts file systems in this process.
#[derive(Clone, Copy, Debug)]
pub struct InProcess {
    /// Only the tester himself works on it: see the `host` module.
    pub confined: bool,
}

impl Subject for InProcess {
    fn start(&mut self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(LibRun::new(self.confined)))
    }
}

/// One run in this process.
pub struct LibRun {
    fs: Fs,
    processes: Vec<Process>,
    view: View,
}

impl LibRun {
    /// A fresh file system whose root belongs to the inspector.
    pub fn new(confined: bool) -> LibRun {
        LibRun::on(Superblock::new(options(confined)), confined)
    }

    /// A run on this file system.
    pub fn on(superblock: Arc<Superblock>, confined: bool) -> LibRun {
        let users = process_users(confined);
        let fs = Fs::with_superblock(superblock);
        let cred = |user: &User| {
            let mut cred = Cred::with_groups(user.uid, user.gid, &user.groups);
            if confined {
                cred.caps = tester_caps();
            }
            cred
        };
        let processes = users.iter().map(|user| fs.process(cred(user))).collect();
        LibRun { fs, processes, view: View::default() }
    }

    /// The file system.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Ends every process, so that all files are closed.
    pub fn end_processes(&mut self) {
        self.processes.clear();
    }
}

/// A file system whose root belongs to the inspector.
pub(crate) fn options(confined: bool) -> Options {
    let users = process_users(confined);
    let inspector = &users[users.len() - 1];
    let protected = crate::host::policy("protected_hardlinks");
    Fs::builder().root_owner(inspector.uid, inspector.gid).protected_hardlinks(protected)
}

impl Executor for LibRun {
    fn run(&mut self, step: &ProcessOp) -> Outcome {
        let index = step.process % self.processes.len();
        if let Op::Fork { child } = step.op {
            if index != child && child + 1 < self.processes.len() {
                self.processes[child] = self.processes[index].fork();
            }
            return Ok(Value::Done);
        }
        ProcessAndView { process: &self.processes[index], view: &mut self.view }.run(&step.op)
    }

    fn processes(&self) -> usize {
        self.processes.len()
    }

    fn finish(&mut self) -> Result<(), String> {
        self.end_processes();
        let report = self.fs.check();
        if !report.is_clean() {
            return Err(format!("Fs::check finds: {report}"));
        }
        let live = self.fs.superblock().live_inodes();
        if live == report.inodes {
            return Ok(());
        }
        Err(format!("{live} inodes live after all files are closed, {} have names", report.inodes))
    }
}

struct ProcessAndView<'a> {
    process: &'a Process,
    view: &'a mut View,
}

fn path(bytes: &crate::word::Bytes) -> &Path {
    Path::new(OsStr::from_bytes(&bytes.0))
}

fn fd(fd: crate::word::Fd) -> Fd {
    Fd(fd.0)
}

fn done(result: Result<(), Errno>) -> Outcome {
    result.map(|()| Value::Done)
}

fn number(result: Result<usize, Errno>) -> Outcome {
    result.map(|n| Value::Number(n as i64))
}

fn bytes(result: Result<PathBuf, Errno>) -> Outcome {
    result.map(|path| Value::Bytes(path.into_os_string().as_bytes().to_vec()))
}

fn times(times: [TimeArg; 2]) -> [Option<SetTime>; 2] {
    times.map(|time| match time {
        TimeArg::Now => Some(SetTime::Now),
        TimeArg::Omit => None,
        TimeArg::At(sec, nsec) => Some(SetTime::At(Timestamp { sec, nsec })),
    })
}

fn lock_type(kind: LockKind) -> LockType {
    match kind {
        LockKind::Read => LockType::Read,
        LockKind::Write => LockType::Write,
        LockKind::Unlock => LockType::Unlock,
    }
}

impl ProcessAndView<'_> {
    fn run(&mut self, op: &Op) -> Outcome {
        let p = self.process;
        match op {
            Op::Open { at, path: name, flags, mode } => {
                let opened = p.openat(fd(*at), path(name), *flags, mode.0)?;
                Ok(Value::Number(opened.0.into()))
            }
            Op::Close { fd: file } => done(p.close(fd(*file))),
            Op::Dup { fd: file } => p.dup(fd(*file)).map(|new| Value::Number(new.0.into())),
            Op::Dup2 { fd: file, to } => p.dup2(fd(*file), fd(*to)).map(|new| Value::Number(new.0.into())),
            Op::Read { fd: file, len } => {
                let mut buf = vec![0; *len];
                p.read(fd(*file), &mut buf).map(|n| Value::Bytes(buf[..n].to_vec()))
            }
            Op::Pread { fd: file, len, offset } => {
                let mut buf = vec![0; *len];
                p.pread(fd(*file), &mut buf, *offset).map(|n| Value::Bytes(buf[..n].to_vec()))
            }
            Op::Readv { fd: file, lens, offset } => {
                let mut bufs: Vec<Vec<u8>> = lens.0.iter().map(|len| vec![0; *len]).collect();
                let mut parts: Vec<&mut [u8]> = bufs.iter_mut().map(Vec::as_mut_slice).collect();
                let n = match offset {
                    None => p.readv(fd(*file), &mut parts)?,
                    Some(offset) => p.preadv(fd(*file), &mut parts, *offset)?,
                };
                let mut bytes = bufs.concat();
                bytes.truncate(n);
                Ok(Value::Bytes(bytes))
            }
            Op::Write { fd: file, data } => number(p.write(fd(*file), &data.bytes())),
            Op::Pwrite { fd: file, data, offset } => number(p.pwrite(fd(*file), &data.bytes(), *offset)),
            Op::Writev { fd: file, parts, offset } => {
                let parts: Vec<Vec<u8>> = parts.0.iter().map(|data| data.bytes()).collect();
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                number(match offset {
                    None => p.writev(fd(*file), &parts),
                    Some(offset) => p.pwritev(fd(*file), &parts, *offset),
                })
            }
            Op::Lseek { fd: file, offset, whence } => self.lseek(fd(*file), *offset, *whence),
            Op::Truncate { path: name, len } if p.stat(path(name)).is_ok_and(|st| same_size(&st, *len)) => {
                Ok(Value::Free)
            }
            Op::Truncate { path: name, len } => done(p.truncate(path(name), *len)),
            Op::Ftruncate { fd: file, len } => done(p.ftruncate(fd(*file), *len)),
            Op::Fallocate { fd: file, mode, offset, len } => {
                p.fallocate(fd(*file), *mode, *offset, *len)?;
                if let Ok(stat) = p.fstat(fd(*file))
                    && FallocateMode::KEEP_SIZE.contains(*mode)
                {
                    self.view.reserve(stat.ino);
                }
                Ok(Value::Done)
            }
            Op::Fsync { fd: file, data_only: 0 } => done(p.fsync(fd(*file))),
            Op::Fsync { fd: file, .. } => done(p.fdatasync(fd(*file))),
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (mut from_offset, mut to_offset) = (*from_offset, *to_offset);
                let (from, to) = (fd(*from), fd(*to));
                let copied = p.copy_file_range(from, from_offset.as_mut(), to, to_offset.as_mut(), *len)?;
                if let Ok(stat) = p.fstat(to) {
                    self.view.free_holes(stat.ino);
                }
                Ok(Value::Number(copied as i64))
            }
            _ => self.run_attributes(op),
        }
    }

    fn run_attributes(&mut self, op: &Op) -> Outcome {
        let p = self.process;
        match op {
            Op::Stat { at, path: name, flags } => self.stat(p.fstatat(fd(*at), path(name), *flags)),
            Op::Fstat { fd: file } => self.stat(p.fstat(fd(*file))),
            Op::Statx { at, path: name, flags } => {
                self.stat(p.statx(fd(*at), path(name), *flags).map(|statx| statx.stat))
            }
            Op::Chmod { at, path: name, mode, flags } => {
                done(p.fchmodat(fd(*at), path(name), mode.0, *flags))
            }
            Op::Fchmod { fd: file, mode } => done(p.fchmod(fd(*file), mode.0)),
            Op::Chown { at, path: name, uid, gid, flags } => {
                done(p.fchownat(fd(*at), path(name), *uid, *gid, *flags))
            }
            Op::Fchown { fd: file, uid, gid } => done(p.fchown(fd(*file), *uid, *gid)),
            Op::Utimens { at, path: name, atime, mtime, flags } => {
                done(p.utimensat(fd(*at), path(name), times([*atime, *mtime]), *flags))
            }
            Op::Futimens { fd: file, atime, mtime } => done(p.futimens(fd(*file), times([*atime, *mtime]))),
            Op::Statfs { path: name } => p.statfs(path(name)).map(|st| Value::Number(st.name_max.into())),
            Op::Fstatfs { fd: file } => p.fstatfs(fd(*file)).map(|st| Value::Number(st.name_max.into())),
            Op::Access { at, path: name, mode, flags } => {
                done(p.faccessat(fd(*at), path(name), Access::from_bits_retain(*mode), *flags))
            }
            _ => self.run_names(op),
        }
    }

    fn run_names(&mut self, op: &Op) -> Outcome {
        let p = self.process;
        match op {
            Op::Link { from_at, from, to_at, to, flags } => {
                done(p.linkat(fd(*from_at), path(from), fd(*to_at), path(to), *flags))
            }
            Op::Symlink { to, at, path: name } => done(p.symlinkat(path(to), fd(*at), path(name))),
            Op::Readlink { at, path: name } => bytes(p.readlinkat(fd(*at), path(name))),
            Op::Unlink { at, path: name, flags } => done(p.unlinkat(fd(*at), path(name), *flags)),
            Op::Mkdir { at, path: name, mode } => done(p.mkdirat(fd(*at), path(name), mode.0)),
            Op::Mknod { at, path: name, kind, mode, rdev } => {
                done(p.mknodat(fd(*at), path(name), *kind, mode.0, *rdev))
            }
            Op::Rename { from_at, from, to_at, to, flags } => {
                done(p.renameat2(fd(*from_at), path(from), fd(*to_at), path(to), *flags))
            }
            Op::Readdir { fd: file } => self.read_dir(fd(*file)),
            Op::Umask { mask } => Ok(Value::Number(p.umask(mask.0).into())),
            Op::Chdir { path: name } => done(p.chdir(path(name))),
            Op::Fchdir { fd: file } => done(p.fchdir(fd(*file))),
            Op::Getcwd {} => bytes(p.getcwd()),
            // Forks are the run's business: it holds the processes.
            Op::Fork { .. } => Ok(Value::Done),
            _ => self.run_rest(op),
        }
    }

    fn run_rest(&mut self, op: &Op) -> Outcome {
        let p = self.process;
        match op {
            Op::GetXattr { of, name } => match of {
                Target::File(file) => p.getxattr(path(file), &name.0),
                Target::Link(file) => p.lgetxattr(path(file), &name.0),
                Target::Fd(file) => p.fgetxattr(fd(*file), &name.0),
            }
            .map(Value::Bytes),
            Op::SetXattr { of, name, value, flags } => done(match of {
                Target::File(file) => p.setxattr(path(file), &name.0, &value.0, *flags),
                Target::Link(file) => p.lsetxattr(path(file), &name.0, &value.0, *flags),
                Target::Fd(file) => p.fsetxattr(fd(*file), &name.0, &value.0, *flags),
            }),
            Op::ListXattr { of } => match of {
                Target::File(file) => p.listxattr(path(file)),
                Target::Link(file) => p.llistxattr(path(file)),
                Target::Fd(file) => p.flistxattr(fd(*file)),
            }
            .map(names),
            Op::RemoveXattr { of, name } => done(match of {
                Target::File(file) => p.removexattr(path(file), &name.0),
                Target::Link(file) => p.lremovexattr(path(file), &name.0),
                Target::Fd(file) => p.fremovexattr(fd(*file), &name.0),
            }),
            Op::GetFl { fd: file } => {
                let flags = p.fcntl_getfl(fd(*file))?;
                Ok(Value::Number(flags.difference(OpenFlags::LARGEFILE).bits().into()))
            }
            Op::SetFl { fd: file, flags } => done(p.fcntl_setfl(fd(*file), *flags)),
            Op::SetLock { fd: file, whence: Whence::End, .. }
            | Op::GetLock { fd: file, whence: Whence::End, .. }
                if p.fstat(fd(*file)).is_ok_and(|stat| stat.file_type() == FileType::Directory) =>
            {
                // The size of a directory is free.
                Ok(Value::Free)
            }
            Op::SetLock { fd: file, owner, kind, whence, start, len } => {
                let lock = request(*kind, *whence, *start, *len);
                done(match owner {
                    LockOwner::Posix => p.fcntl_setlk(fd(*file), &lock),
                    LockOwner::Ofd => p.ofd_setlk(fd(*file), &lock),
                })
            }
            Op::GetLock { fd: file, owner, kind, whence, start, len } => {
                let lock = request(*kind, *whence, *start, *len);
                let found = match owner {
                    LockOwner::Posix => p.fcntl_getlk(fd(*file), &lock),
                    LockOwner::Ofd => p.ofd_getlk(fd(*file), &lock),
                };
                found.map(|lock| Value::Lock(answer(&lock)))
            }
            Op::Flock { fd: file, kind } => {
                let operation = match kind {
                    LockKind::Read => FlockOperation::Shared,
                    LockKind::Write => FlockOperation::Exclusive,
                    LockKind::Unlock => FlockOperation::Unlock,
                };
                done(p.flock(fd(*file), operation))
            }
            _ => unreachable!("the other functions handle the rest"),
        }
    }

    fn stat(&mut self, result: Result<Stat, Errno>) -> Outcome {
        result.map(|stat| Value::Stat(self.view.stat(&stat)))
    }

    /// See `Caller::lseek` of the host: what is free there is free here.
    fn lseek(&mut self, file: Fd, offset: i64, whence: Whence) -> Outcome {
        let result = self.process.lseek(file, offset, whence).map(|at| Value::Number(at as i64));
        let Ok(stat) = self.process.fstat(file) else { return result };
        let directory = stat.file_type() == FileType::Directory;
        let holes = stat.file_type() == FileType::Regular
            && matches!(whence, Whence::Data | Whence::Hole)
            && !self.view.compares_holes(stat.ino);
        if !directory && !holes {
            return result;
        }
        let _ = self.process.lseek(file, 0, Whence::Set);
        if directory { result.map(|_| Value::Free) } else { Ok(Value::Free) }
    }

    /// See `Op::Readdir` of the host.
    fn read_dir(&mut self, file: Fd) -> Outcome {
        let p = self.process;
        let rewind = || {
            if p.fstat(file).is_ok_and(|stat| stat.file_type() == FileType::Directory) {
                let _ = p.lseek(file, 0, Whence::Set);
            }
        };
        rewind();
        let mut entries = Vec::new();
        loop {
            // Few at a time, so that going on is tested as well.
            let part = p.getdents(file, 5)?;
            if part.is_empty() {
                break;
            }
            entries.extend(part.iter().map(|entry| ListedEntry {
                name: entry.name.as_bytes().to_vec(),
                ino: entry.ino,
                kind: Some(entry.file_type),
            }));
        }
        rewind();
        Ok(self.view.entries(entries))
    }
}

/// Directory sizes are free, so they are never the same.
fn same_size(stat: &Stat, len: i64) -> bool {
    stat.file_type() != FileType::Directory && stat.size == len as u64
}

fn request(kind: LockKind, whence: Whence, start: i64, len: i64) -> FileLock {
    FileLock { kind: lock_type(kind), whence, start, len, pid: 0 }
}

fn answer(lock: &FileLock) -> Option<LockView> {
    let kind = match lock.kind {
        LockType::Read => LockKind::Read,
        LockType::Write => LockKind::Write,
        LockType::Unlock => return None,
    };
    Some(LockView { kind, start: lock.start, len: lock.len, ofd: lock.pid == -1 })
}
