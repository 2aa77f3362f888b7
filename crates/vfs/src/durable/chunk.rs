//! Chunk: the value of a record of contents: 64 KiB of a file, or where they are.
//!
//! # Theory
//! ```text
//!   0      1          3
//!   | 0    | present  | the bytes of the present pages
//!   | 1    | present  | held | patched | extent | the bytes of the patched pages              a page: one bit of two bytes
//! ```
//! `present` are the pages that have data. Few bytes stand in the record: they go to the log and to the tree, and need no flush
//! of their own. More are written once, to an extent. When few pages of a chunk change that is in an extent, these stand in the
//! record and the extent stays (`contents.rs`): it *holds* pages of which some are *patched*, and some may be present no more.

use super::keys::Key;
use crate::data::{CHUNK_PAGES, PAGE, PAGE_SIZE};
use sluice_store::{Added, Extent, Splice};
use std::borrow::Cow;

/// Bytes of a whole chunk.
pub(crate) const CHUNK: u64 = CHUNK_PAGES * PAGE;
/// So many bytes stand in the record: those of one page.
pub(super) const HERE_MAX: usize = PAGE_SIZE;
/// Pages that are patched, at most, when much changes. And if what a push collects whole has no more bytes than these, it stands in
/// records: that saves a flush.
pub(super) const PATCHED_MAX: u32 = 4;
const HERE: u8 = 0;
const THERE: u8 = 1;

/// The record of a chunk. Pages are bits, the lowest for the first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk<'v> {
    /// The pages that have data.
    pub(super) present: u16,
    /// The extent that stores pages of this chunk, if any.
    pub(super) held: Option<Held>,
    /// The bytes of pages that are patched; without an extent, of all.
    pub(super) bytes: &'v [u8],
}

/// An extent with bytes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) extent: Extent,
    /// The pages whose bytes it holds.
    pub(super) pages: u16,
    /// The pages of which the record has newer bytes.
    pub(super) patched: u16,
}

impl<'v> Chunk<'v> {
    /// Decodes `value`; None if it is no chunk record.
    pub(super) fn decode(value: &'v [u8]) -> Option<Chunk<'v>> {
        let (kind, value) = value.split_first()?;
        let (present, bytes) = split_pages(value)?;
        let (held, bytes) = match *kind {
            HERE => (None, bytes),
            THERE => {
                let (pages, rest) = split_pages(bytes)?;
                let (patched, rest) = split_pages(rest)?;
                let (extent, bytes) = Extent::decode(rest)?;
                let sound = extent.len() <= room_of(pages) as u64
                    && present & !(pages | patched) == 0
                    && patched & !present == 0;
                (Some(sound.then_some(Held { extent, pages, patched })?), bytes)
            }
            _ => return None,
        };
        let here = held.as_ref().map_or(present, |held| held.patched);
        (bytes.len() <= room_of(here)).then_some(Chunk { present, held, bytes })
    }

    /// The value of the record.
    pub(super) fn encode(&self) -> Vec<u8> {
        let extent = self.held.as_ref().map_or(0, |held| 4 + held.extent.encoded_len());
        let mut value = Vec::with_capacity(3 + extent + self.bytes.len());
        value.push(if self.held.is_some() { THERE } else { HERE });
        value.extend_from_slice(&self.present.to_le_bytes());
        if let Some(Held { extent, pages, patched }) = &self.held {
            value.extend_from_slice(&pages.to_le_bytes());
            value.extend_from_slice(&patched.to_le_bytes());
            extent.encode(&mut value);
        }
        value.extend_from_slice(self.bytes);
        value
    }

    /// Puts the record down. If some pages `stand` in the previous record, which held the pages `formerly` and names
    /// the same extent or none, then [`bytes`](Self::bytes) holds only the other pages, and the record is
    /// [spliced](Added::splice).
    pub(super) fn put(&self, key: &Key, (formerly, stand): (u16, u16), to: &mut Added) {
        if stand == 0 {
            return to.put(key, &self.encode());
        }
        let head = Chunk { bytes: &[], held: self.held.clone(), ..*self }.encode();
        let (mut splice, mut bytes) = (Splice::with_capacity(head.len() + self.bytes.len()), self.bytes);
        splice.put(&head);
        let here = self.held.as_ref().map_or(self.present, |held| held.patched);
        for at in (0..CHUNK_PAGES as u32).filter(|at| here & 1 << at != 0) {
            if stand & 1 << at != 0 {
                let from = head.len() + room_of(formerly & ((1 << at) - 1));
                splice.keep(from as u32, PAGE_SIZE as u32);
            } else {
                let (page, rest) = bytes.split_at(bytes.len().min(PAGE_SIZE));
                splice.put(page);
                if here >> at > 1 {
                    splice.put(&[0; PAGE_SIZE][page.len()..]);
                }
                bytes = rest;
            }
        }
        to.splice(key, &splice);
    }

    /// Number of pages with data.
    pub(super) fn pages(&self) -> u64 {
        u64::from(self.present.count_ones())
    }

    /// The bytes of all pages that are present, one page behind the other, of a chunk whose extent holds the bytes `held`.
    pub(super) fn bytes(&self, mut held: Vec<u8>) -> Cow<'v, [u8]> {
        let Some(Held { pages, patched, .. }) = &self.held else { return Cow::Borrowed(self.bytes) };
        held.resize(room_of(*pages), 0);
        if *pages == self.present && *patched == 0 {
            return Cow::Owned(held);
        }
        let mut bytes = Vec::with_capacity(room_of(self.present));
        for at in (0..CHUNK_PAGES as u32).filter(|at| self.present & 1 << at != 0) {
            let (from, among) = if patched & 1 << at != 0 { (self.bytes, patched) } else { (&*held, pages) };
            let start = room_of(among & ((1 << at) - 1));
            let page = from.get(start..).unwrap_or_default();
            let end = bytes.len() + PAGE_SIZE;
            bytes.extend_from_slice(&page[..page.len().min(PAGE_SIZE)]);
            bytes.resize(end, 0);
        }
        Cow::Owned(bytes)
    }
}

/// Bytes of so many pages as there are bits in `pages`.
fn room_of(pages: u16) -> usize {
    pages.count_ones() as usize * PAGE_SIZE
}

fn split_pages(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (pages, rest) = bytes.split_first_chunk()?;
    Some((u16::from_le_bytes(*pages), rest))
}
