//! File locks of 2013: each inode's locks under its own lock, blocked requests in a hash, all locks in per-CPU lists.
//!
//! The list of each CPU has a lock; a task that releases on another CPU than it acquired on reaches across. A single
//! lock protects the whole hash of blocked requests, so that a change and a search for a cycle is one atomic step. An
//! unlock still wakes every task that waits.
//!
//! The source's own table has posix02 no more than 2.5 times better, and flock02 160 times: in the version it measured
//! something global was left in the POSIX path without any waiters. It does not say what; here it is the hash's
//! lock, taken by each POSIX release to look for waiters (later versions look first whether there are any).

use super::file_locks_2012::inside;
use super::sync::CachePadded;
use super::{Design, Form, Lock, Tasks, Word, work};
use sluice_sync::Arc;
use std::collections::VecDeque;

/// Cycles to change the hash, and to walk it.
const HASH: u64 = 60;
/// Cycles under the hash's lock when a POSIX release finds nobody to wake.
const GLANCE: u64 = 100;

/// All file locks of the system.
pub struct FileLocks2013 {
    tasks: Arc<Tasks>,
    form: Form,
    files: Vec<CachePadded<Lock<File>>>,
    blocked: CachePadded<Lock<()>>,
    lists: Vec<CachePadded<Lock<Word>>>,
}

#[derive(Default)]
struct File {
    held: bool,
    /// The CPU on whose list the held lock is.
    listed: usize,
    waiters: VecDeque<usize>,
}

impl FileLocks2013 {
    /// No locks on `files` files.
    pub fn new(tasks: &Arc<Tasks>, form: Form, files: usize) -> Self {
        FileLocks2013 {
            tasks: tasks.clone(),
            form,
            files: (0..files).map(|_| CachePadded::new(Lock::new(File::default()))).collect(),
            blocked: CachePadded::new(Lock::new(())),
            lists: (0..tasks.cpus()).map(|_| CachePadded::new(Lock::new(Word::default()))).collect(),
        }
    }

    fn list(&self, cpu: usize) {
        self.lists[cpu].lock().write();
    }
}

impl Design for FileLocks2013 {
    fn lock(&self, task: usize, file: usize) -> bool {
        let mut file = self.files[file].lock();
        work(inside(self.form));
        if !file.held {
            file.held = true;
            file.listed = self.tasks.cpu_of(task);
            self.list(file.listed);
            return true;
        }
        file.waiters.push_back(task);
        let _blocked = self.blocked.lock();
        work(HASH);
        false
    }

    fn unlock(&self, _task: usize, file: usize) {
        let mut file = self.files[file].lock();
        work(inside(self.form));
        self.list(file.listed);
        file.held = false;
        if !file.waiters.is_empty() || matches!(self.form, Form::Posix) {
            let _blocked = self.blocked.lock();
            work(GLANCE);
            for task in std::mem::take(&mut file.waiters) {
                work(HASH);
                self.tasks.wake(task);
            }
        }
    }
}
