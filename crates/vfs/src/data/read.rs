//! Reading: looking at the contents while others may be changing them, without a lock and without a store.

use super::{FileData, LockedPage, PAGE, PAGE_SIZE, Page, clip, pages_touched, within};
use crate::at_once::{AtOnce, WouldWait};
use sluice_sync::face::hint;
use sluice_sync::rcu::{Guard, domain};
use std::ops::Range;

/// How often a reader tries before it waits in the writers' line.
const TRIES: u32 = 8;
/// Pages of a read that needs no memory of its own.
const PAGES_INLINE: usize = 16;

/// The page and count that a read relied on.
#[derive(Clone, Copy, Default)]
struct PageRead<'g> {
    /// The page, or none in a hole.
    page: Option<&'g Page>,
    /// The page's count.
    sequence: u32,
}

impl FileData {
    /// Reads from `offset` into `buf` and returns the number of bytes read, which is less than asked for only
    /// at the end of the file. Holes read as zeros. `None` where pages may be with a store.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        for attempt in 0..TRIES {
            if let Ok(len) = self.read_at_once(offset, buf) {
                return Some(len);
            }
            hint::pause(1 << attempt);
        }
        self.read_locked(offset, buf, false)
    }

    /// Reads from `offset` into `buf`, when no page that is read is with a store.
    #[cold]
    pub(crate) fn read_here(&self, offset: u64, buf: &mut [u8]) -> usize {
        self.read_locked(offset, buf, true).unwrap_or(0)
    }

    /// Reads from `offset` into `buf`, unless somebody changes the pages meanwhile. Waits for nobody.
    pub(crate) fn read_at_once(&self, offset: u64, buf: &mut [u8]) -> AtOnce<usize> {
        let guard = domain().read();
        if self.take_of_one(&guard, offset, buf) {
            return Ok(buf.len());
        }
        self.read_pages_at_once(&guard, offset, buf)
    }

    /// The slow path of [`read_at_once`](Self::read_at_once), for bytes outside one settled page.
    #[inline(never)]
    fn read_pages_at_once(&self, guard: &Guard<'_>, offset: u64, buf: &mut [u8]) -> AtOnce<usize> {
        if !buf.is_empty()
            && let Some(end) = offset.checked_add(buf.len() as u64)
            && self.may_be_settled(guard, end)
            && with_seen(&(offset..end), |seen| self.take(guard, offset, buf, seen, true)).is_some()
        {
            return Ok(buf.len());
        }
        let layout = self.layout.try_begin().ok_or(WouldWait)?;
        let size = self.size();
        let len = size.saturating_sub(offset).min(buf.len() as u64);
        if len == 0 {
            return Ok(0);
        }
        let cut = len < buf.len() as u64;
        let piece = &mut buf[..len as usize];
        with_seen(&(offset..offset + len), |seen| self.take(guard, offset, piece, seen, false))
            .ok_or(WouldWait)?;
        // The layout last: what was compared was so while it stood still.
        let valid = !self.layout.retry(layout) && (!cut || self.size() == size);
        if valid { Ok(len as usize) } else { Err(WouldWait) }
    }

    /// Whether there is nothing at `offset` and after.
    pub(crate) fn ends_by(&self, offset: u64) -> bool {
        // A settled page lies below the size, and has it that the size need not be looked at.
        !self.may_be_settled(&domain().read(), offset.saturating_add(1)) && self.size() <= offset
    }

    /// Whether the byte before `end` is in a settled page, as far as a look without its count tells. Most reads outside
    /// settled pages end in a page that is not settled.
    fn may_be_settled(&self, guard: &Guard<'_>, end: u64) -> bool {
        end.checked_sub(1)
            .and_then(|last| self.tree.get(guard, last / PAGE))
            .is_some_and(|page| page.is_settled())
    }

    /// A fast path of [`take`](Self::take) for the common read within one settled page.
    #[inline]
    fn take_of_one(&self, guard: &Guard<'_>, offset: u64, buf: &mut [u8]) -> bool {
        let (index, at) = (offset / PAGE, (offset % PAGE) as usize);
        if at + buf.len() > PAGE_SIZE {
            return false;
        }
        let Some(page) = self.tree.get(guard, index) else { return false };
        let Some(sequence) = page.count().try_begin() else { return false };
        if !page.is_settled() {
            return false;
        }
        // It has memory for all bytes (I6).
        page.load(at, buf);
        same_page(Some(page), self.tree.get(guard, index)) && !page.count().retry(sequence)
    }

    /// Copies what is from `offset` on into `buf`, which is not empty. `None` when a page changed, or was moved,
    /// meanwhile; or, where only `settled` pages will do, was none.
    fn take<'g>(
        &'g self,
        guard: &'g Guard<'_>,
        offset: u64,
        buf: &mut [u8],
        seen: &mut [PageRead<'g>],
        settled: bool,
    ) -> Option<()> {
        let wanted = offset..offset + buf.len() as u64;
        for (index, seen) in pages_touched(&wanted).zip(&mut *seen) {
            let piece = clip(index, &wanted);
            let target = &mut buf[within(offset, &piece)];
            match self.tree.get(guard, index) {
                Some(page) => {
                    *seen = PageRead { page: Some(page), sequence: page.count().try_begin()? };
                    if settled && !page.is_settled() {
                        return None;
                    }
                    page.load_padded((piece.start - index * PAGE) as usize, target);
                }
                None if settled || self.may_be_absent() => return None,
                None => target.fill(0),
            }
        }
        // The slot first: a page whose count has not moved by then was in it since the count was begun.
        let same = |(index, seen): (u64, &PageRead<'_>)| {
            same_page(seen.page, self.tree.get(guard, index))
                && seen.page.is_none_or(|page| !page.count().retry(seen.sequence))
        };
        pages_touched(&wanted).zip(&*seen).all(same).then_some(())
    }

    /// Reads behind the mutex and under the locks of the pages. `None` where a page may be with a store, unless all are `here`.
    #[cold]
    fn read_locked(&self, offset: u64, buf: &mut [u8], here: bool) -> Option<usize> {
        let writer = self.tree.write();
        let len = self.size().saturating_sub(offset).min(buf.len() as u64);
        if len == 0 {
            return Some(0);
        }
        let wanted = offset..offset + len;
        // A page that others share does not change while we have it; the file may have it in two places, and others in another order.
        let lock = |index| (index, writer.slots().get(index).map(|page| (page, lock_unless_shared(page))));
        let locked: Vec<_> = pages_touched(&wanted).map(lock).collect();
        for (index, page) in &locked {
            let piece = clip(*index, &wanted);
            let target = &mut buf[within(offset, &piece)];
            match page {
                Some((page, _)) => page.load_padded((piece.start - index * PAGE) as usize, target),
                None if !here && self.may_be_absent() => return None,
                None => target.fill(0),
            }
        }
        Some(len as usize)
    }

    /// The first offset at or after `offset` that holds data, in whole pages; `None` (`ENXIO`) when there is
    /// none before the end of the file, or `offset` is not before it.
    pub(crate) fn seek_data(&self, offset: u64) -> Option<u64> {
        self.look(|guard| {
            let size = self.size();
            if offset >= size {
                return None;
            }
            let (index, _) = self.tree.first_in(guard, offset / PAGE..size.div_ceil(PAGE))?;
            Some(offset.max(index * PAGE))
        })
    }

    /// The first offset at or after `offset` that is in a hole or an unwritten page, or the end of the file;
    /// `None` (`ENXIO`) when `offset` is not before the end.
    pub(crate) fn seek_hole(&self, offset: u64) -> Option<u64> {
        self.look(|guard| {
            let size = self.size();
            if offset >= size {
                return None;
            }
            let mut index = offset / PAGE;
            while index * PAGE < size && self.tree.get(guard, index).is_some() {
                index += 1;
            }
            Some(offset.max(index * PAGE).min(size))
        })
    }

    /// Whether one of the pages with a byte in `bytes` that lies before the end of the file is a hole, or with a store.
    pub(crate) fn has_hole_in(&self, bytes: &Range<u64>) -> bool {
        self.look(|guard| {
            let bytes = bytes.start..bytes.end.min(self.size()).max(bytes.start);
            pages_touched(&bytes).any(|index| self.tree.get(guard, index).is_none())
        })
    }

    /// Calls `look` until nobody rearranged the file meanwhile.
    fn look<R>(&self, look: impl Fn(&Guard<'_>) -> R) -> R {
        let found = {
            let guard = domain().read();
            self.layout.read_bounded(TRIES as usize, || look(&guard))
        };
        found.unwrap_or_else(|| {
            let _unwritten = self.tree.state();
            look(&domain().read())
        })
    }
}

fn lock_unless_shared(page: &Page) -> Option<LockedPage<'_>> {
    Some(page.lock()).filter(|locked| !locked.is_frozen())
}

/// Calls `look` with room for each page that has a byte in `bytes`, which is not empty.
fn with_seen<'g, R>(bytes: &Range<u64>, look: impl FnOnce(&mut [PageRead<'g>]) -> R) -> R {
    let pages = pages_touched(bytes);
    match (pages.end - pages.start) as usize {
        1 => look(&mut [PageRead::default()]),
        count @ ..=PAGES_INLINE => look(&mut [PageRead::default(); PAGES_INLINE][..count]),
        count => look(&mut vec![PageRead::default(); count]),
    }
}

fn same_page(one: Option<&Page>, other: Option<&Page>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.is_same(other),
        (one, other) => one.is_none() && other.is_none(),
    }
}
