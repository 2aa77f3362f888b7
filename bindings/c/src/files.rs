//! Open files: the calls that take descriptors.

use crate::arguments::{BytesIn, RoomOut, TextIn};
use crate::process::SluiceProcess;
use crate::results::{count, done, number, there};
use sluice_vfs::{Errno, FallocateMode, Fd, OpenFlags, Whence};
use std::ffi::c_int;

fn flags(flags: c_int) -> Result<OpenFlags, Errno> {
    OpenFlags::from_bits(flags as u32).ok_or(Errno::EINVAL)
}

/// Opens `path` as open(2) does. Gives the lowest free descriptor of the process.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_open(
    process: Option<&SluiceProcess>,
    path: TextIn,
    open_flags: c_int,
    mode: u32,
) -> c_int {
    number(|| Ok(there(process)?.0.open(path.path()?, flags(open_flags)?, mode)?.0))
}

/// Opens `path` below the directory `dir`, or AT_FDCWD.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_openat(
    process: Option<&SluiceProcess>,
    dir: c_int,
    path: TextIn,
    open_flags: c_int,
    mode: u32,
) -> c_int {
    number(|| Ok(there(process)?.0.openat(Fd(dir), path.path()?, flags(open_flags)?, mode)?.0))
}

/// Closes a descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_close(process: Option<&SluiceProcess>, fd: c_int) -> c_int {
    done(|| there(process)?.0.close(Fd(fd)))
}

/// Gives a second descriptor for the same open file.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_dup(process: Option<&SluiceProcess>, fd: c_int) -> c_int {
    number(|| Ok(there(process)?.0.dup(Fd(fd))?.0))
}

/// Reads up to `size` bytes at the position. Gives how many; 0 at the end.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_read(
    process: Option<&SluiceProcess>,
    fd: c_int,
    mut buffer: RoomOut,
    size: usize,
) -> isize {
    count(|| there(process)?.0.read(Fd(fd), buffer.bytes(size)?))
}

/// Writes `size` bytes at the position. Gives how many.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_write(
    process: Option<&SluiceProcess>,
    fd: c_int,
    data: BytesIn,
    size: usize,
) -> isize {
    count(|| there(process)?.0.write(Fd(fd), data.bytes(size)?))
}

/// Reads up to `size` bytes at `offset`, and leaves the position.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_pread(
    process: Option<&SluiceProcess>,
    fd: c_int,
    mut buffer: RoomOut,
    size: usize,
    offset: i64,
) -> isize {
    count(|| there(process)?.0.pread(Fd(fd), buffer.bytes(size)?, offset))
}

/// Writes `size` bytes at `offset`, and leaves the position.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_pwrite(
    process: Option<&SluiceProcess>,
    fd: c_int,
    data: BytesIn,
    size: usize,
    offset: i64,
) -> isize {
    count(|| there(process)?.0.pwrite(Fd(fd), data.bytes(size)?, offset))
}

/// The `whence` of lseek(2) and of locks.
pub(crate) fn whence(whence: c_int) -> Result<Whence, Errno> {
    Ok(match whence {
        0 => Whence::Set,
        1 => Whence::Cur,
        2 => Whence::End,
        3 => Whence::Data,
        4 => Whence::Hole,
        _ => return Err(Errno::EINVAL),
    })
}

/// Moves the position, with SEEK_DATA and SEEK_HOLE, too. Gives the new one.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_lseek(
    process: Option<&SluiceProcess>,
    fd: c_int,
    offset: i64,
    from: c_int,
) -> isize {
    count(|| there(process)?.0.lseek(Fd(fd), offset, whence(from)?).map(|position| position as usize))
}

/// Makes a file durable, and every change before it.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fsync(process: Option<&SluiceProcess>, fd: c_int) -> c_int {
    done(|| there(process)?.0.fsync(Fd(fd)))
}

/// Makes the contents of a file durable.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fdatasync(process: Option<&SluiceProcess>, fd: c_int) -> c_int {
    done(|| there(process)?.0.fdatasync(Fd(fd)))
}

/// Sets the size of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_ftruncate(process: Option<&SluiceProcess>, fd: c_int, size: i64) -> c_int {
    done(|| there(process)?.0.ftruncate(Fd(fd), size))
}

/// Reserves room, punches a hole or moves bytes, as fallocate(2).
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fallocate(
    process: Option<&SluiceProcess>,
    fd: c_int,
    mode: c_int,
    offset: i64,
    len: i64,
) -> c_int {
    done(|| {
        let mode = FallocateMode::from_bits(mode as u32).ok_or(Errno::EOPNOTSUPP)?;
        there(process)?.0.fallocate(Fd(fd), mode, offset, len)
    })
}

/// Copies up to `size` bytes between two open files, or shares them. NULL for an offset stands for the position. Gives how many.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_copy_file_range(
    process: Option<&SluiceProcess>,
    from: c_int,
    from_offset: Option<&mut i64>,
    to: c_int,
    to_offset: Option<&mut i64>,
    size: usize,
) -> isize {
    count(|| there(process)?.0.copy_file_range(Fd(from), from_offset, Fd(to), to_offset, size))
}

/// Changes the mode of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fchmod(process: Option<&SluiceProcess>, fd: c_int, mode: u32) -> c_int {
    done(|| there(process)?.0.fchmod(Fd(fd), mode))
}

/// Changes the owner and the group of an open file; -1 leaves one.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_fchown(process: Option<&SluiceProcess>, fd: c_int, uid: u32, gid: u32) -> c_int {
    done(|| there(process)?.0.fchown(Fd(fd), crate::names::id(uid), crate::names::id(gid)))
}
