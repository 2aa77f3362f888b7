//! Leases: which owners may have one, which calls break which, and how a break ends.

use crate::Kind::{Exclusive, Shared};
use crate::{
    Breaker, Breaking, Cancel, DomainOptions, FileLocks, Kind, LeaseBreak, LeaseRequest, LockDomain,
    LockError, Notice, Promise, proc_locks,
};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Mutex, thread};

const SECOND: Duration = Duration::from_secs(1);

fn file(lease_break: Duration) -> (Arc<LockDomain>, FileLocks) {
    let domain = LockDomain::new(DomainOptions { lease_break, ..Default::default() });
    let file = FileLocks::new(&domain, 0, 1);
    (domain, file)
}

fn by(owner: u64, kind: Kind, promise: Promise) -> LeaseRequest {
    LeaseRequest { owner, pid: owner as i32, kind, promise }
}

fn breaker(breaking: Breaking) -> Breaker {
    Breaker { pid: 99, breaking, owner: None }
}

/// A holder's ear: what it was told, in order.
fn ear() -> (Notice, Arc<Mutex<Vec<Option<Kind>>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let notes = heard.clone();
    (Notice::new(move |told: LeaseBreak| notes.lock().push(told.keep)), heard)
}

fn lease(file: &FileLocks, request: &LeaseRequest) -> Result<(), LockError> {
    file.set_lease(request, || false, Notice::unheard())
}

#[test]
fn shared_leases_go_together_and_an_exclusive_one_stands_alone() {
    let (_, file) = file(SECOND);
    let ask = |owner, kind| lease(&file, &by(owner, kind, Promise::Lease));
    assert_eq!((ask(1, Shared), ask(2, Shared)), (Ok(()), Ok(())));
    assert_eq!(ask(2, Exclusive), Err(LockError::WouldBlock));
    assert!(file.unset_lease(1) && !file.unset_lease(1));
    assert_eq!((ask(2, Exclusive), ask(1, Shared)), (Ok(()), Err(LockError::WouldBlock)));
    assert_eq!((file.lease_of(2, Promise::Lease), file.lease_of(1, Promise::Lease)), (Some(Exclusive), None));
}

#[test]
fn a_file_in_use_gets_no_lease_and_who_opens_it_at_that_moment_sees_one() {
    let (_, file) = file(SECOND);
    let in_use = || file.has_leases(Breaking::Open(Shared));
    for (kind, promise) in [(Shared, Promise::Lease), (Exclusive, Promise::Lease)] {
        let outcome = file.set_lease(&by(1, kind, promise), in_use, Notice::unheard());
        assert_eq!(outcome, Err(LockError::WouldBlock));
        assert!(!file.has_locks() && !file.has_leases(Breaking::Open(Exclusive)));
    }
}

#[test]
fn a_file_that_nobody_writes_is_looked_at_once_until_somebody_opens_it_for_writing() {
    let (_, file) = file(SECOND);
    let looks = Mutex::new(0);
    let look = || {
        *looks.lock() += 1;
        false
    };
    let take_and_give_up = |kind, promise| {
        file.set_lease(&by(1, kind, promise), look, Notice::unheard()).expect("alone");
        assert!(file.unset_lease(1));
        *looks.lock()
    };
    assert_eq!([(); 3].map(|()| take_and_give_up(Shared, Promise::Lease)), [1; 3]);
    assert!(!file.has_locks());
    assert_eq!(file.break_leases(&breaker(Breaking::Open(Shared)), None), Ok(()));
    assert_eq!(take_and_give_up(Shared, Promise::Lease), 1);
    assert_eq!(file.break_leases(&breaker(Breaking::Open(Exclusive)), None), Ok(()));
    assert_eq!([(); 3].map(|()| take_and_give_up(Shared, Promise::Lease)), [2; 3]);
    // Others are about readers, too, or about nobody.
    assert_eq!([(); 2].map(|()| take_and_give_up(Exclusive, Promise::Lease)), [3, 4]);
    assert_eq!(file.break_leases(&breaker(Breaking::Open(Exclusive)), None), Ok(()));
    assert_eq!(take_and_give_up(Shared, Promise::Delegation), 5);
    assert_eq!(take_and_give_up(Shared, Promise::Lease), 6);
}

#[test]
fn each_breaker_breaks_what_was_promised_against_it_and_nothing_else() {
    for (kind, promise, breaking, broken) in [
        (Shared, Promise::Lease, Breaking::Open(Shared), false),
        (Shared, Promise::Lease, Breaking::Open(Exclusive), true),
        (Shared, Promise::Lease, Breaking::Change, false),
        (Exclusive, Promise::Lease, Breaking::Open(Shared), true),
        (Exclusive, Promise::Lease, Breaking::Change, false),
        (Shared, Promise::Delegation, Breaking::Open(Shared), false),
        (Shared, Promise::Delegation, Breaking::Open(Exclusive), true),
        (Shared, Promise::Delegation, Breaking::Change, true),
    ] {
        let (_, file) = file(SECOND);
        let (notice, heard) = ear();
        file.set_lease(&by(1, kind, promise), || false, notice).expect("alone");
        let expected = if broken { Err(LockError::WouldBlock) } else { Ok(()) };
        assert_eq!(
            file.break_leases(&breaker(breaking), None),
            expected,
            "{kind:?} {promise:?} {breaking:?}"
        );
        assert_eq!(heard.lock().len(), usize::from(broken));
        // Told once is enough; and a holder that breaks its own lease is not stopped by it.
        assert_eq!(file.break_leases(&breaker(breaking), None), expected);
        assert_eq!(heard.lock().len(), usize::from(broken));
        assert_eq!(file.break_leases(&Breaker { owner: Some(1), ..breaker(breaking) }, None), Ok(()));
    }
}

#[test]
fn a_reader_leaves_a_shared_lease_and_a_writer_behind_it_nothing() {
    let (_, file) = file(SECOND);
    let (notice, heard) = ear();
    file.set_lease(&by(1, Exclusive, Promise::Lease), || false, notice).expect("alone");
    let _ = file.break_leases(&breaker(Breaking::Open(Shared)), None);
    assert_eq!(file.lease_of(1, Promise::Lease), Some(Shared));
    let _ = file.break_leases(&breaker(Breaking::Open(Exclusive)), None);
    assert_eq!((file.lease_of(1, Promise::Lease), &**heard.lock()), (None, &[Some(Shared), None][..]));
    // Only a downgrade is not what it was told; new shared leases are not granted meanwhile.
    lease(&file, &by(1, Shared, Promise::Lease)).expect("its own");
    assert_eq!(file.lease_of(1, Promise::Lease), None);
    assert_eq!(lease(&file, &by(2, Shared, Promise::Lease)), Err(LockError::WouldBlock));
    assert_eq!(file.break_leases(&breaker(Breaking::Open(Shared)), None), Ok(()));
}

#[test]
fn a_breaker_waits_until_the_holder_gave_up_or_it_was_cancelled() {
    let (domain, file) = file(1_000_000 * SECOND);
    lease(&file, &by(1, Exclusive, Promise::Lease)).expect("alone");
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let write = breaker(Breaking::Open(Exclusive));
        let (file, cancel) = (&file, &cancel);
        let cancelled = scope.spawn(move || file.break_leases(&write, Some(cancel)));
        let patient = scope.spawn(move || file.break_leases(&write, Some(&Cancel::never())));
        while domain.list().iter().filter(|entry| entry.waits_for.is_some()).count() < 2 {
            thread::yield_now();
        }
        let text = proc_locks(&domain.list());
        assert!(
            text.starts_with("1: LEASE  BREAKING  UNLCK 1 00:00:1 0 EOF\n1: -> LEASE  BREAKER"),
            "{text}"
        );
        cancel.cancel();
        assert_eq!(cancelled.join().expect("no panic"), Err(LockError::Interrupted));
        assert!(file.unset_lease(1));
        assert_eq!(patient.join().expect("no panic"), Ok(()));
    });
    assert_eq!(domain.list(), []);
}

#[test]
fn a_holder_that_does_not_answer_loses_the_lease_in_time() {
    let (_, file) = file(Duration::from_millis(20));
    lease(&file, &by(1, Exclusive, Promise::Lease)).expect("alone");
    let patience = Cancel::never();
    assert_eq!(file.break_leases(&breaker(Breaking::Open(Shared)), Some(&patience)), Ok(()));
    assert_eq!(file.lease_of(1, Promise::Lease), Some(Shared));
    assert_eq!(file.break_leases(&breaker(Breaking::Open(Exclusive)), Some(&patience)), Ok(()));
    assert_eq!(file.lease_of(1, Promise::Lease), None);
    // A limit of the breaker's own counts as well.
    let (_, file) = self::file(1_000_000 * SECOND);
    lease(&file, &by(1, Shared, Promise::Delegation)).expect("alone");
    let hurry = Cancel::with_timeout(Duration::from_millis(1));
    assert_eq!(file.break_leases(&breaker(Breaking::Change), Some(&hurry)), Err(LockError::TimedOut));
}
