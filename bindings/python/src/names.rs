//! Names and attributes: the calls that take paths.

use crate::errors::{at, between, on};
use crate::process::PyProcess;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sluice_vfs::{
    Access, AtFlags, Dir, Errno, Fd, FileType, RenameFlags, SetTime, Stat, Timestamp, XattrFlags,
};
use std::ffi::OsString;
use std::path::PathBuf;

/// The fields of `os.stat_result`, in its order.
type StatFields = ((u32, u64, u64, u32, u32, u32, u64), [i64; 3], [f64; 3], [i128; 3], (u32, u64, u64));

fn fields(stat: Stat) -> StatFields {
    let times = [stat.atime, stat.mtime, stat.ctime];
    let nanoseconds = times.map(|time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec));
    (
        (stat.mode, stat.ino, stat.dev, stat.nlink, stat.uid, stat.gid, stat.size),
        times.map(|time| time.sec),
        nanoseconds.map(|time| time as f64 / 1e9),
        nanoseconds,
        (stat.blksize, stat.blocks, stat.rdev),
    )
}

/// A time of Python's, in nanoseconds since 1970.
fn timestamp(nanoseconds: i128) -> SetTime {
    let (sec, nsec) = (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    let sec = sec.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    SetTime::At(Timestamp { sec, nsec: nsec as u32 })
}

fn followed(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

#[pymethods]
impl PyProcess {
    fn stat(&self, py: Python<'_>, path: PathBuf, follow: bool) -> PyResult<StatFields> {
        at(py, &path, || self.calls().fstatat(Fd::CWD, &path, followed(follow)).map(fields))
    }

    fn fstat(&self, py: Python<'_>, fd: i32) -> PyResult<StatFields> {
        on(py, || self.calls().fstat(Fd(fd)).map(fields))
    }

    /// Name, type bits of the mode, and inode number of each entry.
    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<(OsString, u32, u64)>> {
        at(py, &path, || {
            let entries = Dir::open_as(self.calls(), &path)?.entries()?;
            let row = |entry: sluice_vfs::DirEntry| {
                let kind = entry.file_type().unwrap_or(FileType::Regular);
                (entry.file_name(), kind.mode_bits(), entry.ino())
            };
            entries.map(|entry| entry.map(row)).collect()
        })
    }

    fn mkdir(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        at(py, &path, || self.calls().mkdir(&path, mode))
    }

    fn mkfifo(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        at(py, &path, || self.calls().mknod(&path, FileType::Fifo, mode, 0))
    }

    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        at(py, &path, || self.calls().rmdir(&path))
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        at(py, &path, || self.calls().unlink(&path))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf, flags: u32) -> PyResult<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL);
        between(py, &from, &to, || self.calls().renameat2(Fd::CWD, &from, Fd::CWD, &to, flags?))
    }

    fn link(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        between(py, &from, &to, || self.calls().link(&from, &to))
    }

    fn symlink(&self, py: Python<'_>, target: PathBuf, path: PathBuf) -> PyResult<()> {
        between(py, &target, &path, || self.calls().symlink(&target, &path))
    }

    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        at(py, &path, || self.calls().readlink(&path).map(PathBuf::into_os_string))
    }

    fn access(&self, py: Python<'_>, path: PathBuf, want: u32) -> PyResult<()> {
        let want = Access::from_bits(want).ok_or(Errno::EINVAL);
        at(py, &path, || self.calls().access(&path, want?))
    }

    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        at(py, &path, || self.calls().chmod(&path, mode))
    }

    fn chown(
        &self,
        py: Python<'_>,
        path: PathBuf,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        at(py, &path, || self.calls().fchownat(Fd::CWD, &path, uid, gid, followed(follow)))
    }

    /// Sets the times, in nanoseconds since 1970; None for now.
    fn utime(&self, py: Python<'_>, path: PathBuf, times: Option<[i128; 2]>, follow: bool) -> PyResult<()> {
        let times = times.map_or([SetTime::Now; 2], |times| times.map(timestamp)).map(Some);
        at(py, &path, || self.calls().utimensat(Fd::CWD, &path, times, followed(follow)))
    }

    /// Size of a block; blocks and free blocks; inodes and free inodes; the longest name.
    fn statvfs(&self, py: Python<'_>, path: PathBuf) -> PyResult<(u32, [u64; 2], [u64; 2], u32)> {
        at(py, &path, || {
            let found = self.calls().statfs(&path)?;
            Ok((
                found.block_size,
                [found.blocks, found.blocks_free],
                [found.files, found.files_free],
                found.name_max,
            ))
        })
    }

    fn getxattr<'py>(&self, py: Python<'py>, path: PathBuf, name: OsString) -> PyResult<Bound<'py, PyBytes>> {
        let value = at(py, &path, || self.calls().lgetxattr(&path, name.as_encoded_bytes()))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: OsString,
        value: &[u8],
        flags: u32,
    ) -> PyResult<()> {
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::EINVAL);
        at(py, &path, || self.calls().lsetxattr(&path, name.as_encoded_bytes(), value, flags?))
    }

    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        use std::os::unix::ffi::OsStringExt;
        let names = at(py, &path, || self.calls().llistxattr(&path))?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<()> {
        at(py, &path, || self.calls().lremovexattr(&path, name.as_encoded_bytes()))
    }

    fn clone_tree(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        between(py, &from, &to, || self.calls().clone_tree(&from, &to))
    }
}
