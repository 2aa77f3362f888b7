//! Reader: from the bytes of an archive to its members.

use super::records::{malformed, parse_time, split_record, unescape_key};
use super::{BLOCK, XATTR_KEY};
use crate::host::Xattrs;
use sluice_vfs::{FILE_SIZE_MAX, Timestamp};
use std::io::{self, Read};
use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

/// The longest extended header that is read, in bytes. Memory grows only with what really comes.
const RECORDS_MAX: u64 = 256 << 20;
/// The most that global records may add up to: they count for every member.
const GLOBALS_MAX: usize = 1 << 20;

/// The kind of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemberKind {
    Regular,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
}

/// One member of an archive, its contents apart.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) kind: MemberKind,
    pub(super) path: Vec<u8>,
    /// Target of a symbolic link; for a hard link, the path of the other name.
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Timestamp,
    pub(super) atime: Option<Timestamp>,
    pub(super) device: (u32, u32),
    pub(super) xattrs: Xattrs,
    /// Size of the file, holes included.
    pub(super) size: u64,
    /// Offset and length of what [`Reader::read_data`] gives, in order.
    pub(super) extents: Vec<(u64, u64)>,
}

/// Takes an archive apart. Reads no further than its end mark.
pub(super) struct Reader<R> {
    source: R,
    /// Bytes of the current member's contents that are not read yet.
    unread: u64,
    /// Bytes after the contents up to the next header.
    padding: u64,
    /// Global records in effect.
    globals: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Metadata about a member from the headers before its own header.
#[derive(Default)]
struct Extras {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Timestamp>,
    atime: Option<Timestamp>,
    xattrs: Xattrs,
    sparse: Sparse,
}

/// The three ways in which pax records describe a sparse file.
#[derive(Default)]
struct Sparse {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    /// Version 1.0: the map stands before the contents.
    map_in_data: bool,
    /// Versions 0.0 and 0.1: offsets and lengths, by turns.
    map: Vec<u64>,
    listed: bool,
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the tar archive is cut off")
}

impl<R: Read> Reader<R> {
    pub(super) fn new(source: R) -> Reader<R> {
        Reader { source, unread: 0, padding: 0, globals: Vec::new() }
    }

    /// The next member, past what is left of the one before; `None` at the end of the archive.
    pub(super) fn next_member(&mut self) -> io::Result<Option<Member>> {
        let mut extras = Extras::default();
        let mut expecting = false;
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                return if expecting { Err(cut_off()) } else { Ok(None) };
            };
            let size = unsigned(&header.as_old().size)?;
            match header.as_old().linkflag[0] {
                b'x' | b'X' => {
                    let data = self.metadata(size)?;
                    self.apply_globals(&mut extras)?;
                    extras.apply_all(&data)?;
                }
                b'g' => {
                    let data = self.metadata(size)?;
                    self.add_globals(&data)?;
                    continue;
                }
                b'L' => extras.path = Some(text(&self.metadata(size)?).to_vec()),
                b'K' => extras.link = Some(text(&self.metadata(size)?).to_vec()),
                // A volume's label.
                b'V' => {
                    self.expect(size)?;
                    continue;
                }
                _ => {
                    if !expecting {
                        self.apply_globals(&mut extras)?;
                    }
                    return self.member(&header, extras).map(Some);
                }
            }
            expecting = true;
        }
    }

    /// Reads contents of the current member; 0 when all are read.
    pub(super) fn read_data(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.unread).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        loop {
            match self.source.read(&mut buf[..want]) {
                Ok(0) => return Err(cut_off()),
                Ok(read) => {
                    self.unread -= read as u64;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn member(&mut self, header: &Header, extras: Extras) -> io::Result<Member> {
        let old = header.as_old();
        let mut path = extras.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let flag = old.linkflag[0];
        let kind = match flag {
            // Before ustar, a trailing slash was what made a directory.
            0 | b'0' if path.ends_with(b"/") => MemberKind::Directory,
            0 | b'0' | b'7' | b'S' => MemberKind::Regular,
            b'1' => MemberKind::HardLink,
            b'2' => MemberKind::Symlink,
            b'3' => MemberKind::CharDevice,
            b'4' => MemberKind::BlockDevice,
            b'5' | b'D' => MemberKind::Directory,
            b'6' => MemberKind::Fifo,
            other => {
                let text = format!(
                    "member {:?} is of the unknown type {:?}",
                    String::from_utf8_lossy(&path),
                    char::from(other)
                );
                return Err(malformed(&text));
            }
        };
        let stored = match (kind, extras.size) {
            (MemberKind::HardLink, _) => 0,
            (_, Some(size)) => size,
            (_, None) => unsigned(&old.size)?,
        };
        self.expect(stored)?;
        let mut size = stored;
        let mut extents = vec![(0, stored)];
        if flag == b'S' {
            (size, extents) = self.gnu_map(header)?;
        } else if extras.sparse.map_in_data || extras.sparse.listed {
            path = extras.sparse.name.unwrap_or(path);
            size = extras.sparse.size.ok_or_else(|| malformed("a sparse file has no size"))?;
            extents =
                if extras.sparse.map_in_data { self.map_in_data()? } else { pairs(&extras.sparse.map)? };
        }
        self.check_extents(size, &extents)?;
        let device = match kind {
            MemberKind::CharDevice | MemberKind::BlockDevice => device(header)?,
            _ => (0, 0),
        };
        let mtime = || number(&old.mtime).map(|sec| Timestamp { sec, nsec: 0 });
        Ok(Member {
            kind,
            path,
            link: extras.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned()),
            // Some writers put the type's bits there too.
            mode: (unsigned(&old.mode)? & 0o7777) as u32,
            uid: id(extras.uid.map_or_else(|| unsigned(&old.uid), Ok)?)?,
            gid: id(extras.gid.map_or_else(|| unsigned(&old.gid), Ok)?)?,
            mtime: extras.mtime.map_or_else(mtime, Ok)?,
            atime: extras.atime,
            device,
            xattrs: extras.xattrs,
            size,
            extents,
        })
    }

    /// The next header; `None` at the end.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        if !self.block(header.as_mut_bytes())? || header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let bytes = header.as_bytes();
        let given = unsigned(&header.as_old().cksum)?;
        // The field counts as eight spaces.
        let rest = || bytes[..148].iter().chain(&bytes[156..]);
        let sum = rest().map(|byte| u64::from(*byte)).sum::<u64>() + 8 * 32;
        // Some old writers took bytes as signed.
        let signed = rest().map(|byte| i64::from(byte.cast_signed())).sum::<i64>() + 8 * 32;
        if sum != given && u64::try_from(signed) != Ok(given) {
            return Err(malformed("the checksum of a header is wrong"));
        }
        Ok(Some(header))
    }

    /// Fills `block`; false when nothing is left.
    fn block(&mut self, block: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < block.len() {
            match self.source.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(cut_off()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Contents of `size` bytes come next.
    fn expect(&mut self, size: u64) -> io::Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(malformed("a member is larger than any file"));
        }
        self.unread = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        Ok(())
    }

    /// Reads over what is left of the current member.
    fn skip(&mut self) -> io::Result<()> {
        let left = self.unread + self.padding;
        (self.unread, self.padding) = (0, 0);
        let skipped = io::copy(&mut (&mut self.source).take(left), &mut io::sink())?;
        if skipped == left { Ok(()) } else { Err(cut_off()) }
    }

    /// The contents of a header's own member.
    fn metadata(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > RECORDS_MAX {
            return Err(malformed("an extended header is larger than 256 MiB"));
        }
        self.expect(size)?;
        let mut data = Vec::new();
        (&mut self.source).take(size).read_to_end(&mut data)?;
        self.unread -= data.len() as u64;
        if self.unread == 0 { Ok(data) } else { Err(cut_off()) }
    }

    fn add_globals(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (key, value, rest) = split_record(data)?;
            self.globals.retain(|(known, _)| known != key);
            self.globals.push((key.to_vec(), value.to_vec()));
            data = rest;
        }
        let total: usize = self.globals.iter().map(|(key, value)| key.len() + value.len()).sum();
        if total > GLOBALS_MAX {
            return Err(malformed("global records are larger than 1 MiB"));
        }
        Ok(())
    }

    fn apply_globals(&self, extras: &mut Extras) -> io::Result<()> {
        self.globals.iter().try_for_each(|(key, value)| extras.apply(key, value))
    }

    /// The size and map of a sparse file of the old GNU form: in the header and in blocks after it.
    fn gnu_map(&mut self, header: &Header) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let gnu = header.as_gnu().ok_or_else(|| malformed("a sparse member without a GNU header"))?;
        let mut extents = Vec::new();
        add_descriptors(&mut extents, &gnu.sparse)?;
        let mut more = gnu.is_extended();
        while more {
            let mut extension = GnuExtSparseHeader::new();
            // These blocks do not count as contents.
            if !self.block(extension.as_mut_bytes())? {
                return Err(cut_off());
            }
            add_descriptors(&mut extents, extension.sparse())?;
            more = extension.is_extended();
        }
        Ok((unsigned(&gnu.realsize)?, extents))
    }

    /// The map of version 1.0: decimal numbers on lines, their count first, padded to whole blocks.
    fn map_in_data(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let mut numbers = Vec::new();
        let mut expected = None;
        let mut digits = Vec::new();
        while expected.is_none_or(|expected| (numbers.len() as u64) < expected) {
            let mut block = [0; BLOCK];
            if self.unread < BLOCK as u64 || !self.block(&mut block)? {
                return Err(malformed("the map of a sparse file is cut off"));
            }
            self.unread -= BLOCK as u64;
            for byte in block {
                if byte != b'\n' {
                    digits.push(byte);
                    continue;
                }
                let value = decimal(&digits)?;
                digits.clear();
                match expected {
                    None => {
                        let numbers = value.checked_mul(2);
                        expected =
                            Some(numbers.ok_or_else(|| malformed("the map of a sparse file is too long"))?);
                    }
                    Some(_) => numbers.push(value),
                }
                if expected == Some(numbers.len() as u64) {
                    break;
                }
            }
        }
        pairs(&numbers)
    }

    /// Extents must be in order, inside the file, and make up exactly the contents that follow.
    fn check_extents(&self, size: u64, extents: &[(u64, u64)]) -> io::Result<()> {
        let mut end = 0;
        let mut total: u64 = 0;
        for (offset, len) in extents {
            if *offset < end {
                return Err(malformed("the map of a sparse file is out of order"));
            }
            end = offset
                .checked_add(*len)
                .filter(|end| *end <= size)
                .ok_or_else(|| malformed("the map of a sparse file leads past its end"))?;
            total += len;
        }
        if size > FILE_SIZE_MAX || total != self.unread {
            return Err(malformed("the map of a sparse file does not fit its contents"));
        }
        Ok(())
    }
}

impl Extras {
    fn apply_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (key, value, rest) = split_record(data)?;
            self.apply(key, value)?;
            data = rest;
        }
        Ok(())
    }

    /// Takes over one record. Unknown keys are passed over, as the standard has it; an empty value takes an
    /// earlier (global) one back.
    fn apply(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let bytes = || (!value.is_empty()).then(|| value.to_vec());
        let count = || if value.is_empty() { Ok(None) } else { decimal(value).map(Some) };
        let time = || match value {
            [] => Ok(None),
            _ => parse_time(value).map(Some).ok_or_else(|| malformed("a time is no decimal number")),
        };
        match key {
            b"path" => self.path = bytes(),
            b"linkpath" => self.link = bytes(),
            b"size" => self.size = count()?,
            b"uid" => self.uid = count()?,
            b"gid" => self.gid = count()?,
            b"mtime" => self.mtime = time()?,
            b"atime" => self.atime = time()?,
            b"GNU.sparse.name" => self.sparse.name = bytes(),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.size = count()?,
            b"GNU.sparse.major" => self.sparse.map_in_data = value == b"1",
            b"GNU.sparse.numblocks" => self.sparse.listed = true,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.sparse.map.push(decimal(value)?),
            b"GNU.sparse.map" => {
                self.sparse.listed = true;
                let numbers = value.split(|byte| *byte == b',').filter(|number| !number.is_empty());
                self.sparse.map = numbers.map(decimal).collect::<io::Result<_>>()?;
            }
            _ => {
                if let Some(name) = key.strip_prefix(XATTR_KEY) {
                    let name = unescape_key(name);
                    self.xattrs.retain(|(known, _)| *known != name);
                    self.xattrs.push((name, value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

fn add_descriptors(extents: &mut Vec<(u64, u64)>, descriptors: &[GnuSparseHeader]) -> io::Result<()> {
    for descriptor in descriptors.iter().filter(|descriptor| !descriptor.is_empty()) {
        extents.push((unsigned(&descriptor.offset)?, unsigned(&descriptor.numbytes)?));
    }
    Ok(())
}

fn pairs(numbers: &[u64]) -> io::Result<Vec<(u64, u64)>> {
    let (pairs, rest) = numbers.as_chunks();
    if !rest.is_empty() {
        return Err(malformed("the map of a sparse file has an odd number of entries"));
    }
    Ok(pairs.iter().map(|[offset, len]| (*offset, *len)).collect())
}

fn device(header: &Header) -> io::Result<(u32, u32)> {
    let field = |value: io::Result<Option<u32>>| {
        value.ok().flatten().ok_or_else(|| malformed("a device has no proper number"))
    };
    Ok((field(header.device_major())?, field(header.device_minor())?))
}

fn id(value: u64) -> io::Result<u32> {
    u32::try_from(value).map_err(|_| malformed("an owner's or group's number is too large"))
}

fn decimal(text: &[u8]) -> io::Result<u64> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| malformed("a record that should be a number is none"))
}

/// The bytes before the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn unsigned(field: &[u8]) -> io::Result<u64> {
    u64::try_from(number(field)?).map_err(|_| malformed("a number in a header is negative"))
}

/// The number in a header's field: octal digits between spaces and NULs, nothing for zero, or, when the
/// highest bit is set, two's complement of the 7 bits below and all bytes after.
fn number(field: &[u8]) -> io::Result<i64> {
    let Some((first, rest)) = field.split_first() else { return Ok(0) };
    if first & 0x80 != 0 {
        let top = if first & 0x40 == 0 { i128::from(first & 0x3f) } else { i128::from(first | 0x80) - 256 };
        let value = rest.iter().fold(top, |value, byte| value << 8 | i128::from(*byte));
        return i64::try_from(value).map_err(|_| malformed("a number in a header is too large"));
    }
    let octal = std::str::from_utf8(text(field)).ok().map(str::trim);
    match octal {
        Some("") => Ok(0),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            i64::from_str_radix(digits, 8).map_err(|_| malformed("a number in a header is not octal"))
        }
        _ => Err(malformed("a number in a header is not octal")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_headers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0").unwrap(), 0o644);
        assert_eq!(number(b"   644 \0").unwrap(), 0o644);
        assert_eq!(number(b"\0\0\0\0").unwrap(), 0);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]).unwrap(), 258);
        assert_eq!(number(&[0xff; 12]).unwrap(), -1);
        for wrong in [&b"12x\0"[..], b"9\0", b"-1\0", &[0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(number(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_header_with_nothing_after_it_is_an_archive_cut_off() {
        let mut header = Header::new_ustar();
        header.as_old_mut().linkflag = [b'x'];
        header.set_size(0);
        header.set_cksum();
        let error = Reader::new(&header.as_bytes()[..]).next_member().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
