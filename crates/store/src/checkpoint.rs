//! Checkpoint: how what the log holds comes into the tree, and the log becomes free.

use crate::cil::Data;
use crate::engine::CompactionLimits;
use crate::log::Position;
use crate::mutant::Mutant;
use crate::record::Batch;
use crate::recovery::Behind;
use crate::store::{Core, Done};
use crate::{Store, StoreError};
use sluice_sync::atomic::Ordering;
use sluice_sync::time::Instant;

/// So many attempts to write the tree on a full disk a push makes.
const ROOM_ATTEMPTS: u32 = 60;

impl Store {
    /// Brings the tree up to what is durable, and frees the log.
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.core.checkpoint()
    }

    /// Makes everything durable, and brings the tree up to it, with data in segments that stood in records only to
    /// be durable sooner: see [`Added::writes_out`](crate::Added::writes_out).
    ///
    /// # Errors
    /// Errors of [`sync`](Self::sync).
    pub fn write_out(&self) -> Result<(), StoreError> {
        self.core.write_out()
    }

    /// Writes and flushes data that stand in records ahead of [`write_out`](Self::write_out), which does so by itself.
    ///
    /// # Errors
    /// The disk's, after which the store has failed.
    pub fn write_ahead(&self) -> Result<(), StoreError> {
        self.core.write_ahead()
    }
}

impl Core {
    /// Makes everything durable, with data in segments that stood in records, and brings the tree up to it.
    pub(crate) fn write_out(&self) -> Result<(), StoreError> {
        self.write_ahead()?;
        self.state.lock().write_out = true;
        self.sync().and_then(|()| self.checkpoint())
    }

    /// Writes and flushes data that the next push that writes out is to name.
    pub(crate) fn write_ahead(&self) -> Result<(), StoreError> {
        let Some(source) = self.source.get().filter(|_| self.log.is_some()) else { return Ok(()) };
        if source.write_ahead(&self.data()) {
            self.segments.flush().inspect_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// Access to the segments and the tree for the source.
    pub(crate) fn data(&self) -> Data<'_> {
        // Acquire(applied): the tree; pairs with Release(applied) in apply().
        let applied_cut = self.applied_cut.load(Ordering::Acquire);
        Data { segments: &self.segments, engine: &*self.engine, applied_cut }
    }

    /// Repeats [`write_out`](Self::write_out) as long as the source asks for another push and a push wrote something:
    /// a large removal takes several.
    pub(crate) fn write_out_all(&self) -> Result<(), StoreError> {
        loop {
            self.state.lock().again = false;
            let before = self.state.lock().done;
            self.write_out()?;
            let state = self.state.lock();
            if !state.again || state.done == before {
                return Ok(());
            }
        }
    }

    pub(crate) fn checkpoint(&self) -> Result<(), StoreError> {
        let _one = self.checkpoint.lock();
        let batches: Vec<Done> = {
            let state = self.state.lock();
            state.check()?;
            state.unapplied.iter().cloned().collect()
        };
        let Some(last) = batches.last() else { return Ok(()) };
        let merged = self.merge(batches.iter().map(|done| &*done.batch))?;
        let merged = if self.planted.has(Mutant::PositionWithoutRecords) { Batch::default() } else { merged };
        self.apply(&merged, last.next, last.cut)?;
        self.free(batches.len());
        Ok(())
    }

    /// Merges `batches` on top of the tree.
    fn merge<'b>(&self, batches: impl IntoIterator<Item = &'b Batch>) -> Result<Batch, StoreError> {
        Batch::merge(batches, |key| self.engine.get(key)).inspect_err(|error| self.fail(error))
    }

    /// Applies `batch` to the tree, which then has all batches before `position`, and all changes of `cut`. Called with
    /// `checkpoint` locked.
    fn apply(&self, batch: &Batch, position: Position, cut: u64) -> Result<(), StoreError> {
        let applied = self.segments.after(batch.changes()).and_then(|table| {
            let behind = Behind { position, table };
            self.engine.apply(batch, &behind.encode())?;
            Ok(behind.table)
        });
        match applied {
            Ok(table) => {
                self.room.note_tree(None);
                self.segments.applied(table, batch.changes());
                // Release(applied): the tree; pairs with Acquire(applied) in Store::applied_cut().
                self.applied_cut.store(cut, Ordering::Release);
                if self.engine.is_spacious() {
                    self.state.lock().is_spacious = true;
                    self.work.notify_one();
                }
            }
            Err(error) if self.is_put_off(&error) => {
                self.room.note_tree(Some(&error));
                return Err(error);
            }
            Err(error) => {
                self.fail(&error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether `error` puts a checkpoint off: the tree found no room on the disk, and a log still has the batches.
    pub(crate) fn is_put_off(&self, error: &StoreError) -> bool {
        error.is_full_disk() && self.log.is_some()
    }

    /// Calls `work`, which brings batches to the tree of a store with a log, again and again as long as the disk is full for it.
    ///
    /// # Errors
    /// Errors of `work`; in a store with a log `StorageFull` or `QuotaExceeded` when [`Options::room_patience`](crate::Options::room_patience) is over.
    pub(crate) fn patiently<R>(&self, work: impl Fn() -> Result<R, StoreError>) -> Result<R, StoreError> {
        let began = Instant::now();
        loop {
            match work() {
                Err(error) if self.is_put_off(&error) && began.elapsed() < self.options.room_patience => {
                    self.await_room()?;
                }
                done => return done,
            }
        }
    }

    /// Waits a while for room on a full disk, or until the store has failed.
    pub(crate) fn await_room(&self) -> Result<(), StoreError> {
        let end = Instant::now() + self.options.room_patience / ROOM_ATTEMPTS;
        let mut state = self.state.lock();
        loop {
            state.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_ending() {
                return Ok(());
            }
            state = self.changed.wait_timeout(state, left).0;
        }
    }

    /// Brings `batch`, for which the log has no room, to the tree behind all that was written before it. Called by the
    /// thread that forms a batch.
    pub(crate) fn apply_at_once(
        &self,
        batch: &Batch,
        next: &mut Position,
        cut: u64,
    ) -> Result<u64, StoreError> {
        let mut state = self.state.lock();
        while state.done < next.sequence - 1 {
            state.check()?;
            state = self.changed.wait(state);
        }
        drop(state);
        self.patiently(|| self.checkpoint())?;
        self.segments.flush()?;
        let _one = self.checkpoint.lock();
        let after = Position { sequence: next.sequence + 1, ..*next };
        let merged = if batch.has_splices() { Some(self.merge([batch])?) } else { None };
        self.patiently(|| self.apply(merged.as_ref().unwrap_or(batch), after, cut))?;
        *next = after;
        let mut state = self.state.lock();
        state.formed = after.sequence - 1;
        state.done = state.formed;
        self.changed.notify_all();
        Ok(state.formed)
    }

    /// Does a part of what makes the engine's files smaller, unless their records take more bytes than these. Whether there is more
    /// to do.
    pub(crate) fn compact(&self, records: u64) -> Result<bool, StoreError> {
        let _one = self.checkpoint.lock();
        let used = {
            let state = self.state.lock();
            state.check()?;
            state.used
        };
        // The batches in the log must still find room in the tree.
        let spare = self.disk.free_bytes().map_or(0, |free| free.saturating_sub(used));
        let within = CompactionLimits { spare, records, cache: self.options.cache };
        let more = self.engine.compact(within).inspect_err(|error| self.fail(error))?;
        self.state.lock().is_spacious = more;
        Ok(more)
    }

    /// Makes the engine's files as small as [`compact`](Self::compact) can.
    pub(crate) fn compact_all(&self, records: u64) -> Result<(), StoreError> {
        while self.compact(records)? {}
        Ok(())
    }

    /// The engine holds the oldest `count` batches.
    pub(crate) fn free(&self, count: usize) {
        let mut state = self.state.lock();
        let freed = state.unapplied.drain(..count).map(|done| (done.span, done.batch.memory()));
        let (span, memory) = freed.fold((0, 0), |sum, done| (sum.0 + done.0, sum.1 + done.1));
        if !state.unapplied.iter().any(|done| done.batch.changes().iter().any(|change| change.freed)) {
            state.frees_since = None;
        }
        state.used -= span;
        state.memory -= memory;
        self.changed.notify_all();
    }
}
