//! Background: the thread of a store, which pushes what has become old or what its source asks for, and checkpoints when much of the
//! log is used.

use crate::StoreError;
use crate::store::{Core, State};
use sluice_sync::MutexGuard;
use sluice_sync::atomic::{Ordering, fence};
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

    /// The source has work that no transaction announces: the store's thread must not sleep.
    pub(crate) fn wake_for_source(&self) {
        // SeqCst: pairs with the fence in run(): the thread sees the work, or this call sees that the thread is idle.
        fence(Ordering::SeqCst);
        self.wake();
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
            // SeqCst: pairs with the fence in wake_for_source().
            fence(Ordering::SeqCst);
            let has_work = self.source.get().is_some_and(|source| source.has_work());
            let mut state = self.state.lock();
            if state.is_ending() {
                return;
            }
            let is_due = |state: &State| self.is_much(state) || state.again || state.is_ending();
            if !is_due(&state) && self.cil.waiting() == 0 && !has_work {
                while self.idle.load(Ordering::Relaxed) && !is_due(&state) && !state.is_spacious {
                    let Some(since) = state.frees_since else {
                        state = self.work.wait(state);
                        continue;
                    };
                    let Some(left) = self.options.age.checked_sub(since.elapsed()) else { break };
                    state = self.work.wait_timeout(state, left).0;
                }
                if !is_due(&state) && self.has_old_frees(&state) {
                    drop(state);
                    self.retry_later(self.checkpoint());
                } else {
                    self.compact_some(state);
                }
                continue;
            }
            // Relaxed: see wake().
            self.idle.store(false, Ordering::Relaxed);
            let began = Instant::now();
            while !is_due(&state) {
                let Some(left) = self.options.age.checked_sub(began.elapsed()) else { break };
                state = match state.is_spacious {
                    true => {
                        self.compact_some(state);
                        self.state.lock()
                    }
                    false => self.work.wait_timeout(state, left).0,
                };
            }
            if state.is_ending() {
                return;
            }
            let is_full = self.is_much(&state) || self.has_old_frees(&state);
            state.again &= is_full;
            drop(state);
            self.retry_later(if is_full { self.write_out() } else { self.sync() });
            self.compact_some(self.state.lock());
        }
    }

    /// Waits if the disk had no room for what was tried. Any other error is remembered, and ends the work of the thread.
    fn retry_later(&self, tried: Result<(), StoreError>) {
        if tried.is_err_and(|error| self.is_put_off(&error)) {
            let _ = self.await_room();
        }
    }

    /// Does a part of what makes the engine's files smaller, if they are too large.
    fn compact_some(&self, state: MutexGuard<'_, State>) {
        let is_spacious = state.is_spacious && !state.is_ending();
        drop(state);
        if is_spacious {
            // An error is remembered, and ends the work of the thread.
            let _ = self.compact(u64::MAX);
        }
    }
}
