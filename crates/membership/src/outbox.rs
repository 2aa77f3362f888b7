//! Outbox: what is to be written to a connection, and which thread writes it.
//!
//! # Theory
//! Bytes are queued without waiting, and written by the thread that has queued them ([`Outbox::flush`]), when it holds
//! no lock any more: to wake another one for it takes longer than to write. That thread never blocks. It takes the
//! *turn* to write if no thread has it; else the one that has it looks again when it has ended. Bytes that the kernel
//! does not take at once are left to the outbox's own writer thread ([`Outbox::write`]), which blocks; a thread that
//! has written often enough for others leaves them, too.
//!
//! # Lock order
//! ```text
//! membership.writing the turn to write to a connection
//!   the outbox's     what is queued; of the class that its maker names
//!   membership.tls
//! ```

use crate::tls::Secure;
use sluice_sync::{Arc, Condvar, LockClass, Mutex};
use std::mem;

/// So often a thread that sends writes what has come together since it wrote last.
const WRITES_MAX: usize = 4;

/// The queue of bytes for a connection, or for successive connections. `S` says what is sent again over the next.
pub struct Outbox<S> {
    state: Mutex<Outgoing<S>>,
    /// The writer thread is to write, or it is over.
    wake: Condvar,
}

struct Outgoing<S> {
    session: S,
    /// Bytes queued for this connection.
    queued: Vec<u8>,
    connection: Option<Arc<Secure>>,
    /// The writer thread writes, and other threads leave all bytes to it.
    is_handed: bool,
    is_closed: bool,
}

impl<S> Outgoing<S> {
    /// The connection, if there is something to write that is not left to the writer thread.
    fn to_write(&self) -> Option<Arc<Secure>> {
        self.connection.clone().filter(|_| !self.is_handed && !self.queued.is_empty())
    }
}

impl<S> Outbox<S> {
    /// An empty one without a connection, whose mutex is of `class`.
    pub fn new(class: &'static LockClass, session: S) -> Outbox<S> {
        let state =
            Outgoing { session, queued: Vec::new(), connection: None, is_handed: false, is_closed: false };
        Outbox { state: Mutex::with_class(class, state), wake: Condvar::new() }
    }

    /// Has `work` queue bytes, to be written by [`flush`](Self::flush), if there is a connection. `None` after the end.
    pub fn queue<T>(&self, work: impl FnOnce(&mut S, Option<&mut Vec<u8>>) -> T) -> Option<T> {
        let mut state = self.state.lock();
        let Outgoing { session, queued, connection, is_closed, .. } = &mut *state;
        (!*is_closed).then(|| work(session, connection.is_some().then_some(queued)))
    }

    /// Writes the queue as far as possible without blocking. The caller must hold no lock that other threads wait for.
    pub fn flush(&self) {
        let mut is_left = false;
        for _ in 0..WRITES_MAX {
            let Some(connection) = self.state.lock().to_write() else { return };
            // The thread that has the turn looks again when it has ended.
            let Some(mut turn) = connection.try_turn() else { return };
            let written = turn.write_at_once(&self.take_queued(&connection));
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

    /// Takes the bytes queued for `connection`. For the thread that has the turn.
    fn take_queued(&self, connection: &Arc<Secure>) -> Vec<u8> {
        let mut state = self.state.lock();
        let is_current = state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection));
        if is_current { mem::take(&mut state.queued) } else { Vec::new() }
    }

    /// Goes on by `connection`. `again` queues what is sent again.
    pub fn connect(&self, connection: Arc<Secure>, again: impl FnOnce(&mut S, &mut Vec<u8>)) {
        let mut state = self.state.lock();
        if state.is_closed {
            connection.close();
            return;
        }
        let Outgoing { session, queued, .. } = &mut *state;
        queued.clear();
        again(session, queued);
        if let Some(old) = state.connection.replace(connection) {
            old.close();
        }
        state.is_handed = true;
        self.wake.notify_one();
    }

    /// Whether a connection exists that is not known to be broken.
    pub fn is_connected(&self) -> bool {
        self.state.lock().connection.is_some()
    }

    /// The end: nothing is written any more, and the connection is closed.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if let Some(connection) = state.connection.take() {
            connection.close();
        }
        self.wake.notify_all();
    }

    /// After [`close`](Self::close).
    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Writes what is handed to this thread, until the end.
    pub fn write(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            let Some(connection) = state.connection.clone().filter(|_| state.is_handed) else {
                state = self.wake.wait(state);
                continue;
            };
            drop(state);
            let written = {
                let mut turn = connection.turn();
                turn.write_all(&self.take_queued(&connection))
            };
            if written.is_err() {
                self.lost(&connection);
            }
            state = self.state.lock();
            state.is_handed = !state.queued.is_empty();
        }
    }

    /// A connection is broken.
    pub fn lost(&self, connection: &Arc<Secure>) {
        connection.close();
        let mut state = self.state.lock();
        if state.connection.take_if(|current| Arc::ptr_eq(current, connection)).is_some() {
            state.queued.clear();
        }
    }
}
