//! Models of the combining lock: each section runs once, alone, and its result reaches its caller.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_lock_zoo_loom::CombiningLock;

fn count(preemptions: usize, threads: usize, rounds: usize) {
    explore(preemptions, move || {
        let lock = Arc::new(CombiningLock::new(0));
        let body = move |lock: &CombiningLock<usize>| {
            for _ in 0..rounds {
                let (before, after) = lock.with(|value| {
                    let before = *value;
                    *value += 1;
                    (before, *value)
                });
                assert_eq!(before + 1, after);
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || body(&lock))
            })
            .collect();
        body(&lock);
        others.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        assert_eq!(lock.with(|value| *value), threads * rounds);
    });
}

#[test]
fn two_threads_run_sections_for_each_other() {
    count(3, 2, 2);
}

#[test]
fn three_threads_pass_the_role_on() {
    count(2, 3, 1);
}
