//! Held locks: what each thread holds, in the order in which it took it.

use super::Ask;
use crate::face::{thread, time::Instant};
use std::cell::RefCell;
use std::panic::Location;

/// A lock that is held.
#[derive(Clone, Copy)]
pub(super) struct HeldLock {
    /// The number of its class.
    pub(super) class: u32,
    pub(super) ask: Ask,
    /// Its address.
    pub(super) lock: usize,
    /// The thread may have waited for this lock, so edges lead to it from all locks below.
    pub(super) waits: bool,
    /// Where it was taken.
    pub(super) site: &'static Location<'static>,
    /// When, if statistics are collected.
    pub(super) since: Option<Instant>,
}

/// The locks that one thread holds, oldest first. Locks let go out of order leave holes, so that places stay.
pub(super) type Stack = Vec<Option<HeldLock>>;

thread_local! {
    /// A stack for each thread that this one plays: its own, and on the machine one for each CPU. *owner only*
    static STACKS: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the calling thread's stack; `None` when the thread has destroyed it in order to end.
pub(super) fn with<R>(f: impl FnOnce(&mut Stack) -> R) -> Option<R> {
    let at = thread::lane();
    STACKS
        .try_with(|stacks| {
            let mut stacks = stacks.borrow_mut();
            if stacks.len() <= at {
                stacks.resize_with(at + 1, Vec::new);
            }
            f(&mut stacks[at])
        })
        .ok()
}

/// Puts `entry` on top; says where it is.
pub(super) fn push(entry: HeldLock) -> u32 {
    let place = with(|stack| {
        stack.push(Some(entry));
        // Lossless: no thread holds so many locks.
        (stack.len() - 1) as u32
    });
    place.unwrap_or(u32::MAX)
}

/// Takes off what is at `place`.
pub(super) fn pop(place: u32) -> Option<HeldLock> {
    with(|stack| {
        let entry = stack.get_mut(place as usize)?.take();
        while stack.last().is_some_and(Option::is_none) {
            stack.pop();
        }
        entry
    })?
}

/// Changes what is at `place`.
pub(super) fn change(place: u32, change: impl FnOnce(&mut HeldLock)) {
    with(|stack| stack.get_mut(place as usize).and_then(Option::as_mut).map(change));
}
