//! Tests of what a kernel holds, by its messages.

use super::*;
use crate::relay::tests::message;
use sluice_fuse::internal::abi::flags::F_RDLCK;
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
    let list =
        [entry(6).as_bytes(), Dirent { ino: 6, off: 1, namelen: 3, kind: 8 }.as_bytes(), b"abc\0\0\0\0\0"]
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
    let flush = |fh: u64| FlushIn { fh, unused: 0, padding: 0, lock_owner: 1 };
    assert_eq!(ask(&mut ledger, &message(opcode::FLUSH, 5, &[flush(1).as_bytes()])), Some(EIO), "close");
    assert_eq!(ask(&mut ledger, &message(opcode::FLUSH, 5, &[flush(2).as_bytes()])), None);
}

#[test]
fn what_was_stored_through_a_mapping_is_of_those_that_have_the_file_open() {
    let mut ledger = Ledger::default();
    let own = std::process::id();
    let mut open = message(opcode::OPEN, 5, &[&[0; 8]]);
    let pid = std::mem::offset_of!(InHeader, pid);
    open[pid..pid + 4].copy_from_slice(&own.to_le_bytes());
    call(&mut ledger, &open, &[OpenOut { fh: 1, open_flags: 0, padding: 0 }.as_bytes()]);
    let arg = WriteIn { write_flags: WRITE_CACHE, ..WriteIn::new_zeroed() };
    call(&mut ledger, &message(opcode::WRITE, 5, &[arg.as_bytes()]), &[]);
    ledger.taken_over(&Lost::default(), &[]);
    assert!(ledger.changes.take_untold(own), "its next fsync, of whatever file, fails");
}
