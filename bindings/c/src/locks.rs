//! File locks: byte ranges of a process or of an open file, and flock.

use crate::files::whence;
use crate::process::SluiceProcess;
use crate::results::{done, there};
use sluice_vfs::{Cancel, Errno, Fd, FileLock, FlockOperation, LockType};
use std::ffi::c_int;
use std::time::Duration;

/// A lock of a range of bytes, as struct flock has it.
#[repr(C)]
pub struct SluiceLock {
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub lock_type: i32,
    /// The origin of `start`: SEEK_SET, SEEK_CUR or SEEK_END.
    pub whence: i32,
    /// The first byte.
    pub start: i64,
    /// How many bytes; 0 for all to the end of the file, however it grows.
    pub len: i64,
    /// Set by sluice_getlk(): the process that has the lock, -1 for the lock of an open file.
    pub pid: i64,
}

/// `<fcntl.h>`'s numbers of the types, in their order.
const TYPES: [LockType; 3] = [LockType::Read, LockType::Write, LockType::Unlock];

impl SluiceLock {
    fn read(&self) -> Result<FileLock, Errno> {
        let kind = usize::try_from(self.lock_type).ok().and_then(|number| TYPES.get(number));
        let mut lock = FileLock::range(*kind.ok_or(Errno::EINVAL)?, self.start, self.len);
        lock.whence = whence(self.whence)?;
        Ok(lock)
    }

    fn set(&mut self, lock: FileLock) {
        let number = TYPES.iter().position(|kind| *kind == lock.kind);
        *self = SluiceLock {
            lock_type: number.unwrap_or(0) as i32,
            whence: 0,
            start: lock.start,
            len: lock.len,
            pid: lock.pid.into(),
        };
    }
}

/// Ends a wait after `milliseconds` (-ETIMEDOUT); never if they are below 0.
fn patience(milliseconds: i64) -> Cancel {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Cancel::with_timeout(Duration::from_millis(milliseconds)),
        Err(_) => Cancel::new(),
    }
}

/// Sets or removes a lock of the process. -EAGAIN where another one is in the way.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_setlk(
    process: Option<&SluiceProcess>,
    fd: c_int,
    lock: Option<&SluiceLock>,
) -> c_int {
    done(|| there(process)?.0.fcntl_setlk(Fd(fd), &there(lock)?.read()?))
}

/// Sets a lock of the process, and waits for `timeout_ms` at the most (-ETIMEDOUT), or without end if that is below 0. -EDEADLK where processes
/// would wait for each other for ever.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_setlkw(
    process: Option<&SluiceProcess>,
    fd: c_int,
    lock: Option<&SluiceLock>,
    timeout_ms: i64,
) -> c_int {
    done(|| there(process)?.0.fcntl_setlkw(Fd(fd), &there(lock)?.read()?, &patience(timeout_ms)))
}

/// Puts a lock of another process to `lock` that is in its way; its type becomes F_UNLCK where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_getlk(
    process: Option<&SluiceProcess>,
    fd: c_int,
    lock: Option<&mut SluiceLock>,
) -> c_int {
    done(|| {
        let lock = there(lock)?;
        let found = there(process)?.0.fcntl_getlk(Fd(fd), &lock.read()?)?;
        lock.set(found);
        Ok(())
    })
}

/// Sets or removes a lock of the open file. -EAGAIN where another one is in the way.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_ofd_setlk(
    process: Option<&SluiceProcess>,
    fd: c_int,
    lock: Option<&SluiceLock>,
) -> c_int {
    done(|| there(process)?.0.ofd_setlk(Fd(fd), &there(lock)?.read()?))
}

/// Sets a lock of the open file, and waits as sluice_setlkw() does.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_ofd_setlkw(
    process: Option<&SluiceProcess>,
    fd: c_int,
    lock: Option<&SluiceLock>,
    timeout_ms: i64,
) -> c_int {
    done(|| there(process)?.0.ofd_setlkw(Fd(fd), &there(lock)?.read()?, &patience(timeout_ms)))
}

/// Locks or unlocks the whole file: LOCK_SH, LOCK_EX or LOCK_UN, without waiting with LOCK_NB.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_flock(process: Option<&SluiceProcess>, fd: c_int, operation: c_int) -> c_int {
    /// The value in `<sys/file.h>`.
    const LOCK_NB: c_int = 4;
    done(|| {
        let asked = match operation & !LOCK_NB {
            1 => FlockOperation::Shared,
            2 => FlockOperation::Exclusive,
            8 => FlockOperation::Unlock,
            _ => return Err(Errno::EINVAL),
        };
        let process = &there(process)?.0;
        if operation & LOCK_NB != 0 || asked == FlockOperation::Unlock {
            return process.flock(Fd(fd), asked);
        }
        process.flock_wait(Fd(fd), asked, &Cancel::new())
    })
}
