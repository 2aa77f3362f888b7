//! Streams: streams of bytes between this process and a file system that is mounted: the asking side of `transfer.rs`.

use super::OK;
use super::chunks::{CHUNK_MAX, ChunkReader, ChunkWriter, take_change};
use super::client::ask_and_keep;
use crate::mount::{device_of, reach};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use sluice_trees::NameChange;
use std::ffi::OsStr;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest line that answers a transfer, in bytes.
const LINE_MAX: usize = 8192;

/// Writes the snapshot `name` of the sluicefs mount that holds `dir` to `out`; see [`sluice_trees::send`]. `None` if no server
/// answers, as everywhere in this module.
///
/// # Errors
/// When `dir` cannot be reached; what `send` says, as a line; those of `out`.
pub fn send(
    dir: &Path,
    name: &OsStr,
    since: Option<&OsStr>,
    resume: Option<&str>,
    out: &mut dyn Write,
) -> io::Result<Option<()>> {
    // An empty name is none. A server of an earlier version takes a token for a part of a name, and finds no such snapshot.
    let since = since.map_or(&b""[..], OsStr::as_bytes);
    let mut names = name.as_bytes().to_vec();
    for part in [since, resume.unwrap_or_default().as_bytes()] {
        names.push(0);
        names.extend_from_slice(part);
    }
    while names.pop_if(|byte| *byte == 0).is_some() {}
    copy_out(dir, "send\n", &names, out)
}

/// Writes the snapshot `name` of the sluicefs mount that holds `dir` to `out` as a tar archive.
///
/// # Errors
/// Errors of [`send`].
pub fn export(dir: &Path, name: &OsStr, out: &mut dyn Write) -> io::Result<Option<()>> {
    copy_out(dir, "export\n", name.as_bytes(), out)
}

fn copy_out(dir: &Path, order: &str, text: &[u8], out: &mut dyn Write) -> io::Result<Option<()>> {
    let Some(mut answer) = TransferAnswer::begin(dir, order, text)? else { return Ok(None) };
    let mut buf = vec![0; CHUNK_MAX];
    loop {
        match answer.chunks.read(&mut buf).map_err(ended)? {
            0 => break,
            read => out.write_all(&buf[..read])?,
        }
    }
    out.flush()?;
    answer.end().map(Some)
}

/// Calls `tell` with each change between two directories of one sluicefs mount; see [`sluice_trees::changes`].
///
/// # Errors
/// Errors of [`send`]; those of `tell`.
pub fn changes(
    old: &Path,
    new: &Path,
    tell: &mut dyn FnMut(&NameChange) -> io::Result<()>,
) -> io::Result<Option<()>> {
    // While they are open, the server knows them by these numbers.
    let pin = |path: &Path| {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        io::Result::Ok((file, stat))
    };
    let (_old, was) = pin(old)?;
    let (_new, is) = pin(new)?;
    if was.st_dev != is.st_dev {
        return Err(io::Error::new(ErrorKind::CrossesDevices, "both must be in one mount"));
    }
    let order = format!("changes\n{} {} ", was.st_ino, is.st_ino);
    let Some(mut answer) = TransferAnswer::begin(new, &order, b"")? else { return Ok(None) };
    while let Some(change) = take_change(&mut answer.chunks).map_err(ended)? {
        tell(&change)?;
    }
    answer.end().map(Some)
}

/// Makes a snapshot of the stream `input` in the sluicefs mount that holds `dir`; see [`sluice_trees::receive`].
///
/// # Errors
/// Errors of [`send`]; those of `input`.
pub fn receive(dir: &Path, input: &mut dyn Read) -> io::Result<Option<()>> {
    let Some(answer) = TransferAnswer::begin_with(dir, b"receive\n")? else { return Ok(None) };
    let stream = answer.chunks.input.get_ref().try_clone()?;
    let mut chunks = ChunkWriter(&stream);
    let mut buf = vec![0; CHUNK_MAX];
    loop {
        match input.read(&mut buf) {
            // Why it could not be sent the server says, or its end.
            Ok(0) => break drop(chunks.end()),
            Ok(_) if has_answered(&stream)? => break,
            Ok(read) if chunks.write_all(&buf[..read]).is_err() => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    answer.end().map(Some)
}

/// Whether the server has said something: then it reads no more.
fn has_answered(stream: &UnixStream) -> io::Result<bool> {
    let mut waiting = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!waiting[0].revents().is_empty())
}

/// The answer of a server to an order that it serves.
struct TransferAnswer {
    chunks: ChunkReader<BufReader<UnixStream>>,
}

impl TransferAnswer {
    fn begin(dir: &Path, order: &str, text: &[u8]) -> io::Result<Option<TransferAnswer>> {
        TransferAnswer::begin_with(
            dir,
            &[order.as_bytes(), format!("{}\n", text.len()).as_bytes(), text].concat(),
        )
    }

    /// Gives `order`, which is begun, or refused with a line.
    fn begin_with(dir: &Path, order: &[u8]) -> io::Result<Option<TransferAnswer>> {
        let Some(stream) = ask_and_keep(device_of(dir)?, order)? else {
            reach(dir)?;
            return Ok(None);
        };
        let mut answer = TransferAnswer { chunks: ChunkReader::new(BufReader::new(stream)) };
        answer.line()?;
        let stream = answer.chunks.input.get_ref();
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(Some(answer))
    }

    /// Reads a line: "ok", or the error that it is.
    fn line(&mut self) -> io::Result<()> {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.last() != Some(&b'\n') && line.len() < LINE_MAX {
            self.chunks.input.read_exact(&mut byte).map_err(ended)?;
            line.push(byte[0]);
        }
        match line.as_slice() == OK.as_bytes() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&line).trim_end().to_owned())),
        }
    }

    /// Reads the last line, after all chunks.
    fn end(mut self) -> io::Result<()> {
        self.line()
    }
}

/// The error of a connection that ended too early.
fn ended(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            io::Error::new(error.kind(), "the server of the mount ended before the transfer did")
        }
        _ => error,
    }
}
