//! Share: a copy of a file, or of whole chunks of one, takes over what the store has of the original's contents.
//!
//! # Theory
//! Contents in extents are neither read nor written: the copy *borrows* the extents (`owners.rs`), together with the
//! sets of patched and absent pages; its next push puts down records that name the extents and repeats the rest of the
//! original's records.
//!
//! The pages in memory, what the store has, and which pages have changed since must be of one moment. A call changes a page
//! first, and then says so, in one section, while it holds the file's contents.
//!
//! *A clone* makes a file that nobody knows yet. It looks at the original when no section is open. Then no push is in its cut, either;
//! and nothing of the file leaves memory or comes back, since the copier holds the file. As long as nothing leaves memory at all, it looks
//! at many files at once; later it holds each alone instead.
//!
//! *A copy between two files* that others use is a change, and so needs a section itself. It holds the contents of both alone
//! ([`hold_contents_alone`](crate::Inode)): no other call is at work on them, but for reads of pages that are in memory. Such
//! reads notice that pages move, as always. Chunks are shared if they lie on the same boundaries in both files:
//! ```text
//!   source      | page page |====chunk====|====chunk====| page |       |: 64 KiB      what is not a whole chunk is copied by pages
//!   target   ...| page page |====chunk====|====chunk====| page |...    so is a chunk of which the source has no extent
//! ```
//! The end of a file counts as a boundary if the target ends there, too. A record of the target that names something else for such a
//! chunk stays until the push: the loss of that extent is counted then (`kept.rs`).

use super::kept::Lent;
use super::resident::HeldContents;
use super::section::Section;
use super::{CHUNK, Durable, Stored};
use crate::data::{PAGE, Prepaid};
use crate::inode::flag;
use crate::watch::hook;
use crate::{Errno, FILE_SIZE_MAX, Inode, InodeRef};
use sluice_sync::Ref;
use std::ops::Range;

/// Gives the second of each two of `files`, which is new and known to nobody else, the contents that the first has now, if that is a
/// regular file: one after the other, but those of a store that are in memory together. Called outside of any read section and of any
/// [`Section`].
///
/// # Errors
/// `ENOSPC`; the store's.
pub(crate) fn copy_contents(files: &[(&InodeRef, InodeRef)]) -> Result<(), Errno> {
    let mut together = Vec::new();
    for (original, copy) in files {
        if original.data().is_err() {
            continue;
        }
        let durable = original.shared.durable().filter(|_| Ref::ptr_eq(&original.shared, &copy.shared));
        // For what watches all must be in memory.
        let durable = durable.filter(|_| !original.shared.has_hook(hook::CHANGES));
        match (durable, original.stored(), copy.stored()) {
            (Some(durable), Some(stored), Some(own)) => {
                let pair = Pair { original, stored, copy, own };
                if original.has(flag::PARTIAL) {
                    pair.share(durable)?
                } else {
                    together.push((durable, pair))
                }
            }
            _ => copy.data.copy_whole(&**copy, &*original.contents(0..u64::MAX)?)?,
        }
    }
    match together.first() {
        Some((durable, _)) => share_together(durable, together.iter().map(|(_, pair)| pair)),
        None => Ok(()),
    }
}

/// A file of a store, and a new one that gets its contents.
struct Pair<'i> {
    original: &'i InodeRef,
    stored: &'i Stored,
    copy: &'i InodeRef,
    own: &'i Stored,
}

/// Copies contents of files of which all is in memory: with one look at those that have extents, as it lets nobody begin a change meanwhile.
fn share_together<'p, 'i: 'p>(
    durable: &Durable,
    mut pairs: impl Iterator<Item = &'p Pair<'i>>,
) -> Result<(), Errno> {
    let Some(_calm) = durable.pending.memory.stay_calm() else {
        return pairs.try_for_each(|pair| pair.share(durable));
    };
    let has_extents = |pair: &&Pair<'_>| !pair.stored.kept.lock().extents.is_empty();
    let (with, without): (Vec<_>, Vec<_>) = pairs.partition(has_extents);
    without.into_iter().try_for_each(|pair| pair.copy_pages())?;
    if with.is_empty() {
        Ok(())
    } else {
        durable.store.alone(|| with.iter().try_for_each(|pair| pair.lend(durable)))
    }
}

impl Inode {
    /// Whether a write to `bytes`, which are in memory, takes room although the file has these pages: another file has the extent, too, and
    /// keeps it. Called outside of any [`Section`].
    pub(super) fn is_shared_in(&self, durable: &Durable, bytes: &Range<u64>) -> bool {
        let Some(stored) = self.stored() else { return false };
        let mut chunks = bytes.start / CHUNK..bytes.end.div_ceil(CHUNK);
        let is_written = |chunk: u64| {
            let part = bytes.start.max(chunk * CHUNK)..bytes.end.min((chunk + 1) * CHUNK);
            !self.data.is_unwritten(&part)
        };
        chunks.any(|chunk| {
            let place = {
                let kept = stored.kept.lock();
                if kept.borrowed.count(&(chunk..chunk + 1)) > 0 {
                    return is_written(chunk);
                }
                kept.extents.get(&chunk).map(|held| held.extent.place())
            };
            let owners = &durable.pending.owners;
            let may_be = |place| owners.are_borrowed() || owners.are_several(place, &durable.store);
            place.is_some_and(may_be) && is_written(chunk)
        })
    }
}

impl Pair<'_> {
    fn share(&self, durable: &Durable) -> Result<(), Errno> {
        let Pair { original, stored, .. } = *self;
        let is_pressed = durable.pending.memory.is_pressed();
        let alone = if is_pressed { original.hold_contents_alone(durable, stored, 0) } else { None };
        let is_alone = alone.is_some();
        let _contents = alone.unwrap_or_else(|| original.hold_contents(Some(stored), 0));
        // Held while it is copied: nothing comes into memory.
        let _loading = if original.has(flag::PARTIAL) { Some(stored.loading.lock()) } else { None };
        if original.has(flag::PARTIAL) && !stored.kept.lock().is_known {
            original.find_contents(durable, stored)?;
        }
        if stored.kept.lock().extents.is_empty() {
            return self.copy_pages();
        }
        if is_alone { self.lend(durable) } else { durable.store.alone(|| self.lend(durable)) }
    }

    /// All is in memory, and in no extent.
    fn copy_pages(&self) -> Result<(), Errno> {
        self.copy.data.copy_whole(&**self.copy, &self.original.all_contents())
    }

    /// No section is open that changes the original, and what is in memory stays there.
    fn lend(&self, durable: &Durable) -> Result<(), Errno> {
        let Pair { stored, copy, own, .. } = *self;
        self.copy_pages()?;
        let (borrowed, dirty) = {
            // A push collects what has changed with this locked.
            let kept = stored.kept.lock();
            let borrowed = kept.lend(&durable.pending);
            let dirty = stored.dirty_among(&borrowed.borrowed);
            (borrowed, dirty)
        };
        if !borrowed.absent.is_empty() {
            copy.data.set_absent(true);
            copy.raise(flag::PARTIAL);
        }
        own.begin_with(borrowed, dirty);
        Ok(())
    }
}

/// The contents of two files for a copy that shares extents.
pub(crate) struct Sharing<'i> {
    durable: &'i Durable,
    source: (&'i InodeRef, &'i Stored),
    target: (&'i InodeRef, &'i Stored),
    /// The range of the source that is copied, and its offset in the target.
    bytes: Range<u64>,
    to_offset: u64,
    /// The chunks of the source that are copied whole, and the number of the first one in the target.
    chunks: Range<u64>,
    to_chunk: u64,
    _held: (HeldContents<'i>, Option<HeldContents<'i>>),
}

impl InodeRef {
    /// The contents of `to` and of this file, for a copy of `bytes` to `to_offset`: all that this needs is in memory, and nothing
    /// leaves. Called as [`contents`](Self::contents).
    ///
    /// # Errors
    /// Errors of [`contents`](Self::contents).
    pub(crate) fn contents_to_copy<'i>(
        &'i self,
        bytes: Range<u64>,
        to: &'i InodeRef,
        to_offset: u64,
    ) -> Result<[HeldContents<'i>; 2], Errno> {
        let replaced = to_offset..to_offset.saturating_add(bytes.end - bytes.start);
        let hold = |inode: &'i InodeRef, level| match self.shared.has_hook(hook::DURABLE) {
            true => inode.hold_contents(inode.stored(), level),
            false => inode.all_contents(),
        };
        let [source, target] = match self.is_same(to) {
            true => [hold(self, 0), to.all_contents()],
            false => hold_in_order([self, to], hold),
        };
        self.more_contents(&source, bytes)?;
        to.more_contents(&target, replaced)?;
        Ok([target, source])
    }

    /// The variant of [`contents_to_copy`](Self::contents_to_copy) for ranges that can share extents in the store.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn share_with<'i>(
        &'i self,
        bytes: &Range<u64>,
        to: &'i InodeRef,
        to_offset: u64,
    ) -> Result<Option<Sharing<'i>>, Errno> {
        let Some(durable) = self.shared.durable() else { return Ok(None) };
        // For what watches all must be in memory. A file without a name is seldom pushed, and would borrow for long.
        let is_known = to.has_name() && to.has(flag::RECORDED) && !self.shared.has_hook(hook::CHANGES);
        let first = bytes.start.div_ceil(CHUNK);
        let may_be = bytes.start % CHUNK == to_offset % CHUNK && first < bytes.end.div_ceil(CHUNK);
        let to_end = to_offset.checked_add(bytes.end - bytes.start).filter(|end| *end <= FILE_SIZE_MAX);
        let (Some(from_stored), Some(to_stored), Some(to_end), true) =
            (self.stored(), to.stored(), to_end, is_known && may_be)
        else {
            return Ok(None);
        };
        if !self.has_extents(durable, from_stored, first..bytes.end.div_ceil(CHUNK))? {
            return Ok(None);
        }
        let hold = |inode: &'i InodeRef, level| inode.hold_contents_alone(durable, inode.stored()?, level);
        let [source, target] = match self.is_same(to) {
            true => [hold(self, 0), None],
            false => hold_in_order([self, to], hold),
        };
        let Some(held) = source.map(|source| (source, target)) else { return Ok(None) };
        let end = bytes.end.min(self.size());
        let is_end = end == self.size() && end == bytes.end && to_end >= to.size();
        let chunks = first..if is_end { end.div_ceil(CHUNK) } else { end / CHUNK };
        if chunks.is_empty() {
            return Ok(None);
        }
        let to_chunk = to_offset.div_ceil(CHUNK);
        // Partial chunks at both ends must be in memory, in the source and in the target.
        let before = bytes.start..(first * CHUNK);
        let mut behind = (chunks.end * CHUNK).min(bytes.end)..bytes.end;
        let shift =
            |range: &Range<u64>| range.start - bytes.start + to_offset..range.end - bytes.start + to_offset;
        // The empty range loads only the target's chunk map.
        to.more_contents(&held.0, 0..0)?;
        for range in [&before, &behind].into_iter().filter(|range| !range.is_empty()) {
            to.more_contents(&held.0, shift(range))?;
        }
        let last_page = to_end / PAGE * PAGE;
        if is_end && to_end > last_page && (to.size() > last_page || to.data.has_reserved()) {
            // The target has that page: what is copied is written there.
            behind.start = end - 1;
        }
        for range in [before, behind].into_iter().filter(|range| !range.is_empty()) {
            self.more_contents(&held.0, range)?;
        }
        // A target with cut-off chunks shares nothing: these chunks are removed one by one, whatever they contain by
        // then.
        let is_whole = to_stored.kept.lock().cut_off.is_empty();
        Ok(is_whole.then(|| Sharing {
            durable,
            source: (self, from_stored),
            target: (to, to_stored),
            bytes: bytes.clone(),
            to_offset,
            chunks,
            to_chunk,
            _held: held,
        }))
    }

    /// Whether one of `chunks` is in an extent.
    fn has_extents(&self, durable: &Durable, stored: &Stored, chunks: Range<u64>) -> Result<bool, Errno> {
        let _contents = self.hold_contents(Some(stored), 0);
        let _loading = if self.has(flag::PARTIAL) { Some(stored.loading.lock()) } else { None };
        if self.has(flag::PARTIAL) && !stored.kept.lock().is_known {
            self.find_contents(durable, stored)?;
        }
        Ok(stored.kept.lock().extents.range(chunks).next().is_some())
    }
}

/// Holds both files, the one with the lower number first, with its level: two copies may go opposite ways.
fn hold_in_order<'i, H>([one, other]: [&'i InodeRef; 2], hold: impl Fn(&'i InodeRef, u8) -> H) -> [H; 2] {
    if one.ino() < other.ino() {
        let first = hold(one, 0);
        [first, hold(other, 1)]
    } else {
        let first = hold(other, 0);
        [hold(one, 1), first]
    }
}

impl Sharing<'_> {
    /// Copies, and says how much was copied; `None` if that must be done without sharing.
    ///
    /// # Errors
    /// Errors of [`copy_from`](crate::data::FileData::copy_from).
    pub(crate) fn copy(&self, section: &Section<'_>) -> Result<Option<u64>, Errno> {
        let Sharing { source: (source, _), target: (target, stored), .. } = *self;
        let (bytes, to_offset) = (self.bytes.clone(), self.to_offset);
        let lent = self.lend();
        let absent: u64 = lent.iter().map(|lent| u64::from(lent.absent.count_ones())).sum();
        // Space is reserved first, so that a lack of space never cuts a chunk.
        let most = (bytes.end - bytes.start).div_ceil(PAGE) + 1;
        let most = most.min(source.data.pages());
        if !target.has_quota_for(most) {
            return Ok(None);
        }
        let Ok(space) = Prepaid::new(&**target, most) else { return Ok(None) };
        if absent > 0 {
            // Before the first of these pages is missing: see evict().
            stored.kept.lock().is_known = true;
            target.raise(flag::PARTIAL);
            target.data.set_absent(true);
        }
        let copied =
            target.data.copy_from(&space, to_offset, &source.data, bytes.start, bytes.end - bytes.start);
        let done = *copied.as_ref().unwrap_or(&0);
        let to_chunks = self.to_chunk..self.to_chunk + (self.chunks.end - self.chunks.start);
        let is_whole = to_offset + done >= (to_chunks.end * CHUNK).min(to_offset + (bytes.end - bytes.start));
        debug_assert!(is_whole || to_offset + done <= to_chunks.start * CHUNK, "a chunk is copied in part");
        let mut shared = Vec::new();
        if is_whole {
            shared.extend(lent.iter().map(|lent| lent.chunk));
            let gone = stored.borrow(lent, &to_chunks, &self.durable.pending);
            target.data.forget(&**target, gone);
            target.data.adopt(&space, absent);
        }
        if stored.kept.lock().absent.is_empty() {
            target.all_here();
        }
        let copied = copied?;
        let mut from = to_offset;
        for chunk in shared.iter().copied().filter(|_| copied > 0) {
            mark(section, target, from..chunk * CHUNK);
            from = (chunk + 1) * CHUNK;
        }
        mark(section, target, from..to_offset + copied);
        if !shared.is_empty() {
            section.borrowed(target);
        }
        Ok(Some(copied))
    }

    /// The chunks that have extents, as the target will have them.
    fn lend(&self) -> Vec<Lent> {
        let (_, stored) = self.source;
        let kept = stored.kept.lock();
        let has_changes = !self.durable.pending.planted.has(super::Mutant::LentWithoutChanges);
        let held = kept.extents.range(self.chunks.clone());
        held.filter(|(chunk, _)| !kept.cut_off.contains(chunk))
            .map(|(chunk, held)| Lent {
                chunk: chunk - self.chunks.start + self.to_chunk,
                held: held.clone(),
                absent: kept.absent.get(chunk).copied().unwrap_or(0),
                dirty: if has_changes { stored.dirty_in(*chunk) } else { 0 },
            })
            .collect()
    }
}

/// Marks `bytes` of `inode` as changed, unless the range is empty.
fn mark(section: &Section<'_>, inode: &InodeRef, bytes: Range<u64>) {
    if !bytes.is_empty() {
        section.contents(inode, bytes);
    }
}
