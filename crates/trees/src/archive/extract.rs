//! Extract: the members of a tar archive, made in an `Fs`.

use super::read::{Member, MemberKind, Reader};
use crate::host::copy::{CHUNK, write_at};
use crate::host::{Attributes, Transfer, Walker, blocked, failed, refused};
use sluice_vfs::{AtFlags, Errno, Fd, FileType, Fs, OpenFlags, Stat};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Unpacks the tar archive that `reader` gives into the directory `to` of `fs`, which is created if it is
/// missing. Reads up to the archive's end mark; gives what a compressed archive needs to a decompressor
/// in between.
///
/// The formats v7, ustar, pax and GNU are read. Kept are types, contents with the holes of sparse members,
/// hard and symbolic links, modes, owners (by number), modification times and, where the archive has
/// them, access times and extended attributes (`SCHILY.xattr`). Directories that exist are merged; a file
/// that exists under a name is replaced; missing directories on the way are created.
///
/// Nothing is made outside `to`, whatever the archive holds: absolute paths and ".." are refused, and so
/// is a path through a symbolic link, one that the archive made itself included.
///
/// # Errors
/// One line, with the member's path where it is about one, on the first problem; what was made by then
/// stays.
pub fn import_tar(fs: &Fs, reader: impl Read, to: impl AsRef<Path>) -> io::Result<Transfer> {
    let to = to.as_ref();
    let walker = Walker::new(fs);
    fs.create_dir_all(to).and_then(|()| walker.process.chdir(to)).map_err(|e| failed(to, e))?;
    let top = walker.process.open(".", OpenFlags::DIRECTORY, 0).map_err(|e| failed(to, e))?;
    let mut extract = Extract {
        walker,
        top,
        here: Vec::new(),
        directories: BTreeMap::new(),
        buf: vec![0; CHUNK],
        done: Transfer::default(),
    };
    let mut archive = Reader::new(reader);
    while let Some(member) = archive.next_member()? {
        extract.make(&mut archive, member)?;
    }
    extract.finish_directories()?;
    Ok(extract.done)
}

/// An extraction under way.
struct Extract {
    walker: Walker,
    /// The target's top directory.
    top: Fd,
    /// Where the walker stands, from the top.
    here: Vec<OsString>,
    /// Attributes of directories in the archive. They are set at the end, from the leaves to the top: making entries changes the
    /// times of their directories.
    directories: BTreeMap<Vec<OsString>, Attributes>,
    buf: Vec<u8>,
    done: Transfer,
}

impl Extract {
    fn make<R: Read>(&mut self, archive: &mut Reader<R>, member: Member) -> io::Result<()> {
        let shown = Path::new(OsStr::from_bytes(&member.path)).to_path_buf();
        let mut components = safe_components(&member.path)?;
        if member.kind == MemberKind::Directory {
            self.stand_in(&components, &shown)?;
            if !components.is_empty() {
                self.done.count(FileType::Directory);
            }
            self.directories.insert(components, attributes(&member));
            return Ok(());
        }
        let Some(name) = components.pop() else {
            return Err(refused(
                &shown,
                ErrorKind::InvalidData,
                "only a directory can be the top of an archive",
            ));
        };
        if member.kind == MemberKind::HardLink {
            return self.link(&components, &name, &member, &shown);
        }
        self.stand_in(&components, &shown)?;
        let name = Path::new(&name);
        let file_type = match member.kind {
            MemberKind::Symlink => {
                let target = Path::new(OsStr::from_bytes(&member.link));
                self.walker.make_room(name).map_err(|e| blocked(&shown, e))?;
                self.walker.process.symlink(target, name).map_err(|e| failed(&shown, e))?;
                FileType::Symlink
            }
            MemberKind::CharDevice => self.special(name, FileType::CharDevice, &member, &shown)?,
            MemberKind::BlockDevice => self.special(name, FileType::BlockDevice, &member, &shown)?,
            MemberKind::Fifo => self.special(name, FileType::Fifo, &member, &shown)?,
            MemberKind::Regular | MemberKind::Directory | MemberKind::HardLink => {
                self.regular(archive, name, &member, &shown)?;
                FileType::Regular
            }
        };
        self.done.count(file_type);
        self.walker.apply(name, file_type, &attributes(&member)).map_err(|e| failed(&shown, e))
    }

    fn special(
        &self,
        name: &Path,
        file_type: FileType,
        member: &Member,
        shown: &Path,
    ) -> io::Result<FileType> {
        let rdev = rustix::fs::makedev(member.device.0, member.device.1);
        self.walker.make_room(name).map_err(|e| blocked(shown, e))?;
        self.walker.process.mknod(name, file_type, 0o600, rdev).map_err(|e| failed(shown, e))?;
        Ok(file_type)
    }

    fn regular<R: Read>(
        &mut self,
        archive: &mut Reader<R>,
        name: &Path,
        member: &Member,
        shown: &Path,
    ) -> io::Result<()> {
        let process = &self.walker.process;
        let fd = self.walker.create(name).map_err(|e| blocked(shown, e))?;
        for (start, len) in &member.extents {
            let mut offset = *start;
            while offset < start + len {
                let left = usize::try_from(start + len - offset).unwrap_or(usize::MAX);
                let want = self.buf.len().min(left);
                let read = archive.read_data(&mut self.buf[..want]).map_err(|e| failed(shown, e))?;
                if read == 0 {
                    return Err(failed(shown, ErrorKind::UnexpectedEof));
                }
                write_at(process, fd, offset, &self.buf[..read]).map_err(|e| failed(shown, e))?;
                offset += read as u64;
                self.done.bytes += read as u64;
            }
        }
        let size = i64::try_from(member.size).map_err(|_| failed(shown, Errno::EFBIG))?;
        process.ftruncate(fd, size).and_then(|()| process.close(fd)).map_err(|e| failed(shown, e))
    }

    /// Gives the file that the member names a further name. The member's attributes are those of the file.
    fn link(&mut self, dir: &[OsString], name: &OsStr, member: &Member, shown: &Path) -> io::Result<()> {
        let mut first = safe_components(&member.link)?;
        let first_name = first.pop().ok_or_else(|| failed(shown, Errno::EPERM))?;
        let missing = |error| {
            let reason = format!(
                "cannot link to {:?}: {error}; the archive must hold that member first",
                String::from_utf8_lossy(&member.link)
            );
            refused(shown, ErrorKind::InvalidData, &reason)
        };
        self.walk_to(&first, false).map_err(missing)?;
        let process = &self.walker.process;
        let place = OpenFlags::PATH | OpenFlags::NOFOLLOW;
        let fd = process.open(&first_name, place, 0).map_err(missing)?;
        let file_type = process.fstat(fd).map_err(missing)?.file_type();
        if file_type == FileType::Directory {
            return Err(missing(Errno::EISDIR));
        }
        self.stand_in(dir, shown)?;
        // A member may be a link to itself; its name must not go then.
        let process = &self.walker.process;
        let identity = |stat: Stat| (stat.dev, stat.ino);
        let same = process.lstat(name).map(identity) == process.fstat(fd).map(identity);
        if !same {
            self.walker.make_room(Path::new(name)).map_err(|e| blocked(shown, e))?;
            process.linkat(fd, "", Fd::CWD, name, AtFlags::EMPTY_PATH).map_err(|e| failed(shown, e))?;
        }
        process.close(fd).map_err(|e| failed(shown, e))?;
        self.done.count(file_type);
        Ok(())
    }

    /// Stands in the directory `dir`, making what is missing of it.
    fn stand_in(&mut self, dir: &[OsString], shown: &Path) -> io::Result<()> {
        self.walk_to(dir, true).map_err(|error| match error {
            Errno::ENOTDIR => refused(
                shown,
                ErrorKind::NotADirectory,
                "leads through something that is no directory (symbolic links are not followed): refused",
            ),
            other => failed(shown, other),
        })
    }

    fn walk_to(&mut self, dir: &[OsString], make: bool) -> Result<(), Errno> {
        if !dir.starts_with(&self.here) {
            // Taken down first: an error on the way leaves the walker nowhere.
            self.here.clear();
            self.walker.process.fchdir(self.top)?;
        }
        for name in &dir[self.here.len()..] {
            let name = Path::new(name);
            if make {
                self.walker.make_dir(name)?;
            }
            self.walker.enter(name)?;
            self.here.push(name.into());
        }
        Ok(())
    }

    fn finish_directories(&mut self) -> io::Result<()> {
        // The order of the keys has what is in a directory after it.
        for (dir, wanted) in std::mem::take(&mut self.directories).into_iter().rev() {
            let path: std::path::PathBuf = dir.iter().collect();
            self.walk_to(&dir, false)
                .and_then(|()| self.walker.apply(Path::new("."), FileType::Directory, &wanted))
                .map_err(|e| failed(&path, e))?;
        }
        Ok(())
    }
}

fn attributes(member: &Member) -> Attributes {
    Attributes {
        mode: member.mode,
        uid: member.uid,
        gid: member.gid,
        times: [member.atime, Some(member.mtime)],
        xattrs: member.xattrs.clone(),
    }
}

/// The names that make up a path in an archive.
///
/// # Errors
/// `InvalidData` for a path that leads, or might lead, out of the directory that it starts in.
fn safe_components(path: &[u8]) -> io::Result<Vec<OsString>> {
    let refuse = |reason| Err(refused(Path::new(OsStr::from_bytes(path)), ErrorKind::InvalidData, reason));
    if path.is_empty() {
        return refuse("a member of the archive has no name: refused");
    }
    if path.starts_with(b"/") {
        return refuse("an absolute path in an archive: refused");
    }
    let mut components = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return refuse("\"..\" in the path of a member of an archive: refused"),
            _ if name.contains(&0) => return refuse("a NUL in the path of a member of an archive: refused"),
            _ => components.push(OsStr::from_bytes(name).to_os_string()),
        }
    }
    Ok(components)
}
