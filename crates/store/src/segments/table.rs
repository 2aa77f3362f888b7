//! Table: for each segment how much of it records name, and how far it was written.
//!
//! # Theory
//! Each batch carries the spans that its records name for the first time, and those that they name no more. Their sum is the
//! table. The engine keeps it together with the position in the log, so that both are of one moment:
//! ```text
//!   0          4
//!   | segments | live: u32, end: u32 of each | spans: u32 | segment, block, blocks of each: u32 ...      all in blocks
//! ```
//! The spans at the end were freed by that checkpoint, and may not have been given back to the disk yet. They lie in segments
//! that something lives in: such a segment is not written again from its beginning before a later checkpoint.

use super::extent::Span;
use crate::format::BLOCK;

/// A span that records begin or cease to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) span: Span,
    pub(crate) freed: bool,
}

/// Room that a transaction asks for, for each extent that it names or frees: bytes.
pub const EXTENT_ROOM: u64 = CHANGE_LEN as u64;
/// Bytes of a change in the log.
pub(crate) const CHANGE_LEN: usize = 13;

impl Change {
    /// Appends the change as the log holds it.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        encode_span(self.span, to);
        to.push(u8::from(self.freed));
    }

    /// The change that [`encode`](Self::encode) wrote, if `bytes` are one.
    pub(crate) fn decode(bytes: &[u8; CHANGE_LEN]) -> Option<Change> {
        let span = decode_span(&bytes[..12]);
        let sound = span.blocks > 0 && span.block.checked_add(span.blocks).is_some() && bytes[12] < 2;
        sound.then_some(Change { span, freed: bytes[12] == 1 })
    }
}

/// The state of one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Blocks that records name.
    pub(crate) live: u32,
    /// Blocks beyond it were never named.
    pub(crate) end: u32,
}

/// The state of all segments, as of one position in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) uses: Vec<Use>,
    /// Freed, and perhaps still on the disk.
    pub(crate) freed: Vec<Span>,
}

impl Table {
    /// The table if records name exactly these spans.
    pub(crate) fn named(spans: &[Span]) -> Table {
        let mut uses: Vec<Use> = Vec::new();
        for span in spans {
            let at = span.segment as usize;
            uses.resize(uses.len().max(at + 1), Use::default());
            uses[at].live += span.blocks;
            uses[at].end = uses[at].end.max(span.end());
        }
        Table { uses, freed: Vec::new() }
    }

    /// Bytes that records name.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.uses.iter().map(|one| u64::from(one.live) * BLOCK).sum()
    }

    /// The table after `changes`.
    ///
    /// # Errors
    /// An impossible change: more freed than was named, a segment beyond `limit` or longer than `blocks`.
    pub(crate) fn after(&self, changes: &[Change], limit: u32, blocks: u32) -> Result<Table, String> {
        let mut uses = self.uses.clone();
        let mut live: Vec<i64> = uses.iter().map(|one| i64::from(one.live)).collect();
        let mut freed = Vec::new();
        for change in changes {
            let span = change.span;
            if span.segment >= limit || span.end() > blocks {
                return Err(format!(
                    "blocks {}-{} of segment {} are none",
                    span.block,
                    span.end(),
                    span.segment
                ));
            }
            let at = span.segment as usize;
            if at >= uses.len() {
                uses.resize(at + 1, Use::default());
                live.resize(at + 1, 0);
            }
            if change.freed {
                live[at] -= i64::from(span.blocks);
                freed.push(span);
            } else {
                live[at] += i64::from(span.blocks);
                uses[at].end = uses[at].end.max(span.end());
            }
        }
        for (at, (one, live)) in uses.iter_mut().zip(&live).enumerate() {
            one.live = u32::try_from(*live)
                .ok()
                .filter(|live| *live <= one.end)
                .ok_or_else(|| format!("segment {at} has {live} live blocks"))?;
        }
        freed.retain(|span| uses[span.segment as usize].live > 0);
        Ok(Table { uses, freed: Span::merged(freed) })
    }

    /// The table as the engine keeps it.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&(self.uses.len() as u32).to_le_bytes());
        for one in &self.uses {
            to.extend_from_slice(&one.live.to_le_bytes());
            to.extend_from_slice(&one.end.to_le_bytes());
        }
        to.extend_from_slice(&(self.freed.len() as u32).to_le_bytes());
        self.freed.iter().for_each(|span| encode_span(*span, to));
    }

    /// The table that [`encode`](Self::encode) wrote, if `bytes` are one, for segments of `blocks`.
    pub(crate) fn decode(bytes: &[u8], blocks: u32) -> Option<Table> {
        let (count, rest) = split_number(bytes)?;
        let (uses, rest) = rest.split_at_checked((count as usize).checked_mul(8)?)?;
        let uses: Vec<Use> = (uses.chunks_exact(8))
            .map(|one| Use { live: number(&one[..4]), end: number(&one[4..]) })
            .collect();
        let (count, rest) = split_number(rest)?;
        let whole = (count as usize).checked_mul(12)? == rest.len();
        let freed: Vec<Span> = rest.chunks_exact(12).map(decode_span).collect();
        let sound = uses.iter().all(|one| one.live <= one.end && one.end <= blocks)
            && freed.iter().all(|span| {
                // A freed span that no record had named would belong to another extent.
                uses.get(span.segment as usize).is_some_and(|one| one.live > 0 && span.end() <= one.end)
            });
        (whole && sound).then_some(Table { uses, freed })
    }
}

fn encode_span(span: Span, to: &mut Vec<u8>) {
    for number in [span.segment, span.block, span.blocks] {
        to.extend_from_slice(&number.to_le_bytes());
    }
}

/// The span in 12 bytes.
fn decode_span(bytes: &[u8]) -> Span {
    Span { segment: number(&bytes[..4]), block: number(&bytes[4..8]), blocks: number(&bytes[8..12]) }
}

/// Four bytes as a number.
fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn split_number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (first, rest) = bytes.split_at_checked(4)?;
    Some((number(first), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(segment: u32, block: u32, blocks: u32, freed: bool) -> Change {
        Change { span: Span { segment, block, blocks }, freed }
    }

    #[test]
    fn it_sums_what_is_named_and_freed_whatever_their_order() {
        let table = Table::default();
        let table = table.after(&[change(1, 4, 2, true), change(1, 4, 2, false)], 9, 99).expect("balanced");
        assert_eq!(table.uses, [Use::default(), Use { live: 0, end: 6 }]);
        assert!(table.freed.is_empty(), "nothing lives there");
        let table = table.after(&[change(1, 6, 3, false)], 9, 99).expect("sound");
        let table = table.after(&[change(1, 6, 1, true)], 9, 99).expect("sound");
        assert_eq!((table.uses[1], table.freed.len()), (Use { live: 2, end: 9 }, 1));
        assert!(table.after(&[change(1, 0, 3, true)], 9, 99).is_err(), "more than there is");
        for (segment, block) in [(9, 0), (0, 99)] {
            let said = table.after(&[change(segment, block, 1, false)], 9, 99).map(drop);
            assert_eq!(said, Err(format!("blocks {block}-{} of segment {segment} are none", block + 1)));
        }
    }

    #[test]
    fn what_is_freed_side_by_side_is_one_span() {
        let named = [change(0, 0, 20, false), change(1, 0, 20, false)];
        let freed = [(0, 8, 2), (1, 2, 1), (0, 4, 4), (0, 2, 1), (0, 0, 2)];
        let freed = freed.map(|(segment, block, blocks)| change(segment, block, blocks, true));
        let table = Table::default().after(&[&named[..], &freed[..]].concat(), 9, 99).expect("sound");
        let spans = [(0, 0, 3), (0, 4, 6), (1, 2, 1)];
        assert_eq!(table.freed, spans.map(|(segment, block, blocks)| Span { segment, block, blocks }));
    }

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_cut_is() {
        let changes = [change(0, 0, 5, false), change(2, 8, 8, false), change(2, 9, 1, true)];
        let table = Table::default().after(&changes, 9, 99).expect("sound");
        let mut bytes = Vec::new();
        table.encode(&mut bytes);
        assert_eq!(Table::decode(&bytes, 99).as_ref(), Some(&table));
        assert!(Table::decode(&bytes, 15).is_none(), "segments are shorter");
        for len in 0..bytes.len() {
            assert!(Table::decode(&bytes[..len], 99).is_none(), "{len} bytes");
        }
        assert!(Table::decode(&[0xff; 99], 99).is_none());
    }
}
