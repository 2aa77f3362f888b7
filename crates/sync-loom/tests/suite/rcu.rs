//! Models of RCU: nothing is reused while a reader may see it, no synchronizer sleeps for ever.

use crate::model::explore;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::atomic::{AtomicUsize, Ordering};
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::rcu::{Domain, RcuCell};

/// Two objects that outlive the execution, and which of them is published.
struct Published {
    domain: Domain,
    at: AtomicUsize,
    /// Each access is checked for a race with the others.
    objects: [UnsafeCell<()>; 2],
}

impl Published {
    fn new() -> &'static Self {
        Box::leak(Box::new(Published {
            domain: Domain::new(),
            at: AtomicUsize::new(0),
            objects: [UnsafeCell::new(()), UnsafeCell::new(())],
        }))
    }

    fn read(&self) {
        let _guard = self.domain.read();
        let at = self.at.load(Ordering::Acquire);
        self.objects[at].with(|_| ());
    }

    /// Publishes the other object, and writes to the first once nobody can see it.
    fn replace(&self) {
        self.at.store(1, Ordering::Release);
        self.domain.synchronize();
        self.objects[0].with_mut(|_| ());
    }
}

fn one_reader_reads_twice() {
    one_reader_reads_twice_after(|_| ());
}

fn one_reader_reads_twice_after(preparation: fn(&Published)) {
    explore(4, move || {
        let published = Published::new();
        preparation(published);
        let reader = thread::spawn(|| {
            published.read();
            published.read();
        });
        published.replace();
        reader.join().expect("the reader ends");
    });
}

#[test]
fn an_object_is_reused_only_after_its_readers() {
    seed_mutant(None);
    one_reader_reads_twice();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_reader_without_its_barrier_is_found() {
    seed_mutant(Some(Mutant::AnnounceWithoutBarrier));
    one_reader_reads_twice();
}

/// A reader keeps what it found over the end of its section, and looks at it in the next one if that is of the same era.
fn a_reader_remembers(replace: fn(&Published)) {
    explore(4, move || {
        let published = Published::new();
        let reader = thread::spawn(|| {
            let (era, at) = {
                let guard = published.domain.read();
                (guard.era(), published.at.load(Ordering::Acquire))
            };
            let guard = published.domain.read();
            if guard.era() == era {
                published.objects[at].with(|_| ());
            }
        });
        replace(published);
        reader.join().expect("the reader ends");
    });
}

#[test]
fn what_was_found_in_an_era_is_not_reused_in_it() {
    seed_mutant(None);
    a_reader_remembers(Published::replace);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_era_that_was_known_before_the_section_began_is_found() {
    seed_mutant(Some(Mutant::EraOfTheStamp));
    a_reader_remembers(Published::replace);
}

/// The reader is retired before it begins.
#[test]
fn a_retired_reader_finds_that_the_era_is_over() {
    seed_mutant(None);
    a_reader_remembers(|published| {
        _ = published.domain.poll_retiring(published.domain.start());
        published.replace();
    });
}

/// The first period finds nobody and retires the reader; the second must see that it is back.
fn a_retired_reader_reads() {
    one_reader_reads_twice_after(|published| {
        assert!(published.domain.poll_retiring(published.domain.start()), "nobody reads yet");
    });
}

#[test]
fn a_reader_that_was_retired_is_waited_for_again() {
    seed_mutant(None);
    a_retired_reader_reads();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_retired_reader_that_does_not_say_that_it_is_back_is_found() {
    seed_mutant(Some(Mutant::RetiredAndInside));
    a_retired_reader_reads();
}

/// The other retires readers while ours goes in and out.
#[test]
fn a_reader_that_another_is_about_to_retire_is_waited_for() {
    seed_mutant(None);
    explore(3, || {
        let published = Published::new();
        let reader = thread::spawn(|| {
            published.read();
            published.read();
        });
        let other = thread::spawn(|| _ = published.domain.poll_retiring(published.domain.start()));
        published.replace();
        reader.join().expect("the reader ends");
        other.join().expect("the other synchronizer ends");
    });
}

#[test]
fn two_readers_are_both_waited_for() {
    explore(3, || {
        let published = Published::new();
        let readers = [thread::spawn(|| published.read()), thread::spawn(|| published.read())];
        published.replace();
        readers.into_iter().for_each(|reader| reader.join().expect("the reader ends"));
    });
}

/// A thread may rely on a grace period that another thread has completed, by `completed`.
#[test]
fn two_synchronizers_help_each_other_but_never_too_early() {
    explore(3, || {
        let published = Published::new();
        let reader = thread::spawn(|| published.read());
        let other = thread::spawn(|| published.domain.synchronize());
        published.replace();
        reader.join().expect("the reader ends");
        other.join().expect("the other synchronizer ends");
    });
}

#[test]
fn a_period_that_is_over_for_a_poller_is_over() {
    seed_mutant(None);
    for poll in [Domain::poll, Domain::poll_retiring] {
        explore(4, move || {
            let published = Published::new();
            let reader = thread::spawn(|| published.read());
            published.at.store(1, Ordering::Release);
            let period = published.domain.start();
            if poll(&published.domain, period) {
                published.objects[0].with_mut(|_| ());
            }
            reader.join().expect("the reader ends");
        });
    }
}

/// One flush has the work in hand, the other finds none; or each some.
#[test]
fn what_was_deferred_before_a_flush_is_done_after_it_whoever_does_it() {
    explore(2, || {
        let (domain, done) =
            (&*Box::leak(Box::new(Domain::new())), &*Box::leak(Box::new(AtomicUsize::new(0))));
        domain.defer(|| _ = done.fetch_add(1, Ordering::Relaxed));
        let flush = || {
            domain.flush();
            assert_eq!(done.load(Ordering::Relaxed), 1, "the flush came back before the work was done");
        };
        let other = thread::spawn(flush);
        flush();
        other.join().expect("the other flush ends");
    });
}

/// Notes its own end where a late reader would see it.
struct Canary(&'static AtomicUsize);

impl Canary {
    fn new() -> Self {
        Canary(Box::leak(Box::new(AtomicUsize::new(1))))
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        assert_eq!(self.0.swap(0, Ordering::Relaxed), 1, "freed twice");
    }
}

#[test]
fn a_replaced_value_is_dropped_only_after_its_readers() {
    explore(3, || {
        let domain = &*Box::leak(Box::new(Domain::new()));
        let cell = Arc::new(RcuCell::new(domain, Canary::new()));
        let other = cell.clone();
        let reader = thread::spawn(move || {
            let guard = other.read();
            assert_eq!(other.load(&guard).0.load(Ordering::Relaxed), 1, "freed under a reader");
        });
        // A batch is two: the second finds that the first, the replaced values, needs a period, the third whether it is over.
        (0..2).for_each(|_| cell.replace(Canary::new()));
        (0..4).for_each(|_| domain.defer(|| ()));
        reader.join().expect("the reader ends");
    });
}

/// The remover asks for the number of the next period, which the reader starts before it reads, as `starts` does it.
fn done_after_a_period_of_another(starts: fn(&Domain), deferred: usize) {
    seed_mutant(None);
    explore(3, move || {
        let domain = &*Box::leak(Box::new(Domain::new()));
        let cell = Arc::new(RcuCell::new(domain, Canary::new()));
        let other = cell.clone();
        let reader = thread::spawn(move || {
            starts(domain);
            let guard = domain.read();
            assert_eq!(other.load(&guard).0.load(Ordering::Relaxed), 1, "freed under a reader");
        });
        cell.replace(Canary::new());
        (0..deferred).for_each(|_| domain.defer(|| ()));
        reader.join().expect("the reader ends");
    });
}

#[test]
fn what_was_deferred_is_done_after_a_period_that_another_saw_to_its_end() {
    // A batch is two: the first is full, and the second looks whether that may be done.
    done_after_a_period_of_another(Domain::synchronize, 3);
}

#[test]
fn what_was_deferred_is_done_after_a_period_that_another_only_started() {
    // The second batch finds that it was started, the third whether it is over.
    done_after_a_period_of_another(|domain| _ = domain.start(), 5);
}
