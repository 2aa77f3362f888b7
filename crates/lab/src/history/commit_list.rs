//! The log's list of committed items: under one lock, as XFS had it until 2022, and in a list for each CPU.
//!
//! A commit links its items into the list of the current checkpoint, each behind the head, and books the space they take.
//! Under the one lock it writes lines that every other CPU has just written. In `struct xfs_cil` of 2015 the head lies
//! beside its lock, in one line, so that spinning CPUs take from its owner what it is about to write.
//!
//! How many items, lines and how much computing is a guess, and the share of the lock decides where the knee is.

use super::sync::CachePadded;
use super::zoo::RawSpinLock;
use super::{Cpu, Line, Word};

/// Items of a commit: inodes, buffers of a directory and of free inodes.
const ITEMS: u64 = 5;
/// Computing under the lock to link one.
const LINK: u64 = 180;
/// Lines that a commit writes under the lock besides: the last item, the context's space and counts, the ticket, the
/// busy-extent list.
const LINES: usize = 5;
/// The rest of a file's creation or removal, per commit: 16 CPUs reached 700,000 commits a second, so one CPU
/// took some 23 us for each, 66,000 cycles at 2.9 GHz.
const OUTSIDE: u64 = 60_000;

/// One list, or one for each CPU, under locks of kind `R`.
pub struct CommitLists<R> {
    lists: Vec<List<R>>,
}

#[derive(Default)]
struct List<R> {
    top: CachePadded<Top<R>>,
    lines: [Line; LINES], // protected by the lock
}

/// What one line holds.
#[derive(Default)]
struct Top<R> {
    lock: R,
    head: Word, // protected by `lock`
}

impl<R: RawSpinLock> CommitLists<R> {
    /// So many empty lists.
    pub fn new(lists: usize) -> CommitLists<R> {
        CommitLists { lists: std::iter::repeat_with(List::default).take(lists).collect() }
    }

    /// One commit.
    pub fn commit(&self, cpu: &Cpu) {
        let list = &self.lists[cpu.id() % self.lists.len()];
        let token = list.top.lock.lock();
        for _ in 0..ITEMS {
            cpu.work(LINK);
            list.top.head.write();
        }
        list.lines.iter().for_each(|line| line.write());
        list.top.lock.unlock(token);
    }
}

/// What a CPU does between two commits.
pub fn create_or_remove(cpu: &Cpu) {
    cpu.work(OUTSIDE / 2 + cpu.random(OUTSIDE));
}
