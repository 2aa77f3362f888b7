//! Models of the parking facility itself.

use sluice_sync_loom::atomic::{AtomicU32, Ordering};
use sluice_sync_loom::face::futex;

#[test]
fn a_sleeper_never_misses_the_store_made_before_the_wake() {
    loom::model(|| {
        let word = loom::sync::Arc::new(AtomicU32::new(0));
        let other = word.clone();
        let waker = loom::thread::spawn(move || {
            other.store(1, Ordering::Relaxed);
            futex::wake(&other, 1);
        });
        while word.load(Ordering::Relaxed) == 0 {
            futex::wait(&word, 0, None);
        }
        waker.join().expect("the waker ends");
    });
}
