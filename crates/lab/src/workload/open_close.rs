//! open-close: how fast a file is found and a descriptor made and given back.

use super::{Seat, Task, wrong};
use crate::failure::Result;
use crate::target::{CallResult, Calls, Open, Target, read_file, write_new_file};

pub(super) fn task(seat: Seat) -> Box<dyn Task> {
    Box::new(OpenClose { path: format!("{}/file", seat.dir) })
}

struct OpenClose {
    path: String,
}

impl Task for OpenClose {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        write_new_file(calls, &self.path, 0o600, b"contents")
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = calls.open(&self.path, Open::ReadWrite)?;
        calls.close(file)?;
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        match read_file(calls, &self.path)? {
            contents if contents == b"contents" => Ok(()),
            other => wrong(format!("the file opened holds {} bytes of something else", other.len())),
        }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        calls.unlink(&self.path)
    }
}
