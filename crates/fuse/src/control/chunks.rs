//! Chunks: the bytes of a transfer on their way through a control socket, and the changes between two trees as bytes.
//!
//! ```text
//!   chunk   | len (4 bytes, little endian) | bytes |      len 0: all has come
//! ```

use sluice_trees::{ChangeKind, NameChange};
use sluice_vfs::FileType;
use std::io::{self, ErrorKind, Read, Write};

/// Bytes in a chunk, at most.
pub(super) const CHUNK_MAX: usize = 1 << 16;
/// The longest path of a change: no longer one is accepted from a server.
const PATH_MAX: u64 = 1 << 24;

/// Bytes that are written as chunks.
pub(super) struct ChunkWriter<W>(pub(super) W);

impl<W: Write> Write for ChunkWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(CHUNK_MAX)];
        if !bytes.is_empty() {
            self.0.write_all(&(bytes.len() as u32).to_le_bytes())?;
            self.0.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<W: Write> ChunkWriter<W> {
    /// Says that all has come.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.0.write_all(&[0; 4])?;
        self.0.flush()
    }
}

/// Bytes that come as chunks.
pub(super) struct ChunkReader<R> {
    pub(super) input: R,
    /// Bytes of the chunk that are left; none after the end.
    left: Option<usize>,
}

impl<R> ChunkReader<R> {
    /// Reads the chunks of `input` from the first one on.
    pub(super) fn new(input: R) -> ChunkReader<R> {
        ChunkReader { input, left: Some(0) }
    }
}

impl<R: Read> Read for ChunkReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() || self.left.is_none() {
            return Ok(0);
        }
        if self.left == Some(0) {
            let mut len = [0; 4];
            self.input.read_exact(&mut len)?;
            self.left = Some(u32::from_le_bytes(len) as usize).filter(|len| *len > 0);
        }
        let Some(left) = &mut self.left else { return Ok(0) };
        let most = buf.len().min(*left);
        match self.input.read(&mut buf[..most])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            read => {
                *left -= read;
                Ok(read)
            }
        }
    }
}

const KINDS: [(u8, ChangeKind); 4] = [
    (b'+', ChangeKind::Created),
    (b'-', ChangeKind::Removed),
    (b'M', ChangeKind::Modified),
    (b'A', ChangeKind::Attributes),
];

/// A line before a change: where the file was. A program of an earlier version does not know it, and says so.
const FROM: u8 = b'<';

/// Writes `change` as a kind, a mode's type, two sizes and the length of a path, each 8 bytes, and the path. A size that there is not is `u64::MAX`. A path where
/// the file was comes before, as a change without sizes.
pub(super) fn put_change(change: &NameChange, out: &mut dyn Write) -> io::Result<()> {
    let kind = KINDS.iter().find(|(_, kind)| *kind == change.kind).map_or(0, |(code, _)| *code);
    if let Some(from) = &change.from {
        let numbers =
            [FROM.into(), change.file_type.mode_bits().into(), u64::MAX, u64::MAX, from.len() as u64];
        out.write_all(numbers.map(u64::to_le_bytes).as_flattened())?;
        out.write_all(from)?;
    }
    let numbers = [
        kind.into(),
        change.file_type.mode_bits().into(),
        change.old_size.unwrap_or(u64::MAX),
        change.size.unwrap_or(u64::MAX),
        change.path.len() as u64,
    ];
    out.write_all(numbers.map(u64::to_le_bytes).as_flattened())?;
    out.write_all(&change.path)
}

/// The next change of `input`; none at the end.
pub(super) fn take_change(input: &mut impl Read) -> io::Result<Option<NameChange>> {
    let mut from = None;
    loop {
        let Some((kind, file_type, [old_size, size], path)) = take_path(input)? else {
            return if from.is_none() { Ok(None) } else { Err(wrong()) };
        };
        if kind == u64::from(FROM) && from.is_none() {
            from = Some(path);
            continue;
        }
        let (_, kind) = *KINDS.iter().find(|(code, _)| u64::from(*code) == kind).ok_or_else(wrong)?;
        return Ok(Some(NameChange { kind, path, file_type, old_size, size, from }));
    }
}

fn wrong() -> io::Error {
    io::Error::other("the server of the mount said what is no change")
}

/// A kind, a type, two sizes, and a path.
type SizedPath = (u64, FileType, [Option<u64>; 2], Vec<u8>);

fn take_path(input: &mut impl Read) -> io::Result<Option<SizedPath>> {
    let mut first = [0; 1];
    if input.read(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = [0; 5 * 8];
    words[0] = first[0];
    input.read_exact(&mut words[1..])?;
    let (words, _) = words.as_chunks::<8>();
    let numbers: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let &[kind, mode, old_size, size, len] = &*numbers else { return Err(wrong()) };
    let file_type = u32::try_from(mode).ok().and_then(FileType::from_mode).ok_or_else(wrong)?;
    if len > PATH_MAX {
        return Err(wrong());
    }
    let mut path = vec![0; len as usize];
    input.read_exact(&mut path)?;
    let sizes = [old_size, size].map(|size| (size != u64::MAX).then_some(size));
    Ok(Some((kind, file_type, sizes, path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_changes_come_as_they_were_written_and_others_are_refused() {
        let change = NameChange {
            kind: ChangeKind::Modified,
            path: b"dir/\xff".to_vec(),
            file_type: FileType::Regular,
            old_size: None,
            size: Some(7),
            from: None,
        };
        let moved = NameChange { from: Some(b"old".to_vec()), ..change.clone() };
        let (mut bytes, mut written) = (Vec::new(), Vec::new());
        let mut out = ChunkWriter(&mut bytes);
        let changes = [&change, &moved, &change];
        changes.into_iter().for_each(|change| put_change(change, &mut out).expect("memory"));
        out.end().expect("memory");
        let mut input = ChunkReader::new(&*bytes);
        for change in changes {
            assert_eq!(take_change(&mut input).expect("it is whole").as_ref(), Some(change));
        }
        assert_eq!(take_change(&mut input).expect("the end"), None);
        let mut cut = ChunkReader::new(&bytes[..bytes.len() - 5]);
        let read = cut.read_to_end(&mut written).expect_err("the end is missing");
        assert_eq!(read.kind(), ErrorKind::UnexpectedEof);
        let refused = take_change(&mut &[1_u8; 100][..]).expect_err("there is no such kind");
        assert_eq!(refused.to_string(), "the server of the mount said what is no change");
        put_change(&change, &mut written).expect("memory");
        let long = [&b"M\0\0\0\0\0\0\0\0\x80\0\0\0\0\0\0"[..], &[0xff; 24]].concat();
        assert!(take_change(&mut &*long).is_err(), "a path of that length is not awaited");
    }
}
