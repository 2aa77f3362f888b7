//! Tail: what stands in the log behind the last batch that can be read: what a crash leaves, or damage.
//!
//! # Theory
//! A crash leaves of each batch that was being written all, nothing, or some of its sectors. At most [`IN_FLIGHT`]
//! batches are written at a time, and none of them was acknowledged. Each batch says which one was the newest durable
//! batch when it was formed (`done`). So a batch that cannot be read is torn, and the log ends there, unless one of
//! these holds:
//! - T1: a later batch was formed when this one was durable: `done` says so, or it is [`IN_FLIGHT`] numbers further;
//! - T2: most of a header stands at the batch's place. A header lies in one sector, which is never torn;
//! - T3: its header is whole, and one flipped bit in its body makes the checksum right. A sector that holds zeros alone is no such
//!   case: it may never have been written, where the batch has a single bit there;
//! - T4: its header is whole and stands at a place to which it was not written;
//! - T5: neither this batch, nor a later one, nor the one before it is in the log: then the log was wiped, or is an older copy,
//!   or that of another store. A batch is overwritten only by later ones.
//!
//! The loss of the *last* durable batch as a whole looks like a crash before it was written. Nothing in a log tells that.

use crate::StoreError;
use crate::format::BLOCK;
use crate::log::{HEADER, IN_FLIGHT, Log, MAGIC, Position, number, sum, word};
use crate::record::Batch;

/// Bytes of the log that are read at a time.
const AT_ONCE: u64 = 1 << 20;
/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;
/// CRC32C's polynomial, its bits in reversed order.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The log's content behind the last batch that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) state: TailState,
    /// The greatest number that a header in the log has, or that of the last batch which can be read.
    pub(crate) newest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TailState {
    /// Bytes from before the last batch.
    Nothing,
    /// The next batch, in part.
    CutOff,
    /// A durable batch cannot be read: the evidence.
    Damaged(String),
}

impl Log {
    /// Judges the log's content at `position`, where no batch can be read.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn tail(&self, position: Position) -> Result<Tail, StoreError> {
        let Position { sequence: missing, .. } = position;
        let mut newest = missing - 1;
        let (mut later, mut cut_off, mut is_misplaced, mut is_like) = (None, None, false, false);
        // Before the first batch of a store of an earlier version there is none.
        let mut is_known = position.chain == 0;
        self.each_header(&mut |offset, header| {
            let is_place = offset == position.offset || offset == 0;
            let (sequence, follows) = (word(header, 24), number(header, 44) == position.chain);
            if !self.is_header(header) {
                let is_ours = header[8..24] == self.uuid;
                let like = [number(header, 0) == MAGIC, is_ours, sequence == missing, follows];
                is_like |= is_place && like.iter().filter(|is| **is).count() >= 3;
                return;
            }
            newest = newest.max(sequence);
            is_known |= sequence >= missing || number(header, 4) == position.chain;
            if sequence >= missing.saturating_add(IN_FLIGHT as u64) || word(header, 52) >= missing {
                later = later.max(Some(sequence));
            } else if sequence == missing && follows {
                is_misplaced |= !is_place;
                cut_off = cut_off.or(is_place.then_some(offset));
            }
        })?;
        let state = if let Some(later) = later {
            format!("batch {missing} cannot be read, and batch {later} was written when it was durable")
        } else if is_like {
            format!("the header of batch {missing} is not what was written")
        } else if is_misplaced {
            format!("batch {missing} stands where it was not written")
        } else if !is_known {
            format!(
                "neither batch {missing} nor the one before it is there: the log was wiped, or is another"
            )
        } else if let Some(offset) = cut_off {
            if !self.is_flipped(offset)? {
                return Ok(Tail { state: TailState::CutOff, newest });
            }
            format!("a bit of batch {missing} is not what was written")
        } else {
            return Ok(Tail { state: TailState::Nothing, newest });
        };
        Ok(Tail { state: TailState::Damaged(state), newest })
    }

    /// The whole batches with greater numbers than `missing`, in their order. Some may never have been acknowledged.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn later_than(&self, missing: u64) -> Result<Vec<(u64, Batch)>, StoreError> {
        let mut places = Vec::new();
        self.each_header(&mut |offset, header| {
            if self.is_header(header) && word(header, 24) > missing {
                places.push((word(header, 24), offset));
            }
        })?;
        places.sort_unstable();
        let mut later = Vec::new();
        for (sequence, offset) in places {
            let header = self.header(offset)?;
            let body = self.body(offset, &header)?.filter(|body| crc32c::crc32c(body) == number(&header, 40));
            let batch = body.and_then(|body| self.decode(&header, body));
            later.extend(batch.map(|batch| (sequence, batch)));
        }
        Ok(later)
    }

    /// Whether `header` was written to this log.
    fn is_header(&self, header: &[u8; HEADER]) -> bool {
        number(header, 0) == MAGIC && header[8..24] == self.uuid && sum(header) == number(header, 4)
    }

    /// Visits each place where a header may stand.
    fn each_header(&self, visit: &mut dyn FnMut(u64, &[u8; HEADER])) -> Result<(), StoreError> {
        let mut bytes = vec![0; self.size().min(AT_ONCE) as usize];
        for start in (0..self.size()).step_by(AT_ONCE as usize) {
            let bytes = &mut bytes[..(self.size() - start).min(AT_ONCE) as usize];
            self.file.read_at(bytes, start).map_err(StoreError::io("read the log"))?;
            for (block, offset) in bytes.chunks(BLOCK as usize).zip((start..).step_by(BLOCK as usize)) {
                block.first_chunk().into_iter().for_each(|header| visit(offset, header));
            }
        }
        Ok(())
    }

    /// Whether one flipped bit makes the batch at `offset`, whose header is whole, what was written.
    fn is_flipped(&self, offset: u64) -> Result<bool, StoreError> {
        let header = self.header(offset)?;
        let Some(mut body) = self.body(offset, &header)? else { return Ok(false) };
        // The checksum is linear: a flipped bit changes it by what depends on the bit's place alone.
        let (wrong, mut change) = (crc32c::crc32c(&body) ^ number(&header, 40), POLYNOMIAL);
        for bit in (0..body.len() * 8).rev() {
            if change == wrong {
                let sector = (HEADER + bit / 8) / SECTOR * SECTOR;
                let found = &body[sector.saturating_sub(HEADER)..(sector + SECTOR - HEADER).min(body.len())];
                if sector > 0 && found.iter().all(|byte| *byte == 0) {
                    return Ok(false);
                }
                body[bit / 8] ^= 1 << (bit % 8);
                // A torn body may have that checksum by chance, but hardly records in order.
                return Ok(self.decode(&header, body).is_some());
            }
            change = if change & 1 == 0 { change >> 1 } else { change >> 1 ^ POLYNOMIAL };
        }
        Ok(false)
    }
}
