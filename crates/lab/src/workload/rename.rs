//! Rename: how fast a file moves between two names.

use super::place::{FilePlace, check_absent};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Target, read_file, write_new_file};
use sluice_console::failure::Result;

/// Between two names of one directory: one's own, or the one of all.
pub(super) fn within(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    let first = seat.spot(place).path;
    let second = format!("{first}-renamed");
    Box::new(Rename { names: [first, second], at: 0 })
}

/// From a directory of one's own into the one of all, and back.
pub(super) fn across(seat: &Seat) -> Box<dyn Task> {
    Box::new(Rename { names: [seat.spot(FilePlace::Own).path, seat.spot(FilePlace::Beside).path], at: 0 })
}

struct Rename {
    names: [String; 2],
    at: usize, // under which of them the file is
}

impl Task for Rename {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        write_new_file(calls, &self.names[0], 0o600, b"contents")
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        calls.rename(&self.names[self.at], &self.names[1 - self.at])?;
        self.at = 1 - self.at;
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        check_absent(calls, &self.names[1 - self.at])?;
        let contents = read_file(calls, &self.names[self.at])?;
        if contents == b"contents" { Ok(()) } else { wrong("the renamed file holds something else") }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        calls.unlink(&self.names[self.at])
    }
}
