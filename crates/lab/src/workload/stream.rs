//! Stream: one long file, read or written from its beginning to its end, in pieces that programs use for that.

use super::place::{FilePlace, Spot};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Handle, Open, Target};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

const PIECE: usize = 128 << 10;
/// The longest the file gets.
const LONGEST: u64 = 16 << 20;
const BYTE: u8 = b's';

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    Read,
    Write,
}

pub(super) fn task(seat: &Seat, stream: Stream) -> Box<dyn Task> {
    Box::new(Streaming {
        file: seat.spot(FilePlace::Own),
        stream,
        open: None,
        at: 0,
        piece: vec![BYTE; PIECE],
    })
}

struct Streaming {
    file: Spot,
    stream: Stream,
    open: Option<Handle>, // from prepare to tidy
    at: u64,              // how far it has come
    piece: Vec<u8>,
}

impl Streaming {
    fn write(&mut self, calls: &mut dyn Calls, file: Handle) -> CallResult<usize> {
        if self.at == LONGEST {
            calls.ftruncate(file, 0)?;
            self.at = 0;
        }
        calls.pwrite(file, &self.piece, self.at)
    }

    fn read(&mut self, calls: &mut dyn Calls, file: Handle) -> CallResult<usize> {
        self.at %= LONGEST;
        calls.pread(file, &mut self.piece, self.at)
    }
}

impl Task for Streaming {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if self.open.is_some() {
            return Ok(());
        }
        self.file.make(calls, b"", 0)?;
        let file = calls.open(&self.file.path, Open::ReadWrite)?;
        self.open = Some(file);
        while self.stream == Stream::Read && self.at < LONGEST {
            self.at += self.write(calls, file)? as u64;
        }
        Ok(())
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = self.open.ok_or(Errno::EBADF)?;
        let count = match self.stream {
            Stream::Read => self.read(calls, file)?,
            Stream::Write => self.write(calls, file)?,
        };
        self.at += count as u64;
        if count == PIECE { Ok(true) } else { Err(Errno::EIO) }
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        let expected = if self.stream == Stream::Read { LONGEST } else { self.at };
        let size = calls.stat(&self.file.path)?.size;
        if size != expected {
            return wrong(format!("the file has {size} bytes, not {expected}"));
        }
        let file = self.open.ok_or(Errno::EBADF)?;
        let last = expected.saturating_sub(PIECE as u64);
        let count = calls.pread(file, &mut self.piece, last)?;
        if self.piece[..count].iter().all(|&byte| byte == BYTE) {
            Ok(())
        } else {
            wrong("the end of the file is not what was written")
        }
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        if let Some(file) = self.open.take() {
            calls.close(file)?;
        }
        self.file.remove(calls)
    }
}
