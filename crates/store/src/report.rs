//! Report: the findings of a check.

use crate::StoreError;

/// Findings that are kept; the others are counted.
pub const FINDINGS_MAX: usize = 1000;
/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gravity {
    /// As a crash may leave it: nothing synchronised is lost, unless the disk has damaged it since.
    Note,
    /// A count is wrong; [`Store::mend_counts`](crate::Store::mend_counts) mends it, and nothing is lost.
    Count,
    /// Durable data differs from the data that was written.
    Damage,
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub gravity: Gravity,
    /// The fault and its place.
    pub text: String,
}

/// How far a check has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The part that the check works on.
    pub part: &'static str,
    /// The amount done.
    pub done: u64,
    /// So much there is; 0: not known yet.
    pub of: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first [`FINDINGS_MAX`] findings.
    pub findings: Vec<Finding>,
    /// All findings.
    pub found: u64,
    /// Batches that the log holds and the tree does not.
    pub batches: u64,
    /// Bytes of the log that they take.
    pub log_used: u64,
    /// Bytes of the log.
    pub log_size: u64,
    /// Records of the tree.
    pub records: u64,
    /// Extents that they name.
    pub extents: u64,
    /// Bytes that those take in the segments.
    pub data_bytes: u64,
    /// All records were shown: no damage was in the way.
    pub whole: bool,
    /// Findings of data that are not what was written: no repair brings them back.
    pub lost_data: u64,
}

impl Report {
    /// Adds a finding.
    pub fn find(&mut self, gravity: Gravity, text: impl Into<String>) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { gravity, text: text.into() });
        }
    }

    /// The gravest finding.
    pub fn worst(&self) -> Option<Gravity> {
        self.findings.iter().map(|finding| finding.gravity).max()
    }

    /// Makes a finding of an error that says so: false then.
    pub(crate) fn passed<T>(&mut self, outcome: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(StoreError::Damaged(what)) => {
                self.find(Gravity::Damage, what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A file with damaged data.
pub(crate) struct DamagedFile {
    /// The key of the first record that names such data.
    pub(crate) key: Vec<u8>,
    /// The fault there.
    pub(crate) first: String,
    /// Other extents of the file with such data.
    pub(crate) others: u64,
}

impl DamagedFile {
    pub(crate) fn tell(self, report: &mut Report) {
        let others = match self.others {
            0 => String::new(),
            1 => ", and at another place".into(),
            others => format!(", and at {others} other places"),
        };
        report.find(Gravity::Damage, self.first + &others);
        report.lost_data += 1;
    }
}
