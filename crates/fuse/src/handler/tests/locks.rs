//! Lock requests: what overtakes them, and what goes while they wait.

use super::{Looked, connection};
use crate::LockMode;
use crate::abi::flags::{F_RDLCK, F_UNLCK, F_WRLCK, LK_FLOCK};
use crate::abi::{self, opcode};
use crate::connection::Connection;
use crate::reply::Reply;
use crate::request::tests::message;
use sluice_sync::{mpsc, thread};
use sluice_vfs::InodeRef;
use zerocopy::IntoBytes;

/// A file of which two handles are open, and messages about it.
struct Opened {
    looked: Looked,
    handles: [u64; 2],
}

/// A range of one byte that `owner` asks for by `opcode`.
#[derive(Clone, Copy)]
struct Lock {
    opcode: u32,
    unique: u64,
    fh: u64,
    owner: u64,
    lock_type: u32,
    flags: u32,
}

impl Opened {
    fn new() -> Opened {
        let looked = connection(LockMode::Sluice);
        let open = || {
            looked
                .connection
                .serve(&message(opcode::OPEN, looked.nodes[Looked::FILE], &[&[0; 8]]), &mut Reply::new());
            let reply = looked.recorder.0.lock().pop().expect("an open is answered");
            u64::from_ne_bytes(reply[16..24].try_into().expect("eight bytes"))
        };
        let handles = [open(), open()];
        looked.recorder.0.lock().clear();
        Opened { looked, handles }
    }

    fn connection(&self) -> &Connection {
        &self.looked.connection
    }

    fn file(&self) -> InodeRef {
        self.connection().nodes.get(self.looked.nodes[Looked::FILE]).expect("it was looked up")
    }

    fn serve(&self, opcode: u32, unique: u64, body: &[u8]) {
        let mut bytes = message(opcode, self.looked.nodes[Looked::FILE], &[body]);
        bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        // No thread is called 0: a client that is gone.
        bytes[32..36].copy_from_slice(&0_u32.to_ne_bytes());
        self.connection().serve(&bytes, &mut Reply::new());
    }

    fn lock(&self, Lock { opcode, unique, fh, owner, lock_type, flags }: Lock) {
        let lk = abi::FileLock { start: 0, end: 9, lock_type, pid: 1 };
        let arg = abi::LkIn { fh, owner, lk, lk_flags: flags, padding: 0 };
        self.serve(opcode, unique, arg.as_bytes());
    }

    /// SETLKW of an exclusive lock through the first handle.
    fn wait(&self, unique: u64, owner: u64) {
        let fh = self.handles[0];
        self.lock(Lock { opcode: opcode::SETLKW, unique, fh, owner, lock_type: F_WRLCK, flags: 0 });
    }

    fn interrupt(&self, unique: u64) {
        let arg = abi::InterruptIn { unique };
        self.serve(opcode::INTERRUPT, 0, arg.as_bytes());
    }

    fn flush(&self, fh: u64, owner: u64) {
        let arg = abi::FlushIn { fh, unused: 0, padding: 0, lock_owner: owner };
        self.serve(opcode::FLUSH, 1, arg.as_bytes());
    }

    fn release(&self, fh: u64) {
        let arg = abi::ReleaseIn { fh, flags: 0, release_flags: 0, lock_owner: 0 };
        self.serve(opcode::RELEASE, 1, arg.as_bytes());
    }

    /// Which requests were answered since this was asked last, and with which error.
    fn answers(&self) -> Vec<(u64, i32)> {
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).expect("eight bytes");
        let error = |bytes: &[u8]| bytes.try_into().map(i32::from_ne_bytes).expect("four bytes");
        let sent = std::mem::take(&mut *self.looked.recorder.0.lock());
        sent.iter().map(|reply| (number(&reply[8..16]), error(&reply[4..8]))).collect()
    }
}

#[test]
fn an_interrupt_before_or_during_a_wait_ends_it_once() {
    let opened = Opened::new();
    opened.wait(100, 1);
    assert_eq!(opened.answers(), [(100, 0)]);
    opened.wait(102, 2);
    assert_eq!(opened.answers(), []);
    opened.interrupt(102);
    opened.interrupt(102);
    assert_eq!(opened.answers(), [(102, -4)]);
    opened.interrupt(104);
    opened.wait(104, 2);
    assert_eq!(opened.answers(), [(104, -4)]);
    opened.wait(106, 2);
    assert_eq!(opened.connection().parked.len(), 1);
    opened.file().locks().release_owner(sluice_locks::Owner::Process(1));
    assert_eq!(opened.answers(), [(106, 0)]);
    opened.interrupt(106);
    assert_eq!(opened.answers(), []);
    assert_eq!(opened.connection().parked.len(), 0);
}

/// Lets another worker have read the RELEASE of the first handle, has `lock` asked for through the other, and then the
/// RELEASE served.
fn overtake(opened: &Opened, lock: Lock) {
    let ((begin, begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let fh = opened.handles[0];
    thread::scope(|scope| {
        scope.spawn(move || {
            let turn = opened.connection().turns.join();
            turn.during(opcode::RELEASE, || {
                begin.send(()).expect("the test listens");
                may_go_on.recv().expect("the test says when");
                opened.release(fh);
            });
            opened.connection().serve_due(&mut Reply::new());
        });
        begun.recv().expect("the worker runs");
        opened.lock(lock);
        assert_eq!(opened.answers(), [], "it must not be refused while the release is under way");
        assert_eq!(opened.connection().parked.len(), usize::from(lock.opcode == opcode::SETLKW));
        go_on.send(()).expect("the worker runs");
    });
}

#[test]
fn what_a_release_that_was_read_before_sets_free_is_granted_though_the_request_is_served_first() {
    for flags in [0, LK_FLOCK] {
        for opcode in [opcode::SETLK, opcode::SETLKW] {
            for lock_type in [F_RDLCK, F_WRLCK] {
                let opened = Opened::new();
                let [fh, other] = opened.handles;
                let held = Lock { opcode: opcode::SETLK, unique: 2, fh, owner: 1, lock_type: F_WRLCK, flags };
                opened.lock(held);
                assert_eq!(opened.answers(), [(2, 0)]);
                overtake(&opened, Lock { opcode, unique: 4, fh: other, owner: 2, lock_type, flags });
                let mut answers = opened.answers();
                answers.sort_unstable();
                assert_eq!(answers, [(1, 0), (4, 0)]);
            }
        }
    }
}

#[test]
fn a_lock_that_a_release_read_before_sets_free_is_not_reported() {
    let opened = Opened::new();
    let [fh, other] = opened.handles;
    let held = Lock { opcode: opcode::SETLK, unique: 2, fh, owner: 1, lock_type: F_WRLCK, flags: 0 };
    opened.lock(held);
    opened.answers();
    overtake(&opened, Lock { opcode: opcode::GETLK, unique: 4, fh: other, owner: 2, ..held });
    let sent = std::mem::take(&mut *opened.looked.recorder.0.lock());
    let answer = sent.iter().find(|reply| reply[8..16] == 4_u64.to_ne_bytes()).expect("it is answered");
    assert_eq!((answer.len(), &answer[32..36]), (16 + 24, &F_UNLCK.to_ne_bytes()[..]));
}

#[test]
fn what_stays_in_the_way_is_refused_after_one_second_look() {
    let opened = Opened::new();
    let other = opened.handles[1];
    let held = Lock { opcode: opcode::SETLK, unique: 2, fh: other, owner: 1, lock_type: F_WRLCK, flags: 0 };
    opened.lock(held);
    opened.answers();
    // It is the other handle that is released.
    overtake(&opened, Lock { unique: 4, owner: 2, ..held });
    let mut answers = opened.answers();
    answers.sort_unstable();
    assert_eq!(answers, [(1, 0), (4, -11)]);
    assert!(opened.connection().second_looks.due().is_empty());
}

#[test]
fn a_lock_is_not_left_to_an_owner_that_closed_the_file_while_it_waited() {
    let opened = Opened::new();
    let [fh, other] = opened.handles;
    let held = Lock { opcode: opcode::SETLK, unique: 2, fh: other, owner: 1, lock_type: F_WRLCK, flags: 0 };
    opened.lock(held);
    opened.wait(4, 2);
    opened.flush(fh, 2);
    // Others that close it say nothing of it, however many they are.
    (100..200).for_each(|owner| opened.flush(fh, owner));
    opened.answers();
    opened.lock(Lock { unique: 6, lock_type: F_UNLCK, ..held });
    let mut answers = opened.answers();
    answers.sort_unstable();
    assert_eq!(answers, [(4, -9), (6, 0)]);
    assert!(!opened.file().locks().has_locks());
}

#[test]
fn a_lock_is_not_left_to_an_owner_whose_close_overtook_the_request() {
    for opcode in [opcode::SETLK, opcode::SETLKW] {
        let opened = Opened::new();
        let fh = opened.handles[0];
        opened.flush(fh, 1);
        opened.lock(Lock { opcode, unique: 2, fh, owner: 1, lock_type: F_WRLCK, flags: 0 });
        assert_eq!(opened.answers(), [(1, 0), (2, -9)]);
        assert!(!opened.file().locks().has_locks());
    }
}

#[test]
fn a_lock_through_no_handle_of_the_file_is_refused_and_leaves_nothing() {
    for opcode in [opcode::SETLK, opcode::SETLKW] {
        for flags in [0, LK_FLOCK] {
            let opened = Opened::new();
            opened.lock(Lock { opcode, unique: 2, fh: 999, owner: 1, lock_type: F_WRLCK, flags });
            assert_eq!(opened.answers(), [(2, -9)]);
            assert!(!opened.file().locks().has_locks());
        }
    }
}

#[test]
fn the_end_of_the_connection_ends_what_waits_for_a_second_look() {
    let opened = Opened::new();
    let ([fh, other], file) = (opened.handles, opened.file());
    let held = Lock { opcode: opcode::SETLK, unique: 2, fh, owner: 1, lock_type: F_WRLCK, flags: 0 };
    opened.lock(held);
    opened.answers();
    let ((begin, begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    thread::scope(|scope| {
        let opened = &opened;
        scope.spawn(move || {
            opened.connection().turns.join().during(opcode::RELEASE, || {
                begin.send(()).expect("the test listens");
                may_go_on.recv().expect("the test says when");
            });
        });
        begun.recv().expect("the worker runs");
        opened.lock(Lock { unique: 4, fh: other, owner: 2, ..held });
        go_on.send(()).expect("the worker runs");
    });
    opened.connection().close();
    opened.connection().serve_due(&mut Reply::new());
    assert_eq!(opened.answers(), []);
    assert!(!file.locks().has_locks());
}
