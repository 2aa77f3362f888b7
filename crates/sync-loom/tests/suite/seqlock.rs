//! Models of the sequence count and lock: no torn read.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::atomic::{AtomicU64, Ordering};
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::{SeqCount, SeqLock};

fn a_writer_writes_twice_beside_a_reader() {
    explore(3, || {
        let shared: &'static _ = Box::leak(Box::new((SeqCount::new(), AtomicU64::new(0), AtomicU64::new(0))));
        let (count, first, second) = shared;
        let writer = thread::spawn(|| {
            for value in 1..3 {
                let _writing = count.write();
                first.store(value, Ordering::Relaxed);
                second.store(value, Ordering::Relaxed);
            }
        });
        if let Some(sequence) = count.try_begin() {
            let pair = (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
            if !count.retry(sequence) {
                assert_eq!(pair.0, pair.1, "torn");
                assert_eq!(pair.0, u64::from(sequence / 2), "not what that write left");
            }
        }
        writer.join().expect("the writer ends");
    });
}

#[test]
fn an_accepted_read_is_never_torn() {
    seed_mutant(None);
    a_writer_writes_twice_beside_a_reader();
}

#[test]
#[should_panic(expected = "torn")]
fn a_second_look_without_its_fence_is_found() {
    seed_mutant(Some(Mutant::RetryWithoutFence));
    a_writer_writes_twice_beside_a_reader();
}

#[test]
fn two_writers_and_a_reader_that_falls_back_to_their_lock() {
    explore(3, || {
        let lock = Arc::new(SeqLock::new([0u64; 2]));
        let other = lock.clone();
        let writer = thread::spawn(move || {
            other.update(|[a, b]| [a + 1, b + 1]);
        });
        let [a, b] = lock.read();
        assert_eq!(a, b);
        lock.update(|[a, b]| [a + 1, b + 1]);
        writer.join().expect("the writer ends");
        assert_eq!(lock.read(), [2, 2]);
    });
}
