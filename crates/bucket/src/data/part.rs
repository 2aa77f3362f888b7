//! Parts: the objects that a segment consists of, and which of them has a byte.

use slatedb::bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// The smallest unit that a store allocates in a segment.
const BLOCK: u64 = 4096;

/// The epoch and the number of a part: the greater one is newer.
pub(super) type PartId = (u64, u64);

/// An object with bytes of a segment.
#[derive(Clone, Debug)]
pub(super) struct SegmentPart {
    pub(super) id: PartId,
    /// Where they stand in the segment.
    pub(super) bytes: Range<u64>,
    /// Ranges of the part that were given back: sorted and disjoint.
    dead: Vec<Range<u64>>,
    /// While it is being sent: what it holds.
    pub(super) content: Option<Bytes>,
}

/// The parts of a segment.
#[derive(Default)]
pub(super) struct SegmentParts {
    /// Written bytes that are in no part yet, by offset; adjacent writes form one piece.
    pub(super) waiting: BTreeMap<u64, Vec<u8>>,
    pub(super) all: Vec<SegmentPart>,
    /// The parts that earlier owners made were looked for.
    pub(super) are_listed: bool,
}

impl SegmentParts {
    /// `bytes` were written at `offset`, and wait to be sent. Earlier bytes may end within a block: the rest of that
    /// block is unused, and belongs to the row.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        match self.waiting.range_mut(..=offset).next_back() {
            Some((start, before))
                if [1, BLOCK]
                    .iter()
                    .any(|unit| (*start + before.len() as u64).next_multiple_of(*unit) == offset) =>
            {
                before.resize((offset - *start) as usize, 0);
                before.extend_from_slice(bytes);
            }
            _ => drop(self.waiting.insert(offset, bytes.to_vec())),
        }
    }

    /// Copies what is in memory of the bytes from `offset` on to `buf`. Returns the parts that have the rest, each with
    /// its range of bytes; None if some bytes are in no known part.
    pub(super) fn find(&self, buf: &mut [u8], offset: u64) -> Option<Vec<(SegmentPart, Range<u64>)>> {
        let (mut at, end) = (offset, offset + buf.len() as u64);
        let mut elsewhere = Vec::new();
        while at < end {
            let mut copy = |start: u64, content: &[u8], until: u64| {
                let from = &content[(at - start) as usize..(until - start) as usize];
                buf[(at - offset) as usize..(until - offset) as usize].copy_from_slice(from);
            };
            let waits = self.waiting.range(..=at).next_back();
            let waits = waits.map(|(start, bytes)| (*start, bytes, *start + bytes.len() as u64));
            if let Some((start, bytes, waits_to)) = waits.filter(|(_, _, waits_to)| at < *waits_to) {
                let until = waits_to.min(end);
                copy(start, bytes, until);
                at = until;
                continue;
            }
            let part = self.newest_with(at)?;
            // Up to where a newer one begins.
            let newer = self.all.iter().filter(|newer| newer.id > part.id).map(|newer| newer.bytes.start);
            let newer = newer.chain(self.waiting.keys().copied()).filter(|start| *start > at).min();
            let until = part.bytes.end.min(newer.unwrap_or(end)).min(end);
            match &part.content {
                Some(content) => copy(part.bytes.start, content, until),
                None => elsewhere.push((part.clone(), at..until)),
            }
            at = until;
        }
        Some(elsewhere)
    }

    /// The newest of the parts that have byte `at`.
    pub(super) fn newest_with(&self, at: u64) -> Option<&SegmentPart> {
        self.all.iter().filter(|part| part.bytes.contains(&at)).max_by_key(|part| part.id)
    }

    /// The part `id` was sent, or cannot be: true if nothing of it is left, and it is forgotten.
    pub(super) fn sent(&mut self, id: PartId) -> bool {
        self.all.iter_mut().filter(|part| part.id == id).for_each(|part| part.content = None);
        self.all.extract_if(.., |part| part.id == id && part.is_dead()).count() > 0
    }

    /// These parts were found.
    pub(super) fn learn(&mut self, listed: Vec<SegmentPart>) {
        self.are_listed = true;
        for part in listed {
            if !self.all.iter().any(|one| one.id == part.id) {
                self.all.push(part);
            }
        }
    }

    /// Counts `bytes` of the parts before `now` as given back. Forgets and returns the parts without remaining bytes,
    /// except for those that are being sent.
    pub(super) fn give_back(&mut self, bytes: &Range<u64>, now: PartId) -> Vec<SegmentPart> {
        for part in self.all.iter_mut().filter(|part| part.id < now) {
            part.give_back(bytes);
        }
        self.all.extract_if(.., |part| part.is_dead() && part.content.is_none()).collect()
    }
}

impl SegmentPart {
    /// A part that is about to be sent.
    pub(super) fn new(id: PartId, start: u64, content: Bytes) -> SegmentPart {
        let bytes = start..start + content.len() as u64;
        SegmentPart { id, bytes, dead: Vec::new(), content: Some(content) }
    }

    /// The end of its object's name.
    pub(super) fn name(&self) -> String {
        let (epoch, count) = self.id;
        format!("{:08x}-{epoch:016x}-{count:016x}", self.bytes.start)
    }

    /// The part of which this is the name, and the size.
    pub(super) fn parse(name: &str, size: u64) -> Option<SegmentPart> {
        let mut numbers = name.split('-').map(|number| u64::from_str_radix(number, 16));
        let (start, epoch, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let bytes = start..start.checked_add(size)?;
        (numbers.next().is_none()).then_some(SegmentPart {
            id: (epoch, count),
            bytes,
            dead: Vec::new(),
            content: None,
        })
    }

    /// Marks the bytes of the part within `bytes` as given back, perhaps again.
    fn give_back(&mut self, bytes: &Range<u64>) {
        let here = self.bytes.start.max(bytes.start)..self.bytes.end.min(bytes.end);
        if here.is_empty() {
            return;
        }
        self.dead.push(here);
        self.dead.sort_unstable_by_key(|one| one.start);
        self.dead.dedup_by(|next, one| {
            let touches = next.start <= one.end;
            one.end = if touches { one.end.max(next.end) } else { one.end };
            touches
        });
    }

    /// Whether nothing of it is left.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.first() == Some(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(id: PartId, bytes: Range<u64>) -> SegmentPart {
        SegmentPart { id, bytes, dead: Vec::new(), content: None }
    }

    #[test]
    fn what_is_given_back_twice_counts_once() {
        let mut parts = SegmentParts::default();
        parts.learn(vec![part((1, 0), 0..100), part((1, 1), 50..150), part((1, 2), 0..200)]);
        let mut give_back =
            |bytes| -> Vec<u64> { parts.give_back(&bytes, (1, 2)).iter().map(|part| part.id.1).collect() };
        assert!(give_back(60..200).is_empty());
        assert!(give_back(60..90).is_empty());
        assert!(give_back(80..120).is_empty());
        assert_eq!(give_back(50..60), [1]);
        assert!(give_back(0..40).is_empty());
        assert_eq!(give_back(30..55), [0]);
        // A part newer than the call has other bytes there.
        assert!(give_back(0..200).is_empty());
        assert_eq!(parts.all.len(), 1);
    }

    #[test]
    fn of_several_that_have_a_byte_the_newest_counts() {
        let mut parts = SegmentParts::default();
        parts.learn(vec![part((2, 0), 50..80), part((1, 7), 0..100), part((2, 1), 80..90)]);
        let found = |parts: &SegmentParts, buf: &mut [u8]| -> Vec<(PartId, Range<u64>)> {
            let found = parts.find(buf, 40).expect("all of it");
            found.into_iter().map(|(part, bytes)| (part.id, bytes)).collect()
        };
        let expected = [((1, 7), 40..50), ((2, 0), 50..80), ((2, 1), 80..90), ((1, 7), 90..100)];
        assert_eq!(found(&parts, &mut [0; 60]), expected);
        assert!(parts.find(&mut [0; 1], 100).is_none());
        parts.write(45, &[9; 4]);
        parts.write(49, &[9; 6]);
        assert_eq!(parts.waiting.len(), 1);
        let mut buf = [0; 20];
        assert_eq!(found(&parts, &mut buf), [((1, 7), 40..45), ((2, 0), 55..60)]);
        assert_eq!(buf[5..15], [9; 10]);
    }

    #[test]
    fn a_gap_below_a_block_belongs_to_the_row() {
        let mut parts = SegmentParts::default();
        parts.write(0, &[1; 8000]);
        parts.write(8192, &[2; 10]);
        // A block that others may have, and a gap that is no block's end.
        parts.write(3 * 4096 + 4096, &[3; 10]);
        parts.write(3 * 4096 + 4096 + 20, &[4; 10]);
        let rows: Vec<_> = parts.waiting.iter().map(|(start, bytes)| (*start, bytes.len())).collect();
        assert_eq!(rows, [(0, 8202), (16384, 10), (16404, 10)]);
    }

    #[test]
    fn a_name_that_is_no_parts_is_passed_over() {
        let name = "00400000-0000000000000007-0000000000000021";
        let part = SegmentPart::parse(name, 5).expect("a part");
        assert_eq!((part.id, part.bytes), ((7, 0x21), 0x40_0000..0x40_0005));
        for other in ["", "1-2", "1-2-3-4", "x-2-3", "ffffffffffffffff-1-1"] {
            assert!(SegmentPart::parse(other, 5).is_none(), "{other}");
        }
    }
}
