//! readdir: how fast a directory is listed.

use super::{Seat, Task, wrong};
use crate::failure::Result;
use crate::target::{CallResult, Calls, Target, write_new_file};
use std::collections::HashSet;

const NAMES: usize = 1000;

pub(super) fn task(seat: Seat) -> Box<dyn Task> {
    Box::new(Readdir { dir: seat.dir, last: NAMES })
}

struct Readdir {
    dir: String,
    last: usize, // names that the last step saw
}

impl Readdir {
    fn path(&self, number: usize) -> String {
        format!("{}/name-{number:04}", self.dir)
    }
}

impl Task for Readdir {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        (0..NAMES).try_for_each(|number| write_new_file(calls, &self.path(number), 0o600, b""))
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let mut names = 0;
        calls.read_dir(&self.dir, &mut |_, _| names += 1)?;
        self.last = names;
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let (mut names, mut twice) = (HashSet::new(), 0);
        calls.read_dir(&self.dir, &mut |name, _| twice += usize::from(!names.insert(name.to_vec())))?;
        if (self.last, names.len(), twice) == (NAMES, NAMES, 0) {
            return Ok(());
        }
        wrong(format!(
            "of {NAMES} names the last list had {}, a check found {} and {twice} of them twice",
            self.last,
            names.len()
        ))
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        (0..NAMES).try_for_each(|number| calls.unlink(&self.path(number)))
    }
}
