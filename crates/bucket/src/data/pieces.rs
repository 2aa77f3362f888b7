//! Pieces: what was fetched before anybody asked for it, because a segment is read from front to back.

use super::part::PartId;
use slatedb::bytes::Bytes;
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::VecDeque;
use tokio::sync::OnceCell;

static PIECES: LockClass = LockClass::new("bucket.data.pieces");

/// Bytes that are fetched with one request.
pub(super) const PIECE: u64 = 1 << 20;
/// Pieces that are fetched ahead of demand.
pub(super) const AHEAD: usize = 4;
/// Pieces in memory, of all segments.
const PIECES_MAX: usize = 4 * AHEAD;

/// A piece: the segment, the part, and its number there.
pub(super) type PieceId = (u32, PartId, u64);

/// The pieces in memory, the oldest first. *protected by its mutex, a leaf*
pub(super) struct Pieces(Mutex<VecDeque<(PieceId, Arc<OnceCell<Bytes>>)>>);

impl Default for Pieces {
    fn default() -> Self {
        Pieces(Mutex::with_class(&PIECES, VecDeque::new()))
    }
}

impl Pieces {
    /// The cell for a piece, which may still be empty, and whether the piece is new here. Simultaneous readers of a
    /// piece share one fetch.
    pub(super) fn piece(&self, id: PieceId) -> (Arc<OnceCell<Bytes>>, bool) {
        let mut pieces = self.0.lock();
        if let Some((_, kept)) = pieces.iter().find(|(one, _)| *one == id) {
            return (kept.clone(), false);
        }
        let kept = Arc::new(OnceCell::new());
        pieces.push_back((id, kept.clone()));
        let oldest = if pieces.len() > PIECES_MAX { pieces.pop_front() } else { None };
        drop(pieces);
        // With nothing locked.
        drop(oldest);
        (kept, true)
    }
}
