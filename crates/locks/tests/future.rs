//! Lock requests as futures: woken, dropped, refused.

use sluice_locks::Kind::{Exclusive, Shared};
use sluice_locks::{DomainOptions, FileLocks, Kind, LockDomain, LockError, Owner, Range, RangeRequest};
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

fn setup() -> (Arc<LockDomain>, FileLocks) {
    let domain = LockDomain::new(DomainOptions::default());
    let file = FileLocks::new(&domain, 0, 1);
    (domain, file)
}

/// A request by process `process` for `start..=end`.
fn posix(process: u64, kind: Kind, start: u64, end: u64) -> RangeRequest {
    let range = Range::new(start, end).expect("a range");
    RangeRequest { owner: Owner::Process(process), pid: 1, kind, range }
}

/// Counts how often a task was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_future_wakes_its_task_when_the_lock_is_handed_over() {
    let (_domain, file) = setup();
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    file.set_flock(1, 1, Shared).expect("free");
    let mut range = pin!(file.lock_range(posix(2, Shared, 5, 9)));
    let mut flock = pin!(file.lock_flock(2, 2, Exclusive));
    assert!(range.as_mut().poll(&mut context).is_pending() && flock.as_mut().poll(&mut context).is_pending());
    assert!(range.as_mut().poll(&mut context).is_pending());
    file.release_owner(Owner::Process(1));
    file.unlock_flock(1);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 2);
    assert_eq!(range.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    assert_eq!(flock.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    assert_eq!(flock.as_mut().poll(&mut context), Poll::Ready(Ok(())));
}

#[test]
fn a_future_that_is_dropped_holds_nothing_whenever_that_is() {
    let (domain, file) = setup();
    let mut context = Context::from_waker(Waker::noop());
    drop(file.lock_range(posix(1, Exclusive, 0, 9)));
    assert!(!file.has_locks(), "it was never polled");
    file.set_range(&posix(1, Exclusive, 0, 9)).expect("free");
    for release_first in [false, true] {
        let mut future = Box::pin(file.lock_range(posix(2, Exclusive, 0, 9)));
        assert!(future.as_mut().poll(&mut context).is_pending());
        if release_first {
            file.release_owner(Owner::Process(1));
        }
        drop(future);
        assert_eq!(domain.list().len(), usize::from(!release_first));
    }
    // Polled to the end, the lock stays.
    let mut future = Box::pin(file.lock_flock(2, 2, Exclusive));
    assert_eq!(future.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    drop(future);
    assert!(file.has_locks());
}

#[test]
fn a_future_resolves_to_a_deadlock() {
    let (_domain, file) = setup();
    let mut context = Context::from_waker(Waker::noop());
    file.set_range(&posix(1, Exclusive, 0, 0)).expect("free");
    file.set_range(&posix(2, Exclusive, 1, 1)).expect("free");
    let mut first = Box::pin(file.lock_range(posix(1, Exclusive, 1, 1)));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let mut second = Box::pin(file.lock_range(posix(2, Exclusive, 0, 0)));
    assert_eq!(second.as_mut().poll(&mut context), Poll::Ready(Err(LockError::Deadlock)));
}
