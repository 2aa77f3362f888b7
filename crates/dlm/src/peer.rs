//! Peer: another node, as this one reaches it: a session that outlives its connections.
//!
//! # Theory
//! Messages are queued without waiting, and written by the thread that sends them ([`Peer::flush`]), see [`Outbox`].
//!
//! A connection that breaks is made anew by the node that joined later; then both send again what was not acknowledged.

use crate::lock_class::{DELIVERY, PEER};
use crate::message::Message;
use crate::session::{Packet, Session};
use crate::wire::{FRAME_MAX, decode, encode};
use sluice_membership::{NodeId, Outbox, Secure};
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Mutex};
use std::io;

/// After so many packets an acknowledgement is sent at once, and else after this time.
const UNSAID_MAX: u64 = 64;
pub(crate) const UNSAID_FOR: Duration = Duration::from_millis(50);

/// Another node.
pub(crate) struct Peer {
    /// *immutable*
    pub(crate) id: NodeId,
    outbox: Outbox<Session>,
    /// *atomic (stands alone)*
    is_started: AtomicBool,
    /// Held while a message is taken and delivered: two connections may be read for a moment, and messages keep their order.
    delivery: Mutex<()>,
}

impl Peer {
    pub(crate) fn new(id: NodeId) -> Arc<Peer> {
        Arc::new(Peer {
            id,
            outbox: Outbox::new(&PEER, Session::default()),
            is_started: AtomicBool::new(false),
            delivery: Mutex::with_class(&DELIVERY, ()),
        })
    }

    /// True once: its threads are to be started.
    pub(crate) fn start(&self) -> bool {
        // Relaxed: see the field.
        !self.is_started.swap(true, Ordering::Relaxed)
    }

    /// Queues a message, to be written by [`flush`](Self::flush).
    pub(crate) fn send(&self, message: Message) {
        self.outbox.queue(|session, out| {
            let packet = session.push(message);
            if let Some(out) = out {
                encode(&packet, out);
            }
        });
    }

    /// Writes the queue as far as possible without blocking. The caller must hold no lock that other threads wait for.
    pub(crate) fn flush(&self) {
        self.outbox.flush();
    }

    /// Acknowledges all received messages, unless acknowledged before.
    pub(crate) fn acknowledge(&self) {
        self.outbox.queue(|session, out| tell_taken(session, out, 1));
        self.flush();
    }

    /// How many messages have not been acknowledged.
    pub(crate) fn pending(&self) -> usize {
        self.outbox.queue(|session, _| session.pending()).unwrap_or(0)
    }

    /// Goes on by `connection`.
    pub(crate) fn connect(&self, connection: Arc<Secure>) {
        self.outbox.connect(connection, |session, out| {
            session.again().iter().for_each(|packet| encode(packet, out));
        });
    }

    /// The end: nothing is sent or delivered any more.
    pub(crate) fn close(&self) {
        self.outbox.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.outbox.is_closed()
    }

    /// Writes what is handed to this thread, until the end.
    pub(crate) fn write(&self) {
        self.outbox.write();
    }

    /// Reads `connection` and delivers its messages, until it breaks.
    pub(crate) fn read(&self, connection: &Arc<Secure>, deliver: impl Fn(Message)) {
        let mut frame = [0; FRAME_MAX];
        let mut next = || -> io::Result<Packet> {
            let mut length = [0; 4];
            connection.read_exact(&mut length)?;
            let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
            let frame = frame.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
            connection.read_exact(frame)?;
            decode(frame).map_err(|_| io::ErrorKind::InvalidData.into())
        };
        while let Ok(packet) = next() {
            let _turn = self.delivery.lock();
            let taken = self
                .outbox
                .queue(|session, out| (session.take(packet), tell_taken(session, out, UNSAID_MAX).is_some()));
            let Some((taken, is_told)) = taken else { return };
            match taken {
                Ok(Some(message)) => deliver(message),
                Ok(None) => {}
                Err(_) => break,
            }
            if is_told {
                self.flush();
            }
        }
        self.outbox.lost(connection);
    }
}

/// Queues an acknowledgement, if `unsaid` packets or more have not been acknowledged.
fn tell_taken(session: &mut Session, out: Option<&mut Vec<u8>>, unsaid: u64) -> Option<()> {
    let out = out?;
    encode(&session.acknowledgement(unsaid)?, out);
    Some(())
}
