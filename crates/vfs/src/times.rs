//! Times: when a file was read, written and changed.
//!
//! # Theory
//! Three words, each stored alone. The clock ticks every few milliseconds, as Linux's did for decades, and a word that
//! would not move is not written: so calls of one tick that change the contents of one file, or add names to one
//! directory, do not meet here. A reader may see the new time of one kind with the old one of another.
//!
//! # Invariants
//! - a time does not go back, unless the clock was set back or somebody asked for it.

use crate::durable::Section;
use crate::stat::Timestamp;
use crate::{Errno, Inode, InodeFlags, InodeRef};
use sluice_sync::atomic::{AtomicU64, Ordering};

/// The times that change. Each is a packed [`Timestamp`]. *Atomic (stands alone).*
pub(crate) struct Times {
    atime: AtomicU64,
    mtime: AtomicU64,
    ctime: AtomicU64,
}

impl Times {
    /// The times of an inode made `now`.
    pub(crate) fn new(now: Timestamp) -> Times {
        let word = || AtomicU64::new(now.pack());
        Times { atime: word(), mtime: word(), ctime: word() }
    }

    /// When contents, or names in a directory, were last read.
    pub(crate) fn atime(&self) -> Timestamp {
        load(&self.atime)
    }

    /// When contents, or names in a directory, last changed.
    pub(crate) fn mtime(&self) -> Timestamp {
        load(&self.mtime)
    }

    /// When anything last changed.
    pub(crate) fn ctime(&self) -> Timestamp {
        load(&self.ctime)
    }

    /// Sets what is given, whatever it was.
    pub(crate) fn set(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) {
        for (word, time) in [(&self.atime, atime), (&self.mtime, mtime)] {
            if let Some(time) = time {
                // Relaxed: a time publishes nothing.
                word.store(time.pack(), Ordering::Relaxed);
            }
        }
    }

    /// Sets each to what it is in `other`.
    pub(crate) fn set_as(&self, other: &Times) {
        self.set(Some(other.atime()), Some(other.mtime()));
        // Relaxed: a time publishes nothing.
        self.ctime.store(other.ctime().pack(), Ordering::Relaxed);
    }
}

fn load(word: &AtomicU64) -> Timestamp {
    // Relaxed: a time publishes nothing.
    Timestamp::unpack(word.load(Ordering::Relaxed))
}

/// Moves `words` to the time of the clock: whether any was elsewhere.
fn advance<const WORDS: usize>(words: [&AtomicU64; WORDS]) -> bool {
    // Relaxed: a time publishes nothing. Before the clock is read: what we replace is then no later than that.
    let seen = words.map(|word| word.load(Ordering::Relaxed));
    let now = Timestamp::now().pack();
    words.into_iter().zip(seen).for_each(|(word, seen)| advance_from(word, seen, now));
    seen != [now; WORDS]
}

/// Moves `word`, which was `seen` before the clock was at `now`, to `now`, unless somebody else has moved it further.
fn advance_from(word: &AtomicU64, mut seen: u64, now: u64) {
    while seen != now {
        // Relaxed: a time publishes nothing.
        match word.compare_exchange(seen, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(theirs) if theirs > now => return,
            Err(theirs) => seen = theirs,
        }
    }
}

impl Inode {
    /// Contents, or names in this directory, changed now: whether that moved a time.
    pub(crate) fn touch_mtime(&self) -> bool {
        advance([&self.times.mtime, &self.times.ctime])
    }

    /// Attributes or names of this inode changed now.
    pub(crate) fn touch_ctime(&self) {
        advance([&self.times.ctime]);
    }

    /// Attributes, names or contents of this inode changed at `time`.
    pub(crate) fn change_ctime(&self, time: Timestamp) {
        // Relaxed: a time publishes nothing.
        self.times.ctime.store(time.pack(), Ordering::Relaxed);
    }
}

impl InodeRef {
    /// Contents, or names in this directory, were read now: the access time moves as Linux moves it by default
    /// (`relatime`), when it is not past the last change, or a day old.
    pub(crate) fn touch_atime(&self) {
        const DAY: i64 = 24 * 60 * 60;
        let Times { atime, mtime, ctime } = &self.times;
        // Relaxed: a time publishes nothing. The later time has the larger word.
        let [seen, written, changed] = [atime, mtime, ctime].map(|word| word.load(Ordering::Relaxed));
        let is_old = || Timestamp::now().sec - Timestamp::unpack(seen).sec >= DAY;
        if (seen <= written || seen <= changed || is_old()) && !self.flags().contains(InodeFlags::NOATIME) {
            self.touch(atime);
        }
    }

    /// As after a read, however often that was before (`strictatime`).
    pub fn touch_atime_strictly(&self) {
        if !self.flags().contains(InodeFlags::NOATIME) {
            self.touch(&self.times.atime);
        }
    }

    /// Moves the access time, which stands in `atime`, unless this is in a snapshot.
    fn touch(&self, atime: &AtomicU64) {
        if !self.is_read_only() && advance([atime]) {
            self.note_touched();
        }
    }

    /// Begins a change of this inode alone.
    ///
    /// # Errors
    /// The store's, of a durable file system.
    fn begin_alone(&self) -> Result<Section<'_>, Errno> {
        self.check_changes()?;
        loop {
            let section = self.shared.begin(0)?;
            if self.is_kept() {
                return Ok(section);
            }
            drop(section);
            self.keep();
        }
    }

    /// Contents of this file changed now, says a cache above that wrote them without moving the times.
    ///
    /// # Errors
    /// The store's, of a durable file system.
    pub fn note_written(&self) -> Result<(), Errno> {
        let section = self.begin_alone()?;
        let moved = self.touch_mtime();
        section.times_of(self, moved);
        Ok(())
    }

    /// Attributes, names or contents of this inode changed at `time`, says a cache above that keeps the times itself.
    ///
    /// # Errors
    /// The store's, of a durable file system.
    pub fn set_ctime(&self, time: Timestamp) -> Result<(), Errno> {
        let section = self.begin_alone()?;
        self.change_ctime(time);
        section.inode(self);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::thread;

    #[test]
    fn a_time_that_many_move_never_goes_back() {
        let (clock, word) = (AtomicU64::new(1), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let seen = word.load(Ordering::SeqCst);
                        advance_from(&word, seen, clock.fetch_add(1, Ordering::SeqCst));
                    }
                });
            }
            let mut before = 0;
            for _ in 0..20_000 {
                let now = word.load(Ordering::SeqCst);
                assert!(now >= before, "{now} after {before}");
                before = now;
            }
        });
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        let word = AtomicU64::new(9);
        advance_from(&word, 9, 3);
        assert_eq!(word.into_inner(), 3);
    }
}
