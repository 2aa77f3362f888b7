//! Shared ownership and first use, as the machine sees them.

use sluice_machine::{Machine, clear_labels, name_objects};
use sluice_sync_sim::atomic::{AtomicU32, Ordering};
use sluice_sync_sim::{Arc, LazyLock, OnceLock, Weak};

struct Inode {
    links: AtomicU32,
}

#[test]
fn holding_one_object_from_two_cpus_is_a_conflict_that_bears_its_name() {
    let machine = Machine::named("uma-2");
    name_objects(true);
    let inode = machine.prepare(2, || Arc::new(Inode { links: AtomicU32::new(1) }));
    name_objects(false);
    let hold = || drop(inode.clone());
    let conflicts = machine.conflicts(hold, hold).unwrap();
    assert_eq!(conflicts.lines.len(), 1);
    assert_eq!(conflicts.lines[0].labels(), ["Inode.refcount"]);
    // The count lies on the line of the first fields, so CPUs that only look at these wait for it too.
    let look = || assert_eq!(inode.links.load(Ordering::Relaxed), 1);
    let conflicts = machine.conflicts(hold, look).unwrap();
    assert!(conflicts.lines[0].is_false_sharing());
    assert_eq!(conflicts.lines[0].labels(), ["Inode.refcount", "Inode"]);
    assert!(machine.conflicts(look, look).unwrap().is_empty());
    clear_labels();
}

#[test]
fn counts_are_those_of_std() {
    let machine = Machine::named("uma-2");
    machine.run(1, |_| {
        let mut one = Arc::new(5);
        *Arc::get_mut(&mut one).unwrap() = 6;
        let weak: Weak<i32> = Arc::downgrade(&one);
        let mut two = weak.upgrade().unwrap();
        assert_eq!((Arc::strong_count(&one), Arc::ptr_eq(&one, &two)), (2, true));
        *Arc::make_mut(&mut two) = 7;
        assert_eq!((*one, *two), (6, 7));
        assert_eq!(Arc::into_inner(one), Some(6));
        assert!(weak.upgrade().is_none());
        let list: Arc<[u32]> = Arc::from([1, 2, 3]);
        assert_eq!(list.len(), 3);
    });
}

#[test]
fn one_cpu_makes_the_value_and_the_others_wait_for_it() {
    static MADE: AtomicU32 = AtomicU32::new(0);
    static LAZY: LazyLock<u32> = LazyLock::new(|| {
        sluice_machine::work(10_000);
        MADE.fetch_add(1, Ordering::Relaxed) + 41
    });
    let once = OnceLock::new();
    Machine::named("skylake-4").run(4, |cpu| {
        let value = *once.get_or_init(|| {
            cpu.work(10_000);
            cpu.id()
        });
        assert_eq!(once.get(), Some(&value));
        assert_eq!(once.set(9), Err(9));
        assert_eq!(*LAZY, 41);
    });
    assert_eq!(MADE.load(Ordering::Relaxed), 1);
}
