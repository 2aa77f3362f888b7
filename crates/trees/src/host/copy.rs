//! Contents of files between an `Fs` and the host: by extents, so that holes stay holes, and by pieces.

use super::{Walker, failed, moved};
use rustix::fs::{SeekFrom, seek};
use sluice_vfs::{Errno, Fd, Process, Whence};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most that is held in memory of a file on its way, in bytes.
pub(crate) const CHUNK: usize = 1 << 20;

/// Copies `size` bytes of `from` to the empty file `to`. Returns the bytes that were not holes.
pub(super) fn copy_in(
    walker: &Walker,
    from: &File,
    size: u64,
    to: Fd,
    path: &Path,
    buf: &mut [u8],
) -> io::Result<u64> {
    let mut copied = 0;
    let mut offset = 0;
    while let Some((start, end)) = host_extent(from, offset, size).map_err(|e| failed(path, e))? {
        offset = start;
        while offset < end {
            let want = buf.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
            match from.read_at(&mut buf[..want], offset) {
                Ok(0) => return Err(moved(path)),
                Ok(read) => {
                    write_at(&walker.process, to, offset, &buf[..read]).map_err(|e| failed(path, e))?;
                    offset += read as u64;
                    copied += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(path, error)),
            }
        }
    }
    let end = i64::try_from(size).map_err(|_| failed(path, Errno::EFBIG))?;
    walker.process.ftruncate(to, end).map_err(|e| failed(path, e))?;
    Ok(copied)
}

/// The next stored part of a host's file at or after `offset` and below `size`.
fn host_extent(file: &File, offset: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if offset >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        // A file system that knows no holes.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOTSUP) => return Ok(Some((offset, size))),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < end).then_some((start, end)))
}

/// Copies `size` bytes of `from` to the empty file `to`. Returns the bytes that were not holes.
pub(super) fn copy_out(
    process: &Process,
    from: Fd,
    size: u64,
    to: &File,
    path: &Path,
    buf: &mut [u8],
) -> io::Result<u64> {
    let mut copied = 0;
    for (start, len) in extents(process, from, size).map_err(|e| failed(path, e))? {
        let mut offset = start;
        while offset < start + len {
            let want = buf.len().min(usize::try_from(start + len - offset).unwrap_or(usize::MAX));
            let read = read_at(process, from, offset, &mut buf[..want]).map_err(|e| failed(path, e))?;
            if read == 0 {
                return Err(moved(path));
            }
            to.write_all_at(&buf[..read], offset).map_err(|e| failed(path, e))?;
            offset += read as u64;
            copied += read as u64;
        }
    }
    to.set_len(size).map_err(|e| failed(path, e))?;
    Ok(copied)
}

/// The stored parts (offset and length) of an `Fs`'s file below `size`, in order.
pub(crate) fn extents(process: &Process, fd: Fd, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut all = Vec::new();
    let mut offset = 0;
    while offset < size {
        let from = i64::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let start = match process.lseek(fd, from, Whence::Data) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::ENXIO) => break,
            Err(error) => return Err(error),
        };
        let from = i64::try_from(start).map_err(|_| Errno::EFBIG)?;
        // The data may have gone since.
        let end = match process.lseek(fd, from, Whence::Hole) {
            Ok(end) => end.min(size),
            Err(Errno::ENXIO) => break,
            Err(error) => return Err(error),
        };
        if end > start {
            all.push((start, end - start));
        }
        offset = end.max(start + 1);
    }
    Ok(all)
}

/// Reads at `offset`; 0 at the end.
pub(crate) fn read_at(process: &Process, fd: Fd, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    process.pread(fd, buf, i64::try_from(offset).map_err(|_| Errno::EFBIG)?)
}

/// Writes all of `data` at `offset`.
pub(crate) fn write_at(process: &Process, fd: Fd, mut offset: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        let at = i64::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let written = process.pwrite(fd, data, at)?;
        offset += written as u64;
        data = &data[written..];
    }
    Ok(())
}
