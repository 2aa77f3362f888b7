//! Models of the reader-writer lock: exclusion, sharing, no lost wake-up, hand-off, downgrade.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use sluice_sync_loom::RwLock;

fn spawn(f: impl FnOnce() + 'static) -> JoinHandle<()> {
    thread::spawn(f)
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
}

#[test]
fn writers_exclude_each_other() {
    explore(3, || {
        let lock = Arc::new(RwLock::new(0));
        let other = lock.clone();
        let thread = spawn(move || {
            *other.write() += 1;
            *other.write() += 1;
        });
        *lock.write() += 1;
        join(vec![thread]);
        assert_eq!(*lock.read(), 3);
    });
}

#[test]
fn a_reader_never_sees_half_of_a_write() {
    explore(3, || {
        let lock = Arc::new(RwLock::new((0, 0)));
        let other = lock.clone();
        let thread = spawn(move || {
            let mut pair = other.write();
            pair.0 += 1;
            pair.1 += 1;
        });
        for _ in 0..2 {
            let pair = lock.read();
            assert_eq!(pair.0, pair.1);
        }
        join(vec![thread]);
    });
}

#[test]
fn a_writer_and_two_readers_all_get_their_turn() {
    explore(2, || {
        let lock = Arc::new(RwLock::new(0));
        let (writer, reader) = (lock.clone(), lock.clone());
        let threads = vec![spawn(move || *writer.write() += 1), spawn(move || assert!(*reader.read() <= 1))];
        assert!(*lock.read() <= 1);
        join(threads);
        assert_eq!(*lock.read(), 1);
    });
}

#[test]
fn two_writers_and_a_reader_all_get_their_turn() {
    explore(2, || {
        let lock = Arc::new(RwLock::new(0));
        let (writer, reader) = (lock.clone(), lock.clone());
        let threads = vec![spawn(move || *writer.write() += 1), spawn(move || assert!(*reader.read() <= 2))];
        *lock.write() += 1;
        join(threads);
        assert_eq!(*lock.read(), 2);
    });
}

#[test]
fn no_writer_comes_between_a_write_and_its_downgrade() {
    explore(2, || {
        let lock = Arc::new(RwLock::new(0));
        let (writer, reader) = (lock.clone(), lock.clone());
        let threads = vec![spawn(move || *writer.write() += 10), spawn(move || drop(reader.read()))];
        let mut guard = lock.write();
        *guard += 1;
        let written = *guard;
        let guard = guard.downgrade();
        assert_eq!(*guard, written);
        drop(guard);
        join(threads);
        assert_eq!(*lock.read(), 11);
    });
}

#[test]
fn a_writer_that_is_next_and_a_reader_behind_it_both_get_their_turn() {
    explore(2, || {
        let lock = Arc::new(RwLock::new(0));
        let (writer, reader) = (lock.clone(), lock.clone());
        let first = lock.read();
        let threads = vec![spawn(move || *writer.write() += 1), spawn(move || assert!(*reader.read() <= 1))];
        assert_eq!(*first, 0);
        drop(first);
        join(threads);
        assert_eq!(*lock.read(), 1);
    });
}

#[test]
fn a_run_of_readers_behind_a_writer_goes_in_together_or_asleep_but_goes() {
    explore(2, || {
        let lock = Arc::new(RwLock::new(0));
        let (one, two) = (lock.clone(), lock.clone());
        let mut writer = lock.write();
        let read = |lock: Arc<RwLock<i32>>| spawn(move || assert_eq!(*lock.read(), 1));
        let threads = vec![read(one), read(two)];
        *writer += 1;
        drop(writer);
        join(threads);
        assert_eq!(*lock.write(), 1);
    });
}
