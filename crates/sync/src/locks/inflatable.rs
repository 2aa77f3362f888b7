//! Inflatable: a mutex whose value has a short form, which is used without the mutex.
//!
//! # Theory
//! For a value that mostly says little, such as "one lock, of this owner", and at times much. While little is said it
//! stands beside the mutex, and a thread that needs no more takes it by one exchange and gives it back by a plain store.
//! That is cheaper than a mutex, whose owner must find out at the end, by a second exchange, whether somebody began to
//! wait: here nobody waits for the short form but to *inflate* it, and that one spins.
//!
//! ```text
//!            try_short()                 lock(): the mutex, then
//!   SHORT <-------------> TAKEN    SHORT -------------------------> WHOLE
//!            drop                        <-------------------------
//!                                        drop, if it can be said in short
//! ```
//!
//! In state `WHOLE` the value under the mutex is what counts, in the other two the short form is. A value that cannot be
//! said in short stays `WHOLE` when the mutex is unlocked, and then the mutex is all that its users write.
//!
//! # Clients must
//! Keep the short form for a few instructions, and neither lock nor call out meanwhile: the other side spins.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | short | the store of `SHORT` | the exchange from `SHORT` | the short form |
//!
//! The word goes to `WHOLE` and back with the mutex held.
//!
//! # Cost
//! The short form: one exchange and a store, on the line that holds both. The whole: the mutex, and as much again if it
//! was in short.
//!
//! # Sources
//! Bacon, Konuru, Murthy and Serrano, "Thin Locks" (PLDI 1998): inflation. Thin locks stay inflated, but this lock
//! deflates when the full form is no longer needed.

use crate::face::atomic::{AtomicU32, Ordering};
use crate::face::cell::UnsafeCell;
use crate::face::hint::spin_until;
use crate::face::{Mutant, seeded};
use crate::lock_debug::LockClass;
use crate::{Mutex, MutexGuard};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// The short form counts, and nobody uses it.
const SHORT: u32 = 0;
/// The short form counts, and somebody uses it.
const TAKEN: u32 = 1;
/// The value under the mutex counts.
const WHOLE: u32 = 2;

/// A value with a short form.
pub trait Inflate {
    /// The short form.
    type Short;

    /// Makes of `self`, which was deflated last, what `short` says.
    fn inflate(&mut self, short: &Self::Short);

    /// Says in short what `self` says; `None` if that cannot be done. Then nothing is changed.
    fn deflate(&mut self) -> Option<Self::Short>;
}

/// A value in one of two forms: short, or whole and under a mutex.
#[repr(C)]
pub struct Inflatable<T: Inflate> {
    /// `SHORT`, `TAKEN` or `WHOLE`. *atomic (short)*
    word: AtomicU32,
    /// *protected by `word`: the thread that took it, or made it `WHOLE`*
    short: UnsafeCell<T::Short>,
    whole: Mutex<T>,
}

// SAFETY: both forms go to whichever thread holds them, one at a time, so that they can be sent is enough.
unsafe impl<T: Inflate + Send> Send for Inflatable<T> where T::Short: Send {}
// SAFETY: as above; the word and the mutex make the holders exclude each other (loom model `inflatable`).
unsafe impl<T: Inflate + Send> Sync for Inflatable<T> where T::Short: Send {}

/// The right to the short form, until it is dropped.
#[must_use = "the short form is given back at once when the guard is dropped"]
pub struct ShortGuard<'a, T: Inflate> {
    of: &'a Inflatable<T>,
    marker: PhantomData<*const ()>,
}

/// The right to the whole value, until it is dropped.
#[must_use = "the value is unlocked at once when the guard is dropped"]
pub struct WholeGuard<'a, T: Inflate> {
    of: &'a Inflatable<T>,
    whole: MutexGuard<'a, T>,
}

impl<T: Inflate> Inflatable<T> {
    /// A lock with the short form `short`; `deflated` is the value that the last deflation left. The mutex is of
    /// `class`.
    pub fn with_class(class: &'static LockClass, short: T::Short, deflated: T) -> Self {
        Inflatable {
            word: AtomicU32::new(SHORT),
            short: UnsafeCell::new(short),
            whole: Mutex::with_class(class, deflated),
        }
    }

    /// True if it is worth preparing to [`take_short`](Self::take_short).
    #[inline]
    pub fn seems_short(&self) -> bool {
        // Relaxed: a thread that takes the short form looks again.
        self.word.load(Ordering::Relaxed) == SHORT
    }

    /// The short form, if it counts and nobody uses it now.
    #[inline]
    pub fn try_short(&self) -> Option<ShortGuard<'_, T>> {
        // A word that stays `WHOLE` is not written for nothing.
        if self.seems_short() { self.take_short() } else { None }
    }

    /// The short form, unless somebody uses it now. For a caller that has just seen that it [`seems_short`](Self::seems_short).
    #[inline]
    pub fn take_short(&self) -> Option<ShortGuard<'_, T>> {
        // Acquire(short): pairs with Release(short) in show_short(). A failure publishes nothing.
        let taken = self.word.compare_exchange(SHORT, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        taken.then(|| ShortGuard { of: self, marker: PhantomData })
    }

    /// The whole value; sleeps until the mutex is free.
    #[track_caller]
    pub fn lock(&self) -> WholeGuard<'_, T> {
        self.inflated(self.whole.lock())
    }

    /// Locks the whole value, for a thread that takes several locks of one class, which only the owner of `outer` does.
    #[track_caller]
    pub fn lock_under<U: ?Sized>(&self, outer: &MutexGuard<'_, U>) -> WholeGuard<'_, T> {
        self.inflated(self.whole.lock_under(outer))
    }

    fn inflated<'a>(&'a self, mut whole: MutexGuard<'a, T>) -> WholeGuard<'a, T> {
        // Relaxed: the word goes to `WHOLE` and back under the mutex. A word that stays `WHOLE` is not written.
        while self.word.load(Ordering::Relaxed) != WHOLE {
            // Acquire(short): pairs with Release(short) in show_short(). A failure publishes nothing.
            match self.word.compare_exchange(SHORT, WHOLE, Ordering::Acquire, Ordering::Relaxed) {
                // SAFETY: the word went from `SHORT` to `WHOLE` here, so nobody has the short form, and nobody gets it
                // before the word is `SHORT` again, which only the owner of the mutex can bring about.
                Ok(_) => self.short.with(|short| whole.inflate(unsafe { &*short })),
                // Relaxed: the exchange looks again.
                Err(_) => drop(spin_until(&self.word, Ordering::Relaxed, |word| word != TAKEN)),
            }
        }
        WholeGuard { of: self, whole }
    }

    /// Lets others use the short form.
    #[inline]
    fn show_short(&self) {
        let order = if seeded(Mutant::ShortWithoutRelease) { Ordering::Relaxed } else { Ordering::Release };
        // Release(short): the short form; pairs with Acquire(short) in try_short() and inflated().
        self.word.store(SHORT, order);
    }
}

impl<T: Inflate> fmt::Debug for Inflatable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inflatable(..)")
    }
}

impl<T: Inflate> Deref for ShortGuard<'_, T> {
    type Target = T::Short;
    #[inline]
    fn deref(&self) -> &T::Short {
        // SAFETY: this guard made the word `TAKEN`, and nobody else goes on from there until it is dropped.
        self.of.short.with(|short| unsafe { &*short })
    }
}

impl<T: Inflate> DerefMut for ShortGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T::Short {
        // SAFETY: as above, and the guard is borrowed exclusively.
        self.of.short.with_mut(|short| unsafe { &mut *short })
    }
}

impl<T: Inflate> Drop for ShortGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.of.show_short();
    }
}

impl<T: Inflate> Deref for WholeGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.whole
    }
}

impl<T: Inflate> DerefMut for WholeGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.whole
    }
}

impl<T: Inflate> Drop for WholeGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(deflated) = self.whole.deflate() {
            // SAFETY: the word is `WHOLE`, and this guard has the mutex: nobody else uses the short form.
            self.of.short.with_mut(|short| unsafe { *short = deflated });
            self.of.show_short();
        }
    }
}
