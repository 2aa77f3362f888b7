//! Lock notes: on which files a process may hold POSIX locks.
//!
//! # Theory
//! Any close of a file ends the process's POSIX locks there, so a close must know whether there are any. Asking the
//! file would be to read, at each close, a line that all who lock the file write. So the process notes for itself,
//! before it asks for a lock, the file's bit in a small table, and a close looks there.
//!
//! Bits stay: two files may have the same one. Where a bit was set in vain, a close asks the file and finds nothing.
//!
//! # Ordering
//! | label | |
//! |---|---|
//! | note | who locks: sets the bit, is given the lock, looks whether the descriptor is still there; who closes: takes the descriptor away, looks at the bit. All SeqCst: one of them sees the other. |

use sluice_sync::CachePadded;
use sluice_sync::atomic::{AtomicU64, Ordering};

/// Lines of bits. Threads that lock different files for the first time rarely meet on one.
const LINES: usize = 8;

/// The files that the process has asked for POSIX locks on, and maybe others.
#[derive(Default)]
pub(super) struct LockNotes([CachePadded<AtomicU64>; LINES]);

impl LockNotes {
    /// Notes the file `ino` of the device `dev`.
    pub(super) fn note(&self, dev: u64, ino: u64) {
        let (line, bit) = self.place(dev, ino);
        // SeqCst(note): before the request; see the header. Once set, it is only read.
        if line.load(Ordering::SeqCst) & bit == 0 {
            line.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// False if the process never noted the file.
    pub(super) fn has(&self, dev: u64, ino: u64) -> bool {
        let (line, bit) = self.place(dev, ino);
        // SeqCst(note): after the descriptor was taken away; see the header.
        line.load(Ordering::SeqCst) & bit != 0
    }

    fn place(&self, dev: u64, ino: u64) -> (&AtomicU64, u64) {
        // Fibonacci hashing: numbers in a row go to different lines.
        let hash = (ino ^ dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let line = (hash >> 32) as usize % LINES;
        (&self.0[line], 1 << (hash >> 58))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found_and_little_else() {
        let notes = LockNotes::default();
        (0..10).for_each(|ino| notes.note(7, ino));
        assert!((0..10).all(|ino| notes.has(7, ino)));
        let found_in_vain = (10..1_010).filter(|&ino| notes.has(7, ino)).count();
        assert!(found_in_vain < 100, "{found_in_vain} of 1,000");
    }
}
