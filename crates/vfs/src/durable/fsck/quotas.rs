//! Quotas: does each inode count for the quota of the directory in which it has its name?

use super::{CheckedTree, Fix, Node};
use crate::durable::quota::FoundQuotas;
use crate::durable::record::QuotaUses;
use crate::quota::{NO_QUOTA, QuotaStage};
use crate::superblock::ROOT_INO;
use sluice_store::{Gravity, Report};
use std::collections::BTreeMap;

/// The facts of a check about quotas.
#[derive(Debug, Default)]
pub(super) struct CheckedQuotas {
    pub(super) found: FoundQuotas,
    /// The use of inodes with a number.
    pub(super) uses: QuotaUses,
    /// Names that lead from a directory with one number to an inode with another: both inodes. Few, but for tops.
    pub(super) crossings: Vec<(u64, u64)>,
    /// The store says what quotas have in use.
    pub(super) has_uses: bool,
}

impl CheckedQuotas {
    /// The number of the quota whose directory is `dir`.
    fn of_top(&self, dir: u64) -> Option<u32> {
        self.found.records.iter().find(|(_, record)| record.dir == dir).map(|(number, _)| *number)
    }

    /// `number`, if that quota is there.
    fn standing(&self, number: u32) -> u32 {
        if self.found.records.contains_key(&number) { number } else { NO_QUOTA }
    }
}

impl CheckedTree {
    /// The number that the directory `dir` must have, by its place. `known` has the answers of earlier questions.
    fn quota_at(&self, dir: u64, known: &mut BTreeMap<u64, u32>) -> u32 {
        let (mut way, mut at) = (Vec::new(), dir);
        let number = loop {
            if let Some(number) = known.get(&at) {
                break *number;
            }
            way.push(at);
            // A circle of directories is found elsewhere.
            match (self.quotas.of_top(at), self.places.get(&at)) {
                (Some(number), _) => break number,
                (None, Some((parent, _))) if at != ROOT_INO && way.len() <= self.places.len() => at = *parent,
                _ => break NO_QUOTA,
            }
        };
        known.extend(way.into_iter().map(|dir| (dir, number)));
        number
    }

    pub(super) fn judge_quotas(&self, report: &mut Report, fixes: &mut Vec<Fix>) {
        let CheckedQuotas { found, uses, crossings, has_uses } = &self.quotas;
        // A walk that a crash interrupted is completed when the store is opened.
        if found.records.values().any(|record| record.stage != QuotaStage::Whole) {
            return;
        }
        let (mut known, mut wrong) = (BTreeMap::new(), BTreeMap::new());
        let tops = found.records.values().filter_map(|record| self.node(record.dir));
        let directories =
            self.places.keys().filter_map(|dir| self.node(*dir)).filter(|_| !crossings.is_empty());
        for Node { ino, quota, .. } in tops.chain(directories) {
            let number = self.quota_at(*ino, &mut known);
            if self.quotas.standing(*quota) != number {
                wrong.insert(*ino, number);
            }
        }
        for (dir, ino) in crossings {
            let Some(node) = self.node(*ino).filter(|_| !self.places.contains_key(ino)) else { continue };
            let number = self.quota_at(*dir, &mut known);
            if self.quotas.standing(node.quota) != number {
                wrong.insert(*ino, number);
            }
        }
        for (ino, number) in wrong {
            let says = format!("{} counts for another quota than its directory", self.told.mark(ino));
            report.find(Gravity::Count, says);
            fixes.push(Fix::Quota(ino, number));
        }
        for (number, record) in found.records.iter().filter(|_| *has_uses) {
            let used = uses.get(number).copied().unwrap_or(0);
            if record.used != used {
                let told = self.told.mark(record.dir);
                let says =
                    format!("the quota of {told} counts {} bytes, and should count {used}", record.used);
                report.find(Gravity::Count, says);
                // It is added up anew.
                fixes.extend(self.numbers.map(Fix::Numbers));
            }
        }
    }
}
