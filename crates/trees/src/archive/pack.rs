//! Pack: a directory of an `Fs`, written as a tar archive.

use super::records::{escape_key, push_record, time_text};
use super::{BLOCK, XATTR_KEY};
use crate::host::copy::{CHUNK, extents, read_at};
use crate::host::{Identity, Transfer, Walker, Xattrs, blocked, failed, moved, refused};
use sluice_vfs::{FileType, Fs, OpenFlags, Stat};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

/// The largest numbers that the fields of a header take in octal.
const ID_MAX: u64 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;

/// Writes the directory `from` of `fs`, and all in it, to `writer` as a tar archive in the pax format, which
/// every current tar reads. Paths in it begin with "./".
///
/// Kept are types, contents with their holes, hard and symbolic links, modes, owners (by number), access
/// and modification times to the nanosecond, and extended attributes and ACLs (`SCHILY.xattr`, which GNU
/// tar unpacks with `--xattrs --xattrs-include='*'`). Sockets are left out: the format has none.
///
/// # Errors
/// One line with the path that met it, on the first problem; the archive is not whole then.
pub fn export_tar(fs: &Fs, from: impl AsRef<Path>, writer: impl Write) -> io::Result<Transfer> {
    let from = from.as_ref();
    let walker = Walker::new(fs);
    walker.process.chdir(from).map_err(|e| failed(from, e))?;
    let mut pack = Pack {
        walker,
        out: writer,
        path: PathBuf::from("."),
        levels: Vec::new(),
        links: HashMap::new(),
        buf: vec![0; CHUNK],
        done: Transfer::default(),
    };
    pack.descend()?;
    pack.run()?;
    pack.out.write_all(&[0; 2 * BLOCK])?;
    pack.out.flush()?;
    Ok(pack.done)
}

/// A packing under way.
struct Pack<W> {
    /// Stands in the directory that is being read.
    walker: Walker,
    out: W,
    /// The path in the archive of what is being packed.
    path: PathBuf,
    /// Names still to pack, and identity, of the directories from the top to where the walker stands.
    levels: Vec<(std::vec::IntoIter<OsString>, Identity)>,
    /// Paths in the archive of files with several names.
    links: HashMap<Identity, PathBuf>,
    buf: Vec<u8>,
    done: Transfer,
}

impl<W: Write> Pack<W> {
    fn run(&mut self) -> io::Result<()> {
        while let Some((names, _)) = self.levels.last_mut() {
            if let Some(name) = names.next() {
                self.path.push(&name);
                self.pack(&name)?;
                continue;
            }
            self.levels.pop();
            if let Some((_, above)) = self.levels.last() {
                self.walker.leave(*above).map_err(|e| blocked(&self.path, e))?;
            }
            self.path.pop();
        }
        Ok(())
    }

    /// Begins with the directory that the walker stands in.
    fn descend(&mut self) -> io::Result<()> {
        let here = Path::new(".");
        let stat = self.walker.process.lstat(here).map_err(|e| self.error(e))?;
        let records = self.records(here, &stat)?;
        let mut path = self.path.as_os_str().as_bytes().to_vec();
        path.push(b'/');
        self.header(EntryType::Directory, &path, b"", 0, &stat, records)?;
        let names = self.walker.names().map_err(|e| self.error(e))?;
        self.levels.push((names.into_iter(), (stat.dev, stat.ino)));
        Ok(())
    }

    /// Packs `name`, the end of `self.path`; of a directory only the beginning.
    fn pack(&mut self, name: &OsStr) -> io::Result<()> {
        let name = Path::new(name);
        let stat = self.walker.process.lstat(name).map_err(|e| self.error(e))?;
        let file_type = stat.file_type();
        if file_type != FileType::Socket {
            self.done.count(file_type);
        }
        let path = self.path.as_os_str().as_bytes().to_vec();
        match file_type {
            FileType::Directory => {
                self.walker.enter(name).map_err(|e| blocked(&self.path, e))?;
                return self.descend();
            }
            FileType::Socket => {}
            _ if self.is_further_name(&stat) => {
                let first = self.links[&(stat.dev, stat.ino)].clone();
                self.header(EntryType::Link, &path, first.as_os_str().as_bytes(), 0, &stat, Vec::new())?;
            }
            FileType::Regular => self.regular(name, &path, &stat)?,
            FileType::Symlink => {
                let target = self.walker.process.readlink(name).map_err(|e| self.error(e))?;
                let records = self.records(name, &stat)?;
                self.header(EntryType::Symlink, &path, target.as_os_str().as_bytes(), 0, &stat, records)?;
            }
            FileType::Fifo | FileType::CharDevice | FileType::BlockDevice => {
                let kind = match file_type {
                    FileType::CharDevice => EntryType::Char,
                    FileType::BlockDevice => EntryType::Block,
                    _ => EntryType::Fifo,
                };
                let records = self.records(name, &stat)?;
                self.header(kind, &path, b"", 0, &stat, records)?;
            }
        }
        self.path.pop();
        Ok(())
    }

    /// True for a file that the archive holds under another name already.
    fn is_further_name(&mut self, stat: &Stat) -> bool {
        let identity = (stat.dev, stat.ino);
        if stat.nlink < 2 {
            return false;
        }
        let known = self.links.contains_key(&identity);
        if !known {
            self.links.insert(identity, self.path.clone());
        }
        known
    }

    fn regular(&mut self, name: &Path, path: &[u8], stat: &Stat) -> io::Result<()> {
        let flags = OpenFlags::NOFOLLOW | OpenFlags::NOATIME;
        let fd = self.walker.process.open(name, flags, 0).map_err(|e| self.error(e))?;
        let mut stored = extents(&self.walker.process, fd, stat.size).map_err(|e| self.error(e))?;
        let mut records = self.records(name, stat)?;
        let data: u64 = stored.iter().map(|(_, len)| len).sum();
        if data == stat.size {
            self.header(EntryType::Regular, path, b"", data, stat, records)?;
        } else {
            // A map must reach the end of the file, as some readers have it.
            stored.push((stat.size, 0));
            let map = sparse_map(&stored);
            push_record(&mut records, b"GNU.sparse.major", b"1");
            push_record(&mut records, b"GNU.sparse.minor", b"0");
            push_record(&mut records, b"GNU.sparse.name", path);
            push_record(&mut records, b"GNU.sparse.realsize", stat.size.to_string().as_bytes());
            // The name under which readers that know no sparse files unpack this member.
            let plain = [b"./GNUSparseFile.0/", name.as_os_str().as_bytes()].concat();
            self.header(EntryType::Regular, &plain, b"", map.len() as u64 + data, stat, records)?;
            self.out.write_all(&map).map_err(|e| self.error(e))?;
        }
        for (start, len) in stored {
            let mut offset = start;
            while offset < start + len {
                let left = usize::try_from(start + len - offset).unwrap_or(usize::MAX);
                let want = self.buf.len().min(left);
                let piece = &mut self.buf[..want];
                let read = read_at(&self.walker.process, fd, offset, piece);
                let read = read.map_err(|e| failed(&self.path, e))?;
                if read == 0 {
                    return Err(moved(&self.path));
                }
                self.out.write_all(&self.buf[..read]).map_err(|e| self.error(e))?;
                offset += read as u64;
            }
        }
        self.pad(data)?;
        self.done.bytes += data;
        self.walker.process.close(fd).map_err(|e| self.error(e))
    }

    /// The records that every member has: times and extended attributes.
    fn records(&self, name: &Path, stat: &Stat) -> io::Result<Vec<u8>> {
        let xattrs: Xattrs = self.walker.xattrs(name).map_err(|e| self.error(e))?;
        let mut records = Vec::new();
        push_record(&mut records, b"atime", time_text(stat.atime).as_bytes());
        for (key, value) in &xattrs {
            push_record(&mut records, &[XATTR_KEY, &escape_key(key)].concat(), value);
        }
        Ok(records)
    }

    /// Writes a member's header, after an extended one with `records` and all that the header has no room for.
    fn header(
        &mut self,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        size: u64,
        stat: &Stat,
        mut records: Vec<u8>,
    ) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        let old = header.as_old_mut();
        if !put(&mut old.name, path) {
            push_record(&mut records, b"path", path);
        }
        if !put(&mut old.linkname, link) {
            push_record(&mut records, b"linkpath", link);
        }
        if size > SIZE_MAX {
            push_record(&mut records, b"size", size.to_string().as_bytes());
        }
        for (key, value) in [(&b"uid"[..], stat.uid), (b"gid", stat.gid)] {
            if u64::from(value) > ID_MAX {
                push_record(&mut records, key, value.to_string().as_bytes());
            }
        }
        let seconds = u64::try_from(stat.mtime.sec).unwrap_or(0).min(SIZE_MAX);
        if stat.mtime.nsec != 0 || i64::try_from(seconds) != Ok(stat.mtime.sec) {
            push_record(&mut records, b"mtime", time_text(stat.mtime).as_bytes());
        }
        header.set_size(size.min(SIZE_MAX));
        header.set_mode(stat.permissions());
        header.set_uid(u64::from(stat.uid).min(ID_MAX));
        header.set_gid(u64::from(stat.gid).min(ID_MAX));
        header.set_mtime(seconds);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            let (major, minor) = (rustix::fs::major(stat.rdev), rustix::fs::minor(stat.rdev));
            if u64::from(major.max(minor)) > ID_MAX {
                let reason = "its device number does not fit the tar format; remove it first";
                return Err(refused(&self.path, ErrorKind::Unsupported, reason));
            }
            header.set_device_major(major)?;
            header.set_device_minor(minor)?;
        }
        header.set_cksum();
        self.extended_header(&records)?;
        self.out.write_all(header.as_bytes()).map_err(|e| self.error(e))
    }

    fn extended_header(&mut self, records: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        put(&mut header.as_old_mut().name, b"PaxHeaders");
        header.set_size(records.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        self.out.write_all(header.as_bytes()).map_err(|e| self.error(e))?;
        self.out.write_all(records).map_err(|e| self.error(e))?;
        self.pad(records.len() as u64)
    }

    /// Fills up to a whole block after `len` bytes.
    fn pad(&mut self, len: u64) -> io::Result<()> {
        let used = usize::try_from(len % BLOCK as u64).unwrap_or(0);
        if used > 0 {
            self.out.write_all(&[0; BLOCK][used..]).map_err(|e| self.error(e))?;
        }
        Ok(())
    }

    fn error(&self, error: impl Into<io::Error>) -> io::Error {
        failed(&self.path, error)
    }
}

/// Puts `value`, or its beginning, into a field; true when all of it fits.
fn put(field: &mut [u8], value: &[u8]) -> bool {
    let len = value.len().min(field.len());
    field[..len].copy_from_slice(&value[..len]);
    len == value.len()
}

/// The map of a sparse file, version 1.0 of GNU's form.
fn sparse_map(extents: &[(u64, u64)]) -> Vec<u8> {
    let mut text = format!("{}\n", extents.len());
    for (offset, len) in extents {
        text += &format!("{offset}\n{len}\n");
    }
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}
