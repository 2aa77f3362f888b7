//! Order among waiters: which request is granted when, which is bypassed and how often, and what a release costs.

use super::{Log, ofd, posix};
use crate::Kind::{Exclusive, Shared};
use crate::{BYPASS_MAX, DomainOptions, FileLocks, Kind, LockDomain, LockError, Owner, Submitted};
use std::future::Future;
use std::task::{Context, Poll, Waker};

fn file() -> FileLocks {
    FileLocks::new(&LockDomain::new(DomainOptions::default()), 0, 1)
}

fn with_bound(bypass_max: u32) -> (sluice_sync::Arc<LockDomain>, FileLocks) {
    let domain = LockDomain::new(DomainOptions { bypass_max: Some(bypass_max), ..Default::default() });
    let file = FileLocks::new(&domain, 0, 1);
    (domain, file)
}

/// Submits a request that has to wait.
fn wait(file: &FileLocks, log: &Log, key: usize, request: &crate::RangeRequest) -> crate::Ticket {
    match file.submit_range(request, log.done(key)) {
        Ok(Submitted::Waiting(ticket)) => ticket,
        other => panic!("{request:?} should wait, but: {other:?}"),
    }
}

#[test]
fn a_release_wakes_one_of_a_thousand_exclusive_waiters_the_oldest() {
    const WAITERS: usize = 1_000;
    let (file, log) = (file(), Log::default());
    file.set_range(&posix(0, Exclusive, 0, 9)).expect("free");
    for key in 1..=WAITERS {
        wait(&file, &log, key, &posix(key as u64, Exclusive, 0, 9));
    }
    for key in 1..=WAITERS {
        file.release_owner(Owner::Process(key as u64 - 1));
        assert_eq!(log.take(), [(key, Ok(()))]);
    }
}

#[test]
fn a_release_wakes_all_readers_up_to_no_writer() {
    let (file, log) = (file(), Log::default());
    file.set_range(&posix(0, Exclusive, 0, 9)).expect("free");
    for (key, kind) in [(1, Shared), (2, Exclusive), (3, Shared), (4, Exclusive), (5, Shared)] {
        wait(&file, &log, key, &posix(key as u64, kind, 0, 9));
    }
    file.release_owner(Owner::Process(0));
    assert_eq!(log.take(), [(1, Ok(())), (3, Ok(())), (5, Ok(()))]);
    for reader in [1, 3] {
        file.release_owner(Owner::Process(reader));
        assert_eq!(log.take(), []);
    }
    file.release_owner(Owner::Process(5));
    assert_eq!(log.take(), [(2, Ok(()))]);
}

#[test]
fn an_upgrade_behind_another_waiter_is_granted_when_only_its_owner_is_in_the_way() {
    let (file, log) = (file(), Log::default());
    file.set_range(&ofd(1, Shared, 0, 9)).expect("free");
    file.set_range(&ofd(2, Shared, 0, 9)).expect("shared");
    wait(&file, &log, 3, &ofd(3, Exclusive, 0, 9));
    wait(&file, &log, 1, &ofd(1, Exclusive, 0, 9));
    file.release_owner(Owner::Description(2));
    assert_eq!(log.take(), [(1, Ok(()))]);
    file.release_owner(Owner::Description(1));
    assert_eq!(log.take(), [(3, Ok(()))]);
}

/// 64 owners lock and unlock a byte each, two of them always at it, while one wants all bytes.
#[test]
fn a_wide_range_is_bypassed_by_narrow_ones_at_most_so_often() {
    for kind in [Shared, Exclusive] {
        let (domain, file) = with_bound(BYPASS_MAX);
        let log = Log::default();
        let narrow = |at: u64| ofd(at % 64 + 1, Kind::Exclusive, at % 64, at % 64);
        file.set_range(&narrow(0)).expect("free");
        wait(&file, &log, 0, &ofd(100, kind, 0, 63));
        let mut bypasses = 0;
        for at in 1.. {
            match file.set_range(&narrow(at)) {
                Ok(()) => bypasses += 1,
                Err(LockError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
            file.release_owner(Owner::Description((at - 1) % 64 + 1));
            assert_eq!(log.take(), [], "one of the narrow ones is always held");
        }
        assert_eq!(bypasses, BYPASS_MAX);
        assert_eq!(domain.statistics()[0].bypasses, u64::from(BYPASS_MAX));
        // A narrow request that may wait is served after the wide one, which is served at the next release.
        wait(&file, &log, 1, &ofd(200, Exclusive, 10, 10));
        file.release_owner(Owner::Description(u64::from(BYPASS_MAX) % 64 + 1));
        assert_eq!(log.take(), [(0, Ok(()))]);
        file.release_owner(Owner::Description(100));
        assert_eq!(log.take(), [(1, Ok(()))]);
    }
}

#[test]
fn an_owner_in_the_way_of_a_starving_request_is_not_kept_waiting_by_it() {
    let (_domain, file) = with_bound(2);
    let log = Log::default();
    file.set_flock(1, 1, Shared).expect("free");
    file.set_range(&ofd(1, Shared, 0, 9)).expect("free");
    wait(&file, &log, 0, &ofd(9, Exclusive, 0, 99));
    for reader in [2, 3] {
        file.set_range(&ofd(reader, Shared, 0, 9)).expect("shared");
    }
    assert_eq!(file.set_range(&ofd(4, Shared, 0, 9)), Err(LockError::WouldBlock));
    // Readers that are there may still lock more, downgrade, and upgrade.
    file.set_range(&ofd(2, Shared, 50, 59)).expect("in the way already");
    file.set_range(&ofd(2, Exclusive, 70, 79)).expect("in the way already");
    for reader in 1..=3 {
        assert_eq!(log.take(), []);
        file.release_owner(Owner::Description(reader));
    }
    assert_eq!(log.take(), [(0, Ok(()))]);
}

#[test]
fn a_starving_request_that_is_withdrawn_lets_go_of_those_behind_it() {
    let (domain, file) = with_bound(1);
    let log = Log::default();
    file.set_range(&ofd(1, Shared, 0, 9)).expect("free");
    let wide = wait(&file, &log, 0, &ofd(9, Exclusive, 0, 99));
    file.set_range(&ofd(2, Shared, 0, 9)).expect("shared");
    wait(&file, &log, 3, &ofd(3, Shared, 0, 9));
    wait(&file, &log, 4, &ofd(4, Shared, 5, 5));
    // A waiter that waits for a waiter is listed below it.
    let below = domain.list().iter().map(|entry| entry.waits_for).collect::<Vec<_>>();
    assert_eq!(below, [None, Some(1), Some(2), Some(2), None]);
    assert!(file.cancel(&wide));
    assert_eq!(log.take(), [(3, Ok(())), (4, Ok(()))]);
}

#[test]
fn a_cycle_through_a_starving_request_is_no_deadlock() {
    let (domain, a) = with_bound(1);
    let b = FileLocks::new(&domain, 0, 2);
    let log = Log::default();
    a.set_range(&posix(1, Shared, 0, 9)).expect("free");
    b.set_range(&posix(2, Exclusive, 0, 9)).expect("free");
    wait(&a, &log, 0, &posix(9, Exclusive, 0, 9));
    a.set_range(&posix(3, Shared, 0, 9)).expect("shared");
    // 2 waits only because 9 starves, and 9 for 1.
    wait(&a, &log, 2, &posix(2, Shared, 0, 9));
    // Now 1 waits for 2: nobody holds what 2 wants, so 2 must have it.
    wait(&b, &log, 1, &posix(1, Exclusive, 0, 9));
    assert_eq!(log.take(), [(2, Ok(()))]);
    b.release_owner(Owner::Process(2));
    assert_eq!(log.take(), [(1, Ok(()))]);
}

#[test]
fn a_hundred_thousand_ranges_conflict_split_and_go() {
    const RANGES: u64 = 100_000;
    let file = file();
    for at in 0..RANGES {
        file.set_range(&ofd(at % 1_000, Exclusive, at * 10, at * 10 + 4)).expect("disjoint");
    }
    for at in [0, 17, 54_321, RANGES - 1] {
        assert_eq!(file.set_range(&posix(1, Shared, at * 10 + 4, at * 10 + 9)), Err(LockError::WouldBlock));
        file.set_range(&posix(1, Shared, at * 10 + 5, at * 10 + 9)).expect("a gap");
    }
    for owner in 0..1_000 {
        file.release_owner(Owner::Description(owner));
    }
    file.set_range(&posix(1, Exclusive, 0, RANGES * 10)).expect("nobody else is left");
    file.release_owner(Owner::Process(1));
    assert!(!file.has_locks());
}

/// A waiter that is called and not there yet is passed, as often as the bound says, and called once.
#[test]
fn a_sleeper_is_called_once_and_passed_at_most_so_often_until_it_comes() {
    let (domain, file) = with_bound(3);
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    let mut context = Context::from_waker(Waker::noop());
    let mut futures = [2, 3].map(|process| Box::pin(file.lock_range(posix(process, Exclusive, 0, 9))));
    for future in &mut futures {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
    for _ in 0..3 {
        file.release_owner(Owner::Process(1));
        file.set_range(&posix(1, Exclusive, 0, 9)).expect("2 is called, and late");
    }
    file.release_owner(Owner::Process(1));
    assert_eq!(file.set_range(&posix(1, Exclusive, 0, 9)), Err(LockError::WouldBlock), "2 starves");
    assert!(futures[1].as_mut().poll(&mut context).is_pending(), "3 is not called");
    assert_eq!(futures[0].as_mut().poll(&mut context), Poll::Ready(Ok(())));
    file.release_owner(Owner::Process(2));
    // 3 is called, goes away instead, and leaves nothing.
    drop(futures);
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    assert_eq!(domain.statistics()[0].bypasses, 3);
}

#[test]
fn a_waiter_that_is_called_in_vain_calls_those_that_wait_for_it_alone() {
    let file = file();
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    let mut context = Context::from_waker(Waker::noop());
    let mut wide = Box::pin(file.lock_range(posix(2, Exclusive, 0, 9)));
    let mut narrow = Box::pin(file.lock_range(posix(3, Exclusive, 5, 5)));
    assert!(wide.as_mut().poll(&mut context).is_pending() && narrow.as_mut().poll(&mut context).is_pending());
    file.release_owner(Owner::Process(1));
    file.set_range(&posix(1, Exclusive, 0, 0)).expect("2 is called, and late");
    assert!(narrow.as_mut().poll(&mut context).is_pending());
    assert!(wide.as_mut().poll(&mut context).is_pending());
    assert_eq!(narrow.as_mut().poll(&mut context), Poll::Ready(Ok(())));
}

/// Process 2 holds byte 0, for which a description waits that wants all; process 2 waits for process 1 elsewhere. All
/// this goes on around a request of process 1 that has only the description's in its way once that starves.
fn around_a_starving_description(
    process_1: impl FnOnce(&FileLocks, &Log),
) -> Vec<(usize, Result<(), LockError>)> {
    let (domain, file) = with_bound(1);
    let (elsewhere, log) = (FileLocks::new(&domain, 0, 2), Log::default());
    elsewhere.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    file.set_range(&posix(2, Exclusive, 0, 0)).expect("free");
    wait(&file, &log, 10, &ofd(10, Exclusive, 0, 9));
    wait(&elsewhere, &log, 2, &posix(2, Exclusive, 0, 0));
    process_1(&file, &log);
    log.take()
}

#[test]
fn a_request_behind_a_starving_description_is_not_left_in_a_circle() {
    let events = around_a_starving_description(|file, log| {
        file.set_range(&posix(3, Exclusive, 5, 5)).expect("bypasses the description, which starves");
        wait(file, log, 1, &posix(1, Exclusive, 7, 7));
    });
    assert_eq!(events, [(1, Ok(()))], "the description lets it pass");
}

#[test]
fn a_description_that_begins_to_starve_closes_no_circle() {
    let events = around_a_starving_description(|file, log| {
        file.set_range(&posix(4, Exclusive, 7, 7)).expect("bypasses, and that is forgiven");
        wait(file, log, 1, &posix(1, Exclusive, 7, 7));
        assert_eq!(log.take(), []);
        file.set_range(&posix(3, Exclusive, 5, 5)).expect("bypasses again");
        file.release_owner(Owner::Process(4));
    });
    assert_eq!(events, [(1, Ok(()))]);
}
