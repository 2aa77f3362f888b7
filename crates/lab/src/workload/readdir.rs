//! Directory reading: how fast a directory is listed, alone or while names in it come and go.

use super::place::FilePlace;
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Open, Target, write_new_file};
use sluice_console::failure::Result;
use std::collections::HashSet;

/// Names that stay.
const NAMES: usize = 1000;

/// Lists a directory of one's own, or the one of all.
pub(super) fn list(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    let shared = place == FilePlace::Same;
    let dir = if shared { &seat.shared } else { &seat.dir }.clone();
    Box::new(Readdir { dir, shared, last: NAMES, guest: None, steps: 0 })
}

/// Lists the directory of all and unlinks a name in it, in turn; half of the tasks begin with the one, half with
/// the other.
pub(super) fn beside_unlink(seat: &Seat) -> Box<dyn Task> {
    let guest = Some(format!("{}/guest-{}", seat.shared, seat.index));
    Box::new(Readdir { dir: seat.shared.clone(), shared: true, last: NAMES, guest, steps: seat.index })
}

struct Readdir {
    dir: String,
    shared: bool,
    last: usize,           // names that stay, as the last step saw them
    guest: Option<String>, // a name that is unlinked and created
    steps: usize,
}

impl Readdir {
    fn path(&self, number: usize) -> String {
        format!("{}/stays-{number:04}", self.dir)
    }
}

impl Task for Readdir {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        let how = if self.shared { Open::Create(0o600) } else { Open::New(0o600) };
        for number in 0..NAMES {
            let file = calls.open(&self.path(number), how)?;
            calls.close(file)?;
        }
        self.guest.iter().try_for_each(|guest| write_new_file(calls, guest, 0o600, b""))
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        self.steps += 1;
        if let Some(guest) = self.guest.as_ref().filter(|_| self.steps.is_multiple_of(2)) {
            calls.unlink(guest)?;
            write_new_file(calls, guest, 0o600, b"")?;
            return Ok(true);
        }
        self.last = 0;
        calls.read_dir(&self.dir, &mut |name, _| self.last += usize::from(name.starts_with(b"stays-")))?;
        Ok(true)
    }

    /// Names that stay are there once, whatever comes and goes beside them; guests may be met twice.
    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let (mut names, mut twice) = (HashSet::new(), 0);
        calls.read_dir(&self.dir, &mut |name, _| {
            twice += usize::from(name.starts_with(b"stays-") && !names.insert(name.to_vec()));
        })?;
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
        self.guest.iter().try_for_each(|guest| calls.unlink(guest))?;
        if self.shared { Ok(()) } else { (0..NAMES).try_for_each(|number| calls.unlink(&self.path(number))) }
    }
}
