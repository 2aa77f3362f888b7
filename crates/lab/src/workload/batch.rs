//! Batches: many empty files made one after the other, or removed, without the other operation in between.

use super::place::{FilePlace, check_absent, make_dir};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Open, Target, remove_tree};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

/// Files of a pass.
const FILES: usize = 1000;
/// Directories that `fsmark` goes through.
const MANY_DIRECTORIES: usize = 20;

/// Which half is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    Create,
    /// Each is made durable before the next one.
    CreateSync,
    Unlink,
}

/// Files in one directory: one's own (`Own`) or that of all.
pub(super) fn in_one_directory(seat: &Seat, place: FilePlace, half: Half) -> Box<dyn Task> {
    let paths = match place {
        FilePlace::Own => (0..FILES).map(|n| format!("{}/file-{n}", seat.dir)).collect(),
        _ => (0..FILES).map(|n| format!("{}/file-{}-{n}", seat.shared, seat.index)).collect(),
    };
    Box::new(FileBatch { half, dirs: Vec::new(), paths, done: 0 })
}

/// Files in many directories of one's own, in turn, with names as long as those of the original: 40 bytes, which is
/// more than Linux keeps inside a dentry.
pub(super) fn in_many_directories(seat: &Seat, half: Half) -> Box<dyn Task> {
    let dirs: Vec<String> = (0..MANY_DIRECTORIES).map(|n| format!("{}/dir-{n}", seat.dir)).collect();
    let paths = (0..FILES).map(|n| format!("{}/{n:040}", dirs[n % MANY_DIRECTORIES])).collect();
    Box::new(FileBatch { half, dirs, paths, done: 0 })
}

struct FileBatch {
    half: Half,
    dirs: Vec<String>,
    paths: Vec<String>,
    done: usize, // files of this pass that the timed half has dealt with
}

impl FileBatch {
    /// Removes what there may be of the files.
    fn clear(&self, calls: &mut dyn Calls) -> CallResult<()> {
        self.paths.iter().try_for_each(|path| match calls.unlink(path) {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        })
    }
}

fn create(calls: &mut dyn Calls, path: &str, half: Half) -> CallResult<()> {
    let file = calls.open(path, Open::New(0o600))?;
    if half == Half::CreateSync {
        calls.fsync(file)?;
    }
    calls.close(file)
}

impl Task for FileBatch {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.done = 0;
        self.dirs.iter().try_for_each(|dir| make_dir(calls, dir))?;
        self.clear(calls)?;
        if self.half == Half::Unlink {
            self.paths.iter().try_for_each(|path| create(calls, path, self.half))?;
        }
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let path = &self.paths[self.done];
        match self.half {
            Half::Create | Half::CreateSync => create(calls, path, self.half)?,
            Half::Unlink => calls.unlink(path)?,
        }
        self.done += 1;
        Ok(self.done < self.paths.len())
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        for (number, path) in self.paths.iter().enumerate() {
            if (number < self.done) == (self.half == Half::Unlink) {
                check_absent(calls, path)?;
            } else if calls.stat(path)?.nlink != 1 {
                return wrong(format!("{path} has not one link"));
            }
        }
        Ok(())
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.clear(calls)?;
        self.dirs.iter().try_for_each(|dir| remove_tree(calls, dir))
    }
}
