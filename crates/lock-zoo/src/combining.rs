//! Combining lock: the thread that has the lock also runs the critical sections of threads that wait for it.
//!
//! # Theory
//! When a short critical section is contended by nature, what costs is moving the lock and the data from CPU to CPU.
//! A waiter therefore hands over its critical section instead of waiting for the lock: it queues a pointer to
//! it, and the owner (the *combiner*), whose cache has the data, runs up to [`BATCH_MAX`] of them in queue
//! order before it makes the next waiter the combiner.
//!
//! ```text
//!   combiner -> task -> task -> task -> task        the combiner runs these
//!                DONE    DONE    ^ after the batch this thread is told COMBINE
//! ```
//!
//! # Clients must
//! - keep critical sections short and never block in them; other threads' sections run on the caller's stack;
//! - not use the lock again inside its own critical section (it would wait for itself). Others may be used.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | queue | swap of `tail`, store of `next` | swap of `tail`, load of `next` | the node, its task |
//! | done | store of `go` | load of `go` | the task's result; the value, to the next combiner |
//!
//! # Cost
//! A waiter writes its own node, `tail`, and its predecessor's node; the value stays with the combiner.
//!
//! # Used by
//! Nothing of the product, which keeps contended data apart instead, by thread or CPU; `small_locks` of the lab has it.
//!
//! # Sources
//! P. Fatourou and N. Kallimanis, "Revisiting the combining synchronization technique", PPoPP 2012 (DSM-Synch);
//! Y. Oyama, K. Taura and A. Yonezawa, 1999, for the idea.

use crate::nodes::{give_back, node, take};
use sluice_sync::face::atomic::{AtomicU32, Ordering};
use sluice_sync::face::cell::UnsafeCell;
use sluice_sync::face::{SHRUNK, const_new, hint};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Critical sections that one combiner runs for others before it passes the role on.
const BATCH_MAX: u32 = if SHRUNK { 1 } else { 64 };

const DONE: u32 = 1;
const COMBINE: u32 = 2;

/// A value whose critical sections are run for their callers, by the thread that has the lock.
pub struct CombiningLock<T> {
    /// The name of the last waiter's or the combiner's node, or 0. *atomic (queue)*
    tail: AtomicU32,
    /// *the combiner's*
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one combiner at a time, on any thread, so `T: Send` is enough.
unsafe impl<T: Send> Send for CombiningLock<T> {}
// SAFETY: as above; combiners exclude each other (loom model `combining`).
unsafe impl<T: Send> Sync for CombiningLock<T> {}

/// A critical section on its caller's stack. `call` comes first, so that a pointer to any task can be called.
#[repr(C)]
struct CriticalSection<F, R> {
    /// Runs this task on the value behind the second pointer. *immutable*
    call: unsafe fn(*mut (), *mut ()),
    /// *the caller's until queued, then the combiner's until `DONE`*
    body: UnsafeCell<SectionState<F, R>>,
}

enum SectionState<F, R> {
    Ready(F),
    Running,
    Finished(Result<R, Box<dyn Any + Send>>),
}

/// # Safety
/// `task` must point to a live `Task<F, R>` of which nobody else touches the body, `value` to a live `T` of which
/// no other reference exists, both until the call returns.
unsafe fn call<T, F: FnOnce(&mut T) -> R, R>(task: *mut (), value: *mut ()) {
    // SAFETY: the caller says that it is a live task.
    let task = unsafe { &*task.cast::<CriticalSection<F, R>>() };
    task.body.with_mut(|body| {
        // SAFETY: the caller says that nobody else touches the body.
        let body = unsafe { &mut *body };
        if let SectionState::Ready(section) = std::mem::replace(body, SectionState::Running) {
            // SAFETY: the caller says that this is the only reference to a live value.
            let value = unsafe { &mut *value.cast::<T>() };
            *body = SectionState::Finished(catch_unwind(AssertUnwindSafe(|| section(value))));
        }
    });
}

impl<T: Send> CombiningLock<T> {
    const_new! {
        /// A lock around `value`.
        pub fn new(value: T) -> Self {
            CombiningLock { tail: AtomicU32::new(0), value: UnsafeCell::new(value) }
        }
    }

    /// Takes the value out; no lock is needed, nobody else can hold it.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Runs `section` on the value, alone, here or on the thread that has the lock; returns what it returned.
    ///
    /// # Panics
    /// If `section` does, on the calling thread; the lock stays usable.
    pub fn with<R: Send>(&self, section: impl FnOnce(&mut T) -> R + Send) -> R {
        let task = task(section);
        self.run(&raw const task as *mut (), task.call);
        match task.body.into_inner() {
            SectionState::Finished(Ok(result)) => result,
            SectionState::Finished(Err(panic)) => resume_unwind(panic),
            SectionState::Ready(_) | SectionState::Running => {
                unreachable!("run() returns after the task has run")
            }
        }
    }

    /// Has the task run. The task must stay in place until this function returns; this function does not unwind.
    fn run(&self, task: *mut (), call: unsafe fn(*mut (), *mut ())) {
        let token = take();
        let own = node(token.name);
        // Relaxed: published by the swap and the store to `next`.
        own.next.store(0, Ordering::Relaxed);
        own.go.store(0, Ordering::Relaxed);
        own.task.store(task, Ordering::Relaxed);
        // Release(queue): our node; Acquire(queue): the node in front, or the last combiner's value.
        let front = self.tail.swap(token.name, Ordering::AcqRel);
        if front != 0 {
            // Release(queue): our node and task; pairs with Acquire(queue) in combine().
            node(front).next.store(token.name, Ordering::Release);
            // Acquire(done): our result, or the value; pairs with Release(done) in combine().
            if hint::spin_until(&own.go, Ordering::Acquire, |go| go != 0) == DONE {
                return give_back(token);
            }
        }
        // SAFETY: the task is ours and has not run: we were not told DONE. We are the combiner: we found no
        // tail, or were told COMBINE by the combiner before us, as its last step.
        self.value.with_mut(|value| unsafe { call(task, value.cast()) });
        self.combine(token.name);
        give_back(token);
    }

    /// The combiner `own` has run its own task: runs others', and passes the role on.
    fn combine(&self, own: u32) {
        let mut last = own;
        for _ in 0..BATCH_MAX {
            // Acquire(queue): the waiter's node and task; pairs with Release(queue) in run().
            let next = node(last).next.load(Ordering::Acquire);
            if next == 0 {
                break;
            }
            // Relaxed: published with `next`.
            let task = node(next).task.load(Ordering::Relaxed);
            // SAFETY: a queued thread waits in run() until it is told DONE or COMBINE, so its task is alive,
            // and by the queue only the combiner touches it. A task begins with its `call`, and tasks in this
            // queue are for this lock's `T`. We are the only combiner.
            self.value.with_mut(|value| unsafe {
                (*task.cast::<unsafe fn(*mut (), *mut ())>())(task, value.cast())
            });
            finish(last, own);
            last = next;
        }
        // `last` is still linked, so its thread must go on waiting until we know what is behind it.
        // Acquire(queue): as above.
        let mut next = node(last).next.load(Ordering::Acquire);
        if next == 0 {
            // Release(queue): the value, to the next to swap; pairs with Acquire(queue) in run().
            if self.tail.compare_exchange(last, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
                return finish(last, own);
            }
            // A waiter is between its swap and its store to `next`. Acquire(queue): as above.
            next = hint::spin_until(&node(last).next, Ordering::Acquire, |next| next != 0);
        }
        finish(last, own);
        // Release(done): the value; pairs with Acquire(done) in run().
        node(next).go.store(COMBINE, Ordering::Release);
    }
}

/// A task for `section`, not yet run.
fn task<T, R, F: FnOnce(&mut T) -> R>(section: F) -> CriticalSection<F, R> {
    CriticalSection { call: call::<T, F, R>, body: UnsafeCell::new(SectionState::Ready(section)) }
}

/// Tells the thread of node `name` that its task has run, unless it is the combiner itself.
fn finish(name: u32, combiner: u32) {
    if name != combiner {
        // Release(done): the task's result; pairs with Acquire(done) in run().
        node(name).go.store(DONE, Ordering::Release);
    }
}

impl<T: Send + Default> Default for CombiningLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> std::fmt::Debug for CombiningLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CombiningLock")
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use sluice_sync::thread;

    #[test]
    fn every_section_runs_once_and_returns_to_its_caller() {
        let lock = CombiningLock::new(Vec::new());
        let rounds = if SHRUNK { 10 } else { 2_000 };
        thread::scope(|scope| {
            for name in 0..4u32 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let own = String::from("moved in and back");
                        let back = lock.with(move |all| {
                            all.push((name, round));
                            own
                        });
                        assert_eq!(back, "moved in and back");
                    }
                });
            }
        });
        let mut all = lock.into_inner();
        for name in 0..4 {
            let rounds_of: Vec<_> = all.iter().filter(|(n, _)| *n == name).map(|(_, round)| *round).collect();
            assert!(rounds_of.is_sorted(), "each caller's sections run in its order");
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4 * rounds);
    }

    #[test]
    fn a_panic_reaches_the_caller_whose_section_it_was() {
        let lock = CombiningLock::new(0);
        thread::scope(|scope| {
            let bad = scope.spawn(|| lock.with(|_| panic!("on purpose")));
            let good = scope.spawn(|| lock.with(|value| *value += 1));
            assert!(bad.join().is_err());
            good.join().expect("the other section did not panic");
        });
        assert_eq!(lock.with(|value| *value), 1);
    }

    #[test]
    fn a_section_may_use_another_combining_lock() {
        let (outer, inner) = (CombiningLock::new(1), CombiningLock::new(2));
        assert_eq!(outer.with(|outer| inner.with(|inner| *outer + *inner)), 3);
    }
}
