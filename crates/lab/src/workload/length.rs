//! Length: files that grow at their end, are cut, or have space reserved.

use super::place::{FilePlace, Spot};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Handle, Open, Target};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

const BLOCK: u64 = 4096;
/// The longest a file gets, in blocks.
const LONGEST: u64 = 1024;

/// How the length changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LengthChange {
    /// Append a block; cut the file to nothing when it is full, within one step in 1,024.
    Append,
    /// Append a block and wait until it is durable.
    AppendSync,
    /// Cut a block off a file of written blocks, until nothing is left.
    Truncate,
    /// Reserve 8 KiB more; cut the file to nothing at 1 MiB.
    Allocate,
}

const RESERVED: u64 = 2;
const RESERVED_IN_ALL: u64 = 256;

pub(super) fn task(seat: &Seat, change: LengthChange) -> Box<dyn Task> {
    Box::new(Length {
        file: seat.spot(FilePlace::Own),
        change,
        open: None,
        blocks: 0,
        data: vec![b'a'; BLOCK as usize],
    })
}

struct Length {
    file: Spot,
    change: LengthChange,
    open: Option<Handle>, // from prepare to tidy
    blocks: u64,          // length of the file
    data: Vec<u8>,
}

impl Length {
    fn cut(&mut self, calls: &mut dyn Calls, file: Handle, blocks: u64) -> CallResult<()> {
        self.blocks = blocks;
        calls.ftruncate(file, blocks * BLOCK)
    }

    fn append(&mut self, calls: &mut dyn Calls, file: Handle) -> CallResult<()> {
        if self.blocks == LONGEST {
            self.cut(calls, file, 0)?;
        }
        self.blocks += 1;
        if calls.write(file, &self.data)? == self.data.len() { Ok(()) } else { Err(Errno::EIO) }
    }
}

impl Task for Length {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if self.open.is_none() {
            self.file.make(calls, b"", 0)?;
            let appends = matches!(self.change, LengthChange::Append | LengthChange::AppendSync);
            let how = if appends { Open::Append } else { Open::ReadWrite };
            self.open = Some(calls.open(&self.file.path, how)?);
        }
        if self.change == LengthChange::Truncate {
            let file = self.open.ok_or(Errno::EBADF)?;
            calls.lseek(file, 0)?;
            self.blocks = 0;
            while self.blocks < LONGEST {
                self.append(calls, file)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = self.open.ok_or(Errno::EBADF)?;
        match self.change {
            LengthChange::Append => self.append(calls, file)?,
            LengthChange::AppendSync => {
                self.append(calls, file)?;
                calls.fsync(file)?;
            }
            LengthChange::Truncate => {
                self.cut(calls, file, self.blocks - 1)?;
                return Ok(self.blocks > 0);
            }
            LengthChange::Allocate => {
                calls.fallocate(file, self.blocks * BLOCK, RESERVED * BLOCK)?;
                self.blocks += RESERVED;
                if self.blocks >= RESERVED_IN_ALL {
                    self.cut(calls, file, 0)?;
                }
            }
        }
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let size = calls.stat(&self.file.path)?.size;
        if size == self.blocks * BLOCK {
            return Ok(());
        }
        wrong(format!("the file has {size} bytes, not {} blocks", self.blocks))
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.open.take() {
            calls.close(file)?;
        }
        self.file.remove(calls)
    }
}
