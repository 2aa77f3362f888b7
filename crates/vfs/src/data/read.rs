//! Reading: looking at the contents while others may be changing them, without a lock and without a store.

use super::{FileData, PAGE, Page, clip, pages_touched, within};
use sluice_sync::face::hint;
use sluice_sync::rcu::{Guard, domain};

/// How often a reader tries before it waits in the writers' line.
const TRIES: u32 = 8;
/// Pages of a read that needs no memory of its own.
const PAGES_INLINE: usize = 16;

/// What a read relied on in one place.
#[derive(Clone, Copy, Default)]
struct Seen<'g> {
    /// The page, or none in a hole.
    page: Option<&'g Page>,
    /// The page's count.
    sequence: u32,
}

impl FileData {
    /// Reads from `offset` into `buf` and returns the number of bytes read, which is less than asked for only
    /// at the end of the file. Holes read as zeros.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        for attempt in 0..TRIES {
            if let Some(len) = self.read_unlocked(offset, buf) {
                return len;
            }
            hint::pause(1 << attempt);
        }
        self.read_locked(offset, buf)
    }

    /// Reads, unless somebody changes meanwhile what the read relies on.
    fn read_unlocked(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let guard = domain().read();
        let layout = self.layout.try_begin()?;
        let size = self.size();
        let len = size.saturating_sub(offset).min(buf.len() as u64);
        if len == 0 {
            return Some(0);
        }
        let wanted = offset..offset + len;
        let pages = pages_touched(&wanted);
        let (mut few, mut many) = ([Seen::default(); PAGES_INLINE], Vec::new());
        let count = (pages.end - pages.start) as usize;
        let seen = if count <= PAGES_INLINE {
            &mut few[..count]
        } else {
            many.resize(count, Seen::default());
            &mut many
        };
        for (index, seen) in pages.clone().zip(&mut *seen) {
            let piece = clip(index, &wanted);
            let target = &mut buf[within(offset, &piece)];
            match self.tree.get(&guard, index) {
                Some(page) => {
                    *seen = Seen { page: Some(page), sequence: page.count().try_begin()? };
                    page.load((piece.start - index * PAGE) as usize, target);
                }
                None => target.fill(0),
            }
        }
        let same = |(index, seen): (u64, &Seen<'_>)| {
            seen.page.is_none_or(|page| !page.count().retry(seen.sequence))
                // One place had one moment: when its slot was read.
                && (count == 1 || same_page(seen.page, self.tree.get(&guard, index)))
        };
        // The layout first: its fence also orders what is looked at again behind what was copied.
        let valid = !self.layout.retry(layout)
            && pages.zip(&*seen).all(same)
            && (len == buf.len() as u64 || self.size() == size);
        valid.then_some(len as usize)
    }

    /// Reads behind the mutex and under the locks of the pages.
    #[cold]
    fn read_locked(&self, offset: u64, buf: &mut [u8]) -> usize {
        let writer = self.tree.write();
        let len = self.size().saturating_sub(offset).min(buf.len() as u64);
        if len == 0 {
            return 0;
        }
        let wanted = offset..offset + len;
        let lock = |index| (index, writer.slots().get(index).map(|page| page.lock()));
        let locked: Vec<_> = pages_touched(&wanted).map(lock).collect();
        for (index, page) in &locked {
            let piece = clip(*index, &wanted);
            let target = &mut buf[within(offset, &piece)];
            match page {
                Some(page) => page.load((piece.start - index * PAGE) as usize, target),
                None => target.fill(0),
            }
        }
        len as usize
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

fn same_page(one: Option<&Page>, other: Option<&Page>) -> bool {
    one.map(std::ptr::from_ref) == other.map(std::ptr::from_ref)
}
