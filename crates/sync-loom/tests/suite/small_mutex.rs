//! Models of the small mutex: exclusion, and no lost wake-up.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::{LockClass, SmallMutex};

static CLASS: LockClass = LockClass::new("model");

/// The value is a checked cell: two owners at once would be reported as a race, and a wake-up that is lost as a deadlock.
#[test]
fn threads_exclude_each_other_and_none_sleeps_for_ever() {
    for (threads, preemptions) in [(1, 3), (2, 2)] {
        explore(preemptions, move || {
            let mutex = Arc::new(SmallMutex::with_class(&CLASS, 0));
            let others: Vec<_> = (0..threads)
                .map(|_| {
                    let mutex = mutex.clone();
                    thread::spawn(move || {
                        *mutex.lock() += 1;
                        *mutex.lock() += 1;
                    })
                })
                .collect();
            *mutex.lock() += 1;
            others.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
            assert_eq!(*mutex.lock(), 1 + 2 * threads);
        });
    }
}
