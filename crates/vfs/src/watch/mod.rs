//! Watch: what tests of other programs ask of a file system: calls that fail when they are to ([`fault`]), and what a crash
//! would leave now ([`crash`]).
//!
//! # Theory
//! Both need to know more than a file system needs itself: which names lead to an inode, and what changed in which
//! order. So a file system keeps no such record until a test asks for it. From then on each change, a
//! [`Section`](crate::durable::Section), holds the watch's mutex from begin to end, and puts down what it did:
//! ```text
//!   call ── hooks? none ──────────────────────────────────────────> as ever
//!              └── some: rules (fault.rs) ── section: [ mutex; change; Step, Edits ] (journal.rs)
//! ```
//! A file system that is watched is slower, and its changes come one after another.
//!
//! # Lock order
//! `vfs.watch` comes after the rename lock and before a store's. It is not taken in a read section: a thread that holds it may wait for a
//! grace period.
//!
//! # Cost
//! Nobody watches: a load of a word that does not change, and a branch, for each change, read, open and fsync.

pub(crate) mod caller;
pub(crate) mod crash;
pub(crate) mod fault;
pub(crate) mod history;
mod journal;
pub(crate) mod losses;
mod names;

#[cfg(test)]
mod name_tests;
#[cfg(test)]
mod tests;

use crate::lock_class::WATCH;
use crate::superblock::Shared;
use crate::{Errno, Inode, InodeRef, Superblock};
use fault::Rule;
use journal::{ChangeRecorder, ChangedAttributes, Edit, Journal, JournalStep};
use names::Names;
use sluice_sync::{Mutex, MutexGuard};
use std::ops::Range;

/// PastKind calls have to look at, as bits.
pub(crate) mod hook {
    /// Changes go to a store. Immutable.
    pub(crate) const DURABLE: u8 = 1;
    /// Changes are put down.
    pub(crate) const CHANGES: u8 = 2;
    /// There are rules.
    pub(crate) const FAULTS: u8 = 4;
    /// It is known what a crash would leave.
    pub(crate) const CRASHES: u8 = 8;
    /// A tree is being copied as of a moment.
    pub(crate) const MOMENT: u8 = 16;
    /// Nothing has changed since a snapshot that the clock took: the first change clears it.
    pub(crate) const UNCHANGED: u8 = 32;
}

/// The state of a file system that is watched.
pub(crate) struct Watch(Mutex<State>);

/// *Protected by the mutex.*
#[derive(Default)]
pub(crate) struct State {
    /// The current names, once a rule or journal needs them.
    names: Option<Names>,
    rules: Vec<Rule>,
    last_rule: u64,
    journal: Option<Journal>,
    /// All events, if they are kept.
    recorder: Option<ChangeRecorder>,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch(Mutex::with_class(&WATCH, State::default()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// The place of the last change.
    pub(crate) fn now(&self) -> u64 {
        self.lock().journal.as_ref().map_or(0, Journal::now)
    }

    /// Records that all changes of file `ino` up to the change `end` are durable; without a file, all changes.
    pub(crate) fn synced(&self, ino: Option<u64>, end: u64) {
        let mut state = self.lock();
        if let Some(journal) = &mut state.journal {
            journal.synced(ino, end);
        }
        if let Some(recorder) = &mut state.recorder {
            recorder.synced(ino, end);
        }
    }

    /// Begins to put down a change.
    pub(crate) fn record(&self) -> Recording<'_> {
        Recording { state: self.lock(), step: JournalStep::default(), edits: Vec::new() }
    }
}

impl Shared {
    /// The watch, held, with the names of `superblock`, which is this one's; from now on they are kept up to date.
    ///
    /// # Errors
    /// The store's, when they cannot be loaded.
    fn watch_names(&self, superblock: &Superblock) -> Result<MutexGuard<'_, State>, Errno> {
        let mut state = self.make_watch().lock();
        if state.names.is_none() {
            // First, so that a change that begins now waits for us.
            self.set_hook(hook::CHANGES, true);
            state.names = Some(names_of(superblock)?);
        }
        Ok(state)
    }
}

fn names_of(superblock: &Superblock) -> Result<Names, Errno> {
    let mut names = Names::default();
    for_each_directory(superblock, |dir, name, inode| {
        names.set(&(dir.ino(), name.into()), Some(inode.ino()));
        Ok(())
    })?;
    Ok(names)
}

/// Calls `visit` with each name: its directory, itself, and where it leads.
fn for_each_directory(
    superblock: &Superblock,
    mut visit: impl FnMut(&InodeRef, &[u8], &InodeRef) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut directories = vec![superblock.root().clone()];
    while let Some(dir) = directories.pop() {
        for (name, inode) in dir.list_names(|_| true)? {
            visit(&dir, &name, &inode)?;
            if inode.is_dir() {
                directories.push(inode);
            }
        }
    }
    Ok(())
}

/// A change that is being put down. It counts when this is dropped.
pub(crate) struct Recording<'w> {
    state: MutexGuard<'w, State>,
    step: JournalStep,
    edits: Vec<(u64, Edit)>,
}

impl Recording<'_> {
    /// Records the current attributes of `inode`, which may be new, or may have gained or lost a name.
    pub(crate) fn inode(&mut self, inode: &Inode) {
        if self.state.journal.is_some() {
            self.step.attributes.insert(inode.ino(), ChangedAttributes::of(inode));
        }
    }

    /// In `dir`, `name` leads to this inode now.
    pub(crate) fn name(&mut self, dir: &Inode, name: &[u8], leads_to: Option<&InodeRef>) {
        let was_there =
            |inode: &&InodeRef| self.state.names.as_ref().is_some_and(|names| names.has(inode.ino()));
        let moved = leads_to.filter(|inode| inode.is_dir()).filter(was_there);
        self.step.moves_directory |= moved.is_some();
        self.step.names.push(((dir.ino(), name.into()), leads_to.map(|inode| inode.ino())));
    }

    /// `top` is new with all that is below it, contents included.
    pub(crate) fn tree(&mut self, top: &InodeRef) {
        let mut found = vec![top.clone()];
        while let Some(inode) = found.pop() {
            self.inode(&inode);
            if self.state.journal.is_some()
                && let Some(edit) = Edit::of(&inode, 0..u64::MAX)
            {
                self.step.contents.push((inode.ino(), edit));
            }
            if let Ok(dir) = inode.as_dir() {
                for (name, child) in dir.list(|_| true) {
                    self.name(&inode, &name, Some(&child));
                    found.push(child);
                }
            }
        }
    }

    /// Records the current contents of `inode` in `bytes`, and its size.
    pub(crate) fn contents(&mut self, inode: &Inode, bytes: Range<u64>) {
        if self.state.journal.is_some() {
            self.edits.extend(Edit::of(inode, bytes).map(|edit| (inode.ino(), edit)));
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let State { names, journal, recorder, .. } = &mut *self.state;
        if let Some(names) = names {
            for (slot, leads_to) in &self.step.names {
                names.set(slot, *leads_to);
            }
        }
        if let Some(recorder) = recorder {
            recorder.changed(&self.step, &self.edits);
        }
        if let Some(journal) = journal {
            journal.put_down(std::mem::take(&mut self.step), std::mem::take(&mut self.edits));
        }
    }
}
