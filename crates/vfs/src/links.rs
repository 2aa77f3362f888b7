//! Links: how many names a file has.

use crate::{Errno, LINK_MAX};
use sluice_sync::atomic::{AtomicU64, Ordering};

/// Above the count: the file has no name and may yet be given one.
const LINKABLE: u64 = 1 << 32;

/// The link count of a file. *Atomic (stands alone): a call that takes a name away or adds one has it locked.*
pub(crate) struct Links(AtomicU64);

impl Links {
    pub(crate) fn new(count: u32) -> Links {
        Links(AtomicU64::new(count.into()))
    }

    /// How many names there are.
    pub(crate) fn count(&self) -> u32 {
        // Relaxed: the count stands alone. The flag is cut off.
        self.0.load(Ordering::Relaxed) as u32
    }

    /// The file, which nobody else has found yet, has no name; whether it may be given one.
    pub(crate) fn set_unnamed(&self, linkable: bool) {
        // Relaxed: as in count().
        self.0.store(if linkable { LINKABLE } else { 0 }, Ordering::Relaxed);
    }

    /// Counts a name more.
    ///
    /// # Errors
    /// `ENOENT` when the file lost its last name; `EMLINK`.
    pub(crate) fn add(&self) -> Result<(), Errno> {
        let one_more = |links: u64| match links {
            0 => Err(Errno::ENOENT),
            LINKABLE => Ok(1),
            _ if links + 1 >= LINK_MAX.into() => Err(Errno::EMLINK),
            _ => Ok(links + 1),
        };
        // Relaxed: as in count().
        let update = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |links| one_more(links).ok());
        update.map_or_else(|links| one_more(links).map(drop), |_| Ok(()))
    }

    /// Counts a name less.
    pub(crate) fn remove(&self) {
        // Relaxed: as in count().
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before as u32 > 0, "a name that is removed was counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_lost_its_last_name_gets_no_other() {
        let links = Links::new(1);
        assert_eq!((links.add(), links.count()), (Ok(()), 2));
        links.remove();
        links.remove();
        assert_eq!((links.add(), links.count()), (Err(Errno::ENOENT), 0));
    }

    #[test]
    fn an_unnamed_file_gets_a_name_if_it_may_have_one() {
        let links = Links::new(1);
        links.set_unnamed(false);
        assert_eq!(links.add(), Err(Errno::ENOENT));
        links.set_unnamed(true);
        assert_eq!((links.count(), links.add(), links.count()), (0, Ok(()), 1));
    }

    #[test]
    fn the_count_ends_below_its_limit() {
        let links = Links::new(LINK_MAX - 2);
        assert_eq!((links.add(), links.add()), (Ok(()), Err(Errno::EMLINK)));
        assert_eq!(links.count(), LINK_MAX - 1);
    }
}
