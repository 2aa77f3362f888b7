//! Tests of the scalable references: exact to zero, from any thread, in chains of any length.

use super::*;
use crate::atomic::{AtomicUsize, Ordering};
use crate::face::{HOSTS_SHARE, SHRUNK};
use crate::{Arc, Mutex, thread};

/// Counts its end.
pub(super) struct Noted(pub(super) Arc<AtomicUsize>);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn noted() -> (Ref<Noted>, Arc<AtomicUsize>) {
    let ends = Arc::new(AtomicUsize::new(0));
    (Ref::new(Noted(ends.clone())), ends)
}

fn ended(ends: &AtomicUsize) -> usize {
    settle();
    ends.load(Ordering::Relaxed)
}

#[test]
fn a_value_is_dropped_after_its_last_reference_and_not_before() {
    let (first, ends) = noted();
    let second = first.clone();
    assert!(Ref::ptr_eq(&first, &second) && Ref::as_ptr(&first) == Ref::as_ptr(&second));
    drop(first);
    assert_eq!(ended(&ends), 0);
    drop(second);
    assert_eq!(ended(&ends), 1);
}

#[test]
fn values_are_dropped_without_being_asked_for_when_enough_is_counted() {
    let (other, ends) = (Ref::new(()), Arc::new(AtomicUsize::new(0)));
    (0..10).for_each(|_| drop(Ref::new(Noted(ends.clone()))));
    // Other tests' threads count too, so epochs end sooner or later, but end they do.
    for _ in 0..1_000_000 {
        drop(other.clone());
        if ends.load(Ordering::Relaxed) == 10 {
            return;
        }
    }
    panic!("{} of 10 dropped", ends.load(Ordering::Relaxed));
}

/// Panics at its end, in the thread of that number only: not in another test.
struct Panics(std::thread::ThreadId);

impl Drop for Panics {
    fn drop(&mut self) {
        assert!(std::thread::current().id() != self.0, "as the test wants it");
    }
}

#[test]
fn a_destructor_that_panics_keeps_nobody_waiting_and_spares_no_other_value() {
    let (mut ends, me) = (Arc::default(), std::thread::current().id());
    let mut panics = || {
        let (after, its_ends) = noted();
        ends = its_ends;
        drop((Ref::new(Panics(me)), after));
        std::panic::catch_unwind(settle).is_err()
    };
    // Another test's thread may come first and free it.
    while !panics() {}
    assert!(!in_destructor());
    thread::scope(|scope| _ = scope.spawn(settle));
    assert_eq!(ended(&ends), 1);
}

#[test]
fn references_hop_between_threads_while_epochs_pass() {
    let rounds = if SHRUNK { 50 } else { 200_000 };
    let (first, ends) = noted();
    // Each takes what is there and leaves another reference: at any time one or two are left.
    let place = Mutex::new(first);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..rounds {
                    let next = place.lock().clone();
                    let before = std::mem::replace(&mut *place.lock(), next);
                    assert_eq!(before.0.load(Ordering::Relaxed), 0, "dropped under a reference");
                    drop(before);
                    if round % 1_000 == 0 {
                        settle();
                    }
                }
            });
        }
    });
    assert_eq!(ended(&ends), 0);
    drop(place);
    assert_eq!(ended(&ends), 1);
}

#[test]
fn what_is_borrowed_from_a_slot_lives_while_it_is_taken_out_and_much_is_counted() {
    let (first, ends) = noted();
    let (slot, other) = (RefSlot::new(), Ref::new(()));
    assert!(slot.borrow(|found| found.is_none()));
    assert!(slot.fill(first).is_ok());
    let while_borrowed = slot.borrow(|found| {
        drop(slot.replace(None));
        // More than several epochs take.
        (0..if SHRUNK { 50 } else { 20_000 }).for_each(|_| drop(other.clone()));
        assert!(slot.borrow(|found| found.is_none()));
        settle();
        found.map(|found| found.0.load(Ordering::Relaxed))
    });
    assert_eq!((while_borrowed, ended(&ends)), (Some(0), 1));
}

#[test]
fn a_thread_that_panics_while_it_borrows_keeps_nobody_waiting() {
    let (first, ends) = noted();
    let slot = RefSlot::new();
    assert!(slot.fill(first).is_ok());
    let panics = || slot.borrow(|found| assert!(found.is_none(), "as the test wants it"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    drop(slot);
    thread::scope(|scope| _ = scope.spawn(settle));
    assert_eq!(ended(&ends), 1);
}

#[test]
fn what_is_borrowed_lives_though_others_replace_it_all_the_time() {
    if !HOSTS_SHARE {
        return;
    }
    let rounds = if SHRUNK { 50 } else { 200_000 };
    let (slot, ends) = (RefSlot::new(), Arc::new(AtomicUsize::new(0)));
    /// Tells by its value whether it lives.
    struct Living(AtomicUsize, Arc<AtomicUsize>);
    impl Drop for Living {
        fn drop(&mut self) {
            self.0.store(0, Ordering::Relaxed);
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let living = || Some(Ref::new(Living(AtomicUsize::new(7), ends.clone())));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                drop(slot.replace(living()));
                if round % 1_000 == 0 {
                    settle();
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    slot.borrow(|found| {
                        let Some(Living(alive, _)) = found else { return };
                        assert_eq!((alive.load(Ordering::Relaxed), alive.load(Ordering::Relaxed)), (7, 7));
                    });
                }
            });
        }
    });
    drop(slot);
    assert_eq!(ended(&ends), rounds);
}

#[test]
fn a_chain_of_references_does_not_recurse() {
    struct Link(#[expect(dead_code, reason = "held for its destructor")] Option<Ref<Link>>, Noted);
    let (length, ends) = (if SHRUNK { 50 } else { 1_000_000 }, Arc::new(AtomicUsize::new(0)));
    let link = |below, _| Some(Ref::new(Link(below, Noted(ends.clone()))));
    let chain = (0..length).fold(None, link);
    assert!(chain.as_ref().is_some_and(|link| link.1.0.load(Ordering::Relaxed) == 0));
    drop(chain);
    assert_eq!(ended(&ends), length);
}

#[test]
fn many_objects_share_few_ways() {
    let (count, ends) = (if SHRUNK { 50 } else { 50_000 }, Arc::new(AtomicUsize::new(0)));
    let all: Vec<_> = (0..count).map(|_| Ref::new(Noted(ends.clone()))).collect();
    let again = all.clone();
    drop(all);
    assert_eq!(ended(&ends), 0);
    drop(again);
    assert_eq!(ended(&ends), count);
}

#[test]
fn caches_keep_of_an_object_no_more_than_half_of_its_global_count() {
    let shared = Ref::new(());
    let object = Object::of(shared.counted);
    assert!(object.spares(1000, 2), "what is added does no harm");
    assert!(!object.spares(0, 2), "nothing to keep");
    assert!(!object.spares(-1, 2), "it may be the last");
    assert!(!object.add(3));
    assert!(object.spares(-1, 2) && !object.spares(-2, 2) && !object.spares(-1, 3));
    assert!(!object.add(-3));
}

#[test]
fn an_object_costs_sixteen_bytes_beside_its_value() {
    if !cfg!(feature = "sim") {
        assert_eq!(size_of::<Counted<[u64; 8]>>(), 64 + 16);
    }
}
