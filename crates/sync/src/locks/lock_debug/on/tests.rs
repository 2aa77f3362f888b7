//! Tests of lock debugging: what is reported, what is not, what is counted.

use super::{collect_stats, lock_stats, observed_order, reset_lock_stats};
use crate::face::SHRUNK;
use crate::lock_debug::{Ask, ClassStats, Watch};
use crate::spin::SpinLock;
use crate::{Arc, BrLock, Condvar, LockClass, Mutex, NameTable, RwLock, rcu, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The finding of the order check on `f`, if any. Classes of other tests do not matter.
fn finding_of(f: impl FnOnce()) -> Option<String> {
    let caught = catch_unwind(AssertUnwindSafe(f)).err()?;
    Some(*caught.downcast::<String>().expect("a finding is text"))
}

#[test]
fn two_orders_of_two_classes_are_reported_with_both_stacks() {
    static OUTER: LockClass = LockClass::new("test.cycle.outer");
    static INNER: LockClass = LockClass::new("test.cycle.inner");
    let (outer, inner) = (Mutex::with_class(&OUTER, ()), Mutex::with_class(&INNER, ()));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _outer = outer.lock();
            let _inner = inner.lock();
        });
    });
    // Other locks of the same classes, and nobody waits for anybody.
    let (outer, inner) = (Mutex::with_class(&OUTER, ()), Mutex::with_class(&INNER, ()));
    let finding = finding_of(|| {
        let _inner = inner.lock();
        let _outer = outer.lock();
    })
    .expect("the cycle is found");
    assert!(finding.contains("test.cycle.outer is taken under test.cycle.inner"), "{finding}");
    let (now, before) = finding.split_once("before, thread").expect("two stacks");
    assert!(now.contains("took test.cycle.outer") && now.contains("1. test.cycle.inner"), "{finding}");
    assert!(before.contains("took test.cycle.inner") && before.contains("1. test.cycle.outer"), "{finding}");
    assert_eq!(
        finding.matches(" exclusively at crates/sync/src/locks/lock_debug/").count(),
        4,
        "where each was taken: {finding}"
    );
}

#[test]
fn a_cycle_of_three_classes_is_found_and_the_lock_stays_usable() {
    let (a, b, c) = (RwLock::new(()), Mutex::new(()), Mutex::new(()));
    let in_order = [finding_of(|| drop((a.read(), b.lock()))), finding_of(|| drop((b.lock(), c.lock())))];
    assert_eq!(in_order, [None, None]);
    let finding = finding_of(|| drop((c.lock(), a.write()))).expect("the cycle is found");
    assert_eq!(finding.matches("before, thread").count(), 2, "{finding}");
    assert!(a.try_write().is_some() && b.try_lock().is_some() && c.try_lock().is_some());
}

#[test]
fn locks_of_one_class_need_levels_and_levels_have_an_order() {
    let dirs: Vec<_> = (0..2).map(|_| RwLock::new(())).collect();
    let finding = finding_of(|| drop((dirs[0].write(), dirs[1].write()))).expect("the same class twice");
    assert!(finding.contains("of a class and level that this thread holds already"), "{finding}");
    assert_eq!(finding_of(|| drop((dirs[0].write(), dirs[1].write_nested(1)))), None);
    assert!(finding_of(|| drop((dirs[0].write_nested(1), dirs[1].write()))).is_some());
}

#[test]
fn names_of_two_tables_need_levels_and_two_of_one_table_are_locked_at_once() {
    static NAMES: LockClass = LockClass::new("test.names");
    let tables: Vec<_> = (0..2).map(|_| NameTable::<u32>::with_class(&NAMES, rcu::domain())).collect();
    assert_eq!(finding_of(|| _ = tables[0].with_two_locked((1 << 60, b"a"), (2 << 60, b"b"), |_| ())), None);
    let pair = || drop((tables[0].lock(0, b"a"), tables[1].lock_nested(0, b"b", 1)));
    assert_eq!(finding_of(pair), None);
    let finding = finding_of(|| drop((tables[0].lock(0, b"a"), tables[1].lock(0, b"b")))).expect("found");
    assert!(finding.contains("test.names") && finding.contains("of a class and level"), "{finding}");
}

#[test]
fn a_thread_that_takes_a_lock_twice_is_stopped_before_it_waits_for_itself() {
    let mutex = Mutex::new(());
    let finding = finding_of(|| drop((mutex.lock(), mutex.lock_nested(1)))).expect("found");
    assert!(finding.contains("may wait for itself"), "{finding}");
    let rwlock = RwLock::new(());
    assert!(finding_of(|| drop((rwlock.read(), rwlock.read()))).is_some(), "a writer may stand between");
    let br = BrLock::new(());
    assert_eq!(finding_of(|| drop((br.read(), br.read()))), None, "a big reader goes a level deeper");
}

#[test]
fn trying_makes_no_edge_but_what_is_taken_after_it_does() {
    let (a, b, c) = (Mutex::new(()), Mutex::new(()), Mutex::new(()));
    assert_eq!(finding_of(|| drop((a.lock(), b.lock()))), None);
    assert_eq!(finding_of(|| drop((b.lock(), a.try_lock()))), None, "it does not wait");
    // c is taken under b and, though a was only tried for, under a.
    assert_eq!(finding_of(|| drop((b.lock(), a.try_lock(), c.lock()))), None);
    assert!(finding_of(|| drop((c.lock(), a.lock()))).is_some());
    assert!(finding_of(|| drop((c.lock(), b.lock()))).is_some());
}

#[test]
fn a_lock_let_go_out_of_order_is_no_longer_held() {
    static FIRST: LockClass = LockClass::new("test.out_of_order.first");
    static LAST: LockClass = LockClass::new("test.out_of_order.last");
    let (first, second) = (Mutex::with_class(&FIRST, ()), Mutex::new(()));
    let held = (first.lock(), second.lock());
    drop(held.0);
    drop(Mutex::with_class(&LAST, ()).lock());
    drop(held.1);
    let before: Vec<_> = observed_order().into_iter().filter(|edge| edge.after == LAST.name()).collect();
    assert_eq!(before.len(), 1);
    assert_ne!(before[0].before, FIRST.name());
}

#[test]
fn waiting_for_a_condition_takes_the_mutex_again_under_what_is_held() {
    let (outer, mutex, condvar) = (Mutex::new(()), Mutex::new(()), Condvar::new());
    let finding = finding_of(|| {
        let guard = mutex.lock();
        let _outer = outer.lock();
        drop(condvar.wait(guard));
    })
    .expect("the mutex is taken again under the outer one");
    assert!(finding.contains("the other way round"), "{finding}");
    assert!(mutex.try_lock().is_some(), "the guard let go once");
}

#[test]
fn sleeping_under_a_spin_lock_is_reported() {
    let (spin, mutex) = (SpinLock::<()>::new(()), Mutex::new(()));
    let finding = finding_of(|| drop((spin.lock(), mutex.lock()))).expect("found");
    assert!(finding.contains("under a spin lock"), "{finding}");
    assert_eq!(finding_of(|| drop((mutex.lock(), spin.lock()))), None);
}

#[test]
fn a_downgraded_lock_stays_held_until_its_guard_goes() {
    static OUTER: LockClass = LockClass::new("test.downgrade.outer");
    static INNER: LockClass = LockClass::new("test.downgrade.inner");
    let (outer, inner) = (RwLock::with_class(&OUTER, ()), Mutex::with_class(&INNER, ()));
    let guard = outer.write().downgrade();
    drop(inner.lock());
    drop(guard);
    assert_eq!(finding_of(|| drop(inner.lock())), None);
    let seen = observed_order();
    assert!(seen.iter().any(|edge| edge.before == OUTER.name() && edge.after == INNER.name()));
}

/// Statistics are switched on for the whole process: tests that look at them take turns.
static TURN: Mutex<()> = Mutex::new(());

fn stats_of(class: &LockClass) -> Option<ClassStats> {
    lock_stats().into_iter().find(|stats| stats.class == class.name())
}

#[test]
fn every_acquisition_is_counted_by_class_and_place() {
    static COUNTED: LockClass = LockClass::new("test.stats.counted");
    let _turn = TURN.lock();
    collect_stats(true);
    let lock = Arc::new(RwLock::with_class(&COUNTED, 0u64));
    let (writes, reads) = if SHRUNK { (10, 5) } else { (100, 50) };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..writes).for_each(|_| *lock.write() += 1));
        }
    });
    (0..reads).for_each(|_| drop(lock.read()));
    drop(lock.try_read());
    collect_stats(false);
    drop(lock.read());
    let stats = stats_of(&COUNTED).expect("the class was used");
    let all = 4 * writes + reads + 1;
    assert_eq!((stats.acquisitions, stats.hold.count), (all, all));
    assert_eq!(stats.hold.buckets.iter().map(|(_, count)| count).sum::<u64>(), all);
    let mut at: Vec<_> = stats.sites.iter().map(|site| site.acquisitions).collect();
    at.sort_unstable();
    assert_eq!(at, [1, reads, 4 * writes]);
    assert_eq!(stats.wait.count, stats.contentions);
    reset_lock_stats();
    assert!(stats_of(&COUNTED).is_none());
}

#[test]
fn a_wait_is_counted_with_its_length_and_its_place() {
    static WAITED: LockClass = LockClass::new("test.stats.waited");
    let _turn = TURN.lock();
    collect_stats(true);
    let watch = Watch::class(&WAITED);
    let (got, held) = watch.lock(Ask::WRITE, || None, || 7);
    drop(held);
    drop(watch.lock(Ask::READ, || Some(8), || 9).1);
    collect_stats(false);
    let stats = stats_of(&WAITED).expect("the class was used");
    assert_eq!((got, stats.acquisitions, stats.contentions, stats.wait.count), (7, 2, 1, 1));
    assert_eq!((stats.wait.total_ns, stats.sites[0].wait_ns), (stats.wait.max_ns, stats.wait.max_ns));
    assert_eq!((stats.sites[0].contentions, stats.sites[1].contentions), (1, 0));
}
