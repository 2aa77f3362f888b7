//! Apply: the orders of a stream, done to a tree that nobody else sees.
//!
//! A receiver [notes](NewSnapshot::note) how far it is before each order that changes names, and now and then in the contents of a file. So after a crash
//! at most one such order behind the note is done, or a part of it: the first one that comes is *in doubt*, and may find its work done. Others may be
//! carried out twice. The digest of the whole says whether all that led to the tree that was sent.

use super::arrived::Arrived;
use super::facts::InodeTimes;
use super::frame::StreamOrder;
use super::resume::ResumePoint;
use crate::moves::PathNames;
use sluice_vfs::{
    Cred, Errno, FallocateMode, FileType, InodeFlags, InodeRef, NewInode, NewKind, NewSnapshot, SetAttr,
    SetTime, XattrFlags,
};

/// A tree that is being made.
pub(super) struct ReceivedTree<'n> {
    new: &'n NewSnapshot<'n>,
    cred: Cred,
    /// The directories from the top to where it stands, and the names of those below the top.
    way: Vec<InodeRef>,
    names: PathNames,
    /// The file in that place, with its name.
    taken: Option<(Box<[u8]>, InodeRef)>,
    /// The next order that changes names may be done.
    is_in_doubt: bool,
}

impl<'n> ReceivedTree<'n> {
    /// Stands at the top.
    pub(super) fn new(new: &'n NewSnapshot<'n>) -> ReceivedTree<'n> {
        ReceivedTree {
            new,
            cred: Cred::root(),
            way: vec![new.top().clone()],
            names: PathNames::new(),
            taken: None,
            is_in_doubt: false,
        }
    }

    /// Stands where that left it.
    ///
    /// # Errors
    /// The tree has no such directory or file; the store's.
    pub(super) fn stand(&mut self, arrived: &Arrived) -> Result<(), Errno> {
        arrived.way.iter().try_for_each(|name| self.obey(&StreamOrder::Down(name)))?;
        arrived.taken.iter().try_for_each(|name| self.obey(&StreamOrder::Take(name)))?;
        self.is_in_doubt = true;
        Ok(())
    }

    /// The position before an order that changes names, for which no file needs to be taken; else like [`arrived`](Self::arrived).
    pub(super) fn arrived_before_names(&self, name: &[u8], point: ResumePoint) -> Arrived {
        Arrived { name: name.to_vec(), point, way: self.names.clone(), taken: None }
    }

    /// Notes where it stands, at `point` of the stream of the snapshot `name`.
    pub(super) fn arrived(&self, name: &[u8], point: ResumePoint) -> Arrived {
        let taken = self.taken.as_ref().map(|(name, _)| name.clone());
        Arrived { name: name.to_vec(), point, way: self.names.clone(), taken }
    }

    /// Does what `order` says.
    ///
    /// # Errors
    /// `EINVAL`: an order that has no meaning here; errors of the calls that it stands for.
    pub(super) fn obey(&mut self, order: &StreamOrder<'_>) -> Result<(), Errno> {
        self.carry_out(order)?;
        self.is_in_doubt &= !order.changes_names();
        Ok(())
    }

    fn carry_out(&mut self, order: &StreamOrder<'_>) -> Result<(), Errno> {
        match *order {
            StreamOrder::Begin { .. }
            | StreamOrder::Identity(_)
            | StreamOrder::GoOn(_)
            | StreamOrder::End(_) => Err(Errno::EINVAL),
            StreamOrder::Down(name) => {
                let dir = self.dir()?.lookup(&self.cred, name)?;
                if !dir.is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                self.stand_at(name, dir);
                Ok(())
            }
            StreamOrder::Up => {
                self.taken = None;
                self.way.pop();
                self.names.pop();
                self.dir().map(drop)
            }
            StreamOrder::Make { name, file_type, rdev, target } => {
                self.make(name, file_type, kind(file_type, rdev, target)?)
            }
            StreamOrder::Take(name) => {
                let file = self.dir()?.lookup(&self.cred, name)?;
                if file.is_dir() {
                    return Err(Errno::EISDIR);
                }
                self.stand_at(name, file);
                Ok(())
            }
            StreamOrder::Here => {
                self.taken = None;
                Ok(())
            }
            StreamOrder::Link { name, path } => {
                let file = self.find(path)?;
                self.let_change(&file)?;
                let dir = self.dir()?;
                self.let_change(dir)?;
                match dir.link(&self.cred, name, &file) {
                    Err(Errno::EEXIST)
                        if self.is_in_doubt && dir.lookup(&self.cred, name)?.ino() == file.ino() =>
                    {
                        Ok(())
                    }
                    linked => linked,
                }
            }
            StreamOrder::Aside { name, number } => {
                self.taken = None;
                let moving = match self.dir()?.lookup(&self.cred, name) {
                    Err(Errno::ENOENT) if self.is_in_doubt && self.new.is_aside(number) => return Ok(()),
                    found => found?,
                };
                self.let_change(&moving)?;
                self.let_change(self.dir()?)?;
                self.new.put_aside(self.dir()?, name, number)
            }
            StreamOrder::Back { name, number } => {
                self.let_change(self.dir()?)?;
                let found = match self.new.put_back(number, self.dir()?, name) {
                    Err(Errno::ENOENT) if self.is_in_doubt => self.dir()?.lookup(&self.cred, name)?,
                    found => found?,
                };
                self.stand_at(name, found);
                Ok(())
            }
            StreamOrder::Remove(name) => {
                self.taken = None;
                self.let_change(self.dir()?)?;
                match self.new.remove(self.dir()?, name) {
                    Err(Errno::ENOENT) if self.is_in_doubt => Ok(()),
                    removed => removed,
                }
            }
            StreamOrder::Size(size) => self.file()?.truncate(&self.cred, size),
            StreamOrder::Contents { offset, bytes } => self.write(offset, bytes),
            StreamOrder::Hole { offset, len } => {
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                self.file()?.fallocate(&self.cred, mode, offset, len)
            }
            StreamOrder::Owner { mode, uid, gid } => {
                let inode = self.changing()?;
                let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
                inode.set_attr(&self.cred, &owner)?;
                match inode.file_type() {
                    FileType::Symlink => Ok(()),
                    _ => inode.set_attr(&self.cred, &SetAttr { mode: Some(mode), ..SetAttr::default() }),
                }
            }
            StreamOrder::Xattr { key, value } => {
                self.changing()?.set_xattr(&self.cred, key, value, XattrFlags::empty())
            }
            StreamOrder::NoXattr(key) => match self.changing()?.remove_xattr(&self.cred, key) {
                Err(Errno::ENODATA) => Ok(()),
                removed => removed,
            },
            StreamOrder::Times(InodeTimes { atime, mtime, ctime, flags }) => {
                let inode = self.changing()?;
                let [atime, mtime] = [atime, mtime].map(|time| Some(SetTime::At(time)));
                inode.set_attr(&self.cred, &SetAttr { atime, mtime, ..SetAttr::default() })?;
                if inode.flags() != flags {
                    self.new.set_flags(inode, flags)?;
                }
                inode.set_ctime(ctime)
            }
        }
    }

    /// The directory where it stands.
    fn dir(&self) -> Result<&InodeRef, Errno> {
        self.way.last().ok_or(Errno::EINVAL)
    }

    /// The file or directory that orders about attributes are about. Nothing keeps it from changing.
    fn changing(&self) -> Result<&InodeRef, Errno> {
        let inode = self.taken.as_ref().map_or_else(|| self.dir(), |(_, file)| Ok(file))?;
        self.let_change(inode)?;
        Ok(inode)
    }

    /// The file that was taken.
    fn file(&self) -> Result<&InodeRef, Errno> {
        let (_, file) = self.taken.as_ref().ok_or(Errno::EINVAL)?;
        self.let_change(file)?;
        Ok(file)
    }

    /// Takes flags away that keep `inode` as it is. They come back with its times.
    fn let_change(&self, inode: &InodeRef) -> Result<(), Errno> {
        let (flags, fixed) = (inode.flags(), InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        if flags.intersects(fixed) { inode.set_flags(&self.cred, flags - fixed) } else { Ok(()) }
    }

    fn make(&mut self, name: &[u8], file_type: FileType, kind: NewKind<'_>) -> Result<(), Errno> {
        let dir = self.dir()?;
        self.let_change(dir)?;
        let made = match dir.create(&self.cred, name, &NewInode { kind, mode: 0o700, umask: 0 }) {
            Err(Errno::EEXIST) if self.is_in_doubt => {
                let made = dir.lookup(&self.cred, name)?;
                if made.file_type() != file_type {
                    return Err(Errno::EEXIST);
                }
                self.let_change(&made)?;
                made
            }
            made => made?,
        };
        // Lists that came from the directory.
        for key in made.list_xattr(&self.cred) {
            made.remove_xattr(&self.cred, &key)?;
        }
        self.stand_at(name, made);
        Ok(())
    }

    /// Goes down to the directory `found`, which has this name, or takes the file.
    fn stand_at(&mut self, name: &[u8], found: InodeRef) {
        if found.is_dir() {
            self.taken = None;
            self.way.push(found);
            self.names.push(name.into());
        } else {
            self.taken = Some((name.into(), found));
        }
    }

    fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        let file = self.file()?;
        while !bytes.is_empty() {
            let written = file.write_at(&self.cred, offset, bytes)?;
            offset += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// The file at `path` from the top. Links are not followed.
    fn find(&self, path: &[u8]) -> Result<InodeRef, Errno> {
        let mut found = self.new.top().clone();
        for name in path.split(|byte| *byte == b'/') {
            if [&b""[..], b".", b".."].contains(&name) {
                return Err(Errno::EINVAL);
            }
            found = found.lookup(&self.cred, name)?;
        }
        Ok(found)
    }
}

fn kind(file_type: FileType, rdev: u64, target: &[u8]) -> Result<NewKind<'_>, Errno> {
    Ok(match file_type {
        FileType::Regular => NewKind::Regular,
        FileType::Directory => NewKind::Directory,
        FileType::Symlink => NewKind::Symlink(target),
        FileType::Fifo => NewKind::Fifo,
        FileType::Socket => NewKind::Socket,
        FileType::CharDevice => NewKind::CharDevice(rdev),
        FileType::BlockDevice => NewKind::BlockDevice(rdev),
    })
}
