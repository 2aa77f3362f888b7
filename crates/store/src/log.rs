//! Log: batches in a ring of preallocated space, each written once and flushed once.
//!
//! # Theory
//! The file is a ring of blocks. A batch takes whole blocks, one behind the other; one that would cross the end of the file goes
//! to its beginning. Space is used again once the checkpoint behind it is durable, so no write ever grows the file.
//! ```text
//!   file   | ... free ... | batch 7 | batch 8 | batch 9 | free | too short for 10 |
//!   after  | batch 10 | free | ...
//!
//!   batch  0        4       8       24         32         40        44        48        52      60      64
//!          | magic  | crc   | uuid  | sequence | body len | body crc| chain   | spans   | done  | zeros | body, zeros to the block's end
//! ```
//! `crc` is of the header, itself taken as zero; it covers `body crc`. `chain` is the `crc` of the batch before: a batch that
//! an earlier run of the program wrote behind what a crash cut off does not fit behind what a later run writes there. `done` is
//! the number of the newest batch that was durable, with all before it, when this one was formed; older programs wrote 0.
//!
//! # Then
//! [`Log::read`] gives the batch with a number only if it is whole and follows the one before it. Up to [`IN_FLIGHT`] batches may be
//! written at a time; what follows a missing one is not read. Whether a crash or damage made it missing, `tail.rs` tells.

use crate::StoreError;
use crate::disk::DiskFile;
use crate::mutant::{Mutant, Planted};
use crate::record::Batch;
use sluice_sync::Arc;

/// The unit of space.
pub(crate) const BLOCK: u64 = 4096;
/// The most batches that are written at a time.
pub(crate) const IN_FLIGHT: usize = 4;
/// Bytes before a batch's body.
pub(crate) const HEADER: usize = 64;
pub(crate) const MAGIC: u32 = 0x4c43_6c73;

/// Where the log goes on: the next batch's number and place, and what it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    /// The checksum of the batch before.
    pub(crate) chain: u32,
}

/// A batch ready to be written.
pub(crate) struct Formed {
    pub(crate) sequence: u64,
    /// Encoded, in whole blocks.
    pub(crate) batch: Batch,
    pub(crate) offset: u64,
    /// Bytes of the ring that it takes, what is left free before it included.
    pub(crate) span: u64,
    /// Where the log goes on after it.
    pub(crate) next: Position,
}

/// The file.
pub(crate) struct Log {
    pub(crate) file: Arc<dyn DiskFile>,
    size: u64,
    pub(crate) uuid: [u8; 16],
    planted: Planted,
}

impl Position {
    /// Bytes of an encoded one.
    pub(crate) const LEN: usize = 20;

    /// The position in an empty log.
    pub(crate) fn start() -> Position {
        Position { sequence: 1, offset: 0, chain: 0 }
    }

    /// The position as the engine keeps it.
    pub(crate) fn encode(&self) -> [u8; Position::LEN] {
        let mut bytes = [0; Position::LEN];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.chain.to_le_bytes());
        bytes
    }

    /// Decodes the bytes that [`encode`](Self::encode) wrote, if they are valid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Position> {
        let bytes: &[u8; Position::LEN] = bytes.try_into().ok()?;
        let chain = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        Some(Position { sequence: word(bytes, 0), offset: word(bytes, 8), chain })
    }
}

impl Log {
    /// The log in `file`, of `size` bytes.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the file is shorter; the disk's.
    pub(crate) fn new(
        file: Arc<dyn DiskFile>,
        size: u64,
        uuid: [u8; 16],
        planted: Planted,
    ) -> Result<Log, StoreError> {
        let there = file.size().map_err(StoreError::io("look at the log"))?;
        if there < size || !size.is_multiple_of(BLOCK) || size < BLOCK {
            return Err(StoreError::Damaged(format!("the log has {there} bytes, `super` says {size}")));
        }
        Ok(Log { file, size, uuid, planted })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Prepares `batch` to be written where the log goes on, when batch `done` and all before it are durable.
    pub(crate) fn form(&self, mut batch: Batch, next: Position, done: u64) -> Formed {
        let (body_len, spans) = (batch.encoded_len(), batch.changes().len() as u32);
        let len = ((HEADER + body_len) as u64).next_multiple_of(BLOCK);
        let mut header = Vec::with_capacity(len as usize);
        header.resize(HEADER, 0);
        let mut chain = 0;
        batch.encode(header, |bytes| {
            let body_crc = crc32c::crc32c(&bytes[HEADER..]);
            bytes.resize(len as usize, 0);
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..24].copy_from_slice(&self.uuid);
            bytes[24..32].copy_from_slice(&next.sequence.to_le_bytes());
            bytes[32..40].copy_from_slice(&(body_len as u64).to_le_bytes());
            bytes[40..44].copy_from_slice(&body_crc.to_le_bytes());
            bytes[44..48].copy_from_slice(&next.chain.to_le_bytes());
            bytes[48..52].copy_from_slice(&spans.to_le_bytes());
            bytes[52..60].copy_from_slice(&done.to_le_bytes());
            chain = crc32c::crc32c(&bytes[..HEADER]);
            bytes[4..8].copy_from_slice(&chain.to_le_bytes());
        });
        let (offset, left) =
            if next.offset + len <= self.size { (next.offset, 0) } else { (0, self.size - next.offset) };
        let next = Position { sequence: next.sequence + 1, offset: offset + len, chain };
        Formed { sequence: next.sequence - 1, batch, offset, span: left + len, next }
    }

    /// Writes a batch and makes it durable.
    ///
    /// # Errors
    /// The disk's: nothing may be written afterwards.
    pub(crate) fn write(&self, formed: &Formed) -> Result<(), StoreError> {
        let (bytes, offset) = (formed.batch.encoded(), formed.offset);
        let written = match self.planted {
            planted if planted.has(Mutant::NoFlush) => self.file.write_at(bytes, offset),
            planted if planted.has(Mutant::FlushAgain) => {
                self.file.write_through(bytes, offset).or_else(|_| self.file.sync())
            }
            _ => self.file.write_through(bytes, offset),
        };
        written.map_err(StoreError::io("write the log"))
    }

    /// Makes durable what an earlier run of the program may have written and not flushed.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.file.sync().map_err(StoreError::io("flush the log"))
    }

    /// The batch at `position`, and where the log goes on after it; none where the log ends.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn read(&self, position: Position) -> Result<Option<(Batch, Position)>, StoreError> {
        // The batch's place if it fits before the end of the log, and its place if it does not.
        for offset in [position.offset, 0] {
            if let Some(found) = self.read_at(Position { offset, ..position })? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Bytes of the ring from `position` to where the log goes on after the batch there.
    pub(crate) fn distance(&self, position: Position, next: Position) -> u64 {
        if next.offset > position.offset {
            return next.offset - position.offset;
        }
        self.size - position.offset + next.offset
    }

    pub(crate) fn header(&self, offset: u64) -> Result<[u8; HEADER], StoreError> {
        let mut header = [0; HEADER];
        self.file.read_at(&mut header, offset).map_err(StoreError::io("read the log"))?;
        Ok(header)
    }

    /// The body of the batch with this `header` at `offset`, if there is room for so long a one.
    pub(crate) fn body(&self, offset: u64, header: &[u8; HEADER]) -> Result<Option<Vec<u8>>, StoreError> {
        let (at, body_len) = (offset + HEADER as u64, word(header, 32));
        if body_len > self.size.saturating_sub(at) {
            return Ok(None);
        }
        let mut body = vec![0; body_len as usize];
        self.file.read_at(&mut body, at).map_err(StoreError::io("read the log"))?;
        Ok(Some(body))
    }

    fn read_at(&self, position: Position) -> Result<Option<(Batch, Position)>, StoreError> {
        let room = self.size.saturating_sub(position.offset);
        if room < BLOCK {
            return Ok(None);
        }
        let header = self.header(position.offset)?;
        let number = |at: usize| number(&header, at);
        let crc = number(4);
        let follows = number(44) == position.chain || self.planted.has(Mutant::NoChain);
        let is_next = number(0) == MAGIC
            && header[8..24] == self.uuid
            && word(&header, 24) == position.sequence
            && follows
            && sum(&header) == crc;
        let body = if is_next { self.body(position.offset, &header)? } else { None };
        let Some(body) = body else { return Ok(None) };
        let body_len = body.len() as u64;
        if crc32c::crc32c(&body) != number(40) && !self.planted.has(Mutant::NoBodyChecksum) {
            return Ok(None);
        }
        let Some(batch) = Batch::decode(body, number(48)) else {
            return Err(StoreError::Damaged(format!(
                "batch {} of the log holds no records",
                position.sequence
            )));
        };
        let len = (HEADER as u64 + body_len).next_multiple_of(BLOCK);
        let next = Position { sequence: position.sequence + 1, offset: position.offset + len, chain: crc };
        Ok(Some((batch, next)))
    }
}

/// The checksum of a header, itself taken as zero.
pub(crate) fn sum(header: &[u8; HEADER]) -> u32 {
    let mut zeroed = *header;
    zeroed[4..8].fill(0);
    crc32c::crc32c(&zeroed)
}

/// The four bytes at `at` as a number.
pub(crate) fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The eight bytes at `at` as a number.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, crash::CrashDisk};
    use crate::record::{Records, absorb};

    fn log(planted: Planted) -> Log {
        let file = CrashDisk::new().create("log", 4 * BLOCK).expect("memory");
        Log::new(file, 4 * BLOCK, [9; 16], planted).expect("long enough")
    }

    fn batch(value: &[u8]) -> Batch {
        let mut records = Records::default();
        records.push(b"key", 1, Some(value));
        absorb(vec![records], Planted::default())
    }

    fn value_at(log: &Log, position: Position) -> Option<(Vec<u8>, Position)> {
        let (batch, next) = log.read(position).expect("memory")?;
        let (_, value) = batch.iter().next().expect("one record");
        Some((value.expect("not removed").to_vec(), next))
    }

    #[test]
    fn what_was_written_is_read_round_and_round() {
        let log = log(Planted::default());
        let mut write = Position::start();
        let mut read = Position::start();
        for n in 1..20_u8 {
            let formed = log.form(batch(&vec![n; usize::from(n) * 300]), write, write.sequence - 1);
            log.write(&formed).expect("memory");
            write = formed.next;
            let (value, next) = value_at(&log, read).expect("just written");
            assert_eq!((value[0], next), (n, write));
            read = next;
        }
        assert!(value_at(&log, read).is_none(), "the log ends here");
    }

    #[test]
    fn a_batch_of_an_earlier_run_does_not_follow_one_of_a_later() {
        let follows = |planted| {
            let log = log(planted);
            // Two are in flight at the crash, and only the second survives.
            let lost = log.form(batch(b"lost"), Position::start(), 0);
            log.write(&log.form(batch(b"stray"), lost.next, 0)).expect("memory");
            assert!(value_at(&log, Position::start()).is_none());
            log.write(&log.form(batch(b"new"), Position::start(), 0)).expect("memory");
            let (value, next) = value_at(&log, Position::start()).expect("just written");
            assert_eq!(value, b"new");
            value_at(&log, next).is_some()
        };
        assert!(!follows(Planted::default()));
        assert!(follows(Planted { mutant: Some(Mutant::NoChain) }), "found");
    }
}
