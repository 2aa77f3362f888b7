//! Arrived: what a receiver notes of a stream of which a part has come.

use super::frame::{FrameReader, FrameWriter, StreamOrder};
use super::resume::ResumePoint;
use crate::moves::PathNames;
use std::io;

/// A receiver's notes of a stream that has come in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    /// The name of the snapshot.
    pub(super) name: Vec<u8>,
    /// Where the rest begins.
    pub(super) point: ResumePoint,
    /// The directory where the receiver stands, from the top.
    pub(super) way: PathNames,
    /// The file that it has taken in there.
    pub(super) taken: Option<Box<[u8]>>,
}

impl Arrived {
    /// As a stream of orders that lead there.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut out = FrameWriter::new(&mut bytes)?;
        out.put(&StreamOrder::Begin { name: &self.name, base: None })?;
        self.way.iter().try_for_each(|name| out.put(&StreamOrder::Down(name)))?;
        self.taken.iter().try_for_each(|name| out.put(&StreamOrder::Take(name)))?;
        out.put(&StreamOrder::GoOn(self.point))?;
        Ok(bytes)
    }

    /// The position that `note` encodes; none if it is damaged.
    pub(super) fn decode(note: &[u8]) -> Option<Arrived> {
        let mut orders = FrameReader::new(note).ok()?;
        let StreamOrder::Begin { name, base: None } = orders.next().ok()? else { return None };
        let name = name.to_vec();
        let (mut way, mut taken) = (PathNames::new(), None);
        loop {
            match orders.next().ok()? {
                StreamOrder::Down(name) => way.push(name.into()),
                StreamOrder::Take(name) => taken = Some(name.into()),
                StreamOrder::GoOn(point) => return Some(Arrived { name, point, way, taken }),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::resume::IDENTITY;
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written_and_others_are_not() {
        let point = ResumePoint { identity: [0xa5; IDENTITY], frames: 3, crc: 4 };
        let way = vec![b"dir".to_vec().into(), b"\xff".to_vec().into()];
        for taken in [None, Some(b"file".to_vec().into())] {
            let arrived = Arrived { name: b"monday".to_vec(), point, way: way.clone(), taken };
            let note = arrived.encode().expect("memory");
            assert_eq!(Arrived::decode(&note), Some(arrived));
            assert_eq!(Arrived::decode(&note[..note.len() - 1]), None);
        }
    }
}
