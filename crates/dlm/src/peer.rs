//! Peer: another node, as this one reaches it: a session that outlives its connections.
//!
//! Messages are queued without waiting, and a thread writes what has come together since it wrote last. A connection that breaks is
//! made anew by the node that joined later; then both send again what was not acknowledged.

use crate::NodeId;
use crate::lock_class::{DELIVERY, PEER};
use crate::message::Message;
use crate::session::{Packet, Session};
use crate::tls::Secure;
use crate::wire::{FRAME_MAX, decode, encode};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Condvar, Mutex};
use std::collections::VecDeque;
use std::{io, mem};

/// After so many packets an acknowledgement is sent at once, and else after this time.
const UNSAID_MAX: u64 = 64;
const UNSAID_FOR: Duration = Duration::from_millis(50);

/// Another node.
pub(crate) struct Peer {
    /// *immutable*
    pub(crate) id: NodeId,
    state: Mutex<State>,
    /// There is something to write, or it is over.
    wake: Condvar,
    /// Held while a message is taken and delivered: two connections may be read for a moment, and messages keep their order.
    delivery: Mutex<()>,
}

#[derive(Default)]
struct State {
    session: Session,
    /// What is to be written to this connection.
    outgoing: VecDeque<Packet>,
    connection: Option<Arc<Secure>>,
    is_started: bool,
    is_closed: bool,
}

impl Peer {
    pub(crate) fn new(id: NodeId) -> Arc<Peer> {
        Arc::new(Peer {
            id,
            state: Mutex::with_class(&PEER, State::default()),
            wake: Condvar::new(),
            delivery: Mutex::with_class(&DELIVERY, ()),
        })
    }

    /// True once: its threads are to be started.
    pub(crate) fn start(&self) -> bool {
        !mem::replace(&mut self.state.lock().is_started, true)
    }

    /// Queues a message.
    pub(crate) fn send(&self, message: Message) {
        let mut state = self.state.lock();
        let packet = state.session.push(message);
        if state.connection.is_some() {
            state.outgoing.push_back(packet);
            self.wake.notify_one();
        }
    }

    /// How many messages have not been acknowledged.
    pub(crate) fn pending(&self) -> usize {
        self.state.lock().session.pending()
    }

    /// Goes on by `connection`.
    pub(crate) fn connect(&self, connection: Arc<Secure>) {
        let mut state = self.state.lock();
        if state.is_closed {
            connection.close();
            return;
        }
        state.outgoing = state.session.again().into();
        if let Some(old) = state.connection.replace(connection) {
            old.close();
        }
        self.wake.notify_one();
    }

    /// The end: nothing is sent or delivered any more.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if let Some(connection) = state.connection.take() {
            connection.close();
        }
        self.wake.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Writes what there is to write, until the end.
    pub(crate) fn write(&self) {
        let mut bytes = Vec::new();
        loop {
            let (packets, connection) = {
                let mut state = self.state.lock();
                loop {
                    if state.is_closed {
                        return;
                    }
                    if !state.outgoing.is_empty()
                        && let Some(connection) = &state.connection
                    {
                        let connection = connection.clone();
                        break (mem::take(&mut state.outgoing), connection);
                    }
                    let timed_out;
                    (state, timed_out) = self.wake.wait_timeout(state, UNSAID_FOR);
                    if timed_out && state.connection.is_some() {
                        let unsaid = state.session.acknowledgement(1);
                        state.outgoing.extend(unsaid);
                    }
                }
            };
            bytes.clear();
            packets.iter().for_each(|packet| encode(packet, &mut bytes));
            if connection.write_all(&bytes).is_err() {
                self.lost(&connection);
            }
        }
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
            let taken = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return;
                }
                let taken = state.session.take(packet);
                if let Some(told) = state.session.acknowledgement(UNSAID_MAX) {
                    state.outgoing.push_back(told);
                    self.wake.notify_one();
                }
                taken
            };
            match taken {
                Ok(Some(message)) => deliver(message),
                Ok(None) => {}
                Err(_) => break,
            }
        }
        self.lost(connection);
    }

    fn lost(&self, connection: &Arc<Secure>) {
        connection.close();
        let mut state = self.state.lock();
        state.connection.take_if(|current| Arc::ptr_eq(current, connection));
    }
}
