//! Models of the big-reader lock: exclusion, no lost wake-up.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use sluice_sync_loom::BrLock;
use sluice_sync_loom::face::{Mutant, seed_mutant};

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
}

#[test]
fn a_reader_never_sees_half_of_a_write() {
    explore(3, || {
        let lock = Arc::new(BrLock::new((0, 0)));
        let other = lock.clone();
        let writer = thread::spawn(move || {
            let mut pair = other.write();
            pair.0 += 1;
            pair.1 += 1;
        });
        for _ in 0..2 {
            let pair = lock.read();
            assert_eq!(pair.0, pair.1);
        }
        join(vec![writer]);
        assert_eq!(*lock.read(), (1, 1));
    });
}

#[test]
fn a_writer_and_two_readers_all_get_their_turn() {
    explore(2, || {
        let lock = Arc::new(BrLock::new(0));
        let threads = (0..2)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || assert!(*lock.read() <= 1))
            })
            .collect();
        *lock.write() += 1;
        join(threads);
        assert_eq!(*lock.read(), 1);
    });
}

#[test]
fn two_writers_and_a_nested_reader_all_get_their_turn() {
    explore(2, || {
        let lock = Arc::new(BrLock::new(0));
        let threads = (0..2)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || *lock.write() += 1)
            })
            .collect();
        {
            let outer = lock.read();
            assert_eq!(*outer, *lock.read());
        }
        join(threads);
        assert_eq!(*lock.read(), 2);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_reader_without_its_barrier_is_found() {
    seed_mutant(Some(Mutant::AnnounceWithoutBarrier));
    explore(3, || {
        let lock: &'static BrLock<u32> = Box::leak(Box::new(BrLock::new(0)));
        let writer = thread::spawn(|| *lock.write() += 1);
        assert!(*lock.read() <= 1);
        join(vec![writer]);
    });
}
