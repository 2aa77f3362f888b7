//! Condvar: lets a thread sleep until another says that a condition may hold.
//!
//! # Theory
//! A counter that every notification moves on. A waiter reads it under the mutex, unlocks, and sleeps only if
//! it has not moved. Notifying without waiters is one load: a waiter counts itself under the mutex, so a
//! notifier that changed the condition under the mutex either sees it counted or was seen by it.
//!
//! # Clients must
//! - change the condition under the mutex (notifying may come after);
//! - wait in a loop: wake-ups may be spurious.

use crate::MutexGuard;
use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::{Wait, const_new, futex, time::Duration};

/// A condition variable for use with [`crate::Mutex`]. Wake-ups may be spurious: wait in a loop.
pub struct Condvar {
    /// Moves on with every notification. *atomic*
    count: AtomicU32,
    /// How many threads wait, or are about to. *raised under the client's mutex*
    waiting: AtomicU32,
}

impl Condvar {
    const_new! {
        /// A new condition variable that nobody waits on.
        pub fn new() -> Self {
            Condvar { count: AtomicU32::new(0), waiting: AtomicU32::new(0) }
        }
    }

    /// Unlocks `guard`, sleeps until woken, and locks again.
    #[track_caller]
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.sleep(guard, None).0
    }

    /// Unlocks `guard`, sleeps until woken, for at most `timeout`, and locks again. The flag is true when the time ran out.
    #[track_caller]
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        self.sleep(guard, Some(timeout))
    }

    #[track_caller]
    fn sleep<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> (MutexGuard<'a, T>, bool) {
        // Relaxed: the mutex orders these two before any change of the condition that we have not seen.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let count = self.count.load(Ordering::Relaxed);
        let mut timed_out = false;
        guard.unlocked(|| timed_out = futex::wait(&self.count, count, timeout) == Wait::TimedOut);
        // Relaxed: too high a number costs a system call, nothing else.
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        (guard, timed_out)
    }

    /// Wakes one waiting thread, if any.
    #[inline]
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes every waiting thread.
    #[inline]
    pub fn notify_all(&self) {
        self.notify(u32::MAX);
    }

    #[inline]
    fn notify(&self, count: u32) {
        // Relaxed: a waiter that must be woken counted itself before it unlocked the mutex that we have
        // locked since.
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.wake(count);
        }
    }

    #[cold]
    fn wake(&self, count: u32) {
        // Relaxed: the mutex publishes the condition; the kernel compares under its own lock.
        self.count.fetch_add(1, Ordering::Relaxed);
        futex::wake(&self.count, count);
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Condvar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Condvar")
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::{Mutex, thread};

    #[test]
    fn a_waiter_is_notified() {
        let (mutex, condvar) = (Mutex::new(0), Condvar::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = mutex.lock();
                while *value != 2 {
                    value = condvar.wait(value);
                }
                *value = 3;
                condvar.notify_one();
            });
            let mut value = mutex.lock();
            *value = 2;
            condvar.notify_all();
            while *value != 3 {
                value = condvar.wait(value);
            }
        });
    }

    #[test]
    fn waiting_ends_when_the_time_runs_out() {
        let mutex = Mutex::new(());
        // Wake-ups may be spurious, so repeat until the time runs out.
        while !Condvar::new().wait_timeout(mutex.lock(), Duration::from_millis(1)).1 {}
    }
}
