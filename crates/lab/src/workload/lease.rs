//! lease01 and 02: each task takes and gives up a shared lease on one file of all (01), or on a file of its own (02).

use super::place::{FilePlace, Spot};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Handle, Open, Target};
use sluice_console::failure::Result;
use sluice_sync::thread;
use sluice_vfs::Errno;

pub(super) fn task(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    Box::new(LeaseLoop { spot: seat.spot(place), file: None })
}

struct LeaseLoop {
    spot: Spot,
    file: Option<Handle>, // open from prepare to tidy
}

impl LeaseLoop {
    fn file(&self) -> CallResult<Handle> {
        self.file.ok_or(Errno::EBADF)
    }
}

impl Task for LeaseLoop {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        // Only for reading: nobody has a shared lease on a file that anybody could write.
        match calls.open(&self.spot.path, Open::New(0o600)) {
            Ok(file) => calls.close(file)?,
            Err(Errno::EEXIST) if self.spot.shared => {}
            Err(error) => return Err(error),
        }
        let file = calls.open(&self.spot.path, Open::Read)?;
        self.file = Some(file);
        // Until the task that made the file of all has closed it.
        loop {
            match calls.lease(file, true) {
                Err(Errno::EAGAIN) => thread::yield_now(),
                taken => return taken.and_then(|()| calls.lease(file, false)),
            }
        }
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = self.file()?;
        calls.lease(file, true)?;
        calls.lease(file, false)?;
        Ok(true)
    }

    /// A lease can be given up, once.
    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let file = self.file()?;
        calls.lease(file, true)?;
        match [(); 2].map(|()| calls.lease(file, false)) {
            [Ok(()), Err(Errno::EAGAIN)] => Ok(()),
            other => wrong(format!("giving up a lease twice ended with {other:?}")),
        }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.file.take() {
            calls.close(file)?;
        }
        self.spot.remove(calls)
    }
}
