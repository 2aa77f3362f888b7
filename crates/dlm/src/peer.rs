//! Peer: another node, as this one reaches it: a session that outlives its connections.
//!
//! Messages are queued without waiting. A thread that is [at work on a request](AtOnce) writes what it has queued itself when it holds
//! no lock any more, as far as the network takes it at once: so a request and its grant wake no thread but those that read. All
//! else a thread of the peer writes, together with what has come since it wrote last. A connection that breaks is made anew by the
//! node that joined later; then both send again what was not acknowledged.

use crate::NodeId;
use crate::lock_class::{DELIVERY, PEER};
use crate::message::Message;
use crate::session::{Packet, Session};
use crate::tls::Secure;
use crate::wire::{FRAME_MAX, decode, encode};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Condvar, Mutex};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
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
    /// Messages that the thread wrote which queued them, and those that the thread of the peer wrote. *atomic, each alone*
    written: [AtomicU64; 2],
    /// Held while a message is taken and delivered: two connections may be read for a moment, and messages keep their order.
    delivery: Mutex<()>,
}

#[derive(Default)]
struct State {
    session: Session,
    /// What is to be written to this connection.
    outgoing: VecDeque<Packet>,
    connection: Option<Arc<Secure>>,
    /// A thread writes, and looks for more afterwards.
    is_writing: bool,
    /// The network has not taken all of what was written: the thread of the peer goes on.
    has_rest: bool,
    is_started: bool,
    is_closed: bool,
}

thread_local! {
    /// The peers for which this thread has queued messages that it is going to write; none if it is not.
    static QUEUED: RefCell<Option<Vec<Arc<Peer>>>> = const { RefCell::new(None) };
}

/// While it is there, this thread writes what it queues for other nodes itself: when this is dropped, with none of this crate's
/// locks held.
pub(crate) struct AtOnce {
    /// It is not within another one, and stays on its thread.
    is_outermost: bool,
    marker: PhantomData<*const ()>,
}

impl AtOnce {
    pub(crate) fn begin() -> AtOnce {
        let is_outermost = QUEUED.with_borrow_mut(|queued| {
            let is_outermost = queued.is_none();
            queued.get_or_insert_default();
            is_outermost
        });
        AtOnce { is_outermost, marker: PhantomData }
    }
}

impl Drop for AtOnce {
    fn drop(&mut self) {
        if self.is_outermost {
            QUEUED.take().into_iter().flatten().for_each(|peer| peer.write_queued());
        }
    }
}

impl Peer {
    pub(crate) fn new(id: NodeId) -> Arc<Peer> {
        Arc::new(Peer {
            id,
            state: Mutex::with_class(&PEER, State::default()),
            wake: Condvar::new(),
            written: Default::default(),
            delivery: Mutex::with_class(&DELIVERY, ()),
        })
    }

    /// True once: its threads are to be started.
    pub(crate) fn start(&self) -> bool {
        !mem::replace(&mut self.state.lock().is_started, true)
    }

    /// Queues a message.
    pub(crate) fn send(self: &Arc<Self>, message: Message) {
        let mut state = self.state.lock();
        let packet = state.session.push(message);
        if state.connection.is_none() {
            return;
        }
        state.outgoing.push_back(packet);
        if !state.is_writing && !self.is_written_here() {
            self.wake.notify_one();
        }
    }

    /// Whether this thread is going to write what it queues.
    fn is_written_here(self: &Arc<Self>) -> bool {
        QUEUED.with_borrow_mut(|queued| {
            let Some(queued) = queued else { return false };
            if !queued.iter().any(|peer| Arc::ptr_eq(peer, self)) {
                queued.push(self.clone());
            }
            true
        })
    }

    /// Messages that the thread wrote which queued them, and those that the thread of the peer wrote.
    pub(crate) fn written(&self) -> [u64; 2] {
        // Relaxed: numbers that stand alone.
        [0, 1].map(|by| self.written[by].load(Ordering::Relaxed))
    }

    /// Takes the turn to write, if it is free and there is something to write.
    fn take_turn(state: &mut State) -> Option<(VecDeque<Packet>, Arc<Secure>)> {
        if state.is_writing || (state.outgoing.is_empty() && !state.has_rest) {
            return None;
        }
        let connection = state.connection.clone()?;
        (state.is_writing, state.has_rest) = (true, false);
        Some((mem::take(&mut state.outgoing), connection))
    }

    /// Writes `packets`, and counts them as written `by` the thread that queued them (0) or that of the peer (1).
    fn encode(&self, packets: &VecDeque<Packet>, by: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        packets.iter().for_each(|packet| encode(packet, &mut bytes));
        let messages = packets.iter().filter(|packet| packet.message.is_some()).count();
        // Relaxed: a number that stands alone.
        self.written[by].fetch_add(messages as u64, Ordering::Relaxed);
        bytes
    }

    /// Writes what is queued, unless another thread is writing, which then does.
    fn write_queued(&self) {
        let mut state = self.state.lock();
        while let Some((packets, connection)) = Peer::take_turn(&mut state) {
            drop(state);
            let written = connection.write_now(&self.encode(&packets, 0));
            if written.is_err() {
                self.lost(&connection);
            }
            state = self.state.lock();
            state.is_writing = false;
            if let Ok(false) = written {
                state.has_rest = true;
                self.wake.notify_one();
                return;
            }
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
        state.has_rest = false;
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
        loop {
            let (packets, connection) = {
                let mut state = self.state.lock();
                loop {
                    if state.is_closed {
                        return;
                    }
                    if let Some(turn) = Peer::take_turn(&mut state) {
                        break turn;
                    }
                    let timed_out;
                    (state, timed_out) = self.wake.wait_timeout(state, UNSAID_FOR);
                    if timed_out && state.connection.is_some() {
                        let unsaid = state.session.acknowledgement(1);
                        state.outgoing.extend(unsaid);
                    }
                }
            };
            if connection.write_all(&self.encode(&packets, 1)).is_err() {
                self.lost(&connection);
            }
            self.state.lock().is_writing = false;
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
            let _written = AtOnce::begin();
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
