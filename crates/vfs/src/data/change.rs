//! Change: one call that changes more than bytes of data pages, from taking the file's mutex to letting it go.

use super::page::{self, Locked, MadePages};
use super::{
    FileData, LockedPage, PAGE, PAGES_MAX, Page, PageSet, Space, charge_reserved, clip, give_up,
    pages_touched, part_of, release, reserve, within,
};
use crate::Errno;
use sluice_sync::SharedBytes;
use sluice_sync::atomic::Ordering;
use sluice_sync::radix::{All, Slots, Writer};
use sluice_sync::seqcount::Writing;
use std::iter::repeat_with;
use std::ops::Range;

/// A change under way. Growing, it only adds pages and replaces frozen and short ones; rearranging, it may do anything.
pub(super) struct DataChange<'f> {
    pub(super) file: &'f FileData,
    pub(super) space: &'f dyn Space,
    rearranging: Option<Rearranging<'f>>,
    writer: Writer<'f, SharedBytes, PageSet>,
}

/// The pages of a rearrangement that is under way.
struct Rearranging<'f> {
    /// The layout is even again when this goes.
    layout: Writing<'f>,
    /// The pages that are not settled meanwhile.
    pages: Range<u64>,
}

impl FileData {
    /// Begins a change that adds.
    pub(super) fn grow<'f>(&'f self, space: &'f dyn Space) -> DataChange<'f> {
        DataChange { file: self, space, rearranging: None, writer: self.tree.write() }
    }

    /// Begins a change that takes away or moves pages, or bytes of pages, among `pages`.
    pub(super) fn rearrange<'f>(&'f self, space: &'f dyn Space, pages: Range<u64>) -> DataChange<'f> {
        let writer = self.tree.write();
        let rearranging = Rearranging { layout: self.layout.write(), pages: pages.clone() };
        // None is further behind (I2).
        let pages = pages.start..pages.end.min(self.size().div_ceil(PAGE));
        // A thread that overwrites a page now does so before us.
        data_pages(writer.slots(), pages).for_each(|(_, page)| page.lock().settle(false));
        DataChange { file: self, space, rearranging: Some(rearranging), writer }
    }
}

impl Drop for DataChange<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(rearranging) = self.rearranging.take() {
            self.end(rearranging);
        }
    }
}

impl DataChange<'_> {
    /// Nothing is rearranged any more: the layout is even again, and the whole pages are settled.
    #[inline(never)]
    fn end(&self, rearranging: Rearranging<'_>) {
        let Rearranging { layout, pages } = rearranging;
        drop(layout);
        let whole = pages.start..pages.end.min(self.file.size() / PAGE);
        for (_, page) in data_pages(self.writer.slots(), whole) {
            let mut page = page.lock();
            let may_be = !page.is_frozen() && page::is_whole(&page);
            page.settle(may_be);
        }
    }

    /// Reserves `pages` pages and counts them as the file's.
    pub(super) fn reserve(&self, pages: u64) -> Result<(), Errno> {
        reserve(self.space, pages)?;
        count_pages(self.file, pages, 0);
        Ok(())
    }

    /// Reserves `missing` pages, counts them as the file's, and has room held back for `pages` that become unwritten. After an error
    /// nothing has changed.
    pub(super) fn reserve_unwritten(&self, missing: u64, pages: u64) -> Result<(), Errno> {
        if missing > 0 {
            self.space.reserve_unwritten(missing)?;
            charge_reserved(self.space, missing)?;
        }
        if pages > 0 {
            self.space.hold_back(pages).inspect_err(|_| release(self.space, missing))?;
        }
        count_pages(self.file, missing, 0);
        Ok(())
    }

    /// How many of `pages` have data.
    pub(super) fn data_in(&self, pages: Range<u64>) -> u64 {
        data_pages(self.writer.slots(), pages).count() as u64
    }

    /// Releases `pages` of the file's pages.
    pub(super) fn release(&self, pages: u64) {
        release(self.space, pages);
        count_pages(self.file, 0, pages);
    }

    /// The page after the last unwritten one; 0 when there is none.
    pub(super) fn unwritten_end(&mut self) -> u64 {
        self.writer.parts().1.end()
    }

    /// How many of `pages` are holes.
    pub(super) fn missing(&mut self, pages: &Range<u64>) -> u64 {
        let (slots, unwritten) = self.writer.parts();
        holes(slots, unwritten, pages)
    }

    /// Writes `buf`, of which every byte has an offset below the size limit, at `offset`; extends the file. Returns
    /// how much was written: less than all when space ended on the way. Holes get the pages that were `made` for them,
    /// the first for the first page of the write, or else new ones.
    ///
    /// Errors, when not one byte could be written: `ENOSPC`.
    pub(super) fn write(&mut self, offset: u64, buf: &[u8], made: MadePages) -> Result<usize, Errno> {
        let target = offset..offset + buf.len() as u64;
        let pages = pages_touched(&target);
        // Reserves all pages together if there is room, else page by page, to write as much as fits.
        let missing = self.missing(&pages);
        let prepaid = self.reserve(missing).is_ok();
        let (slots, unwritten) = self.writer.parts();
        // Pages stay locked until the write is complete and the size is raised, so that readers see the whole write or
        // nothing.
        let mut locked = Locked::new();
        let (mut written, mut filled) = (0, 0);
        for (index, made) in pages.clone().zip(made.into_iter().chain(repeat_with(|| None))) {
            let (at, bytes) = part_of(buf, offset, index);
            let taken =
                own_page(slots, index, at + bytes.len(), || self.space.will_touch(1)).and_then(|own| {
                    match &own {
                        Some(_) => {}
                        None if unwritten.count(&(index..index + 1)) > 0 => self.space.will_touch(1)?,
                        None if prepaid => {}
                        None => {
                            reserve(self.space, 1)?;
                            count_pages(self.file, 1, 0);
                        }
                    }
                    Ok(own)
                });
            let own = match taken {
                Ok(own) => own,
                Err(error) => {
                    let unused = if prepaid { holes(slots, unwritten, &(index..pages.end)) } else { 0 };
                    release(self.space, unused);
                    count_pages(self.file, 0, unused);
                    if written == 0 {
                        return Err(error);
                    }
                    break;
                }
            };
            if let Some(mut page) = own {
                page.store(at, bytes);
                locked.push(page);
            } else {
                filled += unwritten.remove(&(index..index + 1));
                let page = made.unwrap_or_else(|| page::with(index, at, bytes));
                locked.push(slots.insert_with(index, page, |page| page.lock()));
            }
            written += bytes.len();
        }
        self.file.extend_to(offset + written as u64);
        if unwritten.end() == 0 {
            self.file.set_reserved(false);
        }
        give_up(self.space, filled);
        let size = self.file.size();
        for (index, page) in pages.zip(locked.iter_mut()) {
            let may_be = self.rearranging.is_none() && page::is_whole(page);
            page.settle(may_be && (index + 1) * PAGE <= size);
        }
        Ok(written)
    }

    /// Puts `bytes`, which come from a store, into the hole that is page `index`, for which space was reserved.
    pub(super) fn fill(&mut self, index: u64, bytes: &[u8]) {
        let page = page::with(index, 0, bytes);
        let mut page = self.writer.slots().insert_with(index, page, |page| page.lock());
        page.settle(page::is_whole(&page) && (index + 1) * PAGE <= self.file.size());
    }

    /// Puts `page`, which is frozen, in place `index`.
    pub(super) fn share(&mut self, index: u64, page: &SharedBytes) -> Result<(), Errno> {
        debug_assert!(self.rearranging.is_some(), "a page that is replaced takes its readers by surprise");
        let (slots, unwritten) = self.writer.parts();
        if slots.get(index).is_none() {
            match unwritten.remove(&(index..index + 1)) {
                0 => {
                    reserve(self.space, 1)?;
                    count_pages(self.file, 1, 0);
                }
                filled => give_up(self.space, filled),
            }
        }
        slots.insert(index, page.clone());
        Ok(())
    }

    /// Freezes the data pages among `pages`, in order, and shares them.
    pub(super) fn freeze(&self, pages: Range<u64>) -> Vec<(u64, SharedBytes)> {
        let slots = self.writer.slots();
        let freeze = |(index, page): (u64, &Page)| {
            freeze(page);
            slots.share(index).map(|page| (index, page))
        };
        data_pages(slots, pages).filter_map(freeze).collect()
    }

    /// Freezes all data pages, shares them, and says how many there are.
    pub(super) fn share_all(&self) -> (All<SharedBytes>, u64) {
        let slots = self.writer.slots();
        // Pages that a shared node leads to are frozen, and stay so (I8).
        if !slots.are_shared() {
            // None is further behind (I2).
            let pages = 0..self.file.size().div_ceil(PAGE);
            data_pages(slots, pages).for_each(|(_, page)| freeze(page));
        }
        (slots.share_all(), self.file.pages() - self.writer.state().len())
    }

    /// Makes `all`, a set of `pages` pages, the data pages of this file, which has none.
    pub(super) fn begin_with(&mut self, all: All<SharedBytes>, pages: u64) -> Result<(), Errno> {
        if pages > 0 {
            self.space.reserve_shared(pages)?;
            charge_reserved(self.space, pages)?;
            count_pages(self.file, pages, 0);
        }
        self.writer.slots().begin_with(all);
        Ok(())
    }

    /// Makes `pages` holes and releases their storage.
    pub(super) fn remove(&mut self, pages: &Range<u64>) {
        let data = self.remove_data(pages);
        let (_, set) = self.writer.parts();
        let unwritten = set.remove(pages);
        self.file.set_reserved(set.end() != 0);
        give_up(self.space, unwritten);
        self.release(data + unwritten);
    }

    /// Takes the data pages out of `pages`, keeping their storage, and tells how many there were.
    pub(super) fn remove_data(&mut self, pages: &Range<u64>) -> u64 {
        debug_assert!(self.rearranging.is_some(), "a page that goes takes its readers by surprise");
        let slots = self.writer.slots();
        let mut removed = 0;
        // None is further behind (I2).
        let end = pages.end.min(self.file.size().div_ceil(PAGE));
        for (index, _) in data_pages(slots, pages.start..end) {
            slots.remove(index);
            removed += 1;
        }
        removed
    }

    /// Makes the holes in `pages` unwritten; the caller has reserved them.
    pub(super) fn fill_with_unwritten(&mut self, pages: Range<u64>) {
        self.file.set_reserved(true);
        let (slots, unwritten) = self.writer.parts();
        let mut hole = pages.start;
        for (index, _) in data_pages(slots, pages.clone()) {
            unwritten.insert(hole..index);
            hole = index + 1;
        }
        unwritten.insert(hole..pages.end);
    }

    /// Makes the bytes of `range` that lie in page `index` zero.
    pub(super) fn zero_in_page(&mut self, index: u64, range: &Range<u64>) {
        let piece = clip(index, range);
        // Bytes from the end of the file on are zero already (I1): do not copy a shared page for them.
        let piece = piece.start..piece.end.min(self.file.size());
        if !piece.is_empty()
            // The range must become zero even if memory is over its limit.
            && let Ok(Some(mut page)) = own_page(self.writer.slots(), index, 0, || {
                let _ = self.space.will_touch(1);
                Ok(())
            })
        {
            page.zero(within(index * PAGE, &piece));
        }
    }

    /// Gives back memory of the first page that a file of `size` bytes does not need.
    pub(super) fn shorten(&mut self, size: u64) {
        debug_assert!(self.rearranging.is_some(), "a page that is replaced takes its readers by surprise");
        let slots = self.writer.slots();
        // At size 0 the page goes.
        if (1..PAGE).contains(&size)
            && let Some(page) = slots.get(0)
        {
            let length = page::length(0, size as usize);
            if length < page.len() {
                let _locked = page.lock();
                slots.insert(0, SharedBytes::copy_of(page, length));
            }
        }
    }

    /// Moves every page from `from` on to where `to` says; the pages below `from` that it moves to are holes.
    pub(super) fn shift(&mut self, from: u64, to: impl Fn(u64) -> u64) {
        let (slots, unwritten) = self.writer.parts();
        let moved: Vec<_> = data_pages(slots, from..PAGES_MAX).map(|(index, _)| index).collect();
        let pages: Vec<_> = moved.iter().map(|index| slots.share(*index)).collect();
        for index in &moved {
            slots.remove(*index);
        }
        for (index, page) in moved.into_iter().zip(pages) {
            page.into_iter().for_each(|page| slots.insert(to(index), page));
        }
        unwritten.shift(from, to);
    }
}

/// Marks the bytes of `page` as shared by several places.
fn freeze(page: &Page) {
    let mut locked = page.lock();
    locked.settle(false);
    locked.freeze();
}

/// Counts pages that the file got and lost. The caller holds the file's mutex.
fn count_pages(file: &FileData, got: u64, lost: u64) {
    if got != lost {
        // Relaxed: a number that stands alone.
        file.pages.store(file.pages.load(Ordering::Relaxed) + got - lost, Ordering::Relaxed);
    }
}

/// The data pages among `pages`, in order. They may be removed while they are listed.
pub(super) fn data_pages<'w>(
    slots: Slots<'w, SharedBytes, PageSet>,
    pages: Range<u64>,
) -> impl Iterator<Item = (u64, &'w Page)> {
    let mut rest = pages;
    std::iter::from_fn(move || {
        let (index, page) = slots.first_in(rest.clone())?;
        rest.start = index + 1;
        Some((index, page))
    })
}

/// How many of `pages` are holes.
pub(super) fn holes(slots: Slots<'_, SharedBytes, PageSet>, unwritten: &PageSet, pages: &Range<u64>) -> u64 {
    let data = data_pages(slots, pages.clone()).count() as u64;
    pages.end - pages.start - data - unwritten.count(pages)
}

/// Data page `index`, locked, and copied first, if it `may` be, when it is not this file's alone or has no memory for its bytes up
/// to `end`.
fn own_page<'w>(
    slots: Slots<'w, SharedBytes, PageSet>,
    index: u64,
    end: usize,
    may: impl FnOnce() -> Result<(), Errno>,
) -> Result<Option<LockedPage<'w>>, Errno> {
    let Some(page) = slots.get(index) else { return Ok(None) };
    let mut locked = page.lock();
    if locked.is_frozen() && slots.is_sole(index) {
        locked.thaw();
    }
    if locked.is_frozen() || page.len() < end {
        may()?;
        let length = page.len().max(page::length(index, end));
        locked = slots.insert_with(index, SharedBytes::copy_of(page, length), |page| page.lock());
    }
    Ok(Some(locked))
}
