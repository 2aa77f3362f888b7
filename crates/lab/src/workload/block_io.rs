//! read4k and write4k: file data, a block at a time, in memory.

use super::{Seat, Task, wrong};
use crate::failure::Result;
use crate::target::{CallResult, Calls, Handle, Open, Target, read_file, write_new_file};
use sluice_vfs::Errno;

const BLOCK: usize = 4096;
const BLOCKS: usize = 256;

pub(super) fn read(seat: Seat) -> Box<dyn Task> {
    Box::new(BlockIo::new(&seat, false))
}

pub(super) fn write(seat: Seat) -> Box<dyn Task> {
    Box::new(BlockIo::new(&seat, true))
}

/// Reads or overwrites block 0, 1, 2, ... and again from 0.
struct BlockIo {
    path: String,
    writes: bool,
    file: Option<Handle>, // open from prepare to tidy
    steps: usize,
    buf: Vec<u8>,
}

impl BlockIo {
    fn new(seat: &Seat, writes: bool) -> BlockIo {
        let buf = if writes { vec![b'w'; BLOCK] } else { vec![0; BLOCK] };
        BlockIo { path: format!("{}/file", seat.dir), writes, file: None, steps: 0, buf }
    }

    /// What the file holds before the first step: each block filled with a byte that tells its number.
    fn pattern(block: usize) -> u8 {
        (block % 251) as u8 + 1
    }
}

impl Task for BlockIo {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        let contents: Vec<u8> = (0..BLOCKS).flat_map(|block| [BlockIo::pattern(block); BLOCK]).collect();
        write_new_file(calls, &self.path, 0o600, &contents)?;
        self.file = Some(calls.open(&self.path, Open::ReadWrite)?);
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = self.file.ok_or(Errno::EBADF)?;
        let offset = (self.steps % BLOCKS * BLOCK) as u64;
        let count = if self.writes {
            calls.pwrite(file, &self.buf, offset)?
        } else {
            calls.pread(file, &mut self.buf, offset)?
        };
        self.steps += 1;
        if count == BLOCK { Ok(true) } else { Err(Errno::EIO) }
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let contents = read_file(calls, &self.path)?;
        if contents.len() != BLOCK * BLOCKS {
            return wrong(format!("the file has {} bytes", contents.len()));
        }
        for (number, block) in contents.chunks(BLOCK).enumerate() {
            let overwritten = self.writes && number < self.steps;
            let expected = if overwritten { b'w' } else { BlockIo::pattern(number) };
            if block.iter().any(|&byte| byte != expected) {
                return wrong(format!("block {number} does not hold {expected:#04x} throughout"));
            }
        }
        if !self.writes && self.steps > 0 {
            let expected = BlockIo::pattern((self.steps - 1) % BLOCKS);
            if self.buf.iter().any(|&byte| byte != expected) {
                return wrong("the last read gave another block");
            }
        }
        Ok(())
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.file.take() {
            calls.close(file)?;
        }
        calls.unlink(&self.path)
    }
}
