//! File locks until 2013: one global lock around every call, one list of all locks, one of all blocked requests.
//!
//! An unlock wakes everybody who waits for that lock, and each tries again. The model keeps of this what CPUs fight
//! for: the lock, the heads of the two lists, and the wake-ups that are made under the lock. Computing inside is that
//! of Linux's `__posix_lock_file` and `flock_lock_file` (allocation, comparison, linking), of which the first does more.

use super::file_lock_tasks::{Design, Form, Tasks};
use sluice_machine::cell::touch_write;
use sluice_machine::work;
use sluice_sync::Arc;
use sluice_sync_sim::CachePadded;
use sluice_sync_sim::spin::{SpinLock, Ticket};
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
    global: CachePadded<SpinLock<Global, Ticket>>,
    /// The head of the list of all locks, and of the list of blocked requests.
    heads: [CachePadded<u64>; 2],
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
        let global = CachePadded::new(SpinLock::new(Global { files, blocked: 0 }));
        FileLocks2012 {
            tasks: tasks.clone(),
            form,
            global,
            heads: [CachePadded::new(0), CachePadded::new(0)],
        }
    }

    fn link(&self, list: usize) {
        touch_write(&raw const *self.heads[list], size_of::<u64>());
    }
}

impl Design for FileLocks2012 {
    fn lock(&self, task: usize, file: usize) -> bool {
        let mut global = self.global.lock();
        work(inside(self.form));
        if !global.files[file].held {
            global.files[file].held = true;
            self.link(0);
            return true;
        }
        global.files[file].waiters.push_back(task);
        if matches!(self.form, Form::Posix) {
            work(LOOK * global.blocked);
        }
        global.blocked += 1;
        self.link(1);
        false
    }

    fn unlock(&self, _task: usize, file: usize) {
        let mut global = self.global.lock();
        work(inside(self.form));
        self.link(0);
        global.files[file].held = false;
        let woken = std::mem::take(&mut global.files[file].waiters);
        global.blocked -= woken.len() as u64;
        for task in woken {
            self.link(1);
            self.tasks.wake(task);
        }
    }
}
