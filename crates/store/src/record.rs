//! Records: what transactions write, and the sorted batch that a push makes of them.
//!
//! # Theory
//! Records lie one behind the other in one piece of memory, with an index beside: writing one allocates nothing once the
//! memory is there. [`Records::absorb`] sorts the index and keeps the newest version of each key; older bytes are left behind.
//!
//! A batch's bytes, as the log holds them, record by record:
//! ```text
//!   0        2          6        6+k           6+k+v
//!   | k: u16 | v: u32   | key    | value ...   |        v = u32::MAX: the key is removed, no value follows
//! ```
//! Before them lie the batch's spans of segments that its records name from now on, or no more, 13 bytes each:
//! ```text
//!   0          4        8        12
//!   | segment  | block  | blocks | freed: 0 or 1 |
//! ```
//! Numbers are little endian. Keys ascend strictly.

use crate::mutant::{Mutant, Planted};
use crate::segments::{CHANGE_LEN, Change};
use std::collections::BTreeMap;
use std::ops::Range;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 1024;
/// The longest value, in bytes.
pub const VALUE_MAX: usize = 1 << 20;

/// Stands for the length of a value that is none.
const REMOVED: u32 = u32::MAX;
/// Bytes before a record's key.
const HEAD: usize = 6;

/// Where one record's key and value are.
#[derive(Clone, Copy, Debug)]
struct Place {
    key_at: usize,
    key_len: u16,
    /// None: the key is removed.
    value_len: Option<u32>,
    version: u64,
}

impl Place {
    fn key(&self) -> Range<usize> {
        self.key_at..self.key_at + usize::from(self.key_len)
    }

    fn value(&self) -> Option<Range<usize>> {
        let start = self.key().end;
        self.value_len.map(|len| start..start + len as usize)
    }

    /// Bytes in the log.
    fn encoded_len(&self) -> usize {
        HEAD + usize::from(self.key_len) + self.value_len.unwrap_or(0) as usize
    }
}

/// Records in the order in which they were written.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    index: Vec<Place>,
    changes: Vec<Change>,
}

/// The bytes that a record of these lengths counts for.
pub(crate) fn cost(key_len: usize, value_len: usize) -> u64 {
    (HEAD + key_len + value_len) as u64
}

impl Records {
    /// Adds a record. Key and value are not longer than [`KEY_MAX`] and [`VALUE_MAX`].
    pub(crate) fn push(&mut self, key: &[u8], version: u64, value: Option<&[u8]>) {
        debug_assert!(key.len() <= KEY_MAX && value.is_none_or(|value| value.len() <= VALUE_MAX));
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let value_len = value.map(|value| value.len() as u32);
        self.index.push(Place { key_at, key_len: key.len() as u16, value_len, version });
    }

    /// Adds that records name a span from now on, or no more.
    pub(crate) fn push_change(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty() && self.changes.is_empty()
    }

    /// The bytes that all of them count for.
    pub(crate) fn cost(&self) -> u64 {
        let records: usize = self.index.iter().map(Place::encoded_len).sum();
        (records + self.changes.len() * CHANGE_LEN) as u64
    }

    /// Adds all of `other`.
    pub(crate) fn append(&mut self, other: &Records) {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.index.extend(other.index.iter().map(|place| Place { key_at: base + place.key_at, ..*place }));
        self.changes.extend_from_slice(&other.changes);
    }

    /// The newest version of each key, sorted. Of equal versions the one that was written last is the newest.
    pub(crate) fn absorb(self, planted: Planted) -> Batch {
        let Records { bytes, mut index, changes } = self;
        // The sort keeps the order of what is equal.
        index.reverse();
        index.sort_by(|a, b| bytes[a.key()].cmp(&bytes[b.key()]).then(b.version.cmp(&a.version)));
        if planted.has(Mutant::OldestVersion) {
            index.reverse();
            index.sort_by(|a, b| bytes[a.key()].cmp(&bytes[b.key()]));
        }
        index.dedup_by(|later, kept| bytes[later.key()] == bytes[kept.key()]);
        Batch { bytes, index, changes }
    }
}

/// Records with ascending keys, each key once; and the spans of segments that they name or name no more.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    index: Vec<Place>,
    changes: Vec<Change>,
}

impl Batch {
    /// The records in the order of their keys; a value of `None` removes the key.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.index.iter().map(|place| (&self.bytes[place.key()], place.value().map(|at| &self.bytes[at])))
    }

    /// The changes of what records name.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True without records.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes that [`encode`](Self::encode) appends.
    pub(crate) fn encoded_len(&self) -> usize {
        let records: usize = self.index.iter().map(Place::encoded_len).sum();
        records + self.changes.len() * CHANGE_LEN
    }

    /// Appends the batch as the log holds it.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        self.changes.iter().for_each(|change| change.encode(to));
        for (key, value) in self.iter() {
            to.extend_from_slice(&(key.len() as u16).to_le_bytes());
            let value_len = value.map_or(REMOVED, |value| value.len() as u32);
            to.extend_from_slice(&value_len.to_le_bytes());
            to.extend_from_slice(key);
            to.extend_from_slice(value.unwrap_or_default());
        }
    }

    /// The batch with so many `changes` that [`encode`](Self::encode) wrote, if `bytes` are one: whole, in order, within the
    /// limits.
    pub(crate) fn decode(bytes: Vec<u8>, changes: u32) -> Option<Batch> {
        let mut index: Vec<Place> = Vec::new();
        let mut at = CHANGE_LEN.checked_mul(changes as usize)?;
        let changes =
            bytes.get(..at)?.as_chunks().0.iter().map(Change::decode).collect::<Option<Vec<_>>>()?;
        while at < bytes.len() {
            let head = bytes.get(at..at + HEAD)?;
            let key_len = u16::from_le_bytes([head[0], head[1]]);
            let value_len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
            let value_len = (value_len != REMOVED).then_some(value_len);
            if usize::from(key_len) > KEY_MAX || value_len.is_some_and(|len| len as usize > VALUE_MAX) {
                return None;
            }
            let place = Place { key_at: at + HEAD, key_len, value_len, version: 0 };
            at += place.encoded_len();
            let ascends =
                index.last().is_none_or(|last| at <= bytes.len() && bytes[last.key()] < bytes[place.key()]);
            if at > bytes.len() || !ascends {
                return None;
            }
            index.push(place);
        }
        Some(Batch { bytes, index, changes })
    }

    /// One batch with the effect of `batches`, applied in their order.
    pub(crate) fn merge<'b>(batches: impl IntoIterator<Item = &'b Batch>) -> Batch {
        let mut newest = BTreeMap::new();
        let mut changes = Vec::new();
        for batch in batches {
            newest.extend(batch.iter());
            changes.extend_from_slice(&batch.changes);
        }
        let mut records = Records::default();
        for (key, value) in newest {
            records.push(key, 0, value);
        }
        Batch { bytes: records.bytes, index: records.index, changes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(records: &[(&str, u64, Option<&str>)]) -> Batch {
        let mut all = Records::default();
        for (key, version, value) in records {
            all.push(key.as_bytes(), *version, value.map(str::as_bytes));
        }
        all.absorb(Planted::default())
    }

    fn text(batch: &Batch) -> Vec<(String, Option<String>)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        batch.iter().map(|(key, value)| (text(key), value.map(text))).collect()
    }

    #[test]
    fn the_newest_version_of_a_key_wins_whatever_the_order() {
        let records = [("b", 1, Some("old")), ("a", 7, Some("x")), ("b", 3, None), ("b", 2, Some("mid"))];
        let expected = [("a".to_owned(), Some("x".to_owned())), ("b".to_owned(), None)];
        assert_eq!(text(&batch(&records)), expected);
        let mut reversed = records;
        reversed.reverse();
        assert_eq!(text(&batch(&reversed)), expected);
    }

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_cut_or_out_of_order_is() {
        let batch = batch(&[("a", 0, Some("")), ("bb", 0, None), ("c", 0, Some("value"))]);
        let mut bytes = Vec::new();
        batch.encode(&mut bytes);
        assert_eq!(bytes.len(), batch.encoded_len());
        assert_eq!(text(&Batch::decode(bytes.clone(), 0).expect("whole")), text(&batch));
        for len in 1..bytes.len() {
            // A cut between two records leaves a batch: the log's checksum covers the length.
            if let Some(cut) = Batch::decode(bytes[..len].to_vec(), 0) {
                assert!(text(&batch).starts_with(&text(&cut)));
            }
        }
        let twice: Vec<u8> = bytes.iter().chain(&bytes).copied().collect();
        assert!(Batch::decode(twice, 0).is_none(), "keys must ascend");
        assert!(Batch::decode(vec![0xff; 64], 0).is_none());
    }

    #[test]
    fn merged_batches_have_the_effect_of_both_in_order() {
        let (first, second) = (batch(&[("a", 9, Some("1")), ("b", 9, Some("1"))]), batch(&[("b", 1, None)]));
        let merged = Batch::merge([&first, &second]);
        assert_eq!(text(&merged), [("a".to_owned(), Some("1".to_owned())), ("b".to_owned(), None)]);
    }
}
