//! History: the changes of a tracked file system in their order, to see what a power failure at any of them would have left.
//!
//! # Theory
//! ```text
//!   start ── event 1 ── event 2 ── ... ── event n        (durable at the start; changes and synchronisations)
//!                    ^ CrashPoint: a journal as it was here; each choice of Losses is a tree
//! ```
//! The journal of a live file system knows the present alone. A history keeps its events, with the process that made each, and
//! plays them again into a journal of its own.

use super::caller::CalledBy;
use super::crash::Crash;
use super::hook;
use super::journal::{ChangeRecorder, Edit, Journal, JournalStep, PastEvent, PastKind};
use super::losses::{Losses, LostItem};
use super::names::{Names, Slot};
use crate::{Errno, FileType, Fs, Options, Superblock};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

impl Fs {
    /// Tracks crashes as [`track_crashes`](Self::track_crashes) does, and keeps every change from now on for
    /// [`history`](Self::history). The memory for that grows with the bytes written.
    ///
    /// `stamp` is called at each change and each `fsync`, with the process that makes the call (0 if it is this one), while that waits;
    /// its answer is [`PastChange::stamp`]. It must not call into the file system.
    ///
    /// ```
    /// use sluice_vfs::{File, Fs};
    ///
    /// let fs = Fs::new();
    /// fs.record_history(|_process| 0)?;
    /// fs.write("/new", "100")?;
    /// fs.rename("/new", "/balance")?;
    /// let history = fs.history()?;
    /// let mut point = history.begin();
    /// let mut empty = None;
    /// while point.advance() {
    ///     for losses in point.single_losses() {
    ///         let left = point.crash(&losses)?.read_to_string("/balance");
    ///         if left.as_deref() == Ok("") && empty.is_none() {
    ///             empty = Some((point.last().expect("a change").call.clone(), point.lost(&losses)[0].0.sync.clone()));
    ///         }
    ///     }
    /// }
    /// // The rename can survive without the bytes: an fsync of the file is missing.
    /// assert_eq!(empty, Some(("rename /new to /balance".into(), "/new".into())));
    /// # Ok::<(), sluice_vfs::Errno>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`Superblock::track_crashes`].
    pub fn record_history(&self, stamp: impl Fn(u32) -> u64 + Send + 'static) -> Result<(), Errno> {
        let superblock = self.superblock();
        superblock.track_crashes()?;
        let mut state = superblock.root().shared.watch_names(superblock)?;
        let start = Journal::begin(superblock)?;
        let names = start.image.names.clone();
        state.recorder = Some(ChangeRecorder { start, names, events: Vec::new(), stamp: Box::new(stamp) });
        Ok(())
    }

    /// Takes the changes since [`record_history`](Self::record_history), and ends the recording.
    ///
    /// # Errors
    /// `EINVAL` if nothing is recorded.
    pub fn history(&self) -> Result<ChangeHistory, Errno> {
        let superblock = self.superblock();
        superblock.write_back_all()?;
        let watch = superblock.root().shared.watch().ok_or(Errno::EINVAL)?;
        let recorder = watch.lock().recorder.take().ok_or(Errno::EINVAL)?;
        let ChangeRecorder { start, mut names, events, .. } = recorder;
        let changes = events.iter().map(|event| described(event, &mut names)).collect();
        Ok(ChangeHistory { start, events, changes, options: superblock.options_after_a_crash() })
    }
}

impl Superblock {
    /// The calling thread makes a call for `process` until the answer is dropped. Returns None at no cost if the file system does not track crashes.
    pub fn called_by(&self, process: u32) -> Option<CalledBy> {
        self.root().shared.has_hook(hook::CRASHES).then(|| CalledBy::begin(process))
    }
}

/// An event of a [`ChangeHistory`]: a call that changed something, or synchronised it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastChange {
    /// The process that made the call; 0 if it is unknown, as for pages of shared mappings.
    pub process: u32,
    /// The answer of the function that [`Fs::record_history`] was given.
    pub stamp: u64,
    /// The call in words: `rename /a to /b`, `write 512 bytes at 0 of /db`, `fsync /db`.
    pub call: String,
    /// The path whose `fsync` after the call would have made the change durable; of a synchronisation, its path.
    pub sync: PathBuf,
    /// Whether it is a synchronisation.
    pub is_sync: bool,
}

/// The changes of a file system, in order, and what it held before them. Made by [`Fs::history`].
pub struct ChangeHistory {
    start: Journal,
    events: Vec<PastEvent>,
    /// One for each event.
    changes: Vec<PastChange>,
    options: Options,
}

impl fmt::Debug for ChangeHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeHistory").field("changes", &self.changes).finish_non_exhaustive()
    }
}

impl fmt::Debug for CrashPoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashPoint")
            .field("events", &self.at)
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

impl ChangeHistory {
    /// The changes and synchronisations, oldest first.
    pub fn changes(&self) -> &[PastChange] {
        &self.changes
    }

    /// The moment before the first change.
    pub fn begin(&self) -> CrashPoint<'_> {
        CrashPoint {
            history: self,
            journal: self.start.copied(),
            at: 0,
            place_of: BTreeMap::new(),
            items: Vec::new(),
        }
    }
}

/// A moment in a [`ChangeHistory`] at which the power may fail.
pub struct CrashPoint<'h> {
    history: &'h ChangeHistory,
    journal: Journal,
    at: usize,
    /// From the place in the order of all changes to the event.
    place_of: BTreeMap<u64, usize>,
    /// All changes so far, oldest first.
    items: Vec<LostItem>,
}

impl<'h> CrashPoint<'h> {
    /// Moves to the moment after the next event. Returns false at the end of the history.
    pub fn advance(&mut self) -> bool {
        let Some(event) = self.history.events.get(self.at) else { return false };
        match &event.what {
            PastKind::Change(step, edits) => {
                self.journal.put_down(step.clone(), edits.clone());
                let place = self.journal.now();
                self.place_of.insert(place, self.at);
                self.items.extend(LostItem::of_change(place, step, edits));
            }
            PastKind::Sync(ino, end) => self.journal.synced(*ino, *end),
        }
        self.at += 1;
        true
    }

    /// Number of events before this moment.
    pub fn events(&self) -> usize {
        self.at
    }

    /// The event just before this moment.
    pub fn last(&self) -> Option<&'h PastChange> {
        self.at.checked_sub(1).and_then(|last| self.history.changes.get(last))
    }

    /// The event just after this moment.
    pub fn next(&self) -> Option<&'h PastChange> {
        self.history.changes.get(self.at)
    }

    /// Losses that `seed` chooses among the changes that are not durable here: all with seed 0, none with seed 1.
    pub fn losses(&self, seed: u64) -> Losses {
        Losses::chosen(&self.journal, seed)
    }

    /// The loss of each change that is not durable here, alone; oldest first.
    pub fn single_losses(&self) -> Vec<Losses> {
        Losses::singles(&self.journal)
    }

    /// The events whose changes are among `losses`, oldest first, and whether a part of each is left: the write is torn.
    pub fn lost(&self, losses: &Losses) -> Vec<(&'h PastChange, bool)> {
        let change = |place| self.place_of.get(&place).and_then(|event| self.history.changes.get(*event));
        losses.places().into_iter().filter_map(|(place, is_torn)| Some((change(place)?, is_torn))).collect()
    }

    /// A number that is the same for losses that leave the same tree here or at another moment of this history.
    pub fn fingerprint(&self, losses: &Losses) -> u64 {
        losses.fingerprint_of(&self.items)
    }

    /// The file system that a power failure here leaves, in memory and without limits, if it takes `losses` away.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn crash(&self, losses: &Losses) -> Result<Fs, Errno> {
        let crash = Crash { journal: &self.journal, losses };
        crash.superblock(self.history.options.clone()).map(Fs::with_superblock)
    }
}

/// `event` in words, with the paths before it; `names` become those after it.
fn described(event: &PastEvent, names: &mut Names) -> PastChange {
    let (call, sync, is_sync) = match &event.what {
        PastKind::Sync(None, _) => ("sync".to_owned(), PathBuf::from("/"), true),
        PastKind::Sync(Some(ino), _) => {
            let path = path_of(names, *ino);
            (format!("fsync {}", path.display()), path, true)
        }
        PastKind::Change(step, edits) => {
            let (call, sync) = described_change(step, edits, names);
            step.names.iter().for_each(|(slot, leads_to)| _ = names.set(slot, *leads_to));
            (call, sync, false)
        }
    };
    PastChange { process: event.process, stamp: event.stamp, call, sync, is_sync }
}

fn described_change(step: &JournalStep, edits: &[(u64, Edit)], names: &Names) -> (String, PathBuf) {
    let path = |slot: &Slot| {
        let name = || Path::new("...").join(OsStr::from_bytes(&slot.1));
        names.path(slot).unwrap_or_else(name)
    };
    let directory = |slot: &Slot| path_of(names, slot.0);
    match step.names.as_slice() {
        [] => match (edits, step.attributes.keys().next()) {
            ([(ino, edit), ..], _) => {
                let path = path_of(names, *ino);
                let bytes = edit.concerned();
                let call = if edit.is_barrier() {
                    format!("truncate {} to {} bytes", path.display(), edit.size)
                } else {
                    format!(
                        "write {} bytes at {} of {}",
                        bytes.end.saturating_sub(bytes.start),
                        bytes.start,
                        path.display()
                    )
                };
                (call, path)
            }
            ([], Some(ino)) => {
                let path = path_of(names, *ino);
                (format!("change attributes of {}", path.display()), path)
            }
            ([], None) => ("nothing".to_owned(), PathBuf::from("/")),
        },
        [(slot, None)] => (format!("remove {}", path(slot).display()), directory(slot)),
        [(slot, Some(ino))] => {
            let kind = match step.attributes.get(ino).map(|attributes| attributes.file_type) {
                _ if names.has(*ino) => "link",
                Some(FileType::Directory) => "make directory",
                Some(FileType::Symlink) => "make symbolic link",
                _ => "create",
            };
            (format!("{kind} {}", path(slot).display()), directory(slot))
        }
        [(one, None), (other, Some(_))] | [(other, Some(_)), (one, None)] => {
            (format!("rename {} to {}", path(one).display(), path(other).display()), directory(other))
        }
        [(one, Some(_)), (other, Some(_))] if names.path(one).is_some() && names.path(other).is_some() => {
            (format!("exchange {} and {}", path(one).display(), path(other).display()), directory(other))
        }
        all => {
            // The top stands in a directory that was there before.
            let top = all.iter().map(|(slot, _)| slot).find(|slot| names.has(slot.0));
            let top = top.unwrap_or(&all[0].0);
            (format!("copy a tree to {}", path(top).display()), directory(top))
        }
    }
}

/// A path of inode `ino`, or words if it has none.
fn path_of(names: &Names, ino: u64) -> PathBuf {
    names.paths(ino).into_iter().next().unwrap_or_else(|| PathBuf::from("a file without a name"))
}
