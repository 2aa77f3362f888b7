//! Fibers: the coroutine in which a simulated CPU runs, and the way from a tracked access to its engine.
//!
//! # Theory
//! All CPUs of a run share one host thread. Each has a stack of its own; control passes between them only
//! where the engine says so. While a fiber runs, two thread-local pointers tell the tracked types where they
//! are: `ENGINE`, the run's state, and `YIELDER`, the way back to the scheduler. Off the machine both are
//! null and the tracked types are plain memory.
//!
//! # Why `unsafe`
//! Three facts that the compiler cannot see: the pointers are valid while they are set; only one `&mut
//! Engine` exists at a time; and a fiber, which borrows the caller's closure, ends before the borrow. Each
//! block below says how.
//!
//! # Panics
//! A panic in a fiber ends the run. Its destructors, and those of the other fibers (unwound afterwards), access only
//! plain memory: an unwinding fiber never gives up control, because the host's count of panics is per thread.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::engine::{Ending, Engine, EngineStep, LINE_BYTES, Pick};
use crate::spec::Kind;

thread_local! {
    static ENGINE: Cell<*mut Engine> = const { Cell::new(ptr::null_mut()) };
    /// The CPU that runs; 0 off the machine.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// Set while fibers that will not go on are unwound.
    static ABANDONED: Cell<bool> = const { Cell::new(false) };
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// Whether the caller runs on a simulated CPU.
#[inline]
pub(crate) fn on_machine() -> bool {
    !ENGINE.get().is_null()
}

/// The CPU that runs, 0 off the machine. Asks no engine, so that the allocator may call it from within one.
#[inline]
pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// Asks the engine of the current run; `None` off the machine. `question` must not run code of the program:
/// it could come back here.
#[inline]
pub(crate) fn ask<R>(question: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    let engine = ENGINE.get();
    if engine.is_null() {
        return None;
    }
    // SAFETY: `drive` sets the pointer to a live engine before it resumes a fiber and clears it before it
    // touches the engine itself. Only methods of the engine run inside `question`, and those never call `ask`
    // or `suspend`, so no second reference exists until this one is gone.
    Some(question(unsafe { &mut *engine }))
}

/// Repeats `question` until the engine says `Done`, letting others run in between. Off the machine it does
/// nothing.
#[inline]
pub(crate) fn ask_until_done(mut question: impl FnMut(&mut Engine) -> EngineStep) {
    while let Some(EngineStep::Again) = ask(&mut question) {
        suspend();
    }
}

/// Whether the caller is a fiber that is being unwound: nobody else will ever run.
pub(crate) fn abandoned() -> bool {
    ABANDONED.get()
}

/// Gives control back to the scheduler until this CPU is due again.
#[cold]
pub(crate) fn suspend() {
    if std::thread::panicking() {
        // See `# Panics`: from here on this fiber is off the machine.
        ENGINE.set(ptr::null_mut());
        ABANDONED.set(true);
        return;
    }
    let yielder = YIELDER.get();
    debug_assert!(!yielder.is_null());
    // SAFETY: the fiber that runs set the pointer, to the yielder on its own stack, when it started and again
    // whenever control came back to it, so it is this fiber's and alive.
    unsafe { (*yielder).suspend(()) };
    YIELDER.set(yielder);
}

/// Charges an access to the current CPU, which does it on the host's memory as soon as this returns. Off the
/// machine it does nothing.
#[inline]
pub(crate) fn access(address: usize, length: usize, kind: Kind, site: &'static Location<'static>) {
    if ask(|engine| engine.short_access(address, kind)) == Some(false) {
        long_access(address, length, kind, site);
    }
}

#[cold]
#[inline(never)]
fn long_access(address: usize, length: usize, kind: Kind, site: &'static Location<'static>) {
    ask_until_done(|engine| engine.long_access(address, length, kind, site));
}

/// As `access`, for memory that may span lines.
pub(crate) fn access_span(address: usize, length: usize, kind: Kind, site: &'static Location<'static>) {
    let mut at = address;
    let end = address + length;
    while on_machine() && at < end {
        let next = (at / LINE_BYTES + 1) * LINE_BYTES;
        access(at, next.min(end) - at, kind, site);
        at = next;
    }
}

/// How `drive` ended.
pub(crate) enum Driven {
    /// As the engine says.
    Ended(Ending),
    /// This CPU's closure panicked with this payload.
    Panicked(usize, Box<dyn Any + Send>),
}

/// Runs `body` once on each CPU of `engine`, to the end of the run.
///
/// # Panics
/// On a simulated CPU (runs do not nest), and when the host has no memory for the stacks.
pub(crate) fn drive(engine: &mut Engine, stack_bytes: usize, body: &dyn Fn(usize)) -> Driven {
    assert!(!on_machine(), "a run cannot be started on a simulated CPU");
    let stack = || DefaultStack::new(stack_bytes).expect("memory for the stacks of the simulated CPUs");
    let mut fibers: Vec<Coroutine<(), (), ()>> = Vec::new();
    for cpu in 0..engine.cpus.len() {
        let fiber = move |yielder: &Yielder<(), ()>, ()| {
            YIELDER.set(yielder);
            body(cpu);
        };
        // SAFETY: the fiber borrows `body`, which outlives this call. `fibers` is local: each fiber has
        // finished or is unwound when this function returns or unwinds, so none outlives the borrow.
        fibers.push(unsafe { Coroutine::with_stack_unchecked(stack(), fiber) });
    }
    // From here to the end of the loop the engine is reached only through this pointer.
    let engine: *mut Engine = engine;
    let driven = loop {
        // SAFETY: `engine` comes from a reference that this function holds, and no fiber runs: no other
        // reference exists.
        let cpu = match unsafe { (*engine).pick() } {
            Pick::Run(cpu) => cpu,
            Pick::End(ending) => break Driven::Ended(ending),
        };
        ENGINE.set(engine);
        CURRENT.set(cpu);
        let resumed = catch_unwind(AssertUnwindSafe(|| fibers[cpu].resume(())));
        ENGINE.set(ptr::null_mut());
        CURRENT.set(0);
        // SAFETY: as above.
        let engine = unsafe { &mut *engine };
        match resumed {
            Ok(CoroutineResult::Yield(())) => engine.suspended(cpu),
            Ok(CoroutineResult::Return(())) => engine.finish(cpu),
            Err(payload) => break Driven::Panicked(cpu, payload),
        }
    };
    ABANDONED.set(true);
    drop(fibers);
    ABANDONED.set(false);
    driven
}
