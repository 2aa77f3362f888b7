//! Shares: what each part of a durable file system may take of the limit of memory.
//!
//! # Theory
//! All memory that grows with the work counts against the limit, including data on its way to the disk:
//! ```text
//!   names 1/4        names, inodes, contents in records                                  names.rs
//!   changed 4 x 1/32 contents that changed; those a push is writing; and its two copies   pending.rs
//!   records 2 x 1/16 what waits in buffers and in the log for the tree, and its copies    the store
//!   cache 1/16       pages of the tree                                                    the store
//!   patched 1/16     pages whose extent has older bytes                                   resident.rs
//!   contents         the rest: what is in extents, and leaves memory when it must         resident.rs
//! ```
//! With much memory the size of the log bounds what changed and the records, and the rest is for contents.

/// Bytes for each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// For names and inodes.
    pub(super) names: u64,
    /// For contents that changed, before they are pushed.
    pub(super) changed: u64,
    /// For records that the tree does not have.
    pub(super) records: u64,
    /// For pages of the tree.
    pub(super) cache: u64,
    /// For patched pages.
    pub(super) patched: u64,
    /// For contents that can be read again.
    pub(super) contents: u64,
}

impl Shares {
    /// Divides `limit` bytes, for a store with a log of `log_size`.
    pub(super) fn of(limit: u64, log_size: u64) -> Shares {
        /// With less each record would be read several times.
        const CACHE_MIN: u64 = 1 << 20;
        let names = limit / 4;
        let changed = (log_size / 4).min(limit / 32);
        let records = log_size.min(limit / 16);
        let cache = (limit / 16).max(CACHE_MIN);
        let patched = limit / 16;
        let others = names + 4 * changed + 2 * records + cache + patched;
        Shares { names, changed, records, cache, patched, contents: limit.saturating_sub(others) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_are_the_limit_and_contents_have_the_most_of_it() {
        for limit in [16_u64, 64, 256, 4096, 1 << 20].map(|megabytes| megabytes << 20) {
            let of = Shares::of(limit, 64 << 20);
            let sum = of.names + 4 * of.changed + 2 * of.records + of.cache + of.patched + of.contents;
            assert_eq!(sum, limit);
            assert!(of.contents > limit / 3, "{of:?}");
        }
        let large = Shares::of(1 << 40, 64 << 20);
        assert_eq!((large.changed, large.records), (16 << 20, 64 << 20), "as much as the log holds");
        assert_eq!(Shares::of(0, 64 << 20).contents, 0);
    }
}
