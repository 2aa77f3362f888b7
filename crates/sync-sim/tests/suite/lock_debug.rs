//! Lock debugging disturbs nothing: what a lock costs is the same with it and without it.
//!
//! These tests hold in both builds: `cargo test -p sluice-sync-sim --features lock-debug --test suite lock_debug::` is the other.

use sluice_machine::Machine;
use sluice_sync_sim::lock_debug::{BYTES_PER_LOCK, COMPILED_IN, check_order, collect_stats};
use sluice_sync_sim::{BrLock, Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// How often one CPU reaches for memory in a call of `section`, when it has called it before.
fn accesses(section: impl Fn()) -> u64 {
    let machine = Machine::named("uma-2");
    let of = |calls: usize| machine.run(1, |_| (0..calls).for_each(|_| section())).accesses();
    (of(101) - of(1)) / 100
}

#[test]
fn an_uncontended_lock_and_unlock_are_two_accesses_whether_watched_or_not() {
    let (mutex, rwlock, br) = (Mutex::new(()), RwLock::new(()), BrLock::new(()));
    for on in [false, true] {
        check_order(on);
        collect_stats(on);
        assert_eq!(accesses(|| drop(mutex.lock())), 2);
        assert_eq!(accesses(|| drop(rwlock.write())), 2);
        assert_eq!(accesses(|| drop(rwlock.read())), 2);
        // The own word twice each way, the writers' flag, and whether somebody sleeps.
        assert_eq!(accesses(|| drop(br.read())), 6);
    }
}

#[test]
fn locks_and_guards_know_their_class_only_where_it_is_compiled_in() {
    assert_eq!(BYTES_PER_LOCK == 0, !COMPILED_IN);
    if !COMPILED_IN {
        // A word, the line of spinners, the queue of sleepers, and the value.
        assert_eq!(size_of::<Mutex<u64>>(), 4 + 4 + 16 + 8);
        assert_eq!(size_of::<RwLock<u64>>(), 8 + 4 + 16 + 4 + 8);
        assert_eq!(size_of::<MutexGuard<'_, u64>>(), size_of::<usize>());
        assert_eq!(size_of::<RwLockReadGuard<'_, u64>>(), size_of::<usize>());
    }
}
