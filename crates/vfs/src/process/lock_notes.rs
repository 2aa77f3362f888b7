//! Lock notes: on which files a process may hold POSIX locks.
//!
//! # Theory
//! Any close of a file ends the process's POSIX locks there, so a close must know whether there are any. Asking the
//! file would be to read, at each close, a line that every lock of the file writes. So the process keeps a small table
//! for itself: a lock notes its file when it is granted, a close looks here, and a close that released what there was
//! forgets the file.
//!
//! A place in the table is free, or has one file, or has *several* for ever: then each close of a file that belongs
//! there asks the file, maybe in vain. Files are known by the address of their inode. Whose inode is gone cannot be
//! mistaken: a new one at its address is asked once in vain.
//!
//! # Ordering
//! | label | |
//! |---|---|
//! | note | a lock: notes the file, looks whether the descriptor is still there; a close: takes the descriptor away, looks for the note. All SeqCst: one of them sees the other. |
//!
//! Notes of one file are made and forgotten with its ranges locked, so that they are in the order of grants and
//! releases, and no release forgets the note of a later grant.

use crate::Inode;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::{CachePadded, fibonacci};
use std::ptr;

/// Lines of the table. Threads that lock different files for the first time rarely meet on one.
const LINES: usize = 32;

/// Places of a line.
const PLACES: usize = 4;

/// A place that no file has.
const FREE: u64 = 0;

/// A place that several files have. No inode's address is odd.
const SEVERAL: u64 = 1;

/// The files on which the process may hold POSIX locks.
#[derive(Default)]
pub(super) struct LockNotes([CachePadded<[AtomicU64; PLACES]>; LINES]);

impl LockNotes {
    /// Notes that the process has a lock of `file`, whose ranges are locked.
    pub(super) fn note(&self, file: &Inode) {
        let (place, file) = self.place(file);
        // SeqCst(note): before the look for the descriptor. A file that is noted already is only read.
        let mut noted = place.load(Ordering::SeqCst);
        while noted != file && noted != SEVERAL {
            let new = if noted == FREE { file } else { SEVERAL };
            match place.compare_exchange(noted, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => noted = now,
            }
        }
    }

    /// Forgets `file`, whose ranges are locked and of which the process has no lock.
    pub(super) fn forget(&self, file: &Inode) {
        let (place, file) = self.place(file);
        // SeqCst(note): as in note(). A place that holds several files stays as it is.
        let _ = place.compare_exchange(file, FREE, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// False if the process has no lock of `file`.
    pub(super) fn has(&self, file: &Inode) -> bool {
        let (place, file) = self.place(file);
        // SeqCst(note): after the descriptor was taken away; see the header.
        let noted = place.load(Ordering::SeqCst);
        noted == file || noted == SEVERAL
    }

    /// The place of `file` in the table, and its tag there.
    fn place(&self, file: &Inode) -> (&AtomicU64, u64) {
        // The hash uses the inode number, which is the same in each run. Numbers in a row go to different lines.
        let hash = fibonacci(file.ino() ^ file.dev().rotate_left(32));
        let (line, place) = ((hash >> 32) as usize % LINES, (hash >> 48) as usize % PLACES);
        (&self.0[line][place], ptr::from_ref(file).addr() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cred, Fs, InodeRef, NewInode, NewKind};

    fn files(count: usize) -> Vec<InodeRef> {
        let (fs, cred) = (Fs::new(), Cred::root());
        let new = NewInode { kind: NewKind::Regular, mode: 0o644, umask: 0 };
        let root = fs.process(cred.clone()).fs().superblock().root().clone();
        (0..count).map(|n| root.create(&cred, n.to_string().as_bytes(), &new).expect("it is new")).collect()
    }

    #[test]
    fn what_was_noted_is_found_until_it_is_forgotten() {
        let (notes, files) = (LockNotes::default(), files(2 * LINES * PLACES));
        let (noted, others) = files.split_at(8);
        noted.iter().for_each(|file| notes.note(file));
        assert!(noted.iter().all(|file| notes.has(file)));
        let found_in_vain = others.iter().filter(|file| notes.has(file)).count();
        assert!(found_in_vain < 24, "{found_in_vain} of {}", others.len());
        let several =
            noted.iter().filter(|file| notes.place(file).0.load(Ordering::SeqCst) == SEVERAL).count();
        noted.iter().for_each(|file| notes.forget(file));
        assert_eq!(noted.iter().filter(|file| notes.has(file)).count(), several);
    }

    #[test]
    fn a_file_that_is_forgotten_leaves_the_others_of_its_place_noted() {
        let (notes, files) = (LockNotes::default(), files(2 * LINES * PLACES));
        files.iter().for_each(|file| notes.note(file));
        let (forgotten, kept) = files.split_at(LINES * PLACES);
        forgotten.iter().for_each(|file| notes.forget(file));
        assert!(kept.iter().all(|file| notes.has(file)));
    }
}
