//! Resume: where a stream that was cut off goes on.
//!
//! The receiver knows how many frames have come, and the checksum of the last one, which covers all before it. With the *identity* of the stream
//! that is a token, which the sender gets. The identity is of both snapshots and of the program's version: the sender would write the same frames
//! again, so it leaves out those that have come.

use std::fmt;

/// Bytes of an identity.
pub(super) const IDENTITY: usize = 16;

/// A place between two frames of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResumePoint {
    pub(super) identity: [u8; IDENTITY],
    /// The frames before it.
    pub(super) frames: u64,
    /// The checksum of the last one.
    pub(super) crc: u32,
}

impl ResumePoint {
    pub(super) fn to_bytes(self) -> [u8; IDENTITY + 12] {
        let mut bytes = [0; IDENTITY + 12];
        bytes[..IDENTITY].copy_from_slice(&self.identity);
        bytes[IDENTITY..IDENTITY + 8].copy_from_slice(&self.frames.to_le_bytes());
        bytes[IDENTITY + 8..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Option<ResumePoint> {
        let (identity, rest) = bytes.split_first_chunk()?;
        let (frames, crc) = rest.split_first_chunk()?;
        let (frames, crc) = (u64::from_le_bytes(*frames), u32::from_le_bytes(crc.try_into().ok()?));
        Some(ResumePoint { identity: *identity, frames, crc })
    }

    /// The point that this token says.
    pub(super) fn of_token(token: &str) -> Option<ResumePoint> {
        let digit = |byte: &u8| (*byte as char).to_digit(16).map(|digit| digit as u8);
        let (pairs, []) = token.as_bytes().as_chunks::<2>() else { return None };
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
        ResumePoint::of_bytes(&bytes?)
    }
}

/// Whether `token` may say where a stream goes on: [`receive`](super::receive()) makes such.
pub fn is_resume_token(token: &str) -> bool {
    ResumePoint::of_token(token).is_some()
}

impl fmt::Display for ResumePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_they_were_written_and_others_are_not() {
        let point = ResumePoint { identity: [0xa5; IDENTITY], frames: 3 << 40, crc: 0x0102_0304 };
        assert_eq!(ResumePoint::of_token(&point.to_string()), Some(point));
        for token in ["", "a", "zz", &point.to_string()[2..], &format!("{point}00"), "\u{e9}"] {
            assert_eq!(ResumePoint::of_token(token), None, "{token}");
        }
    }
}
