//! Models of the range lock: exclusion where ranges overlap, no lost wake-up.

use crate::model::explore;
use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};
use sluice_lock_zoo_loom::RangeLock;

/// Three bytes, each checked for races, and the lock on them. They outlive the execution.
struct File {
    lock: RangeLock,
    bytes: [UnsafeCell<()>; 3],
}

impl File {
    fn new() -> &'static Self {
        let bytes = [UnsafeCell::new(()), UnsafeCell::new(()), UnsafeCell::new(())];
        Box::leak(Box::new(File { lock: RangeLock::new(), bytes }))
    }

    fn write(&self, start: usize, end: usize) {
        let _range = self.lock.write(start as u64..end as u64);
        self.bytes[start..end].iter().for_each(|byte| byte.with_mut(|_| ()));
    }

    fn read(&self, start: usize, end: usize) {
        let _range = self.lock.read(start as u64..end as u64);
        self.bytes[start..end].iter().for_each(|byte| byte.with(|_| ()));
    }
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
}

#[test]
fn overlapping_writers_exclude_each_other_and_none_sleeps_for_ever() {
    explore(3, || {
        let file = File::new();
        let other = thread::spawn(|| file.write(0, 2));
        file.write(1, 3);
        join([other]);
    });
}

#[test]
fn a_range_across_two_others_waits_for_both() {
    explore(1, || {
        let file = File::new();
        let threads = [thread::spawn(|| file.read(0, 2)), thread::spawn(|| file.write(2, 3))];
        file.write(0, 3);
        join(threads);
    });
}

#[test]
fn readers_share_beside_a_writer() {
    explore(1, || {
        let file = File::new();
        let threads = [thread::spawn(|| file.read(0, 2)), thread::spawn(|| file.write(1, 3))];
        file.read(1, 3);
        join(threads);
    });
}
