//! Once: `OnceLock` and `LazyLock` that the machine sees.
//!
//! A simulated CPU must not wait inside the standard library, which would hold up every other CPU. So which
//! CPU initialises is settled by a word of the machine's, on which the others wait; only what is there already is
//! kept by `std`.

use super::atomic::{AtomicU32, Ordering};
use super::hint::spin_until;
use std::ops::Deref;
use std::sync;

const EMPTY: u32 = 0;
const BUSY: u32 = 1;
const FULL: u32 = 2;

/// A [`std::sync::OnceLock`] with one word more.
#[derive(Debug)]
pub struct OnceLock<T> {
    /// `EMPTY`, `BUSY` or `FULL`. *atomic (once)*
    state: AtomicU32,
    /// *set once, by the CPU that made the state `BUSY`*
    value: sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// Nothing yet.
    pub const fn new() -> OnceLock<T> {
        OnceLock { state: AtomicU32::new(EMPTY), value: sync::OnceLock::new() }
    }

    /// The value, if it is there.
    #[inline]
    #[track_caller]
    pub fn get(&self) -> Option<&T> {
        // Acquire(once): pairs with Release(once) in initialise().
        if self.state.load(Ordering::Acquire) == FULL { self.value.get() } else { None }
    }

    /// The value for writing, if it is there.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// The value, if it is there.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// The value, which `make` creates at the first call.
    #[track_caller]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.initialise(make).unwrap_or_else(|_| self.value.get().expect("the state is FULL")),
        }
    }

    /// Sets the value.
    ///
    /// # Errors
    /// Gives `value` back if there was one.
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        let _ = self.initialise(|| value.take().expect("called once"));
        value.map_or(Ok(()), Err)
    }

    /// The value made by `make`, unless it was there or another CPU made it meanwhile: then `make` comes back.
    #[cold]
    #[track_caller]
    fn initialise<F: FnOnce() -> T>(&self, make: F) -> Result<&T, F> {
        /// Lets another try if `make` panics.
        struct Undo<'a>(&'a AtomicU32);
        impl Drop for Undo<'_> {
            fn drop(&mut self) {
                // Release(once): nothing was made; pairs with the Acquire of the next one's exchange.
                self.0.store(EMPTY, Ordering::Release);
            }
        }
        loop {
            // Acquire(once): pairs with Release(once) below and in Undo.
            match self.state.compare_exchange(EMPTY, BUSY, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    let undo = Undo(&self.state);
                    let value = make();
                    std::mem::forget(undo);
                    let value = self.value.get_or_init(|| value);
                    // Release(once): publishes the value; pairs with the Acquires of get() and above.
                    self.state.store(FULL, Ordering::Release);
                    return Ok(value);
                }
                Err(FULL) => return Err(make),
                Err(_) => {
                    // Acquire(once): as above; the loop looks again.
                    spin_until(&self.state, Ordering::Acquire, |state| state != BUSY);
                }
            }
        }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> OnceLock<T> {
        OnceLock { state: AtomicU32::new(FULL), value: value.into() }
    }
}

/// A [`std::sync::LazyLock`] for values that may be computed more than once.
#[derive(Debug)]
pub struct LazyLock<T, F = fn() -> T> {
    value: OnceLock<T>,
    /// *immutable*
    make: F,
}

impl<T, F: Fn() -> T> LazyLock<T, F> {
    /// A cell whose value `make` makes at first use.
    pub const fn new(make: F) -> LazyLock<T, F> {
        LazyLock { value: OnceLock::new(), make }
    }
}

impl<T, F: Fn() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.get_or_init(&self.make)
    }
}
