//! Which lines watched activities touched: the raw material of conflict detection.

use std::collections::BTreeMap;

use crate::access::Access;
use crate::cpu_set::CpuSet;

/// The accesses of one CPU to one field of a line, from one place in the source.
#[derive(Clone)]
pub(crate) struct Touch {
    pub(crate) access: Access,
    pub(crate) count: u64,
}

/// The accesses of the CPUs that are being watched.
#[derive(Default)]
pub(crate) struct Watch {
    on: CpuSet,
    lines: BTreeMap<u32, Vec<Touch>>,
}

impl Watch {
    pub(crate) fn set(&mut self, cpu: usize, on: bool) {
        if on { self.on.insert(cpu) } else { self.on.remove(cpu) }
    }

    pub(crate) fn is_on(&self, cpu: usize) -> bool {
        self.on.contains(cpu)
    }

    #[inline]
    pub(crate) fn note(&mut self, line: u32, access: &Access) {
        if !self.on.contains(access.cpu) {
            return;
        }
        let touches = self.lines.entry(line).or_default();
        let same = |touch: &&mut Touch| {
            let found = &touch.access;
            (found.cpu, found.kind, found.offset, found.length)
                == (access.cpu, access.kind, access.offset, access.length)
                && std::ptr::eq(found.site, access.site)
        };
        match touches.iter_mut().find(same) {
            Some(touch) => touch.count += 1,
            None => touches.push(Touch { access: *access, count: 1 }),
        }
    }

    /// Lines that more than one watched CPU touched and at least one wrote, in the order of first touch.
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = (u32, &[Touch])> {
        self.lines
            .iter()
            .filter(|(_, touches)| in_conflict(touches))
            .map(|(&line, touches)| (line, &touches[..]))
    }

    /// How many lines were touched at all.
    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }
}

fn in_conflict(touches: &[Touch]) -> bool {
    let writer = touches.iter().find(|touch| touch.access.kind.writes());
    writer.is_some_and(|writer| touches.iter().any(|touch| touch.access.cpu != writer.access.cpu))
}
