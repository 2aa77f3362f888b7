//! Registry: classes get numbers, by which everything else knows them.
//!
//! # Cost
//! A lock of a named class: one load of the class. A lock known by its place: a probe of a table that does not
//! change once every place has been seen.

use super::{LockClass, Watch};
use crate::fibonacci;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Number of watched classes; further classes are not watched.
pub(super) const CLASSES_MAX: usize = 256;
/// Places of the table: twice as many as classes, so that probes stay short.
const PLACES: usize = 2 * CLASSES_MAX;

/// A class's number plus one, 0 until its first use. *atomic*
#[derive(Debug)]
pub(in super::super) struct ClassId(AtomicU32);

impl ClassId {
    pub(in super::super) const fn new() -> Self {
        ClassId(AtomicU32::new(0))
    }
}

/// The classes' names, by number. *protected by itself*
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Which class a place belongs to, found by probing from its line and column on. *each set once*
static BY_PLACE: [OnceLock<(&'static Location<'static>, u32)>; PLACES] = [const { OnceLock::new() }; PLACES];

/// The number of the class that `watch` names; `None` if it is not watched.
pub(super) fn class_of(watch: &Watch) -> Option<u32> {
    match watch {
        Watch::Part => None,
        Watch::Place(place) => of_place(place),
        Watch::Class(class) => of_class(class),
    }
}

fn of_class(class: &LockClass) -> Option<u32> {
    // Relaxed: the number stands for itself; two threads that register find the same one.
    match class.id.0.load(Ordering::Relaxed) {
        0 => {
            let number = register(class.name().to_owned())?;
            class.id.0.store(number + 1, Ordering::Relaxed);
            Some(number)
        }
        known => Some(known - 1),
    }
}

fn of_place(place: &'static Location<'static>) -> Option<u32> {
    let first = (fibonacci(u64::from(place.line()) << 32 | u64::from(place.column())) >> 32) as usize;
    for step in 0..PLACES {
        let cell = &BY_PLACE[(first + step) % PLACES];
        let (known, number) = match cell.get() {
            Some(entry) => entry,
            None => {
                let number = register(place.to_string())?;
                cell.get_or_init(|| (place, number))
            }
        };
        if same_place(known, place) {
            return Some(*number);
        }
    }
    None
}

/// Whether `a` and `b` are one place. That may have several addresses: one in each piece of the program that the compiler made
/// alone, and under the interpreter one for each call. The line differs most often, so it comes first.
pub(super) fn same_place(a: &Location<'_>, b: &Location<'_>) -> bool {
    (a.line(), a.column(), a.file()) == (b.line(), b.column(), b.file())
}

/// The number of the class called `name`, which may be new; `None` when there are too many.
#[cold]
fn register(name: String) -> Option<u32> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let at = names.iter().position(|known| *known == name);
    if at.is_none() && names.len() < CLASSES_MAX {
        names.push(name);
        return u32::try_from(names.len() - 1).ok();
    }
    u32::try_from(at?).ok()
}

/// The names of all classes, by number.
pub(super) fn names() -> Vec<String> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
