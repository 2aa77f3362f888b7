//! Held: a mount that may outlive its server.
//!
//! # Theory
//! A *holder*, another process, keeps the mount's `/dev/fuse` and starts the next server when one has died. The kernel keeps the mount, the
//! programs' open files, mappings and locks, and the requests that were read and not answered. The next server opens the store,
//! goes on with what INIT agreed on ([`HeldMount`]), and asks for these requests again (`FUSE_NOTIFY_RESEND`).
//!
//! - *A request that comes again* has a mark in its number. A request that changes names was noted in the store with its change
//!   ([`sluice_vfs::Superblock::serve_request`]): if that is durable, its answer is found and it is not executed twice. Others have the
//!   same effect twice.
//! - *Changes that were answered and are not durable* are lost. Which these are is noted in memory that the holder keeps, too
//!   (`changes.rs`); fsync says so (`lost.rs`), and the kernel drops what it has cached of their nodes.
//! - *Inodes that the kernel knows* are found by their numbers (`nodes/expected.rs`). A file without a name is kept if the kernel says that it
//!   knows it.
//!
//! A server that is replaced on purpose loses nothing (`leave.rs`).
//!
//! A request that ended several servers is answered with EIO.

mod changes;
mod clock;
mod leave;
mod lost;
mod resume;
pub(crate) mod state;

pub(crate) use changes::HeldWorker;
pub use leave::HeldServer;
pub use resume::HeldMount;
pub(crate) use resume::MountState;
pub use state::Restarts;

use crate::abi::{InHeader, opcode};
use crate::connection::{Answer, Connection, Served, send};
use crate::handler::again::{Again, again};
use crate::marks::is_noted;
use crate::reply::Reply;
use sluice_sync::atomic::Ordering;
use sluice_vfs::{Errno, RequestId};
use state::HeldState;
use zerocopy::FromBytes;

/// The mark, in its number, of a request that comes again.
const RESENT: u64 = 1 << 63;
/// A request that was begun so often, and ended the server each time, is not begun again.
const ATTEMPTS_MAX: u64 = 3;

/// Whether requests of this kind have another outcome when they are executed twice. Others change contents or attributes of one inode, which
/// the kernel keeps locked for the caller until they are answered.
fn is_executed_once(code: u32) -> bool {
    is_noted(code) && !matches!(code, opcode::WRITE | opcode::SETATTR | opcode::FALLOCATE)
}

impl Connection {
    /// The part of one more worker, if the mount is held.
    pub(crate) fn join_held(&self) -> Option<HeldWorker> {
        // Relaxed: a number that stands alone.
        HeldWorker::new(self.held.get()?.next_worker.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether an fsync must fail once, as something is lost.
    pub(crate) fn tells_loss(&self, header: &InHeader) -> bool {
        self.held.get().is_some_and(|held| held.lost.tell(header.nodeid, header.pid))
    }

    /// Serves a request, as [`serve`](Self::serve) does, for a worker of a held mount.
    pub(crate) fn serve_held(&self, message: &[u8], reply: &mut Reply, worker: &mut HeldWorker) {
        let (Some(held), Ok((header, body))) = (self.held.get(), InHeader::read_from_prefix(message)) else {
            return self.serve(message, reply);
        };
        if held.leaves.load(Ordering::SeqCst) {
            self.keep_request(held);
        }
        let number = header.unique & !RESENT;
        if header.unique != number && self.answer_again(held, (&header, message), worker, reply) {
            return;
        }
        let request = RequestId { mount: held.mount, slot: worker.number as u16, number };
        let noted = is_executed_once(header.opcode).then(|| self.superblock.serve_request(request));
        let Served { answer, kind } = self.process(message, reply);
        drop(noted);
        match answer {
            Answer::Now(answer) => {
                // A change of a synchronous mount is durable.
                if !self.options.synchronous {
                    worker.answered(&held.file, &self.superblock, (&header, body), answer);
                }
                send(self.channel(), answer);
            }
            Answer::Seek(seek) => self.seek_by_channel(seek),
            Answer::Elsewhere => {}
        }
        self.count(kind);
    }

    /// Answers a request that comes again, if it is not to be executed.
    #[cold]
    fn answer_again(
        &self,
        held: &HeldState,
        (header, message): (&InHeader, &[u8]),
        worker: &HeldWorker,
        reply: &mut Reply,
    ) -> bool {
        let number = header.unique & !RESENT;
        if let Some(&named) = held.executed.get(&number)
            && is_executed_once(header.opcode)
            && let Some(Again::Answer(answer)) = again(self, message, named, reply)
        {
            send(self.channel(), answer);
            return true;
        }
        let attempts = held.attempts.get(&number).copied().unwrap_or(0);
        if attempts >= ATTEMPTS_MAX {
            let name = opcode::name(header.opcode);
            log::error!(
                "a {name} request ended {attempts} servers and was answered with EIO. Please report it."
            );
            send(self.channel(), reply.failure(header.unique, Errno::EIO));
            return true;
        }
        worker.attempt(&held.file, number, attempts + 1);
        false
    }

    /// The mount is gone, and nobody asks again for what was executed.
    pub(crate) fn end_held(&self) {
        if let Some(held) = self.held.get() {
            // The next server of the store removes what stays.
            let _ = self.superblock.forget_requests(&[held.mount].into());
        }
    }
}
