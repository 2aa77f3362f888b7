//! Seeded faults: a model that cannot find these proves nothing.

use crate::model::explore;
use loom::thread;
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::{Mutex, RwLock};

/// A value that outlives its execution: a test that dies in mid-execution must not run loom's destructors.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn three_threads_count_under_a_mutex() {
    explore(2, || {
        let mutex = leak(Mutex::new(0));
        let threads: Vec<_> = (0..2).map(|_| thread::spawn(|| *mutex.lock() += 1)).collect();
        *mutex.lock() += 1;
        threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        assert_eq!(*mutex.lock(), 3);
    });
}

#[test]
fn the_model_passes_without_a_fault() {
    seed_mutant(None);
    three_threads_count_under_a_mutex();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_unlock_without_release_is_found() {
    seed_mutant(Some(Mutant::UnlockWithoutRelease));
    three_threads_count_under_a_mutex();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_forgotten_waiter_is_found() {
    seed_mutant(Some(Mutant::WaitersForgotten));
    three_threads_count_under_a_mutex();
}

fn two_writers_and_a_reader_share_an_rwsem() {
    explore(2, || {
        let lock = leak(RwLock::new(0));
        let threads = [thread::spawn(|| *lock.write() += 1), thread::spawn(|| assert!(*lock.read() <= 2))];
        *lock.write() += 1;
        threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        assert_eq!(*lock.read(), 2);
    });
}

#[test]
fn the_rwsem_passes_without_a_fault() {
    seed_mutant(None);
    two_writers_and_a_reader_share_an_rwsem();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_phantom_that_leaves_quietly_is_found() {
    seed_mutant(Some(Mutant::PhantomLeavesQuietly));
    two_writers_and_a_reader_share_an_rwsem();
}
