//! Directories: what an open directory lists.

use crate::arguments::EntriesOut;
use crate::process::SluiceProcess;
use crate::results::{copy_text, count, there};
use sluice_vfs::Fd;
use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SluiceDirent {
    /// The inode number.
    pub ino: u64,
    /// The position behind the entry, for sluice_lseek() of the directory.
    pub position: u64,
    /// The file type, as in the mode: S_IFREG, S_IFDIR...
    pub file_type: u32,
    /// The length of the name.
    pub name_len: u32,
    /// The name, with a NUL behind it.
    pub name: [u8; 256],
}

/// Reads up to `size` entries of an open directory, "." and ".." included, into the array `entries`, and moves the position. Gives how
/// many; 0 at the end.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_readdir(
    process: Option<&SluiceProcess>,
    fd: c_int,
    mut entries: EntriesOut,
    size: usize,
) -> isize {
    count(|| {
        let room = entries.entries(size)?;
        let read = there(process)?.0.getdents(Fd(fd), room.len())?;
        for (to, entry) in room.iter_mut().zip(read.iter()) {
            let name = entry.name.as_bytes();
            to.ino = entry.ino;
            to.position = entry.position;
            to.file_type = entry.file_type.mode_bits();
            to.name_len = name.len() as u32;
            copy_text(name, &mut to.name);
        }
        Ok(read.len())
    })
}
