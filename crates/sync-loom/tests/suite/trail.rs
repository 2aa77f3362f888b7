//! Models of trails: what is remembered of a path says what a lookup would.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::NameTable;
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::name_table::{Key, Recorder, Remembered, Trails};
use sluice_sync_loom::rcu::Domain;

type Name = (u64, &'static [u8]);

const OLD: Name = (1 << 32, b"old");
const NEW: Name = (1 << 63, b"new");

fn table(names: &[Name]) -> Arc<NameTable<u64>> {
    let table = Arc::new(NameTable::new(Box::leak(Box::<Domain>::default())));
    for (hash, name) in names {
        assert!(table.lock(*hash, name).is_some_and(|mut entry| entry.insert(*hash, 0).is_ok()));
    }
    table
}

/// A trail of one step.
fn remember(trails: &Trails<u64>, table: &NameTable<u64>, (hash, name): Name) {
    let section = table.read();
    let key = Key::new(0, name).expect("short");
    let mut recorder = Recorder::new(&section);
    if recorder.step(table, hash, name).is_some() {
        trails.note(&key, &recorder);
    }
}

/// The value of `name`: by the trail, if there is one, or else by a lookup.
fn value(trails: &Trails<u64>, table: &NameTable<u64>, (hash, name): Name) -> Option<u64> {
    let section = table.read();
    if let Remembered::Trail(mut trail) = trails.find(&Key::new(0, name)?, &section)
        && let Some(value) = trail.step(table)
    {
        assert!(trail.is_at_end());
        return Some(*value);
    }
    table.get(hash, name, &section).copied()
}

/// A thread looks the names up that it remembers while `change` is made. Its answers must be of one moment.
fn looked_up_beside(names: &'static [Name], change: fn(&NameTable<u64>)) {
    for looks in [[0, 1], [1, 0]] {
        explore(2, move || {
            let table = table(names);
            let other = table.clone();
            let reader = thread::spawn(move || {
                let trails = Trails::new();
                names.iter().for_each(|name| remember(&trails, &other, *name));
                looks.map(|at| value(&trails, &other, [OLD, NEW][at]))
            });
            let before = looks.map(|at| value(&Trails::new(), &table, [OLD, NEW][at]));
            change(&table);
            let seen = reader.join().expect("the reader ends");
            let after = looks.map(|at| value(&Trails::new(), &table, [OLD, NEW][at]));
            drop(table);
            let one_moment = [before, after, [before[0], after[1]]];
            assert!(one_moment.contains(&seen), "not of one moment: {before:?}, {seen:?}, {after:?}");
        });
    }
}

fn rename(table: &NameTable<u64>) {
    assert_eq!(table.with_two_locked(OLD, NEW, |pair| pair.rename()), Some(true));
}

fn exchange(table: &NameTable<u64>) {
    assert_eq!(table.with_two_locked(OLD, NEW, |pair| pair.exchange()), Some(true));
}

#[test]
fn a_remembered_name_that_moves_onto_another_does_so_at_one_instant() {
    seed_mutant(None);
    looked_up_beside(&[OLD, NEW], rename);
}

#[test]
fn remembered_names_that_are_exchanged_are_so_at_one_instant() {
    seed_mutant(None);
    looked_up_beside(&[OLD, NEW], exchange);
}

#[test]
#[should_panic(expected = "not of one moment")]
fn a_name_that_does_not_say_that_it_may_be_replaced_is_found() {
    seed_mutant(Some(Mutant::ReplacedUnmarked));
    looked_up_beside(&[OLD, NEW], rename);
}

/// A thread that has looked a name up and not found it does not remember it.
fn looked_up_beside_a_removal() {
    explore(3, || {
        let table = table(&[OLD]);
        let other = table.clone();
        let reader = thread::spawn(move || {
            let trails = Trails::new();
            remember(&trails, &other, OLD);
            let looked_up = other.get(OLD.0, OLD.1, &other.read()).is_some();
            (looked_up, value(&trails, &other, OLD).is_some())
        });
        assert!(table.lock(OLD.0, OLD.1).is_some_and(|mut entry| entry.remove().is_some()));
        let seen = reader.join().expect("the reader ends");
        drop(table);
        assert_ne!(seen, (false, true), "remembered and gone");
    });
}

#[test]
fn a_name_that_was_removed_is_not_remembered() {
    seed_mutant(None);
    looked_up_beside_a_removal();
}

#[test]
#[should_panic(expected = "remembered and gone")]
fn a_removal_without_a_mark_is_found() {
    seed_mutant(Some(Mutant::RemovedUnmarked));
    looked_up_beside_a_removal();
}
