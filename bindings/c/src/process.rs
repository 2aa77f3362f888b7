//! Processes: a user of a file system, with a working directory, a umask and descriptors.

use crate::arguments::{NumbersIn, RoomOut, TextIn};
use crate::fs::SluiceFs;
use crate::results::{copy_text, count, done, there};
use sluice_vfs::{Cred, Errno, Process};
use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;

/// A user of a file system, with a working directory, a umask and descriptors of its own. It keeps its file system.
pub struct SluiceProcess(pub(crate) Process);

fn give(process: Process, out: &mut *mut SluiceProcess) {
    *out = Box::into_raw(Box::new(SluiceProcess(process)));
}

/// Makes a process with the user `uid`, the group `gid` and `count` further `groups`. User 0 may do everything.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_process_new(
    fs: Option<&SluiceFs>,
    uid: u32,
    gid: u32,
    groups: NumbersIn,
    count: usize,
    process: Option<&mut *mut SluiceProcess>,
) -> c_int {
    done(|| {
        let (fs, process, groups) = (there(fs)?, there(process)?, groups.numbers(count)?);
        let mut cred = Cred::with_groups(uid, gid, groups);
        if uid == 0 {
            cred.caps = Cred::root().caps;
        }
        give(fs.0.process(cred), process);
        Ok(())
    })
}

/// Makes a copy of a process: the same user and working directory, and descriptors that share their positions, as fork(2) leaves them.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_process_fork(
    process: Option<&SluiceProcess>,
    child: Option<&mut *mut SluiceProcess>,
) -> c_int {
    done(|| {
        let child = there(child)?;
        give(there(process)?.0.fork(), child);
        Ok(())
    })
}

/// Ends a process: its descriptors are closed, and its locks go. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_process_free(process: Option<Box<SluiceProcess>>) {
    done(|| {
        drop(process);
        Ok(())
    });
}

/// Sets the file mode creation mask. Gives the one before.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_umask(process: Option<&SluiceProcess>, mask: u32) -> c_int {
    crate::results::number(|| Ok(there(process)?.0.umask(mask) as c_int))
}

/// Changes the working directory.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_chdir(process: Option<&SluiceProcess>, path: TextIn) -> c_int {
    done(|| there(process)?.0.chdir(path.path()?))
}

/// Writes the working directory to `buffer`, with a NUL behind it. Gives its length; -ERANGE where `size` is too small.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_getcwd(process: Option<&SluiceProcess>, mut buffer: RoomOut, size: usize) -> isize {
    count(|| {
        let path = there(process)?.0.getcwd()?;
        let text = path.as_os_str().as_bytes();
        if size <= text.len() {
            return Err(Errno::ERANGE);
        }
        Ok(copy_text(text, buffer.bytes(size)?))
    })
}
