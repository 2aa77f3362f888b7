//! ChangeFile: which changes a mount's server has answered, in memory that outlives the server.
//!
//! # Theory
//! The file is a memfd, which the holder keeps, too. Each worker has a part of its own, into which it puts the nodes that a request has
//! changed, the process that asked for that, and the time, before the kernel gets the answer. The store says up to which time it has
//! all changes ([`Superblock::durable_stamp`]): what is later is lost with the server. A worker begins anew when all that it noted is durable; what is
//! left of before is older than the time in the store.
//!
//! ```text
//!   whole? | attempts of each worker | what is lost and may be untold | changes of worker 0 | of worker 1 | ...
//! ```
//!
//! A server that leaves on purpose and has brought everything to the store marks the file as whole and removes the changes (`leave.rs`). The next
//! server takes the mark away before it serves.
//!
//! # Cost
//! A change: two words that are read, and a write of 24 bytes for the first one of a node and process since the last push of the store.

use super::clock::now;
use crate::abi::flags::{FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS, WRITE_CACHE};
use crate::abi::{CopyFileRangeIn, EntryOut, InHeader, IoctlIn, OutHeader, ROOT_ID, WriteIn, opcode};
use crate::calling_process::CallingProcess;
use crate::marks::is_noted;
use rustix::fs::MemfdFlags;
use sluice_vfs::Superblock;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The most workers that there may be.
const WORKERS_MAX: u64 = 512;
/// Changes of a worker that are noted before all must be durable.
const CHANGES: u64 = 1 << 15;
/// Lost changes that may be kept.
const LOST_MAX: u64 = 1 << 24;
const CHANGE: u64 = size_of::<NotedChange>() as u64;
const ATTEMPT: u64 = size_of::<ResentAttempt>() as u64;
/// The mark of a whole file.
const WHOLE: u64 = u64::from_le_bytes(*b"allsaved");
const ATTEMPTS_AT: u64 = size_of::<u64>() as u64;
const LOST_AT: u64 = ATTEMPTS_AT + WORKERS_MAX * ATTEMPT;
const CHANGES_AT: u64 = LOST_AT + LOST_MAX * CHANGE;
/// Nodes, and threads, that a worker remembers.
const REMEMBERED: usize = 64;
/// In place of a process: the kernel has written back what somebody stored through a mapping.
pub(super) const MAPPED: u32 = u32::MAX;
/// For how long it remembers the process of a thread, whose number may get another: a second.
const PROCESS_KNOWN: u64 = 1_000_000_000;

/// A change that was answered.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct NotedChange {
    /// When it had ended; 0: there is none.
    pub(super) time: u64,
    pub(super) nodeid: u64,
    /// The number of the process that asked for it; 0 if that is not known, or [`MAPPED`].
    pub(super) process: u32,
    pub(super) padding: u32,
}

/// A request that came a second time, and how often it was begun.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct ResentAttempt {
    unique: u64,
    count: u64,
}

/// The file of a mount.
#[derive(Debug)]
pub(super) struct ChangeFile(File);

impl ChangeFile {
    /// An empty one.
    pub(super) fn new() -> io::Result<ChangeFile> {
        let file = rustix::fs::memfd_create("sluice-changes", MemfdFlags::CLOEXEC)?;
        Ok(ChangeFile(file.into()))
    }

    /// The one of a server before this one.
    pub(super) fn of(file: OwnedFd) -> ChangeFile {
        ChangeFile(file.into())
    }

    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// How often each request was begun that came a second time.
    pub(super) fn attempts(&self) -> io::Result<HashMap<u64, u64>> {
        let mut attempts = HashMap::new();
        for worker in 0..WORKERS_MAX {
            let Some(ResentAttempt { unique, count }) = self.read(ATTEMPTS_AT + worker * ATTEMPT)? else {
                break;
            };
            let known = attempts.entry(unique).or_default();
            *known = count.max(*known);
        }
        Ok(attempts)
    }

    /// The changes of the last server that are later than `durable`, and those that an earlier one lost. They are kept.
    pub(super) fn take_lost(&self, durable: u64) -> io::Result<Vec<NotedChange>> {
        let mut lost = self.from(LOST_AT, LOST_MAX, 0)?;
        let kept = lost.len() as u64;
        for worker in 0..WORKERS_MAX {
            lost.append(&mut self.from(CHANGES_AT + worker * CHANGES * CHANGE, CHANGES, durable)?);
        }
        let new = &lost[kept as usize..];
        self.0.write_all_at(new.as_bytes(), LOST_AT + kept * CHANGE)?;
        // After the write: if this server dies before the cut, the next server finds the changes at their old places.
        self.0.set_len(CHANGES_AT)?;
        Ok(lost)
    }

    /// The store has all changes that were answered, and no more are answered.
    pub(super) fn set_whole(&self) -> io::Result<()> {
        // All is durable by now: if this server dies between the two, some losses are told that are none.
        self.0.set_len(CHANGES_AT)?;
        self.0.write_all_at(&WHOLE.to_le_bytes(), 0)
    }

    /// Whether the last server has left with everything in the store.
    pub(super) fn is_whole(&self) -> io::Result<bool> {
        Ok(self.read::<u64>(0)? == Some(WHOLE))
    }

    /// Requests are answered from here on.
    pub(super) fn set_used(&self) -> io::Result<()> {
        self.0.write_all_at(&0_u64.to_le_bytes(), 0)
    }

    /// Up to `most` changes that stand at `at` and are later than `time`.
    fn from(&self, at: u64, most: u64, time: u64) -> io::Result<Vec<NotedChange>> {
        const AT_ONCE: u64 = 1024;
        let mut found = Vec::new();
        for first in (0..most).step_by(AT_ONCE as usize) {
            let mut some = vec![NotedChange::new_zeroed(); AT_ONCE.min(most - first) as usize];
            self.fill(some.as_mut_bytes(), at + first * CHANGE)?;
            let end = some.iter().position(|change| change.time == 0);
            found.extend(some.iter().take(end.unwrap_or(some.len())).filter(|change| change.time > time));
            if end.is_some() {
                break;
            }
        }
        Ok(found)
    }

    fn read<T: FromBytes + IntoBytes>(&self, at: u64) -> io::Result<Option<T>> {
        let mut value = T::new_zeroed();
        let is_there = self.fill(value.as_mut_bytes(), at)?;
        Ok(is_there.then_some(value))
    }

    /// Reads into `bytes`; what the file does not reach stays 0. Whether it reached any.
    fn fill(&self, bytes: &mut [u8], at: u64) -> io::Result<bool> {
        let mut done = 0;
        while done < bytes.len() {
            match self.0.read_at(&mut bytes[done..], at + done as u64)? {
                0 => break,
                more => done += more,
            }
        }
        Ok(done > 0)
    }
}

/// A worker's part of the file.
pub(crate) struct HeldWorker {
    /// *immutable*
    pub(super) number: u64,
    /// So many changes were noted since all were durable.
    noted: u64,
    /// The changes noted last, each with the push before it.
    recent: [(u64, u32, u64); REMEMBERED],
    /// The process of each known thread, and the time of that look at `/proc`.
    processes: [(u32, u32, u64); REMEMBERED],
}

impl HeldWorker {
    /// The worker with this number; none if the file has no room for another worker.
    pub(super) fn new(number: u64) -> Option<HeldWorker> {
        let new = HeldWorker {
            number,
            noted: 0,
            recent: [(0, 0, 0); REMEMBERED],
            processes: [(0, 0, 0); REMEMBERED],
        };
        (number < WORKERS_MAX).then_some(new)
    }

    /// A request that came again is begun, for the time of this `count`.
    pub(super) fn attempt(&self, file: &ChangeFile, unique: u64, count: u64) {
        // Without it a request that ends the server each time ends it more often.
        let _ = file
            .0
            .write_all_at(ResentAttempt { unique, count }.as_bytes(), ATTEMPTS_AT + self.number * ATTEMPT);
    }

    /// The kernel is about to get `answer` to the request of `header` and `body`.
    pub(super) fn answered(
        &mut self,
        file: &ChangeFile,
        superblock: &Superblock,
        (header, body): (&InHeader, &[u8]),
        answer: &[u8],
    ) {
        let Ok((out, told)) = OutHeader::read_from_prefix(answer) else { return };
        if out.error != 0 {
            return;
        }
        if matches!(header.opcode, opcode::FSYNC | opcode::FSYNCDIR) {
            // Changes that this worker noted before are durable.
            self.noted = 0;
            return;
        }
        let nodes = changed_by(header, body, told);
        if nodes == [None; 3] {
            return;
        }
        let process = if is_mapped(header, body) { MAPPED } else { self.process_of(header.pid) };
        let (stamp, now) = (superblock.push_stamp(), now());
        for nodeid in nodes.into_iter().flatten() {
            let last = &mut self.recent[nodeid as usize % REMEMBERED];
            // No push since: the one is durable when the other is.
            if *last == (nodeid, process, stamp) {
                continue;
            }
            *last = (nodeid, process, stamp);
            let change = NotedChange { time: now, nodeid, process, padding: 0 };
            let at = CHANGES_AT + (self.number * CHANGES + self.noted) * CHANGE;
            let is_noted = file.0.write_all_at(change.as_bytes(), at);
            self.noted += 1;
            if is_noted.is_err() || self.noted == CHANGES {
                // An error shows at the next change: the store has failed.
                let _ = superblock.sync();
                self.noted = 0;
            }
        }
    }

    /// The number of the process that has `thread`, or 0.
    fn process_of(&mut self, thread: u32) -> u32 {
        let now = now();
        let known = &mut self.processes[thread as usize % REMEMBERED];
        if known.0 != thread || now.saturating_sub(known.2) > PROCESS_KNOWN {
            *known = (thread, CallingProcess::id_of(thread).unwrap_or(0), now);
        }
        known.1
    }
}

/// Whether a request writes back what somebody stored through a mapping.
fn is_mapped(header: &InHeader, body: &[u8]) -> bool {
    header.opcode == opcode::WRITE
        && WriteIn::read_from_prefix(body).is_ok_and(|(arg, _)| arg.write_flags & WRITE_CACHE != 0)
}

/// The nodes that a request has changed, which was `told` this.
fn changed_by(header: &InHeader, body: &[u8], told: &[u8]) -> [Option<u64>; 3] {
    let dir = Some(header.nodeid);
    let made = || EntryOut::read_from_prefix(told).ok().map(|(entry, _)| entry.nodeid);
    match header.opcode {
        opcode::RENAME | opcode::RENAME2 => {
            [dir, u64::read_from_prefix(body).ok().map(|(newdir, _)| newdir), None]
        }
        opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK | opcode::CREATE => {
            [dir, made(), None]
        }
        opcode::TMPFILE => [None, made(), None],
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            [CopyFileRangeIn::read_from_prefix(body).ok().map(|(arg, _)| arg.nodeid_out), None, None]
        }
        opcode::IOCTL => {
            let sets = |arg: &IoctlIn| matches!(arg.cmd, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR);
            [dir.filter(|_| IoctlIn::read_from_prefix(body).is_ok_and(|(arg, _)| sets(&arg))), None, None]
        }
        code => [dir.filter(|_| is_noted(code)), None, None],
    }
    .map(|node| node.filter(|nodeid| *nodeid >= ROOT_ID))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(file: &ChangeFile, worker: u64, at: u64, time: u64, nodeid: u64) {
        let change = NotedChange { time, nodeid, process: 9, padding: 0 };
        let at = CHANGES_AT + (worker * CHANGES + at) * CHANGE;
        file.0.write_all_at(change.as_bytes(), at).expect("memory");
    }

    fn nodes(lost: &[NotedChange]) -> Vec<u64> {
        lost.iter().map(|change| change.nodeid).collect()
    }

    #[test]
    fn what_is_later_than_the_last_durable_push_is_lost_and_stays_so_for_the_next_server() {
        let file = ChangeFile::new().expect("memory");
        assert!(file.take_lost(0).expect("read").is_empty());
        for (worker, at, time, nodeid) in [(0, 0, 5, 2), (0, 1, 7, 3), (3, 0, 8, 4), (3, 2, 9, 5)] {
            put(&file, worker, at, time, nodeid);
        }
        // The worker had not got so far with the last change.
        assert_eq!(nodes(&file.take_lost(6).expect("read")), [3, 4]);
        put(&file, 1, 0, 11, 6);
        put(&file, 1, 1, 21, 7);
        let again = ChangeFile::of(file.try_clone().expect("a descriptor"));
        assert_eq!(nodes(&again.take_lost(20).expect("read")), [3, 4, 7]);
    }

    #[test]
    fn a_whole_file_has_no_changes_but_those_that_were_lost_before_and_is_used_again() {
        let file = ChangeFile::new().expect("memory");
        assert!(!file.is_whole().expect("read"));
        put(&file, 0, 0, 5, 2);
        assert_eq!(nodes(&file.take_lost(0).expect("read")), [2]);
        put(&file, 0, 0, 9, 3);
        file.set_whole().expect("memory");
        assert!(file.is_whole().expect("read"));
        assert_eq!(nodes(&file.take_lost(6).expect("read")), [2]);
        file.set_used().expect("memory");
        assert!(!file.is_whole().expect("read"));
    }

    #[test]
    fn attempts_of_a_request_are_counted_by_the_last_server_that_began_it() {
        let file = ChangeFile::new().expect("memory");
        let worker = |number| HeldWorker::new(number).expect("few");
        worker(0).attempt(&file, 77, 1);
        worker(1).attempt(&file, 77, 2);
        worker(1).attempt(&file, 79, 1);
        worker(2).attempt(&file, 77, 2);
        let attempts = file.attempts().expect("read");
        assert_eq!((attempts[&77], attempts[&79]), (2, 1));
        assert!(HeldWorker::new(WORKERS_MAX).is_none());
    }
}
