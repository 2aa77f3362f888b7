//! Locks of guests: what one kernel alone locks is decided without its server, and all see the same locks.

use crate::mounts::eventually;
use crate::pair::Pair;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use sluice_fuse::opcode::{SETLK, SETLKW};
use sluice_sync::{Arc, thread};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;
const UNLOCK: FlockOperation = FlockOperation::Unlock;

/// Both kinds of locks, each a call with a file.
type LockCall = fn(&File, FlockOperation) -> Result<(), Errno>;
const LOCKS: [LockCall; 2] =
    [|file, operation| fcntl_lock(file, operation), |file, operation| flock(file, operation)];

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// How many lock requests the server of a node got.
fn asked(pair: &Pair, node: usize) -> u64 {
    let guest = pair.nodes[node].guest.as_ref().expect("attached");
    guest.requests(SETLK) + guest.requests(SETLKW)
}

#[test]
fn a_lock_that_no_other_wants_costs_one_message_for_all_times() {
    let Some(pair) = Pair::new() else { return };
    // Each kind of lock has a file of its own: a closed file counts as open until the kernel has said so.
    for (lock, name) in LOCKS.into_iter().zip(["f", "g"]) {
        let file = open(&pair.nodes[1].path(name));
        let before = asked(&pair, 1);
        for _ in 0..500 {
            lock(&file, EXCLUSIVE).expect("free");
            lock(&file, UNLOCK).expect("unlocked");
        }
        assert_eq!(asked(&pair, 1) - before, 1);
        lock(&file, FlockOperation::LockShared).expect("free");
        drop(file);
        // The lock went with the file.
        let other = open(&pair.nodes[0].path(name));
        eventually("it is free", || lock(&other, EXCLUSIVE).is_ok());
    }
    assert!(pair.nodes[1].relay.counts().locks_decided >= 4 * 500 - 2);
    pair.finish();
}

#[test]
fn a_guest_that_opens_the_file_finds_the_locks_that_another_holds_without_its_server() {
    let Some(pair) = Pair::new() else { return };
    for lock in LOCKS {
        let mine = open(&pair.nodes[0].path("f"));
        lock(&mine, EXCLUSIVE).expect("free");
        lock(&mine, UNLOCK).expect("unlocked");
        lock(&mine, EXCLUSIVE).expect("free");
        let yours = open(&pair.nodes[1].path("f"));
        let refused = lock(&yours, EXCLUSIVE);
        assert!(matches!(refused, Err(Errno::AGAIN | Errno::ACCESS)), "{refused:?}");
        thread::scope(|scope| {
            let before = asked(&pair, 1);
            let waits = scope.spawn(|| lock(&yours, FlockOperation::LockExclusive));
            eventually("it waits", || asked(&pair, 1) > before);
            lock(&mine, UNLOCK).expect("unlocked");
            assert_eq!(waits.join().expect("no panic"), Ok(()));
        });
        assert!(lock(&mine, EXCLUSIVE).is_err());
        // A file that was unlocked without the server is free for all.
        drop(yours);
        eventually("it is free", || lock(&mine, EXCLUSIVE).is_ok());
        let before = pair.nodes[0].relay.counts().locks_decided;
        eventually("it is decided by the relay again", || {
            lock(&mine, UNLOCK).expect("unlocked");
            lock(&mine, EXCLUSIVE).expect("free");
            pair.nodes[0].relay.counts().locks_decided > before
        });
        lock(&mine, UNLOCK).expect("unlocked");
        let yours = open(&pair.nodes[1].path("f"));
        lock(&yours, EXCLUSIVE).expect("free");
    }
    pair.finish();
}

#[test]
fn two_open_files_of_one_guest_exclude_each_other_and_one_waits_for_the_other() {
    let Some(pair) = Pair::new() else { return };
    let (one, other) = (open(&pair.nodes[1].path("f")), open(&pair.nodes[1].path("f")));
    flock(&one, EXCLUSIVE).expect("free");
    flock(&one, UNLOCK).expect("unlocked");
    flock(&one, EXCLUSIVE).expect("free");
    assert_eq!(flock(&other, EXCLUSIVE), Err(Errno::AGAIN));
    thread::scope(|scope| {
        let before = asked(&pair, 1);
        let waits = scope.spawn(|| flock(&other, FlockOperation::LockExclusive));
        eventually("it waits", || asked(&pair, 1) > before);
        flock(&one, UNLOCK).expect("unlocked");
        assert_eq!(waits.join().expect("no panic"), Ok(()));
    });
    assert_eq!(flock(&one, EXCLUSIVE), Err(Errno::AGAIN));
    drop((one, other));
    pair.finish();
}

/// Each opens one file after the other, and adds to the number in it, under a lock: mostly alone, now and then not.
#[test]
fn no_addition_is_lost_under_locks_of_two_guests_that_come_and_go() {
    const FILES: u64 = 5;
    const VISITS: u64 = 100;
    const ADDITIONS: u64 = 5;
    let Some(pair) = Pair::new() else { return };
    let all = &pair.nodes;
    let names = |node: usize| {
        (0..FILES)
            .map(move |file| format!("{file}"))
            .map(move |name| all[node].path(&name))
            .collect::<Vec<_>>()
    };
    names(0).iter().for_each(|path| fs::write(path, 0_u64.to_le_bytes()).expect("written"));
    thread::scope(|scope| {
        // The first node runs two tasks.
        for (task, node) in [(0, 0), (1, 0), (2, 1)] {
            let names = names(node);
            scope.spawn(move || {
                for path in names.iter().cycle().skip(task).step_by(task + 1).take(VISITS as usize) {
                    let file = open(path);
                    for _ in 0..ADDITIONS {
                        flock(&file, FlockOperation::LockExclusive).expect("granted");
                        let mut bytes = [0; 8];
                        file.read_exact_at(&mut bytes, 0).expect("read");
                        let next = u64::from_le_bytes(bytes) + 1;
                        file.write_all_at(&next.to_le_bytes(), 0).expect("written");
                        flock(&file, UNLOCK).expect("unlocked");
                    }
                }
            });
        }
    });
    let number = |path| u64::from_le_bytes(fs::read(path).expect("read").try_into().expect("8 bytes"));
    assert_eq!(names(1).into_iter().map(number).sum::<u64>(), 3 * VISITS * ADDITIONS);
    pair.finish();
}

#[test]
fn locks_that_a_relay_granted_are_held_by_its_next_server() {
    let Some(mut pair) = Pair::new() else { return };
    let file = open(&pair.nodes[0].path("f"));
    let free = open(&pair.nodes[0].path("g"));
    for file in [&file, &free] {
        flock(file, EXCLUSIVE).expect("free");
        flock(file, UNLOCK).expect("unlocked");
    }
    flock(&file, EXCLUSIVE).expect("free");
    assert!(pair.nodes[0].relay.counts().locks_decided >= 3);
    // It is attached to the same host again, as after a lost connection.
    let node = &mut pair.nodes[0];
    let holdings = node.relay.detach();
    let old = node.guest.take().expect("attached");
    let found = old.known_inodes(&holdings);
    let guest = node.relay.attach_host(&pair.host, &holdings, &found, false, 1).expect("admitted");
    drop(found);
    old.give_way(&guest);
    drop::<Arc<_>>(old);
    node.guest = Some(guest);
    let (other, open_too) = (open(&pair.nodes[1].path("f")), open(&pair.nodes[1].path("g")));
    assert_eq!(flock(&other, EXCLUSIVE), Err(Errno::AGAIN));
    flock(&open_too, EXCLUSIVE).expect("it was unlocked by the relay alone");
    flock(&file, UNLOCK).expect("unlocked");
    flock(&other, EXCLUSIVE).expect("free");
    drop((file, free, other, open_too));
    pair.finish();
}
