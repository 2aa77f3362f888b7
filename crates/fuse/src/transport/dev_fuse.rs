//! The classic backend: requests are read from `/dev/fuse`, answers are written to it.
//!
//! Worker threads read the same descriptor; the kernel hands each request to one of them. The [`Crew`] decides which of
//! them read.

use super::Channel;
use super::crew::Crew;
use crate::abi::InHeader;
use crate::connected::is_connected;
use crate::connection::Connection;
use crate::reply::Reply;
use rustix::io::Errno;
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::FromBytes;

/// How long FORGETs gather.
const GATHER: Duration = Duration::from_millis(1);

/// The largest part of a WRITE message that is not data, with room to spare. The kernel refuses to deliver
/// anything into a buffer smaller than this and `max_write` together.
pub const HEADROOM: usize = 4096;

/// An open `/dev/fuse` that belongs to a mount.
#[derive(Debug)]
pub struct DevFuse(OwnedFd);

impl DevFuse {
    /// For `device`, which is mounted.
    pub fn new(device: OwnedFd) -> DevFuse {
        DevFuse(device)
    }

    /// Waits for one message and puts it into `buffer`. `None`: the mount is gone.
    ///
    /// # Errors
    /// Errors that no retry would cure.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            return match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => Ok(Some(len)),
                Err(Errno::NODEV | Errno::CONNABORTED) => Ok(None),
                // NOENT: the request was withdrawn between being chosen and being copied.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// Whether the mount still exists, here or in another mount namespace.
    pub fn is_connected(&self) -> bool {
        is_connected(self.0.as_fd())
    }
}

/// Serves what comes by `device`, in messages of at most `buffer_len` bytes, until the mount is gone. `crew` says when this
/// worker reads; without one it is alone, beside rings, and waits a little after each message, so that FORGETs gather.
///
/// # Errors
/// Errors that no retry would cure.
pub(crate) fn serve(
    device: &DevFuse,
    buffer_len: usize,
    connection: &Connection,
    crew: Option<&Crew>,
) -> io::Result<()> {
    let mut buffer = vec![0; buffer_len];
    let mut reply = Reply::new();
    let turn = connection.turns.join();
    let mut member = crew.map(Crew::join);
    let mut held = connection.join_held();
    loop {
        if let Some(member) = &mut member
            && !member.is_to_read()
        {
            turn.standing_by(|| member.await_turn());
        }
        let Some(len) = device.receive(&mut buffer)? else { return Ok(()) };
        let message = &buffer[..len];
        let (client, opcode) =
            InHeader::read_from_prefix(message).map_or((0, 0), |(header, _)| (header.pid, header.opcode));
        let mut serve = || match &mut held {
            Some(worker) => connection.serve_held(message, &mut reply, worker),
            None => connection.serve(message, &mut reply),
        };
        // Around the member's part, which may sleep.
        turn.during(opcode, || match &mut member {
            Some(member) => member.during(client, serve),
            None => serve(),
        });
        if member.is_none() {
            thread::sleep(GATHER);
        }
        connection.serve_due(&mut reply);
    }
}

impl AsFd for DevFuse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel for DevFuse {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        // Each write is a message: the device takes it whole or not at all.
        loop {
            return match rustix::io::write(&self.0, message) {
                Ok(_) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(errno.into()),
            };
        }
    }
}
