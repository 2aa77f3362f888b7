//! Descriptor: calls that concern an open file and not its contents.

use super::place::{FilePlace, Spot};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Handle, Open, Target};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

pub(super) fn dup(seat: &Seat) -> Box<dyn Task> {
    task(seat, FilePlace::Own, |calls, file| {
        let other = calls.dup(file)?;
        calls.close(other)
    })
}

pub(super) fn lseek(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    task(seat, place, |calls, file| calls.lseek(file, 0))
}

type DescriptorCall = fn(&mut dyn Calls, Handle) -> CallResult<()>;

fn task(seat: &Seat, place: FilePlace, step: DescriptorCall) -> Box<dyn Task> {
    Box::new(Descriptor { file: seat.spot(place), step, open: None })
}

struct Descriptor {
    file: Spot,
    step: DescriptorCall,
    open: Option<Handle>, // from prepare to tidy
}

impl Task for Descriptor {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.file.make(calls, b"contents", 0)?;
        self.open = Some(calls.open(&self.file.path, Open::ReadWrite)?);
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        (self.step)(calls, self.open.ok_or(Errno::EBADF)?)?;
        Ok(true)
    }

    /// The descriptor still stands at the start of its file.
    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let (file, mut found) = (self.open.ok_or(Errno::EBADF)?, [0; 8]);
        let count = calls.read(file, &mut found)?;
        if (count, &found) == (8, b"contents") { Ok(()) } else { wrong("the descriptor has moved") }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.open.take() {
            calls.close(file)?;
        }
        self.file.remove(calls)
    }
}
