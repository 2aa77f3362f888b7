//! Spin locks: a value for a few instructions at a time, by threads that do not sleep for it.
//!
//! # Theory
//! [`SpinLock`] is the value and its guard. A [`RawSpinLock`] decides how threads wait: [`Ttas`], which the product
//! uses where threads of one CPU meet ([`crate::percpu::Pool`]). The others (tickets, queues) are in the crate
//! `lock-zoo`, which compares them.
//!
//! # Clients must
//! hold a spin lock for a few hundred instructions at most, and never sleep under one. Threads of a process
//! can be preempted at any instruction: prefer [`crate::Mutex`] unless you know better.

#[allow(unsafe_code)]
mod lock;
mod ttas;

pub use lock::{MutualExclusion, SpinGuard, SpinLock};
pub use ttas::Ttas;

/// A spin lock that protects nothing by itself.
pub trait RawSpinLock: Default + Send + Sync {
    /// Its name in reports.
    const NAME: &'static str;
    /// The state of an acquisition until its release: none, or a queue node.
    type Token;

    /// Waits for the lock.
    fn lock(&self) -> Self::Token;

    /// Takes the lock if it is free and nobody waits in front.
    fn try_lock(&self) -> Option<Self::Token>;

    /// Lets go. `token` is what the acquisition returned.
    fn unlock(&self, token: Self::Token);
}
