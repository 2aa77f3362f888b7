//! Link: a connection to another node, with a queue of frames.
//!
//! Frames are queued without waiting, and written by the thread that sends them, as far as that does not block (see
//! [`Outbox`]). A peer that takes nothing in while more than [`QUEUE_MAX`] bytes are queued is cut off: so memory is bounded,
//! whatever the peer does.

use crate::lock_class::LINK;
use crate::wire::{ATTACH_MAX, FRAME_MAX, Frame, decode, encode};
use sluice_membership::{Outbox, Secure};
use sluice_sync::Arc;
use sluice_sync::thread::Builder;
use std::io;

/// The most bytes that wait for a peer: more than a kernel's requests under way can ask for.
const QUEUE_MAX: usize = 256 << 20;
/// So many bytes are read at once: a length alone makes nothing that large.
const STEP: usize = 1 << 20;

/// A connection.
pub(crate) struct Link {
    secure: Arc<Secure>,
    outbox: Outbox<()>,
}

impl Link {
    /// With a thread that writes what the kernel does not take at once.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(secure: Secure) -> io::Result<Arc<Link>> {
        let link = Arc::new(Link { secure: Arc::new(secure), outbox: Outbox::new(&LINK, ()) });
        link.outbox.connect(link.secure.clone(), |(), _| {});
        let writer = link.clone();
        Builder::new().name("cluster-write".into()).spawn(move || writer.outbox.write())?;
        Ok(link)
    }

    /// Queues a frame, to be written by [`flush`](Self::flush). A frame for a closed link is lost.
    pub(crate) fn queue(&self, frame: &Frame) {
        let queued = self.outbox.queue(|(), out| {
            out.map_or(0, |out| {
                encode(frame, out);
                out.len()
            })
        });
        if queued.is_some_and(|len| len > QUEUE_MAX) {
            log::error!("a node that takes nothing in is cut off");
            self.close();
        }
    }

    /// Writes the queue as far as possible without blocking. To be called with nothing locked.
    pub(crate) fn flush(&self) {
        self.outbox.flush();
    }

    /// Sends a frame. To be called with nothing locked.
    pub(crate) fn send(&self, frame: &Frame) {
        self.queue(frame);
        self.flush();
    }

    /// The next frame, which may be the first. For one thread.
    ///
    /// # Errors
    /// The connection's; `InvalidData` if it is none.
    pub(crate) fn read(&self, is_first: bool) -> io::Result<Frame> {
        let mut length = [0; 4];
        self.secure.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > if is_first { ATTACH_MAX } else { FRAME_MAX } {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let from = bytes.len();
            bytes.resize(length.min(from + STEP), 0);
            self.secure.read_exact(&mut bytes[from..])?;
        }
        decode(&bytes)
    }

    /// Ends it for both sides.
    pub(crate) fn close(&self) {
        self.outbox.close();
        self.secure.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.outbox.is_connected()
    }
}
