//! The last accesses of a run, one by one.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

use crate::access::Access;
use crate::spec::Kind;

/// One access of the trace.
#[derive(Clone, Debug)]
pub struct TraceEntry {
    /// The CPU that made the access.
    pub cpu: usize,
    /// When the CPU asked, in cycles.
    pub start: u64,
    /// When it had its answer, in cycles.
    pub end: u64,
    /// The kind of the access.
    pub kind: Kind,
    /// The number of the line, in the order of first touch.
    pub line: u32,
    /// Where in the line the access begins, in bytes.
    pub offset: u8,
    /// How many bytes.
    pub length: u8,
    /// The label of what is there, or empty.
    pub label: String,
    /// The place in the source.
    pub site: &'static Location<'static>,
    pub(crate) address: usize,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceEntry { cpu, start, end, kind, line, offset, label, site, .. } = self;
        let kind = format!("{kind:?}").to_lowercase();
        write!(f, "{start:>12} {end:>12} cpu {cpu:<3} {kind:<5} line {line}+{offset} {label} at {site}")
    }
}

/// A bounded ring: the newest entries push out the oldest.
pub(crate) struct Ring {
    entries: VecDeque<TraceEntry>,
    capacity: usize,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Ring {
        Ring { entries: VecDeque::new(), capacity }
    }

    pub(crate) fn push(&mut self, start: u64, end: u64, line: u32, address: usize, access: &Access) {
        if self.entries.len() == self.capacity {
            self.entries.pop_front();
        }
        self.entries.push_back(TraceEntry {
            cpu: access.cpu,
            start,
            end,
            kind: access.kind,
            line,
            offset: access.offset,
            length: access.length,
            label: String::new(),
            site: access.site,
            address,
        });
    }

    /// The entries, oldest first, with the labels of now.
    pub(crate) fn into_entries(self) -> Vec<TraceEntry> {
        let named = |mut entry: TraceEntry| {
            entry.label = crate::label::text_of(entry.address);
            entry
        };
        self.entries.into_iter().map(named).collect()
    }
}
