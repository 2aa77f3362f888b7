//! Transport: how messages travel between kernel and handler.
//!
//! The handler knows only [`Channel`]. There are two backends: the classic device alone, and io_uring with the classic
//! device beside it, which still carries notifications, FORGET and INTERRUPT.

pub(crate) mod crew;
pub(crate) mod dev_fuse;
mod entry;
mod late;
pub(crate) mod policy;
mod ring;
mod schedule;
pub(crate) mod uring;

use crate::reply::Reply;
use sluice_sync::Arc;
use sluice_vfs::Errno;
use std::io;

/// Where messages to the kernel go.
pub trait Channel: Send + Sync {
    /// Sends one whole message.
    ///
    /// # Errors
    /// `ENOENT`: the kernel does not know what the message is about (any more). `ENODEV`, `ENOTCONN`: the
    /// mount is gone.
    fn send(&self, message: &[u8]) -> io::Result<()>;
}

/// The right to answer one request later, from any thread.
pub(crate) struct Replier {
    channel: Arc<dyn Channel>,
    unique: u64,
}

impl Replier {
    /// For the request called `unique`.
    pub(crate) fn new(channel: Arc<dyn Channel>, unique: u64) -> Replier {
        Replier { channel, unique }
    }

    /// Answers, without a body.
    pub(crate) fn answer(self, result: Result<(), Errno>) {
        let mut reply = Reply::new();
        let message = match result {
            Ok(()) => reply.success(self.unique),
            Err(errno) => reply.failure(self.unique, errno),
        };
        // An error means that the request or the mount is gone: there is nobody left to tell.
        let _ = self.channel.send(message);
    }
}
