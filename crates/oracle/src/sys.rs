//! System calls of the host, raw: numbers and flags reach the kernel as the generator made them, and what
//! the kernel says comes back as it said it. The one file of this crate with `unsafe` code.
//!
//! # Theory
//! The oracle passes descriptors that are not open, flags that do not exist and negative sizes on purpose,
//! and each simulated process is a thread with credentials and descriptors of its own. Typed wrappers refuse
//! the former, the C library breaks the latter (its `setresuid` changes every thread). So every call goes
//! through `syscall(2)`.
//!
//! Descriptors are plain numbers here. That is sound where each caller is a thread that has unshared its
//! descriptor table (see [`unshare_process`]): no owner of a descriptor elsewhere can be harmed.

#![allow(unsafe_code)]

use crate::view::ListedEntry;
use libc::{c_int, c_long};
use sluice_vfs::{Errno, FileType, Stat, Timestamp};
use std::ffi::CString;
use std::mem::{MaybeUninit, size_of};

/// The result of a system call: a number that is not negative, or an error.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// A path as the kernel wants it. Bytes after a NUL cannot be said to the kernel, so they are cut off.
pub(crate) fn path(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// `syscall(2)` with its result taken apart.
///
/// # Safety
/// The arguments must be what call `number` expects: pointers valid for what the call reads or writes.
unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller guarantees the arguments; surplus ones are ignored by the kernel.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) };
    if result < 0 {
        // `syscall` stores the error in errno, of which each thread has its own.
        let raw = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw(raw));
    }
    Ok(result as usize)
}

/// A call without pointers.
fn plain(number: c_long, args: [usize; 6]) -> Result<usize> {
    const { assert!(size_of::<usize>() == size_of::<c_long>()) };
    // SAFETY: only wrappers in this file get here, with calls that take numbers alone.
    unsafe { call(number, args) }
}

fn int(value: i32) -> usize {
    value as isize as usize
}

fn offset(value: i64) -> usize {
    value as usize
}

// ---- descriptors --------------------------------------------------------------------------------------

pub(crate) fn openat(at: i32, name: &[u8], flags: u32, mode: u32) -> Result<i32> {
    let name = path(name);
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let fd = unsafe {
        call(libc::SYS_openat, [int(at), name.as_ptr() as usize, flags as usize, mode as usize, 0, 0])?
    };
    Ok(fd as i32)
}

pub(crate) fn close(fd: i32) -> Result<usize> {
    plain(libc::SYS_close, [int(fd), 0, 0, 0, 0, 0])
}

/// Closes every descriptor of the calling thread's table.
pub(crate) fn close_all() -> Result<usize> {
    plain(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0, 0])
}

pub(crate) fn dup(fd: i32) -> Result<usize> {
    plain(libc::SYS_dup, [int(fd), 0, 0, 0, 0, 0])
}

pub(crate) fn dup2(fd: i32, to: i32) -> Result<usize> {
    // dup3 refuses equal numbers, dup2 does not exist on newer architectures.
    if fd == to {
        return fcntl(fd, libc::F_GETFD, 0).map(|_| to as usize);
    }
    plain(libc::SYS_dup3, [int(fd), int(to), 0, 0, 0, 0])
}

pub(crate) fn fcntl(fd: i32, command: c_int, argument: u32) -> Result<usize> {
    plain(libc::SYS_fcntl, [int(fd), int(command), argument as usize, 0, 0, 0])
}

/// `fcntl` with a lock: the commands that set one and those that ask for one.
pub(crate) fn fcntl_lock(fd: i32, command: c_int, lock: &mut libc::flock) -> Result<usize> {
    // SAFETY: `lock` is a valid `struct flock` that the kernel may read and write during the call.
    unsafe { call(libc::SYS_fcntl, [int(fd), int(command), std::ptr::from_mut(lock) as usize, 0, 0, 0]) }
}

pub(crate) fn flock(fd: i32, operation: i32) -> Result<usize> {
    plain(libc::SYS_flock, [int(fd), int(operation), 0, 0, 0, 0])
}

// ---- data ---------------------------------------------------------------------------------------------

pub(crate) fn read(fd: i32, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
    unsafe { call(libc::SYS_read, [int(fd), buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0]) }
}

pub(crate) fn pread(fd: i32, buf: &mut [u8], at: i64) -> Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
    unsafe { call(libc::SYS_pread64, [int(fd), buf.as_mut_ptr() as usize, buf.len(), offset(at), 0, 0]) }
}

pub(crate) fn write(fd: i32, data: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads at most `data.len()` bytes of `data`.
    unsafe { call(libc::SYS_write, [int(fd), data.as_ptr() as usize, data.len(), 0, 0, 0]) }
}

pub(crate) fn pwrite(fd: i32, data: &[u8], at: i64) -> Result<usize> {
    // SAFETY: the kernel reads at most `data.len()` bytes of `data`.
    unsafe { call(libc::SYS_pwrite64, [int(fd), data.as_ptr() as usize, data.len(), offset(at), 0, 0]) }
}

/// `readv`, or `preadv` when there is an offset.
pub(crate) fn readv(fd: i32, bufs: &mut [&mut [u8]], at: Option<i64>) -> Result<usize> {
    let parts: Vec<libc::iovec> =
        bufs.iter_mut().map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }).collect();
    let number = if at.is_some() { libc::SYS_preadv } else { libc::SYS_readv };
    // The last argument is the high half of the offset, which the 64-bit kernel ignores.
    let args = [int(fd), parts.as_ptr() as usize, parts.len(), offset(at.unwrap_or(0)), 0, 0];
    // SAFETY: `parts` describes the buffers, which are borrowed for writing until the call is over.
    unsafe { call(number, args) }
}

/// `writev`, or `pwritev` when there is an offset.
pub(crate) fn writev(fd: i32, data: &[&[u8]], at: Option<i64>) -> Result<usize> {
    let parts: Vec<libc::iovec> = data
        .iter()
        .map(|d| libc::iovec { iov_base: d.as_ptr().cast_mut().cast(), iov_len: d.len() })
        .collect();
    let number = if at.is_some() { libc::SYS_pwritev } else { libc::SYS_writev };
    let args = [int(fd), parts.as_ptr() as usize, parts.len(), offset(at.unwrap_or(0)), 0, 0];
    // SAFETY: `parts` describes the data, which the kernel only reads.
    unsafe { call(number, args) }
}

pub(crate) fn lseek(fd: i32, at: i64, whence: i32) -> Result<usize> {
    plain(libc::SYS_lseek, [int(fd), offset(at), int(whence), 0, 0, 0])
}

pub(crate) fn truncate(name: &[u8], len: i64) -> Result<usize> {
    let name = path(name);
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    unsafe { call(libc::SYS_truncate, [name.as_ptr() as usize, offset(len), 0, 0, 0, 0]) }
}

pub(crate) fn ftruncate(fd: i32, len: i64) -> Result<usize> {
    plain(libc::SYS_ftruncate, [int(fd), offset(len), 0, 0, 0, 0])
}

pub(crate) fn fallocate(fd: i32, mode: u32, at: i64, len: i64) -> Result<usize> {
    plain(libc::SYS_fallocate, [int(fd), mode as usize, offset(at), offset(len), 0, 0])
}

pub(crate) fn fsync(fd: i32, data_only: bool) -> Result<usize> {
    let number = if data_only { libc::SYS_fdatasync } else { libc::SYS_fsync };
    plain(number, [int(fd), 0, 0, 0, 0, 0])
}

pub(crate) fn copy_file_range(
    from: i32,
    from_at: Option<&mut i64>,
    to: i32,
    to_at: Option<&mut i64>,
    len: usize,
) -> Result<usize> {
    let pointer = |at: Option<&mut i64>| at.map_or(0, |at| std::ptr::from_mut(at) as usize);
    let args = [int(from), pointer(from_at), int(to), pointer(to_at), len, 0];
    // SAFETY: each offset is null or a valid number that the kernel may read and write during the call.
    unsafe { call(libc::SYS_copy_file_range, args) }
}

// ---- attributes ---------------------------------------------------------------------------------------

pub(crate) fn fstatat(at: i32, name: &[u8], flags: u32) -> Result<Stat> {
    let name = path(name);
    let mut out = MaybeUninit::<libc::stat>::zeroed();
    let args = [int(at), name.as_ptr() as usize, out.as_mut_ptr() as usize, flags as usize, 0, 0];
    // SAFETY: `name` is NUL-terminated; the kernel fills at most one `struct stat`.
    unsafe { call(libc::SYS_newfstatat, args)? };
    // SAFETY: zeroed at first and then filled by the kernel: initialised either way.
    Ok(stat_of(&unsafe { out.assume_init() }))
}

pub(crate) fn fstat(fd: i32) -> Result<Stat> {
    let mut out = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills at most one `struct stat`.
    unsafe { call(libc::SYS_fstat, [int(fd), out.as_mut_ptr() as usize, 0, 0, 0, 0])? };
    // SAFETY: zeroed at first and then filled by the kernel: initialised either way.
    Ok(stat_of(&unsafe { out.assume_init() }))
}

fn stat_of(st: &libc::stat) -> Stat {
    let time = |sec: i64, nsec: i64| Timestamp { sec, nsec: nsec as u32 };
    Stat {
        dev: st.st_dev,
        ino: st.st_ino,
        mode: st.st_mode,
        nlink: st.st_nlink as u32,
        uid: st.st_uid,
        gid: st.st_gid,
        rdev: st.st_rdev,
        size: st.st_size as u64,
        blksize: st.st_blksize as u32,
        blocks: st.st_blocks as u64,
        atime: time(st.st_atime, st.st_atime_nsec),
        mtime: time(st.st_mtime, st.st_mtime_nsec),
        ctime: time(st.st_ctime, st.st_ctime_nsec),
        btime: Timestamp::default(),
    }
}

pub(crate) fn statx(at: i32, name: &[u8], flags: u32) -> Result<Stat> {
    let name = path(name);
    let mut out = MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    let args = [int(at), name.as_ptr() as usize, flags as usize, mask as usize, out.as_mut_ptr() as usize, 0];
    // SAFETY: `name` is NUL-terminated; the kernel fills at most one `struct statx`.
    unsafe { call(libc::SYS_statx, args)? };
    // SAFETY: zeroed at first and then filled by the kernel: initialised either way.
    let st = unsafe { out.assume_init() };
    let time = |t: libc::statx_timestamp| Timestamp { sec: t.tv_sec, nsec: t.tv_nsec };
    Ok(Stat {
        dev: libc::makedev(st.stx_dev_major, st.stx_dev_minor),
        ino: st.stx_ino,
        mode: u32::from(st.stx_mode),
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        rdev: libc::makedev(st.stx_rdev_major, st.stx_rdev_minor),
        size: st.stx_size,
        blksize: st.stx_blksize,
        blocks: st.stx_blocks,
        atime: time(st.stx_atime),
        mtime: time(st.stx_mtime),
        ctime: time(st.stx_ctime),
        btime: time(st.stx_btime),
    })
}

/// Calls `(at, path, a, b, flags)`: those that take one path and numbers.
fn at_path(number: c_long, at: i32, name: &[u8], rest: [usize; 4]) -> Result<usize> {
    let name = path(name);
    // SAFETY: `name` is NUL-terminated and outlives the call; the wrappers below pass numbers otherwise.
    unsafe { call(number, [int(at), name.as_ptr() as usize, rest[0], rest[1], rest[2], rest[3]]) }
}

pub(crate) fn fchmodat(at: i32, name: &[u8], mode: u32, flags: u32) -> Result<usize> {
    if flags == 0 {
        return at_path(libc::SYS_fchmodat, at, name, [mode as usize, 0, 0, 0]);
    }
    at_path(libc::SYS_fchmodat2, at, name, [mode as usize, flags as usize, 0, 0])
}

pub(crate) fn fchmod(fd: i32, mode: u32) -> Result<usize> {
    plain(libc::SYS_fchmod, [int(fd), mode as usize, 0, 0, 0, 0])
}

pub(crate) fn fchownat(at: i32, name: &[u8], uid: u32, gid: u32, flags: u32) -> Result<usize> {
    at_path(libc::SYS_fchownat, at, name, [uid as usize, gid as usize, flags as usize, 0])
}

pub(crate) fn fchown(fd: i32, uid: u32, gid: u32) -> Result<usize> {
    plain(libc::SYS_fchown, [int(fd), uid as usize, gid as usize, 0, 0, 0])
}

/// `utimensat`; without a name it changes what `at` has open. `nsec` may be `UTIME_NOW` or `UTIME_OMIT`.
pub(crate) fn utimensat(at: i32, name: Option<&[u8]>, times: [(i64, i64); 2], flags: u32) -> Result<usize> {
    let name = name.map(path);
    let times = times.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
    let name = name.as_ref().map_or(0, |name| name.as_ptr() as usize);
    // SAFETY: `name` is null or NUL-terminated (it borrows from the binding it shadows), `times` holds two.
    unsafe { call(libc::SYS_utimensat, [int(at), name, times.as_ptr() as usize, flags as usize, 0, 0]) }
}

/// Length of the longest name and size of a block of the file system that `name` is on.
pub(crate) fn statfs(name: &[u8]) -> Result<(u32, u32)> {
    let name = path(name);
    let mut out = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `name` is NUL-terminated; the kernel fills at most one `struct statfs`.
    unsafe { call(libc::SYS_statfs, [name.as_ptr() as usize, out.as_mut_ptr() as usize, 0, 0, 0, 0])? };
    // SAFETY: zeroed at first and then filled by the kernel: initialised either way.
    let st = unsafe { out.assume_init() };
    Ok((st.f_namelen as u32, st.f_bsize as u32))
}

/// Length of the longest name and size of a block of the file system that `fd` is on.
pub(crate) fn fstatfs(fd: i32) -> Result<(u32, u32)> {
    let mut out = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills at most one `struct statfs`.
    unsafe { call(libc::SYS_fstatfs, [int(fd), out.as_mut_ptr() as usize, 0, 0, 0, 0])? };
    // SAFETY: zeroed at first and then filled by the kernel: initialised either way.
    let st = unsafe { out.assume_init() };
    Ok((st.f_namelen as u32, st.f_bsize as u32))
}

pub(crate) fn faccessat(at: i32, name: &[u8], mode: u32, flags: u32) -> Result<usize> {
    if flags == 0 {
        return at_path(libc::SYS_faccessat, at, name, [mode as usize, 0, 0, 0]);
    }
    at_path(libc::SYS_faccessat2, at, name, [mode as usize, flags as usize, 0, 0])
}

// ---- names --------------------------------------------------------------------------------------------

pub(crate) fn mkdirat(at: i32, name: &[u8], mode: u32) -> Result<usize> {
    at_path(libc::SYS_mkdirat, at, name, [mode as usize, 0, 0, 0])
}

pub(crate) fn mknodat(at: i32, name: &[u8], mode: u32, rdev: u64) -> Result<usize> {
    at_path(libc::SYS_mknodat, at, name, [mode as usize, rdev as usize, 0, 0])
}

pub(crate) fn unlinkat(at: i32, name: &[u8], flags: u32) -> Result<usize> {
    at_path(libc::SYS_unlinkat, at, name, [flags as usize, 0, 0, 0])
}

/// Calls `(from_at, from, to_at, to, flags)`.
fn two_paths(number: c_long, from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Result<usize> {
    let (from_name, to_name) = (path(from.1), path(to.1));
    let args =
        [int(from.0), from_name.as_ptr() as usize, int(to.0), to_name.as_ptr() as usize, flags as usize, 0];
    // SAFETY: both names are NUL-terminated and outlive the call.
    unsafe { call(number, args) }
}

pub(crate) fn linkat(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Result<usize> {
    two_paths(libc::SYS_linkat, from, to, flags)
}

pub(crate) fn renameat2(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Result<usize> {
    two_paths(libc::SYS_renameat2, from, to, flags)
}

pub(crate) fn symlinkat(target: &[u8], at: i32, name: &[u8]) -> Result<usize> {
    let (target, name) = (path(target), path(name));
    // SAFETY: both strings are NUL-terminated and outlive the call.
    unsafe { call(libc::SYS_symlinkat, [target.as_ptr() as usize, int(at), name.as_ptr() as usize, 0, 0, 0]) }
}

pub(crate) fn readlinkat(at: i32, name: &[u8]) -> Result<Vec<u8>> {
    let mut buf = vec![0; 8192];
    let len = at_path(libc::SYS_readlinkat, at, name, [buf.as_mut_ptr() as usize, buf.len(), 0, 0])?;
    buf.truncate(len);
    Ok(buf)
}

/// The entries that are left, `.` and `..` included.
pub(crate) fn getdents(fd: i32) -> Result<Vec<ListedEntry>> {
    let mut entries = Vec::new();
    let mut buf = vec![0_u8; 16384];
    loop {
        // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
        let len =
            unsafe { call(libc::SYS_getdents64, [int(fd), buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0])? };
        let mut rest = &buf[..len];
        if rest.is_empty() {
            return Ok(entries);
        }
        // struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name and NUL.
        while let Some(header) = rest.get(..19) {
            let number = |range: std::ops::Range<usize>| -> u64 {
                header[range].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
            };
            let record = number(16..18) as usize;
            let name = &rest[19..record];
            let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
            let kind = FileType::from_mode(u32::from(header[18]) << 12);
            entries.push(ListedEntry { name: name[..end].to_vec(), ino: number(0..8), kind });
            rest = &rest[record..];
        }
    }
}

// ---- extended attributes ------------------------------------------------------------------------------

/// Whose extended attributes a call is about.
#[derive(Clone, Copy)]
pub(crate) enum Of<'a> {
    /// The file that a path leads to.
    Path(&'a [u8]),
    /// The same, a symbolic link itself included.
    Link(&'a [u8]),
    /// The open file of a descriptor.
    Fd(i32),
}

/// The call for `of` among three, with up to four more arguments.
///
/// # Safety
/// The further arguments must be what the calls expect.
unsafe fn xattr_call(numbers: [c_long; 3], of: Of<'_>, rest: [usize; 4]) -> Result<usize> {
    let [a, b, c, d] = rest;
    let (number, name) = match of {
        Of::Path(name) => (numbers[0], path(name)),
        Of::Link(name) => (numbers[1], path(name)),
        // SAFETY: as the caller guarantees.
        Of::Fd(fd) => return unsafe { call(numbers[2], [int(fd), a, b, c, d, 0]) },
    };
    // SAFETY: `name` is NUL-terminated and outlives the call; the rest as the caller guarantees.
    unsafe { call(number, [name.as_ptr() as usize, a, b, c, d, 0]) }
}

pub(crate) fn getxattr(of: Of<'_>, attribute: &[u8]) -> Result<Vec<u8>> {
    let attribute = path(attribute);
    let mut buf = vec![0_u8; 65536];
    let numbers = [libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr];
    let rest = [attribute.as_ptr() as usize, buf.as_mut_ptr() as usize, buf.len(), 0];
    // SAFETY: `attribute` is NUL-terminated; the kernel writes at most `buf.len()` bytes.
    let len = unsafe { xattr_call(numbers, of, rest)? };
    buf.truncate(len);
    Ok(buf)
}

pub(crate) fn setxattr(of: Of<'_>, attribute: &[u8], value: &[u8], flags: u32) -> Result<usize> {
    let attribute = path(attribute);
    let numbers = [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr];
    let rest = [attribute.as_ptr() as usize, value.as_ptr() as usize, value.len(), flags as usize];
    // SAFETY: `attribute` is NUL-terminated; the kernel reads `value.len()` bytes of `value`.
    unsafe { xattr_call(numbers, of, rest) }
}

pub(crate) fn listxattr(of: Of<'_>) -> Result<Vec<Vec<u8>>> {
    let mut buf = vec![0_u8; 65536];
    let numbers = [libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr];
    // SAFETY: the kernel writes at most `buf.len()` bytes.
    let len = unsafe { xattr_call(numbers, of, [buf.as_mut_ptr() as usize, buf.len(), 0, 0])? };
    Ok(buf[..len].split(|&b| b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

pub(crate) fn removexattr(of: Of<'_>, attribute: &[u8]) -> Result<usize> {
    let attribute = path(attribute);
    let numbers = [libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr];
    // SAFETY: `attribute` is NUL-terminated and outlives the call.
    unsafe { xattr_call(numbers, of, [attribute.as_ptr() as usize, 0, 0, 0]) }
}

// ---- the calling thread as a process ------------------------------------------------------------------

/// Gives the calling thread its own copy of the descriptor table, working directory, root and umask: for
/// file system purposes it is a process from now on, owner of its own POSIX locks.
pub(crate) fn unshare_process() -> Result<usize> {
    plain(libc::SYS_unshare, [(libc::CLONE_FS | libc::CLONE_FILES) as usize, 0, 0, 0, 0, 0])
}

/// Gives the calling thread a private copy of the mount table (and of working directory and root).
pub(crate) fn unshare_mounts() -> Result<usize> {
    plain(libc::SYS_unshare, [(libc::CLONE_FS | libc::CLONE_NEWNS) as usize, 0, 0, 0, 0, 0])
}

/// Keeps mounts of the calling thread's mount table from reaching other tables.
pub(crate) fn make_mounts_private() -> Result<usize> {
    let root = path(b"/");
    let flags = (libc::MS_REC | libc::MS_PRIVATE) as usize;
    // SAFETY: the target is NUL-terminated; source, type and data may be null for this change.
    unsafe { call(libc::SYS_mount, [0, root.as_ptr() as usize, 0, flags, 0, 0]) }
}

/// Mounts a new tmpfs on the directory `target`.
pub(crate) fn mount_tmpfs(target: &[u8]) -> Result<usize> {
    let (kind, target) = (path(b"tmpfs"), path(target));
    let (kind, target) = (kind.as_ptr() as usize, target.as_ptr() as usize);
    // SAFETY: the strings are NUL-terminated and bound until the call is over; data may be null.
    unsafe { call(libc::SYS_mount, [kind, target, kind, 0, 0, 0]) }
}

pub(crate) fn chroot(name: &[u8]) -> Result<usize> {
    let name = path(name);
    // SAFETY: `name` is NUL-terminated and outlives the call.
    unsafe { call(libc::SYS_chroot, [name.as_ptr() as usize, 0, 0, 0, 0, 0]) }
}

pub(crate) fn chdir(name: &[u8]) -> Result<usize> {
    let name = path(name);
    // SAFETY: `name` is NUL-terminated and outlives the call.
    unsafe { call(libc::SYS_chdir, [name.as_ptr() as usize, 0, 0, 0, 0, 0]) }
}

pub(crate) fn fchdir(fd: i32) -> Result<usize> {
    plain(libc::SYS_fchdir, [int(fd), 0, 0, 0, 0, 0])
}

pub(crate) fn getcwd() -> Result<Vec<u8>> {
    let mut buf = vec![0_u8; 8192];
    // SAFETY: the kernel writes at most `buf.len()` bytes.
    let len = unsafe { call(libc::SYS_getcwd, [buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0, 0])? };
    buf.truncate(len.saturating_sub(1));
    Ok(buf)
}

pub(crate) fn umask(mask: u32) -> Result<usize> {
    plain(libc::SYS_umask, [mask as usize, 0, 0, 0, 0, 0])
}

/// Makes the calling thread, and no other, run as this user with these groups.
pub(crate) fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<()> {
    // SAFETY: the kernel reads `groups.len()` group numbers of four bytes each.
    unsafe { call(libc::SYS_setgroups, [groups.len(), groups.as_ptr() as usize, 0, 0, 0, 0])? };
    plain(libc::SYS_setresgid, [gid as usize, gid as usize, gid as usize, 0, 0, 0])?;
    plain(libc::SYS_setresuid, [uid as usize, uid as usize, uid as usize, 0, 0, 0])?;
    Ok(())
}

/// Effective user, effective group and supplementary groups of the calling thread.
pub(crate) fn current_user() -> Result<(u32, u32, Vec<u32>)> {
    let uid = plain(libc::SYS_geteuid, [0; 6])? as u32;
    let gid = plain(libc::SYS_getegid, [0; 6])? as u32;
    let mut groups = vec![0_u32; 65536];
    // SAFETY: the kernel writes at most `groups.len()` group numbers of four bytes each.
    let count =
        unsafe { call(libc::SYS_getgroups, [groups.len(), groups.as_mut_ptr() as usize, 0, 0, 0, 0])? };
    groups.truncate(count);
    Ok((uid, gid, groups))
}
