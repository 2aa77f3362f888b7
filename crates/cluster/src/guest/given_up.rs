//! Given up: mounts whose locks were freed because they were not heard of, and the files of which no other mount has locked
//! anything since.
//!
//! # Theory
//! A mount that comes back late may go on with a lock if nobody has had one of the file meanwhile; else its program must hear that the
//! lock is lost, as what it protects may have changed. So each lock that is granted strikes its file off the lists of the other mounts.
//! That happens before the grant is answered: a lock that was taken and freed again is struck off, too.
//!
//! # Cost
//! Without such mounts: a load of a word that does not change, for each lock that is granted.

use crate::lock_class::GIVEN_UP;
use sluice_fuse::internal::Witness;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::{Arc, Mutex};
use std::collections::{HashMap, HashSet};

/// Mounts that were given up, each with the files that it had open and that no other mount has locked since.
pub(crate) struct GivenUp {
    untouched: Mutex<HashMap<u64, HashSet<u64>>>,
    /// How many mounts. *atomic (stands alone: a lock that a mount had is granted after it was put down)*
    count: AtomicUsize,
}

/// Strikes off what one mount locks.
pub(super) struct LockWitness {
    given_up: Arc<GivenUp>,
    mount: u64,
}

impl Default for GivenUp {
    fn default() -> Self {
        GivenUp { untouched: Mutex::with_class(&GIVEN_UP, HashMap::new()), count: AtomicUsize::new(0) }
    }
}

impl GivenUp {
    /// `mount` is given up, which has `files` open. To be called before its locks are free.
    pub(super) fn put(&self, mount: u64, files: HashSet<u64>) {
        let mut untouched = self.untouched.lock();
        untouched.insert(mount, files);
        // Relaxed: see the field.
        self.count.store(untouched.len(), Ordering::Relaxed);
    }

    /// Handles the return of `mount`, or the end of its expectation. Returns the files whose locks nobody had since.
    pub(super) fn take(&self, mount: u64) -> HashSet<u64> {
        let mut untouched = self.untouched.lock();
        let files = untouched.remove(&mount).unwrap_or_default();
        // Relaxed: see the field.
        self.count.store(untouched.len(), Ordering::Relaxed);
        files
    }
}

impl Witness for LockWitness {
    fn granted(&self, ino: u64) {
        // Relaxed: see the field.
        if self.given_up.count.load(Ordering::Relaxed) > 0 {
            self.strike_off(ino);
        }
    }
}

impl LockWitness {
    /// A witness for the locks of `mount`.
    pub(super) fn new(given_up: Arc<GivenUp>, mount: u64) -> LockWitness {
        LockWitness { given_up, mount }
    }

    #[cold]
    fn strike_off(&self, ino: u64) {
        for (mount, files) in self.given_up.untouched.lock().iter_mut() {
            if *mount != self.mount {
                files.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stays_on_the_list_until_another_mount_locks_it() {
        let given_up = Arc::<GivenUp>::default();
        let witness = |mount| LockWitness::new(given_up.clone(), mount);
        witness(2).granted(7);
        given_up.put(1, [6, 7, 8].into());
        witness(1).granted(6);
        witness(2).granted(7);
        assert_eq!(given_up.take(1), [6, 8].into());
        assert!(given_up.take(1).is_empty());
    }
}
