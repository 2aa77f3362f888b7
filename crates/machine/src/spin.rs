//! Spinning: what a program calls while it waits for a line to change.
//!
//! A waiting loop should say what it waits for: [`spin_until`], or [`spin_until_for`] with a bound. The plain
//! loop `while word.load(..) != x { spin_loop() }` is recognised too: when it has gone round twice over the
//! same unchanged lines, the machine lets the CPU sleep until one of them changes. A loop with a *bound* that
//! only the program knows (a counter of rounds) is stretched by that; use `spin_until_for`, or [`pause`],
//! which always takes its own time and no more. A loop that looks at [`now`](crate::now) is never mistaken
//! for an endless one.

use crate::atomic::{Ordering, Watchable};
use crate::engine::{EngineStep, Woken};
use crate::fiber;
use std::panic::Location;

/// Spins until `done` is true of the value, which is loaded with `Acquire`; gives that value. Off the
/// machine it polls, and lets other threads run.
#[inline]
#[track_caller]
pub fn spin_until<A: Watchable>(word: &A, mut done: impl FnMut(A::Value) -> bool) -> A::Value {
    loop {
        let value = word.look(Ordering::Acquire);
        if done(value) {
            return value;
        }
        sleep_on(word, None);
    }
}

/// Spins, as [`spin_until`] does, for at most `cycles` cycles; `None` if they are over. Off the machine, where time does not
/// pass, it looks once per cycle given, up to a thousand times.
#[inline]
#[track_caller]
pub fn spin_until_for<A: Watchable>(
    word: &A,
    cycles: u64,
    mut done: impl FnMut(A::Value) -> bool,
) -> Option<A::Value> {
    let deadline = fiber::ask(|engine| engine.me().clock.saturating_add(cycles));
    for _ in 0..if deadline.is_some() { u64::MAX } else { cycles.clamp(1, 1000) } {
        let value = word.look(Ordering::Acquire);
        if done(value) {
            return Some(value);
        }
        if sleep_on(word, deadline) == Some(Woken::Deadline) {
            return None;
        }
    }
    None
}

#[cold]
#[track_caller]
fn sleep_on<A>(word: &A, deadline: Option<u64>) -> Option<Woken> {
    let (address, site) = (std::ptr::from_ref(word).addr(), Location::caller());
    let slept = fiber::ask(|engine| {
        let deadline = deadline.unwrap_or(crate::engine::TIME_MAX);
        if engine.me().clock >= deadline {
            return EngineStep::Done;
        }
        engine.sleep_on_address(address, deadline, site)
    });
    match slept {
        Some(EngineStep::Again) => {
            fiber::suspend();
            fiber::ask(|engine| engine.woken())
        }
        Some(EngineStep::Done) => {
            let late = fiber::ask(|engine| deadline.is_some_and(|deadline| engine.me().clock >= deadline));
            late.map(|late| if late { Woken::Deadline } else { Woken::Change })
        }
        None => {
            // In a destructor, after a panic or at the end of a stuck run: no CPU is left that could change
            // the word.
            assert!(!fiber::abandoned(), "a destructor waits for another simulated CPU, but the run is over");
            std::thread::yield_now();
            None
        }
    }
}

/// The hint of a waiting loop, as `std::hint::spin_loop`: costs one pause, and lets the machine skip rounds
/// that cannot see anything new.
#[inline]
#[track_caller]
pub fn spin_loop() {
    let site = Location::caller();
    match fiber::ask(|engine| engine.spin_hint(site)) {
        Some(EngineStep::Again) => fiber::suspend(),
        Some(EngineStep::Done) => fiber::ask_until_done(|engine| engine.overdue()),
        None => std::hint::spin_loop(),
    }
}

/// Waits for `times` pauses, whatever happens meanwhile: for back-off. Off the machine: as many spin hints.
#[inline]
pub fn pause(times: u64) {
    if fiber::ask(|engine| engine.pause(times)).is_some() {
        fiber::ask_until_done(|engine| engine.overdue());
        return;
    }
    (0..times).for_each(|_| std::hint::spin_loop());
}
