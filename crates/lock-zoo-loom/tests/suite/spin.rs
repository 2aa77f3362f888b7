//! Models of the spin locks: exclusion and hand-over, for two threads, and for three so that queues form.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_lock_zoo_loom::{
    BareMetal, Cna, Mcs, MutualExclusion, Paravirtual, Queued, SpinLock, Tas, TicketLock, Ttas,
    VirtualTestAndSet,
};

/// Every thread takes the lock `rounds` times; the value is a checked cell.
fn count<R: MutualExclusion + 'static>(preemptions: usize, threads: usize, rounds: usize) {
    explore(preemptions, move || {
        let lock: Arc<SpinLock<usize, R>> = Arc::new(SpinLock::new(0));
        let body = move |lock: &SpinLock<usize, R>| (0..rounds).for_each(|_| *lock.lock() += 1);
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || body(&lock))
            })
            .collect();
        body(&lock);
        others.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        assert_eq!(*lock.lock(), threads * rounds);
    });
}

fn try_beside_an_owner<R: MutualExclusion + 'static>() {
    explore(3, || {
        let lock: Arc<SpinLock<usize, R>> = Arc::new(SpinLock::new(0));
        let other = lock.clone();
        let thread = thread::spawn(move || {
            if let Some(mut value) = other.try_lock() {
                *value += 1;
            }
        });
        *lock.lock() += 1;
        thread.join().expect("the thread ends");
        assert!(*lock.lock() >= 1);
    });
}

macro_rules! with_locks {
    ($($name:ident: $raw:ty,)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn two_threads_exclude_each_other() {
                count::<$raw>(3, 2, 2);
            }

            #[test]
            fn three_threads_exclude_each_other() {
                count::<$raw>(2, 3, 1);
            }

            #[test]
            fn try_lock_never_enters_beside_an_owner() {
                try_beside_an_owner::<$raw>();
            }
        }
    )*};
}

with_locks! {
    tas: Tas,
    ttas: Ttas,
    ticket: TicketLock,
    mcs: Mcs,
    cna: Cna,
    queued: Queued<BareMetal>,
    queued_pv: Queued<Paravirtual>,
    queued_virt_tas: Queued<VirtualTestAndSet>,
}
