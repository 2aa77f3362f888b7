//! `sluice-lock-zoo`: locks that the lab compares, and that no part of the product uses.
//!
//! # Theory
//! `sluice lab spin`, `journal` and `calibrate` measure side by side how each lock waits and where it fails. They share
//! [`SpinLock`] and [`RawSpinLock`] with `sluice-sync`, so that locks are interchangeable.
//!
//! | lock | size | waiters look at | hand-over costs | order | weak spot |
//! |---|---|---|---|---|---|
//! | [`Tas`] | 4 | the lock, writing it | all of them a transfer | none | collapses with CPUs |
//! | [`Ttas`] | 4 | the lock, reading, then backing off | few transfers | none | unfair |
//! | [`TicketLock`] | 8 | the lock, reading | all of them a transfer | first come | decays; a preempted waiter stops all |
//! | [`Mcs`] | 4 | a line of their own | one transfer | first come | a preempted waiter stops all |
//! | [`Queued`] | 4 | the lock (two of them), own lines | one or two transfers | first come | as MCS, unless paravirtual |
//! | [`Cna`] | 4 | a line of their own | one, mostly on the same node | by node, bounded | one CPU's scan of the queue |
//!
//! [`CombiningLock`]: waiters hand their critical sections to the owner. [`RangeLock`]: ranges of one object, shared or
//! exclusive. [`PerCpuRef`]: a count of references on each CPU's own line, exact once it is killed. Their modules say what
//! the product has in their place.
//!
//! Queue nodes are named by number and live for ever (`nodes`), so no lock here needs `unsafe`; that they do
//! exclude is argued in `excludes`.
//!
//! # Clients must
//! as those of `sluice_sync::spin`.

#![deny(unsafe_code)]

mod cna;
#[allow(unsafe_code)]
mod combining;
#[allow(unsafe_code)]
mod excludes;
mod mcs;
mod nodes;
mod percpu_ref;
mod queued;
mod range_lock;
mod tas;
mod ticket;

pub use cna::Cna;
pub use combining::CombiningLock;
pub use mcs::Mcs;
pub use nodes::Token as NodeToken;
pub use percpu_ref::{Held, PerCpuRef};
pub use queued::{BareMetal, Paravirtual, Queued, QueuedMode, VirtualTestAndSet};
pub use range_lock::{RangeGuard, RangeLock};
pub use sluice_sync::spin::{MutualExclusion, RawSpinLock, SpinGuard, SpinLock, Ttas};
pub use tas::Tas;
pub use ticket::TicketLock;

#[cfg(all(test, not(feature = "loom")))]
mod tests;
