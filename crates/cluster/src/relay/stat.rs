//! Stat: what a relay has counted, and what it answers to other processes that ask about its mount.
//!
//! Facts known only to the process that has the file system are told on its node, and left out elsewhere.

use super::device::NO_MOUNT;
use super::{Relay, Server, Shared};
use serde::{Deserialize, Serialize};
use sluice_fuse::control::MountStat;
use sluice_fuse::internal::control;
use sluice_sync::Arc;
use sluice_sync::atomic::Ordering;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;

/// The counts of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayCounts {
    /// Requests of the kernel.
    pub requests: u64,
    /// Notices of changes.
    pub notices: u64,
    /// Notices that the kernel took too long to take in, so that all names were dropped.
    pub notices_cut_short: u64,
    /// How often a server was attached after the first time.
    pub reconnections: u64,
    /// Lock requests that were decided without the server.
    pub locks_decided: u64,
    /// Other requests that were answered without the server.
    pub answered_here: u64,
    /// Requests that the server got, and whose answers somebody waits for. Requests of the owner's own kernel need no message.
    pub awaited: u64,
    /// Requests that were answered before the server had them.
    pub behind: u64,
    /// How often the server took back what it had left to this mount: the locks of a file, or what is known of a directory. Another
    /// mount wanted it then.
    pub recalls: u64,
    /// Now: requests that wait for a lock.
    pub waiting_locks: u64,
    /// Now: bytes of requests that were answered before the server had them, and whose execution the server has not
    /// confirmed.
    pub dirty_bytes: u64,
}

impl Relay {
    /// Answers questions of other processes about the mount (see [`control`]). `more` is told with the counts of the
    /// relay, as a JSON object. Facts known only to a server of this process are requested from it. `obey` is given each question
    /// first, and says whether it has answered.
    pub(crate) fn answer_questions(
        &self,
        more: impl Fn() -> String + Send + 'static,
        obey: impl Fn(&[u8], &mut UnixStream) -> io::Result<bool> + Send + 'static,
    ) {
        if self.0.number == NO_MOUNT {
            return;
        }
        let relay = Arc::downgrade(&self.0);
        let respond = move |question: &[u8], stream: &mut UnixStream| {
            let Some(relay) = relay.upgrade() else { return Ok(true) };
            if question == b"stat" {
                return stream.write_all(format!("ok\n{}\n", relay.stat(&more())).as_bytes()).map(|()| true);
            }
            if obey(question, stream)? {
                return Ok(true);
            }
            // A question about a workspace says so before it.
            let (of, question) = match question.strip_prefix(b"workspace ") {
                Some(number) => (relay.workspace_named(number), control::read_line(stream)?),
                None => (Some(relay), question.to_vec()),
            };
            let server = of.and_then(|of| of.state.lock().server.clone());
            match server {
                Some(Server::Local(guest)) => guest.respond(&question, stream),
                _ => stream.write_all(b"another node of the cluster serves this mount: give this order on the owner's mount (`sluice cluster status` names it)\n").map(|()| true),
            }
        };
        let relay = Arc::downgrade(&self.0);
        let is_there = move || relay.upgrade().is_some_and(|relay| relay.device.is_connected());
        let server = control::Server::start_with(self.0.number, Box::new(is_there), Box::new(respond));
        *self.0.control.lock() = server;
    }

    /// The statistics of the mount: one line of JSON, in the form of a mount's server, with `cluster`, a JSON object.
    pub fn stat(&self, cluster: &str) -> String {
        self.0.stat(cluster)
    }

    /// The counts so far.
    pub fn counts(&self) -> RelayCounts {
        let state = self.0.state.lock();
        RelayCounts {
            // Relaxed: a statistic.
            notices_cut_short: self.0.announcer.cut_short.load(Ordering::Relaxed),
            waiting_locks: state.waiting_locks() as u64,
            dirty_bytes: state.behind.bytes() as u64,
            reconnections: state.attachments.saturating_sub(1),
            ..state.counts
        }
    }
}

impl Shared {
    /// The relay of the workspace with this number, as text, if that is in use.
    fn workspace_named(&self, number: &[u8]) -> Option<Arc<Shared>> {
        self.workspaces.in_use(str::from_utf8(number).ok()?.parse().ok()?)
    }

    fn stat(&self, cluster: &str) -> String {
        let (known_inodes, open_files, _) = self.ledger.lock().counts();
        let (waiting_locks, server) = {
            let state = self.state.lock();
            (state.waiting_locks(), state.server.clone())
        };
        // With nothing locked: it may take a while.
        let file_system = match server {
            Some(Server::Local(guest)) => Some(guest.stat_of_file_system(self.storage_stat.as_ref())),
            _ => None,
        };
        control::to_json(&MountStat {
            known_inodes: known_inodes as u64,
            open_files: open_files as u64,
            waiting_locks: waiting_locks as u64,
            transport: "relay".into(),
            file_system,
            cluster: serde_json::from_str(cluster).unwrap_or_default(),
            ..control::of_mount(&self.counters)
        })
    }
}
