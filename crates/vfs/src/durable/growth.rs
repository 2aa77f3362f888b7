//! Growth: what a call asks before files of a store grow, and what it does on a disk that has no room for that.
//!
//! # Theory
//! Whether the disk has room is looked at by pushes; see `store/src/growth.rs`. Between two looks no more may be written than the reserve has
//! room for. Small calls are bounded by what may wait for a push. Large ones are counted before they write, and look themselves.

use crate::data::PAGE;
use crate::inode::settle;
use crate::superblock::Shared;
use crate::watch::fault::Calls;
use crate::{Errno, Inode};
use sluice_sync::percpu::Budget;
use std::ops::Range;

/// A call that writes more bytes than this looks at the disk first, and a clone of more changed bytes pushes them first.
const GROWTH_MIN: u64 = 1 << 20;

/// Bytes that a call is about to write, counted while this is there if they are many.
pub(crate) struct Growth<'d> {
    ahead: Option<&'d Budget>,
    bytes: u64,
}

impl Growth<'_> {
    /// The number of bytes that may be written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        self.ahead.into_iter().for_each(|ahead| ahead.give(self.bytes));
    }
}

impl Shared {
    /// Refuses growth as [`may_grow`](Self::may_grow) does, but only after the disk has got back the room of deleted files.
    /// Called where a section could be begun.
    ///
    /// # Errors
    /// `ENOSPC`.
    #[inline]
    pub(crate) fn make_room_to_grow(&self) -> Result<(), Errno> {
        self.may_grow().or_else(|errno| {
            settle();
            if self.durable().is_some_and(|durable| durable.store.make_room()) { Ok(()) } else { Err(errno) }
        })
    }

    /// Refuses what makes the file system grow while the disk of its store has room for deletions only.
    ///
    /// # Errors
    /// `ENOSPC`.
    #[inline]
    pub(crate) fn may_grow(&self) -> Result<(), Errno> {
        match self.durable() {
            Some(durable) if !durable.store.has_room() => Err(Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    /// Makes room for a write to `bytes` of `inode`, as [`make_room_to_grow`](Self::make_room_to_grow) does. Pages that it has,
    /// and shares with no other file, can be written when growth is refused.
    #[cold]
    fn make_room_to_write(&self, inode: &Inode, bytes: &Range<u64>) -> Result<(), Errno> {
        let has_room = || {
            self.durable().is_some_and(|durable| {
                durable.store.has_room_held_back()
                    && inode.data.has_pages(bytes)
                    && !inode.is_shared_in(durable, bytes)
            })
        };
        if has_room() {
            return Ok(());
        }
        self.make_room_to_grow().or_else(|errno| if has_room() { Ok(()) } else { Err(errno) })
    }

    /// How many of `bytes` a call may write at once: all, unless they are many and the disk has no room for them beside what is about to be
    /// pushed. Then fewer, for which the reserve has room: the call does less than it was asked to.
    pub(crate) fn may_grow_by(&self, bytes: u64) -> Growth<'_> {
        let Some(durable) = self.durable() else { return Growth { ahead: None, bytes } };
        let ahead = &durable.pending.ahead;
        if bytes <= GROWTH_MIN {
            return Growth { ahead: None, bytes };
        }
        ahead.exceed(bytes);
        let growth = Growth { ahead: Some(ahead), bytes };
        let pages = (ahead.used() + durable.pending.changed_bytes()).div_ceil(PAGE);
        if durable.store.has_room_for(pages) { growth } else { Growth { ahead: None, bytes: GROWTH_MIN } }
    }

    /// Has the store get contents of `original`, or of any file for a directory, that it does not have yet, unless they are few: it would get
    /// them for a copy, too. Called as [`make_room_to_grow`](Self::make_room_to_grow).
    ///
    /// # Errors
    /// `ENOSPC`; the store's.
    pub(crate) fn make_room_to_copy(&self, original: &Inode) -> Result<(), Errno> {
        if let Some(durable) = self.durable() {
            let changed = match original.stored().filter(|_| !original.is_dir()) {
                Some(stored) => stored.changed.lock().counted,
                None => durable.pending.changed_bytes(),
            };
            if changed > GROWTH_MIN {
                durable.sync()?;
            }
            durable.await_room_for_changes()?;
        }
        self.make_room_to_grow()
    }

    /// Has the disk get back what was deleted, if it has no room for `bytes` that are about to be reserved. Called as
    /// [`make_room_to_grow`](Self::make_room_to_grow).
    pub(crate) fn make_room_to_reserve(&self, bytes: u64) {
        let pages = bytes.div_ceil(PAGE);
        if let Some(durable) = self.durable()
            && !durable.store.has_room_for(pages)
        {
            settle();
            // The reservation fails if there is too little all the same.
            durable.store.make_room_for(pages);
        }
    }

    /// The prefix of `data` that may be written to `inode`, among `bytes`.
    ///
    /// # Errors
    /// Errors of [`may_grow`](Self::may_grow), and those that are injected.
    #[inline]
    pub(crate) fn may_write<'d>(
        &self,
        inode: &Inode,
        bytes: &Range<u64>,
        data: &'d [u8],
    ) -> Result<&'d [u8], Errno> {
        if self.has_no_hooks() {
            return Ok(data);
        }
        let most = inode.meet_faults(Calls::WRITE)?;
        self.let_names_leave();
        self.may_grow().or_else(|_| self.make_room_to_write(inode, bytes))?;
        Ok(&data[..data.len().min(most)])
    }
}
