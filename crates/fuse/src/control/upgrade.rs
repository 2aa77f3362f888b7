//! Upgrade: both sides of the order `upgrade`, by which the server of a mount is replaced by another program.
//!
//! The client sends the order and one byte more, and with that byte its program as a descriptor. The server gives both, the program and the
//! connection, to the holder of its mount. The holder answers when the next server serves, or when the upgrade has failed.

use super::client::{answer_on, ask_and_keep, unwrap};
use crate::connection::Connection;
use crate::mount::{device_of, reach};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use sluice_sync::time::Duration;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// How long an answer may take: longer than all limits of a holder together.
const UPGRADE_MAX: Duration = Duration::from_secs(200);

/// Has the server of the mount that holds `dir` replaced by one of `program`, an open file, and says how that went. Waits as long as that
/// takes. `None` if there is no server.
///
/// # Errors
/// Errors of [`locks`](super::locks); why the server was not replaced, as a line.
pub fn upgrade(dir: &Path, program: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let Some(stream) = ask_and_keep(device_of(dir)?, b"upgrade\n")? else {
        reach(dir)?;
        return Ok(None);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let program = [program];
    // There is room for one.
    ancillary.push(SendAncillaryMessage::ScmRights(&program));
    rustix::net::sendmsg(&stream, &[IoSlice::new(b"p")], &mut ancillary, SendFlags::NOSIGNAL)?;
    let answer = answer_on(stream, Some(UPGRADE_MAX))?;
    let answer = String::from_utf8_lossy(&unwrap(answer)?).trim().to_owned();
    Ok(Some(answer))
}

/// Passes the order on. True if the server has answered.
pub(super) fn obey(stream: &mut UnixStream, connection: &Connection) -> io::Result<bool> {
    let pass_on = connection.held.get().and_then(|held| held.pass_on.get());
    let refusal = match pass_on {
        None if !connection.superblock.is_durable() => {
            "what is in memory ends with its server, so that no other can go on: copy the files, unmount, and mount with the new program\n"
        }
        None => {
            "no holder keeps this mount, so that its server cannot be replaced: unmount it and mount it with the new program (mount option holder=on)\n"
        }
        Some(pass_on) => match receive_program(stream)? {
            Some(program) => {
                let passed = pass_on(program, stream.try_clone()?);
                match passed {
                    Ok(()) => return Ok(false),
                    Err(_) => "the holder of the mount has ended: unmount the mount and mount it again\n",
                }
            }
            None => "the order came without a program\n",
        },
    };
    stream.write_all(refusal.as_bytes())?;
    Ok(true)
}

/// The program that a client sends along with one byte.
fn receive_program(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let found = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(found)
}
