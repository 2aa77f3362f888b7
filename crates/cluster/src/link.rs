//! Link: a connection to another node, with what is queued for it.
//!
//! Frames are queued without waiting; a thread writes what has come together since it wrote last. A peer that takes nothing in
//! while more than [`QUEUE_MAX`] bytes are queued is cut off: so memory is bounded, whatever the peer does.

use crate::lock_class::LINK;
use crate::wire::{ATTACH_MAX, FRAME_MAX, Frame, decode, encode};
use sluice_dlm::Secure;
use sluice_sync::{Arc, Condvar, Mutex};
use std::io;

/// The most bytes that wait for a peer: more than a kernel's requests under way can ask for.
const QUEUE_MAX: usize = 256 << 20;
/// So many bytes are read at once: a length alone makes nothing that large.
const STEP: usize = 1 << 20;

/// A connection.
pub(crate) struct Link {
    secure: Arc<Secure>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    is_closed: bool,
}

impl Link {
    pub(crate) fn new(secure: Secure) -> Arc<Link> {
        let queue = Mutex::with_class(&LINK, Queue::default());
        Arc::new(Link { secure: Arc::new(secure), queue, changed: Condvar::new() })
    }

    /// Queues a frame. One for a closed link is lost.
    pub(crate) fn send(&self, frame: &Frame) {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return;
        }
        encode(frame, &mut queue.bytes);
        if queue.bytes.len() > QUEUE_MAX {
            log::error!("a node that takes nothing in is cut off");
            drop(queue);
            return self.close();
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Writes what is queued, until the link is closed.
    pub(crate) fn write(&self) {
        loop {
            let bytes = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.is_closed {
                        return;
                    }
                    if !queue.bytes.is_empty() {
                        break std::mem::take(&mut queue.bytes);
                    }
                    queue = self.changed.wait(queue);
                }
            };
            if self.secure.write_all(&bytes).is_err() {
                self.close();
            }
        }
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
        self.queue.lock().is_closed = true;
        self.changed.notify_all();
        self.secure.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue.lock().is_closed
    }
}
