//! Background: the thread of a store, which pushes what has become old or what its source asks for, and checkpoints when much of the
//! log is used.

use crate::store::{Core, State};
use sluice_sync::atomic::Ordering;
use sluice_sync::time::Instant;

impl Core {
    /// A transaction has begun: the store's thread must not sleep.
    pub(crate) fn wake(&self) {
        // Acquire(idle): none is needed, the lock of transactions orders: see run(). A hint that is read everywhere and
        // written when a quiet store changes.
        if self.idle.load(Ordering::Relaxed) {
            let state = self.state.lock();
            // Relaxed: under the mutex that the sleeper holds.
            self.idle.store(false, Ordering::Relaxed);
            drop(state);
            self.work.notify_one();
        }
    }

    /// The work of the store's thread.
    pub(crate) fn run(&self) {
        loop {
            // Relaxed: see wake().
            self.idle.store(true, Ordering::Relaxed);
            // A transaction that did not see it has ended after this, and shows in what waits; a later one sees it.
            self.cil.pass();
            let mut state = self.state.lock();
            if state.is_ending() {
                return;
            }
            let is_due = |state: &State| self.is_much(state) || state.again || state.is_ending();
            if !is_due(&state) && self.cil.waiting() == 0 {
                while self.idle.load(Ordering::Relaxed) && !is_due(&state) {
                    state = self.work.wait(state);
                }
                continue;
            }
            // Relaxed: see wake().
            self.idle.store(false, Ordering::Relaxed);
            let began = Instant::now();
            while !is_due(&state) {
                let Some(left) = self.options.age.checked_sub(began.elapsed()) else { break };
                state = self.work.wait_timeout(state, left).0;
            }
            if state.is_ending() {
                return;
            }
            let is_full = self.is_much(&state);
            state.again &= is_full;
            drop(state);
            // An error is remembered, and ends this loop.
            let _ = if is_full { self.write_out() } else { self.sync() };
        }
    }
}
