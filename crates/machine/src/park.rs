//! Sleeping: the machine's futex, and halting and kicking virtual CPUs.
//!
//! The kernel's own locks (the futex hash bucket, the run queues) are not modelled: waking costs what it
//! costs, from however many CPUs at once.

use crate::atomic::{AtomicU32, Ordering};
use crate::fiber;
use std::panic::Location;

/// Why [`park`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// Somebody called [`unpark`].
    Woken,
    /// The word was not as expected: did not sleep.
    Changed,
    /// The time is over.
    TimedOut,
}

/// Sleeps until [`unpark`] of the same word, if the word is `expected`; for at most `timeout` cycles.
///
/// On the machine there are no spurious wake-ups. Off the machine nobody can wake the caller, so it returns
/// at once: `Changed` if so, else `TimedOut` with a timeout and `Woken` (spuriously, as any futex may)
/// without.
#[track_caller]
pub fn park(word: &AtomicU32, expected: u32, timeout: Option<u64>) -> Parked {
    fiber::ask(|engine| engine.enter_kernel());
    if word.load(Ordering::SeqCst) != expected {
        return Parked::Changed;
    }
    let (address, site) = (std::ptr::from_ref(word).addr(), Location::caller());
    if fiber::ask(|engine| engine.park(address, timeout, site)).is_some() {
        fiber::suspend();
        return match fiber::ask(|engine| engine.woken()) {
            Some(crate::engine::Woken::Deadline) => Parked::TimedOut,
            _ => Parked::Woken,
        };
    }
    std::thread::yield_now();
    if timeout.is_some() { Parked::TimedOut } else { Parked::Woken }
}

/// Wakes up to `count` of the CPUs that sleep on `word`, first come first served; gives how many there were.
pub fn unpark(word: &AtomicU32, count: usize) -> usize {
    let address = std::ptr::from_ref(word).addr();
    fiber::ask(|engine| engine.enter_kernel());
    fiber::ask_until_done(|engine| engine.turn());
    fiber::ask(|engine| engine.unpark(address, count)).unwrap_or(0)
}

/// Stops the calling CPU until somebody calls [`kick`] for it; a kick that came since the last halt ends it
/// at once. On a machine with virtual CPUs another may use the physical one meanwhile. Off the machine it
/// returns at once.
pub fn halt() {
    fiber::ask_until_done(|engine| engine.turn());
    if fiber::ask(|engine| engine.halt()) == Some(crate::engine::EngineStep::Again) {
        fiber::suspend();
    }
}

/// Ends the [`halt`] of `cpu`, or makes its next one return at once.
///
/// # Panics
/// When the run has no such CPU.
pub fn kick(cpu: usize) {
    fiber::ask_until_done(|engine| engine.turn());
    let known = fiber::ask(|engine| {
        let known = cpu < engine.cpus.len();
        if known {
            engine.kick(cpu);
        }
        known
    });
    assert_ne!(known, Some(false), "kick({cpu}): the run has no such CPU");
}
