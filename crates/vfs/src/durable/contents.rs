//! Contents: how the contents of files get into a push: into records, or into extents that records name.
//!
//! # Theory
//! Extents that a push writes must be flushed before its batch, so an fsync waits for two flushes; bytes in records are
//! flushed with the batch. So a push in which few pages changed puts them into the records of their chunks, whatever
//! stands there already: it *splices* a record, of which it writes only the pages that are new. A chunk of which much
//! stands in its record is *heavy*. When the log is about to go to the tree, the store asks for a push that *writes
//! out*: it collects heavy chunks whole, and writes each to an extent. So their bytes never reach the tree, and nobody
//! waits for their flush but that push. It would hold up all pushes behind it, so whole chunks are written and flushed
//! *ahead* of it: the push names their extents if the chunks still have those bytes, and gives back the others.
//!
//! A push in which much changed writes to extents at once, but for chunks with an extent of which few pages are patched.

use super::chunk::{CHUNK, Chunk, HERE_MAX, Held, PATCHED_MAX};
use super::kept::Kept;
use super::keys::Key;
use super::mutant::Mutant;
use super::pending::Pending;
use crate::data::{CHUNK_PAGES, PAGE, PageSet};
use crate::lock_class::DURABLE_PENDING;
use crate::{Inode, InodeRef};
use sluice_store::{Added, Data, Extent};
use sluice_sync::atomic::Ordering;
use sluice_sync::{Arc, Mutex};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// If no more pages changed than these, a push puts them all into records: a flush of data costs more than so many bytes in the log.
const FEW_PAGES: u64 = 64;

/// Bytes of a chunk as they were in the cut.
pub(super) struct Copied {
    inode: InodeRef,
    chunk: u64,
    present: u16,
    bytes: Vec<u8>,
    /// The extent that has the bytes already.
    extent: Option<Extent>,
}

/// A chunk whose bytes an extent has that no record names yet.
struct WrittenAhead {
    bytes: Vec<u8>,
    extent: Extent,
}

/// The changed pages of a file.
pub(super) struct Marked {
    pub(super) dirty: PageSet,
    /// The chunks in which these pages are.
    pub(super) chunks: PageSet,
    /// In the whole push few pages changed, and the file has a name.
    pub(super) are_few: bool,
}

/// The files with heavy chunks. A file leaves when it loses its last name.
pub(super) struct HeavySet {
    /// *Protected by its mutex.*
    files: Mutex<BTreeMap<u64, HeavyFile>>,
    /// Chunks that were written ahead, by inode and chunk. *Protected by its mutex.*
    ahead: Mutex<BTreeMap<(u64, u64), WrittenAhead>>,
    /// So many chunks are written out at a time. *Immutable.*
    most: u64,
}

/// A file, and which of its chunks are heavy, or have been.
struct HeavyFile {
    /// Shared with the thread that writes ahead: an `InodeRef` is not to be counted with the set locked.
    inode: Arc<InodeRef>,
    chunks: BTreeSet<u64>,
}

impl HeavySet {
    /// That lets one push copy so many bytes.
    pub(super) fn new(bytes: u64) -> HeavySet {
        let [files, ahead] = [(); 2].map(|()| &DURABLE_PENDING);
        HeavySet {
            files: Mutex::with_class(files, BTreeMap::new()),
            ahead: Mutex::with_class(ahead, BTreeMap::new()),
            most: (bytes / CHUNK).max(1),
        }
    }

    /// The record of `chunk` was put down: perhaps much stands in it. Called in a cut.
    fn look(&self, inode: &InodeRef, chunk: u64, kept: &mut Kept) {
        if kept.pages_in_record(chunk) > PATCHED_MAX {
            debug_assert!(inode.has_name(), "the set would hold it");
            // Counted, if it is new, and dropped, with the set unlocked: that may free dead inodes.
            let mut own = (!kept.is_heavy).then(|| Arc::new(inode.clone()));
            kept.is_heavy = true;
            match self.files.lock().entry(inode.ino()) {
                Entry::Occupied(file) => _ = file.into_mut().chunks.insert(chunk),
                Entry::Vacant(file) => {
                    if let Some(inode) = own.take() {
                        file.insert(HeavyFile { inode, chunks: BTreeSet::from([chunk]) });
                    }
                }
            }
        }
    }

    /// The heavy chunks, as many as one push writes out.
    fn first(&self) -> Vec<(Arc<InodeRef>, u64)> {
        let files = self.files.lock();
        let chunks =
            files.values().flat_map(|file| file.chunks.iter().map(|chunk| (file.inode.clone(), *chunk)));
        chunks.take(usize::try_from(self.most).unwrap_or(usize::MAX)).collect()
    }

    /// Drops the heavy chunks of `inode`, which lost its last name: its contents need no write.
    pub(super) fn forget(&self, inode: &Inode) {
        let forgotten = self.files.lock().remove(&inode.ino());
        // With nothing locked.
        drop(forgotten);
    }

    /// Lets go of all files.
    pub(super) fn clear(&self) {
        let files = mem::take(&mut *self.files.lock());
        drop(files);
    }
}

impl Pending {
    /// Collects what is `marked` of `inode`, of which the store has what is `kept`.
    pub(super) fn collect_contents(
        &self,
        inode: &InodeRef,
        marked: &Marked,
        kept: &mut Kept,
        to: &mut Added,
    ) {
        let removals = self.removals.most();
        for chunks in marked.chunks.ranges() {
            let mut gone = PageSet::new();
            kept.records.within(&chunks).for_each(|range| gone.insert(range));
            gone.remove(&kept.cut_off);
            kept.absent.range(chunks.clone()).for_each(|(chunk, _)| _ = gone.remove(&(*chunk..chunk + 1)));
            let mut with_data = inode.data.chunks_with_data(chunks.clone());
            kept.keep_borrowed(&chunks, &mut with_data, self);
            for range in with_data.ranges() {
                gone.remove(&range);
                if range.start < kept.cut_off.end && kept.cut_off.start < range.end {
                    let end = range.end.min(kept.cut_off.end);
                    kept.remove_cut_off(inode.ino(), end, to, self);
                }
                range.for_each(|chunk| self.collect_chunk(inode, chunk, marked, kept, to));
            }
            gone.ranges().for_each(|range| self.memory.uncount(inode.ino(), kept, &range));
            let all = gone.ranges().next().map_or(0, |range| range.start)..gone.end();
            let are_holes = with_data.count(&all) == 0 && kept.absent.range(all.clone()).next().is_none();
            if gone.len() > removals && are_holes && kept.cut_off.is_empty() {
                kept.cut_off = all;
            } else {
                gone.ranges().for_each(|range| kept.remove_records(inode.ino(), &range, to, self));
            }
        }
        if !kept.cut_off.is_empty() {
            let end = kept.end_of_first(&kept.cut_off, removals);
            kept.remove_cut_off(inode.ino(), end, to, self);
        }
    }

    /// Collects `chunk`, which has data.
    fn collect_chunk(&self, inode: &InodeRef, chunk: u64, marked: &Marked, kept: &mut Kept, to: &mut Added) {
        let pages = chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES;
        let changed = marked.dirty.mask(&pages) as u16;
        let key = Key::chunk(inode.ino(), chunk);
        let mut bytes = mem::take(&mut *self.scratch.lock());
        bytes.clear();
        let is_own = kept.borrowed.count(&(chunk..chunk + 1)) == 0;
        // Then it is borrowed, and of pages that are not here the extent alone has the bytes.
        let is_away = kept.absent.contains_key(&chunk);
        if let Some(held) = kept.extents.get_mut(&chunk)
            && (is_away || marked.are_few || (held.patched | changed).count_ones() <= PATCHED_MAX)
            && (is_away || self.memory.may_patch() || changed == 0)
        {
            let former = if self.planted.has(Mutant::PatchForgotten) { 0 } else { held.patched };
            let stand = if to.is_logged() && is_own { former & !changed } else { 0 };
            let absent = kept.absent.get(&chunk).copied().unwrap_or(0);
            let present = inode.data.chunk(chunk, (former | changed) & !stand, &mut bytes) | absent;
            let patched = (former | changed) & present;
            self.memory.count_patched(patched, held.patched);
            held.patched = patched;
            Chunk { present, held: Some(held.clone()), bytes: &bytes }.put(&key, (former, stand), to);
            kept.own(chunk, self);
            if present & !absent != 0 {
                let inode = inode.clone();
                self.patched.lock().push((inode, chunk));
            }
            self.heavy.look(inode, chunk, kept);
        } else if marked.are_few
            && self.names.may_stand()
            && let Some(former) = kept.standing(chunk)
        {
            let stand = former & !changed;
            let present = inode.data.chunk(chunk, !stand, &mut bytes);
            kept.insert(chunk, present, None);
            let former = if self.planted.has(Mutant::SpliceMisplaced) { former << 1 } else { former };
            Chunk { present, held: None, bytes: &bytes }.put(&key, (former, stand), to);
            self.heavy.look(inode, chunk, kept);
        } else {
            self.collect_whole(inode, chunk, kept, to);
        }
        *self.scratch.lock() = bytes;
    }

    /// Collects all of `chunk`, which may have a record.
    fn collect_whole(&self, inode: &InodeRef, chunk: u64, kept: &mut Kept, to: &mut Added) {
        let mut bytes = Vec::new();
        kept.remove(&(chunk..chunk + 1), self);
        let present = inode.data.chunk(chunk, u16::MAX, &mut bytes);
        kept.insert(chunk, present, None);
        if bytes.len() <= HERE_MAX {
            to.put(&Key::chunk(inode.ino(), chunk), &Chunk { present, held: None, bytes: &bytes }.encode());
        } else {
            let copied = Copied { inode: inode.clone(), chunk, present, bytes, extent: None };
            self.copied.lock().push(copied);
        }
    }

    /// Writes whole heavy chunks to extents ahead of the push that writes them out. Whether there were such chunks.
    pub(super) fn write_ahead(&self, data: &Data<'_>) -> bool {
        let mut has_written = false;
        for (inode, chunk) in self.heavy.first() {
            let Some(stored) = inode.stored() else { continue };
            if stored.kept.lock().absent.contains_key(&chunk) || stored.dirty_in(chunk) != 0 {
                continue;
            }
            // The file may change meanwhile. The push compares.
            let mut bytes = Vec::new();
            inode.data.chunk(chunk, u16::MAX, &mut bytes);
            let key = (inode.ino(), chunk);
            let is_there = || self.heavy.ahead.lock().get(&key).is_some_and(|ahead| ahead.bytes == bytes);
            if bytes.len() as u64 != CHUNK || is_there() {
                continue;
            }
            // A disk that is full has no room in the push, either.
            let Ok(extent) = data.write(&bytes) else { break };
            has_written = true;
            let before = self.heavy.ahead.lock().insert(key, WrittenAhead { bytes, extent });
            before.iter().for_each(|before| data.discard(&before.extent));
        }
        has_written
    }

    /// Collects all of `chunk`, which the extent that was written ahead has, in the cut. False if that has other bytes.
    fn collect_ahead(&self, inode: &InodeRef, chunk: u64, kept: &mut Kept) -> bool {
        let Some(ahead) = self.heavy.ahead.lock().remove(&(inode.ino(), chunk)) else { return false };
        let mut bytes = mem::take(&mut *self.scratch.lock());
        bytes.clear();
        let present = inode.data.chunk(chunk, u16::MAX, &mut bytes);
        let is_same = bytes == ahead.bytes || self.planted.has(Mutant::AheadUnchecked);
        *self.scratch.lock() = bytes;
        if is_same {
            kept.remove(&(chunk..chunk + 1), self);
            kept.insert(chunk, present, None);
            let WrittenAhead { bytes, extent } = ahead;
            let copied = Copied { inode: inode.clone(), chunk, present, bytes, extent: Some(extent) };
            self.copied.lock().push(copied);
        } else {
            // The push gives it back.
            self.heavy.ahead.lock().insert((inode.ino(), chunk), ahead);
        }
        is_same
    }

    /// Whether so few pages of `files` have changed that they all go into records.
    pub(super) fn are_few<'i>(&self, files: impl Iterator<Item = &'i InodeRef>) -> bool {
        let mut left = FEW_PAGES;
        for inode in files {
            let pages = 0..inode.size().div_ceil(PAGE);
            let changed = inode.stored().map_or(0, |stored| stored.dirty_pages(pages));
            let Some(rest) = u64::checked_sub(left, changed) else { return false };
            left = rest;
        }
        true
    }

    /// Has heavy chunks written to extents, in the cut, when nobody waits for that.
    pub(super) fn write_out(&self, to: &mut Added) {
        let mut left = self.heavy.most;
        // Chunks that the cut has collected whole go to an extent anyway.
        let copied: BTreeSet<(u64, u64)> =
            self.copied.lock().iter().map(|one| (one.inode.ino(), one.chunk)).collect();
        let files = mem::take(&mut *self.heavy.files.lock());
        for (ino, HeavyFile { inode, mut chunks }) in files {
            let Some(stored) = inode.stored().filter(|_| inode.has_name()) else { continue };
            let mut kept = stored.kept.lock();
            let were = kept.standing_pages();
            while left > 0
                && let Some(chunk) = chunks.pop_first()
            {
                // A chunk with absent pages has an extent, which stays.
                if kept.pages_in_record(chunk) > PATCHED_MAX
                    && !kept.absent.contains_key(&chunk)
                    && !copied.contains(&(ino, chunk))
                {
                    if !self.collect_ahead(&inode, chunk, &mut kept) {
                        self.collect_whole(&inode, chunk, &mut kept, to);
                    }
                    left -= 1;
                }
            }
            self.names.count_standing(kept.standing_pages(), were);
            // Relaxed: no section is open.
            stored.changed_in.store(to.cut(), Ordering::Relaxed);
            kept.is_heavy = !chunks.is_empty();
            drop(kept);
            if !chunks.is_empty() {
                let before = self.heavy.files.lock().insert(ino, HeavyFile { inode, chunks });
                // With nothing locked.
                drop(before);
            }
        }
    }

    /// Writes what the cut copied.
    pub(super) fn write(&self, data: &Data<'_>, to: &mut Added) {
        self.removals.write(data, to, &self.owners, &self.remains);
        let copied = mem::take(&mut *self.copied.lock());
        let bytes: usize = copied.iter().map(|one| one.bytes.len()).sum();
        // Without a log data are a request of their own, which the push has to wait for first.
        let few = if to.is_logged() { u64::from(PATCHED_MAX) } else { FEW_PAGES };
        let are_few = !to.writes_out() && bytes as u64 <= few * PAGE;
        // Each copy goes as soon as it is written.
        for Copied { inode, chunk, present: pages, bytes, extent } in copied {
            let key = Key::chunk(inode.ino(), chunk);
            let Some(stored) = inode.stored() else { continue };
            // A disk without room for it has some in the log: the room that deletions need.
            let written = extent.or_else(|| if are_few { None } else { data.write(&bytes).ok() });
            let Some(extent) = written else {
                to.put(&key, &Chunk { present: pages, held: None, bytes: &bytes }.encode());
                continue;
            };
            let held = Some(Held { extent: extent.clone(), pages, patched: 0 });
            to.put(&key, &Chunk { present: pages, held: held.clone(), bytes: &[] }.encode());
            to.name_extent(&extent);
            if self.planted.has(Mutant::NameWithoutBytes) {
                data.discard(&extent);
            }
            if self.planted.has(Mutant::FreedEarly) {
                to.free_extent(&extent);
            }
            {
                let mut kept = stored.kept.lock();
                let were = kept.standing_pages();
                kept.written(chunk, pages, Held { extent, pages, patched: 0 });
                self.names.count_standing(kept.standing_pages(), were);
            }
            self.memory.enter(&inode, stored, chunk);
        }
        if to.writes_out() {
            let others = mem::take(&mut *self.heavy.ahead.lock());
            others.values().for_each(|ahead| data.discard(&ahead.extent));
        }
        let patched = mem::take(&mut *self.patched.lock());
        for (inode, chunk) in &patched {
            inode.stored().into_iter().for_each(|stored| self.memory.enter(inode, stored, *chunk));
        }
        self.owners.settle(data, to, &self.planted);
        self.memory.evict(&self.planted);
    }
}
