//! Cil: the committed item list: records of ended transactions that no push has taken yet.
//!
//! # Theory
//! Each CPU has a buffer of records on a line of its own. A [`Transaction`] copies its records into the buffer of the CPU it
//! runs on. It holds a big-reader lock for reading from begin to end, which writes the thread's own line alone. A push takes that
//! lock for writing for as long as it needs to swap the buffers, so a transaction is in one batch with all that it wrote, and
//! one that saw another's change is in the same batch or a later one:
//! ```text
//!   CPU 0   [ T1 ][ T3 ]   |  [ T6 ]          |: the cut. T1, T2, T3 and T4 are in the batch, T5 and T6 in the next.
//!   CPU 1   [ T2 ][ T4 ]   |  [ T5 ]
//! ```
//! Values that are too large to be copied at each change, such as the contents of files, are added by the store's
//! [`Source`] in the cut: no transaction is under way then, so the values are as of the same transactions. The source
//! copies values that are too large for a record in the cut, and writes them to the segments when transactions go on.
//!
//! # Clients must
//! - begin a transaction before they take the locks under which they change an object, and end it after the last change: a
//!   change made outside could be seen by a transaction of an earlier batch;
//! - write each object under the lock that orders its changes, with a version that grows from change to change;
//! - not wait in a transaction for anything that waits for a push.
//!
//! # Then
//! A transaction that ends by a panic has written a part of what it changed. No cut takes records from then on: the store fails.
//!
//! # Cost
//! A transaction: two stores to the thread's own line, and for each record a lock and a copy on the CPU's own lines; for the
//! room that it asks for, a count on the CPU's own line, which it shares with others once in a batch. A cut: one membarrier(2), a look at each thread's line, a swap for
//! each CPU.

use crate::StoreError;
use crate::engine::{Engine, Visit};
use crate::log::Log;
use crate::mutant::{Mutant, Planted};
use crate::record::{Records, cost};
use crate::segments::{CHANGE_LEN, Change, Extent, Segments};
use crate::splice::Splice;
use sluice_sync::atomic::{AtomicBool, Ordering};
use sluice_sync::percpu::{Budget, PerCpu};
use sluice_sync::thread::panicking;
use sluice_sync::{BrLock, BrReadGuard, LockClass, Mutex};
use std::fmt;

static CIL: LockClass = LockClass::new("store.cil");
static BUFFER: LockClass = LockClass::new("store.cil.buffer");

/// Room is mostly taken in multiples of this many bytes.
const GRAIN: u64 = 1024;
/// The message for a caller that breaks this rule.
const ASKED: &str = "a transaction writes no more than it asked for";

/// Records that wait for the next push.
pub(crate) struct Cil {
    /// Held for reading by each transaction, for writing by a cut.
    open: BrLock<()>,
    /// *each protected by its mutex; taken in `open`*
    buffers: PerCpu<Mutex<Records>>,
    /// Bytes that transactions have asked for and no push has taken; a batch of each CPU above the limit. *per CPU*
    room: Budget,
    /// A transaction ended by a panic. *atomic (broken), set once*
    broken: AtomicBool,
    planted: Planted,
}

/// Adds to each push the values that are too large to copy at each change.
pub trait Source: Send + Sync {
    /// Adds the current values of changed objects. No transaction is under way, and none begins before this call returns: it
    /// must be quick, and must not begin a transaction.
    fn collect(&self, to: &mut Added);

    /// Writes data that stand in records ahead of the next push that [writes out](Added::writes_out), which is shorter then:
    /// transactions and other pushes go on meanwhile. Returns whether there is something for the caller to flush.
    fn write_ahead(&self, _data: &Data<'_>) -> bool {
        false
    }

    /// Writes data that the last [`collect`](Self::collect) copied, and adds the records that name them. Transactions go on
    /// meanwhile; the next `collect` waits.
    fn write(&self, _data: &Data<'_>, _to: &mut Added) {}

    /// Whether a push would write what no transaction has announced. The thread of the store asks before it sleeps.
    fn has_work(&self) -> bool {
        false
    }
}

/// Where a [`Source`] writes data that are too large for a record, and looks up what the tree has.
#[derive(Clone, Copy)]
pub struct Data<'s> {
    pub(crate) segments: &'s Segments,
    pub(crate) engine: &'s dyn Engine,
    pub(crate) applied_cut: u64,
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Data").field("applied_cut", &self.applied_cut).finish_non_exhaustive()
    }
}

impl Data<'_> {
    /// Writes `bytes` to an extent; see [`Store::write_extent`](crate::Store::write_extent).
    ///
    /// # Errors
    /// Errors of [`Store::write_extent`](crate::Store::write_extent).
    ///
    /// # Panics
    /// In the cases of [`Store::write_extent`](crate::Store::write_extent).
    pub fn write(&self, bytes: &[u8]) -> Result<Extent, StoreError> {
        self.segments.write(bytes)
    }

    /// Gives back an unnamed extent; see [`Store::discard_extent`](crate::Store::discard_extent).
    pub fn discard(&self, extent: &Extent) {
        self.segments.discard(extent);
    }

    /// The value of `key` in the tree; see [`Store::get`](crate::Store::get).
    ///
    /// # Errors
    /// Errors of [`Store::get`](crate::Store::get).
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.engine.get(key)
    }

    /// Fetches the first records of each of `ranges`, which are scanned soon: side by side where the tree is far away.
    pub fn warm(&self, ranges: &[std::ops::Range<Vec<u8>>]) {
        self.engine.warm(ranges);
    }

    /// The value of [`Store::applied_cut`](crate::Store::applied_cut) when the push began.
    pub fn applied_cut(&self) -> u64 {
        self.applied_cut
    }

    /// Visits records of the tree in order; see [`Store::scan`](crate::Store::scan).
    ///
    /// # Errors
    /// Errors of [`Store::scan`](crate::Store::scan).
    pub fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.engine.scan(from, to, visit)
    }
}

/// Takes what a [`Source`] adds to a push: each value is newer than any that a transaction wrote.
#[derive(Debug, Default)]
pub struct Added {
    records: Records,
    /// A key and its value, added to a push that has other records.
    beside: Option<(Vec<u8>, Vec<u8>)>,
    cut: u64,
    is_logged: bool,
    writes_out: bool,
    again: bool,
    failed: Option<StoreError>,
}

impl Added {
    /// To the cut of this number. See the methods of these names.
    pub(crate) fn to(cut: u64, log: Option<&Log>, writes_out: bool) -> Added {
        let records = log.map_or_else(Records::default, |log| Records::in_memory(log.spare.take()));
        Added { records, cut, is_logged: log.is_some(), writes_out, ..Added::default() }
    }

    /// The number of the cut, one more than that of the cut before: 1 for the first since the store was opened. See
    /// [`Store::applied_cut`](crate::Store::applied_cut).
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Whether values may be [spliced](Self::splice): the store has a log of its own, which is shorter then.
    pub fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// Whether this is the time to write data to the segments that stands in records: the log is about to go to the tree. Other pushes
    /// need not wait for a flush of data.
    pub fn writes_out(&self) -> bool {
        self.writes_out
    }

    /// There is more to add than one push should have: the thread of the store makes the next one at once.
    pub fn ask_again(&mut self) {
        self.again = true;
    }

    /// The values to add are unknown because of `error`: the push fails, and the store with it.
    pub fn fail(&mut self, error: StoreError) {
        self.failed.get_or_insert(error);
    }

    /// Writes that the object `key` has this value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.records.push(key, u64::MAX, Some(value));
    }

    /// Writes that the object `key` has this value, if the push has other records: a push is not made for this one alone.
    pub fn put_beside(&mut self, key: &[u8], value: &[u8]) {
        self.beside = Some((key.to_vec(), value.to_vec()));
    }

    /// Writes that the object `key` has a value that is made of the one it had before this push. Only where values
    /// [are logged](Self::is_logged), of a key that has a value and that no transaction writes.
    pub fn splice(&mut self, key: &[u8], splice: &Splice) {
        self.records.push_splice(key, u64::MAX, splice);
    }

    /// Logs the removal of the object `key`.
    pub fn remove(&mut self, key: &[u8]) {
        self.records.push(key, u64::MAX, None);
    }

    /// Logs that a record names `extent`; see [`Transaction::name_extent`].
    pub fn name_extent(&mut self, extent: &Extent) {
        self.records.push_change(Change { span: extent.span(), freed: false });
    }

    /// Logs that no record names `extent` any more; see [`Transaction::free_extent`].
    pub fn free_extent(&mut self, extent: &Extent) {
        self.records.push_change(Change { span: extent.span(), freed: true });
    }
}

/// The content of a push.
pub(crate) struct Cut {
    /// One buffer of records for each CPU, then the source's records.
    pub(crate) records: Vec<Records>,
    /// Bytes to give back to [`Cil::give_back`] once the records are in the log.
    pub(crate) room: u64,
    /// The source asks for another push.
    pub(crate) again: bool,
    /// The source could not add what it must.
    pub(crate) failed: Option<StoreError>,
}

impl Cil {
    /// An empty list that holds up to `bytes` of records.
    pub(crate) fn new(bytes: u64, planted: Planted) -> Cil {
        Cil {
            open: BrLock::with_class(&CIL, ()),
            buffers: PerCpu::new(|_| Mutex::with_class(&BUFFER, Records::default())),
            room: Budget::with_grain(Some(bytes), 0, GRAIN),
            broken: AtomicBool::new(false),
            planted,
        }
    }

    /// Begins a transaction that writes up to `bytes` of records, if there is room for them.
    pub(crate) fn begin(&self, bytes: u64) -> Option<Transaction<'_>> {
        self.room.take_about(bytes).ok()?;
        let open = self.open.read();
        Some(Transaction { cil: self, room: bytes, was_panicking: panicking(), _open: open })
    }

    /// Fails once a transaction has ended by a panic.
    ///
    /// # Errors
    /// [`StoreError::Failed`]
    fn check(&self) -> Result<(), StoreError> {
        // Relaxed: a cut looks when no transaction is under way, so that the lock orders. A transaction must not look: other
        // CPUs write the line of the flag.
        match self.broken.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(StoreError::Failed("a change ended by a panic, and is not whole".into())),
        }
    }

    /// Whether a transaction of the calling thread is open.
    pub(crate) fn is_open_here(&self) -> bool {
        self.open.is_read_here()
    }

    /// Bytes that wait for a push.
    pub(crate) fn waiting(&self) -> u64 {
        self.room.used()
    }

    /// Takes the records of all transactions that have ended, and what `source` adds to what is `added`.
    pub(crate) fn cut(&self, source: Option<&dyn Source>, data: Data<'_>, mut added: Added) -> Cut {
        let taken: Vec<Records> = {
            let _alone = (!self.planted.has(Mutant::CutInParts)).then(|| self.open.write());
            if let Some(source) = source {
                source.collect(&mut added);
            }
            if let Err(error) = self.check() {
                added.fail(error);
            }
            self.buffers.iter().map(|buffer| std::mem::take(&mut *buffer.lock())).collect()
        };
        if let Some(source) = source {
            source.write(&data, &mut added);
        }
        let room = taken.iter().map(Records::cost).sum();
        let has_others = !added.records.is_empty() || taken.iter().any(|part| !part.is_empty());
        if let Some((key, value)) = added.beside.take().filter(|_| has_others) {
            added.put(&key, &value);
        }
        let records = taken.into_iter().chain([added.records]).filter(|part| !part.is_empty()).collect();
        Cut { records, room, again: added.again, failed: added.failed }
    }

    /// Returns when all transactions that had begun have ended.
    pub(crate) fn pass(&self) {
        self.alone(|| ());
    }

    /// Calls `act` when no transaction is under way, and lets none begin meanwhile.
    pub(crate) fn alone<R>(&self, act: impl FnOnce() -> R) -> R {
        let _alone = self.open.write();
        act()
    }

    /// A push is done with `bytes` of records.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.room.give(bytes);
    }
}

/// An atomic change: the disk gets all of it or none. A transaction stays on its thread, and ends when it is dropped.
pub struct Transaction<'c> {
    cil: &'c Cil,
    /// Bytes that were asked for and not written yet. *owner only*
    room: u64,
    /// It began in a destructor that a panic called.
    was_panicking: bool,
    _open: BrReadGuard<'c, ()>,
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("room", &self.room).finish_non_exhaustive()
    }
}

impl Transaction<'_> {
    /// Writes that the object `key` has this value from now on, in its `version`.
    ///
    /// # Panics
    /// When it writes more than it asked for, or a longer key or value than there may be: the caller's fault.
    pub fn put(&mut self, key: &[u8], version: u64, value: &[u8]) {
        self.write(key, version, Some(value));
    }

    /// Logs the removal of the object `key`.
    ///
    /// # Panics
    /// In the cases of [`put`](Self::put).
    pub fn remove(&mut self, key: &[u8], version: u64) {
        self.write(key, version, None);
    }

    /// Writes that a record of this transaction names `extent`, as the first one that does.
    ///
    /// # Panics
    /// When it writes more than it asked for: an extent counts for [`EXTENT_ROOM`](crate::EXTENT_ROOM) bytes.
    pub fn name_extent(&mut self, extent: &Extent) {
        self.change(extent, false);
    }

    /// Writes that no record names `extent` any more. Its blocks are given back when no crash can bring a name of it back.
    ///
    /// # Panics
    /// In the cases of [`name_extent`](Self::name_extent).
    pub fn free_extent(&mut self, extent: &Extent) {
        self.change(extent, true);
    }

    fn change(&mut self, extent: &Extent, freed: bool) {
        self.room = self.room.checked_sub(CHANGE_LEN as u64).expect(ASKED);
        self.cil.buffers.here().lock().push_change(Change { span: extent.span(), freed });
    }

    fn write(&mut self, key: &[u8], version: u64, value: Option<&[u8]>) {
        let cost = cost(key.len(), value.map_or(0, <[u8]>::len));
        self.room = self.room.checked_sub(cost).expect(ASKED);
        self.cil.buffers.here().lock().push(key, version, value);
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if panicking() && !self.was_panicking {
            // Relaxed: see check().
            self.cil.broken.store(true, Ordering::Relaxed);
        }
        self.cil.room.give(self.room);
    }
}
