//! Models of values with a short form: nothing that is done to one form is missed in the other.

use crate::model::explore;
use loom::thread;
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::{Inflatable, Inflate, LockClass};

/// A count. Only an even one can be said in short.
#[derive(Default)]
struct Count(u32);

impl Inflate for Count {
    type Short = u32;

    fn inflate(&mut self, short: &u32) {
        assert_eq!(self.0, 0, "it was deflated last");
        self.0 = *short;
    }

    fn deflate(&mut self) -> Option<u32> {
        self.0.is_multiple_of(2).then(|| std::mem::take(&mut self.0))
    }
}

static COUNT: LockClass = LockClass::new("model.count");

/// A count that outlives its execution: one that is seeded with a fault dies in the middle.
fn leak() -> &'static Inflatable<Count> {
    Box::leak(Box::new(Inflatable::with_class(&COUNT, 0, Count::default())))
}

/// Adds two, in short where that can be done.
fn add_two(count: &Inflatable<Count>) {
    match count.try_short() {
        Some(mut short) => *short += 2,
        None => count.lock().0 += 2,
    }
}

/// Adds one twice: the count is whole in between, and in short before and after.
fn add_one_twice(count: &Inflatable<Count>) {
    count.lock().0 += 1;
    count.lock().0 += 1;
}

fn a_thread_in_short_meets_one_that_inflates() {
    explore(3, || {
        let count = leak();
        let other = thread::spawn(|| add_one_twice(count));
        add_two(count);
        add_two(count);
        other.join().expect("the thread ends");
        assert_eq!(count.lock().0, 6);
        assert_eq!(count.try_short().as_deref(), Some(&6), "an even count is left in short");
    });
}

#[test]
fn what_is_done_in_short_and_to_the_whole_adds_up() {
    seed_mutant(None);
    a_thread_in_short_meets_one_that_inflates();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_short_form_given_back_without_release_is_found() {
    seed_mutant(Some(Mutant::ShortWithoutRelease));
    a_thread_in_short_meets_one_that_inflates();
}

#[test]
fn three_threads_each_find_what_the_others_did() {
    explore(2, || {
        let count = leak();
        let threads = [thread::spawn(|| add_two(count)), thread::spawn(|| add_one_twice(count))];
        add_two(count);
        threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        assert_eq!(count.lock().0, 6);
    });
}

#[test]
fn a_value_that_cannot_be_said_in_short_stays_whole() {
    explore(2, || {
        let count = leak();
        count.lock().0 = 1;
        assert!(count.try_short().is_none());
        let other = thread::spawn(|| add_two(count));
        add_two(count);
        other.join().expect("the thread ends");
        assert!(count.try_short().is_none());
        assert_eq!(count.lock().0, 5);
    });
}
