//! Records: what transactions write, and the sorted batch that a push makes of them.
//!
//! # Theory
//! Records lie one behind the other in one piece of memory, with an index beside: writing one allocates nothing once the
//! memory is there. [`absorb`] sorts the indexes of several together and keeps the newest version of each key; older bytes are
//! left behind. The bytes stay where they are until the log's bytes are formed ([`Batch::encode`]), which a batch then stands in:
//! so there are never more than two copies of them, and one while a batch waits for a checkpoint. Batches are
//! [merged](Batch::merge) without a copy.
//!
//! A batch's bytes, as the log holds them, record by record:
//! ```text
//!   0        2          6        6+k           6+k+v
//!   | k: u16 | v: u32   | key    | value ...   |        v = u32::MAX: the key is removed, no value follows
//! ```
//! With the bit [`SPLICED`] in `v` the value is a [splice](crate::Splice): it is made of the one that the key had before.
//!
//! Before the records lie the batch's span changes, the spans of segments that its records begin or cease to name, 13
//! bytes each:
//! ```text
//!   0          4        8        12
//!   | segment  | block  | blocks | freed: 0 or 1 |
//! ```
//! Numbers are little endian. Keys ascend strictly.

use crate::StoreError;
use crate::format::{KEY_MAX, VALUE_MAX};
use crate::mutant::{Mutant, Planted};
use crate::segments::{CHANGE_LEN, Change};
use crate::splice::{self, Splice};
use sluice_sync::Arc;
use std::ops::Range;

/// Stands for the length of a value that is none.
const REMOVED: u32 = u32::MAX;
/// In the length of a value: it is a splice.
const SPLICED: u32 = 1 << 30;
/// Bytes before a record's key.
const HEAD: usize = 6;

/// Where one record's key and value are.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// In which of the batch's parts.
    part: u32,
    key_at: usize,
    key_len: u16,
    /// The value is a splice.
    is_splice: bool,
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

    /// The length of the value as the log holds it.
    fn encoded_value_len(&self) -> u32 {
        self.value_len.map_or(REMOVED, |len| if self.is_splice { len | SPLICED } else { len })
    }

    /// The bytes of the key among those of `parts`.
    fn key_in<'p>(&self, parts: &'p [Arc<Vec<u8>>]) -> &'p [u8] {
        &parts[self.part as usize][self.key()]
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
    /// None, in this memory, which is empty.
    pub(crate) fn in_memory(bytes: Vec<u8>) -> Records {
        Records { bytes, ..Records::default() }
    }

    /// Adds a record. Key and value are not longer than [`KEY_MAX`] and [`VALUE_MAX`].
    pub(crate) fn push(&mut self, key: &[u8], version: u64, value: Option<&[u8]>) {
        self.push_as(key, version, value, false);
    }

    /// Adds a record whose value derives from the key's former value. No other record of the key is among those that
    /// are absorbed together.
    pub(crate) fn push_splice(&mut self, key: &[u8], version: u64, splice: &Splice) {
        self.push_as(key, version, Some(splice.bytes()), true);
    }

    fn push_as(&mut self, key: &[u8], version: u64, value: Option<&[u8]>, is_splice: bool) {
        debug_assert!(key.len() <= KEY_MAX && value.is_none_or(|value| value.len() <= VALUE_MAX));
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let value_len = value.map(|value| value.len() as u32);
        self.index.push(Place { part: 0, key_at, key_len: key.len() as u16, is_splice, value_len, version });
    }

    /// Adds that records begin or cease to name a span.
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
}

/// The newest version of each key of all `parts`, sorted. If versions are equal, the record written last is the newest:
/// the last record in the last part.
pub(crate) fn absorb(parts: Vec<Records>, planted: Planted) -> Batch {
    let mut index: Vec<Place> = Vec::with_capacity(parts.iter().map(|part| part.index.len()).sum());
    let (mut bytes, mut changes) = (Vec::with_capacity(parts.len()), Vec::new());
    for (part, records) in (0..).zip(parts) {
        index.extend(records.index.iter().map(|place| Place { part, ..*place }));
        changes.extend(records.changes);
        bytes.push(Arc::new(records.bytes));
    }
    let mut index = newest_first(&index, &bytes);
    if planted.has(Mutant::OldestVersion) {
        index.reverse();
        index.sort_by(|a, b| a.key_in(&bytes).cmp(b.key_in(&bytes)));
    }
    index.dedup_by(|later, kept| later.key_in(&bytes) == kept.key_in(&bytes));
    Batch { parts: bytes, index, changes }
}

/// The places of `index` with ascending keys, and of equal keys the newest version first; of equal versions the last one.
fn newest_first(index: &[Place], parts: &[Arc<Vec<u8>>]) -> Vec<Place> {
    // Most keys differ in their first bytes: so few of them are looked at more than once.
    let first = |place: &Place| {
        let (key, mut first) = (place.key_in(parts), [0; 16]);
        let len = key.len().min(first.len());
        first[..len].copy_from_slice(&key[..len]);
        u128::from_be_bytes(first)
    };
    let mut order: Vec<(u128, u32)> = (0..).zip(index).map(|(at, place)| (first(place), at)).collect();
    let place = |at: u32| &index[at as usize];
    order.sort_unstable_by(|(a_first, a), (b_first, b)| {
        a_first.cmp(b_first).then_with(|| {
            let keys = place(*a).key_in(parts).cmp(place(*b).key_in(parts));
            keys.then(place(*b).version.cmp(&place(*a).version)).then(b.cmp(a))
        })
    });
    order.into_iter().map(|(_, at)| *place(at)).collect()
}

/// Records with ascending keys, each key once; and the spans of segments that they name or name no more.
#[derive(Debug, Default)]
pub struct Batch {
    parts: Vec<Arc<Vec<u8>>>,
    index: Vec<Place>,
    changes: Vec<Change>,
}

impl Batch {
    /// The records in the order of their keys; a value of `None` removes the key. A batch that goes to the tree has values alone.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        debug_assert!(!self.has_splices(), "it was merged");
        self.index.iter().map(|place| {
            let bytes = &self.parts[place.part as usize];
            (&bytes[place.key()], place.value().map(|at| &bytes[at]))
        })
    }

    /// The keys of the records, as the log holds these: with their values, but for values that derive from former ones.
    pub(crate) fn unmerged(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.index.iter().map(|place| {
            let bytes = &self.parts[place.part as usize];
            let value = place.value().filter(|_| !place.is_splice);
            (&bytes[place.key()], value.map(|at| &bytes[at]))
        })
    }

    /// Whether some value derives from the key's former value.
    pub(crate) fn has_splices(&self) -> bool {
        self.index.iter().any(|place| place.is_splice)
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

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        let bytes: usize = self.parts.iter().map(|part| part.len()).sum();
        (bytes + size_of_val(&*self.index) + size_of_val(&*self.changes)) as u64
    }

    /// The memory of the records of the last part that was absorbed.
    pub(crate) fn last_part(&self) -> Option<Arc<Vec<u8>>> {
        self.parts.last().cloned()
    }

    /// The batch as the log holds it, between what `before` gives and what `after` adds to it. It stands there from then on.
    pub(crate) fn encode(&mut self, before: Vec<u8>, after: impl FnOnce(&mut Vec<u8>)) {
        let mut to = before;
        self.changes.iter().for_each(|change| change.encode(&mut to));
        for place in &mut self.index {
            let bytes = &self.parts[place.part as usize];
            to.extend_from_slice(&place.key_len.to_le_bytes());
            to.extend_from_slice(&place.encoded_value_len().to_le_bytes());
            let key_at = to.len();
            to.extend_from_slice(&bytes[place.key()]);
            to.extend_from_slice(place.value().map_or(&[], |at| &bytes[at]));
            (place.part, place.key_at) = (0, key_at);
        }
        after(&mut to);
        self.parts = vec![Arc::new(to)];
    }

    /// The bytes that [`encode`](Self::encode) made.
    pub(crate) fn encoded(&self) -> &[u8] {
        self.parts.first().map_or(&[], |bytes| bytes)
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
            let is_splice = value_len != REMOVED && value_len & SPLICED != 0;
            let value_len = (value_len != REMOVED).then_some(value_len & !SPLICED);
            if usize::from(key_len) > KEY_MAX || value_len.is_some_and(|len| len as usize > VALUE_MAX) {
                return None;
            }
            let place = Place { part: 0, key_at: at + HEAD, key_len, is_splice, value_len, version: 0 };
            at += place.encoded_len();
            let ascends =
                index.last().is_none_or(|last| at <= bytes.len() && bytes[last.key()] < bytes[place.key()]);
            if at > bytes.len() || !ascends {
                return None;
            }
            index.push(place);
        }
        Some(Batch { parts: vec![Arc::new(bytes)], index, changes })
    }

    /// One batch with the effect of `batches`, applied in their order to a tree in which keys have the values that
    /// `tree` says. Its own bytes are only values that derive from former ones.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the former value of a splice is missing; errors of `tree`.
    pub(crate) fn merge<'b>(
        batches: impl IntoIterator<Item = &'b Batch>,
        tree: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, StoreError>,
    ) -> Result<Batch, StoreError> {
        let mut merged = Batch::default();
        for batch in batches {
            let parts = merged.parts.len() as u32;
            merged.parts.extend_from_slice(&batch.parts);
            merged.index.extend(batch.index.iter().map(|place| Place { part: parts + place.part, ..*place }));
            merged.changes.extend_from_slice(&batch.changes);
        }
        let Batch { parts, index, .. } = &mut merged;
        // Parts of later batches have higher numbers, and of one batch no key is there twice.
        index.sort_by(|a, b| a.key_in(parts).cmp(b.key_in(parts)).then(b.part.cmp(&a.part)));
        if index.iter().any(|place| place.is_splice) {
            let mut made = Vec::new();
            for newest_first in index.chunk_by_mut(|a, b| a.key_in(parts) == b.key_in(parts)) {
                if newest_first[0].is_splice {
                    let value = value_of(newest_first, parts, &tree)?;
                    let place = &mut newest_first[0];
                    let key_at = made.len();
                    made.extend_from_slice(place.key_in(parts));
                    made.extend_from_slice(&value);
                    (place.part, place.key_at) = (parts.len() as u32, key_at);
                    (place.is_splice, place.value_len) = (false, Some(value.len() as u32));
                }
            }
            parts.push(Arc::new(made));
        }
        index.dedup_by(|earlier, kept| earlier.key_in(parts) == kept.key_in(parts));
        Ok(merged)
    }
}

/// The value to which the records of one key come, of which the newest is a splice.
fn value_of(
    newest_first: &[Place],
    parts: &[Arc<Vec<u8>>],
    tree: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, StoreError>,
) -> Result<Vec<u8>, StoreError> {
    let bytes = |place: &Place| place.value().map(|at| &parts[place.part as usize][at]);
    let splices = newest_first.iter().take_while(|place| place.is_splice).count();
    let mut value = match newest_first.get(splices) {
        Some(whole) => bytes(whole).map(<[u8]>::to_vec),
        None => tree(newest_first[0].key_in(parts))?,
    };
    for place in newest_first[..splices].iter().rev() {
        value = bytes(place).zip(value).and_then(|(splice, former)| splice::apply(splice, &former));
    }
    value.ok_or_else(|| StoreError::Damaged("the log changes a value that is not there".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(records: &[(&str, u64, Option<&str>)]) -> Batch {
        let mut all = Records::default();
        for (key, version, value) in records {
            all.push(key.as_bytes(), *version, value.map(str::as_bytes));
        }
        absorb(vec![all], Planted::default())
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
        let mut batch = batch(&[("a", 0, Some("")), ("bb", 0, None), ("c", 0, Some("value"))]);
        let before = text(&batch);
        batch.encode(Vec::new(), |_| ());
        let bytes = batch.encoded().to_vec();
        assert_eq!((bytes.len(), text(&batch)), (batch.encoded_len(), before));
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
        let merged = Batch::merge([&first, &second], |_| Ok(None)).expect("no splices");
        assert_eq!(text(&merged), [("a".to_owned(), Some("1".to_owned())), ("b".to_owned(), None)]);
    }

    #[test]
    fn a_value_is_made_of_those_in_the_batches_before_and_in_the_tree() {
        let spliced = |key: &str, bytes: &[u8]| {
            let (mut splice, mut records) = (Splice::default(), Records::default());
            splice.keep(0, 2);
            splice.put(bytes);
            records.push_splice(key.as_bytes(), 1, &splice);
            let mut batch = absorb(vec![records], Planted::default());
            batch.encode(Vec::new(), |_| ());
            Batch::decode(batch.encoded().to_vec(), 0).expect("whole")
        };
        let merge = |batches: &[&Batch]| {
            let tree = |key: &[u8]| Ok((key == b"tree").then(|| b"0123".to_vec()));
            Batch::merge(batches.iter().copied(), tree).map(|merged| text(&merged))
        };
        let is = |key: &str, value: &str| vec![(key.to_owned(), Some(value.to_owned()))];
        let whole = batch(&[("a", 9, Some("xyz"))]);
        let [first, second] = [b"1", b"2"].map(|bytes| spliced("a", bytes));
        assert_eq!(merge(&[&whole, &first, &second]).expect("a value"), is("a", "xy2"));
        assert_eq!(
            merge(&[&first, &whole]).expect("a value"),
            is("a", "xyz"),
            "what is replaced is not looked for"
        );
        assert_eq!(merge(&[&spliced("tree", b"new")]).expect("in the tree"), is("tree", "01new"));
        let removed = batch(&[("a", 9, None)]);
        for without in [&[&first][..], &[&whole, &removed, &first]] {
            let Err(StoreError::Damaged(why)) = merge(without) else { panic!("there is no former value") };
            assert_eq!(why, "the log changes a value that is not there");
        }
    }
}
