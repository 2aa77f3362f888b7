//! Peer: another node, as this one reaches it: a session that outlives its connections.
//!
//! # Theory
//! Messages are queued without waiting, and written by the thread that sends them ([`Peer::flush`]), when it holds no lock any more:
//! to wake another one for it takes longer than to write. That thread never blocks. It takes the *turn* to write if no thread has
//! it; else the one that has it looks again when it has ended. What the kernel does not take at once it leaves to the peer's own writer
//! thread, which blocks, and so does one that has written often enough for others.
//!
//! A connection that breaks is made anew by the node that joined later; then both send again what was not acknowledged.

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
pub(crate) const UNSAID_FOR: Duration = Duration::from_millis(50);
/// So often a thread that sends writes what has come together since it wrote last.
const WRITES_MAX: usize = 4;

/// Another node.
pub(crate) struct Peer {
    /// *immutable*
    pub(crate) id: NodeId,
    state: Mutex<State>,
    /// The writer thread is to write, or it is over.
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
    /// The writer thread writes, and others leave it all to that one.
    is_handed: bool,
    is_started: bool,
    is_closed: bool,
}

impl State {
    /// The connection, if there is something to write that is not left to the writer thread.
    fn to_write(&self) -> Option<Arc<Secure>> {
        self.connection.clone().filter(|_| !self.is_handed && !self.outgoing.is_empty())
    }
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

    /// Queues a message, to be written by [`flush`](Self::flush).
    pub(crate) fn send(&self, message: Message) {
        let mut state = self.state.lock();
        let packet = state.session.push(message);
        if state.connection.is_some() {
            state.outgoing.push_back(packet);
        }
    }

    /// Writes what is queued, as far as that does not block. To be called with no lock held that others wait for.
    pub(crate) fn flush(&self) {
        let mut is_left = false;
        for _ in 0..WRITES_MAX {
            let Some(connection) = self.state.lock().to_write() else { return };
            // The thread that has the turn looks again when it has ended.
            let Some(mut turn) = connection.try_turn() else { return };
            let written = turn.write_at_once(&self.take_outgoing(&connection));
            drop(turn);
            let Ok(is_all) = written else { return self.lost(&connection) };
            is_left = !is_all;
            if is_left {
                break;
            }
        }
        let mut state = self.state.lock();
        if is_left || state.to_write().is_some() {
            state.is_handed = true;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// The frames of what is queued for `connection`. For the thread that has the turn.
    fn take_outgoing(&self, connection: &Arc<Secure>) -> Vec<u8> {
        let mut state = self.state.lock();
        let is_current = state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection));
        let packets = if is_current { mem::take(&mut state.outgoing) } else { VecDeque::new() };
        drop(state);
        let mut bytes = Vec::new();
        packets.iter().for_each(|packet| encode(packet, &mut bytes));
        bytes
    }

    /// Acknowledges what has come, if that was not said.
    pub(crate) fn acknowledge(&self) {
        {
            let mut state = self.state.lock();
            let unsaid = state.connection.is_some().then(|| state.session.acknowledgement(1)).flatten();
            state.outgoing.extend(unsaid);
        }
        self.flush();
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
        state.is_handed = true;
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

    /// Writes what is handed to this thread, until the end.
    pub(crate) fn write(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            let Some(connection) = state.connection.clone().filter(|_| state.is_handed) else {
                state = self.wake.wait(state);
                continue;
            };
            drop(state);
            let written = {
                let mut turn = connection.turn();
                turn.write_all(&self.take_outgoing(&connection))
            };
            if written.is_err() {
                self.lost(&connection);
            }
            state = self.state.lock();
            state.is_handed = !state.outgoing.is_empty();
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
            let (taken, is_told) = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return;
                }
                let taken = state.session.take(packet);
                let told = state.session.acknowledgement(UNSAID_MAX);
                let is_told = told.is_some();
                state.outgoing.extend(told);
                (taken, is_told)
            };
            match taken {
                Ok(Some(message)) => deliver(message),
                Ok(None) => {}
                Err(_) => break,
            }
            if is_told {
                self.flush();
            }
        }
        self.lost(connection);
    }

    /// A connection is broken.
    fn lost(&self, connection: &Arc<Secure>) {
        connection.close();
        let mut state = self.state.lock();
        state.connection.take_if(|current| Arc::ptr_eq(current, connection));
    }
}
