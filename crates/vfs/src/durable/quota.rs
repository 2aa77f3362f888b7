//! Quotas in a store: their records, what they count for, and walks that a crash interrupted.
//!
//! # Theory
//! The record of an inode has the number of its quota, so each push has names and numbers of one moment. The use of a quota is kept
//! as the sums of all files are: a clean close puts it down, the first change makes it stale, and opening a store without valid sums adds it up from
//! the records of the inodes.

use super::Durable;
use super::keys::{Key, ino_of};
use super::record::{QuotaRecord, QuotaUses};
use crate::quota::{DirectoryQuota, NO_QUOTA, QuotaStage};
use crate::superblock::Shared;
use crate::{Errno, InodeRef, Superblock};
use sluice_store::Transaction;
use std::collections::BTreeMap;

/// The version of a store's format since which it may have quotas.
const QUOTAS_SINCE: u32 = 12;

/// The quotas of a store.
#[derive(Debug, Default)]
pub(super) struct FoundQuotas {
    /// By number.
    pub(super) records: BTreeMap<u32, QuotaRecord>,
    /// The last number that was used.
    last: u32,
}

impl FoundQuotas {
    /// Takes a record; None if it cannot be read.
    pub(super) fn see(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match u32::try_from(ino_of(key)?).ok()? {
            NO_QUOTA => self.last = u32::from_le_bytes(value.try_into().ok()?),
            number => _ = self.records.insert(number, QuotaRecord::decode(value)?),
        }
        Some(())
    }
}

impl Durable {
    /// The quotas that the store has.
    pub(super) fn find_quotas(&self) -> Result<FoundQuotas, Errno> {
        let (mut found, mut is_sound) = (FoundQuotas::default(), true);
        self.scan(Key::quotas(), &mut |key, value| {
            is_sound = found.see(key, value).is_some();
            is_sound
        })?;
        if is_sound { Ok(found) } else { Err(Errno::EIO) }
    }

    /// Puts down what quotas have in use, when the file system is closed and nothing is under way.
    pub(super) fn put_quota_uses<'q>(
        &self,
        quotas: impl Iterator<Item = &'q DirectoryQuota>,
        to: &mut Transaction<'_>,
    ) {
        for quota in quotas {
            let record = QuotaRecord {
                dir: quota.dir(),
                limit: quota.limit(),
                used: quota.used(),
                stage: QuotaStage::Whole,
            };
            to.put(&Key::quota(quota.number()), self.now(), &record.encode());
        }
    }
}

impl Shared {
    /// Checks that directories may have quotas here.
    ///
    /// # Errors
    /// `EOPNOTSUPP` in an object store that an earlier program made: its description keeps that version, and a program of then would open it and not count.
    pub(crate) fn check_quotas_allowed(&self) -> Result<(), Errno> {
        match self.durable() {
            Some(durable) if durable.store.format() < QUOTAS_SINCE => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }

    /// Takes over the quotas `found` in the store, with what they have in `uses`, if that was added up.
    ///
    /// # Errors
    /// `EIO` for a number that cannot be.
    pub(super) fn take_quotas(&self, found: &FoundQuotas, uses: Option<&QuotaUses>) -> Result<(), Errno> {
        let greatest = found.records.keys().last().copied().unwrap_or(NO_QUOTA);
        self.quotas.set_last(found.last.max(greatest));
        for (number, record) in &found.records {
            let used = uses.map_or(record.used, |uses| uses.get(number).copied().unwrap_or(0));
            self.quotas.make(*number, record.dir, record.limit, used).or(Err(Errno::EIO))?;
        }
        Ok(())
    }
}

impl Superblock {
    /// Ends walks that a crash interrupted, and forgets quotas of directories that were removed.
    pub(super) fn finish_quotas(&self, found: &FoundQuotas) -> Result<(), Errno> {
        let quotas = &self.root().shared.quotas;
        let find = |quota: &DirectoryQuota| match self.find_inode(quota.dir()) {
            Err(Errno::ESTALE) => Ok(None),
            found => found.map(Some),
        };
        for quota in quotas.all() {
            let stage = found.records.get(&quota.number()).map_or(QuotaStage::Whole, |record| record.stage);
            match (find(quota)?, stage) {
                (None, _) => self.root().forget_quota(quota)?,
                (Some(_), QuotaStage::Whole) => {}
                (Some(dir), QuotaStage::Coming) => match dir.complete_quota(quota) {
                    // It could not be given, and was being taken away.
                    Err(Errno::EXDEV | Errno::EBUSY) => dir.remove_quota(quota)?,
                    completed => completed?,
                },
                (Some(dir), QuotaStage::Going) => dir.remove_quota(quota)?,
            }
        }
        Ok(())
    }
}

impl InodeRef {
    /// The directory of `quota` is gone.
    fn forget_quota(&self, quota: &DirectoryQuota) -> Result<(), Errno> {
        quota.end();
        self.shared.begin(0)?.quota(quota.number(), None);
        Ok(())
    }
}
