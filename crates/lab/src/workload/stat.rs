//! Stat: how fast a path is walked and attributes are read.

use super::place::{FilePlace, Spot};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Meta, Target};
use sluice_console::failure::Result;

pub(super) fn task(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    Box::new(StatLoop { file: seat.spot(place), last: None })
}

struct StatLoop {
    file: Spot,
    last: Option<Meta>, // what the last step saw
}

impl Task for StatLoop {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.file.make(calls, b"twelve bytes", 0)
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        self.last = Some(calls.stat(&self.file.path)?);
        Ok(true)
    }

    fn verify(&mut self, _: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        match self.last {
            None | Some(Meta { size: 12, nlink: 1, mode: 0o100_600 }) => Ok(()),
            Some(other) => wrong(format!("stat gave {other:?}")),
        }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.file.remove(calls)
    }
}
