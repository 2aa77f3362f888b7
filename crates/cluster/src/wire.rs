//! Wire: what nodes say to each other, as bytes. Lengths are checked before use, and no content reaches a panic: a
//! request's own bytes are judged by the file system's handler, like those of a kernel.
//!
//! A frame is its length (4 bytes, little-endian, at most [`FRAME_MAX`], for [`Frame::Attach`] [`ATTACH_MAX`]), a byte that tells its
//! kind, and the rest.

use std::io::{self, ErrorKind};

/// The longest frame: a request or answer, as long as the kernel makes them, with room to spare.
pub(crate) const FRAME_MAX: usize = 4 << 20;
/// The longest first frame, which has all that a kernel holds.
pub(crate) const ATTACH_MAX: usize = 256 << 20;

/// A message between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// To the owner, first: a mount and what its kernel holds.
    Attach {
        /// A number that the mount has for as long as it lasts.
        mount: u64,
        /// The epoch of the mount's last owner, or 0.
        epoch: u64,
        /// [`Holdings`](crate::Holdings).
        holdings: Vec<u8>,
    },
    /// From the owner: it serves. The handles and nodes of which something is lost, and the requests that were executed.
    Attached {
        /// Handles that nothing can be done with.
        handles: Vec<u64>,
        /// Nodes whose files have no name.
        nameless: Vec<u64>,
        /// Numbers of requests.
        executed: Vec<u64>,
    },
    /// To the owner: a message of the kernel.
    Request(Vec<u8>),
    /// From the owner: one for the kernel.
    Answer(Vec<u8>),
    /// From the owner: what the kernel is to be told.
    Notice(u64, Vec<u8>),
    /// To the owner: the notice with this number was taken in.
    Noticed(u64),
    /// A ping to the owner, now and then; the owner returns the same time.
    Ping(u64),
    /// See [`Ping`](Frame::Ping).
    Pong(u64),
    /// To the owner: the mount is gone.
    Detach,
    /// From the owner: it lets the store go, for the node with this number. Other nodes do not claim it for a while.
    HandOver(u64),
}

/// Appends a frame to `out`, with its length.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend([0; 4]);
    match frame {
        Frame::Attach { mount, epoch, holdings } => {
            out.push(0);
            [mount, epoch].into_iter().for_each(|number| out.extend(number.to_le_bytes()));
            out.extend(holdings);
        }
        Frame::Attached { handles, nameless, executed } => {
            out.push(1);
            let counts = [handles.len() as u64, nameless.len() as u64];
            let numbers = counts.iter().chain(handles).chain(nameless).chain(executed);
            numbers.for_each(|number| out.extend(number.to_le_bytes()));
        }
        Frame::Request(bytes) => message(out, 2, bytes),
        Frame::Answer(bytes) => message(out, 3, bytes),
        Frame::Notice(number, bytes) => {
            message(out, 4, &number.to_le_bytes());
            out.extend(bytes);
        }
        Frame::Noticed(number) => message(out, 5, &number.to_le_bytes()),
        Frame::Ping(time) => message(out, 6, &time.to_le_bytes()),
        Frame::Pong(time) => message(out, 7, &time.to_le_bytes()),
        Frame::Detach => message(out, 8, &[]),
        Frame::HandOver(node) => message(out, 9, &node.to_le_bytes()),
    }
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

fn message(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    out.extend(bytes);
}

/// Reads a frame, without its length.
///
/// # Errors
/// `InvalidData` if the bytes are no frame.
pub fn decode(bytes: &[u8]) -> io::Result<Frame> {
    let (&kind, rest) = bytes.split_first().ok_or(ErrorKind::InvalidData)?;
    let one = || {
        let bytes = rest.try_into().map_err(|_| ErrorKind::InvalidData)?;
        Ok::<_, io::Error>(u64::from_le_bytes(bytes))
    };
    Ok(match kind {
        0 => {
            let (mount, rest) = number(rest)?;
            let (epoch, holdings) = number(rest)?;
            Frame::Attach { mount, epoch, holdings: holdings.to_vec() }
        }
        1 => {
            let (handles, rest) = number(rest)?;
            let (nameless, rest) = number(rest)?;
            let (numbers, remainder) = rest.as_chunks();
            let mut numbers = numbers.iter().copied().map(u64::from_le_bytes);
            if !remainder.is_empty() || handles.saturating_add(nameless) > numbers.len() as u64 {
                return Err(ErrorKind::InvalidData.into());
            }
            let handles = numbers.by_ref().take(handles as usize).collect();
            let nameless = numbers.by_ref().take(nameless as usize).collect();
            Frame::Attached { handles, nameless, executed: numbers.collect() }
        }
        2 => Frame::Request(rest.to_vec()),
        3 => Frame::Answer(rest.to_vec()),
        4 => {
            let (number, bytes) = number(rest)?;
            Frame::Notice(number, bytes.to_vec())
        }
        5 => Frame::Noticed(one()?),
        6 => Frame::Ping(one()?),
        7 => Frame::Pong(one()?),
        8 if rest.is_empty() => Frame::Detach,
        9 => Frame::HandOver(one()?),
        _ => return Err(ErrorKind::InvalidData.into()),
    })
}

fn number(bytes: &[u8]) -> io::Result<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk().ok_or(ErrorKind::InvalidData)?;
    Ok((u64::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_the_same_after_they_have_travelled_and_noise_is_refused_or_read() {
        let frames = [
            Frame::Attach { mount: 7, epoch: 8, holdings: vec![1, 2] },
            Frame::Attached { handles: vec![1, 2], nameless: vec![3], executed: vec![4, 5] },
            Frame::Request(vec![9; 50]),
            Frame::Answer(Vec::new()),
            Frame::Notice(4, vec![1]),
            Frame::Noticed(u64::MAX),
            Frame::Ping(1),
            Frame::Pong(2),
            Frame::Detach,
            Frame::HandOver(3),
        ];
        for frame in &frames {
            let mut bytes = Vec::new();
            encode(frame, &mut bytes);
            assert_eq!(
                bytes.len() - 4,
                u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
            );
            assert_eq!(&decode(&bytes[4..]).expect("whole"), frame);
            for at in 4..bytes.len() {
                // Whatever it is then: no panic.
                let _ = decode(&bytes[4..at]);
                let mut damaged = bytes.clone();
                damaged[at] ^= 0xff;
                let _ = decode(&damaged[4..]);
            }
        }
        assert!(decode(&[]).is_err() && decode(&[8, 0]).is_err() && decode(&[200]).is_err());
        assert!(decode(&[[1].as_slice(), &[0xff; 8]].concat()).is_err());
    }
}
