//! Recovery: what the engine says of the log, and how the rest of the log comes into it after a crash.

use crate::StoreError;
use crate::engine::Engine;
use crate::log::{Log, Position};
use crate::mutant::{Mutant, Planted};
use crate::record::Batch;
use crate::segments::{SEGMENTS_MAX, Table};
use crate::tail::TailState;

/// How far the engine has got: what it keeps beside the records, and changes together with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// Where the log goes on that it does not hold yet.
    pub(crate) position: Position,
    pub(crate) table: Table,
}

impl Default for Behind {
    /// The state of an empty store.
    fn default() -> Self {
        Behind { position: Position::start(), table: Table::default() }
    }
}

impl Behind {
    /// As the engine keeps it: the position, then the table.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.position.encode().to_vec();
        self.table.encode(&mut bytes);
        bytes
    }

    /// The state that `engine` keeps, for a log of `log_size` bytes and segments of `blocks`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], and the disk's.
    pub(crate) fn of(engine: &dyn Engine, log_size: u64, blocks: u32) -> Result<Behind, StoreError> {
        let Some(bytes) = engine.position()? else { return Ok(Behind::default()) };
        let decoded = bytes.split_at_checked(Position::LEN).and_then(|(position, table)| {
            let position = Position::decode(position)?;
            let table = Table::decode(table, blocks)?;
            (position.sequence > 0 && position.offset <= log_size).then_some(Behind { position, table })
        });
        decoded.ok_or_else(|| StoreError::Damaged("the tree's position in the log is none".into()))
    }
}

/// Whether a store may be recovered whose log is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DamagedLog {
    /// Recovery stops without a write.
    Refused,
    /// Batches behind the damage are lost: the log goes on with fresh batch numbers, so that old batches are invalid.
    CutOff,
}

/// Applies what the log holds beyond the engine's position: where the log goes on, and what then lives in the segments, of
/// `blocks` each. Batches of more than `memory` bytes are not held at a time.
///
/// # Errors
/// [`StoreError::DamagedLog`] unless it may be `damaged`, [`StoreError::Damaged`]; the disk's.
pub(crate) fn recover(
    log: &Log,
    engine: &dyn Engine,
    blocks: u32,
    (memory, planted): (u64, Planted),
    damaged: DamagedLog,
) -> Result<Behind, StoreError> {
    /// Records that are applied at a time.
    const RECORDS_MAX: usize = 100_000;
    if engine.position()?.is_none() {
        return Err(StoreError::Damaged("the tree is empty".into()));
    }
    let mut behind = Behind::of(engine, log.size(), blocks)?;
    if planted.has(Mutant::ReplayFromStart) {
        behind.position = Position::start();
    }
    let mut batches = Vec::new();
    loop {
        let found = log.read(behind.position)?;
        let is_last = found.is_none();
        let mut is_cut = false;
        if is_last {
            let tail = log.tail(behind.position)?;
            if let TailState::Damaged(how) = tail.state {
                if damaged == DamagedLog::Refused {
                    return Err(StoreError::DamagedLog(how));
                }
                behind.position.sequence = tail.newest + 1;
                is_cut = true;
            }
        }
        if let Some((batch, after)) = found {
            batches.push(batch);
            behind.position = after;
        }
        let records: usize = batches.iter().map(Batch::len).sum();
        let is_much = || records > RECORDS_MAX || batches.iter().map(Batch::memory).sum::<u64>() > memory;
        if is_cut || !batches.is_empty() && (is_last || is_much()) {
            // The tree must not be further than the log.
            log.flush()?;
            let merged = Batch::merge(&batches, |key| engine.get(key))?;
            let table = behind.table.after(merged.changes(), SEGMENTS_MAX, blocks);
            behind.table = table.map_err(StoreError::Damaged)?;
            engine.apply(&merged, &behind.encode())?;
            batches.clear();
        }
        if is_last {
            return Ok(behind);
        }
    }
}
