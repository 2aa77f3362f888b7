//! Sequence lock: a small value that is read without a store, and never torn.
//!
//! # Theory
//! A [`SeqCount`] with the words that it protects and a mutex that orders the writers. The value is kept as
//! atomic words, so reading it while it changes is a wrong value that is thrown away, not a race.
//!
//! # Clients must
//! Keep the value small and writes rare: a reader repeats its reading for as long as writers interfere.
//!
//! # Cost
//! Read: the lines of the count and the words, no store. Write: the mutex and, if the value changes, the count
//! and the words that differ.
//!
//! # Sources
//! As in `seqcount.rs`.

use crate::face::atomic::{AtomicU64, Ordering};
use crate::lock_debug::{LockClass, Watch};
use crate::{Mutex, SeqCount};
use std::fmt;
use std::marker::PhantomData;

/// How often a reader tries before it waits in the writers' line.
const TRIES: usize = if crate::face::SHRUNK { 1 } else { 64 };

/// A value that can be taken apart into `N` words and put together again.
pub trait Words<const N: usize>: Copy {
    /// The words that stand for this value.
    fn to_words(self) -> [u64; N];
    /// The value that `words` stand for. Never called with a torn mixture.
    fn from_words(words: [u64; N]) -> Self;
}

impl<const N: usize> Words<N> for [u64; N] {
    fn to_words(self) -> [u64; N] {
        self
    }
    fn from_words(words: [u64; N]) -> Self {
        words
    }
}

/// A small value that is read often and written rarely. The fields that readers use come first.
#[repr(C)]
pub struct SeqLock<T: Words<N>, const N: usize> {
    count: SeqCount,
    /// *written under `writers`, read under `count`*
    words: [AtomicU64; N],
    /// Orders the writers.
    writers: Mutex<()>,
    marker: PhantomData<fn(T) -> T>,
}

impl<T: Words<N>, const N: usize> SeqLock<T, N> {
    /// A lock around `value`. The class of its writers' mutex is the place of this call.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self::watched(Watch::here(), value)
    }

    /// A lock of class `class` with this value.
    pub fn with_class(class: &'static LockClass, value: T) -> Self {
        Self::watched(Watch::class(class), value)
    }

    fn watched(watch: Watch, value: T) -> Self {
        SeqLock {
            count: SeqCount::new(),
            words: value.to_words().map(AtomicU64::new),
            writers: Mutex::watched(watch, ()),
            marker: PhantomData,
        }
    }

    /// The value as one write left it. Stores nothing; waits in the writers' line if they interfere too often.
    #[inline]
    pub fn read(&self) -> T {
        let words = self.count.read_bounded(TRIES, || self.load());
        T::from_words(words.unwrap_or_else(|| self.read_in_line()))
    }

    /// Reads the value without waiting; None if a writer interferes.
    #[inline]
    pub fn try_read(&self) -> Option<T> {
        let sequence = self.count.try_begin()?;
        let words = self.load();
        (!self.count.retry(sequence)).then(|| T::from_words(words))
    }

    #[cold]
    fn read_in_line(&self) -> [u64; N] {
        let _writers = self.writers.lock();
        self.load()
    }

    #[inline]
    fn load(&self) -> [u64; N] {
        // Relaxed: the count orders them, or the mutex.
        std::array::from_fn(|n| self.words[n].load(Ordering::Relaxed))
    }

    /// Replaces the value.
    pub fn write(&self, value: T) {
        self.update(|_| value);
    }

    /// Replaces the value by what `change` makes of it; returns the old one.
    pub fn update(&self, change: impl FnOnce(T) -> T) -> T {
        self.change(|value| std::mem::replace(value, change(*value)))
    }

    /// Lets `change` change the value, alone among writers; returns what it returns. If the value stays the same, no
    /// word that readers load is written.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let _writers = self.writers.lock();
        let old = self.load();
        let mut value = T::from_words(old);
        // Before the count is odd: readers do not wait for `change`, and it may panic.
        let result = change(&mut value);
        let new = value.to_words();
        if new != old {
            let _writing = self.count.write();
            for ((word, old), new) in self.words.iter().zip(old).zip(new) {
                if old != new {
                    // Relaxed: the count orders them.
                    word.store(new, Ordering::Relaxed);
                }
            }
        }
        result
    }
}

impl<T: Words<N> + fmt::Debug, const N: usize> fmt::Debug for SeqLock<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeqLock").field(&self.read()).finish()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn readers_never_see_a_torn_value() {
        let lock = SeqLock::new([0u64; 4]);
        let rounds = if crate::face::SHRUNK { 20 } else { 20_000 };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let value = lock.read();
                        assert_eq!(value, [value[0]; 4]);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..rounds {
                        lock.update(|old| old.map(|word| word + 1));
                    }
                });
            }
        });
        assert_eq!(lock.read(), [2 * rounds; 4]);
    }

    #[test]
    fn a_change_may_look_without_changing_anything() {
        let lock = SeqLock::new([3u64, 4]);
        let before = lock.count.begin();
        assert_eq!(lock.change(|value| value[1]), 4);
        assert!(!lock.count.retry(before), "readers were disturbed");
        lock.change(|value| value[1] = 5);
        assert_eq!((lock.read(), lock.count.retry(before)), ([3, 5], true));
    }

    #[test]
    fn a_panicking_change_leaves_the_old_value_readable() {
        let lock = SeqLock::new([3u64, 4]);
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lock.update(|_| panic!("on purpose"))));
        assert!(caught.is_err());
        assert_eq!(lock.read(), [3, 4]);
    }
}
