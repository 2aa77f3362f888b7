//! History: the *before* side of what the sources report, and what replaced it, as small models written against
//! `sync`'s simulated face; some of them also against its native one.

pub mod false_sharing;
pub mod file_lock_tasks;
pub mod file_lock_threads;
pub mod file_lock_waiters;
pub mod on_host;
pub mod on_machine;
pub mod open_close;
pub mod small_locks;

pub use on_machine::{
    commit_list, dlm_hash, file_locks_2012, file_locks_2013, readdir_2016, rwsem_2016, vfs_2009,
};
