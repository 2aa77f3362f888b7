//! Segments: data that is too large for a record, in files that are written from front to back.
//!
//! # Theory
//! Data is never changed in place. A write takes the next blocks of the segment that this CPU has open, and gives an
//! [`Extent`]: where the bytes are, and a checksum of each block. A record of the file system *names* the extent; when
//! no record names it any more its blocks are given back to the disk. Free blocks within a segment are not written
//! again until the whole segment is free, so no map of free blocks is needed:
//! ```text
//!   segment   | live | given back | live | live | room that was asked for | not asked for |
//!                                               ^ end: the next write
//!   full, and nothing lives in it: written again from its beginning
//! ```
//! An extent is *pending* from its write to the checkpoint behind the batch that names it; from then on it counts in the
//! [`Table`], which the engine keeps with its position in the log.
//!
//! # Clients must
//! - name an extent in one transaction ([`Transaction::name_extent`](crate::Transaction::name_extent)), with the record that holds
//!   it, or give it up ([`Segments::discard`]);
//! - free it once, in the transaction that removes its last name, and not read it afterwards.
//!
//! # Invariants
//! - S1: data is flushed before the batch that names it is written;
//! - S2: blocks are given back, or written again, only when no record names them that a crash could bring back: after the
//!   checkpoint behind the batch that freed them;
//! - S3: a read returns the written bytes, or [`StoreError::Damaged`].
//!
//! # Lock order
//! See the crate's header. The lock of a CPU's open segment is held while the disk makes room; the locks of the space and of the
//! files are held across no I/O.
//!
//! # Cost
//! A write: the lock of this CPU's segment, two short locks shared by all, a checksum, one write to the host.

mod extent;
mod files;
mod read;
mod table;

use extent::EncryptedData;
pub(crate) use extent::Span;
pub use extent::{EXTENT_MAX, Extent};
pub(crate) use files::name;
pub use table::EXTENT_ROOM;
pub(crate) use table::{CHANGE_LEN, Change, Table};

use crate::StoreError;
use crate::compression::compressed;
use crate::disk::{Disk, DiskFile};
use crate::encryption::Cipher;
use crate::format::BLOCK;
use crate::mutant::{Mutant, Planted};
use files::Files;
use sluice_sync::percpu::{Counter, PerCpu};
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::BTreeMap;

static OPEN: LockClass = LockClass::new("store.segments.open");
static SPACE: LockClass = LockClass::new("store.segments.space");
static FLUSH: LockClass = LockClass::new("store.segments.flush");

/// The most segments that a store has: at the usual size 16 TiB.
pub(crate) const SEGMENTS_MAX: u32 = 1 << 16;
/// Blocks that a segment asks the disk for at a time at most, beyond what a write needs.
const AHEAD: u32 = 4096;
/// All open segments together ask ahead for this part of the disk's free room at most: the tree cannot use it.
const AHEAD_SHARE: u64 = 8;

/// The data of a store.
pub(crate) struct Segments {
    files: Files,
    /// *immutable*
    cipher: Option<Arc<Cipher>>,
    /// New data are compressed where that is worth it. *immutable*
    compresses: bool,
    /// Blocks of a segment. *immutable*
    blocks: u32,
    /// The segment that each CPU writes to. *each protected by its mutex*
    open: PerCpu<Mutex<Option<Open>>>,
    /// Bytes of the extents that were written, and of the blocks that they took. *each adds to its CPU's own line*
    written: [Counter; 2],
    space: Mutex<Space>,
    /// Held during a flush: why one failed.
    flush: Mutex<Option<String>>,
    planted: Planted,
}

/// A segment that is being written.
struct Open {
    number: u32,
    file: Arc<dyn DiskFile>,
    /// The next block.
    next: u32,
    /// Blocks before it have storage on the disk.
    allocated: u32,
}

/// The use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Some CPU writes it.
    Open,
    /// The segment takes no more writes.
    Full,
    /// It has room behind its end: a segment that an earlier run of the program wrote.
    Room,
    /// Nothing lives in it: it is written again.
    Free,
}

#[derive(Default)]
struct Space {
    table: Table,
    /// For each segment, including segments unknown to the table.
    segments: Vec<(Phase, Pending)>,
    /// Segments written since the last flush.
    dirty: BTreeMap<u32, Arc<dyn DiskFile>>,
}

/// Blocks of a segment that are written and not in the table.
type Pending = u32;

impl Segments {
    /// The segments of a store, as `table` has them after recovery, of so many `blocks`; so many are
    /// written at a time, compressed if it `compresses`.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        (blocks, open, compresses): (u32, usize, bool),
        table: Table,
        planted: Planted,
    ) -> Segments {
        let segments = Segments {
            cipher: disk.cipher(),
            files: Files::new(disk),
            compresses,
            blocks,
            open: PerCpu::with_cpus(open.max(1), |_| Mutex::with_class(&OPEN, None)),
            // No CPU ever passes its sum on: each has a line of its own.
            written: [0; 2].map(|none| Counter::with_batch(none, i64::MAX)),
            space: Mutex::with_class(&SPACE, Space::default()),
            flush: Mutex::with_class(&FLUSH, None),
            planted,
        };
        let mut undone = table.freed.clone();
        let dead = table.uses.iter().enumerate().filter(|(_, one)| one.live == 0 && one.end > 0);
        undone.extend(dead.map(|(at, _)| Span { segment: at as u32, block: 0, blocks }));
        {
            let mut space = segments.space.lock();
            space.segments = (table.uses.iter())
                .map(|one| match one.live {
                    0 => (Phase::Free, 0),
                    _ if one.end < blocks => (Phase::Room, 0),
                    _ => (Phase::Full, 0),
                })
                .collect();
            space.table = table;
            for one in space.table.uses.iter_mut().filter(|one| one.live == 0) {
                one.end = 0;
            }
            if planted.has(Mutant::EndForgotten) {
                space.table.uses.iter_mut().for_each(|one| one.end = 0);
            }
        }
        // Holes that a crash may have left undone. A disk that cannot do it keeps the room, and nothing is wrong.
        undone.into_iter().for_each(|span| segments.punch(span));
        segments
    }

    /// Blocks of a segment.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes that records of the engine name.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.space.lock().table.live_bytes()
    }

    /// Bytes of the extents that were written since the store was opened, and of the blocks that they took.
    pub(crate) fn written(&self) -> [u64; 2] {
        self.written.each_ref().map(|count| count.sum().cast_unsigned())
    }

    /// Whether new data are compressed where that is worth it.
    pub(crate) fn compresses(&self) -> bool {
        self.compresses
    }

    /// Whether data are encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        self.cipher.is_some()
    }

    /// Whether the store has segments.
    pub(crate) fn are_there(&self) -> bool {
        self.blocks > 0
    }

    /// Writes `bytes`, without a flush.
    ///
    /// # Errors
    /// The disk's; the store goes on.
    ///
    /// # Panics
    /// When `bytes` is empty or too long: the caller's fault.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<Extent, StoreError> {
        if !self.are_there() {
            // A store whose records have everything: see Store::over.
            return Err(StoreError::Io("write data", std::io::ErrorKind::Unsupported.into()));
        }
        let blocks_of = |bytes: &[u8]| bytes.len().div_ceil(BLOCK as usize) as u32;
        let blocks = blocks_of(bytes);
        assert!(
            blocks > 0 && bytes.len() <= EXTENT_MAX && blocks <= self.blocks,
            "an extent of {blocks} blocks"
        );
        let (len, smaller) = (bytes.len(), if self.compresses { compressed(bytes) } else { None });
        let bytes = smaller.as_deref().unwrap_or(bytes);
        let encrypted = self.cipher.as_ref().map(|cipher| EncryptedData::of(bytes, cipher)).transpose();
        let encrypted = encrypted.map_err(StoreError::io("encrypt data"))?;
        let (span, file) = self.reserve(blocks_of(bytes))?;
        let stored = encrypted.as_ref().map_or(bytes, |data| &data.bytes);
        if let Err(error) = file.write_at(stored, span.offset()) {
            self.give_up(span);
            return Err(StoreError::Io("write data", error));
        }
        // After the write: a flush that takes it from here flushes all of it.
        self.space.lock().dirty.insert(span.segment, file);
        let [contents, taken] = &self.written;
        contents.add(len as i64);
        taken.add(span.bytes() as i64);
        let extent = match encrypted {
            Some(data) => Extent::of_encrypted(span, data),
            None => Extent::of(span, bytes),
        };
        Ok(extent.compressed_from(len))
    }

    /// Makes the writes of all returned calls durable.
    ///
    /// # Errors
    /// The disk's: then nothing is known of the data that no earlier flush covered, and every later flush fails.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        if self.planted.has(Mutant::DataNotFlushed) {
            return Ok(());
        }
        // A call during a flush waits for it: that flush may have taken what this call must flush.
        let mut failed = self.flush.lock();
        if let Some(why) = &*failed {
            return Err(StoreError::Failed(why.clone()));
        }
        let dirty = std::mem::take(&mut self.space.lock().dirty);
        for file in dirty.values() {
            let flushed = file.sync().map_err(StoreError::io("flush data"));
            if let Err(error) = &flushed {
                *failed = Some(error.to_string());
            }
            flushed?;
        }
        Ok(())
    }

    /// Gives back an extent that no transaction has named.
    pub(crate) fn discard(&self, extent: &Extent) {
        self.give_up(extent.span());
    }

    fn give_up(&self, span: Span) {
        self.punch(span);
        self.space.lock().settle(span);
    }

    /// The table after a checkpoint that applies `changes`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when they cannot be.
    pub(crate) fn after(&self, changes: &[Change]) -> Result<Table, StoreError> {
        let space = self.space.lock();
        let mut table = space.table.after(changes, SEGMENTS_MAX, self.blocks).map_err(StoreError::Damaged)?;
        // A full and dead segment stays so: it gets no more writes, and an extent that is not pending gets no new name.
        for number in space.dead(&table, changes, self.planted) {
            table.uses[number].end = 0;
        }
        Ok(table)
    }

    /// The engine holds `table`, which [`after`](Self::after) made of `changes`.
    pub(crate) fn applied(&self, table: Table, changes: &[Change]) {
        let (dead, freed) = {
            let mut space = self.space.lock();
            let dead = space.dead(&table, changes, self.planted);
            space.table = table;
            dead.iter().for_each(|number| space.table.uses[*number].end = 0);
            for change in changes.iter().filter(|change| !change.freed) {
                space.settle(change.span);
            }
            let is_dead = |span: &Span| dead.contains(&(span.segment as usize));
            let freed: Vec<Span> = (changes.iter().filter(|change| change.freed))
                .map(|change| change.span)
                .filter(|span| !is_dead(span))
                .collect();
            (dead, freed)
        };
        Span::merged(freed).into_iter().for_each(|span| self.punch(span));
        for number in dead {
            self.punch(Span { segment: number as u32, block: 0, blocks: self.blocks });
            self.space.lock().segments[number].0 = Phase::Free;
        }
    }

    /// Takes `blocks` of this CPU's segment.
    fn reserve(&self, blocks: u32) -> Result<(Span, Arc<dyn DiskFile>), StoreError> {
        let mut here = self.open.here().lock();
        let full = loop {
            match &mut *here {
                None => *here = Some(self.next_segment()?),
                Some(open) if open.next + blocks > self.blocks => {
                    self.close(open);
                    *here = None;
                }
                Some(open) => match open.make_room(blocks, self.blocks, || self.ahead()) {
                    Ok(()) => return Ok(self.take(open, blocks)),
                    Err(error) => break error,
                },
            }
        };
        drop(here);
        // The disk is full; another CPU may have asked for more than it needs.
        for other in self.open.iter() {
            if let Some(open) = &mut *other.lock()
                && open.allocated.saturating_sub(open.next) >= blocks
            {
                return Ok(self.take(open, blocks));
            }
        }
        Err(StoreError::Io("make room for data", full))
    }

    /// Blocks that a segment asks for beyond what a write needs.
    fn ahead(&self) -> u32 {
        let share = |free: u64| free / BLOCK / (AHEAD_SHARE * self.open.len() as u64);
        let share = self.files.free_bytes().map_or(AHEAD.into(), share);
        u32::try_from(share).map_or(AHEAD, |share| share.min(AHEAD))
    }

    fn take(&self, open: &mut Open, blocks: u32) -> (Span, Arc<dyn DiskFile>) {
        let span = Span { segment: open.number, block: open.next, blocks };
        open.next += blocks;
        self.space.lock().segments[open.number as usize].1 += blocks;
        (span, open.file.clone())
    }

    /// Opens a segment that has room: one that is free, one that an earlier run began, or a new one.
    fn next_segment(&self) -> Result<Open, StoreError> {
        let (number, next, is_new) = {
            let mut space = self.space.lock();
            let find = |space: &Space, phase| space.segments.iter().position(|(is, _)| *is == phase);
            let found = find(&space, Phase::Free).or_else(|| find(&space, Phase::Room));
            let number = found.unwrap_or(space.segments.len());
            if number >= SEGMENTS_MAX as usize {
                return Err(StoreError::Io("make one more segment", std::io::ErrorKind::StorageFull.into()));
            }
            match found {
                Some(number) => space.segments[number].0 = Phase::Open,
                None => space.segments.push((Phase::Open, 0)),
            }
            let next = space.table.uses.get(number).map_or(0, |one| one.end);
            (number as u32, next, found.is_none())
        };
        // A segment that the table knows may have no file: nothing lives in it.
        let file = if is_new || next == 0 { self.files.make(number) } else { self.files.get(number) };
        match file {
            Ok(file) => {
                // A crash may have left blocks behind the end, which no record names. A disk that keeps it wastes the
                // room.
                let _ = file.punch(u64::from(next) * BLOCK, u64::from(self.blocks - next) * BLOCK);
                Ok(Open { number, file, next, allocated: next })
            }
            Err(error) => {
                self.space.lock().segments[number as usize].0 =
                    if next == 0 { Phase::Free } else { Phase::Room };
                Err(error)
            }
        }
    }

    /// Nothing more is written to `open`: the room that it has not used goes back to the disk.
    fn close(&self, open: &Open) {
        self.punch_ahead(open);
        self.space.lock().segments[open.number as usize].0 = Phase::Full;
    }

    fn punch_ahead(&self, open: &Open) {
        if open.allocated > open.next {
            self.punch(Span { segment: open.number, block: open.next, blocks: open.allocated - open.next });
        }
    }

    /// Gives the disk back the room that open segments have taken from it and not used. Writes ask for it again.
    pub(crate) fn give_ahead_back(&self) {
        for open in self.open.iter() {
            if let Some(open) = &mut *open.lock() {
                self.punch_ahead(open);
                open.allocated = open.next;
            }
        }
    }

    /// Gives blocks back to the disk. A disk without support for holes keeps the blocks: a waste, and no fault.
    pub(crate) fn punch(&self, span: Span) {
        if let Ok(file) = self.files.get(span.segment) {
            let _ = file.punch(span.offset(), span.bytes());
        }
    }

    /// Bytes that open segments have taken from the disk and not used.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let blocks = |open: &Open| u64::from(open.allocated.saturating_sub(open.next));
        self.open.iter().map(|open| open.lock().as_ref().map_or(0, blocks)).sum::<u64>() * BLOCK
    }

    /// Gives back the room that open segments have not used. For a store that is being closed.
    pub(crate) fn trim(&self) {
        for open in self.open.iter() {
            if let Some(open) = open.lock().take() {
                self.close(&open);
            }
        }
    }
}

impl Open {
    /// Asks the disk for storage for `blocks` more, and for as many beyond as `ahead` says, up to block `limit`.
    fn make_room(&mut self, blocks: u32, limit: u32, ahead: impl FnOnce() -> u32) -> std::io::Result<()> {
        let needed = self.next + blocks;
        if needed <= self.allocated {
            return Ok(());
        }
        let from = self.allocated;
        let mut ask = |to: u32| {
            self.file.allocate(u64::from(from) * BLOCK, u64::from(to - from) * BLOCK)?;
            self.allocated = to;
            Ok(())
        };
        ask(needed.saturating_add(ahead()).min(limit)).or_else(|_: std::io::Error| ask(needed))
    }
}

impl Space {
    /// Segments that are full and in which nothing lives after `table`, once what `changes` name is no longer pending.
    fn dead(&self, table: &Table, changes: &[Change], planted: Planted) -> Vec<usize> {
        let mut pending: Vec<Pending> = self.segments.iter().map(|(_, pending)| *pending).collect();
        for change in changes.iter().filter(|change| !change.freed) {
            if let Some(pending) = pending.get_mut(change.span.segment as usize) {
                *pending = pending.saturating_sub(change.span.blocks);
            }
        }
        let waits = |at: usize| pending[at] > 0 && !planted.has(Mutant::PendingForgotten);
        let is_dead =
            |at: &usize| self.segments[*at].0 == Phase::Full && !waits(*at) && table.uses[*at].live == 0;
        (0..self.segments.len().min(table.uses.len())).filter(is_dead).collect()
    }

    /// `span` is no longer pending: it is in the table, or given up.
    fn settle(&mut self, span: Span) {
        if let Some((_, pending)) = self.segments.get_mut(span.segment as usize) {
            *pending = pending.saturating_sub(span.blocks);
        }
    }
}

/// Blocks in segments of `size` bytes.
pub(crate) fn blocks_of(size: u64) -> u32 {
    u32::try_from(size / BLOCK).unwrap_or(u32::MAX)
}
