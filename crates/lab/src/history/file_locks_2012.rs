//! File locks until 2013: one global lock around every call, one list of all locks, one of all blocked requests.
//!
//! An unlock wakes every task that waits for that lock, and each tries again. The model keeps of this what CPUs fight
//! for: the lock, the heads of the two lists, and the wake-ups that are made under the lock. Computing inside is that
//! of Linux's `__posix_lock_file` and `flock_lock_file` (allocation, comparison, linking), of which the first does more.

use super::sync::CachePadded;
use super::{Design, Form, Line, Lock, Tasks, work};
use sluice_sync::Arc;
use std::collections::VecDeque;

/// Cycles inside the lock for a request or a release.
pub(super) const fn inside(form: Form) -> u64 {
    match form {
        Form::Posix => 250,
        Form::Flock => 120,
    }
}

/// Cycles to look at one blocked request in the search for a deadlock.
const LOOK: u64 = 10;

/// All file locks of the system.
pub struct FileLocks2012 {
    tasks: Arc<Tasks>,
    form: Form,
    global: CachePadded<Lock<Global>>,
    /// The head of the list of all locks, and of the list of blocked requests. *protected by `global`*
    heads: [Line; 2],
}

struct Global {
    files: Vec<File>,
    blocked: u64,
}

#[derive(Default)]
struct File {
    held: bool,
    waiters: VecDeque<usize>,
}

impl FileLocks2012 {
    /// No locks on `files` files.
    pub fn new(tasks: &Arc<Tasks>, form: Form, files: usize) -> Self {
        let files = (0..files).map(|_| File::default()).collect();
        let global = CachePadded::new(Lock::new(Global { files, blocked: 0 }));
        FileLocks2012 { tasks: tasks.clone(), form, global, heads: Default::default() }
    }
}

impl Design for FileLocks2012 {
    fn lock(&self, task: usize, file: usize) -> bool {
        let mut global = self.global.lock();
        work(inside(self.form));
        if !global.files[file].held {
            global.files[file].held = true;
            self.heads[0].write();
            return true;
        }
        global.files[file].waiters.push_back(task);
        if matches!(self.form, Form::Posix) {
            work(LOOK * global.blocked);
        }
        global.blocked += 1;
        self.heads[1].write();
        false
    }

    fn unlock(&self, _task: usize, file: usize) {
        let mut global = self.global.lock();
        work(inside(self.form));
        self.heads[0].write();
        global.files[file].held = false;
        let woken = std::mem::take(&mut global.files[file].waiters);
        global.blocked -= woken.len() as u64;
        for task in woken {
            self.heads[1].write();
            self.tasks.wake(task);
        }
    }
}
