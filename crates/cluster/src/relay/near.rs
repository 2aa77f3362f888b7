//! Near: the threads that read the device, and serve what a guest of this process is to be asked; and the way back from that guest.

use super::received::Left;
use super::workspaces::Route;
use super::{Relay, Server, Shared};
use crate::guest::{Guest, GuestChannel, Holdings, Host, Lost, Notice};
use sluice_fuse::internal::abi::InHeader;
use sluice_fuse::internal::{Crew, Serving, give_way};
use sluice_sync::atomic::Ordering;
use sluice_sync::{Arc, Weak};
use sluice_vfs::{Errno, InodeRef};
use std::collections::BTreeMap;
use std::io;
use zerocopy::FromBytes;

/// From a guest of this process to its relay.
struct InProcess {
    relay: Weak<Shared>,
    attachment: u64,
}

impl GuestChannel for InProcess {
    fn answer(&self, message: &[u8]) -> io::Result<()> {
        let relay = self.relay.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        relay.answer(self.attachment, message);
        Ok(())
    }

    fn announce(&self, notice: Notice) {
        if let Some(relay) = self.relay.upgrade() {
            let bytes = notice.bytes().to_vec();
            relay.announce(&bytes, Box::new(move || drop(notice)));
        }
    }
}

/// A thread that reads the device: counted from before it starts until it ends.
pub(super) struct Reader(pub(super) Arc<Shared>, pub(super) Arc<Crew>);

impl Reader {
    pub(super) fn run(&self, buffer_len: usize, own_session: bool) {
        let _serving = Serving::begin();
        give_way(own_session);
        let Reader(shared, crew) = self;
        let mut buffer = vec![0; buffer_len];
        let mut member = crew.join();
        loop {
            if !member.is_to_read() {
                member.await_turn();
            }
            let (len, mut parts, work) = {
                let _reading = shared.reading.lock();
                // Relaxed, here and below: a guess.
                shared.is_reading.store(true, Ordering::Relaxed);
                let received = shared.device.receive(&mut buffer);
                shared.is_reading.store(false, Ordering::Relaxed);
                match received {
                    Ok(Some(len)) => match shared.route(&mut buffer[..len]) {
                        Route::Root => (len, Vec::new(), shared.received(&mut buffer[..len])),
                        Route::There(relay) => (len, Vec::new(), relay.received(&mut buffer[..len])),
                        Route::Parts(parts) => {
                            let received = |(relay, mut message): (Arc<Shared>, Vec<u8>)| {
                                relay.received(&mut message).map(|left| (left, message))
                            };
                            (len, parts.into_iter().filter_map(received).collect(), None)
                        }
                        Route::Answer(answer) => {
                            // An error means that the request is gone.
                            let _ = shared.device.send(&answer);
                            (len, Vec::new(), None)
                        }
                    },
                    Ok(None) => return,
                    Err(error) => {
                        log::error!("receiving requests failed, a worker ends: {error}");
                        return;
                    }
                }
            };
            let client = InHeader::read_from_prefix(&buffer[..len]).map_or(0, |(header, _)| header.pid);
            member.during(client, || {
                if let Some(left) = work {
                    left.perform(&mut buffer[..len]);
                }
                parts.drain(..).for_each(|(left, mut message): (Left, Vec<u8>)| left.perform(&mut message));
            });
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.ended.notify_all();
    }
}

/// A guest of this process with its kernel's restored holdings, before it serves that kernel.
pub struct RestoredGuest {
    attachment: u64,
    guest: Arc<Guest>,
    lost: Lost,
}

impl RestoredGuest {
    /// See [`Host::void_locks`].
    pub fn void_locks(&mut self, host: &Host, holdings: &Holdings) {
        host.void_locks(&self.guest, holdings, &mut self.lost);
    }
}

impl Relay {
    /// Has `host`, which is of this process, serve the kernel, which has `holdings`; `found` are the inodes of these, `mount` the
    /// number of this mount. See [`attach`](Self::attach).
    ///
    /// # Errors
    /// Errors of [`Host::admit`].
    pub fn attach_host(
        &self,
        host: &Host,
        holdings: &Holdings,
        found: &BTreeMap<u64, InodeRef>,
        is_another: bool,
        mount: u64,
    ) -> Result<Arc<Guest>, Errno> {
        let restored = self.restore_host(host, holdings, found, mount)?;
        Ok(self.attach_restored(restored, is_another))
    }

    /// The first part of [`attach_host`](Self::attach_host), which takes longer the more the kernel holds.
    ///
    /// # Errors
    /// Errors of [`Host::admit`].
    pub fn restore_host(
        &self,
        host: &Host,
        holdings: &Holdings,
        found: &BTreeMap<u64, InodeRef>,
        mount: u64,
    ) -> Result<RestoredGuest, Errno> {
        let attachment = self.next_attachment();
        let channel = InProcess { relay: Arc::downgrade(&self.0), attachment };
        let guest = Arc::new(host.admit(Arc::new(channel), false, mount)?);
        let lost = guest.restore(holdings, found);
        guest.catch_up(holdings, true);
        Ok(RestoredGuest { attachment, guest, lost })
    }

    /// The second part: the kernel is served.
    pub fn attach_restored(&self, restored: RestoredGuest, is_another: bool) -> Arc<Guest> {
        let RestoredGuest { attachment, guest, lost } = restored;
        self.attach(attachment, Server::Local(guest.clone()), &lost, is_another);
        guest
    }
}
