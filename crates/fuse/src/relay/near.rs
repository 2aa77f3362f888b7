//! Near: the threads that read the device, and serve what a guest of this process is to be asked; and the way back from that guest.

use super::Shared;
use crate::guest::{GuestChannel, Notice};
use crate::notify::Serving;
use sluice_sync::{Arc, Weak};
use std::io;

/// From a guest of this process to its relay.
pub(super) struct InProcess {
    pub(super) relay: Weak<Shared>,
    pub(super) attachment: u64,
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
pub(super) struct Reader(pub(super) Arc<Shared>);

impl Reader {
    pub(super) fn run(&self, buffer_len: usize) {
        let _serving = Serving::begin();
        let shared = &self.0;
        let mut buffer = vec![0; buffer_len];
        loop {
            let (len, work) = {
                let _reading = shared.reading.lock();
                match shared.device.receive(&mut buffer) {
                    Ok(Some(len)) => (len, shared.received(&mut buffer[..len])),
                    Ok(None) => return,
                    Err(error) => {
                        log::error!("receiving requests failed, a worker ends: {error}");
                        return;
                    }
                }
            };
            if let Some((guest, ticket)) = work {
                guest.serve(ticket, &mut buffer[..len]);
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.ended.notify_all();
    }
}
