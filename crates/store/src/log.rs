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
//! In an encrypted store the body fills its blocks, and `spans` is 0 in the header:
//! ```text
//!   body   0       24    40                   48      52
//!          | nonce | tag | length of the body | spans | body, zeros        encrypted from 40 on
//! ```
//! `body crc` is of the body as it is stored: what a crash tore is told from what somebody forged.
//!
//! # Then
//! [`Log::read`] gives the batch with a number only if it is whole and follows the one before it. Up to [`IN_FLIGHT`] batches may be
//! written at a time; what follows a missing one is not read. Whether a crash or damage made it missing, `tail.rs` tells.

use crate::StoreError;
use crate::disk::DiskFile;
use crate::encryption::{Cipher, SEAL, StorePart};
use crate::format::BLOCK;
use crate::mutant::{Mutant, Planted};
use crate::record::Batch;
use crate::spare::SpareMemory;
use sluice_sync::Arc;

/// The most batches that are written at a time.
pub(crate) const IN_FLIGHT: usize = 4;
/// Bytes before a batch's body.
pub(crate) const HEADER: usize = 64;
/// Bytes of an encrypted body before the one that a plain batch has.
const INNER: usize = 12;
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
    /// The bytes that the log of an encrypted store gets.
    encrypted: Option<Vec<u8>>,
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
    cipher: Option<Arc<Cipher>>,
    /// Memory of the records of earlier pushes.
    pub(crate) spare: SpareMemory,
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
        Ok(Log { file, size, uuid, cipher: None, spare: SpareMemory::new(), planted })
    }

    /// The same log, whose batches are encrypted if there is a `cipher`.
    pub(crate) fn with(self, cipher: Option<Arc<Cipher>>) -> Log {
        Log { cipher, ..self }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Prepares `batch` to be written where the log goes on, when batch `done` and all before it are durable.
    ///
    /// # Errors
    /// The system's, without the random numbers that an encrypted batch takes.
    pub(crate) fn form(&self, mut batch: Batch, next: Position, done: u64) -> Result<Formed, StoreError> {
        let (body_len, spans) = (batch.encoded_len(), batch.changes().len() as u32);
        let more = if self.cipher.is_some() { SEAL + INNER } else { 0 };
        let len = (HEADER + more + body_len).next_multiple_of(BLOCK as usize);
        let mut header = Vec::with_capacity(len - more);
        header.resize(HEADER, 0);
        let (mut chain, mut encrypted) = (0, None);
        let mut failed = Ok(());
        let collected = batch.last_part();
        batch.encode(header, |bytes| match &self.cipher {
            None => {
                bytes.resize(len, 0);
                chain = self.put_header(bytes, (next, done), (body_len, spans));
            }
            Some(cipher) => {
                let mut stored = vec![0; HEADER + SEAL];
                stored.extend_from_slice(&(body_len as u64).to_le_bytes());
                stored.extend_from_slice(&spans.to_le_bytes());
                stored.extend_from_slice(&bytes[HEADER..]);
                stored.resize(len, 0);
                let about = self.about(next.sequence, next.chain);
                match cipher.encrypt(StorePart::Log, &about, &mut stored[HEADER + SEAL..]) {
                    Ok(seal) => stored[HEADER..HEADER + SEAL].copy_from_slice(&seal),
                    Err(error) => failed = Err(StoreError::Io("encrypt the log", error)),
                }
                chain = self.put_header(&mut stored, (next, done), (len - HEADER, 0));
                encrypted = Some(stored);
            }
        });
        failed?;
        // The batch stands in the log's bytes now.
        collected.and_then(Arc::into_inner).into_iter().for_each(|memory| self.spare.keep(memory));
        let len = len as u64;
        let (offset, left) =
            if next.offset + len <= self.size { (next.offset, 0) } else { (0, self.size - next.offset) };
        let next = Position { sequence: next.sequence + 1, offset: offset + len, chain };
        Ok(Formed { sequence: next.sequence - 1, batch, encrypted, offset, span: left + len, next })
    }

    /// Writes the header before the body in `bytes`: its checksum.
    fn put_header(
        &self,
        bytes: &mut [u8],
        (next, done): (Position, u64),
        (body_len, spans): (usize, u32),
    ) -> u32 {
        let body_crc = crc32c::crc32c(&bytes[HEADER..HEADER + body_len]);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.uuid);
        bytes[24..32].copy_from_slice(&next.sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&(body_len as u64).to_le_bytes());
        bytes[40..44].copy_from_slice(&body_crc.to_le_bytes());
        bytes[44..48].copy_from_slice(&next.chain.to_le_bytes());
        bytes[48..52].copy_from_slice(&spans.to_le_bytes());
        bytes[52..60].copy_from_slice(&done.to_le_bytes());
        let chain = crc32c::crc32c(&bytes[..HEADER]);
        bytes[4..8].copy_from_slice(&chain.to_le_bytes());
        chain
    }

    /// The place of a batch among all batches of the log, which is authenticated with its body.
    fn about(&self, sequence: u64, chain: u32) -> [u8; 28] {
        let mut about = [0; 28];
        about[..16].copy_from_slice(&self.uuid);
        about[16..24].copy_from_slice(&sequence.to_le_bytes());
        about[24..].copy_from_slice(&chain.to_le_bytes());
        about
    }

    /// The batch with this header and `body`, whose checksum is right; none if they are no batch.
    pub(crate) fn decode(&self, header: &[u8; HEADER], mut body: Vec<u8>) -> Option<Batch> {
        let Some(cipher) = &self.cipher else { return Batch::decode(body, number(header, 48)) };
        let (seal, inner) = body.split_first_chunk_mut::<SEAL>()?;
        let about = self.about(word(header, 24), number(header, 44));
        if !cipher.decrypt(StorePart::Log, &about, inner, seal) {
            return None;
        }
        let (head, body) = inner.split_first_chunk::<INNER>()?;
        let body = body.get(..usize::try_from(word(head, 0)).ok()?)?;
        Batch::decode(body.to_vec(), number(head, 8))
    }

    /// Writes a batch and makes it durable.
    ///
    /// # Errors
    /// The disk's: nothing may be written afterwards.
    pub(crate) fn write(&self, formed: &Formed) -> Result<(), StoreError> {
        let bytes = formed.encrypted.as_deref().unwrap_or(formed.batch.encoded());
        let offset = formed.offset;
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
        let Some(batch) = self.decode(&header, body) else {
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

    fn form(log: &Log, value: &[u8], next: Position) -> Formed {
        log.form(batch(value), next, 0).expect("random bytes")
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
            let formed = form(&log, &vec![n; usize::from(n) * 300], write);
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
            let lost = form(&log, b"lost", Position::start());
            log.write(&form(&log, b"stray", lost.next)).expect("memory");
            assert!(value_at(&log, Position::start()).is_none());
            log.write(&form(&log, b"new", Position::start())).expect("memory");
            let (value, next) = value_at(&log, Position::start()).expect("just written");
            assert_eq!(value, b"new");
            value_at(&log, next).is_some()
        };
        assert!(!follows(Planted::default()));
        assert!(follows(Planted { mutant: Some(Mutant::NoChain) }), "found");
    }

    #[test]
    fn a_log_that_is_too_short_or_whose_records_are_none_is_damaged() {
        let file = CrashDisk::new().create("log", BLOCK).expect("memory");
        let Err(StoreError::Damaged(why)) = Log::new(file, 2 * BLOCK, [9; 16], Planted::default()) else {
            panic!("it is too short")
        };
        assert_eq!(why, "the log has 4096 bytes, `super` says 8192");
        let log = log(Planted::default());
        log.write(&form(&log, b"value", Position::start())).expect("memory");
        let mut header = log.header(0).expect("memory");
        let body = vec![0xff; log.body(0, &header).expect("memory").expect("a body").len()];
        header[40..44].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        let crc = sum(&header);
        header[4..8].copy_from_slice(&crc.to_le_bytes());
        log.file.write_at(&[&header[..], &body].concat(), 0).expect("memory");
        let Err(StoreError::Damaged(why)) = log.read(Position::start()) else { panic!("there are none") };
        assert!(why.starts_with("batch ") && why.ends_with(" of the log holds no records"), "{why}");
    }
}
