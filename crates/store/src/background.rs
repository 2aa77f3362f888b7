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

    /// Whether extents were freed so long ago that the disk should have their blocks back, which takes a checkpoint.
    fn has_old_frees(&self, state: &State) -> bool {
        state.frees_since.is_some_and(|since| since.elapsed() >= self.options.age)
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
                    let Some(since) = state.frees_since else {
                        state = self.work.wait(state);
                        continue;
                    };
                    let Some(left) = self.options.age.checked_sub(since.elapsed()) else { break };
                    state = self.work.wait_timeout(state, left).0;
                }
                if !is_due(&state) && self.has_old_frees(&state) {
                    drop(state);
                    // An error is remembered, and ends this loop.
                    let _ = self.checkpoint();
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
            let is_full = self.is_much(&state) || self.has_old_frees(&state);
            state.again &= is_full;
            drop(state);
            // An error is remembered, and ends this loop.
            let _ = if is_full { self.write_out() } else { self.sync() };
        }
    }
}
