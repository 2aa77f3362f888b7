//! Ledger: what a kernel holds of its server: lookups, open files, locks, writes that are not durable. Kept from the messages.
//!
//! # Theory
//! State that the kernel *gets* counts from the answer on: before the answer it does not hold the state. State that it
//! *gives back* counts from the request on: a server that takes over need not know of it. So a request that is sent
//! again, to the same server or the next, finds a server that knows what the kernel knew when it made it.

use super::changes::{Changes, UnderWay};
use super::doubt::Doubts;
use crate::guest::{Holdings, Lost};
use sluice_fuse::internal::abi::flags::{F_UNLCK, F_WRLCK, LK_FLOCK, WRITE_CACHE};
use sluice_fuse::internal::abi::{
    self, BatchForgetIn, Dirent, EntryOut, FileLock, FlushIn, ForgetIn, ForgetOne, InHeader, LkIn, LkOut,
    OpenOut, OutHeader, RECORD_ALIGN, ReadIn, ReleaseIn, WriteIn,
};
use sluice_fuse::internal::is_noted;
use sluice_fuse::opcode;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::OpenFlags;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use zerocopy::{FromBytes, IntoBytes};

/// So many owners that have flushed a handle are remembered.
const FLUSHED_MAX: usize = 16;
/// A file with so many locks is for the server: there they are found faster.
const DECIDED_MAX: usize = 64;
/// How long a listing may rest before it counts as given up: the kernel does not tell who has a directory open.
const LISTING_MAX: Duration = Duration::from_secs(600);

/// The offset of the handle in a request that has one.
const FH: usize = size_of::<InHeader>();

/// The state that a kernel holds.
#[derive(Default)]
pub(super) struct Ledger {
    init: Vec<u8>,
    /// Generation and lookups.
    nodes: HashMap<u64, (u64, u64)>,
    /// Node of each handle.
    handles: BTreeMap<u64, u64>,
    /// For each handle, the thread that opened it.
    openers: HashMap<u64, u32>,
    /// Owners that have flushed a handle, at most [`FLUSHED_MAX`]: then it may have been others.
    flushed: HashMap<u64, HashSet<u64>>,
    /// The flushed owners, by handle, that the server does not know of.
    untold: HashMap<u64, Vec<u64>>,
    /// By node, in the order in which they were granted; of one owner none that overlap.
    locks: HashMap<u64, Vec<LkIn>>,
    /// Answered changes that may not be durable.
    pub(super) changes: Changes,
    /// Handles whose next FSYNC must fail: what was written may be lost.
    failed: HashSet<u64>,
    /// Failed handles whose failure came after the answer: a close reports it, too.
    failed_behind: HashSet<u64>,
    /// Nodes of which something failed so while they were not open.
    untold_failures: HashSet<u64>,
    /// Nodes whose next FSYNCDIR must fail, likewise; and whether the next SYNCFS must.
    failed_nodes: HashSet<u64>,
    is_failed: bool,
    /// Handles on which every call fails.
    dead: HashSet<u64>,
    /// Listings that have not come to their end, by node and thread, with the time of the last answer.
    listings: BTreeMap<(u64, u32), Instant>,
    /// Attributes on their way that are old.
    pub(super) doubts: Doubts,
}

impl Ledger {
    /// The kernel makes a request. Returns the error for the kernel, if the request is refused. To be asked again of
    /// what is sent to another server: what it gives back it gives back once.
    pub(super) fn asked(&mut self, header: &InHeader, message: &[u8]) -> Option<i32> {
        let body = &message[size_of::<InHeader>()..];
        match header.opcode {
            opcode::FORGET => {
                if let Ok((arg, _)) = ForgetIn::read_from_prefix(body) {
                    self.forget(header.nodeid, arg.nlookup);
                }
            }
            opcode::BATCH_FORGET => {
                let Ok((arg, rest)) = BatchForgetIn::read_from_prefix(body) else { return None };
                let ones = rest.chunks_exact(size_of::<ForgetOne>()).take(arg.count as usize);
                for one in ones.filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok()) {
                    self.forget(one.nodeid, one.nlookup);
                }
            }
            opcode::RELEASE => {
                let Ok((arg, _)) = ReleaseIn::read_from_prefix(body) else { return None };
                if let Some(nodeid) = self.handles.remove(&arg.fh) {
                    self.drop_locks(nodeid, |lock| lock.fh == arg.fh);
                }
                self.flushed.remove(&arg.fh);
                self.openers.remove(&arg.fh);
                self.untold.remove(&arg.fh);
                self.take_failed_behind(arg.fh);
                self.failed.remove(&arg.fh);
                self.dead.remove(&arg.fh);
            }
            opcode::FLUSH => {
                let Ok((arg, _)) = FlushIn::read_from_prefix(body) else { return None };
                if self.handles.contains_key(&arg.fh) {
                    let flushed = self.flushed.entry(arg.fh).or_default();
                    if flushed.len() < FLUSHED_MAX {
                        flushed.insert(arg.lock_owner);
                    }
                }
                self.drop_locks(header.nodeid, |lock| {
                    lock.owner == arg.lock_owner && lock.lk_flags & LK_FLOCK == 0
                });
                return self.dead.contains(&arg.fh).then_some(EIO);
            }
            opcode::SETLK | opcode::SETLKW => {
                let Ok((arg, _)) = LkIn::read_from_prefix(body) else { return None };
                if arg.lk.lock_type == F_UNLCK {
                    self.unlock(header.nodeid, &arg);
                }
                return self.dead.contains(&arg.fh).then_some(EIO);
            }
            opcode::FSYNC => {
                let fh = u64::read_from_prefix(&message[FH..]).map_or(0, |(fh, _)| fh);
                self.failed_behind.remove(&fh);
                // Both: it is told once.
                let is_failed = self.failed.remove(&fh) | self.changes.take_untold(header.pid);
                return (is_failed || self.dead.contains(&fh)).then_some(EIO);
            }
            opcode::FSYNCDIR => {
                let is_failed =
                    self.failed_nodes.remove(&header.nodeid) | self.changes.take_untold(header.pid);
                return is_failed.then_some(EIO);
            }
            opcode::SYNCFS => return std::mem::take(&mut self.is_failed).then_some(EIO),
            opcode::WRITE => {
                let Ok((arg, _)) = WriteIn::read_from_prefix(body) else { return None };
                let is_durable = OpenFlags::from_bits_retain(arg.flags).contains(OpenFlags::DSYNC)
                    && arg.write_flags & WRITE_CACHE == 0;
                // The answer claims that earlier writes are durable, like FSYNC.
                let is_failed =
                    is_durable && (self.failed.remove(&arg.fh) | self.changes.take_untold(header.pid));
                return (is_failed || self.dead.contains(&arg.fh)).then_some(EIO);
            }
            opcode::READ => {
                let fh = u64::read_from_prefix(&message[FH..]).map_or(0, |(fh, _)| fh);
                return self.dead.contains(&fh).then_some(EIO);
            }
            _ => {}
        }
        None
    }

    /// A ledger for the same kernel, which holds nothing yet of another server.
    pub(super) fn of_same_kernel(&self) -> Ledger {
        Ledger { init: self.init.clone(), ..Ledger::default() }
    }

    /// Whether a FLUSH, which is about to be [asked](Self::asked), ends no lock, so that the server need not know of it yet.
    pub(super) fn flush_in_silence(&mut self, nodeid: u64, arg: &FlushIn) -> bool {
        let flushed = self.flushed.get(&arg.fh);
        let has_flushed = flushed.is_some_and(|owners| owners.contains(&arg.lock_owner));
        let is_full = flushed.is_some_and(|owners| owners.len() >= FLUSHED_MAX) && !has_flushed;
        let may_lock = |lock: &LkIn| lock.owner == arg.lock_owner && lock.lk_flags & LK_FLOCK == 0;
        let is_locked = self.locks.get(&nodeid).is_some_and(|locks| locks.iter().any(may_lock));
        let is_silent = self.handles.get(&arg.fh) == Some(&nodeid)
            && !self.dead.contains(&arg.fh)
            && !is_full
            && !is_locked;
        if is_silent && !has_flushed {
            self.untold.entry(arg.fh).or_default().push(arg.lock_owner);
        }
        is_silent
    }

    /// Whether the server has not been told yet that the owner of a lock, which it is asked for now, has flushed the handle.
    pub(super) fn take_untold(&mut self, arg: &LkIn) -> bool {
        let Some(owners) = self.untold.get_mut(&arg.fh) else { return false };
        let at = owners.iter().position(|owner| *owner == arg.owner);
        at.map(|at| owners.swap_remove(at)).is_some()
    }

    /// The kernel is about to get `answer` to `request`, which was made after so many `changes`.
    pub(super) fn answered(&mut self, request: &[u8], answer: &[u8], changes: u64) {
        let (Ok((header, body)), Ok((out, told))) =
            (InHeader::read_from_prefix(request), OutHeader::read_from_prefix(answer))
        else {
            return;
        };
        if out.error != 0 {
            return;
        }
        let threads = self.threads_of(&header, body);
        self.changes.answered(&header, changed_by(&header, body), changes, &threads);
        match header.opcode {
            opcode::INIT => self.init = request.to_vec(),
            opcode::LOOKUP | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK => {
                self.entry(told);
            }
            opcode::CREATE | opcode::TMPFILE => {
                let nodeid = self.entry(told);
                if let (Some(nodeid), Ok((open, _))) =
                    (nodeid, OpenOut::read_from_prefix(told.get(size_of::<EntryOut>()..).unwrap_or_default()))
                {
                    self.handles.insert(open.fh, nodeid);
                    self.openers.insert(open.fh, header.pid);
                }
            }
            opcode::OPEN => {
                if let Ok((open, _)) = OpenOut::read_from_prefix(told) {
                    self.handles.insert(open.fh, header.nodeid);
                    self.openers.insert(open.fh, header.pid);
                    if self.untold_failures.remove(&header.nodeid) {
                        self.failed.insert(open.fh);
                    }
                }
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let listing = (header.nodeid, header.pid);
                match told.is_empty() {
                    true => drop(self.listings.remove(&listing)),
                    false => drop(self.listings.insert(listing, Instant::now())),
                }
                if header.opcode == opcode::READDIRPLUS {
                    self.entries(told);
                }
            }
            opcode::SETLK | opcode::SETLKW => {
                if let Ok((arg, _)) = LkIn::read_from_prefix(body)
                    && arg.lk.lock_type != F_UNLCK
                {
                    self.lock(header.nodeid, &arg);
                }
            }
            opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS => self.changes.synced(changes),
            _ => {}
        }
    }

    /// Which threads are to be told if what a request changes is lost. The kernel writes back what somebody stored through a mapping: all that
    /// have opened the file.
    fn threads_of(&self, header: &InHeader, body: &[u8]) -> Vec<u32> {
        let is_mapped = header.opcode == opcode::WRITE
            && WriteIn::read_from_prefix(body).is_ok_and(|(arg, _)| arg.write_flags & WRITE_CACHE != 0);
        if !is_mapped {
            return vec![header.pid];
        }
        let open = self.handles.iter().filter(|(_, nodeid)| **nodeid == header.nodeid);
        let threads: BTreeSet<_> = open.filter_map(|(fh, _)| self.openers.get(fh).copied()).collect();
        if threads.is_empty() { vec![header.pid] } else { threads.into_iter().collect() }
    }

    /// Decides a lock request, of which [`asked`](Self::asked) knows, by the locks that are here: all that anybody has.
    /// Returns the conflicting lock for a request that only tests. `None`: it cannot be decided here.
    pub(super) fn decide(&mut self, header: &InHeader, arg: &LkIn) -> Option<Option<LkOut>> {
        let may_be_late = self
            .flushed
            .get(&arg.fh)
            .is_some_and(|owners| owners.len() == FLUSHED_MAX || owners.contains(&arg.owner));
        let is_usual = arg.lk.start <= arg.lk.end && arg.lk.lock_type <= F_UNLCK;
        if self.handles.get(&arg.fh) != Some(&header.nodeid) || may_be_late || !is_usual {
            return None;
        }
        let held = self.locks.get(&header.nodeid).map_or(&[][..], Vec::as_slice);
        let in_the_way = held.iter().find(|lock| conflict(lock, arg));
        match (header.opcode, arg.lk.lock_type) {
            // A question about the owner's own locks.
            (opcode::GETLK, F_UNLCK) => None,
            (opcode::GETLK, _) => {
                let lk = in_the_way.map_or(FileLock { lock_type: F_UNLCK, ..arg.lk }, |lock| lock.lk);
                Some(Some(LkOut { lk }))
            }
            (_, F_UNLCK) => Some(None),
            _ if in_the_way.is_some() || held.len() >= DECIDED_MAX => None,
            _ => {
                self.lock(header.nodeid, arg);
                Some(None)
            }
        }
    }

    /// The locks of a node.
    pub(super) fn locks_of(&self, nodeid: u64) -> Vec<LkIn> {
        self.locks.get(&nodeid).cloned().unwrap_or_default()
    }

    /// Whether the kernel has the file open.
    pub(super) fn is_open(&self, nodeid: u64) -> bool {
        self.handles.values().any(|other| *other == nodeid)
    }

    /// How many nodes the kernel knows, files it has open, and locks it holds.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.nodes.len() + 1, self.handles.len(), self.locks.values().map(Vec::len).sum())
    }

    /// Whether the handle is one of this node.
    pub(super) fn is_handle_of(&self, fh: u64, nodeid: u64) -> bool {
        self.handles.get(&fh) == Some(&nodeid)
    }

    /// A change of `nodeid` failed that was answered before.
    pub(super) fn failed_behind(&mut self, nodeid: u64) {
        let open: Vec<_> = self.handles.iter().filter(|(_, of)| **of == nodeid).map(|(fh, _)| *fh).collect();
        if open.is_empty() && self.knows(nodeid) {
            self.untold_failures.insert(nodeid);
        }
        self.failed.extend(&open);
        self.failed_behind.extend(open);
        self.is_failed = true;
    }

    /// Whether a close of the handle is to tell of such a failure.
    pub(super) fn take_failed_behind(&mut self, fh: u64) -> bool {
        self.failed_behind.remove(&fh) && self.failed.remove(&fh)
    }

    /// The state for the next server.
    pub(super) fn holdings(&self) -> Holdings {
        let locks = self.locks.iter().flat_map(|(&nodeid, locks)| {
            locks.iter().map(move |lock| {
                let mut bytes = [0; size_of::<LkIn>()];
                bytes.copy_from_slice(lock.as_bytes());
                (nodeid, bytes)
            })
        });
        Holdings {
            init: self.init.clone(),
            nodes: self
                .nodes
                .iter()
                .map(|(&nodeid, &(generation, count))| (nodeid, generation, count))
                .collect(),
            handles: self.handles.iter().map(|(&fh, &nodeid)| (fh, nodeid)).collect(),
            locks: locks.collect(),
            behind: Vec::new(),
        }
    }

    /// Whether the kernel has no file open, no lock and no listing under way, and no failure is to be told.
    pub(super) fn is_at_rest(&mut self) -> bool {
        self.listings.retain(|_, answered| answered.elapsed() < LISTING_MAX);
        self.handles.is_empty()
            && self.locks.is_empty()
            && self.listings.is_empty()
            && self.failed_nodes.is_empty()
            && self.untold_failures.is_empty()
            && !self.is_failed
            && self.changes.are_told()
    }

    /// Whether the kernel knows no node but the root, and all that it was told is durable.
    pub(super) fn is_bare(&self) -> bool {
        self.nodes.is_empty() && self.changes.are_durable()
    }

    /// The nodes that the kernel knows, but the root.
    pub(super) fn nodes(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub(super) fn knows(&self, nodeid: u64) -> bool {
        nodeid == abi::ROOT_ID || self.nodes.contains_key(&nodeid)
    }

    /// Marks the handles in `dead` as lost, and drops their locks.
    pub(super) fn lost(&mut self, dead: &BTreeSet<u64>) {
        self.dead.extend(dead);
        self.locks.retain(|_, locks| {
            locks.retain(|lock| !dead.contains(&lock.fh));
            !locks.is_empty()
        });
    }

    /// Another server goes on from what was durable, and with the requests `under_way`.
    pub(super) fn taken_over(&mut self, lost: &Lost, under_way: &[UnderWay]) {
        let unsynced: HashSet<_> = self.changes.taken_over(&lost.executed, under_way).into_iter().collect();
        // Synchronised writes to a nameless node may be lost.
        let is_lost = |nodeid: &u64| unsynced.contains(nodeid) || lost.nameless.contains(nodeid);
        self.failed.extend(self.handles.iter().filter(|(_, nodeid)| is_lost(nodeid)).map(|(fh, _)| fh));
        self.is_failed |= !unsynced.is_empty();
        self.failed_nodes.extend(unsynced);
    }

    fn entry(&mut self, told: &[u8]) -> Option<u64> {
        let (entry, _) = EntryOut::read_from_prefix(told).ok()?;
        if entry.nodeid > abi::ROOT_ID {
            let node = self.nodes.entry(entry.nodeid).or_insert((entry.generation, 0));
            *node = (entry.generation, node.1 + 1);
        }
        (entry.nodeid != 0).then_some(entry.nodeid)
    }

    /// Entries of READDIRPLUS.
    fn entries(&mut self, mut told: &[u8]) {
        while let Some(rest) = told.get(size_of::<EntryOut>()..)
            && let Ok((dirent, _)) = Dirent::read_from_prefix(rest)
        {
            self.entry(told);
            let len = size_of::<EntryOut>() + size_of::<Dirent>() + dirent.namelen as usize;
            told = told.get(len.next_multiple_of(RECORD_ALIGN)..).unwrap_or_default();
        }
    }

    fn forget(&mut self, nodeid: u64, lookups: u64) {
        if let Some((_, count)) = self.nodes.get_mut(&nodeid) {
            *count = count.saturating_sub(lookups);
            if *count == 0 {
                self.nodes.remove(&nodeid);
                self.locks.remove(&nodeid);
                self.listings.retain(|(listed, _), _| *listed != nodeid);
                self.changes.forget(nodeid);
                self.failed_nodes.remove(&nodeid);
                self.untold_failures.remove(&nodeid);
            }
        }
    }

    fn drop_locks(&mut self, nodeid: u64, ends: impl Fn(&LkIn) -> bool) {
        if let Some(locks) = self.locks.get_mut(&nodeid) {
            locks.retain(|lock| !ends(lock));
            if locks.is_empty() {
                self.locks.remove(&nodeid);
            }
        }
    }

    fn lock(&mut self, nodeid: u64, arg: &LkIn) {
        self.unlock(nodeid, arg);
        self.locks.entry(nodeid).or_default().push(*arg);
    }

    /// Takes the range of `arg` out of what its owner has.
    fn unlock(&mut self, nodeid: u64, arg: &LkIn) {
        let Some(locks) = self.locks.get_mut(&nodeid) else { return };
        let kind = arg.lk_flags & LK_FLOCK;
        let (start, end) = (arg.lk.start, arg.lk.end);
        let mut left = Vec::with_capacity(locks.len());
        for lock in locks.drain(..) {
            let has = lock.lk;
            let is_hit = lock.owner == arg.owner
                && lock.lk_flags & LK_FLOCK == kind
                && (kind != 0 || (has.start <= end && start <= has.end));
            if !is_hit {
                left.push(lock);
                continue;
            }
            if kind == 0 && has.start < start {
                left.push(LkIn { lk: abi::FileLock { end: start - 1, ..has }, ..lock });
            }
            if kind == 0 && has.end > end {
                left.push(LkIn { lk: abi::FileLock { start: end + 1, ..has }, ..lock });
            }
        }
        *locks = left;
        if locks.is_empty() {
            self.locks.remove(&nodeid);
        }
    }
}

const EIO: i32 = 5;

/// The nodes that a request changes when it succeeds.
fn changed_by(header: &InHeader, body: &[u8]) -> [Option<u64>; 2] {
    match header.opcode {
        opcode::RENAME | opcode::RENAME2 => {
            let newdir = u64::read_from_prefix(body).ok().map(|(newdir, _)| newdir);
            [Some(header.nodeid), newdir]
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            [abi::CopyFileRangeIn::read_from_prefix(body).ok().map(|(arg, _)| arg.nodeid_out), None]
        }
        code => [is_noted(code).then_some(header.nodeid), None],
    }
}

/// Whether `held` is in the way of `asked`. A flock has nothing to do with a range.
fn conflict(held: &LkIn, asked: &LkIn) -> bool {
    let kind = asked.lk_flags & LK_FLOCK;
    held.owner != asked.owner
        && held.lk_flags & LK_FLOCK == kind
        && (held.lk.lock_type == F_WRLCK || asked.lk.lock_type == F_WRLCK)
        && (kind != 0 || held.lk.start <= asked.lk.end && asked.lk.start <= held.lk.end)
}

/// The bytes of a file that a request may keep locked in the kernel's cache: its node, first byte, and length.
pub(super) fn pages_of(header: &InHeader, message: &[u8]) -> Option<(u64, u64, u64)> {
    if !matches!(header.opcode, opcode::READ | opcode::WRITE | opcode::READDIR | opcode::READDIRPLUS) {
        return None;
    }
    // WRITE has handle, offset and size in the same places.
    let (arg, _) = ReadIn::read_from_prefix(&message[size_of::<InHeader>()..]).ok()?;
    Some((header.nodeid, arg.offset, arg.size.into()))
}

#[cfg(test)]
mod tests;
