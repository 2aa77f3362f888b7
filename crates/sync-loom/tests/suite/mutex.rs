//! Models of the mutex and the condition variable: exclusion, no lost wake-up, hand-off.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use sluice_sync_loom::{Condvar, Mutex};

fn spawn(f: impl FnOnce() + 'static) -> JoinHandle<()> {
    thread::spawn(f)
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
}

/// The value is a checked cell: two owners at once would be reported as a race.
#[test]
fn two_threads_exclude_each_other_and_none_sleeps_for_ever() {
    explore(3, || {
        let mutex = Arc::new(Mutex::new(0));
        let other = mutex.clone();
        let thread = spawn(move || {
            *other.lock() += 1;
            *other.lock() += 1;
        });
        *mutex.lock() += 1;
        join(vec![thread]);
        assert_eq!(*mutex.lock(), 3);
    });
}

/// The third thread may steal ahead of a sleeper; the bound on bypassing is 1 here, so hand-off is explored.
#[test]
fn three_threads_share_by_stealing_and_by_hand_off() {
    explore(2, || {
        let mutex = Arc::new(Mutex::new(0));
        let threads = (0..2)
            .map(|_| {
                let mutex = mutex.clone();
                spawn(move || *mutex.lock() += 1)
            })
            .collect();
        *mutex.lock() += 1;
        join(threads);
        assert_eq!(*mutex.lock(), 3);
    });
}

#[test]
fn try_lock_never_enters_beside_an_owner() {
    explore(3, || {
        let mutex = Arc::new(Mutex::new(0));
        let other = mutex.clone();
        let thread = spawn(move || {
            if let Some(mut value) = other.try_lock() {
                *value += 1;
            }
        });
        *mutex.lock() += 1;
        join(vec![thread]);
        assert!(*mutex.lock() >= 1);
    });
}

#[test]
fn a_notified_waiter_wakes() {
    explore(2, || {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let other = pair.clone();
        let thread = spawn(move || {
            *other.0.lock() = true;
            other.1.notify_one();
        });
        let mut ready = pair.0.lock();
        while !*ready {
            ready = pair.1.wait(ready);
        }
        drop(ready);
        join(vec![thread]);
    });
}
