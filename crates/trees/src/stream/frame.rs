//! Frame: the stream as a chain of frames with checksums, and the orders in them.
//!
//! The checksum of a frame is CRC32C of the checksum before, the length and the bytes. That of the first frame follows the checksum
//! of the head. A reader holds one frame, of at most [`FRAME_MAX`] bytes.

use super::facts::{InodeFacts, InodeTimes};
use super::resume::{IDENTITY, ResumePoint};
use sluice_vfs::{FileType, InodeFlags, Timestamp};
use std::io::{self, ErrorKind, Read, Write};

/// The head of a stream: what it is, and its version.
const MAGIC: &[u8; 8] = b"sluicesn";
/// 2: files that are put aside, and streams that go on.
const VERSION: u32 = 2;
/// The longest frame, in bytes.
const FRAME_MAX: usize = 1 << 20;
/// The most bytes of contents in a frame.
pub(super) const CONTENTS_MAX: usize = 1 << 18;
/// Bytes of a digest.
pub(super) const DIGEST: usize = 32;

/// An order of a stream. Names are those of entries in the directory where the receiver stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamOrder<'b> {
    /// The first one: the snapshot's name; and, of an incremental stream, the older snapshot's name and digest.
    Begin { name: &'b [u8], base: Option<(&'b [u8], [u8; DIGEST])> },
    /// The second one, since version 2: which stream this is.
    Identity([u8; IDENTITY]),
    /// The first one of the rest of a stream: here that goes on.
    GoOn(ResumePoint),
    /// Go down to the directory with this name.
    Down(&'b [u8]),
    /// Go up.
    Up,
    /// Make a file, or a directory and go down to it. A symbolic link has a target, a device a number.
    Make { name: &'b [u8], file_type: FileType, rdev: u64, target: &'b [u8] },
    /// Take the file with this name, which is no directory, for the orders that follow.
    Take(&'b [u8]),
    /// The orders that follow are about the directory itself.
    Here,
    /// Give the file at a path from the top, names with `/` between, this name, too.
    Link { name: &'b [u8], path: &'b [u8] },
    /// Put this name, of a file or directory of the older tree, aside under a number.
    Aside { name: &'b [u8], number: u64 },
    /// Give what was put aside under that number this name: take the file, or go down to the directory.
    Back { name: &'b [u8], number: u64 },
    /// Remove this name with its whole tree.
    Remove(&'b [u8]),
    /// The file that was taken is so long.
    Size(u64),
    /// It has these bytes at an offset.
    Contents { offset: u64, bytes: &'b [u8] },
    /// It has a hole there.
    Hole { offset: u64, len: u64 },
    /// The taken file, or else the directory, has this owner and mode.
    Owner { mode: u32, uid: u32, gid: u32 },
    /// It has an extended attribute.
    Xattr { key: &'b [u8], value: &'b [u8] },
    /// It does not have that one.
    NoXattr(&'b [u8]),
    /// It has these times and flags: the last order about it.
    Times(InodeTimes),
    /// The last one: the digest of the tree.
    End([u8; DIGEST]),
}

/// Writes a stream.
pub(super) struct FrameWriter<W> {
    out: W,
    crc: u32,
    frame: Vec<u8>,
    /// Frames that are left out, since they have come.
    left_out: u64,
}

impl<W: Write> FrameWriter<W> {
    /// Begins with the head.
    pub(super) fn new(mut out: W) -> io::Result<FrameWriter<W>> {
        let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        out.write_all(&head)?;
        Ok(FrameWriter { out, crc: crc32c::crc32c(&head), frame: Vec::new(), left_out: 0 })
    }

    /// Begins with the head of the rest that follows `point`: the frames before it are left out.
    pub(super) fn going_on(out: W, point: ResumePoint) -> io::Result<FrameWriter<W>> {
        let mut writer = FrameWriter::new(out)?;
        writer.put(&StreamOrder::GoOn(point))?;
        (writer.crc, writer.left_out) = (point.crc, point.frames);
        Ok(writer)
    }

    /// Whether the next frame is left out. Then this was its turn.
    pub(super) fn leaves_out(&mut self) -> bool {
        let leaves_out = self.left_out > 0;
        self.left_out -= u64::from(leaves_out);
        leaves_out
    }

    pub(super) fn put(&mut self, order: &StreamOrder<'_>) -> io::Result<()> {
        if self.leaves_out() {
            return Ok(());
        }
        self.frame.clear();
        order.encode(&mut self.frame);
        // The parts of an order are bounded.
        let len = (self.frame.len() as u32).to_le_bytes();
        self.crc = chained(self.crc, &len, &self.frame);
        self.out.write_all(&len)?;
        self.out.write_all(&self.crc.to_le_bytes())?;
        self.out.write_all(&self.frame)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn chained(before: u32, len: &[u8; 4], frame: &[u8]) -> u32 {
    let head = crc32c::crc32c_append(crc32c::crc32c(&before.to_le_bytes()), len);
    crc32c::crc32c_append(head, frame)
}

/// Reads a stream.
pub(super) struct FrameReader<R> {
    input: R,
    /// The version of the stream.
    version: u32,
    /// How many frames have come, and the checksum of the last one.
    frames: u64,
    crc: u32,
    frame: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// `InvalidData`: no stream, or one of a newer version.
    pub(super) fn new(mut input: R) -> io::Result<FrameReader<R>> {
        let mut head = [0; 12];
        whole(input.read_exact(&mut head))?;
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(wrong("no stream of `sluice send`"));
        }
        let version = version.first_chunk().map_or(0, |version| u32::from_le_bytes(*version));
        if !(1..=VERSION).contains(&version) {
            return Err(wrong("a stream of another version: use a newer sluice"));
        }
        Ok(FrameReader { input, version, frames: 0, crc: crc32c::crc32c(&head), frame: Vec::new() })
    }

    /// The frames that follow are those behind `point`.
    pub(super) fn go_on(&mut self, point: ResumePoint) {
        (self.frames, self.crc) = (point.frames, point.crc);
    }

    /// Where the stream with this `identity` goes on behind the last frame.
    pub(super) fn point(&self, identity: [u8; IDENTITY]) -> ResumePoint {
        ResumePoint { identity, frames: self.frames, crc: self.crc }
    }

    /// The next order.
    ///
    /// # Errors
    /// `UnexpectedEof`; `InvalidData`: a frame that is damaged or in the wrong place, or no order.
    pub(super) fn next(&mut self) -> io::Result<StreamOrder<'_>> {
        let (mut len, mut crc) = ([0; 4], [0; 4]);
        whole(self.input.read_exact(&mut len))?;
        whole(self.input.read_exact(&mut crc))?;
        let bytes = u32::from_le_bytes(len) as usize;
        if bytes > FRAME_MAX {
            return Err(damaged());
        }
        self.frame.resize(bytes, 0);
        whole(self.input.read_exact(&mut self.frame))?;
        let expected = chained(self.crc, &len, &self.frame);
        if crc != expected.to_le_bytes() {
            return Err(damaged());
        }
        let order = StreamOrder::decode(&self.frame).filter(|order| self.version >= order.since());
        let order = order.ok_or_else(damaged)?;
        (self.frames, self.crc) = (self.frames + 1, expected);
        Ok(order)
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// `InvalidData`.
    pub(super) fn end(&mut self) -> io::Result<()> {
        match self.input.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(wrong("bytes follow the end of the stream")),
        }
    }
}

fn whole(read: io::Result<()>) -> io::Result<()> {
    read.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the stream was cut off: send it again"),
        _ => error,
    })
}

fn damaged() -> io::Error {
    wrong("the stream is damaged, or put together wrongly: send it again")
}

/// An error about the stream.
pub(super) fn wrong(text: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text.into())
}

const TYPES: [(u8, FileType); 7] = [
    (b'f', FileType::Regular),
    (b'd', FileType::Directory),
    (b'l', FileType::Symlink),
    (b'p', FileType::Fifo),
    (b's', FileType::Socket),
    (b'c', FileType::CharDevice),
    (b'b', FileType::BlockDevice),
];

impl<'b> StreamOrder<'b> {
    /// Whether it changes names, so that it cannot be carried out twice.
    pub(super) fn changes_names(&self) -> bool {
        use StreamOrder::{Aside, Back, Link, Make, Remove};
        matches!(self, Make { .. } | Link { .. } | Aside { .. } | Back { .. } | Remove(_))
    }

    fn encode(&self, to: &mut Vec<u8>) {
        let mut number = |kind: u8, numbers: &[u64]| {
            to.push(kind);
            numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
        };
        match *self {
            StreamOrder::Begin { name, base: None } => put_named(to, b'B', name, b""),
            StreamOrder::Begin { name, base: Some((base, digest)) } => {
                put_named(to, b'I', name, &[&digest[..], base].concat());
            }
            StreamOrder::Identity(identity) => {
                to.push(b'Y');
                to.extend_from_slice(&identity);
            }
            StreamOrder::GoOn(point) => {
                to.push(b'G');
                to.extend_from_slice(&point.to_bytes());
            }
            StreamOrder::Down(name) => put_named(to, b'D', name, b""),
            StreamOrder::Up => number(b'U', &[]),
            StreamOrder::Make { name, file_type, rdev, target } => {
                let code = TYPES.iter().find(|(_, known)| *known == file_type).map_or(0, |(code, _)| *code);
                put_named(to, b'M', name, &[&[code][..], &rdev.to_le_bytes(), target].concat());
            }
            StreamOrder::Take(name) => put_named(to, b'F', name, b""),
            StreamOrder::Here => number(b'W', &[]),
            StreamOrder::Link { name, path } => put_named(to, b'L', name, path),
            StreamOrder::Aside { name, number } => put_named(to, b'A', name, &number.to_le_bytes()),
            StreamOrder::Back { name, number } => put_named(to, b'P', name, &number.to_le_bytes()),
            StreamOrder::Remove(name) => put_named(to, b'R', name, b""),
            StreamOrder::Size(size) => number(b'S', &[size]),
            StreamOrder::Contents { offset, bytes } => {
                number(b'C', &[offset]);
                to.extend_from_slice(bytes);
            }
            StreamOrder::Hole { offset, len } => number(b'H', &[offset, len]),
            StreamOrder::Owner { mode, uid, gid } => number(b'O', &[mode.into(), uid.into(), gid.into()]),
            StreamOrder::Xattr { key, value } => put_named(to, b'X', key, value),
            StreamOrder::NoXattr(key) => put_named(to, b'N', key, b""),
            StreamOrder::Times(InodeTimes { atime, mtime, ctime, flags }) => {
                let words = [atime, mtime, ctime].map(|time| [time.sec as u64, time.nsec.into()]);
                number(b'T', words.as_flattened());
                to.extend_from_slice(&flags.bits().to_le_bytes());
            }
            StreamOrder::End(digest) => {
                to.push(b'E');
                to.extend_from_slice(&digest);
            }
        }
    }

    fn decode(frame: &'b [u8]) -> Option<StreamOrder<'b>> {
        let (kind, rest) = frame.split_first()?;
        let alone = |(name, rest): (&'b [u8], &'b [u8])| rest.is_empty().then_some(name);
        Some(match kind {
            b'B' => StreamOrder::Begin { name: named(rest).and_then(alone)?, base: None },
            b'I' => {
                let (name, rest) = named(rest)?;
                let (digest, base) = rest.split_first_chunk()?;
                StreamOrder::Begin { name, base: Some((base, *digest)) }
            }
            b'Y' => StreamOrder::Identity(rest.try_into().ok()?),
            b'G' => StreamOrder::GoOn(ResumePoint::of_bytes(rest)?),
            b'D' => StreamOrder::Down(named(rest).and_then(alone)?),
            b'U' if rest.is_empty() => StreamOrder::Up,
            b'M' => {
                let (name, rest) = named(rest)?;
                let (code, rest) = rest.split_first()?;
                let ([rdev], target) = numbers(rest)?;
                let (_, file_type) = *TYPES.iter().find(|(known, _)| known == code)?;
                StreamOrder::Make { name, file_type, rdev, target }
            }
            b'F' => StreamOrder::Take(named(rest).and_then(alone)?),
            b'W' if rest.is_empty() => StreamOrder::Here,
            b'L' => {
                let (name, path) = named(rest)?;
                StreamOrder::Link { name, path }
            }
            b'A' | b'P' => {
                let (name, rest) = named(rest)?;
                let [number] = only(numbers(rest)?)?;
                match kind {
                    b'A' => StreamOrder::Aside { name, number },
                    _ => StreamOrder::Back { name, number },
                }
            }
            b'R' => StreamOrder::Remove(named(rest).and_then(alone)?),
            b'S' => StreamOrder::Size(only(numbers::<1>(rest)?)?[0]),
            b'C' => {
                let ([offset], bytes) = numbers(rest)?;
                StreamOrder::Contents { offset, bytes }
            }
            b'H' => {
                let [offset, len] = only(numbers(rest)?)?;
                StreamOrder::Hole { offset, len }
            }
            b'O' => {
                let [mode, uid, gid] = only(numbers(rest)?)?.map(u32::try_from);
                StreamOrder::Owner { mode: mode.ok()?, uid: uid.ok()?, gid: gid.ok()? }
            }
            b'X' => {
                let (key, value) = counted(rest)?;
                StreamOrder::Xattr { key, value }
            }
            b'N' => StreamOrder::NoXattr(counted(rest).and_then(alone)?),
            b'T' => {
                let (words, rest) = numbers::<6>(rest)?;
                let flags = InodeFlags::from_bits(u32::from_le_bytes(rest.try_into().ok()?))?;
                let time = |at: usize| {
                    let nsec = u32::try_from(words[at + 1]).ok().filter(|nsec| *nsec < 1_000_000_000)?;
                    Some(Timestamp { sec: words[at] as i64, nsec })
                };
                StreamOrder::Times(InodeTimes { atime: time(0)?, mtime: time(2)?, ctime: time(4)?, flags })
            }
            b'E' => StreamOrder::End(rest.try_into().ok()?),
            _ => return None,
        })
    }

    /// The version of streams that has it first.
    fn since(&self) -> u32 {
        match self {
            StreamOrder::Identity(_)
            | StreamOrder::GoOn(_)
            | StreamOrder::Aside { .. }
            | StreamOrder::Back { .. } => 2,
            _ => 1,
        }
    }

    /// The attributes of `facts`, as an order.
    pub(super) fn owner(facts: &InodeFacts) -> StreamOrder<'static> {
        StreamOrder::Owner { mode: facts.mode, uid: facts.uid, gid: facts.gid }
    }
}

/// Appends `kind`, the length of `name`, that, and `rest`.
fn put_named(to: &mut Vec<u8>, kind: u8, name: &[u8], rest: &[u8]) {
    // A name has at most 255 bytes.
    to.extend_from_slice(&[kind, name.len() as u8]);
    to.extend_from_slice(name);
    to.extend_from_slice(rest);
}

/// Bytes behind their number, and the rest.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked((*len).into())
}

/// A name of a directory entry, and the rest.
fn named(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = counted(bytes)?;
    let leads_elsewhere = [&b""[..], b".", b".."].contains(&name);
    (!leads_elsewhere && !name.iter().any(|byte| [0, b'/'].contains(byte))).then_some((name, rest))
}

/// `N` numbers, and the rest.
fn numbers<const N: usize>(mut bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let mut found = [0; N];
    for number in &mut found {
        let (first, rest) = bytes.split_first_chunk()?;
        (*number, bytes) = (u64::from_le_bytes(*first), rest);
    }
    Some((found, bytes))
}

fn only<T>((found, rest): (T, &[u8])) -> Option<T> {
    rest.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfs::NAME_MAX;

    #[test]
    fn each_order_is_read_as_it_was_written() {
        let time = |sec| Timestamp { sec, nsec: 999_999_999 };
        let times = InodeTimes {
            atime: time(-1),
            mtime: time(i64::MAX),
            ctime: time(0),
            flags: InodeFlags::IMMUTABLE,
        };
        let orders = [
            StreamOrder::Begin { name: b"one", base: None },
            StreamOrder::Begin { name: b"two", base: Some((b"one", [7; DIGEST])) },
            StreamOrder::Identity([3; IDENTITY]),
            StreamOrder::GoOn(ResumePoint { identity: [4; IDENTITY], frames: 5, crc: 6 }),
            StreamOrder::Down(&[b'x'; NAME_MAX]),
            StreamOrder::Up,
            StreamOrder::Make { name: b"l", file_type: FileType::Symlink, rdev: 0, target: b"/a/b" },
            StreamOrder::Make { name: b"c", file_type: FileType::CharDevice, rdev: 259, target: b"" },
            StreamOrder::Take(b"f"),
            StreamOrder::Here,
            StreamOrder::Link { name: b"g", path: b"d/f" },
            StreamOrder::Aside { name: b"f", number: 0 },
            StreamOrder::Back { name: b"g", number: u64::MAX },
            StreamOrder::Remove(b"f"),
            StreamOrder::Size(u64::MAX),
            StreamOrder::Contents { offset: 4096, bytes: b"bytes" },
            StreamOrder::Hole { offset: 0, len: 4096 },
            StreamOrder::Owner { mode: 0o7777, uid: u32::MAX, gid: 1 },
            StreamOrder::Xattr { key: b"user.k", value: b"" },
            StreamOrder::NoXattr(b"user.k"),
            StreamOrder::Times(times),
            StreamOrder::End([9; DIGEST]),
        ];
        let mut stream = Vec::new();
        let mut writer = FrameWriter::new(&mut stream).expect("memory");
        orders.iter().for_each(|order| writer.put(order).expect("memory"));
        let mut reader = FrameReader::new(&*stream).expect("the head is there");
        orders.iter().for_each(|order| assert_eq!(reader.next().expect("it is there"), *order));
        reader.end().expect("no more");
    }

    #[test]
    fn no_name_leads_elsewhere() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            let mut frame = Vec::new();
            StreamOrder::Down(name).encode(&mut frame);
            assert_eq!(StreamOrder::decode(&frame), None, "{name:?}");
        }
    }
}
