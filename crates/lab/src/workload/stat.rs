//! stat: how fast a path is walked and attributes are read.

use super::{Seat, Task, wrong};
use crate::failure::Result;
use crate::target::{CallResult, Calls, Meta, Target, write_new_file};

pub(super) fn task(seat: Seat) -> Box<dyn Task> {
    Box::new(Stat { path: format!("{}/file", seat.dir), last: None })
}

struct Stat {
    path: String,
    last: Option<Meta>, // what the last step saw
}

impl Task for Stat {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        write_new_file(calls, &self.path, 0o600, b"twelve bytes")
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        self.last = Some(calls.stat(&self.path)?);
        Ok(true)
    }

    fn verify(&mut self, _: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        match self.last {
            None | Some(Meta { size: 12, nlink: 1, mode: 0o100_600 }) => Ok(()),
            Some(other) => wrong(format!("stat gave {other:?}")),
        }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        calls.unlink(&self.path)
    }
}
