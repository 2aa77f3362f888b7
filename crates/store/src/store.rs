//! Store: the parts put together: transactions above, the log in the middle, the engine behind.
//!
//! # Theory
//! [`Store::sync`] makes durable what ended before it was called. Callers gather in groups (`group.rs`), of which one member *pushes*:
//! it cuts the list of records, forms a batch, writes and flushes it. The others wait, so that many callers share one flush. Up
//! to [`IN_FLIGHT`](crate::log::IN_FLIGHT) pushes are under way: their batches are formed one at a time, written side by side, and counted as done in order.
//!
//! ```text
//!   sequence      done          formed
//!   ... applied | 41 42 43 | 44  45  46 |           42, 43 wait for a checkpoint; 44 to 46 are being written
//! ```
//!
//! A thread of the store pushes what is older than [`Options::age`], and checkpoints when a quarter of the log is used.
//!
//! # Invariants
//! - I1: a batch's part of the log is used again only after the engine holds it durably;
//! - I2: batch n counts as done only when n - 1 does;
//! - I3: after the first error of the log or the engine nothing more is written, and every call says so;
//! - I4: a push that cannot write what it took has failed the store before another push looks what waits.

use crate::StoreError;
use crate::cil::{Added, Cil, Cut, Source, Transaction};
use crate::disk::Disk;
use crate::engine::Engine;
use crate::group::Callers;
use crate::log::{Formed, Log, Position};
use crate::mutant::{Mutant, Planted};
use crate::options::Options;
use crate::record::{Batch, absorb};
use crate::room::Room;
use crate::segments::{Extent, Segments};
use crate::why::Why;
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::thread::JoinHandle;
use sluice_sync::time::Instant;
use sluice_sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::collections::VecDeque;
use std::{fmt, io, mem};

/// A batch that takes more than this part of the log goes to the tree at once.
const LARGE_SHARE: u64 = 2;
/// When records take this share of the log, or of its memory, a checkpoint begins.
pub(crate) const CHECKPOINT_SHARE: u64 = 4;
/// Part of the log, and of the memory for it, that records may take before a push is formed: what waits, is in flight and is padded
/// must fit.
pub(crate) const WAITING_SHARE: u64 = 4;

/// A durable map from keys to values that changes by transactions.
///
/// ```
/// # fn main() -> Result<(), sluice_store::StoreError> {
/// use sluice_store::{Options, Store, disk::crash::CrashDisk};
/// use std::sync::Arc;
///
/// let disk = Arc::new(CrashDisk::new());
/// let store = Store::create(disk.clone(), Options::default())?;
/// let mut change = store.begin(1024)?;
/// change.put(b"name", 1, b"value");
/// drop(change);
/// store.sync()?;
/// drop(store);
///
/// let store = Store::open(disk, Options::default())?;
/// assert_eq!(store.get(b"name")?.as_deref(), Some(b"value".as_slice()));
/// # Ok(()) }
/// ```
pub struct Store {
    pub(crate) core: Arc<Core>,
    pub(crate) background: Option<JoinHandle<()>>,
}

pub(crate) struct Core {
    /// Locked as long as it is held. *immutable*
    pub(crate) disk: Arc<dyn Disk>,
    /// `disk` with its flushes. *immutable*
    pub(crate) below: Arc<dyn Disk>,
    pub(crate) room: Room,
    pub(crate) cil: Cil,
    /// The source that adds records to each push. *set once*
    pub(crate) source: OnceLock<Box<dyn Source>>,
    /// None: the engine makes each batch durable by itself. *immutable*
    pub(crate) log: Option<Log>,
    /// Bytes of the log, or the equivalent limit of a store without a log: it bounds the changes that wait for a push.
    /// *immutable*
    pub(crate) log_size: u64,
    /// Bytes of records that one transaction may write, at most, and that may wait for a push. *immutable*
    pub(crate) waiting_max: u64,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) segments: Segments,
    pub(crate) options: Options,
    pub(crate) planted: Planted,
    /// Where the next batch goes.
    pub(crate) push: Mutex<Position>,
    /// How often the list of records was cut. *written under `push`*
    pub(crate) cuts: AtomicU64,
    /// The tree has what transactions wrote up to this cut. *atomic (applied), written under `checkpoint`*
    pub(crate) applied_cut: AtomicU64,
    /// Held during a checkpoint.
    pub(crate) checkpoint: Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// `state` changed, for the threads that push.
    pub(crate) changed: Condvar,
    /// Signals work for the store's thread.
    pub(crate) work: Condvar,
    /// The store's thread sleeps until it has work. *atomic (idle)*
    pub(crate) idle: AtomicBool,
    /// `state.failed` is set. *atomic (stands alone), set once*
    pub(crate) failed: AtomicBool,
    /// How its close ended. *immutable once set*
    pub(crate) closed: OnceLock<Result<(), Why>>,
}

#[derive(Default)]
pub(crate) struct State {
    /// The callers that wait for each push.
    pub(crate) callers: Callers,
    /// The newest batch with a number.
    pub(crate) formed: u64,
    /// The newest durable batch such that all earlier batches are durable.
    pub(crate) done: u64,
    /// Bytes of the log that hold batches which the engine does not.
    pub(crate) used: u64,
    /// Bytes of memory that these take.
    pub(crate) memory: u64,
    /// Durable batches that the engine does not hold, oldest first.
    pub(crate) unapplied: VecDeque<Done>,
    /// When the oldest of these batches that frees extents was written.
    pub(crate) frees_since: Option<Instant>,
    /// The engine's files take much more than its records.
    pub(crate) is_spacious: bool,
    /// The source asks for another push.
    pub(crate) again: bool,
    /// The next push writes data out.
    pub(crate) write_out: bool,
    /// Why nothing more can be written.
    pub(crate) failed: Option<Why>,
    pub(crate) stopping: bool,
}

#[derive(Clone)]
pub(crate) struct Done {
    pub(crate) batch: Arc<Batch>,
    pub(crate) span: u64,
    pub(crate) next: Position,
    pub(crate) cut: u64,
}

/// The content of a push.
enum Taken<'c> {
    /// Nothing is left to write: the number of the last batch.
    All(u64),
    /// A batch with a number and its place in the log, which took `room` of the list.
    ToWrite { log: &'c Log, formed: Formed, room: u64, cut: u64 },
}

/// A push that takes what waits. A panic fails the store.
struct Taking<'c> {
    core: &'c Core,
    is_over: bool,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.core.fail(&StoreError::Failed("a push panicked".into()));
        }
    }
}

/// The state of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of records that wait for a push.
    pub waiting_bytes: u64,
    /// Bytes of the log in use, and in all.
    pub log_used: u64,
    /// Bytes of the log.
    pub log_size: u64,
    /// Bytes of memory of batches that the tree does not have.
    pub log_memory: u64,
    /// Batches written since the store was made.
    pub batches: u64,
    /// Bytes of segments that records of the tree name.
    pub data_bytes: u64,
    /// Bytes of extents that were written since the store was opened, also of those that were freed since.
    pub written_bytes: u64,
    /// Bytes of segments that these took: fewer where they were compressed.
    pub written_data_bytes: u64,
}

impl Store {
    /// Begins a transaction that writes up to `bytes` of records: keys, values, and six bytes for each. Called with no lock held
    /// that a transaction's changes need: it may wait for a push.
    ///
    /// # Errors
    /// [`StoreError::Failed`]; [`StoreError::Io`] when the log can never hold so much.
    pub fn begin(&self, bytes: u64) -> Result<Transaction<'_>, StoreError> {
        let core = &*self.core;
        if bytes > core.waiting_max {
            return Err(StoreError::Io("begin so large a change", io::ErrorKind::FileTooLarge.into()));
        }
        loop {
            // Relaxed: a hint; whatever is written after a failure goes nowhere.
            if core.failed.load(Ordering::Relaxed) {
                core.state.lock().check()?;
            }
            if let Some(transaction) = core.cil.begin(bytes) {
                core.wake();
                return Ok(transaction);
            }
            core.sync()?;
        }
    }

    /// Whether a transaction of the calling thread is open: then it must not wait for what waits for a push.
    pub fn has_begun_here(&self) -> bool {
        self.core.cil.is_open_here()
    }

    /// Makes durable what all transactions wrote that ended before.
    ///
    /// # Errors
    /// [`StoreError::Failed`], and the disk's: then nothing is known of what the transactions since the last one wrote.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.core.sync()
    }

    /// Has the thread of the store push as soon as it can. The caller does not wait.
    pub fn push_soon(&self) {
        let mut state = self.core.state.lock();
        if !mem::replace(&mut state.again, true) {
            drop(state);
            self.core.work.notify_one();
        }
    }

    /// The source [has work](Source::has_work) from now on: the thread of the store pushes within [`Options::age`]. Takes no lock that is
    /// held for long.
    pub fn wake_for_source(&self) {
        self.core.wake_for_source();
    }

    /// Lets `source` add its values to each later push. The first call counts.
    pub fn set_source(&self, source: Box<dyn Source>) {
        // A second source is the caller's mistake, and changes nothing.
        let _ = self.core.source.set(source);
    }

    /// The reason why all writes fail, if they do.
    pub fn failure(&self) -> Option<String> {
        self.core.state.lock().failed.as_ref().map(Why::text)
    }

    /// Gives up what is not durable yet: calls that wait for what the store is kept in, and later ones, fail. To be
    /// [closed](Self::close) all the same.
    pub fn abandon(&self) {
        self.core.fail(&StoreError::Failed("it was given up".into()));
        self.core.engine.abandon();
    }

    /// Makes everything durable, brings the tree up to it, and lets others open the store. Nothing can be written any more.
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    pub fn close(&self) -> Result<(), StoreError> {
        let mut first = None;
        // Once: a store that was closed may be dropped by a thread that holds locks. A second caller waits for the end.
        let closed =
            self.core.closed.get_or_init(|| self.core.close().map_err(|error| Why::of(first.insert(error))));
        first.map_or_else(|| closed.clone().map_err(|why| why.error()), Err)
    }

    /// The value of `key` in the tree: without what no checkpoint has brought there yet.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.core.engine.get(key)
    }

    /// The newest cut such that the tree has all changes of it and of all earlier cuts:
    /// [`Added::cut`](crate::Added::cut) numbers them. A change whose last transaction was in such a cut can be read
    /// from the tree.
    pub fn applied_cut(&self) -> u64 {
        // Acquire(applied): the tree; pairs with Release(applied) in apply().
        self.core.applied_cut.load(Ordering::Acquire)
    }

    /// Calls `act` when no transaction is under way, and lets none begin before it returns: it must be quick, and begin none
    /// itself.
    pub fn alone<R>(&self, act: impl FnOnce() -> R) -> R {
        self.core.cil.alone(act)
    }

    /// Writes `bytes` as data of their own, for a record to name. They are durable when the record is.
    ///
    /// # Errors
    /// The disk's, above all that it is full; the store goes on.
    ///
    /// # Panics
    /// When there are none, or more than [`EXTENT_MAX`](crate::EXTENT_MAX) or than a segment holds: the caller's fault.
    pub fn write_extent(&self, bytes: &[u8]) -> Result<Extent, StoreError> {
        self.core.segments.write(bytes)
    }

    /// Fills `buf` with what `extent` holds from `offset` on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the bytes differ from the written bytes; errors of the disk.
    ///
    /// # Panics
    /// When the extent ends before `buf` is full: the caller's fault.
    pub fn read_extent(&self, extent: &Extent, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.core.segments.read(extent, offset, buf)
    }

    /// The content of each of `extents`. Adjacent extents are read with one call of the disk.
    ///
    /// # Errors
    /// Errors of [`read_extent`](Self::read_extent).
    pub fn read_extents(&self, extents: &[&Extent]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.core.segments.read_all(extents)
    }

    /// For each of `extents`, whether the disk itself, past all copies in memory, has its bytes: [`StoreError::Damaged`] or
    /// the disk's error if not. Adjacent extents are read with one call of the disk.
    pub fn verify_extents(&self, extents: &[&Extent]) -> Vec<Result<(), StoreError>> {
        self.core.segments.verify(extents)
    }

    /// Gives back an extent that no transaction has named, and that none will.
    pub fn discard_extent(&self, extent: &Extent) {
        self.core.segments.discard(extent);
    }

    /// Visits the keys of the tree that are at least `from` and below `to`, in their order, until `visit` says false.
    ///
    /// # Errors
    /// Errors of [`get`](Self::get).
    pub fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        self.core.engine.scan(from, to, visit)
    }

    /// Whether data that are too large for a record have segments. In a store without them records have all.
    pub fn has_segments(&self) -> bool {
        self.core.segments.are_there()
    }

    /// Whether what is pushed goes to a log. If not, a push takes as long as the engine takes, and one at a time is under way.
    pub fn is_logged(&self) -> bool {
        self.core.log.is_some()
    }

    /// Whether it is used without flushes.
    pub fn is_volatile(&self) -> bool {
        self.core.options.volatile
    }

    /// The state of the store.
    pub fn stats(&self) -> Stats {
        let data_bytes = self.core.segments.live_bytes();
        let [written_bytes, written_data_bytes] = self.core.segments.written();
        let state = self.core.state.lock();
        Stats {
            waiting_bytes: self.core.cil.waiting(),
            log_used: state.used,
            log_size: self.core.log_size,
            log_memory: state.memory,
            batches: state.done,
            data_bytes,
            written_bytes,
            written_data_bytes,
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { options, log_size, .. } = &*self.core;
        f.debug_struct("Store").field("log_size", log_size).field("options", options).finish_non_exhaustive()
    }
}

impl Drop for Store {
    /// Makes everything durable and brings the tree up to it, as far as the disk allows. A caller that must know calls
    /// [`Store::sync`] before.
    fn drop(&mut self) {
        if let Some(thread) = self.background.take() {
            self.core.state.lock().stopping = true;
            self.core.work.notify_all();
            // The thread does not panic; if it did, the store is closed all the same.
            let _ = thread.join();
        }
        // A failed store writes nothing.
        let _ = self.close();
    }
}

impl Core {
    /// Waits until batch `sequence` and all earlier batches are durable.
    pub(crate) fn wait_for(&self, mut state: MutexGuard<'_, State>, sequence: u64) -> Result<(), StoreError> {
        while state.done < sequence {
            state.check()?;
            state = self.changed.wait(state);
        }
        Ok(())
    }

    /// Writes waiting records as one batch; returns its number, or the last batch's number if no records wait.
    pub(crate) fn push(&self) -> Result<u64, StoreError> {
        self.room.look(&*self.disk);
        let taken = {
            let mut next = self.push.lock();
            // Dropped before the mutex is: the next push must not find that nothing waits, while what this one took is lost.
            let mut taking = Taking { core: self, is_over: false };
            let taken = self.take(&mut next).inspect_err(|error| self.fail(error));
            taking.is_over = true;
            taken?
        };
        let (log, formed, room, cut) = match taken {
            Taken::All(sequence) => return Ok(sequence),
            Taken::ToWrite { log, formed, room, cut } => (log, formed, room, cut),
        };
        if self.planted.has(Mutant::PunchedEarly) {
            let freed = formed.batch.changes().iter().filter(|change| change.freed);
            freed.for_each(|change| self.segments.punch(change.span));
        }
        // Data first: recovery takes a batch in the log for whole, so its data must be durable. Data of another batch are flushed
        // by that batch.
        let names_data = formed.batch.changes().iter().any(|change| !change.freed);
        let flushed = if names_data { self.segments.flush() } else { Ok(()) };
        let written = flushed.and_then(|()| log.write(&formed));
        self.cil.give_back(room);
        written?;
        let sequence = formed.sequence;
        self.finish(formed, cut)?;
        Ok(sequence)
    }

    /// Takes what waits. Called with `push` locked; after an error what was taken is in no batch.
    fn take(&self, next: &mut Position) -> Result<Taken<'_>, StoreError> {
        let writes_out = {
            let mut state = self.state.lock();
            // A push may have failed since this one was asked for.
            state.check()?;
            mem::take(&mut state.write_out)
        };
        // Relaxed: written under the mutex.
        let cut = self.cuts.fetch_add(1, Ordering::Relaxed) + 1;
        let Cut { records, room, again, failed } = self.cil.cut(
            self.source.get().map(|source| &**source),
            self.data(),
            Added::to(cut, self.log.as_ref(), writes_out),
        );
        if let Some(error) = failed {
            return Err(error);
        }
        if again {
            self.state.lock().again = true;
            self.work.notify_one();
        }
        if records.is_empty() {
            return Ok(Taken::All(self.state.lock().formed));
        }
        let batch = absorb(records, self.planted);
        let is_large = batch.encoded_len() as u64 > self.log_size / LARGE_SHARE;
        let Some(log) = self.log.as_ref().filter(|_| !is_large) else {
            let applied = self.apply_at_once(&batch, next, cut);
            self.cil.give_back(room);
            return applied.map(Taken::All);
        };
        let done = self.state.lock().done;
        let formed = log.form(batch, *next, done)?;
        let memory = formed.batch.memory();
        self.make_room(formed.span, memory)?;
        *next = formed.next;
        {
            let mut state = self.state.lock();
            state.formed = formed.sequence;
            state.used += formed.span;
            state.memory += memory;
        }
        self.changed.notify_all();
        Ok(Taken::ToWrite { log, formed, room, cut })
    }

    /// Waits until `span` bytes of the log are free, and a batch may take so many bytes of `memory`. Called by the thread that forms
    /// a batch.
    fn make_room(&self, span: u64, memory: u64) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let is_too_much =
            |state: &State| state.memory > 0 && state.memory.saturating_add(memory) > self.options.memory;
        while state.used + span > self.log_size || is_too_much(&state) {
            state.check()?;
            if state.unapplied.is_empty() {
                // The records that take the room are being written.
                state = self.changed.wait(state);
            } else {
                let count = state.unapplied.len();
                drop(state);
                if self.planted.has(Mutant::FreedEarly) {
                    self.free(count);
                } else {
                    self.patiently(|| self.checkpoint())?;
                }
                state = self.state.lock();
            }
        }
        Ok(())
    }

    /// Counts the written batch as done, after all earlier batches.
    fn finish(&self, formed: Formed, cut: u64) -> Result<(), StoreError> {
        let Formed { sequence, batch, span, next, .. } = formed;
        let mut state = self.state.lock();
        while state.done + 1 < sequence && !self.planted.has(Mutant::DoneOutOfOrder) {
            state.check()?;
            state = self.changed.wait(state);
        }
        state.done = state.done.max(sequence);
        if batch.changes().iter().any(|change| change.freed) {
            state.frees_since.get_or_insert_with(Instant::now);
        }
        state.unapplied.push_back(Done { batch: Arc::new(batch), span, next, cut });
        let is_much = self.is_much(&state);
        drop(state);
        self.changed.notify_all();
        if is_much {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Whether a checkpoint is due: because much is not in the tree, or because a full disk gets blocks back by one.
    pub(crate) fn is_much(&self, state: &State) -> bool {
        let [log, memory] = [self.log_size, self.options.memory].map(|whole| whole / CHECKPOINT_SHARE);
        state.used > log || state.memory > memory || (state.frees_since.is_some() && self.room.is_full())
    }

    /// Nothing more is written, because of `error`; said once.
    pub(crate) fn fail(&self, error: &StoreError) {
        let is_first = {
            let mut state = self.state.lock();
            let is_first = state.failed.is_none();
            state.failed.get_or_insert_with(|| Why::of(error));
            is_first
        };
        // Relaxed: see begin().
        self.failed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        self.work.notify_all();
        if is_first {
            log::error!("nothing can be written any more, what was synchronised stays: {error}");
        }
    }
}

impl State {
    /// The state of a store whose last batch is `sequence`, already in the engine.
    pub(crate) fn since(sequence: u64) -> State {
        State { formed: sequence, done: sequence, ..State::default() }
    }

    /// Whether the thread of the store has nothing more to do.
    pub(crate) fn is_ending(&self) -> bool {
        self.stopping || self.failed.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match &self.failed {
            Some(why) => Err(why.error()),
            None => Ok(()),
        }
    }
}
