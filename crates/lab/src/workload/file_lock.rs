//! posix01 and 02, flock01 and 02, ofd02: each task locks and unlocks one file of all (01), or a file of its own (02).

use super::place::{FilePlace, Spot};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Handle, Lock, Open, Target, with_task};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

pub(super) fn posix(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    task(seat, place, |calls, file, lock| calls.posix_lock(file, lock, 0))
}

/// One byte, as will-it-scale has it: Linux prepares for two more locks when it gives back a part of a file.
pub(super) fn posix_byte(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    task(seat, place, |calls, file, lock| calls.posix_lock(file, lock, 1))
}

pub(super) fn ofd(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    task(seat, place, |calls, file, lock| calls.ofd_lock(file, lock))
}

pub(super) fn flock(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    task(seat, place, |calls, file, lock| calls.flock(file, lock))
}

type LockCall = fn(&mut dyn Calls, Handle, Lock) -> CallResult<()>;

fn task(seat: &Seat, place: FilePlace, call: LockCall) -> Box<dyn Task> {
    Box::new(LockLoop { spot: seat.spot(place), call, file: None })
}

struct LockLoop {
    spot: Spot,
    call: LockCall,
    file: Option<Handle>, // open from prepare to tidy
}

impl Task for LockLoop {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.file = Some(self.spot.open_new(calls)?);
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = self.file.ok_or(Errno::EBADF)?;
        // No other task wants a file of one's own: a wait there would be an error.
        let lock = if self.spot.shared { Lock::ExclusiveWait } else { Lock::Exclusive };
        (self.call)(calls, file, lock)?;
        (self.call)(calls, file, Lock::Unlock)?;
        Ok(true)
    }

    /// Another owner is kept out while the lock is held and let in afterwards.
    fn verify(&mut self, calls: &mut dyn Calls, target: &dyn Target) -> Result<()> {
        let (path, call, file) = (&self.spot.path, self.call, self.file.ok_or(Errno::EBADF)?);
        let another_owner_tries = || {
            with_task(target, |other| {
                let file = other.open(path, Open::ReadWrite)?;
                let outcome = call(other, file, Lock::Exclusive);
                other.close(file)?;
                Ok(outcome)
            })
        };
        call(calls, file, Lock::ExclusiveWait)?;
        let while_held = another_owner_tries()?;
        call(calls, file, Lock::Unlock)?;
        // In a shared file another task may have the lock.
        let after = if self.spot.shared { Ok(()) } else { another_owner_tries()? };
        if (while_held, after) == (Err(Errno::EAGAIN), Ok(())) {
            return Ok(());
        }
        wrong(format!("a second owner got {while_held:?} while the lock was held and {after:?} afterwards"))
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.file.take() {
            calls.close(file)?;
        }
        self.spot.remove(calls)
    }
}
