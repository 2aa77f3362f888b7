//! Counts for each line, so that the report can name the hot lines and the reasons.

use std::panic::Location;

use crate::access::Access;
use crate::cpu_set::CpuSet;
use crate::spec::Kind;

/// The misses that one place in the source caused on one field of a line.
#[derive(Clone, Debug)]
pub(crate) struct SiteStatistics {
    pub(crate) site: &'static Location<'static>,
    pub(crate) kind: Kind,
    pub(crate) offset: u8,
    pub(crate) length: u8,
    pub(crate) misses: u64,
    pub(crate) stall: u64,
    pub(crate) cpus: CpuSet,
}

#[derive(Clone, Default)]
pub(crate) struct LineStatistics {
    /// The line's address / 64. Immutable.
    pub(crate) tag: u64,
    pub(crate) misses: u64,
    /// Cycles in which CPUs stalled for this line: queueing for it and fetching it.
    pub(crate) stall: u64,
    /// Cycles in which CPUs spun until it changed.
    pub(crate) waited: u64,
    /// Cycles in which CPUs were parked on a word of it.
    pub(crate) parked: u64,
    /// The CPUs that spun or parked.
    pub(crate) waiters: CpuSet,
    pub(crate) sites: Vec<SiteStatistics>,
    /// Where the program spun or parked, and the cycles of that.
    pub(crate) waits: Vec<(&'static Location<'static>, u64)>,
}

impl LineStatistics {
    pub(super) fn new(tag: u64) -> LineStatistics {
        LineStatistics { tag, ..LineStatistics::default() }
    }

    /// `cpu` has spun at `site` for `cycles` until the line changed.
    pub(super) fn spun(&mut self, cpu: usize, site: &'static Location<'static>, cycles: u64) {
        self.waited += cycles;
        self.wait(cpu, site, cycles);
    }

    /// `cpu` was parked at `site` for `cycles` on a word of the line.
    pub(super) fn slept(&mut self, cpu: usize, site: &'static Location<'static>, cycles: u64) {
        self.parked += cycles;
        self.wait(cpu, site, cycles);
    }

    fn wait(&mut self, cpu: usize, site: &'static Location<'static>, cycles: u64) {
        self.waiters.insert(cpu);
        match self.waits.iter_mut().find(|(found, _)| std::ptr::eq(*found, site)) {
            Some((_, total)) => *total += cycles,
            None => self.waits.push((site, cycles)),
        }
    }

    #[inline]
    pub(super) fn miss(&mut self, access: &Access, stall: u64) {
        self.misses += 1;
        self.stall += stall;
        let same = |found: &&mut SiteStatistics| {
            std::ptr::eq(found.site, access.site)
                && found.kind == access.kind
                && found.offset == access.offset
                && found.length == access.length
        };
        if let Some(found) = self.sites.iter_mut().find(same) {
            found.misses += 1;
            found.stall += stall;
            found.cpus.insert(access.cpu);
            return;
        }
        // Most of millions of lines are used by one or two places.
        self.sites.reserve_exact(1);
        self.sites.push(SiteStatistics {
            site: access.site,
            kind: access.kind,
            offset: access.offset,
            length: access.length,
            misses: 1,
            stall,
            cpus: CpuSet::only(access.cpu),
        });
    }
}
