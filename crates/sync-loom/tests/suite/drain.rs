//! Models of the drain: what is left is never left to nobody, and what a drain frees nobody can see.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::Mutex;
use sluice_sync_loom::atomic::{AtomicUsize, Ordering, fence};
use sluice_sync_loom::drain::Switch;
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::rcu::{Domain, Drained, RcuCell};
use sluice_sync_loom::refcache::{Draining, Ref, settle};

/// A place where something is left for a drain.
trait Place: Sync {
    /// Leaves something, and then asks.
    fn leave(&self, switch: &Switch) -> bool;
    /// Takes what is there.
    fn take(&self) -> usize;
}

impl Place for Mutex<usize> {
    fn leave(&self, switch: &Switch) -> bool {
        let mut left = self.lock();
        *left += 1;
        switch.ask()
    }

    fn take(&self) -> usize {
        std::mem::take(&mut *self.lock())
    }
}

impl Place for AtomicUsize {
    fn leave(&self, switch: &Switch) -> bool {
        self.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        switch.ask()
    }

    fn take(&self) -> usize {
        match self.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.swap(0, Ordering::Relaxed),
        }
    }
}

/// As the thread does: until nothing is left.
fn drain(place: &dyn Place, switch: &Switch) -> usize {
    let mut taken = 0;
    loop {
        taken += place.take();
        switch.rest();
        let late = place.take();
        if late == 0 {
            return taken;
        }
        taken += late;
        if !switch.resume() {
            return taken;
        }
    }
}

/// A drain is at its end when another thread leaves something: one of the two sees to it.
fn nothing_is_left(place: fn() -> &'static dyn Place) {
    explore(3, move || {
        let (place, switch): (_, &'static Switch) = (place(), Box::leak(Box::default()));
        assert!(place.leave(switch), "nobody drains yet");
        let drainer = thread::spawn(move || drain(place, switch));
        let mut taken = if place.leave(switch) { drain(place, switch) } else { 0 };
        taken += drainer.join().expect("the drain ends");
        assert_eq!(taken, 2, "left for nobody");
    });
}

#[test]
fn what_is_left_under_a_mutex_is_drained() {
    seed_mutant(None);
    nothing_is_left(|| Box::leak(Box::new(Mutex::new(0))));
}

#[test]
fn what_is_left_before_a_fence_is_drained() {
    seed_mutant(None);
    nothing_is_left(|| Box::leak(Box::new(AtomicUsize::new(0))));
}

#[test]
#[should_panic(expected = "left for nobody")]
fn resting_without_the_fence_is_found() {
    seed_mutant(Some(Mutant::RestWithoutFence));
    nothing_is_left(|| Box::leak(Box::new(AtomicUsize::new(0))));
}

/// Notes its own end where a late user would see it.
struct Canary(&'static AtomicUsize);

impl Canary {
    fn new() -> Canary {
        Canary(Box::leak(Box::new(AtomicUsize::new(1))))
    }

    fn sing(&self) {
        assert_eq!(self.0.load(Ordering::Relaxed), 1, "dropped under a reader");
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        assert_eq!(self.0.swap(0, Ordering::Relaxed), 1, "dropped twice");
    }
}

/// A value is replaced, and a drain looks twice into the bag in which the old one waits, while two threads read: one that has
/// replaced it, and one that has not.
#[test]
fn what_a_drain_takes_out_of_a_bag_no_reader_sees() {
    seed_mutant(None);
    explore(2, || {
        let domain = &*Box::leak(Box::new(Domain::with_batch(8)));
        let cell = Arc::new(RcuCell::new(domain, Canary::new()));
        let look = |cell: &RcuCell<Canary>| cell.load(&cell.read()).sing();
        let (own, others) = (cell.clone(), cell.clone());
        let owner = thread::spawn(move || {
            own.replace(Canary::new());
            look(&own);
        });
        let reader = thread::spawn(move || look(&others));
        (0..2).for_each(|_| _ = domain.drain_idle());
        owner.join().expect("the owner ends");
        reader.join().expect("the reader ends");
        let drained = [(); 3].map(|()| domain.drain_idle());
        assert_eq!(drained[2], Drained::Nothing, "{drained:?}");
        cell.load(&cell.read()).sing();
    });
}

/// A drain passes while an owner takes and drops references, and the first is dropped elsewhere.
#[test]
fn what_a_drain_finds_dead_has_no_reference() {
    seed_mutant(None);
    explore(2, || {
        let first = Ref::new(Canary::new());
        let alive = first.0;
        let second = first.clone();
        let owner = thread::spawn(move || {
            let third = second.clone();
            drop(second);
            third.sing();
            drop(third);
        });
        first.sing();
        drop(first);
        let mut draining = Draining::default();
        (0..3).for_each(|_| _ = draining.pass());
        owner.join().expect("the owner ends");
        // Whatever it was doing when the owner ended.
        let passes = (0..8).take_while(|_| draining.pass()).count();
        assert!(passes < 8 && alive.load(Ordering::Relaxed) == 0, "left after {passes} passes");
        settle();
    });
}
