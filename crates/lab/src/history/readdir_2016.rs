//! Directory reading of 2016: a cursor in the list of children, moved for every name that is given out.
//!
//! # Theory
//! ```text
//!   children:  a -- b -- [cursor of reader 1] -- c -- d -- [cursor of reader 2] -- e
//! ```
//! Each step takes the parent's spin lock, and the child's inside it to see whether the name is live, then moves the
//! cursor behind the child: four writes to the list that every other reader walks. Readers hold the directory's rwsem shared for
//! a call of `PER_CALL` names, unlink holds it exclusively and takes the same two locks to unlist a name.
//!
//! # Sources
//! The end of S2: `dcache_readdir` before cursors were moved once per call.

use super::sync::{CachePadded, RwLock};
use super::zoo::{Queued, RawSpinLock};
use super::{Cpu, Line};

/// Names that one call gives out.
const PER_CALL: usize = 100;
/// Computing for a name, outside of the locks: copying it to the reader.
const COPY: u64 = 60;

/// A directory of names that stay.
pub struct Directory2016 {
    rwsem: CachePadded<RwLock<()>>,
    lock: CachePadded<Queued>,
    children: Vec<ListedChild>,
}

struct ListedChild {
    lock: CachePadded<Queued>,
    links: Line, // protected by the directory's `lock`
}

impl Directory2016 {
    /// A directory of so many names.
    pub fn new(names: usize) -> Directory2016 {
        let child = || ListedChild { lock: CachePadded::new(Queued::default()), links: Line::default() };
        Directory2016 {
            rwsem: CachePadded::new(RwLock::new(())),
            lock: CachePadded::new(Queued::default()),
            children: std::iter::repeat_with(child).take(names).collect(),
        }
    }

    /// Reads all names.
    pub fn list(&self, cpu: &Cpu) {
        for call in self.children.chunks(PER_CALL) {
            let _shared = self.rwsem.read();
            for pair in call.windows(2) {
                self.lock.lock();
                pair[0].lock.lock();
                pair[0].links.read();
                pair[0].lock.unlock(());
                // The cursor leaves its place and stands behind the child: its neighbours get new links.
                pair[0].links.write();
                pair[1].links.write();
                self.lock.unlock(());
                cpu.work(COPY);
            }
        }
    }

    /// Unlinks a name and creates it again.
    pub fn unlink_create(&self, cpu: &Cpu) {
        let child = &self.children[cpu.random(self.children.len() as u64) as usize];
        for _ in 0..2 {
            let _exclusive = self.rwsem.write();
            cpu.work(10 * COPY);
            self.lock.lock();
            child.lock.lock();
            child.links.write();
            child.lock.unlock(());
            self.lock.unlock(());
        }
    }
}
