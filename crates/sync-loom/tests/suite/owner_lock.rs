//! Models of the owner lock: an owner and its visitors are never inside together, and all get in.

use crate::model::explore;
use loom::thread;
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::owner_lock::OwnerLock;

/// Adds one as the owner.
///
/// # Safety
/// As for [`OwnerLock::lock`].
unsafe fn add_as_owner(lock: &OwnerLock<usize>) {
    // SAFETY: by contract.
    *unsafe { lock.lock() } += 1;
}

fn add_as_visitor<'a>(locks: impl Iterator<Item = &'a OwnerLock<usize>> + Clone) {
    OwnerLock::visit_all(locks).iter_mut().for_each(|value| **value += 1);
}

fn an_owner_comes_twice_and_a_visitor_once() {
    explore(3, || {
        let lock = &*Box::leak(Box::new(OwnerLock::new(0)));
        let owner = thread::spawn(|| {
            for _ in 0..2 {
                // SAFETY: this thread alone calls it for this lock, never twice at once.
                unsafe { add_as_owner(lock) };
            }
        });
        add_as_visitor([lock].into_iter());
        owner.join().expect("the owner ends");
        OwnerLock::visit_all([lock].into_iter()).iter().for_each(|value| assert_eq!(**value, 3));
    });
}

#[test]
fn an_owner_and_a_visitor_are_never_inside_together() {
    seed_mutant(None);
    an_owner_comes_twice_and_a_visitor_once();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_without_its_barrier_is_found() {
    seed_mutant(Some(Mutant::OwnerWithoutBarrier));
    an_owner_comes_twice_and_a_visitor_once();
}

#[test]
fn a_visitor_who_does_not_wait_is_inside_alone_or_not_at_all() {
    seed_mutant(None);
    explore(3, || {
        let lock = &*Box::leak(Box::new(OwnerLock::new(0)));
        let owner = thread::spawn(|| {
            for _ in 0..2 {
                // SAFETY: this thread alone calls it for this lock, never twice at once.
                unsafe { add_as_owner(lock) };
            }
        });
        let visits = || {
            let mut visits = OwnerLock::visit_free([lock].into_iter());
            visits.iter_mut().flatten().map(|value| **value += 1).count()
        };
        let visited = visits();
        owner.join().expect("the owner ends");
        assert_eq!(visits(), 1, "nobody is inside");
        OwnerLock::visit_all([lock].into_iter()).iter().for_each(|value| assert_eq!(**value, 3 + visited));
    });
}

/// The owner comes in, holds the lock when it leaves, and comes in again. Between these nobody else does.
fn an_owner_stays_to_hold_it_and_a_visitor_comes() {
    explore(3, || {
        let lock = &*Box::leak(Box::new(OwnerLock::new(0)));
        let owner = thread::spawn(|| {
            // SAFETY: this thread alone calls it for this lock, and is outside.
            let mut inside = unsafe { lock.lock() };
            *inside += 1;
            let left = *inside;
            // SAFETY: as above, and it is inside.
            let held = unsafe { lock.hold() };
            drop(inside);
            // SAFETY: as above; it has left.
            let mut inside = unsafe { lock.lock() };
            assert_eq!(*inside, left, "visited meanwhile");
            *inside += 1;
            drop(inside);
            drop(held);
        });
        add_as_visitor([lock].into_iter());
        owner.join().expect("the owner ends");
        OwnerLock::visit_all([lock].into_iter()).iter().for_each(|value| assert_eq!(**value, 3));
    });
}

#[test]
fn the_holder_of_the_lock_has_no_visitor_and_comes_in_all_the_same() {
    seed_mutant(None);
    an_owner_stays_to_hold_it_and_a_visitor_comes();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_visitor_who_does_not_wait_for_the_end_of_a_hold_is_found() {
    seed_mutant(Some(Mutant::VisitedWhileHeld));
    an_owner_stays_to_hold_it_and_a_visitor_comes();
}

#[test]
fn two_visitors_of_two_locks_and_an_owner_all_get_in() {
    explore(2, || {
        let locks: &'static [OwnerLock<usize>; 2] = Box::leak(Box::default());
        // SAFETY: this thread alone calls it for this lock, once.
        let owner = thread::spawn(|| unsafe { add_as_owner(&locks[0]) });
        let visitor = thread::spawn(|| add_as_visitor(locks.iter()));
        add_as_visitor(locks.iter());
        owner.join().expect("the owner ends");
        visitor.join().expect("the visitor ends");
        let counts: Vec<_> = OwnerLock::visit_all(locks.iter()).iter().map(|value| **value).collect();
        assert_eq!(counts, [3, 2]);
    });
}
