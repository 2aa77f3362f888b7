//! Old reads: READs under way whose answer may have bytes from before a change, though others do not wait for this kernel any more.
//!
//! # Theory
//! The announcement of a page that a READ keeps locked may be cut short. Others go on then, and the answer to that READ may have been made
//! before the change: the kernel would take old bytes for new ones until it has taken in the announcement. So the READ is asked again, and
//! the kernel gets the second answer. A page that a WRITE keeps locked is not up to date when it is unlocked: who wants its bytes asks.

use super::ledger::pages_of;
use super::notices::{inval_inode_arg, split};
use super::{InFlight, Server, Shared, State, caches};
use sluice_fuse::internal::abi::InHeader;
use sluice_fuse::opcode;
use sluice_sync::atomic::Ordering;
use sluice_sync::thread::Builder;
use zerocopy::FromBytes;

impl State {
    /// Whether requests under way are about pages of which `notices` tell. Others may go on before the kernel knows, so of these the READs
    /// are to be asked again.
    fn is_held(&mut self, notices: &[u8]) -> bool {
        let mut is_held = false;
        for request in self.in_flight.values_mut().filter(|request| !request.is_behind) {
            let Ok((header, _)) = InHeader::read_from_prefix(&request.message) else { continue };
            let Some((nodeid, offset, len)) = pages_of(&header, &request.message) else { continue };
            let busy = caches::Busy::from([(nodeid, vec![(offset, len)])]);
            if split(notices).filter_map(inval_inode_arg).any(|arg| caches::is_about(&busy, &arg)) {
                is_held = true;
                request.is_old |= request.opcode == opcode::READ;
            }
        }
        is_held
    }
}

impl Shared {
    /// Whether `notices` wait for a request: one is under way, or, if they are stuck at one page, may not have been read.
    pub(super) fn is_held(&self, notices: &[u8], is_stuck: bool) -> bool {
        let page = rustix::param::page_size() as i64;
        let is_one_page =
            || split(notices).filter_map(inval_inode_arg).all(|arg| arg.off % page == 0 && arg.len == page);
        self.state.lock().is_held(notices) || is_stuck && is_one_page() && !self.is_device_read()
    }

    /// Whether a thread awaits a request of the mount.
    fn is_device_read(&self) -> bool {
        let root = self.workspaces.root().filter(|_| self.workspace != 0);
        // Relaxed: a guess.
        root.as_deref().unwrap_or(self).is_reading.load(Ordering::Relaxed)
    }

    /// Asks again what has been answered with bytes that may be old.
    pub(super) fn ask_again(&self, state: &mut State, unique: u64, mut request: InFlight) {
        request.is_old = false;
        let mut message = request.message.clone();
        state.in_flight.insert(unique, request);
        match state.server.clone() {
            // The caller flushes.
            Some(Server::Remote(uplink)) => uplink.request(&message),
            Some(Server::Local(guest)) => {
                let ticket = guest.take(&message);
                // The calling thread may be about to answer something else.
                let serve = move || guest.serve(ticket, &mut message);
                if let Err(error) = Builder::new().name("sluice-fuse-again".into()).spawn(serve) {
                    log::error!("a read stays unanswered: {error}");
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, Relay, Uplink};
    use super::*;
    use crate::guest::Lost;
    use sluice_fuse::MountOptions;
    use sluice_fuse::internal::abi::{OutHeader, ReadIn};
    use sluice_sync::time::Duration;
    use sluice_sync::{Arc, Condvar, Mutex, mpsc};
    use std::collections::VecDeque;
    use std::io;
    use zerocopy::{FromZeros, IntoBytes};

    const HANG: Duration = Duration::from_secs(30);

    type Message = Vec<u8>;

    /// A kernel that keeps a page locked until its READ is answered.
    #[derive(Default)]
    struct Reading {
        /// Its requests, its answers, and whether it is gone.
        state: Mutex<(VecDeque<Message>, Vec<Message>, bool)>,
        changed: Condvar,
    }

    impl Device for Reading {
        fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
            let mut state = self.state.lock();
            loop {
                if let Some(message) = state.0.pop_front() {
                    buffer[..message.len()].copy_from_slice(&message);
                    return Ok(Some(message.len()));
                }
                if state.2 {
                    return Ok(None);
                }
                state = self.changed.wait(state);
            }
        }

        fn send(&self, message: &[u8]) -> io::Result<()> {
            let mut state = self.state.lock();
            if OutHeader::read_from_prefix(message).is_ok_and(|(out, _)| out.unique != 0) {
                state.1.push(message.to_vec());
                self.changed.notify_all();
            }
            while inval_inode_arg(message).is_some_and(|arg| arg.off >= 0) && state.1.is_empty() {
                state = self.changed.wait(state);
            }
            Ok(())
        }

        fn is_connected(&self) -> bool {
            false
        }
    }

    struct Asked(Mutex<mpsc::Sender<Vec<u8>>>);

    impl Uplink for Asked {
        fn request(&self, message: &[u8]) {
            self.0.lock().send(message.to_vec()).expect("somebody listens");
        }
    }

    #[test]
    fn a_read_under_way_is_asked_again_when_others_go_on_before_the_kernel_has_dropped_its_page() {
        let kernel = Arc::new(Reading::default());
        let options = MountOptions::parse("locks=sluice,transport=classic").expect("valid");
        let relay = Relay::over_kernel(kernel.clone(), &options).expect("threads");
        let (asked, questions) = mpsc::channel();
        let attachment = relay.next_attachment();
        let server = Server::Remote(Arc::new(Asked(Mutex::new(asked))));
        relay.attach(attachment, server, &Lost::default(), true);
        let arg = ReadIn { size: 4096, ..ReadIn::new_zeroed() };
        let mut message = crate::relay::tests::message(opcode::READ, 7, &[arg.as_bytes()]);
        message[8..16].copy_from_slice(&2_u64.to_ne_bytes());
        kernel.state.lock().0.push_back(message);
        kernel.changed.notify_all();
        let question = questions.recv_timeout(HANG).expect("it is asked");
        let (done, heard) = mpsc::channel();
        relay.announce(&crate::relay::notices::inval_inode(7, 0, 4096), move || {
            done.send(()).expect("somebody listens")
        });
        heard.recv_timeout(HANG).expect("others go on");
        let answer = |bytes: &[u8]| {
            let header = OutHeader { len: (16 + bytes.len()) as u32, error: 0, unique: 2 };
            relay.answer(attachment, &[header.as_bytes(), bytes].concat());
        };
        answer(b"old");
        assert_eq!(questions.recv_timeout(HANG).expect("it is asked again"), question);
        assert!(kernel.state.lock().1.is_empty(), "the kernel has old bytes");
        answer(b"new");
        let state = kernel.state.lock();
        assert!(state.1.len() == 1 && state.1[0].ends_with(b"new"), "{:?}", state.1);
        drop(state);
        kernel.state.lock().2 = true;
        kernel.changed.notify_all();
    }
}
