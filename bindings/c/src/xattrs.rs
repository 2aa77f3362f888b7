//! Extended attributes.

use crate::arguments::{BytesIn, RoomOut, TextIn};
use crate::process::SluiceProcess;
use crate::results::{count, done, there};
use sluice_vfs::{Errno, XattrFlags};
use std::ffi::c_int;

/// Copies `value` to `room` of `size` bytes, as the calls for extended attributes do: 0 asks for the length.
fn copied(value: &[u8], room: &mut RoomOut, size: usize) -> Result<usize, Errno> {
    if size != 0 {
        let to = room.bytes(size)?.get_mut(..value.len()).ok_or(Errno::ERANGE)?;
        to.copy_from_slice(value);
    }
    Ok(value.len())
}

/// Reads an extended attribute; a symbolic link's own. Gives its length, which alone is asked for if `size` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_getxattr(
    process: Option<&SluiceProcess>,
    path: TextIn,
    name: TextIn,
    mut value: RoomOut,
    size: usize,
) -> isize {
    count(|| copied(&there(process)?.0.lgetxattr(path.path()?, name.bytes()?)?, &mut value, size))
}

/// Sets an extended attribute; a symbolic link's own. `flags` is 0, XATTR_CREATE or XATTR_REPLACE.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_setxattr(
    process: Option<&SluiceProcess>,
    path: TextIn,
    name: TextIn,
    value: BytesIn,
    size: usize,
    flags: c_int,
) -> c_int {
    done(|| {
        let flags = XattrFlags::from_bits(flags as u32).ok_or(Errno::EINVAL)?;
        there(process)?.0.lsetxattr(path.path()?, name.bytes()?, value.bytes(size)?, flags)
    })
}

/// Lists the names of the extended attributes, each with a NUL behind it. Gives their length, which alone is asked for if `size` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_listxattr(
    process: Option<&SluiceProcess>,
    path: TextIn,
    mut names: RoomOut,
    size: usize,
) -> isize {
    count(|| {
        let list: Vec<u8> = there(process)?
            .0
            .llistxattr(path.path()?)?
            .into_iter()
            .flat_map(|name| [name, vec![0]].concat())
            .collect();
        copied(&list, &mut names, size)
    })
}

/// Removes an extended attribute; a symbolic link's own.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_removexattr(process: Option<&SluiceProcess>, path: TextIn, name: TextIn) -> c_int {
    done(|| there(process)?.0.lremovexattr(path.path()?, name.bytes()?))
}
