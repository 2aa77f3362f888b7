//! Epochs: memory that other threads may still read is freed when each thread has moved on.

pub mod drain;
pub mod rcu;
pub(crate) mod readers;
#[allow(unsafe_code)]
pub mod refcache;

pub use refcache::{Ref, RefSlot, WeakRef};
