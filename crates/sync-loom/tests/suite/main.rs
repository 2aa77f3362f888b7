//! The models of all structures, as one program.

mod brlock;
mod drain;
mod hash_table;
mod inflatable;
mod model;
mod mutants;
mod mutex;
mod name_table;
mod owner_lock;
mod parking;
mod percpu;
mod radix;
mod rcu;
mod reclaim;
mod refcache;
mod rwsem;
mod seq_bytes;
mod seqlock;
mod small_mutex;
mod trail;

use sluice_sync_loom::face;
