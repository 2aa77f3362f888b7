//! Share: a copy of a whole file takes over what the store has of the original's contents.
//!
//! # Theory
//! What is in extents is neither read nor written: the copy *borrows* them (`owners.rs`), with the pages that are patched and those
//! that are not in memory; its next push puts down records that name them, and of the rest what the original's have, or will have.
//!
//! The pages in memory, what the store has, and which pages have changed since must be of one moment. A call changes a page
//! first, and then says so, in one section; so they are looked at when no section is open. Then no push is in its cut, either;
//! and nothing of the file leaves memory or comes back, since the copier holds the file.

use super::{Durable, Stored};
use crate::inode::flag;
use crate::watch::hook;
use crate::{Errno, InodeRef};
use sluice_sync::Ref;

impl InodeRef {
    /// Gives `copy`, which is new and known to nobody else, the contents that this regular file has now. Called outside of any read
    /// section and of any [`Section`](super::Section).
    ///
    /// # Errors
    /// `ENOSPC`; the store's.
    pub(crate) fn copy_contents(&self, copy: &InodeRef) -> Result<(), Errno> {
        let durable = self.shared.durable().filter(|_| Ref::ptr_eq(&self.shared, &copy.shared));
        // For what watches all must be in memory.
        let durable = durable.filter(|_| !self.shared.has_hook(hook::CHANGES));
        match (durable, self.stored(), copy.stored()) {
            (Some(durable), Some(stored), Some(own)) => self.share_contents(durable, stored, copy, own),
            _ => copy.data.copy_whole(&*copy.shared, &*self.contents(0..u64::MAX)?),
        }
    }

    fn share_contents(
        &self,
        durable: &Durable,
        stored: &Stored,
        copy: &InodeRef,
        own: &Stored,
    ) -> Result<(), Errno> {
        let contents = self.hold_contents(Some(stored), 0);
        // Held while it is copied: nothing comes into memory.
        let _loading = if self.has(flag::PARTIAL) { Some(stored.loading.lock()) } else { None };
        if self.has(flag::PARTIAL) && !stored.kept.lock().is_known {
            self.find_contents(durable, stored)?;
        }
        if stored.kept.lock().extents.is_empty() {
            // All is in memory.
            return copy.data.copy_whole(&*self.shared, &contents);
        }
        durable.store.alone(|| {
            copy.data.copy_whole(&*self.shared, &contents)?;
            let borrowed = stored.kept.lock().lend(&durable.pending);
            if !borrowed.absent.is_empty() {
                copy.data.set_absent(true);
                copy.raise(flag::PARTIAL);
            }
            own.begin_with(borrowed, stored);
            Ok(())
        })
    }
}
