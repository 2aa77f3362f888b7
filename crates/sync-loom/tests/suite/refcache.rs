//! Models of the scalable references: never dropped under a reference, dropped once after the last. A cache has
//! one way and is flushed every second count, so each model passes through several epochs.

use crate::model::explore;
use loom::thread;
use sluice_sync_loom::Mutex;
use sluice_sync_loom::atomic::{AtomicUsize, Ordering};
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::refcache::{Ref, RefSlot, WeakRef, settle};
use std::mem::ManuallyDrop;

/// Notes its own end where a late user would see it.
struct Canary(&'static AtomicUsize);

impl Canary {
    fn new() -> (Ref<Canary>, &'static AtomicUsize) {
        let alive = Box::leak(Box::new(AtomicUsize::new(1)));
        (Ref::new(Canary(alive)), alive)
    }
}

fn sing(alive: &AtomicUsize) {
    assert_eq!(alive.load(Ordering::Relaxed), 1, "dropped under a reference");
}

impl Drop for Canary {
    fn drop(&mut self) {
        assert_eq!(self.0.swap(0, Ordering::Relaxed), 1, "dropped twice");
    }
}

#[test]
fn two_threads_take_and_drop_while_a_third_settles() {
    seed_mutant(None);
    explore(2, || {
        let (first, alive) = Canary::new();
        let second = first.clone();
        let thread = thread::spawn(move || {
            let third = second.clone();
            drop(second);
            sing(alive);
            drop(third);
        });
        let settler = thread::spawn(settle);
        let fourth = first.clone();
        drop(first);
        sing(alive);
        drop(fourth);
        thread.join().expect("the thread ends");
        settler.join().expect("the settler ends");
        settle();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "dropped after the last");
    });
}

/// The use that one of two threads makes of its own reference.
#[derive(Clone, Copy)]
enum Act {
    /// Takes one from the other thread's.
    Take,
    Drop,
    /// Takes another one from its own, and drops that.
    Again,
    /// Counts something else.
    Other,
}

type Script = &'static [(usize, Act)];

/// Which thread does what. Each thread's cache is flushed at its every second act. In the first epoch the object's global
/// count comes to 0, since the first reference's end is flushed before the second one's begin; then a
/// reference hops to the thread whose cache was just flushed, from the one whose cache is flushed next.
const HOPS: Script = {
    use Act::{Drop, Other, Take};
    &[
        (1, Take),
        (0, Drop),
        (0, Other),
        (0, Take),
        (1, Drop),
        (1, Take),
        (0, Drop),
        (0, Take),
        (1, Drop),
        (1, Take),
        (0, Drop),
    ]
};

/// The second thread takes a reference and keeps it, over flushes. The first one's end brings the global count to 0, and
/// then the first thread ends two epochs.
const STAYS: Script = {
    use Act::{Again, Drop, Other, Take};
    &[
        (1, Take),
        (0, Drop),
        (0, Other),
        (1, Again),
        (0, Other),
        (0, Other),
        (1, Again),
        (0, Other),
        (0, Other),
    ]
};

struct Stage {
    script: Script,
    step: AtomicUsize,
    own: [Mutex<Option<Ref<Canary>>>; 2],
    other: Ref<()>,
}

impl Stage {
    fn play(&self, me: usize) {
        for (at, (who, act)) in self.script.iter().enumerate() {
            if *who != me {
                continue;
            }
            while self.step.load(Ordering::Acquire) != at {
                thread::yield_now();
            }
            match act {
                Act::Take => {
                    let theirs = self.own[1 - me].lock();
                    *self.own[me].lock() = theirs.clone();
                }
                Act::Drop => drop(self.own[me].lock().take()),
                Act::Again => drop(self.own[me].lock().clone()),
                Act::Other => std::mem::forget(self.other.clone()),
            }
            self.step.store(at + 1, Ordering::Release);
        }
    }
}

/// The second thread has the last reference in the end.
fn references_are_counted(script: Script) {
    explore(1, move || {
        let (first, alive) = Canary::new();
        let own = [Mutex::new(Some(first)), Mutex::new(None)];
        let stage: &'static Stage =
            Box::leak(Box::new(Stage { script, step: AtomicUsize::new(0), own, other: Ref::new(()) }));
        let thread = thread::spawn(|| stage.play(1));
        stage.play(0);
        thread.join().expect("the thread ends");
        sing(alive);
        drop(stage.own[1].lock().take());
        settle();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "dropped after the last");
    });
}

#[test]
fn a_reference_that_hops_is_not_lost() {
    seed_mutant(None);
    references_are_counted(HOPS);
}

#[test]
fn a_reference_whose_count_is_kept_is_not_lost() {
    seed_mutant(None);
    references_are_counted(STAYS);
}

#[test]
#[should_panic(expected = "dropped under a reference")]
fn keeping_a_count_when_the_global_one_is_0_is_found() {
    seed_mutant(Some(Mutant::KeptAtZero));
    references_are_counted(STAYS);
}

#[test]
#[should_panic(expected = "dropped under a reference")]
fn forgetting_uses_that_cancel_out_is_found() {
    seed_mutant(Some(Mutant::CancelledUsesForgotten));
    references_are_counted(HOPS);
}

/// The first thread, which has flushed its cache in the epoch, flushes it again and brings the global count to 0; the second thread,
/// whose flush keeps the count of its own reference, ends the epoch meanwhile.
fn an_epoch_ends_while_a_cache_is_flushed_again() {
    explore(2, || {
        let (first, alive) = Canary::new();
        let first: &'static Mutex<Option<Ref<Canary>>> = Box::leak(Box::new(Mutex::new(Some(first))));
        let (other, step): (&'static _, &'static _) =
            (Box::leak(Box::new(Ref::new(()))), Box::leak(Box::new(AtomicUsize::new(0))));
        let count = || std::mem::forget(Ref::clone(other));
        let wait_for = |at| {
            while step.load(Ordering::Acquire) != at {
                thread::yield_now();
            }
        };
        let thread = thread::spawn(move || {
            let second = first.lock().clone();
            step.store(1, Ordering::Release);
            wait_for(2);
            drop(second.clone());
            sing(alive);
            second
        });
        wait_for(1);
        (0..3).for_each(|_| count());
        step.store(2, Ordering::Release);
        drop(first.lock().take());
        let second = thread.join().expect("the thread ends");
        sing(alive);
        drop(second);
        settle();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "dropped after the last");
    });
}

#[test]
fn a_review_that_a_later_epoch_began_is_not_over() {
    seed_mutant(None);
    an_epoch_ends_while_a_cache_is_flushed_again();
}

#[test]
#[should_panic(expected = "dropped under a reference")]
fn taking_a_review_of_a_later_epoch_for_an_old_one_is_found() {
    seed_mutant(Some(Mutant::EpochsUnordered));
    an_epoch_ends_while_a_cache_is_flushed_again();
}

#[test]
fn what_a_slot_held_lives_as_long_as_the_thread_that_found_it() {
    seed_mutant(None);
    explore(2, || {
        let (first, alive) = Canary::new();
        let slot: &'static RefSlot<Canary> = Box::leak(Box::new(RefSlot::new()));
        assert!(slot.fill(first).is_ok());
        let finder = thread::spawn(|| {
            if let Some(found) = slot.load() {
                assert_eq!(found.0.load(Ordering::Relaxed), 1, "dropped under a reference");
            }
        });
        drop(slot.replace(None));
        settle();
        finder.join().expect("the finder ends");
        settle();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "dropped after the last");
    });
}

/// One thread borrows what a slot holds and counts something else meanwhile, more than makes a flush due. The other empties the
/// slot, drops what was in it, and settles, or counts for as long as two epochs take.
fn what_is_borrowed_lives_while(other_counts: bool) {
    explore(2, move || {
        let (first, alive) = Canary::new();
        let slot: &'static RefSlot<Canary> = Box::leak(Box::new(RefSlot::new()));
        assert!(slot.fill(first).is_ok());
        let other: &'static Ref<()> = Box::leak(Box::new(Ref::new(())));
        let borrower = thread::spawn(move || {
            slot.borrow(|found| {
                let Some(found) = found else { return };
                sing(found.0);
                if !other_counts {
                    drop(other.clone());
                }
                settle();
                sing(found.0);
                // Borrowing once more ends the first one no sooner.
                slot.borrow(|_| ());
                sing(found.0);
            });
        });
        drop(slot.replace(None));
        match other_counts {
            true => (0..3).for_each(|_| drop(other.clone())),
            false => settle(),
        }
        borrower.join().expect("the borrower ends");
        settle();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "dropped after the last");
    });
}

#[test]
fn what_is_borrowed_lives_while_others_settle() {
    seed_mutant(None);
    what_is_borrowed_lives_while(false);
}

#[test]
fn what_is_borrowed_lives_while_others_flush() {
    seed_mutant(None);
    what_is_borrowed_lives_while(true);
}

#[test]
#[should_panic(expected = "dropped under a reference")]
fn visiting_the_cache_of_one_who_borrows_is_found() {
    seed_mutant(Some(Mutant::VisitedWhileHeld));
    what_is_borrowed_lives_while(false);
}

#[test]
#[should_panic(expected = "dropped under a reference")]
fn borrowing_with_a_cache_that_nobody_waits_for_is_found() {
    seed_mutant(Some(Mutant::BorrowedUnlisted));
    what_is_borrowed_lives_while(false);
}

/// One thread empties the slot, drops what was in it and ends epochs, all of it while it borrows that itself.
fn what_is_borrowed_outlives_what_the_borrower_does() {
    explore(1, || {
        let (first, alive) = Canary::new();
        let slot: &'static RefSlot<Canary> = Box::leak(Box::new(RefSlot::new()));
        assert!(slot.fill(first).is_ok());
        let other = Ref::new(());
        slot.borrow(|found| {
            drop(slot.replace(None));
            (0..6).for_each(|_| drop(other.clone()));
            found.into_iter().for_each(|found| sing(found.0));
        });
        drop(other);
        settle();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "dropped after the last");
    });
}

#[test]
fn a_thread_that_borrows_may_drop_the_last_reference_meanwhile() {
    seed_mutant(None);
    what_is_borrowed_outlives_what_the_borrower_does();
}

#[test]
#[should_panic(expected = "dropped under a reference")]
fn flushing_the_own_cache_in_a_borrow_is_found() {
    seed_mutant(Some(Mutant::FlushedWhileHeld));
    what_is_borrowed_outlives_what_the_borrower_does();
}

/// One thread follows a weak reference while the last other reference is dropped, and others settle, or count for as long as
/// the reviews take.
fn what_a_weak_reference_led_to_lives_while(other_counts: bool) {
    explore(2, move || {
        let (first, alive) = Canary::new();
        let weak = WeakRef::to(&first);
        let other = Ref::new(());
        let follower = {
            let weak = weak.clone();
            // Dropped only if all is well: else that would use what is freed.
            thread::spawn(move || weak.follow().map(ManuallyDrop::new))
        };
        drop(first);
        match other_counts {
            true => (0..6).for_each(|_| drop(other.clone())),
            false => settle(),
        }
        if let Some(found) = follower.join().expect("the follower ends") {
            sing(alive);
            drop(ManuallyDrop::into_inner(found));
        }
        settle();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "dropped after the last");
        assert!(weak.follow().is_none());
    });
}

#[test]
fn what_a_weak_reference_led_to_lives_while_others_settle() {
    seed_mutant(None);
    what_a_weak_reference_led_to_lives_while(false);
}

#[test]
fn what_a_weak_reference_led_to_lives_while_others_flush() {
    seed_mutant(None);
    what_a_weak_reference_led_to_lives_while(true);
}

/// Freed memory is used, with any result.
#[test]
#[should_panic]
fn freeing_what_a_weak_reference_may_have_led_to_meanwhile_is_found() {
    seed_mutant(Some(Mutant::FollowedMeanwhile));
    what_a_weak_reference_led_to_lives_while(false);
}
