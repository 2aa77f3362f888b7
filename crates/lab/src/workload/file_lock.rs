//! posix02 and flock02: uncontended file locks, each task on a file of its own.

use super::{Seat, Task, wrong};
use crate::failure::Result;
use crate::target::{CallResult, Calls, Handle, Lock, Open, Target, with_task, write_new_file};
use sluice_vfs::Errno;

pub(super) fn posix(seat: Seat) -> Box<dyn Task> {
    task(seat, |calls, file, lock| calls.posix_lock(file, lock))
}

pub(super) fn flock(seat: Seat) -> Box<dyn Task> {
    task(seat, |calls, file, lock| calls.flock(file, lock))
}

type LockCall = fn(&mut dyn Calls, Handle, Lock) -> CallResult<()>;

fn task(seat: Seat, call: LockCall) -> Box<dyn Task> {
    Box::new(FileLock { path: format!("{}/file", seat.dir), call, file: None })
}

struct FileLock {
    path: String,
    call: LockCall,
    file: Option<Handle>, // open from prepare to tidy
}

impl Task for FileLock {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        write_new_file(calls, &self.path, 0o600, b"")?;
        self.file = Some(calls.open(&self.path, Open::ReadWrite)?);
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = self.file.ok_or(Errno::EBADF)?;
        (self.call)(calls, file, Lock::Exclusive)?;
        (self.call)(calls, file, Lock::Unlock)?;
        Ok(true)
    }

    /// Another owner is kept out while the lock is held and let in afterwards.
    fn verify(&mut self, calls: &mut dyn Calls, target: &dyn Target) -> Result<()> {
        let (path, call, file) = (&self.path, self.call, self.file.ok_or(Errno::EBADF)?);
        let another_owner_tries = || {
            with_task(target, |other| {
                let file = other.open(path, Open::ReadWrite)?;
                let outcome = call(other, file, Lock::Exclusive);
                other.close(file)?;
                Ok(outcome)
            })
        };
        call(calls, file, Lock::Exclusive)?;
        let while_held = another_owner_tries()?;
        call(calls, file, Lock::Unlock)?;
        let after = another_owner_tries()?;
        if (while_held, after) == (Err(Errno::EAGAIN), Ok(())) {
            return Ok(());
        }
        wrong(format!("a second owner got {while_held:?} while the lock was held and {after:?} afterwards"))
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.file.take() {
            calls.close(file)?;
        }
        calls.unlink(&self.path)
    }
}
