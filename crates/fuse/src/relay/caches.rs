//! Caches: what a kernel is told to drop, all of it when its server changes, and what of that must wait for requests under way.

use super::Shared;
use super::ledger::pages_of;
use crate::abi::flags::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE};
use crate::abi::{InHeader, NotifyInvalInodeOut, OutHeader, ROOT_ID, opcode};
use crate::lock_class::PROGRESS;
use crate::reply::Reply;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// How long the kernel may take to drop what it has cached when the server changes.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
/// Nodes that one announcement tells of then.
const DROP_BATCH: usize = 128;

impl Shared {
    /// Has the kernel drop names, attributes and pages, but for pages that requests under way are about.
    pub(super) fn drop_caches(&self) {
        self.announcer.drop_names();
        let mut busy = BTreeMap::<u64, Vec<(u64, u64)>>::new();
        for request in self.state.lock().in_flight.values().filter(|request| !request.is_behind) {
            let Ok((header, _)) = InHeader::read_from_prefix(&request.message) else { continue };
            if let Some((nodeid, offset, len)) = pages_of(&header, &request.message) {
                busy.entry(nodeid).or_default().push((offset, len));
            }
        }
        let nodes = self.ledger.lock().nodes();
        let pending = Arc::new((Mutex::with_class(&PROGRESS, 0_usize), Condvar::new()));
        let tell = |messages: Vec<u8>| {
            *pending.0.lock() += 1;
            let pending = pending.clone();
            let done = move || {
                *pending.0.lock() -= 1;
                pending.1.notify_all();
            };
            self.announcer.announce(&messages, Box::new(done));
        };
        let (still, moving): (Vec<_>, Vec<_>) =
            nodes.into_iter().chain([ROOT_ID]).partition(|nodeid| !busy.contains_key(nodeid));
        for batch in still.chunks(DROP_BATCH) {
            tell(batch.iter().flat_map(|&nodeid| inval_inode(nodeid, 0, 0)).collect());
        }
        for nodeid in moving {
            let mut ranges = busy.remove(&nodeid).unwrap_or_default();
            ranges.sort_unstable();
            let mut messages = inval_inode(nodeid, -1, 0);
            let mut from = 0;
            for (offset, len) in ranges {
                if offset > from {
                    messages.extend(inval_inode(nodeid, from.cast_signed(), (offset - from).cast_signed()));
                }
                from = from.max(offset.saturating_add(len).min(i64::MAX.cast_unsigned()));
            }
            messages.extend(inval_inode(nodeid, from.cast_signed(), 0));
            tell(messages);
        }
        let end = Instant::now() + DROP_PATIENCE;
        let mut left = pending.0.lock();
        while *left > 0 && Instant::now() < end {
            left = pending.1.wait_timeout(left, end.saturating_duration_since(Instant::now())).0;
        }
    }
}

/// The directory, if `message` announces a name.
pub(super) fn inval_entry_dir(message: &[u8]) -> Option<u64> {
    let (out, body) = OutHeader::read_from_prefix(message).ok()?;
    let is_entry = out.error == NOTIFY_INVAL_ENTRY;
    is_entry.then(|| u64::read_from_prefix(body).ok()).flatten().map(|(parent, _)| parent)
}

/// Whether the kernel keeps the lock of directory `dir` until it has the answer to `request`, and others may have to be told
/// before.
pub(super) fn changes_names_of(request: &[u8], dir: u64) -> bool {
    let Ok((header, body)) = InHeader::read_from_prefix(request) else { return false };
    let into = || u64::read_from_prefix(body).is_ok_and(|(newdir, _)| newdir == dir);
    match header.opcode {
        opcode::RENAME | opcode::RENAME2 => header.nodeid == dir || into(),
        opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK | opcode::CREATE => {
            header.nodeid == dir
        }
        opcode::UNLINK | opcode::RMDIR | opcode::SETXATTR | opcode::SETATTR => header.nodeid == dir,
        _ => false,
    }
}

pub(super) fn inval_inode(ino: u64, off: i64, len: i64) -> Vec<u8> {
    let mut message = Reply::new();
    message.put(&NotifyInvalInodeOut { ino, off, len });
    message.notification(NOTIFY_INVAL_INODE).to_vec()
}
