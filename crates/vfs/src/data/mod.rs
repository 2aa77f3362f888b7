//! FileData: the sparse contents of one regular file, kept in pages of memory.
//!
//! # Theory
//! Each page of a file is in one of three states:
//! ```text
//!   bytes   0      4096     8192     12288    16384   size
//!           | data  | hole   | unwritten       | data  | |
//!           |       |        |                 |       |
//!   data    { 0: Page,                           4: Page }     radix tree, pages copy-on-write
//!   unwritten         { 2..4 }                                 set of ranges
//! ```
//! *Data* holds bytes; a file's first page has memory for as many as were written there (`page.rs`). *Unwritten* is storage that fallocate reserved: it counts as allocated, reads as
//! zeros, and SEEK_DATA and SEEK_HOLE take it for a hole. A *hole* is everything else: it reads as zeros and
//! costs nothing, however long it is.
//!
//! Each call takes effect at one moment: a read sees a write whole or not at all, wherever the two overlap. (A
//! copy takes effect at two: it reads at one moment and writes at a later one.) There are four ways to work:
//!
//! | way | calls | holds | writes to |
//! |---|---|---|---|
//! | read | reads, seeks | nothing | nothing |
//! | overwrite | writes into data pages below the size | the locks of its pages | its pages |
//! | grow | appends, writes that fill holes, reservations | the file's mutex, and the locks of its pages | pages, tree, size |
//! | rearrange | truncation, holes, moves, copies | the mutex; the layout count is odd | everything |
//!
//! A read or an overwrite needs no more than its pages. So it meets no call that works in other pages or makes the file
//! longer: a *settled* page (I6) may be relied on alone.
//! ```text
//!   read         find pages | begin their counts, settled? | copy | still in their slots, counts as they were?
//!   overwrite    find and lock pages | settled? | still in their slots? | store | unlock
//!   rearrange    layout odd | lock, unsettle, unlock each page of the part | change | layout even | settle them
//! ```
//! An overwriter that has a page first is waited for, and one that has it last sees that it is not settled; it waits
//! for no mutex while it holds a page. A reader of settled pages whose counts stood still read while no rearrangement was at
//! work on them, and found them where they belong.
//!
//! A call that meets an unsettled or missing page checks more state. An *overwriter* that has its pages locked asks
//! whether the layout count is even and the size reaches so far, and if not it grows instead, behind the mutex. A
//! *reader* compares at the end all that it relied on: the layout, too, that holes are holes, and the size if that cut
//! the read. When something changed it reads again, and after [`TRIES`](read) times it takes the mutex and the pages'
//! locks itself. *Growing* locks like an overwriter, inserts new pages locked, and raises the size before it unlocks
//! any. The pages that a write needs for holes are made, bytes and all, before it has the mutex: most of its time.
//!
//! A page that belongs to more than one place is *frozen*: a writer puts a copy in its place. A copy of a whole file
//! shares the nodes of the tree, too, and each of the two files gets its own with its first change below. A writer also
//! replaces a first page that lacks memory for the new bytes. The writer holds the lock of the old page meanwhile;
//! overwriters wait for that, and they then find another in its slot.
//!
//! # Clients must
//! - pass the same [`Space`] to each call on one file, and call [`FileData::clear`] before dropping it;
//! - not call this inside an RCU read section: changes may wait for a grace period.
//!
//! # Lock order
//! the file's mutex, then its pages by number. No two files are locked at once.
//!
//! # Invariants
//! - I1: bytes of a data page at and after `size` are zero. So growing never has to clear anything.
//! - I2: a data page begins below `size`. Only unwritten pages lie beyond.
//! - I3: no page is both data and unwritten.
//! - I4: no page lies beyond `FILE_SIZE_MAX`, and `size` is not above it. So a page number times the page
//!   size, plus one page, fits in 64 bits.
//! - I5: the pages reserved from `Space` and not yet released are `pages()`.
//! - I6: a settled page lies below `size` with all its bytes and has memory for them, is not frozen, and no rearrangement is at
//!   work on it. The reverse need not hold.
//! - I7: bytes of a data page for which it has no memory are zero.
//! - I8: a page that a shared node leads to is frozen.
//!
//! # Ordering
//! | label | release side | acquire side | publishes |
//! |---|---|---|---|
//! | size | [`FileData::set_size`] | [`FileData::size`] | the pages below a new size, locked until all is written |
//! | reserved | [`FileData::set_reserved`] | [`FileData::ends_at`] | that there is no unwritten page |
//! | absent | [`FileData::set_absent`] | [`FileData::may_be_absent`] | that no page is with a store only |
//!
//! # Cost
//! Reading or overwriting a page: one load a level of the tree (none at all in files of one page). Else
//! O(log n) for a call, plus that for each page that it touches; n is the number of data pages and of
//! unwritten ranges. Holes and unwritten ranges cost the same at any length. Collapsing and inserting touch
//! the pages after the range, which move. An empty file is [`FileData`] itself, without memory on the heap.
//!
//! # Sources
//! `fallocate(2)`, `lseek(2)`, `copy_file_range(2)`. Analogous to Linux's tmpfs (`mm/shmem.c`): an unwritten
//! page is its page that is allocated and not up to date. One difference is meant: a second fallocate over an
//! unwritten page turns it into data (zeros) there, and leaves it unwritten here, as on ext4 and XFS.

mod allocate;
mod change;
mod copy;
mod page;
mod page_set;
mod read;
mod stored;
mod write;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads;

use crate::lock_class::FILE_DATA;
use crate::{Errno, FILE_SIZE_MAX};
use page::LockedPage;
pub(crate) use page_set::PageSet;
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::{RadixTree, SeqBytes, SeqCount, SharedBytes};
use std::cell::Cell;
use std::ops::Range;
pub(crate) use stored::{CHUNK_PAGES, RANGES_MAX};

/// Bytes in a page.
pub(crate) const PAGE_SIZE: usize = 4096;
/// Bytes in a page, as file offsets count.
pub(crate) const PAGE: u64 = PAGE_SIZE as u64;
/// A page that holds data, or the first bytes of it.
type Page = SeqBytes;
/// The number of pages in the longest file.
pub(crate) const PAGES_MAX: u64 = FILE_SIZE_MAX.div_ceil(PAGE);

/// The storage that files take their pages from. A page shared copy-on-write counts once for each place that
/// holds it, since each may need a copy of its own at the next write.
pub(crate) trait Space {
    /// Takes `pages` pages, all or none. Errors: `ENOSPC` (or `EDQUOT`) when fewer pages are left.
    fn reserve(&self, pages: u64) -> Result<(), Errno>;
    /// Reserves shared pages: a shared page needs no memory before a write to it.
    fn reserve_shared(&self, pages: u64) -> Result<(), Errno> {
        self.reserve(pages)
    }
    /// Takes `pages` pages that nobody may write for long, all or none. Errors: as [`reserve`](Self::reserve).
    fn reserve_unwritten(&self, pages: u64) -> Result<(), Errno> {
        self.reserve(pages)
    }
    /// Sees to it that `pages` pages which are reserved can be written later. Errors: `ENOSPC`.
    fn hold_back(&self, _pages: u64) -> Result<(), Errno> {
        Ok(())
    }
    /// So many pages that were held back are written, or unwritten no more.
    fn give_up(&self, _pages: u64) {}
    /// Gives `pages` pages back.
    fn release(&self, pages: u64);
    /// Counts `pages` pages, which are reserved, for the quota of the file, all or none. Called with the file's mutex held, as the next two.
    /// Errors: `EDQUOT`.
    fn charge(&self, _pages: u64) -> Result<(), Errno> {
        Ok(())
    }
    /// Counts `pages` pages for the quota of the file, whatever the limit.
    fn charge_anyway(&self, _pages: u64) {}
    /// The quota counts `pages` pages less.
    fn discharge(&self, _pages: u64) {}
    /// Memory is about to be taken for `pages` pages that were reserved before: storage that reads as zeros, or a page that is
    /// shared. Errors: `ENOSPC` when the machine has none left.
    fn will_touch(&self, _pages: u64) -> Result<(), Errno> {
        Ok(())
    }
}

/// Storage of which some was paid for before. The unused rest is given back in the end.
pub(crate) struct Prepaid<'s> {
    space: &'s dyn Space,
    left: Cell<u64>,
}

impl<'s> Prepaid<'s> {
    /// Pays for `pages` pages, which share memory with others. Errors: `ENOSPC`.
    pub(crate) fn new(space: &'s dyn Space, pages: u64) -> Result<Prepaid<'s>, Errno> {
        space.reserve_shared(pages)?;
        Ok(Prepaid { space, left: Cell::new(pages) })
    }

    /// So many pages, or what is left, are somebody's.
    pub(crate) fn spend(&self, pages: u64) -> u64 {
        let spent = pages.min(self.left.get());
        self.left.set(self.left.get() - spent);
        spent
    }
}

impl Space for Prepaid<'_> {
    fn reserve(&self, pages: u64) -> Result<(), Errno> {
        let own = pages.min(self.left.get());
        if pages > own {
            self.space.reserve(pages - own)?;
        }
        self.spend(own);
        Ok(())
    }

    fn hold_back(&self, pages: u64) -> Result<(), Errno> {
        self.space.hold_back(pages)
    }

    fn give_up(&self, pages: u64) {
        self.space.give_up(pages);
    }

    fn release(&self, pages: u64) {
        self.space.release(pages);
    }

    fn will_touch(&self, pages: u64) -> Result<(), Errno> {
        self.space.will_touch(pages)
    }

    fn charge(&self, pages: u64) -> Result<(), Errno> {
        self.space.charge(pages)
    }

    fn charge_anyway(&self, pages: u64) {
        self.space.charge_anyway(pages);
    }

    fn discharge(&self, pages: u64) {
        self.space.discharge(pages);
    }
}

impl Drop for Prepaid<'_> {
    fn drop(&mut self) {
        // No file has these pages.
        if self.left.get() > 0 {
            self.space.release(self.left.get());
        }
    }
}

/// The contents of one regular file. See the module's header for what callers owe it. Where pages are found comes last,
/// apart from what changes when a file grows.
#[repr(C)]
pub(crate) struct FileData {
    /// Size in bytes. *Written under the tree's mutex; atomic (size).*
    size: AtomicU64,
    /// Pages allocated, unwritten ones included. *Written under the tree's mutex; atomic, alone.*
    pages: AtomicU64,
    /// Odd while a change rearranges what others rely on. *Written under the tree's mutex.*
    layout: SeqCount,
    /// There may be unwritten pages. *Written under the tree's mutex; atomic (reserved).*
    reserved: AtomicBool,
    /// A missing page may be in a store, and is not a hole then. *Written under the tree's mutex; atomic (absent).*
    absent: AtomicBool,
    /// The pages that hold data, by page number; and, *protected by its mutex*, those that are reserved and
    /// read as zeros.
    tree: RadixTree<SharedBytes, PageSet>,
}

impl FileData {
    /// An empty file.
    pub(crate) fn new() -> FileData {
        FileData {
            size: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            layout: SeqCount::new(),
            reserved: AtomicBool::new(false),
            absent: AtomicBool::new(false),
            tree: RadixTree::with_class(&FILE_DATA, PageSet::new()),
        }
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        // Acquire(size): the pages below it; pairs with Release(size) in set_size().
        self.size.load(Ordering::Acquire)
    }

    /// Nobody changes the number of pages before this is dropped.
    pub(crate) fn alone(&self) -> impl Drop + '_ {
        self.tree.state()
    }

    /// [`alone`](Self::alone) without waiting: in a read section. The owner of the contents may wait for the end of all read
    /// sections.
    pub(crate) fn try_alone(&self) -> Option<impl Drop + '_> {
        self.tree.try_state()
    }

    /// The caller holds the tree's mutex.
    fn set_size(&self, size: u64) {
        // Release(size): the pages below it; pairs with Acquire(size) in size().
        self.size.store(size, Ordering::Release);
    }

    /// Raises the size to at least `size`. The caller holds the tree's mutex.
    fn extend_to(&self, size: u64) {
        if size > self.size() {
            self.set_size(size);
        }
    }

    /// The caller holds the tree's mutex. Set before the first unwritten page comes, cleared after the last went.
    fn set_reserved(&self, reserved: bool) {
        // Relaxed: our own store.
        if self.reserved.load(Ordering::Relaxed) != reserved {
            // Release(reserved): pairs with Acquire(reserved) in ends_at().
            self.reserved.store(reserved, Ordering::Release);
        }
    }

    /// Whether a page that is missing may be with a store.
    fn may_be_absent(&self) -> bool {
        // Acquire(absent): pairs with Release(absent) in set_absent(). A reader that meets a page while it leaves sees the layout
        // change; one that comes later sees this.
        self.absent.load(Ordering::Acquire)
    }

    /// Sets whether pages may be in a store from now on.
    pub(crate) fn set_absent(&self, absent: bool) {
        // Release(absent): the pages that came; pairs with Acquire(absent) in may_be_absent().
        self.absent.store(absent, Ordering::Release);
    }

    /// Whether the file is `size` bytes long and has no storage beyond. May say no when it is so.
    fn ends_at(&self, size: u64) -> bool {
        let Some(layout) = self.layout.try_begin() else { return false };
        // The size only grows while the layout stands still, so it was this one when nothing was reserved.
        // Acquire(reserved): the second look at the size comes after; pairs with Release(reserved).
        self.size() == size
            && !self.reserved.load(Ordering::Acquire)
            && self.size() == size
            && !self.layout.retry(layout)
    }

    /// Whether the file reached to `end` at a moment when nobody was rearranging it. May say no when it did.
    fn reaches(&self, end: u64) -> bool {
        let layout = self.layout.try_begin();
        layout.is_some_and(|layout| end <= self.size() && !self.layout.retry(layout))
    }

    /// Whether there may be unwritten pages.
    pub(crate) fn has_reserved(&self) -> bool {
        // Relaxed: a hint, unless nobody changes the file.
        self.reserved.load(Ordering::Relaxed)
    }

    /// Number of pages allocated, unwritten ones included.
    pub(crate) fn pages(&self) -> u64 {
        // Relaxed: a number that stands alone.
        self.pages.load(Ordering::Relaxed)
    }

    /// Releases all pages, before the file is dropped.
    pub(crate) fn clear(&mut self, space: &dyn Space) {
        let mut old = std::mem::replace(self, FileData::new());
        // No lock: a destructor may run while the contents of another file are locked.
        give_up(space, old.tree.state_mut().len());
        release(space, old.pages());
    }
}

/// Reserves `pages` pages for a file and counts them for its quota; none needs no reservation.
fn reserve(space: &dyn Space, pages: u64) -> Result<(), Errno> {
    if pages == 0 {
        return Ok(());
    }
    space.reserve(pages)?;
    charge_reserved(space, pages)
}

/// Counts `pages` pages, which were just reserved, for the quota of the file; if that is full, they are released.
fn charge_reserved(space: &dyn Space, pages: u64) -> Result<(), Errno> {
    space.charge(pages).inspect_err(|_| space.release(pages))
}

/// Releases `pages` pages of a file.
fn release(space: &dyn Space, pages: u64) {
    if pages > 0 {
        space.discharge(pages);
        space.release(pages);
    }
}

/// Gives up holding back `pages` pages.
fn give_up(space: &dyn Space, pages: u64) {
    if pages > 0 {
        space.give_up(pages);
    }
}

/// The pages that have a byte in `bytes`, which is not empty.
fn pages_touched(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

/// The part of `bytes` that lies in page `index`, which has a byte in it.
fn clip(index: u64, bytes: &Range<u64>) -> Range<u64> {
    let start = index * PAGE;
    bytes.start.max(start)..bytes.end.min(start + PAGE)
}

/// The piece of `buf`, written at `offset`, that belongs to page `index`, and the piece's start within the page.
fn part_of(buf: &[u8], offset: u64, index: u64) -> (usize, &[u8]) {
    let piece = clip(index, &(offset..offset + buf.len() as u64));
    ((piece.start - index * PAGE) as usize, &buf[within(offset, &piece)])
}

/// `bytes`, counted from offset `base` on. The range must be in memory: in a page or in a caller's buffer.
fn within(base: u64, bytes: &Range<u64>) -> Range<usize> {
    (bytes.start - base) as usize..(bytes.end - base) as usize
}
