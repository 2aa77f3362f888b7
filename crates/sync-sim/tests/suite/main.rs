//! The structures on the simulated multiprocessor, as one program.

mod defer_scale;
mod lock_debug;
mod locks;
mod name_table;
#[path = "../../../machine/tests/suite/processes/mod.rs"]
mod processes;
mod rcu;
mod readers;
mod reclaim;
mod refcache;
mod refcache_idle;
mod refcache_scale;
mod refcache_waits;
mod replay;
mod shared;

/// Each object has lines of its own: the host's heap would decide otherwise which of them share one.
#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;
