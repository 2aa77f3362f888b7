//! Members: inodes that count for a quota, and how they come to it.

use super::{DirectoryQuota, NO_QUOTA, QuotaStage, QuotaUse, UNIT, UNITS_A_PAGE};
use crate::data::{PAGE, Space};
use crate::inode::{Body, flag, settle};
use crate::ops::Obstacle;
use crate::superblock::{ROOT_INO, Shared};
use crate::{Errno, Inode, InodeRef, StatFs};
use sluice_sync::atomic::Ordering;
use sluice_sync::rcu;
use std::collections::BTreeMap;

/// So many directories get a number before changes are waited for, and a store has that.
const BATCH: usize = if cfg!(test) { 1 } else { 256 };

impl DirectoryQuota {
    /// Takes `units`, when what lost its last user is released if need be.
    ///
    /// # Errors
    /// `EDQUOT`.
    fn take_settling(&self, units: u64) -> Result<(), Errno> {
        self.take(units).or_else(|_| {
            settle();
            self.take(units)
        })
    }
}

/// Units that the pages and the body of an inode count for.
fn units(pages: u64, body: &Body) -> u64 {
    pages * UNITS_A_PAGE + body.charged().div_ceil(UNIT)
}

impl Inode {
    /// The number of the quota that it belongs to.
    pub(crate) fn quota_number(&self) -> u32 {
        // Relaxed: a change of a name compares numbers with the name locked; a charge is made with the contents locked.
        self.quota.load(Ordering::Relaxed)
    }

    pub(crate) fn set_quota_number(&self, number: u32) {
        // Relaxed: as above.
        self.quota.store(number, Ordering::Relaxed);
    }

    /// The quota that it counts for.
    fn counts_for(&self) -> Option<&DirectoryQuota> {
        match self.quota_number() {
            NO_QUOTA => None,
            number => self.shared.quotas.get(number),
        }
    }

    /// The number that a new inode in this directory gets.
    pub(crate) fn quota_below(&self) -> u32 {
        match self.quota_number() {
            NO_QUOTA => NO_QUOTA,
            number => self.shared.quotas.standing(number).map_or(NO_QUOTA, DirectoryQuota::number),
        }
    }

    /// Counts the body of this inode, which is new, for its quota.
    ///
    /// # Errors
    /// `EDQUOT`, and then it has none.
    pub(crate) fn charge_quota(&self) -> Result<(), Errno> {
        let units = units(0, &self.body);
        let Some(quota) = self.counts_for().filter(|_| units > 0) else { return Ok(()) };
        quota.take_settling(units).inspect_err(|_| self.set_quota_number(NO_QUOTA))
    }

    /// Counts this inode, which was found in the store and not counted, for its quota.
    pub(crate) fn count_found_for_quota(&self) {
        if let Some(quota) = self.counts_for() {
            quota.used.exceed(units(self.pages(), &self.body));
        }
    }

    /// Bytes that it counts for.
    pub(crate) fn charged_to_quota(&self) -> u64 {
        units(self.pages(), &self.body) * UNIT
    }

    /// The inode is no more.
    pub(crate) fn discharge_quota(&self) {
        if let Some(quota) = self.counts_for() {
            quota.used.give(units(self.pages(), &self.body));
        }
    }

    /// Whether the quota has room for `pages` more, if there is one.
    pub(crate) fn has_quota_for(&self, pages: u64) -> bool {
        self.counts_for().is_none_or(|quota| quota.free() >= pages * UNITS_A_PAGE)
    }

    /// Gives the inode the number `to`; `take` counts it there. The contents are locked.
    fn move_to_quota(
        &self,
        to: u32,
        take: impl FnOnce(&DirectoryQuota, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let units = units(self.pages(), &self.body);
        if let Some(quota) = self.shared.quotas.get(to) {
            take(quota, units)?;
        }
        if let Some(quota) = self.counts_for() {
            quota.used.give(units);
        }
        self.set_quota_number(to);
        Ok(())
    }

    /// Gives the inode the number `to`, whatever the limit there.
    pub(crate) fn bring_to_quota(&self, to: u32) {
        let _contents = self.data.alone();
        if self.quota_number() != to {
            let _ = self.move_to_quota(to, |quota, units| {
                quota.used.exceed(units);
                Ok(())
            });
        }
    }
}

impl InodeRef {
    /// The inode is about to lose its name in one directory for another name in `dir`: takes it along to the quota there. With the names
    /// locked. Returns the number that it had, if that changed.
    ///
    /// # Errors
    /// `EXDEV` for a directory and a file of several names; `EDQUOT`; that the contents are locked.
    pub(crate) fn follow_name(&self, dir: &Inode) -> Result<Option<u32>, Obstacle> {
        let (had, to) = (self.quota_number(), dir.quota_below());
        if self.is_dir() {
            return Err(Errno::EXDEV.into());
        }
        let _contents = self.contents_alone()?;
        if self.nlink() > 1 {
            return Err(Errno::EXDEV.into());
        }
        // No settling with names locked: the caller does that, and tries again.
        self.move_to_quota(to, |quota, units| quota.take(units))?;
        Ok(Some(had))
    }

    /// Counts a name more, in the directory `dir`.
    ///
    /// # Errors
    /// `EXDEV`, `EDQUOT`, `ENOENT`, `EMLINK`; that the contents are locked.
    pub(crate) fn add_link_in(&self, dir: &Inode) -> Result<(), Obstacle> {
        if !self.shared.quotas.are_any() {
            return Ok(self.links.add()?);
        }
        // A rename that takes the file to another quota looks at the count with the contents locked.
        let _contents = self.contents_alone()?;
        let to = dir.quota_below();
        if self.quota_below() == to {
            return Ok(self.links.add()?);
        }
        if self.links.count() > 0 {
            return Err(Errno::EXDEV.into());
        }
        self.links.add()?;
        let moved = self.move_to_quota(to, |quota, units| quota.take(units));
        Ok(moved.inspect_err(|_| self.links.set_unnamed(true))?)
    }

    /// Nobody changes the number of pages before this is dropped. Does not wait: names are locked in a read section, and a write that has
    /// the contents may wait for the end of all read sections, when it looks for room that dead files still have.
    ///
    /// # Errors
    /// Somebody has the contents.
    fn contents_alone(&self) -> Result<impl Drop + '_, Obstacle> {
        self.data.try_alone().ok_or_else(|| Obstacle::Locked(self.clone()))
    }
}

impl Space for Inode {
    fn reserve(&self, pages: u64) -> Result<(), Errno> {
        self.shared.reserve(pages)
    }

    fn reserve_shared(&self, pages: u64) -> Result<(), Errno> {
        self.shared.reserve_shared(pages)
    }

    fn reserve_unwritten(&self, pages: u64) -> Result<(), Errno> {
        self.shared.reserve_unwritten(pages)
    }

    fn hold_back(&self, pages: u64) -> Result<(), Errno> {
        self.shared.hold_back(pages)
    }

    fn give_up(&self, pages: u64) {
        self.shared.give_up(pages);
    }

    fn release(&self, pages: u64) {
        self.shared.release(pages);
    }

    fn will_touch(&self, pages: u64) -> Result<(), Errno> {
        self.shared.will_touch(pages)
    }

    fn charge(&self, pages: u64) -> Result<(), Errno> {
        self.counts_for().map_or(Ok(()), |quota| quota.take_settling(pages * UNITS_A_PAGE))
    }

    fn charge_anyway(&self, pages: u64) {
        if let Some(quota) = self.counts_for() {
            quota.used.exceed(pages * UNITS_A_PAGE);
        }
    }

    fn discharge(&self, pages: u64) {
        if let Some(quota) = self.counts_for() {
            quota.used.give(pages * UNITS_A_PAGE);
        }
    }
}

impl Shared {
    /// Changes that were under way when this was called have ended when it returns.
    fn await_changes(&self) {
        rcu::domain().synchronize();
        self.while_nothing_changes(|| ());
    }
}

impl InodeRef {
    /// The quota of this file, if any, with the bytes in use. [`settle`](crate::Superblock::settle) first, to know that exactly.
    pub fn quota(&self) -> Option<QuotaUse> {
        let quota = self.shared.quotas.standing(self.quota_number())?;
        Some(QuotaUse { limit: quota.limit(), used: quota.used(), dir: quota.dir() })
    }

    /// The figures of the file system, with no more free blocks than the file's quota has room for; see
    /// [`Superblock::statfs`](crate::Superblock::statfs).
    pub fn statfs(&self) -> StatFs {
        let statfs = self.shared.statfs();
        let Some(QuotaUse { limit, used, .. }) = self.quota() else { return statfs };
        let (blocks, free) = (limit / PAGE, limit.saturating_sub(used) / PAGE);
        let blocks = if statfs.blocks > 0 { blocks.min(statfs.blocks) } else { blocks };
        StatFs { blocks, blocks_free: free.min(statfs.blocks_free), ..statfs }
    }

    /// Lets the contents of this directory, with all that is below it, be `limit` bytes at most, or takes that limit away.
    /// Present contents count, and may exceed it. Visits the tree when the directory had no quota before, and when it loses it.
    /// Over a store the quota is durable when this returns.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` (the directory was removed); `EINVAL` for the root, whose limit is that of the file system, and for less than a page; `EBUSY` when a directory above or
    /// below has a quota; `EXDEV` when a file has names both below and elsewhere; `EROFS` in a snapshot; `ENODATA` when there is no quota to take away; `EOPNOTSUPP` in an object store that a program before format 12 made; the store's.
    pub fn set_quota(&self, limit: Option<u64>) -> Result<(), Errno> {
        self.as_dir()?;
        if self.ino() == ROOT_INO || limit.is_some_and(|limit| limit < PAGE) {
            return Err(Errno::EINVAL);
        }
        if self.has(flag::READ_ONLY) {
            return Err(Errno::EROFS);
        }
        if self.is_removed_dir() {
            return Err(Errno::ENOENT);
        }
        let quotas = &self.shared.quotas;
        let mut last = quotas.last.lock();
        let quota = quotas.standing(self.quota_number());
        // Units are the smallest that is counted.
        let limit = limit.map(|limit| limit / PAGE * PAGE);
        match (quota, limit) {
            (Some(quota), _) if quota.dir() != self.ino() => return Err(Errno::EBUSY),
            (Some(quota), Some(limit)) => {
                quota.set_limit(limit);
                self.put_down_quota(quota, QuotaStage::Whole)?;
            }
            (Some(quota), None) => {
                self.put_down_quota(quota, QuotaStage::Going)?;
                self.shared.sync()?;
                self.remove_quota(quota)?;
            }
            (None, None) => return Err(Errno::ENODATA),
            (None, Some(limit)) => {
                self.shared.check_quotas_allowed()?;
                let number = last.checked_add(1).ok_or(Errno::ENOSPC)?;
                quotas.make(number, self.ino(), limit, 0)?;
                *last = number;
                let quota = quotas.get(number).ok_or(Errno::EIO)?;
                self.put_down_quota(quota, QuotaStage::Coming)?;
                self.shared.sync()?;
                if let Err(error) = self.complete_quota(quota) {
                    self.put_down_quota(quota, QuotaStage::Going)?;
                    self.remove_quota(quota)?;
                    return Err(error);
                }
            }
        }
        self.shared.sync()
    }

    /// Gives the tree of this directory the number of its `quota`.
    pub(crate) fn complete_quota(&self, quota: &DirectoryQuota) -> Result<(), Errno> {
        self.bring_tree_to(quota.number, quota.number)?;
        self.put_down_quota(quota, QuotaStage::Whole)
    }

    /// Takes the `quota` of this directory away from its tree.
    pub(crate) fn remove_quota(&self, quota: &DirectoryQuota) -> Result<(), Errno> {
        // Files that are made meanwhile get no number.
        let dir = quota.dir.swap(0, Ordering::Relaxed);
        let outcome = self.bring_tree_to(NO_QUOTA, quota.number);
        if outcome.is_err() {
            // Relaxed: stands alone.
            quota.dir.store(dir, Ordering::Relaxed);
        }
        outcome?;
        self.shared.begin(0)?.quota(quota.number, None);
        Ok(())
    }

    fn put_down_quota(&self, quota: &DirectoryQuota, stage: QuotaStage) -> Result<(), Errno> {
        self.shared.begin(0)?.quota(quota.number, Some((quota, stage)));
        Ok(())
    }

    /// Gives all inodes of the tree of this directory the number `to`: those that have none, or `of`.
    ///
    /// # Errors
    /// `EBUSY` when a directory below has another quota, `EXDEV` when a file has names elsewhere, unless numbers are taken away; the store's.
    fn bring_tree_to(&self, to: u32, of: u32) -> Result<(), Errno> {
        let shared = &*self.shared;
        let is_other = |inode: &Inode| {
            let number = inode.quota_number();
            number != to && number != of && shared.quotas.standing(number).is_some()
        };
        let bring = |inode: &InodeRef| -> Result<(), Errno> {
            if inode.quota_number() != to && !is_other(inode) {
                let section = shared.begin(0)?;
                inode.bring_to_quota(to);
                section.inode(inode);
            }
            Ok(())
        };
        let _tree = shared.rename_lock.lock();
        // Files of which names are missing, with the names that were met.
        let mut linked: BTreeMap<u64, (InodeRef, u32)> = BTreeMap::new();
        let mut waiting = vec![self.clone()];
        while !waiting.is_empty() {
            let batch = waiting.split_off(waiting.len().saturating_sub(BATCH));
            batch.iter().try_for_each(bring)?;
            // A caller that saw the number before has named the file that it made.
            shared.await_changes();
            for dir in batch {
                for (_, inode) in dir.list_names(|_| true)? {
                    match (inode.is_dir(), is_other(&inode)) {
                        (true, true) if to != NO_QUOTA => return Err(Errno::EBUSY),
                        (true, true) => {}
                        (true, false) => waiting.push(inode),
                        (false, _) => {
                            bring(&inode)?;
                            if inode.nlink() > 1 {
                                linked.entry(inode.ino()).or_insert((inode, 0)).1 += 1;
                            }
                        }
                    }
                }
            }
            // A store takes over what is done: a crash leaves it, and it does not pile up.
            shared.sync()?;
            linked.retain(|_, (inode, names)| inode.nlink() > *names);
        }
        if to == NO_QUOTA || linked.is_empty() { Ok(()) } else { Err(Errno::EXDEV) }
    }
}
