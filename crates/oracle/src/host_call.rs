//! Host calls: one operation as system calls of the calling thread.

use crate::op::Op;
use crate::sys::{self, Of};
use crate::view::{LockView, Outcome, Value, View, names};
use crate::word::{Bytes, CWD, Fd, LockKind, LockOwner, Target, TimeArg};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::{Errno, FallocateMode, FileType, OpenFlags, Stat, Whence};
use std::path::PathBuf;

/// Makes calls on behalf of the thread it lives in.
#[derive(Clone)]
pub(crate) struct Caller {
    view: Arc<Mutex<View>>,
    /// Where a confined run lives: cut off from what `getcwd` says. *immutable*
    prefix: Option<PathBuf>,
}

/// Lock requests with the whence of `SEEK_DATA` and `SEEK_HOLE` are as wrong as any number that is no whence.
fn whence_number(whence: Whence) -> i32 {
    match whence {
        Whence::Set => libc::SEEK_SET,
        Whence::Cur => libc::SEEK_CUR,
        Whence::End => libc::SEEK_END,
        Whence::Data => libc::SEEK_DATA,
        Whence::Hole => libc::SEEK_HOLE,
    }
}

fn number(result: sys::Result<usize>) -> Outcome {
    result.map(|n| Value::Number(n as i64))
}

fn done(result: sys::Result<usize>) -> Outcome {
    result.map(|_| Value::Done)
}

fn of(target: &Target) -> Of<'_> {
    match target {
        Target::File(Bytes(path)) => Of::Path(path),
        Target::Link(Bytes(path)) => Of::Link(path),
        Target::Fd(Fd(fd)) => Of::Fd(*fd),
    }
}

fn times(times: [TimeArg; 2]) -> [(i64, i64); 2] {
    times.map(|time| match time {
        TimeArg::Now => (0, libc::UTIME_NOW),
        TimeArg::Omit => (0, libc::UTIME_OMIT),
        TimeArg::At(sec, nsec) => (sec, i64::from(nsec)),
    })
}

const UNCHANGED: u32 = u32::MAX;

impl Caller {
    pub(crate) fn new(view: Arc<Mutex<View>>, prefix: Option<PathBuf>) -> Caller {
        Caller { view, prefix }
    }

    pub(crate) fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open { at, path, flags, mode } => self.open(at.0, &path.0, *flags, mode.0),
            Op::Close { fd } => done(sys::close(fd.0)),
            Op::Dup { fd } => number(sys::dup(fd.0)),
            Op::Dup2 { fd, to } => number(sys::dup2(fd.0, to.0)),
            Op::Read { fd, len } => {
                let mut buf = vec![0; *len];
                sys::read(fd.0, &mut buf).map(|n| Value::Bytes(buf[..n].to_vec()))
            }
            Op::Pread { fd, len, offset } => {
                let mut buf = vec![0; *len];
                sys::pread(fd.0, &mut buf, *offset).map(|n| Value::Bytes(buf[..n].to_vec()))
            }
            Op::Readv { fd, lens, offset } => {
                let mut bufs: Vec<Vec<u8>> = lens.0.iter().map(|len| vec![0; *len]).collect();
                let mut parts: Vec<&mut [u8]> = bufs.iter_mut().map(Vec::as_mut_slice).collect();
                let n = sys::readv(fd.0, &mut parts, *offset)?;
                let mut bytes = bufs.concat();
                bytes.truncate(n);
                Ok(Value::Bytes(bytes))
            }
            Op::Write { fd, data } => number(sys::write(fd.0, &data.bytes())),
            Op::Pwrite { fd, data, offset } => number(sys::pwrite(fd.0, &data.bytes(), *offset)),
            Op::Writev { fd, parts, offset } => {
                let parts: Vec<Vec<u8>> = parts.0.iter().map(|data| data.bytes()).collect();
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                number(sys::writev(fd.0, &parts, *offset))
            }
            Op::Lseek { fd, offset, whence } => self.lseek(fd.0, *offset, *whence),
            // Whether the times of a file move that has that size already is free.
            Op::Truncate { path, len }
                if sys::fstatat(libc::AT_FDCWD, &path.0, 0).is_ok_and(|st| same_size(&st, *len)) =>
            {
                Ok(Value::Free)
            }
            Op::Truncate { path, len } => done(sys::truncate(&path.0, *len)),
            Op::Ftruncate { fd, len } => done(sys::ftruncate(fd.0, *len)),
            Op::Fallocate { fd, mode, offset, len } => {
                sys::fallocate(fd.0, mode.bits(), *offset, *len)?;
                if let Ok(stat) = sys::fstat(fd.0)
                    && FallocateMode::KEEP_SIZE.contains(*mode)
                {
                    self.view.lock().reserve(stat.ino);
                }
                Ok(Value::Done)
            }
            Op::Fsync { fd, data_only } => done(sys::fsync(fd.0, *data_only != 0)),
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                self.copy_range(from.0, *from_offset, to.0, *to_offset, *len)
            }
            Op::Stat { at, path, flags } => self.stat(sys::fstatat(at.0, &path.0, flags.bits())),
            Op::Fstat { fd } => self.stat(sys::fstat(fd.0)),
            Op::Statx { at, path, flags } => self.stat(sys::statx(at.0, &path.0, flags.bits())),
            Op::Chmod { at, path, mode, flags } => done(sys::fchmodat(at.0, &path.0, mode.0, flags.bits())),
            Op::Fchmod { fd, mode } => done(sys::fchmod(fd.0, mode.0)),
            Op::Chown { at, path, uid, gid, flags } => {
                let (uid, gid) = (uid.unwrap_or(UNCHANGED), gid.unwrap_or(UNCHANGED));
                done(sys::fchownat(at.0, &path.0, uid, gid, flags.bits()))
            }
            Op::Fchown { fd, uid, gid } => {
                done(sys::fchown(fd.0, uid.unwrap_or(UNCHANGED), gid.unwrap_or(UNCHANGED)))
            }
            Op::Utimens { at, path, atime, mtime, flags } => {
                done(sys::utimensat(at.0, Some(&path.0), times([*atime, *mtime]), flags.bits()))
            }
            // To the system call the working directory without a name is a bad address; `futimens` checks first.
            Op::Futimens { fd: Fd(CWD), atime, mtime }
                if (atime, mtime) != (&TimeArg::Omit, &TimeArg::Omit) =>
            {
                Err(Errno::EBADF)
            }
            Op::Futimens { fd, atime, mtime } => done(sys::utimensat(fd.0, None, times([*atime, *mtime]), 0)),
            Op::Statfs { path } => sys::statfs(&path.0).map(|(longest, _)| Value::Number(longest.into())),
            Op::Fstatfs { fd } => sys::fstatfs(fd.0).map(|(longest, _)| Value::Number(longest.into())),
            Op::Access { at, path, mode, flags } => done(sys::faccessat(at.0, &path.0, *mode, flags.bits())),
            _ => self.run_names(op),
        }
    }

    fn run_names(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Link { from_at, from, to_at, to, flags } => {
                done(sys::linkat((from_at.0, &from.0), (to_at.0, &to.0), flags.bits()))
            }
            Op::Symlink { to, at, path } => done(sys::symlinkat(&to.0, at.0, &path.0)),
            Op::Readlink { at, path } => sys::readlinkat(at.0, &path.0).map(Value::Bytes),
            Op::Unlink { at, path, flags } => done(sys::unlinkat(at.0, &path.0, flags.bits())),
            Op::Mkdir { at, path, mode } => done(sys::mkdirat(at.0, &path.0, mode.0)),
            Op::Mknod { at, path, kind, mode, rdev } => {
                done(sys::mknodat(at.0, &path.0, kind.mode_bits() | mode.0, *rdev))
            }
            Op::Rename { from_at, from, to_at, to, flags } => {
                done(sys::renameat2((from_at.0, &from.0), (to_at.0, &to.0), flags.bits()))
            }
            Op::Readdir { fd } => {
                // Rewinding a file would change its position, which a failing getdents does not.
                let rewind = || {
                    if sys::fstat(fd.0).is_ok_and(|stat| stat.file_type() == FileType::Directory) {
                        let _ = sys::lseek(fd.0, 0, libc::SEEK_SET);
                    }
                };
                rewind();
                let entries = sys::getdents(fd.0);
                // The position's number is unspecified, and locks can start there.
                rewind();
                entries.map(|entries| self.view.lock().entries(entries))
            }
            Op::Umask { mask } => number(sys::umask(mask.0)),
            Op::Chdir { path } => done(sys::chdir(&path.0)),
            Op::Fchdir { fd } => done(sys::fchdir(fd.0)),
            Op::Getcwd {} => self.getcwd(),
            // Forks are the run's business: it holds the processes.
            Op::Fork { .. } => Ok(Value::Done),
            Op::GetXattr { of: target, name } => sys::getxattr(of(target), &name.0).map(Value::Bytes),
            Op::SetXattr { of: target, name, value, flags } => {
                done(sys::setxattr(of(target), &name.0, &value.0, flags.bits()))
            }
            Op::ListXattr { of: target } => sys::listxattr(of(target)).map(names),
            Op::RemoveXattr { of: target, name } => done(sys::removexattr(of(target), &name.0)),
            Op::GetFl { fd } => {
                let flags = sys::fcntl(fd.0, libc::F_GETFL, 0)?;
                // A 64-bit kernel sets this one by itself.
                Ok(Value::Number((flags as u32 & !OpenFlags::LARGEFILE.bits()).into()))
            }
            Op::SetFl { fd, flags } => done(sys::fcntl(fd.0, libc::F_SETFL, flags.bits())),
            Op::SetLock { fd, whence: Whence::End, .. } | Op::GetLock { fd, whence: Whence::End, .. }
                if sys::fstat(fd.0).is_ok_and(|stat| stat.file_type() == FileType::Directory) =>
            {
                // The size of a directory is free.
                Ok(Value::Free)
            }
            Op::SetLock { fd, owner, kind, whence, start, len } => {
                let command = if *owner == LockOwner::Posix { libc::F_SETLK } else { libc::F_OFD_SETLK };
                done(sys::fcntl_lock(fd.0, command, &mut request(*kind, *whence, *start, *len)))
            }
            Op::GetLock { fd, owner, kind, whence, start, len } => {
                let command = if *owner == LockOwner::Posix { libc::F_GETLK } else { libc::F_OFD_GETLK };
                let mut lock = request(*kind, *whence, *start, *len);
                sys::fcntl_lock(fd.0, command, &mut lock).map(|_| Value::Lock(answer(&lock)))
            }
            Op::Flock { fd, kind } => {
                let operation = match kind {
                    LockKind::Read => libc::LOCK_SH,
                    LockKind::Write => libc::LOCK_EX,
                    LockKind::Unlock => libc::LOCK_UN,
                };
                done(sys::flock(fd.0, operation | libc::LOCK_NB))
            }
            _ => unreachable!("`run` handles the rest"),
        }
    }

    /// Opens without ever waiting for the other end of a pipe. The behaviour of pipes and devices is not the
    /// file system's: getting as far as them counts as ENXIO.
    fn open(&mut self, at: i32, path: &[u8], flags: OpenFlags, mode: u32) -> Outcome {
        let asked = flags.bits();
        let wait = libc::O_NONBLOCK as u32;
        let fd = match sys::openat(at, path, asked | wait, mode) {
            Err(error) => return Err(without_driver(error, at, path, asked)),
            Ok(fd) => fd,
        };
        let kind = sys::fstat(fd).map(|stat| stat.file_type())?;
        let opened = !flags.contains(OpenFlags::PATH);
        if opened && matches!(kind, FileType::Fifo | FileType::CharDevice | FileType::BlockDevice) {
            let _ = sys::close(fd);
            return Err(Errno::ENXIO);
        }
        if opened && asked & wait == 0 {
            let now = sys::fcntl(fd, libc::F_GETFL, 0)? as u32;
            sys::fcntl(fd, libc::F_SETFL, now & !wait)?;
        }
        Ok(Value::Number(fd.into()))
    }

    /// Positions in directories, and holes of files that were filled by `copy_file_range`, are free. Where the
    /// result is free the position is set to 0 afterwards, so that the runs go on alike.
    fn lseek(&mut self, fd: i32, offset: i64, whence: Whence) -> Outcome {
        let result = sys::lseek(fd, offset, whence_number(whence));
        let Ok(stat) = sys::fstat(fd) else { return number(result) };
        let free = match stat.file_type() {
            FileType::Directory => true,
            FileType::Regular if matches!(whence, Whence::Data | Whence::Hole) => {
                !self.view.lock().compares_holes(stat.ino)
            }
            _ => false,
        };
        if !free {
            return number(result);
        }
        // Whether there is any data after the offset is free as well.
        let errors_compare = stat.file_type() == FileType::Directory;
        let _ = sys::lseek(fd, 0, libc::SEEK_SET);
        if errors_compare { result.map(|_| Value::Free) } else { Ok(Value::Free) }
    }

    fn copy_range(
        &mut self,
        from: i32,
        mut from_offset: Option<i64>,
        to: i32,
        mut to_offset: Option<i64>,
        len: usize,
    ) -> Outcome {
        let copied = sys::copy_file_range(from, from_offset.as_mut(), to, to_offset.as_mut(), len)?;
        if let Ok(stat) = sys::fstat(to) {
            self.view.lock().free_holes(stat.ino);
        }
        Ok(Value::Number(copied as i64))
    }

    fn stat(&mut self, result: sys::Result<Stat>) -> Outcome {
        result.map(|stat| Value::Stat(self.view.lock().stat(&stat)))
    }

    fn getcwd(&self) -> Outcome {
        let path = sys::getcwd()?;
        let inside = match &self.prefix {
            None => path,
            Some(prefix) => {
                let prefix = prefix.as_os_str().as_encoded_bytes();
                match path.strip_prefix(prefix) {
                    Some(b"") => b"/".to_vec(),
                    Some(rest) => rest.to_vec(),
                    None => path,
                }
            }
        };
        Ok(Value::Bytes(inside))
    }
}

/// Directory sizes are free, so they are never the same.
fn same_size(stat: &Stat, len: i64) -> bool {
    stat.file_type() != FileType::Directory && stat.size == len as u64
}

/// The error that `error` would be without policies and drivers. In a sticky directory that all may write to, Linux
/// refuses `O_CREAT` on others' files that are not regular, whatever their permissions; and a pipe's driver refuses the
/// access mode 3 and `O_DIRECT`.
fn without_driver(error: Errno, at: i32, path: &[u8], flags: u32) -> Errno {
    let flags = OpenFlags::from_bits_retain(flags);
    let odd_for_pipes = flags.bits() & 3 == 3 || flags.contains(OpenFlags::DIRECT);
    let policy = error == Errno::EACCES && flags.contains(OpenFlags::CREAT);
    let driver = error == Errno::EINVAL && !flags.intersects(OpenFlags::TMPFILE) && odd_for_pipes;
    // No look at the file otherwise: following a link sets its access time.
    if !policy && !driver {
        return error;
    }
    let follow = if flags.contains(OpenFlags::NOFOLLOW) { libc::AT_SYMLINK_NOFOLLOW as u32 } else { 0 };
    let Ok(stat) = sys::fstatat(at, path, follow) else { return error };
    let permitted = || {
        let truncates = if flags.contains(OpenFlags::TRUNC) { libc::W_OK } else { 0 };
        let mode = match flags.bits() & 3 {
            0 => libc::R_OK,
            1 => libc::W_OK,
            _ => libc::R_OK | libc::W_OK,
        };
        sys::faccessat(at, path, (mode | truncates) as u32, libc::AT_EACCESS as u32).is_ok()
    };
    match stat.file_type() {
        FileType::Symlink if policy => Errno::ELOOP,
        FileType::Socket | FileType::CharDevice | FileType::BlockDevice if policy && permitted() => {
            Errno::ENXIO
        }
        FileType::Fifo if driver => Errno::ENXIO,
        _ => error,
    }
}

fn request(kind: LockKind, whence: Whence, start: i64, len: i64) -> libc::flock {
    let kind = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    libc::flock {
        l_type: kind as i16,
        l_whence: whence_number(whence) as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn answer(lock: &libc::flock) -> Option<LockView> {
    let kind = match i32::from(lock.l_type) {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        _ => return None,
    };
    Some(LockView { kind, start: lock.l_start, len: lock.l_len, ofd: lock.l_pid == -1 })
}
