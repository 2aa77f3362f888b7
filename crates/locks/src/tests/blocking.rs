//! Threads that sleep for a lock: handed over, cancelled, out of time.

use super::{Log, posix};
use crate::Kind::{Exclusive, Shared};
use crate::{Cancel, DomainOptions, FileLocks, LockDomain, LockError, Owner};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, thread};

fn setup() -> (Arc<LockDomain>, FileLocks) {
    let domain = LockDomain::new(DomainOptions::default());
    let file = FileLocks::new(&domain, 0, 1);
    (domain, file)
}

/// Returns when `count` requests wait. (If that never happens, the test hangs: there is no time limit to tune.)
fn until_waiting(domain: &LockDomain, count: usize) {
    while domain.list().iter().filter(|entry| entry.waits_for.is_some()).count() != count {
        thread::yield_now();
    }
}

#[test]
fn a_sleeping_thread_gets_the_lock_at_the_release() {
    let (domain, file) = setup();
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    file.set_flock(1, 1, Exclusive).expect("free");
    thread::scope(|scope| {
        let range = scope.spawn(|| file.set_range_wait(&posix(2, Exclusive, 5, 5), &Cancel::never()));
        let flock = scope.spawn(|| file.set_flock_wait(2, 2, Shared, &Cancel::new()));
        until_waiting(&domain, 2);
        file.release_owner(Owner::Process(1));
        file.release_flock(1);
        assert_eq!(range.join().expect("no panic"), Ok(()));
        assert_eq!(flock.join().expect("no panic"), Ok(()));
    });
    assert_eq!(file.test_range(&posix(1, Shared, 0, 9)).map(|lock| lock.pid), Some(2));
    assert_eq!(file.set_flock(1, 1, Exclusive), Err(LockError::WouldBlock));
}

#[test]
fn cancelling_a_token_ends_every_wait_under_it_and_no_other() {
    let (domain, file) = setup();
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    let (token, other) = (Cancel::new(), Cancel::new());
    thread::scope(|scope| {
        let (file, token, other) = (&file, &token, &other);
        let doomed = [2, 3]
            .map(|process| scope.spawn(move || file.set_range_wait(&posix(process, Shared, 0, 0), token)));
        let spared = scope.spawn(|| file.set_range_wait(&posix(4, Shared, 0, 0), other));
        until_waiting(&domain, 3);
        token.clone().cancel();
        for thread in doomed {
            assert_eq!(thread.join().expect("no panic"), Err(LockError::Interrupted));
        }
        until_waiting(&domain, 1);
        file.release_owner(Owner::Process(1));
        assert_eq!(spared.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn a_token_cancelled_before_interrupts_a_wait_but_not_a_free_lock() {
    let (domain, file) = setup();
    let token = Cancel::new();
    token.cancel();
    token.cancel();
    assert!(token.is_cancelled());
    assert_eq!(file.set_range_wait(&posix(1, Exclusive, 0, 9), &token), Ok(()));
    assert_eq!(file.set_range_wait(&posix(2, Shared, 0, 0), &token), Err(LockError::Interrupted));
    assert_eq!(file.set_flock_wait(1, 1, Exclusive, &token), Ok(()));
    assert_eq!(file.set_flock_wait(2, 2, Shared, &token), Err(LockError::Interrupted));
    assert_eq!(domain.list().len(), 2);
}

#[test]
fn a_wait_ends_at_its_deadline_unless_cancelled_first() {
    let (domain, file) = setup();
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    let wait = |cancel: &Cancel| file.set_range_wait(&posix(2, Shared, 0, 0), cancel);
    assert_eq!(wait(&Cancel::with_timeout(Duration::from_millis(5))), Err(LockError::TimedOut));
    assert_eq!(wait(&Cancel::with_timeout(Duration::ZERO)), Err(LockError::TimedOut));
    assert_eq!(wait(&Cancel::with_deadline(Instant::now())), Err(LockError::TimedOut));
    let token = Cancel::with_timeout(Duration::MAX);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(&token));
        until_waiting(&domain, 1);
        token.cancel();
        assert_eq!(waiter.join().expect("no panic"), Err(LockError::Interrupted));
    });
    file.release_owner(Owner::Process(1));
    assert_eq!(wait(&Cancel::with_timeout(Duration::ZERO)), Ok(()));
}

#[test]
fn a_sleeping_thread_learns_of_a_deadlock_made_by_another_grant() {
    let (domain, a) = setup();
    let b = FileLocks::new(&domain, 0, 2);
    let log = Log::default();
    a.set_range(&posix(2, Shared, 0, 0)).expect("free");
    b.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| a.set_range_wait(&posix(1, Exclusive, 0, 0), &Cancel::never()));
        until_waiting(&domain, 1);
        assert!(b.submit_range(&posix(3, Exclusive, 0, 0), log.done(3)).is_ok());
        a.set_range(&posix(3, Shared, 0, 0)).expect("shared");
        assert_eq!(waiter.join().expect("no panic"), Err(LockError::Deadlock));
    });
}
