//! creat-unlink: how fast a name and its inode come and go.

use super::{Seat, Task, wrong};
use crate::failure::Result;
use crate::target::{CallResult, Calls, Open, Target};

pub(super) fn task(seat: Seat) -> Box<dyn Task> {
    Box::new(CreatUnlink { path: format!("{}/file", seat.dir), dir: seat.dir })
}

struct CreatUnlink {
    dir: String,
    path: String,
}

impl Task for CreatUnlink {
    fn prepare(&mut self, _: &mut dyn Calls) -> CallResult<()> {
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = calls.open(&self.path, Open::New(0o600))?;
        calls.close(file)?;
        calls.unlink(&self.path)?;
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let mut names = 0;
        calls.read_dir(&self.dir, &mut |_, _| names += 1)?;
        if names > 0 {
            return wrong(format!("{names} names are left"));
        }
        // The step itself must have had an effect: a file that is made can be seen.
        let file = calls.open(&self.path, Open::New(0o600))?;
        calls.close(file)?;
        let nlink = calls.stat(&self.path)?.nlink;
        calls.unlink(&self.path)?;
        if nlink == 1 { Ok(()) } else { wrong(format!("a new file has {nlink} links")) }
    }

    fn tidy(&mut self, _: &mut dyn Calls) -> CallResult<()> {
        Ok(())
    }
}
