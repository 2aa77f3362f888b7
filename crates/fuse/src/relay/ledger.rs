//! Ledger: what a kernel holds of its server: lookups, open files, locks, writes that are not durable. Kept from the messages.
//!
//! # Theory
//! What the kernel *gets* counts from the answer on: it does not hold what it has not been told. What it *gives back* counts
//! from the request on: a server that takes over need not know of it. So a request that is sent again, to the same server or
//! the next, finds a server that knows what the kernel knew when it made it.

use super::changes::{Changes, UnderWay};
use super::doubt::Doubts;
use crate::abi::flags::{F_UNLCK, F_WRLCK, LK_FLOCK};
use crate::abi::{
    self, BatchForgetIn, Dirent, EntryOut, FileLock, FlushIn, ForgetIn, ForgetOne, InHeader, LkIn, LkOut,
    OpenOut, OutHeader, RECORD_ALIGN, ReadIn, ReleaseIn, opcode,
};
use crate::guest::{Holdings, Lost, is_noted};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use zerocopy::{FromBytes, IntoBytes};

/// So many owners that have flushed a handle are remembered.
const FLUSHED_MAX: usize = 16;
/// A file with so many locks is for the server: there they are found faster.
const DECIDED_MAX: usize = 64;

/// Where a request keeps its handle, if it has one.
const FH: usize = size_of::<InHeader>();

/// What a kernel holds.
#[derive(Default)]
pub(super) struct Ledger {
    init: Vec<u8>,
    /// Generation and lookups.
    nodes: HashMap<u64, (u64, u64)>,
    /// Node of each handle.
    handles: BTreeMap<u64, u64>,
    /// Owners that have flushed a handle, at most [`FLUSHED_MAX`]: then it may have been others.
    flushed: HashMap<u64, HashSet<u64>>,
    /// Of those, by handle, the owners of which the server has not been told.
    untold: HashMap<u64, Vec<u64>>,
    /// By node, in the order in which they were granted; of one owner none that overlap.
    locks: HashMap<u64, Vec<LkIn>>,
    /// What was answered and may not be durable.
    pub(super) changes: Changes,
    /// Handles whose next FSYNC must fail: what was written may be lost.
    failed: HashSet<u64>,
    /// Of those, by handle, what failed after it was answered: a close tells of it, too.
    failed_behind: HashSet<u64>,
    /// Nodes of which something failed so while they were not open.
    untold_failures: HashSet<u64>,
    /// Nodes whose next FSYNCDIR must fail, likewise; and whether the next SYNCFS must.
    failed_nodes: HashSet<u64>,
    is_failed: bool,
    /// Handles that nothing can be done with any more.
    dead: HashSet<u64>,
    /// Attributes on their way that are old.
    pub(super) doubts: Doubts,
}

impl Ledger {
    /// The kernel makes a request. Returns the error that it gets, if it is not to be served. To be asked again of what is sent
    /// to another server: what it gives back it gives back once.
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
            opcode::READ | opcode::WRITE => {
                let fh = u64::read_from_prefix(&message[FH..]).map_or(0, |(fh, _)| fh);
                return self.dead.contains(&fh).then_some(EIO);
            }
            _ => {}
        }
        None
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
        self.changes.answered(&header, changed_by(&header, body), changes);
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
                }
            }
            opcode::OPEN => {
                if let Ok((open, _)) = OpenOut::read_from_prefix(told) {
                    self.handles.insert(open.fh, header.nodeid);
                    if self.untold_failures.remove(&header.nodeid) {
                        self.failed.insert(open.fh);
                    }
                }
            }
            opcode::READDIRPLUS => self.entries(told),
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

    /// Decides a lock request, of which [`asked`](Self::asked) knows, by the locks that are here: all that anybody has. Returns
    /// what is in the way of one that only tests. `None`: it cannot be decided here.
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
            // Of an owner's own.
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

    /// What the next server is to know.
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

    /// The nodes that the kernel knows, but the root.
    pub(super) fn nodes(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub(super) fn knows(&self, nodeid: u64) -> bool {
        nodeid == abi::ROOT_ID || self.nodes.contains_key(&nodeid)
    }

    /// Of handles in `dead` there is nothing left.
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
        // What was written to a nameless node may be lost although it was synchronised.
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
mod tests {
    use super::*;
    use crate::abi::flags::F_RDLCK;
    use crate::request::tests::message;
    use zerocopy::FromZeros;

    fn ask(ledger: &mut Ledger, request: &[u8]) -> Option<i32> {
        let (header, _) = InHeader::read_from_prefix(request).expect("a header");
        ledger.asked(&header, request)
    }

    /// Asks, and gets an answer with this body.
    fn call(ledger: &mut Ledger, request: &[u8], body: &[&[u8]]) {
        let (header, _) = InHeader::read_from_prefix(request).expect("a header");
        assert_eq!(ledger.asked(&header, request), None);
        let changes = ledger.changes.count();
        let answer = [&[0; size_of::<OutHeader>()], body.concat().as_slice()].concat();
        ledger.answered(request, &answer, changes);
    }

    fn entry(nodeid: u64) -> EntryOut {
        EntryOut { nodeid, generation: 3, ..EntryOut::new_zeroed() }
    }

    fn lock(owner: u64, range: (u64, u64), lock_type: u32) -> LkIn {
        let lk = FileLock { start: range.0, end: range.1, lock_type, pid: 1 };
        LkIn { fh: 9, owner, lk, lk_flags: 0, padding: 0 }
    }

    fn ranges(ledger: &Ledger) -> Vec<(u64, u64)> {
        let holdings = ledger.holdings();
        let locks = holdings.locks.iter().map(|(_, bytes)| LkIn::read_from_bytes(bytes).expect("a lock"));
        locks.map(|lock| (lock.lk.start, lock.lk.end)).collect()
    }

    #[test]
    fn lookups_count_from_the_answer_and_until_they_are_given_back() {
        let mut ledger = Ledger::default();
        let lookup = message(opcode::LOOKUP, 1, &[b"a\0"]);
        call(&mut ledger, &lookup, &[entry(5).as_bytes()]);
        call(&mut ledger, &lookup, &[entry(5).as_bytes()]);
        call(&mut ledger, &lookup, &[entry(0).as_bytes()]);
        assert_eq!(ledger.holdings().nodes, [(5, 3, 2)]);
        let list = [
            entry(6).as_bytes(),
            Dirent { ino: 6, off: 1, namelen: 3, kind: 8 }.as_bytes(),
            b"abc\0\0\0\0\0",
        ]
        .concat();
        call(&mut ledger, &message(opcode::READDIRPLUS, 1, &[]), &[&list, &list]);
        assert_eq!(ledger.nodes.get(&6), Some(&(3, 2)));
        ask(&mut ledger, &message(opcode::FORGET, 5, &[&2_u64.to_le_bytes()]));
        assert!(!ledger.knows(5) && ledger.knows(6) && ledger.knows(abi::ROOT_ID));
    }

    #[test]
    fn a_lock_is_held_from_its_answer_until_it_is_split_flushed_or_released() {
        let mut ledger = Ledger::default();
        let open = OpenOut { fh: 9, open_flags: 0, padding: 0 };
        call(&mut ledger, &message(opcode::OPEN, 5, &[&[0; 8]]), &[open.as_bytes()]);
        let set = |arg: LkIn| message(opcode::SETLK, 5, &[arg.as_bytes()]);
        call(&mut ledger, &set(lock(1, (0, 99), F_WRLCK)), &[]);
        call(&mut ledger, &set(lock(1, (40, 49), F_UNLCK)), &[]);
        assert_eq!(ranges(&ledger), [(0, 39), (50, 99)]);
        call(&mut ledger, &set(lock(1, (30, 59), F_RDLCK)), &[]);
        assert_eq!(ranges(&ledger), [(0, 29), (60, 99), (30, 59)]);
        call(&mut ledger, &set(lock(2, (200, 201), F_RDLCK)), &[]);
        let flush = FlushIn { fh: 9, unused: 0, padding: 0, lock_owner: 1 };
        ask(&mut ledger, &message(opcode::FLUSH, 5, &[flush.as_bytes()]));
        assert_eq!(ranges(&ledger), [(200, 201)]);
        let release = ReleaseIn { fh: 9, flags: 0, release_flags: 0, lock_owner: 0 };
        ask(&mut ledger, &message(opcode::RELEASE, 5, &[release.as_bytes()]));
        assert_eq!(ledger.holdings(), Holdings::default());
    }

    #[test]
    fn a_lock_is_decided_by_those_that_are_here_unless_its_owner_may_have_closed_the_file() {
        let mut ledger = Ledger::default();
        let open = OpenOut { fh: 9, open_flags: 0, padding: 0 };
        call(&mut ledger, &message(opcode::OPEN, 5, &[&[0; 8]]), &[open.as_bytes()]);
        let mut decide = |code: u32, nodeid: u64, arg: LkIn| {
            let request = message(code, nodeid, &[arg.as_bytes()]);
            let (header, _) = InHeader::read_from_prefix(&request).expect("a header");
            assert_eq!(ledger.asked(&header, &request), None);
            ledger.decide(&header, &arg).map(|found| found.map(|found| (found.lk.lock_type, found.lk.start)))
        };
        let (set, test) = (opcode::SETLKW, opcode::GETLK);
        assert_eq!(decide(set, 5, lock(1, (10, 19), F_WRLCK)), Some(None));
        assert_eq!(decide(set, 5, lock(2, (0, 10), F_RDLCK)), None, "it would wait");
        assert_eq!(decide(test, 5, lock(2, (0, 10), F_RDLCK)), Some(Some((F_WRLCK, 10))));
        assert_eq!(decide(test, 5, lock(1, (0, 10), F_RDLCK)), Some(Some((F_UNLCK, 0))), "its own");
        assert_eq!(decide(set, 5, lock(2, (0, 9), F_RDLCK)), Some(None));
        assert_eq!(decide(set, 5, lock(3, (0, 9), F_RDLCK)), Some(None), "shared");
        let whole = |owner, kind| LkIn { lk_flags: LK_FLOCK, ..lock(owner, (0, 99), kind) };
        assert_eq!(decide(set, 5, whole(4, F_WRLCK)), Some(None), "not a range");
        assert_eq!(decide(set, 5, whole(5, F_RDLCK)), None);
        assert_eq!(decide(set, 5, whole(4, F_UNLCK)), Some(None));
        assert_eq!(decide(set, 5, whole(5, F_RDLCK)), Some(None));
        assert_eq!(decide(set, 5, lock(1, (12, 14), F_UNLCK)), Some(None));
        assert_eq!(decide(set, 5, lock(2, (12, 14), F_WRLCK)), Some(None));
        for (nodeid, arg) in [
            (6, lock(1, (0, 0), F_WRLCK)),
            (5, LkIn { fh: 8, ..lock(1, (0, 0), F_WRLCK) }),
            (5, lock(1, (7, 6), F_WRLCK)),
            (5, lock(1, (7, 7), 9)),
        ] {
            assert_eq!(decide(set, nodeid, arg), None, "nothing usual: {arg:?}");
        }
        let flush = FlushIn { fh: 9, unused: 0, padding: 0, lock_owner: 2 };
        ask(&mut ledger, &message(opcode::FLUSH, 5, &[flush.as_bytes()]));
        let late = lock(2, (90, 99), F_WRLCK);
        let header = InHeader { opcode: set, nodeid: 5, ..InHeader::new_zeroed() };
        assert_eq!(ledger.decide(&header, &late).map(|_| ()), None, "it may be late");
        assert!(ledger.decide(&header, &lock(1, (90, 99), F_WRLCK)).is_some());
    }

    #[test]
    fn after_a_takeover_fsync_of_what_was_not_durable_fails_once_for_each_handle() {
        let mut ledger = Ledger::default();
        for (fh, nodeid) in [(1_u64, 5), (2, 5), (3, 6)] {
            let open = OpenOut { fh, open_flags: 0, padding: 0 };
            call(&mut ledger, &message(opcode::OPEN, nodeid, &[&[0; 8]]), &[open.as_bytes()]);
        }
        let fsync = |fh: u64, nodeid| message(opcode::FSYNC, nodeid, &[&fh.to_le_bytes(), &[0; 8]]);
        let write = |nodeid| message(opcode::WRITE, nodeid, &[&[0; 40]]);
        call(&mut ledger, &write(6), &[]);
        call(&mut ledger, &fsync(3, 6), &[]);
        call(&mut ledger, &write(5), &[]);
        ledger.taken_over(&Lost::default(), &[]);
        assert_eq!(ask(&mut ledger, &fsync(3, 6)), Some(EIO), "the process has written to 5");
        assert_eq!(ask(&mut ledger, &fsync(3, 6)), None);
        for fh in [1, 2] {
            assert_eq!(ask(&mut ledger, &fsync(fh, 5)), Some(EIO));
            assert_eq!(ask(&mut ledger, &fsync(fh, 5)), None);
        }
        ledger.lost(&BTreeSet::from([1]));
        assert_eq!(ask(&mut ledger, &fsync(1, 5)), Some(EIO));
        assert_eq!(ask(&mut ledger, &fsync(1, 5)), Some(EIO));
    }
}
