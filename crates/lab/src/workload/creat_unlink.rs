//! Create and unlink: how fast a name and its inode come and go.

use super::place::{FilePlace, Spot, check_absent};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Target};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

/// A file of `size` bytes comes and goes.
pub(super) fn task(seat: &Seat, place: FilePlace, size: usize) -> Box<dyn Task> {
    Box::new(CreatUnlink { file: seat.spot(place), contents: vec![b'c'; size] })
}

struct CreatUnlink {
    file: Spot,
    contents: Vec<u8>,
}

impl CreatUnlink {
    fn create(&self, calls: &mut dyn Calls) -> CallResult<()> {
        let file = self.file.open_new(calls)?;
        if !self.contents.is_empty() && calls.write(file, &self.contents)? < self.contents.len() {
            return Err(Errno::EIO);
        }
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
        let (stat, size) = (calls.stat(&self.file.path)?, self.contents.len() as u64);
        calls.unlink(&self.file.path)?;
        if (stat.nlink, stat.size) == (1, size) {
            Ok(())
        } else {
            wrong(format!("a new file has {} links and {} bytes, not 1 and {size}", stat.nlink, stat.size))
        }
    }

    fn tidy(&mut self, _: &mut dyn Calls) -> CallResult<()> {
        Ok(())
    }
}
