//! Layout: how records of a store and its pushes stand in SlateDB, and how they are read.
//!
//! Keys of the store have a byte before them, so that the position, which changes with each batch, stands beside them:
//! ```text
//!   p          the position that came with the last batch
//!   q NUMBER   a push, of the last KEPT
//!   r KEY      a record
//! ```

use crate::error::of_records;
use crate::runtime::Stop;
use slatedb::config::ScanOptions;
use slatedb::{DbReadOps, SstBlockSize};
use sluice_store::StoreError;
use sluice_store::engine::{InOrder, Visit};

/// Where SlateDB keeps its objects.
pub(crate) const RECORDS: &str = "records";
pub(crate) const POSITION: &[u8] = b"p";
const PUSH: u8 = b'q';
const RECORD: u8 = b'r';
/// Bytes of a sorted object that are fetched together: a request takes longer than its bytes.
pub(crate) const BLOCK: SstBlockSize = SstBlockSize::Block32Kib;

/// The key under which SlateDB has the record `key`.
pub(crate) fn record(key: &[u8]) -> Vec<u8> {
    [&[RECORD], key].concat()
}

/// The key that says that there was the push `number`.
pub(crate) fn push(number: u64) -> Vec<u8> {
    [&[PUSH], number.to_be_bytes().as_slice()].concat()
}

/// The number of the next push.
///
/// # Errors
/// [`StoreError::Damaged`] when one is missing; the object store's.
pub(crate) fn pushes(db: &(impl DbReadOps + Sync), stop: &Stop) -> Result<u64, StoreError> {
    let (mut next, mut missing) = (None, None);
    visit(db, &[PUSH], &[PUSH + 1], stop, &mut |key, _| {
        let number = key[1..].try_into().map_or(u64::MAX - 1, u64::from_be_bytes);
        missing = missing.or(next.filter(|next| *next != number));
        next = Some(number + 1);
        true
    })?;
    match missing {
        Some(number) => Err(StoreError::Damaged(format!("push {number} is missing"))),
        None => Ok(next.unwrap_or(0)),
    }
}

/// Refuses a store with fewer pushes than a claim `told` of: the `next` one and those behind it are missing.
///
/// # Errors
/// [`StoreError::DamagedLog`]
pub(crate) fn refuse_lost(next: u64, told: u64) -> Result<(), StoreError> {
    if next >= told {
        return Ok(());
    }
    Err(StoreError::DamagedLog(format!(
        "push {next} was durable and is missing, and so are all up to push {}; the newest objects of `{RECORDS}/` bring them back",
        told - 1
    )))
}

/// The value of `key`, as SlateDB has it.
///
/// # Errors
/// [`StoreError::Damaged`], and the object store's.
pub(crate) fn get(
    db: &(impl DbReadOps + Sync),
    key: &[u8],
    stop: &Stop,
) -> Result<Option<Vec<u8>>, StoreError> {
    let found = stop.wait(async { db.get(key).await.map_err(of_records("read the records")) })?;
    Ok(found.map(|value| value.to_vec()))
}

/// Visits the records from `from` to `to` in order; see [`Engine::scan`](sluice_store::engine::Engine::scan). The visitor may itself read: so records are
/// fetched a few at a time.
///
/// # Errors
/// [`StoreError::Damaged`], and the object store's.
pub(crate) fn scan(
    db: &(impl DbReadOps + Sync),
    from: &[u8],
    to: &[u8],
    visitor: &mut Visit<'_>,
    stop: &Stop,
) -> Result<(), StoreError> {
    if from >= to {
        return Ok(());
    }
    let (mut order, mut wrong) = (InOrder::new(from, to), None);
    visit(db, &record(from), &record(to), stop, &mut |key, value| match order.check(&key[1..]) {
        Ok(()) => visitor(&key[1..], value),
        Err(error) => {
            wrong = Some(error);
            false
        }
    })?;
    wrong.map_or(Ok(()), Err)
}

pub(crate) fn scanning() -> ScanOptions {
    ScanOptions { read_ahead_bytes: 1 << 20, cache_blocks: true, ..ScanOptions::default() }
}

/// Visits keys as SlateDB has them.
fn visit(
    db: &(impl DbReadOps + Sync),
    from: &[u8],
    to: &[u8],
    stop: &Stop,
    visit: &mut Visit<'_>,
) -> Result<(), StoreError> {
    /// Records that are fetched at a time.
    const FETCH: usize = 256;
    let options = scanning();
    let range = from..to;
    let mut found = stop.wait(async {
        db.scan_with_options(range, &options).await.map_err(of_records("read the records"))
    })?;
    loop {
        let mut some = Vec::with_capacity(FETCH);
        stop.wait(async {
            while some.len() < FETCH {
                match found.next().await.map_err(of_records("read the records"))? {
                    Some(one) => some.push(one),
                    None => break,
                }
            }
            Ok(())
        })?;
        for one in &some {
            if !visit(&one.key, &one.value) {
                return Ok(());
            }
        }
        if some.len() < FETCH {
            return Ok(());
        }
    }
}
