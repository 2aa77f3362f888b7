//! The io_uring backend: a queue and a thread for each CPU.
//!
//! # Theory
//! The kernel puts a request into the queue of the CPU that its client runs on, and the thread of that queue stays on that
//! CPU: neither a request nor its answer goes to another one. FORGET and INTERRUPT, and what comes before all queues are
//! open, come by the classic device; its reader waits a little after each message, so that FORGETs gather.
//!
//! A seek that waits for WRITEs (see `write_back`) keeps its entry until the thread that decides it sends the answer
//! ([`LateAnswers`]). Each queue always has an entry that is not kept, so that the WRITEs can come. Lock requests may
//! wait in any number, and for any time: mounts that serve locks use the classic device (see `policy`).

use super::dev_fuse::DevFuse;
use super::entry::RingEntry;
use super::late::LateAnswers;
use super::policy;
use super::ring::{Kept, Ring};
use crate::connection::{Answer, Connection, Served};
use crate::reply::Reply;
use sluice_sync::{Arc, cpu, mpsc};
use sluice_vfs::Errno;
use std::io;
use std::os::fd::AsFd;

/// Entries of a queue: one, and as many seeks as may wait at a time. For speed one is enough: a thread serves one request
/// after the other, and takes the next with the call that hands in an answer. The kernel uses the one again that came last.
const ENTRIES: usize = 4;
/// The smallest payload: the longest value of an extended attribute, twice.
pub(crate) const PAYLOAD_MIN: u32 = 128 << 10;

/// The number of queues of a mount: one for each possible CPU.
pub(crate) fn queues() -> usize {
    cpu::possible()
}

/// Serves queue `queue` until the mount is gone. Says by `opened` whether it could be opened.
///
/// # Errors
/// Errors that no retry would cure.
pub(crate) fn serve(
    queue: usize,
    device: &DevFuse,
    connection: &Connection,
    opened: mpsc::Sender<io::Result<()>>,
) -> io::Result<()> {
    // An offline CPU, or a CPU outside this process's set, has no clients that could gain.
    let _ = cpu::pin(queue);
    policy::give_way(connection.options.own_session);
    let payload = connection.options.max_write.max(PAYLOAD_MIN) as usize;
    let entries = (0..ENTRIES).map(|_| RingEntry::new(payload)).collect();
    // The possible CPUs of a machine are far fewer than 65,536.
    let mut ring = match Ring::open(device.as_fd(), queue as u16, entries) {
        Ok(ring) => ring,
        Err(error) => {
            // The receiver waits for each queue until one fails.
            let _ = opened.send(Err(error));
            return Ok(());
        }
    };
    let _ = opened.send(Ok(()));
    drop(opened);
    let (mut reply, late) = (Reply::new(), ring.late());
    while ring.turn(|entry, may_keep| {
        let late = if may_keep { Some(&late) } else { None };
        serve_one(connection, entry, &mut reply, late)
    })? {}
    Ok(())
}

/// Serves the request in `entry`, which is kept if that is answered by `late`.
fn serve_one(
    connection: &Connection,
    entry: &mut RingEntry,
    reply: &mut Reply,
    late: Option<&Arc<LateAnswers>>,
) -> Kept {
    let Served { answer, kind } = match entry.message() {
        Ok(message) => connection.process(message, reply),
        Err(errno) => {
            entry.fail(errno);
            return Kept::No;
        }
    };
    match (answer, late) {
        (Answer::Now(answer), _) => entry.answer(answer),
        (Answer::Seek(seek), Some(late)) => {
            connection.seek_later(seek, late.clone());
            return Kept::Yes;
        }
        (Answer::Seek(seek), None) => entry.answer(connection.seek_at_once(&seek, reply)),
        // Nothing that is not answered comes by a ring. But whatever came, the kernel must have its entry back.
        (Answer::Elsewhere, _) => entry.fail(Errno::EIO),
    }
    connection.count(kind);
    Kept::No
}
