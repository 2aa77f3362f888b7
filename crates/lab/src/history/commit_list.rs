//! The log's list of committed items: under one lock, as XFS had it until 2022, and in a list for each CPU. And the commit path of
//! the store of this project, as it is, and with that one lock around what a transaction writes.
//!
//! A commit links its items into the list of the current checkpoint, each behind the head, and books the space they take.
//! Under the one lock it writes lines that every other CPU has just written. In `struct xfs_cil` of 2015 the head lies
//! beside its lock, in one line, so that spinning CPUs take from its owner what it is about to write.
//!
//! How many items, lines and how much computing is a guess, and the share of the lock decides where the knee is.

use super::store::{Options, Store};
use super::sync::CachePadded;
use super::zoo::RawSpinLock;
use super::{Cpu, Line, Word};

/// Items of a commit: inodes, buffers of a directory and of free inodes.
const ITEMS: u8 = 5;
/// Computing under the lock to link one.
const LINK: u64 = 180;
/// Lines that a commit writes under the lock besides: the last item, the context's space and counts, the ticket, the
/// busy-extent list.
const LINES: usize = 5;
/// The rest of a file's creation or removal, per commit, in cycles: with it the 16 virtual CPUs of a guest make 700,000 commits
/// a second under a lock with back-off, as many as 16 CPUs made before XFS had a list for each. Chosen after a sweep: with three
/// times as much the fallback loses nothing (measurements, section 3).
const OUTSIDE: u64 = 20_000;

/// One list, or one for each CPU, under locks of kind `R`.
pub struct CommitLists<R> {
    lists: Vec<List<R>>,
}

#[derive(Default)]
struct List<R> {
    top: CachePadded<Top<R>>,
    lines: [Line; LINES], // protected by the lock
}

/// The contents of the first line.
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
        self.commit_with(cpu, |_| ());
    }

    /// One commit, which does `put` for each item.
    fn commit_with(&self, cpu: &Cpu, mut put: impl FnMut(u8)) {
        let list = &self.lists[cpu.id() % self.lists.len()];
        let token = list.top.lock.lock();
        for item in 0..ITEMS {
            cpu.work(LINK);
            put(item);
            list.top.head.write();
        }
        list.lines.iter().for_each(|line| line.write());
        list.top.lock.unlock(token);
    }
}

/// Bytes of an item, about those of an inode's record.
const ITEM_BYTES: usize = 80;
/// The space that a transaction reserves: its items, with their keys.
const ROOM: u64 = ITEMS as u64 * 128;
/// Bytes of the log: the room for what waits is counted by each CPU in shares of it, and no push falls into a run.
const LOG_SIZE: u64 = 1 << 30;

/// The commit path of a store in memory, as it is or with one list under a lock of kind `R`.
pub struct CommitPath<R> {
    store: Store,
    one_list: Option<CommitLists<R>>,
}

impl<R: RawSpinLock> CommitPath<R> {
    /// An empty store, with a single commit list or the product's lists.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn new(has_one_list: bool) -> CommitPath<R> {
        let options = Options::default().background(false).log_size(LOG_SIZE);
        let store = Store::in_memory(options).expect("an empty store fits into memory");
        CommitPath { store, one_list: has_one_list.then(|| CommitLists::new(1)) }
    }

    /// One commit: a transaction of the store.
    ///
    /// # Panics
    /// If the store fails.
    pub fn commit(&self, cpu: &Cpu) {
        let mut transaction = self.store.begin(ROOM).expect("memory does not fail");
        let mut put = |item| transaction.put(&[b'i', cpu.id() as u8, item], 0, &[0; ITEM_BYTES]);
        match &self.one_list {
            Some(list) => list.commit_with(cpu, put),
            None => (0..ITEMS).for_each(|item| {
                cpu.work(LINK);
                put(item);
            }),
        }
    }
}

/// The work of a CPU between two commits.
pub fn create_or_remove(cpu: &Cpu) {
    cpu.work(OUTSIDE / 2 + cpu.random(OUTSIDE));
}
