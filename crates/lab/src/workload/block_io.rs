//! Block I/O: file data, a block at a time, in memory.

use super::place::{FilePlace, Spot};
use super::{Seat, Task, wrong};
use crate::target::{BLOCK, Block, CallResult, Calls, Handle, Open, Target, read_file};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

/// Blocks that a task goes through in turn, where it does not stay at one.
pub(super) const MANY: usize = 256;

/// The operation on each block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Read,
    Overwrite,
    /// Overwrite it and wait until it is durable.
    OverwriteSync,
}

/// Which calls say where the block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// `pread` and `pwrite`.
    Given,
    /// `lseek` before each `read` or `write`.
    Sought,
    /// Where the last `read` or `write` ended; `lseek` only back to the start.
    Followed,
}

/// The owner of the blocks in a shared file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocks {
    /// Each task has blocks of its own.
    Private,
    /// All tasks use the same blocks.
    Common,
}

/// How a task works on a file.
pub(super) struct Pattern {
    pub(super) place: FilePlace,
    pub(super) direction: Direction,
    pub(super) position: Position,
    /// How many blocks there are to go through.
    pub(super) count: usize,
    pub(super) blocks: Blocks,
    /// Past the page cache.
    pub(super) direct: bool,
}

impl Pattern {
    /// Through the page cache.
    pub(super) fn new(
        place: FilePlace,
        direction: Direction,
        position: Position,
        count: usize,
        blocks: Blocks,
    ) -> Pattern {
        Pattern { place, direction, position, count, blocks, direct: false }
    }
}

pub(super) fn task(seat: &Seat, pattern: Pattern) -> Box<dyn Task> {
    let private = pattern.place == FilePlace::Same && pattern.blocks == Blocks::Private;
    let first = if private { seat.index * pattern.count } else { 0 };
    let byte = if pattern.direction == Direction::Read { 0 } else { b'w' };
    Box::new(BlockIo {
        file: seat.spot(pattern.place),
        pattern,
        first,
        open: None,
        steps: 0,
        buf: Box::new(Block([byte; BLOCK])),
    })
}

/// Reads or overwrites block 0, 1, 2, ... and again from 0.
struct BlockIo {
    file: Spot,
    pattern: Pattern,
    first: usize,         // block 0 in the file, counted in blocks
    open: Option<Handle>, // from prepare to tidy
    steps: usize,
    buf: Box<Block>,
}

impl BlockIo {
    /// The content of a block before the first step: a byte derived from its number.
    fn before(block: usize) -> u8 {
        (block % 100) as u8 + 1
    }

    fn reads(&self) -> bool {
        self.pattern.direction == Direction::Read
    }

    /// True when another task may overwrite our blocks.
    fn contended(&self) -> bool {
        self.file.shared && self.pattern.blocks == Blocks::Common
    }

    fn transfer(&mut self, calls: &mut dyn Calls, file: Handle, block: usize) -> CallResult<usize> {
        let offset = ((self.first + block) * BLOCK) as u64;
        let wrapped = block == 0 && self.pattern.position == Position::Followed;
        if wrapped || self.pattern.position == Position::Sought {
            calls.lseek(file, offset)?;
        }
        match (self.reads(), self.pattern.position) {
            (true, Position::Given) => calls.pread(file, &mut self.buf.0, offset),
            (true, _) => calls.read(file, &mut self.buf.0),
            (false, Position::Given) => calls.pwrite(file, &self.buf.0, offset),
            (false, _) => calls.write(file, &self.buf.0),
        }
    }
}

impl Task for BlockIo {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        let contents: Vec<u8> =
            (0..self.pattern.count).flat_map(|block| [BlockIo::before(block); BLOCK]).collect();
        self.file.make(calls, &contents, (self.first * BLOCK) as u64)?;
        let how = if self.pattern.direct { Open::Direct } else { Open::ReadWrite };
        self.open = Some(calls.open(&self.file.path, how)?);
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = self.open.ok_or(Errno::EBADF)?;
        let count = self.transfer(calls, file, self.steps % self.pattern.count)?;
        if self.pattern.direction == Direction::OverwriteSync {
            calls.fsync(file)?;
        }
        self.steps += 1;
        if count == BLOCK { Ok(true) } else { Err(Errno::EIO) }
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let contents = read_file(calls, &self.file.path)?;
        let Some(ours) = contents.get(self.first * BLOCK..(self.first + self.pattern.count) * BLOCK) else {
            return wrong(format!("the file has {} bytes", contents.len()));
        };
        for (number, block) in ours.chunks(BLOCK).enumerate() {
            let (found, before) = (block[0], BlockIo::before(number));
            let overwritten = !self.reads() && number < self.steps;
            let expected = if overwritten { b'w' } else { before };
            // Two writers of one block: one of them was last, and whole.
            let whole = block.iter().all(|&byte| byte == found);
            if !whole || (found != expected && !(self.contended() && (found == b'w' || found == before))) {
                return wrong(format!("block {number} does not hold {expected:#04x} throughout"));
            }
        }
        if self.reads() && self.steps > 0 {
            let expected = BlockIo::before((self.steps - 1) % self.pattern.count);
            if self.buf.0.iter().any(|&byte| byte != expected) {
                return wrong("the last read gave another block");
            }
        }
        Ok(())
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.open.take() {
            calls.close(file)?;
        }
        self.file.remove(calls)
    }
}
