//! Models of the name table: what stays is found and listed once, and a table dies empty or not at all.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::NameTable;
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::name_table::LockedPair;
use sluice_sync_loom::rcu::Domain;

/// A table of one bucket, of which the upper half of the hashes is moved to a second one.
fn table(names: &[(u64, &[u8])]) -> Arc<NameTable<u64>> {
    table_in(Box::leak(Box::default()), names)
}

/// The table of [`table`], with readers of `domain`.
fn table_in(domain: &'static Domain, names: &[(u64, &[u8])]) -> Arc<NameTable<u64>> {
    let table = Arc::new(NameTable::new(domain));
    names.iter().for_each(|(hash, name)| assert!(insert(&table, *hash, name)));
    table
}

fn insert(table: &NameTable<u64>, hash: u64, name: &[u8]) -> bool {
    table.lock(hash, name).is_some_and(|mut entry| entry.insert(hash, 0).is_ok())
}

fn remove(table: &NameTable<u64>, hash: u64, name: &[u8]) -> bool {
    table.lock(hash, name).is_some_and(|mut entry| entry.remove().is_some())
}

const LOW: u64 = 1 << 44;
const HIGH: u64 = 1 << 63;

#[test]
fn names_that_stay_are_listed_once_while_the_bucket_is_moved() {
    seed_mutant(None);
    explore(2, || {
        let table = table(&[(LOW, b"low"), (HIGH, b"high")]);
        let other = table.clone();
        let reader = thread::spawn(move || {
            let guard = other.read();
            let seen = other.after(0, &guard).filter(|(_, name, _)| *name == b"low" || *name == b"high");
            assert_eq!(seen.count(), 2);
            assert_eq!(other.get(HIGH, b"high", &guard), Some(&HIGH));
        });
        assert!(table.grow());
        // The write after which the one bucket is moved.
        assert!(insert(&table, LOW, b"twin"));
        assert!(remove(&table, LOW, b"twin"));
        reader.join().expect("the reader ends");
        assert_eq!(table.len(), 2);
    });
}

/// A table of two buckets with these names, one bucket for the hashes from [`HIGH`] on.
fn grown(names: &[(u64, &[u8])]) -> Arc<NameTable<u64>> {
    let table = table(names);
    assert!(table.grow());
    // The write after which the one bucket is moved.
    assert!(insert(&table, LOW, b"twin") && remove(&table, LOW, b"twin"));
    table
}

#[test]
fn names_that_stay_are_listed_once_while_one_before_them_comes_and_goes() {
    seed_mutant(None);
    explore(2, || {
        let table = grown(&[(LOW, b"goes"), (LOW + (1 << 46), b"stays"), (HIGH, b"high")]);
        let other = table.clone();
        let reader = thread::spawn(move || {
            let guard = other.read();
            let seen = other.after(0, &guard).filter(|(_, name, _)| *name != b"goes");
            assert_eq!(seen.count(), 2);
        });
        assert!(remove(&table, LOW, b"goes") && insert(&table, LOW, b"goes"));
        reader.join().expect("the reader ends");
    });
}

#[test]
fn a_name_that_a_lookup_found_is_listed_although_its_bucket_was_never_used() {
    seed_mutant(None);
    explore(3, || {
        let table = grown(&[(LOW, b"low")]);
        let other = table.clone();
        let reader = thread::spawn(move || {
            let guard = other.read();
            let expected = if other.get(HIGH, b"high", &guard).is_some() { 2..=2 } else { 1..=2 };
            let listed = other.after(0, &guard).count();
            assert!(expected.contains(&listed), "found and not listed");
        });
        assert!(insert(&table, HIGH, b"high"));
        reader.join().expect("the reader ends");
    });
}

/// A name stays, another comes on one CPU and goes on another, while a sum is made.
fn a_sum_beside_a_name_that_comes_and_goes() {
    // Whichever of the two CPUs' counts is looked at first.
    for has_slot_first in [false, true] {
        explore(2, move || {
            let table = grown(&[(HIGH, b"stays")]);
            let other = table.clone();
            let thread = thread::spawn(move || {
                if has_slot_first {
                    drop(other.read());
                }
                let first = other.clone();
                let thread = thread::spawn(move || assert!(insert(&first, LOW, b"comes")));
                thread.join().expect("the name comes");
                assert!(remove(&other, LOW, b"comes"));
            });
            let sum = table.len();
            thread.join().expect("the name goes");
            let left = table.len();
            // A failing assertion must not run destructors outside the execution.
            drop(table);
            assert!((1..=2).contains(&sum), "never were there {sum} names");
            assert_eq!(left, 1);
        });
    }
}

#[test]
fn a_sum_is_of_one_moment_whichever_cpus_count() {
    seed_mutant(None);
    a_sum_beside_a_name_that_comes_and_goes();
}

#[test]
#[should_panic(expected = "never were there")]
fn a_sum_of_several_moments_is_found() {
    seed_mutant(Some(Mutant::SummedInOneLook));
    a_sum_beside_a_name_that_comes_and_goes();
}

#[test]
fn names_are_counted_once_while_they_are_moved() {
    seed_mutant(None);
    // From a bucket that counts to CPUs, and from CPUs to CPUs.
    for is_grown in [false, true] {
        explore(2, move || {
            let domain: &Domain = Box::leak(Box::default());
            let table = table_in(domain, &[(LOW, b"low"), (HIGH, b"high")]);
            if is_grown {
                assert!(table.grow());
                table.help();
                domain.flush();
            }
            assert!(table.grow());
            let other = table.clone();
            let reader = thread::spawn(move || other.len());
            // Each moves a bucket.
            table.help();
            assert!(remove(&table, LOW, b"low"));
            let (sum, left) = (reader.join().expect("the reader ends"), table.len());
            drop(table);
            assert!((1..=2).contains(&sum), "never were there {sum} names");
            assert_eq!(left, 1);
        });
    }
}

/// The value that a lookup of `name` finds.
fn value(table: &NameTable<u64>, (hash, name): (u64, &[u8])) -> Option<u64> {
    table.get(hash, name, &table.read()).copied()
}

const OLD: (u64, &[u8]) = (LOW, b"old");
const NEW: (u64, &[u8]) = (HIGH, b"new");
/// A name of another hash than [`OLD`], in its bucket.
const BESIDE: (u64, &[u8]) = (LOW + (1 << 46), b"beside");

type Move = fn(&mut LockedPair<'_, u64>) -> bool;

const RENAME: Move = |both| both.rename();
const EXCHANGE: Move = |both| both.exchange();
const RENAME_LEAVING: Move = |both| both.rename_leaving(0, 0);

/// Two lookups beside a move from `names[0]` to `names[1]`; what they say before and after it.
fn looked_up_beside_a_move(
    names: [(u64, &'static [u8]); 2],
    there: &'static [(u64, &'static [u8])],
    act: Move,
) {
    for looks in [[0, 1], [1, 0]] {
        explore(2, move || {
            let table = grown(there);
            let look = move |table: &NameTable<u64>| looks.map(|at| value(table, names[at]));
            let before = look(&table);
            let other = table.clone();
            let reader = thread::spawn(move || look(&other));
            let moved = table.with_two_locked(names[0], names[1], act);
            assert_eq!(moved, Some(true));
            let seen = reader.join().expect("the reader ends");
            let after = look(&table);
            let one_moment = [before, after, [before[0], after[1]]];
            assert!(one_moment.contains(&seen), "not of one moment: {before:?}, {seen:?}, {after:?}");
        });
    }
}

#[test]
fn a_name_moves_at_one_instant() {
    seed_mutant(None);
    for names in [[OLD, NEW], [NEW, OLD]] {
        let there: &'static [_] = if names[0] == OLD { &[OLD] } else { &[NEW] };
        looked_up_beside_a_move(names, there, RENAME);
        looked_up_beside_a_move(names, &[OLD, NEW], RENAME);
    }
    looked_up_beside_a_move([OLD, (LOW, b"beside")], &[OLD], RENAME);
}

#[test]
#[should_panic(expected = "not of one moment")]
fn a_move_in_two_steps_is_found() {
    seed_mutant(Some(Mutant::MovedInTwoSteps));
    looked_up_beside_a_move([OLD, NEW], &[OLD], RENAME);
}

#[test]
fn names_are_exchanged_at_one_instant() {
    seed_mutant(None);
    looked_up_beside_a_move([OLD, NEW], &[OLD, NEW], EXCHANGE);
    looked_up_beside_a_move([OLD, BESIDE], &[OLD, BESIDE], EXCHANGE);
}

#[test]
fn a_name_moves_and_leaves_another_value_behind_at_one_instant() {
    seed_mutant(None);
    looked_up_beside_a_move([OLD, NEW], &[OLD], RENAME_LEAVING);
    looked_up_beside_a_move([NEW, OLD], &[OLD, NEW], RENAME_LEAVING);
    looked_up_beside_a_move([OLD, (LOW, b"beside")], &[OLD], RENAME_LEAVING);
}

/// One thread gives back the second of two buckets. Another moves a name from the first to it, and then looks at what it did.
fn a_table_shrinks_beside_a_move(look: fn(&NameTable<u64>) -> bool) {
    explore(2, move || {
        let domain: &Domain = Box::leak(Box::default());
        let table = table_in(domain, &[OLD]);
        assert!(table.grow());
        table.help();
        domain.flush();
        let other = table.clone();
        let writer = thread::spawn(move || {
            let moved = other.with_two_locked(OLD, NEW, RENAME);
            moved == Some(true) && look(&other)
        });
        let shrunk = table.shrink();
        let is_seen = writer.join().expect("the writer ends");
        let (buckets, names) = (table.buckets(), table.len());
        drop(table);
        assert!(is_seen, "the move is not seen by the thread that made it");
        assert!((buckets == 1 || !shrunk) && names == 1, "{names} names in {buckets} buckets");
    });
}

#[test]
fn a_table_shrinks_at_one_instant() {
    seed_mutant(None);
    a_table_shrinks_beside_a_move(|table| value(table, NEW).is_some() && value(table, OLD).is_none());
    a_table_shrinks_beside_a_move(|table| table.after(0, &table.read()).count() == 1);
}

#[test]
#[should_panic(expected = "the move is not seen")]
fn a_table_that_shrinks_bucket_by_bucket_is_found() {
    seed_mutant(Some(Mutant::ShrunkBucketByBucket));
    a_table_shrinks_beside_a_move(|table| value(table, NEW).is_some());
}

#[test]
fn a_name_is_added_once_while_the_table_grows() {
    seed_mutant(None);
    explore(2, || {
        let table = table(&[(LOW, b"low")]);
        assert!(table.grow());
        let other = table.clone();
        let thread = thread::spawn(move || insert(&other, HIGH, b"new"));
        assert!(remove(&table, LOW, b"low"));
        let mine = insert(&table, HIGH, b"new");
        assert!(mine != thread.join().expect("the thread ends"), "one of them was first");
        assert_eq!(table.len(), 1);
    });
}

fn a_table_is_killed_while_a_name_is_added() {
    explore(2, || {
        let table = table(&[(LOW, b"low")]);
        assert!(remove(&table, LOW, b"low"));
        let other = table.clone();
        let thread = thread::spawn(move || insert(&other, HIGH, b"new"));
        let killed = table.kill();
        let added = thread.join().expect("the thread ends");
        let listed = table.after(0, &table.read()).count();
        // A failing assertion must not run destructors outside the execution.
        drop(table);
        assert!(added != killed && listed == usize::from(added), "killed with a name, or for nothing");
    });
}

#[test]
fn a_table_is_killed_or_a_name_is_added() {
    seed_mutant(None);
    a_table_is_killed_while_a_name_is_added();
}

#[test]
#[should_panic(expected = "killed with a name")]
fn looking_for_names_without_the_locks_is_found() {
    seed_mutant(Some(Mutant::ClosedUnlocked));
    a_table_is_killed_while_a_name_is_added();
}

#[test]
fn a_new_table_is_killed_or_a_name_is_added() {
    seed_mutant(None);
    explore(3, || {
        let table = table(&[]);
        let other = table.clone();
        let thread = thread::spawn(move || insert(&other, HIGH, b"new"));
        let killed = table.kill();
        assert!(killed != thread.join().expect("the thread ends"));
    });
}
