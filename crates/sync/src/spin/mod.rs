//! Spin locks: six ways to wait without sleeping, behind one trait so that they can be exchanged.
//!
//! # Theory
//! | lock | size | waiters look at | hand-over costs | order | weak spot |
//! |---|---|---|---|---|---|
//! | [`Tas`] | 4 | the lock, writing it | all of them a transfer | none | collapses with CPUs |
//! | [`Ttas`] | 4 | the lock, reading, then backing off | few transfers | none | unfair |
//! | [`Ticket`] | 8 | the lock, reading | all of them a transfer | first come | decays; a preempted waiter stops all |
//! | [`Mcs`] | 4 | a line of their own | one transfer | first come | a preempted waiter stops all |
//! | [`Queued`] | 4 | the lock (two of them), own lines | one or two transfers | first come | as MCS, unless paravirtual |
//! | [`Cna`] | 4 | a line of their own | one, mostly on the same node | by node, bounded | one CPU's scan of the queue |
//!
//! Queue nodes are named by number and live for ever (`nodes`), so no lock here needs `unsafe`; that they do
//! exclude is argued where data is hung on them, in [`SpinLock`].
//!
//! # Clients must
//! hold a spin lock for a few hundred instructions at most, and never sleep under one. Threads of a process
//! can be preempted at any instruction: prefer [`crate::Mutex`] unless you know better.

mod cna;
#[allow(unsafe_code)]
mod lock;
mod mcs;
pub(crate) mod nodes;
mod queued;
mod tas;
mod ticket;

pub use cna::Cna;
pub use lock::{MutualExclusion, SpinGuard, SpinLock};
pub use mcs::Mcs;
pub use nodes::Token as NodeToken;
pub use queued::{BareMetal, Paravirtual, Queued, QueuedMode, VirtualTestAndSet};
pub use tas::{Tas, Ttas};
pub use ticket::Ticket;

/// A spin lock that protects nothing by itself.
pub trait RawSpinLock: Default + Send + Sync {
    /// Its name in reports.
    const NAME: &'static str;
    /// What an acquisition must remember until it is released: nothing, or a queue node.
    type Token;

    /// Waits for the lock.
    fn lock(&self) -> Self::Token;

    /// Takes the lock if it is free and nobody waits in front.
    fn try_lock(&self) -> Option<Self::Token>;

    /// Lets go. `token` is what the acquisition returned.
    fn unlock(&self, token: Self::Token);
}
