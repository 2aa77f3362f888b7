//! Tests of the spin locks: the same body over each.

use super::*;
use sluice_sync::{face, thread};

/// The same body over every lock.
macro_rules! with_locks {
    ($($name:ident: $raw:ty,)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn many_threads_count_without_losing_one() {
                let lock: SpinLock<u32, $raw> = SpinLock::new(0);
                let rounds = if face::SHRUNK { 20 } else { 2_000 };
                thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(|| (0..rounds).for_each(|_| *lock.lock() += 1));
                    }
                });
                assert_eq!(lock.into_inner(), 4 * rounds);
            }

            #[test]
            fn try_lock_refuses_a_held_lock() {
                let lock: SpinLock<u32, $raw> = SpinLock::new(0);
                let guard = lock.lock();
                assert!(lock.try_lock().is_none());
                drop(guard);
                assert_eq!(lock.try_lock().map(|guard| *guard), Some(0));
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

#[test]
fn queue_locks_nest_and_let_go_in_any_order() {
    let (one, two, three) = (Mcs::new(), Cna::new(), Mcs::new());
    let (a, b, c) = (one.lock(), two.lock(), three.lock());
    one.unlock(a);
    let d = one.try_lock().expect("free again");
    three.unlock(c);
    two.unlock(b);
    one.unlock(d);
}
