//! Writing: changing the bytes of a file, and its size.

use super::page::{self, Locked, MadePages};
use super::{FileData, LockedPage, PAGE, PAGE_SIZE, PAGES_MAX, Space, pages_touched, part_of};
use crate::{Errno, FILE_SIZE_MAX};
use sluice_sync::rcu::{Guard, domain};

/// The most pages that a write makes before it has the file's mutex, and before it knows that there is space for them.
const MADE_MAX: usize = 64;

impl FileData {
    /// Writes `buf` at `offset`, makes the file as long as that needs, and returns the number of bytes
    /// written. That is less than asked for when space ends or the size limit is reached on the way.
    ///
    /// Errors, when not one byte could be written: `EFBIG` at or after the size limit, `ENOSPC`.
    pub(crate) fn write(&self, space: &dyn Space, offset: u64, buf: &[u8]) -> Result<usize, Errno> {
        let buf = cut_at_the_limit(offset, buf)?;
        if buf.is_empty() || self.overwrite(offset, buf) {
            return Ok(buf.len());
        }
        let made = self.make_pages(offset, buf);
        self.grow(space).write(offset, buf, made)
    }

    /// Writes the part of `buf` that lies below the end of the file.
    pub(crate) fn write_within(&self, space: &dyn Space, offset: u64, buf: &[u8]) -> Result<usize, Errno> {
        let buf = cut_at_the_limit(offset, buf)?;
        if buf.is_empty() || self.overwrite(offset, buf) {
            return Ok(buf.len());
        }
        let mut change = self.grow(space);
        let room = self.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        if room == 0 { Ok(0) } else { change.write(offset, &buf[..room], MadePages::new()) }
    }

    /// Writes `buf` where the file ends and returns that offset, with the result of [`FileData::write`].
    pub(crate) fn append(&self, space: &dyn Space, buf: &[u8]) -> Result<(u64, usize), Errno> {
        if buf.is_empty() {
            return Ok((self.size(), 0));
        }
        let mut change = self.grow(space);
        let end = self.size();
        Ok((end, change.write(end, cut_at_the_limit(end, buf)?, MadePages::new())?))
    }

    /// Writes `buf`, which is not empty, if every byte goes to a data page of this file alone, below the size.
    fn overwrite(&self, offset: u64, buf: &[u8]) -> bool {
        let guard = domain().read();
        if self.overwrite_in_one(&guard, offset, buf) {
            return true;
        }
        let target = offset..offset + buf.len() as u64;
        let (mut locked, mut settled) = (Locked::new(), true);
        for index in pages_touched(&target) {
            let Some(page) = self.tree.get(&guard, index).map(|page| page.lock()) else { return false };
            let (at, bytes) = part_of(buf, offset, index);
            if page.is_frozen() || at + bytes.len() > page.len() {
                return false;
            }
            settled &= page.is_settled();
            locked.push(page);
        }
        if !settled && !self.reaches(target.end) {
            return false;
        }
        // Only now: a thread that could take a page out of its slot since then waits for our lock.
        let in_place = |(index, page): (u64, &mut LockedPage<'_>)| {
            self.tree.get(&guard, index).is_some_and(|found| page.is_of(found))
        };
        if !pages_touched(&target).zip(locked.iter_mut()).all(in_place) {
            return false;
        }
        for (index, page) in pages_touched(&target).zip(locked.iter_mut()) {
            let (at, bytes) = part_of(buf, offset, index);
            page.store(at, bytes);
        }
        true
    }

    /// A fast path of [`overwrite`](Self::overwrite) for the common overwrite within one settled page.
    #[inline]
    fn overwrite_in_one(&self, guard: &Guard<'_>, offset: u64, buf: &[u8]) -> bool {
        let (index, at) = (offset / PAGE, (offset % PAGE) as usize);
        if at + buf.len() > PAGE_SIZE {
            return false;
        }
        let Some(page) = self.tree.get(guard, index) else { return false };
        // This check without the lock avoids locking an unsettled page twice.
        if !page.is_settled() {
            return false;
        }
        let mut page = page.lock();
        let in_place = self.tree.get(guard, index).is_some_and(|found| page.is_of(found));
        if !page.is_settled() || !in_place {
            return false;
        }
        page.store(at, buf);
        true
    }

    /// The pages with which writing `buf`, which is not empty, at `offset` would fill the holes that are there now.
    fn make_pages(&self, offset: u64, buf: &[u8]) -> MadePages {
        let mut made = MadePages::new();
        for index in pages_touched(&(offset..offset + buf.len() as u64)).take(MADE_MAX) {
            let hole = self.tree.get(&domain().read(), index).is_none();
            let (at, bytes) = part_of(buf, offset, index);
            made.push(hole.then(|| page::with(index, at, bytes)));
        }
        made
    }

    /// Makes the file `size` bytes long. Shrinking, and setting the size that it has, release all that lies
    /// beyond, storage reserved there included; growing leaves a hole. Stores nothing when there is nothing to do.
    ///
    /// Errors: `EFBIG` above the size limit.
    pub(crate) fn truncate(&self, space: &dyn Space, size: u64) -> Result<(), Errno> {
        self.resize(space, size).map(drop)
    }

    /// Makes the file `size` bytes long, as [`truncate`](Self::truncate) does; says whether it may have released something.
    pub(crate) fn resize(&self, space: &dyn Space, size: u64) -> Result<bool, Errno> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if self.ends_at(size) {
            return Ok(false);
        }
        if size > self.size() {
            let _growing = self.grow(space);
            // Somebody else may have made it longer.
            if size > self.size() {
                self.extend_to(size);
                return Ok(false);
            }
        }
        let mut change = self.rearrange(space, size / PAGE..PAGES_MAX);
        if size <= self.size() {
            change.shorten(size);
            change.punch_hole(size..u64::MAX);
        }
        self.set_size(size);
        Ok(true)
    }
}

/// The part of `buf` that a file can hold at `offset`.
///
/// Errors: `EFBIG` when that is nothing of something.
fn cut_at_the_limit(offset: u64, buf: &[u8]) -> Result<&[u8], Errno> {
    let room = FILE_SIZE_MAX.saturating_sub(offset);
    if room == 0 && !buf.is_empty() {
        return Err(Errno::EFBIG);
    }
    Ok(&buf[..room.min(buf.len() as u64) as usize])
}
