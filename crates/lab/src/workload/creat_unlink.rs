//! Create and unlink: how fast a name and its inode come and go.

use super::place::{Place, Spot, check_absent};
use super::{Seat, Task, wrong};
use crate::failure::Result;
use crate::target::{CallResult, Calls, Target};

pub(super) fn task(seat: &Seat, place: Place) -> Box<dyn Task> {
    Box::new(CreatUnlink { file: seat.spot(place) })
}

struct CreatUnlink {
    file: Spot,
}

impl CreatUnlink {
    fn create(&self, calls: &mut dyn Calls) -> CallResult<()> {
        let file = self.file.open_new(calls)?;
        calls.close(file)
    }
}

impl Task for CreatUnlink {
    fn prepare(&mut self, _: &mut dyn Calls) -> CallResult<()> {
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        self.create(calls)?;
        calls.unlink(&self.file.path)?;
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        check_absent(calls, &self.file.path)?;
        // The step itself must have had an effect: a file that is made can be seen.
        self.create(calls)?;
        let nlink = calls.stat(&self.file.path)?.nlink;
        calls.unlink(&self.file.path)?;
        if nlink == 1 { Ok(()) } else { wrong(format!("a new file has {nlink} links")) }
    }

    fn tidy(&mut self, _: &mut dyn Calls) -> CallResult<()> {
        Ok(())
    }
}
