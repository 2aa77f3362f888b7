//! The rules of Linux, one by one.

use super::{Log, ofd, posix, range};
use crate::Kind::{Exclusive, Shared};
use crate::{
    Detection, DomainOptions, FileLocks, Kind, LockDomain, LockError, Owner, Range, Submitted, Ticket,
    proc_locks,
};
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicUsize, Ordering};

fn file() -> FileLocks {
    FileLocks::new(&LockDomain::new(DomainOptions::default()), 0x802, 7)
}

fn ticket(submitted: Result<Submitted, LockError>) -> Ticket {
    match submitted {
        Ok(Submitted::Waiting(ticket)) => ticket,
        other => panic!("the request should wait, but: {other:?}"),
    }
}

/// The locks of `owner`: (kind, start, end, pid).
fn held(file: &FileLocks, owner: Owner) -> Vec<(Kind, u64, u64, i32)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(lock) = file.test_own_range(owner, range(from, Range::WHOLE.end())) {
        found.push((lock.kind, lock.range.start(), lock.range.end(), lock.pid));
        if lock.range.to_eof() {
            break;
        }
        from = lock.range.end() + 1;
    }
    found
}

const P1: Owner = Owner::Process(1);

#[test]
fn ranges_of_one_owner_split_convert_and_merge() {
    let file = file();
    file.set_range(&posix(1, Shared, 0, 99)).expect("free");
    file.set_range(&posix(1, Exclusive, 40, 59)).expect("own");
    assert_eq!(held(&file, P1), [(Shared, 0, 39, 1), (Exclusive, 40, 59, 1), (Shared, 60, 99, 1)]);
    file.unlock_range(P1, range(50, 69)).expect("no limit");
    assert_eq!(held(&file, P1), [(Shared, 0, 39, 1), (Exclusive, 40, 49, 1), (Shared, 70, 99, 1)]);
    file.set_range(&posix(1, Shared, 40, 69)).expect("own");
    assert_eq!(held(&file, P1), [(Shared, 0, 99, 1)]);
    file.unlock_range(P1, Range::WHOLE).expect("no limit");
    assert!(!file.has_locks());
}

#[test]
fn a_merged_lock_reports_the_pid_of_its_lowest_part() {
    let file = file();
    let by = |pid, kind, start, end| crate::RangeRequest { pid, ..posix(1, kind, start, end) };
    file.set_range(&by(10, Shared, 0, 4)).expect("free");
    file.set_range(&by(20, Shared, 5, 9)).expect("own");
    assert_eq!(held(&file, P1), [(Shared, 0, 9, 10)]);
    file.set_range(&by(30, Exclusive, 0, 4)).expect("own");
    file.set_range(&by(40, Shared, 0, 4)).expect("own");
    assert_eq!(held(&file, P1), [(Shared, 0, 9, 40)]);
}

#[test]
fn locks_at_both_ends_of_the_offset_space_merge_without_overflow() {
    let file = file();
    let end = Range::WHOLE.end();
    file.set_range(&posix(1, Shared, end, end)).expect("free");
    file.set_range(&posix(1, Shared, 0, 0)).expect("own");
    file.set_range(&posix(1, Shared, 1, end - 1)).expect("own");
    assert_eq!(held(&file, P1), [(Shared, 0, end, 1)]);
    file.unlock_range(P1, range(0, 0)).expect("no limit");
    file.unlock_range(P1, range(end, end)).expect("no limit");
    assert_eq!(held(&file, P1), [(Shared, 1, end - 1, 1)]);
}

#[test]
fn a_process_and_a_description_conflict_even_with_equal_numbers() {
    let file = file();
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    assert_eq!(file.set_range(&ofd(1, Shared, 9, 9)), Err(LockError::WouldBlock));
    file.set_range(&ofd(1, Exclusive, 10, 19)).expect("free");
    let found = file.test_range(&posix(1, Shared, 0, 19)).expect("the OFD lock");
    assert_eq!((found.owner, found.pid), (Owner::Description(1), -1));
    file.release_owner(Owner::Description(1));
    assert_eq!(file.test_range(&posix(1, Shared, 0, 19)), None);
    assert_eq!(held(&file, P1).len(), 1);
}

#[test]
fn getlk_reports_the_owner_who_came_first_then_the_lowest_range() {
    let file = file();
    file.set_range(&posix(1, Shared, 20, 29)).expect("free");
    file.set_range(&posix(2, Shared, 0, 9)).expect("free");
    file.set_range(&posix(1, Shared, 10, 14)).expect("free");
    let first =
        |file: &FileLocks| file.test_range(&posix(3, Exclusive, 0, 99)).map(|lock| (lock.pid, lock.range));
    assert_eq!(first(&file), Some((1, range(10, 14))));
    file.release_owner(P1);
    file.set_range(&posix(1, Shared, 20, 29)).expect("free");
    assert_eq!(first(&file), Some((2, range(0, 9))));
}

#[test]
fn flock_and_ranges_know_nothing_of_each_other() {
    let file = file();
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    file.set_flock(5, 2, Exclusive).expect("another space");
    file.release_owner(P1);
    file.release_owner(Owner::Description(5));
    assert_eq!(file.set_flock(6, 2, Shared), Err(LockError::WouldBlock));
    file.release_flock(5);
    assert!(!file.has_locks());
}

#[test]
fn a_failed_upgrade_of_a_flock_loses_the_lock() {
    let (file, log) = (file(), Log::default());
    file.set_flock(1, 1, Shared).expect("free");
    file.set_flock(2, 2, Shared).expect("shared");
    ticket(file.submit_flock(3, 3, Exclusive, log.done(3)));
    assert_eq!(file.set_flock(1, 1, Exclusive), Err(LockError::WouldBlock));
    assert_eq!(log.take(), []);
    // 1 holds nothing any more: 2 alone stood in the way of 3.
    file.unlock_flock(2);
    assert_eq!(log.take(), [(3, Ok(()))]);
}

#[test]
fn a_cancelled_upgrade_of_a_flock_loses_the_lock() {
    let (file, log) = (file(), Log::default());
    file.set_flock(1, 1, Shared).expect("free");
    file.set_flock(2, 2, Shared).expect("shared");
    let upgrade = ticket(file.submit_flock(1, 1, Exclusive, log.done(1)));
    assert!(file.cancel(&upgrade));
    file.set_flock(2, 2, Exclusive).expect("1 gave up its lock");
    assert_eq!(log.take(), []);
}

#[test]
fn a_conversion_of_a_flock_is_ahead_of_what_waits() {
    let (file, log) = (file(), Log::default());
    file.set_flock(1, 1, Shared).expect("free");
    ticket(file.submit_flock(2, 2, Exclusive, log.done(2)));
    file.set_flock(1, 1, Exclusive).expect("alone");
    assert_eq!(log.take(), []);
    ticket(file.submit_flock(3, 3, Shared, log.done(3)));
    file.set_flock(1, 1, Shared).expect("a downgrade");
    assert_eq!(log.take(), [(3, Ok(()))]);
}

#[test]
fn a_downgrade_or_a_shrink_lets_waiters_proceed() {
    let (file, log) = (file(), Log::default());
    file.set_range(&posix(1, Exclusive, 0, 29)).expect("free");
    ticket(file.submit_range(&posix(2, Shared, 0, 4), log.done(2)));
    ticket(file.submit_range(&posix(3, Exclusive, 20, 24), log.done(3)));
    file.set_range(&posix(1, Shared, 0, 9)).expect("own");
    assert_eq!(log.take(), [(2, Ok(()))]);
    file.unlock_range(P1, range(15, 99)).expect("no limit");
    assert_eq!(log.take(), [(3, Ok(()))]);
}

#[test]
fn conflicting_waiters_are_served_in_the_order_they_came() {
    let (file, log) = (file(), Log::default());
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    for process in 2..6 {
        ticket(file.submit_range(&posix(process, Exclusive, 0, 9), log.done(process as usize)));
    }
    for process in 1..5 {
        file.release_owner(Owner::Process(process));
        assert_eq!(log.take(), [(process as usize + 1, Ok(()))]);
    }
}

#[test]
fn a_grant_that_downgrades_frees_an_older_waiter() {
    let (file, log) = (file(), Log::default());
    file.set_range(&posix(1, Exclusive, 0, 4)).expect("free");
    file.set_range(&posix(2, Exclusive, 5, 9)).expect("free");
    ticket(file.submit_range(&posix(3, Shared, 0, 4), log.done(3)));
    // Process 1 asks to share all of it: granting that weakens its lock on 0..=4.
    ticket(file.submit_range(&posix(1, Shared, 0, 9), log.done(1)));
    file.release_owner(Owner::Process(2));
    assert_eq!(log.take(), [(1, Ok(())), (3, Ok(()))]);
}

#[test]
fn the_request_that_closes_a_cycle_over_two_files_is_refused() {
    let domain = LockDomain::new(DomainOptions::default());
    let [a, b] = [1, 2].map(|ino| FileLocks::new(&domain, 0, ino));
    let log = Log::default();
    a.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    b.set_range(&posix(2, Exclusive, 0, 0)).expect("free");
    let wait = ticket(b.submit_range(&posix(1, Exclusive, 0, 0), log.done(1)));
    assert_eq!(a.submit_range(&posix(2, Shared, 0, 0), log.done(2)), Err(LockError::Deadlock));
    assert!(b.cancel(&wait));
    ticket(a.submit_range(&posix(2, Shared, 0, 0), log.done(2)));
    a.release_owner(P1);
    assert_eq!(log.take(), [(2, Ok(()))]);
}

#[test]
fn a_grant_to_another_that_closes_a_cycle_ends_the_older_wait() {
    let domain = LockDomain::new(DomainOptions::default());
    let [a, b] = [1, 2].map(|ino| FileLocks::new(&domain, 0, ino));
    let log = Log::default();
    a.set_range(&posix(2, Shared, 0, 0)).expect("free");
    b.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    ticket(a.submit_range(&posix(1, Exclusive, 0, 0), log.done(1)));
    ticket(b.submit_range(&posix(3, Exclusive, 0, 0), log.done(3)));
    // 3 waits for 1; with this lock, that another thread of 3 takes, 1 waits for 3 as well.
    a.set_range(&posix(3, Shared, 0, 0)).expect("shared");
    assert_eq!(log.take(), [(1, Err(LockError::Deadlock))]);
    b.release_owner(P1);
    assert_eq!(log.take(), [(3, Ok(()))]);
}

#[test]
fn descriptions_and_flocks_take_no_part_in_deadlock_detection() {
    let domain = LockDomain::new(DomainOptions::default());
    let [a, b] = [1, 2].map(|ino| FileLocks::new(&domain, 0, ino));
    let log = Log::default();
    a.set_range(&ofd(1, Exclusive, 0, 0)).expect("free");
    b.set_range(&posix(2, Exclusive, 0, 0)).expect("free");
    let first = ticket(b.submit_range(&ofd(1, Exclusive, 0, 0), log.done(1)));
    let second = ticket(a.submit_range(&posix(2, Exclusive, 0, 0), log.done(2)));
    a.set_flock(1, 1, Exclusive).expect("free");
    b.set_flock(2, 2, Exclusive).expect("free");
    let third = ticket(b.submit_flock(1, 1, Shared, log.done(3)));
    let fourth = ticket(a.submit_flock(2, 2, Shared, log.done(4)));
    assert!(b.cancel(&first) && a.cancel(&second) && b.cancel(&third) && a.cancel(&fourth));
    assert!(!b.cancel(&first));
    assert_eq!(log.take(), []);
}

#[test]
fn a_request_without_detection_closes_no_cycle_and_is_no_part_of_one() {
    let domain = LockDomain::new(DomainOptions::default());
    let [a, b] = [1, 2].map(|ino| FileLocks::new(&domain, 0, ino));
    let log = Log::default();
    a.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    b.set_range(&posix(2, Exclusive, 0, 0)).expect("free");
    let off = |file: &FileLocks, owner, at, key| {
        ticket(file.submit_range_with(&posix(owner, Exclusive, at, at), Detection::Off, log.done(key)))
    };
    let first = off(&b, 1, 0, 1);
    let second = ticket(a.submit_range(&posix(2, Exclusive, 0, 0), log.done(2)));
    assert!(b.cancel(&first));
    // The other way round: the cycle is there when the request comes.
    let first = off(&b, 1, 0, 3);
    assert!(a.cancel(&second));
    let second = off(&a, 2, 0, 4);
    // A lock that one of them gets meanwhile makes no difference either.
    a.set_range(&posix(3, Exclusive, 5, 5)).expect("free");
    let third = off(&a, 2, 5, 5);
    a.release_owner(Owner::Process(3));
    assert_eq!(log.take(), [(5, Ok(()))]);
    assert!(b.cancel(&first) && a.cancel(&second) && !a.cancel(&third));
    a.release_owner(P1);
    a.release_owner(Owner::Process(2));
    b.release_owner(Owner::Process(2));
    assert!(domain.is_idle());
}

#[test]
fn without_detection_a_cycle_waits_until_cancelled() {
    let domain = LockDomain::new(DomainOptions { deadlock_detection: false, ..Default::default() });
    let file = FileLocks::new(&domain, 0, 1);
    let log = Log::default();
    file.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    file.set_range(&posix(2, Exclusive, 1, 1)).expect("free");
    let wait = ticket(file.submit_range(&posix(1, Exclusive, 1, 1), log.done(1)));
    ticket(file.submit_range(&posix(2, Exclusive, 0, 0), log.done(2)));
    assert!(file.cancel(&wait));
    file.release_owner(P1);
    assert_eq!(log.take(), [(2, Ok(()))]);
}

#[test]
fn a_call_refused_for_lack_of_locks_changes_nothing() {
    let domain = LockDomain::new(DomainOptions { max_locks: Some(2), ..Default::default() });
    let file = FileLocks::new(&domain, 0, 1);
    let log = Log::default();
    file.set_range(&posix(1, Exclusive, 0, 99)).expect("free");
    file.set_flock(1, 1, Exclusive).expect("free");
    assert_eq!(file.unlock_range(P1, range(10, 19)), Err(LockError::NoLocks));
    assert_eq!(file.set_range(&posix(1, Shared, 10, 19)), Err(LockError::NoLocks));
    assert_eq!(file.submit_range(&posix(2, Shared, 10, 19), log.done(2)), Err(LockError::NoLocks));
    assert_eq!(held(&file, P1), [(Exclusive, 0, 99, 1)]);
    file.set_range(&posix(1, Shared, 0, 199)).expect("one lock, as before");
    file.unlock_flock(1);
    file.unlock_range(P1, range(10, 19)).expect("two locks");
    drop(file);
    assert!(domain.is_idle());
}

#[test]
fn an_owner_with_as_many_locks_as_it_may_have_gets_no_more_on_any_file_and_the_others_do() {
    let domain = LockDomain::new(DomainOptions { max_locks_of_owner: Some(2), ..Default::default() });
    let [one, other] = [1, 2].map(|ino| FileLocks::new(&domain, 0, ino));
    let log = Log::default();
    one.set_range(&posix(1, Exclusive, 0, 99)).expect("free");
    other.set_range(&posix(1, Exclusive, 0, 99)).expect("free");
    assert_eq!(one.set_range(&posix(1, Shared, 200, 299)), Err(LockError::NoLocks));
    assert_eq!(one.unlock_range(P1, range(10, 19)), Err(LockError::NoLocks), "it would split a lock");
    one.set_range(&posix(1, Exclusive, 100, 199)).expect("merged, and one lock as before");
    one.set_flock(1, 1, Exclusive).expect("description 1 is not process 1");
    one.set_range(&posix(2, Exclusive, 300, 399)).expect("another owner");
    ticket(other.submit_range(&posix(2, Shared, 0, 0), log.done(2)));
    assert_eq!(
        one.set_range(&posix(2, Shared, 500, 599)),
        Err(LockError::NoLocks),
        "a waiting request counts"
    );
    other.release_owner(P1);
    assert_eq!(log.take(), [(2, Ok(()))]);
    one.set_range(&posix(1, Shared, 400, 499)).expect("one was given back");
    drop((one, other));
    assert!(domain.is_idle());
}

#[test]
fn a_completion_may_call_back_and_is_dropped_when_cancelled() {
    let file = Arc::new(file());
    let log = Log::default();
    file.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    let (inner, next) = (file.clone(), log.done(2));
    ticket(file.submit_range(
        &posix(2, Exclusive, 0, 0),
        Box::new(move |outcome| {
            inner.release_owner(Owner::Process(2));
            next(outcome);
        }),
    ));
    let wait = ticket(file.submit_range(&posix(3, Exclusive, 0, 0), log.done(3)));
    assert_eq!(Arc::strong_count(&file), 2);
    file.release_owner(P1);
    assert_eq!(log.take(), [(3, Ok(())), (2, Ok(()))]);
    assert!(!file.cancel(&wait));
    assert_eq!(Arc::strong_count(&file), 1);
}

#[test]
fn a_completion_that_is_not_called_is_dropped_with_the_file_unlocked() {
    struct Asks(Arc<FileLocks>, Arc<AtomicUsize>);
    impl Drop for Asks {
        fn drop(&mut self) {
            self.1.fetch_add(usize::from(self.0.has_locks()), Ordering::SeqCst);
        }
    }
    let (file, asked) = (Arc::new(file()), Arc::new(AtomicUsize::new(0)));
    let done = || {
        let asks = Asks(file.clone(), asked.clone());
        Box::new(move |_| drop(asks))
    };
    assert_eq!(file.submit_range(&posix(1, Exclusive, 0, 0), done()), Ok(Submitted::Granted));
    assert_eq!(file.submit_flock(1, 1, Exclusive, done()), Ok(Submitted::Granted));
    let wait = ticket(file.submit_range(&posix(2, Exclusive, 0, 0), done()));
    assert!(file.cancel(&wait));
    file.set_range(&posix(2, Exclusive, 1, 1)).expect("free");
    ticket(file.submit_range(&posix(2, Exclusive, 0, 0), done()));
    assert_eq!(file.submit_range(&posix(1, Exclusive, 1, 1), done()), Err(LockError::Deadlock));
    assert_eq!(asked.load(Ordering::SeqCst), 4);
    file.release_owner(P1);
    assert_eq!(asked.load(Ordering::SeqCst), 5);
}

#[test]
fn dropping_the_file_ends_its_waits() {
    let (file, log) = (file(), Log::default());
    file.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    ticket(file.submit_range(&posix(2, Exclusive, 0, 0), log.done(2)));
    drop(file);
    assert_eq!(log.take(), [(2, Err(LockError::Interrupted))]);
}

#[test]
fn a_listing_has_every_lock_and_each_waiter_below_what_blocks_it() {
    let domain = LockDomain::new(DomainOptions::default());
    let [a, b] = [11, 12].map(|ino| FileLocks::new(&domain, 0x802, ino));
    let log = Log::default();
    b.set_flock(4, 4, Exclusive).expect("free");
    a.set_range(&ofd(9, Shared, 0, 0)).expect("free");
    a.set_range(&posix(1, Exclusive, 100, 199)).expect("free");
    ticket(a.submit_range(&posix(2, Shared, 150, Range::WHOLE.end()), log.done(2)));
    ticket(a.submit_range(&posix(3, Exclusive, 0, 150), log.done(3)));
    ticket(b.submit_flock(5, 5, Shared, log.done(5)));
    assert_eq!(
        proc_locks(&domain.list()),
        "1: OFDLCK ADVISORY  READ -1 08:02:11 0 0\n\
         1: -> POSIX  ADVISORY  WRITE 3 08:02:11 0 150\n\
         2: POSIX  ADVISORY  WRITE 1 08:02:11 100 199\n\
         2: -> POSIX  ADVISORY  READ 2 08:02:11 150 EOF\n\
         3: FLOCK  ADVISORY  WRITE 4 08:02:12 0 EOF\n\
         3: -> FLOCK  ADVISORY  READ 5 08:02:12 0 EOF\n"
    );
}
