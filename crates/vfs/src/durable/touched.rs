//! Touched: access times that reads alone moved, on their way to the store.
//!
//! # Theory
//! A read that moves an access time puts nothing down: it *lists* the inode, once until the lists are *swept*. A sweep puts down the
//! records of all inodes that are listed, as any change does. There is one before the file system is closed, when all of it is made
//! durable, and before inodes leave memory; an fsync puts down that of its file. So a crash loses only access times, as with ext4's
//! `lazytime`. An inode that loses its last name leaves the lists, which would keep it in memory.
//!
//! # Ordering
//! A reader moves the time and then looks whether the inode is listed; a sweep takes it off and then looks at the time. Both have a
//! fence between (touched): either the sweep sees the time, or the reader lists the inode again.
//!
//! # Cost
//! Nothing for a read that moves no time. Each CPU has a list of its own.

use super::Durable;
use super::keys::FIXED;
use crate::inode::flag;
use crate::lock_class::DURABLE_PENDING;
use crate::{Inode, InodeRef};
use sluice_sync::atomic::{Ordering, fence};
use sluice_sync::face::name_value;
use sluice_sync::percpu::PerCpu;
use sluice_sync::{Mutex, refcache};
use std::collections::BTreeMap;
use std::mem;

/// The inodes whose access time may be newer than in their records.
pub(super) struct TouchedSet {
    /// By number. *Per CPU; each protected by its mutex.*
    lists: PerCpu<Mutex<BTreeMap<u64, InodeRef>>>,
}

impl TouchedSet {
    pub(super) fn new() -> TouchedSet {
        let lists: PerCpu<Mutex<_>> = PerCpu::new(|_| Mutex::with_class(&DURABLE_PENDING, BTreeMap::new()));
        lists.iter().for_each(|list| name_value(list, "TouchedSet", "lists"));
        TouchedSet { lists }
    }

    /// `inode` leaves the lists.
    pub(super) fn forget(&self, inode: &Inode) {
        if inode.has(flag::TOUCHED)
            && let Some(list) = inode.stored().and_then(|stored| self.lists.get(stored.touched_at()))
        {
            let forgotten = list.lock().remove(&inode.ino());
            // With nothing locked.
            drop(forgotten);
        }
    }

    /// Empties the lists.
    pub(super) fn take(&self) -> Vec<BTreeMap<u64, InodeRef>> {
        self.lists.iter().map(|list| mem::take(&mut *list.lock())).collect()
    }
}

impl InodeRef {
    /// The access time has moved because of a read.
    #[inline]
    pub(crate) fn note_touched(&self) {
        if let Some(durable) = self.shared.durable() {
            durable.list_touched(self);
        }
    }

    /// Puts the record down, whose access time is older.
    pub(super) fn put_down_atime(&self) {
        // An error is ignored: access times of a failed store are not needed.
        if let Ok(section) = self.shared.begin_put_down(FIXED) {
            section.inode(self);
        }
    }
}

impl Durable {
    #[inline(never)]
    fn list_touched(&self, inode: &InodeRef) {
        // SeqCst(touched): the time was moved before. Pairs with the fence in sweep().
        fence(Ordering::SeqCst);
        // A file without a name has no record, and would stay in memory.
        if inode.has(flag::TOUCHED) || !inode.has(flag::RECORDED) || !inode.has_name() {
            return;
        }
        let Some(stored) = inode.stored() else { return };
        let (lists, at) = (&self.touched.lists, self.touched.lists.here_at());
        let Some(list) = lists.get(at) else { return };
        stored.set_touched_at(at);
        inode.raise(flag::TOUCHED);
        let own = inode.clone();
        let mut listed = list.lock();
        // Relaxed: with the list locked. A close empties it after it is marked.
        let spare =
            if self.closed.load(Ordering::Relaxed) { Some(own) } else { listed.insert(inode.ino(), own) };
        drop(listed);
        drop(spare);
    }

    /// Puts down the access times of all inodes that are listed. Called where a section can be begun.
    pub(super) fn sweep(&self) {
        if refcache::in_destructor() {
            return;
        }
        for list in self.touched.take() {
            for inode in list.values() {
                inode.lower(flag::TOUCHED);
                // SeqCst(touched): before the time is looked at. Pairs with the fence in list_touched().
                fence(Ordering::SeqCst);
                if inode.is_touched() {
                    inode.put_down_atime();
                }
            }
        }
    }
}
