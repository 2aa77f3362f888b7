//! Model: what each call answers and changes, on the small state of [`World`].
//!
//! It is the specification: simple, without locks, without time. Which of two results is right where POSIX leaves
//! a choice is decided as Linux does.

use super::call::{Call, From, How, Lock};
use super::world::{Actor, Body, FileNode, Holders, Id, MountedFile, Open, ROOT_MOUNT, RangeOwner, World};
use sluice_vfs_sim::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// The answer of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Done,
    /// A descriptor, an offset, how much was written.
    Number(i64),
    /// The value that fills each block read.
    Data(Vec<u8>),
    Stat(Stat),
    Text(&'static str),
    /// A directory as a whole.
    Names(BTreeSet<&'static str>),
    /// So many entries of a directory, somewhere in it. Which they are is the file system's choice, so the names that
    /// it chose among belong to the answer: it changes when they do.
    Part(usize, BTreeMap<&'static str, Id>),
}

/// The attributes of `stat`, except times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stat {
    pub(super) inode: Id,
    pub(super) kind: ModelKind,
    pub(super) mode: u32,
    pub(super) links: u32,
    /// Blocks of a file, bytes of a symbolic link, names of a directory.
    pub(super) size: usize,
}

/// A type of file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelKind {
    File,
    Directory,
    Symlink,
}

pub(super) type ModelOutcome = Result<Value, Errno>;

impl World {
    /// Does `call` for `actor`, in one of the two processes.
    pub(super) fn perform(&mut self, actor: Actor, process: usize, call: &Call) -> ModelOutcome {
        let outcome = self.perform_now(actor, process, call);
        self.forget_unreachable();
        outcome
    }

    fn perform_now(&mut self, actor: Actor, process: usize, call: &Call) -> ModelOutcome {
        match *call {
            Call::Open(path, how) => self.open(actor, process, path, how),
            Call::Close(fd) => self.close(process, fd),
            Call::Dup(fd) => {
                let open = self.id_of(process, fd)?;
                Ok(self.install(process, open))
            }
            Call::Stat(path) => Ok(Value::Stat(self.stat(self.resolve(path, true)?))),
            Call::Lstat(path) => Ok(Value::Stat(self.stat(self.resolve(path, false)?))),
            Call::Fstat(fd) => Ok(Value::Stat(self.stat(self.opened(process, fd)?.place))),
            Call::Lseek(fd, offset, from) => self.lseek(process, fd, offset, from),
            Call::Read(fd, length) => {
                let offset = self.opened(process, fd)?.offset as usize;
                let data = self.read(process, fd, length, offset)?;
                self.opened_mut(process, fd)?.offset += data.len() as i64;
                Ok(Value::Data(data))
            }
            Call::Pread(fd, length, at) => self.read(process, fd, length, at).map(Value::Data),
            Call::Write(fd, length) => {
                let open = self.opened(process, fd)?.clone();
                let at = if open.append { self.stat(open.place).size } else { open.offset as usize };
                self.write(actor, process, fd, length, at)?;
                self.opened_mut(process, fd)?.offset = (at + length) as i64;
                Ok(Value::Number(length as i64))
            }
            Call::Pwrite(fd, length, at) => {
                self.write(actor, process, fd, length, at)?;
                Ok(Value::Number(length as i64))
            }
            Call::Truncate(path, size) => {
                let place = self.resolve(path, true)?;
                match &mut self.node_mut(place).body {
                    Body::File(blocks) => blocks.resize(size, 0),
                    Body::Directory(..) => return Err(Errno::EISDIR),
                    Body::Symlink(_) => return Err(Errno::EINVAL),
                }
                Ok(Value::Done)
            }
            Call::Ftruncate(fd, size) => {
                let open = self.opened(process, fd)?.clone();
                match &mut self.node_mut(open.place).body {
                    Body::File(blocks) if open.write => blocks.resize(size, 0),
                    _ => return Err(Errno::EINVAL),
                }
                Ok(Value::Done)
            }
            Call::Link(old, new) => self.link(old, new),
            Call::Unlink(path) => self.unlink(path),
            Call::Rename(old, new) => self.rename(old, new),
            Call::Mkdir(path) => {
                self.make(actor, path, 0o755, |above| Body::Directory(BTreeMap::new(), above))
            }
            Call::Symlink(target, path) => self.make(actor, path, 0o777, |_| Body::Symlink(target)),
            Call::Rmdir(path) => self.rmdir(path),
            Call::Readlink(path) => match self.node(self.resolve(path, false)?).body {
                Body::Symlink(target) => Ok(Value::Text(target)),
                _ => Err(Errno::EINVAL),
            },
            Call::Chmod(path, mode) => {
                let place = self.resolve(path, true)?;
                self.node_mut(place).mode = mode;
                Ok(Value::Done)
            }
            Call::Readdir(fd, most) => self.readdir(process, fd, most),
            Call::Posix(fd, lock, from, to) => {
                self.range_lock(process, fd, lock, from..to, |_| RangeOwner::Process(process))
            }
            Call::Ofd(fd, lock, from, to) => self.range_lock(process, fd, lock, from..to, RangeOwner::Open),
            Call::Flock(fd, lock) => {
                let open = self.id_of(process, fd)?;
                let inode = self.opens[&open].place.inode;
                let holders = self.flocks.entry(inode).or_default();
                check_lock(holders, open, lock)?;
                set_lock(holders, open, lock);
                Ok(Value::Done)
            }
            Call::Mount(path) => {
                let on = self.resolve(path, true)?;
                self.names(on)?;
                let mount = self.number(actor);
                self.mounts.insert(mount, (self.spare_roots[actor], on));
                Ok(Value::Done)
            }
            Call::Bind(from, to) => {
                let (from, on) = (self.resolve(from, true)?, self.resolve(to, true)?);
                self.names(on)?;
                self.names(from)?;
                let mount = self.number(actor);
                self.mounts.insert(mount, (from.inode, on));
                Ok(Value::Done)
            }
            Call::Umount(path) => {
                let at = self.resolve(path, true)?;
                if at.mount == ROOT_MOUNT || self.mounts[&at.mount].0 != at.inode {
                    return Err(Errno::EINVAL);
                }
                let stood_on = self.mounts.values().any(|(_, on)| on.mount == at.mount);
                if stood_on || self.opens.values().any(|open| open.place.mount == at.mount) {
                    return Err(Errno::EBUSY);
                }
                self.mounts.remove(&at.mount);
                Ok(Value::Done)
            }
        }
    }

    fn id_of(&self, process: usize, fd: i32) -> Result<Id, Errno> {
        self.processes[process].get(&fd).copied().ok_or(Errno::EBADF)
    }

    fn opened(&self, process: usize, fd: i32) -> Result<&Open, Errno> {
        Ok(&self.opens[&self.id_of(process, fd)?])
    }

    fn opened_mut(&mut self, process: usize, fd: i32) -> Result<&mut Open, Errno> {
        let open = self.id_of(process, fd)?;
        Ok(self.opens.get_mut(&open).expect("descriptors name what is open"))
    }

    /// Gives `open` the lowest free descriptor.
    fn install(&mut self, process: usize, open: Id) -> Value {
        let table = &mut self.processes[process];
        let lowest = (0..).find(|fd| !table.contains_key(fd)).expect("few are open");
        table.insert(lowest, open);
        Value::Number(lowest.into())
    }

    pub(super) fn stat(&self, place: MountedFile) -> Stat {
        let node = self.node(place);
        let is_dir = |inode: &&Id| matches!(self.inodes[inode].body, Body::Directory(..));
        let (kind, links, size) = match &node.body {
            Body::File(blocks) => (ModelKind::File, node.links, blocks.len()),
            Body::Symlink(target) => (ModelKind::Symlink, node.links, target.len()),
            Body::Directory(names, _) => {
                let directories = names.values().filter(is_dir).count() as u32;
                (ModelKind::Directory, if node.links == 0 { 0 } else { 2 + directories }, names.len())
            }
        };
        Stat { inode: place.inode, kind, mode: node.mode, links, size }
    }

    fn open(&mut self, actor: Actor, process: usize, path: &'static str, how: How) -> ModelOutcome {
        let place = match self.find_to_open(path, how) {
            Ok(place) => {
                let is_dir = self.is_dir(place);
                if how.create && how.exclusive {
                    return Err(Errno::EEXIST);
                }
                if is_dir && (how.create || how.write) {
                    return Err(Errno::EISDIR);
                }
                if how.directory && !is_dir {
                    return Err(Errno::ENOTDIR);
                }
                if let Body::File(blocks) = &mut self.node_mut(place).body
                    && how.truncate
                {
                    blocks.clear();
                }
                place
            }
            Err(Errno::ENOENT) if how.create => {
                let path = self.target_of(path).unwrap_or(path);
                self.make_at(actor, path, 0o644, |_| Body::File(Vec::new()))?
            }
            Err(error) => return Err(error),
        };
        let open = self.number(actor);
        self.opens.insert(open, Open { place, offset: 0, write: how.write, append: how.append });
        Ok(self.install(process, open))
    }

    /// Where the symbolic link at `path` leads, if one is there.
    fn target_of(&self, path: &'static str) -> Option<&'static str> {
        match self.node(self.resolve(path, false).ok()?).body {
            Body::Symlink(target) => Some(target),
            _ => None,
        }
    }

    fn find_to_open(&self, path: &'static str, how: How) -> Result<MountedFile, Errno> {
        self.resolve(path, !(how.create && how.exclusive))
    }

    fn close(&mut self, process: usize, fd: i32) -> ModelOutcome {
        let open = self.id_of(process, fd)?;
        let inode = self.opens[&open].place.inode;
        self.processes[process].remove(&fd);
        for (_, holders) in self.ranges.iter_mut().filter(|((of, _), _)| *of == inode) {
            holders.remove(&RangeOwner::Process(process));
        }
        Ok(Value::Done)
    }

    fn lseek(&mut self, process: usize, fd: i32, offset: i64, from: From) -> ModelOutcome {
        let open = self.opened(process, fd)?;
        let base = match from {
            From::Start => 0,
            From::Here => open.offset,
            From::End => self.stat(open.place).size as i64,
        };
        let offset = base + offset;
        if offset < 0 {
            return Err(Errno::EINVAL);
        }
        self.opened_mut(process, fd)?.offset = offset;
        Ok(Value::Number(offset))
    }

    fn read(&self, process: usize, fd: i32, length: usize, at: usize) -> Result<Vec<u8>, Errno> {
        match &self.node(self.opened(process, fd)?.place).body {
            Body::File(blocks) => Ok(blocks.iter().skip(at).take(length).copied().collect()),
            _ => Err(Errno::EISDIR),
        }
    }

    fn write(
        &mut self,
        actor: Actor,
        process: usize,
        fd: i32,
        length: usize,
        at: usize,
    ) -> Result<(), Errno> {
        let open = self.opened(process, fd)?.clone();
        match &mut self.node_mut(open.place).body {
            Body::File(blocks) if open.write => {
                blocks.resize(blocks.len().max(at + length), 0);
                (at..at + length).for_each(|block| blocks[block] = fill_of(actor, block));
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// Makes `path` what `body` says, given the number of the directory.
    fn make(
        &mut self,
        actor: Actor,
        path: &'static str,
        mode: u32,
        body: impl FnOnce(Id) -> Body,
    ) -> ModelOutcome {
        self.make_at(actor, path, mode, body).map(|_| Value::Done)
    }

    fn make_at(
        &mut self,
        actor: Actor,
        path: &'static str,
        mode: u32,
        body: impl FnOnce(Id) -> Body,
    ) -> Result<MountedFile, Errno> {
        let last = self.parent_of(path)?;
        if self.names(last.dir)?.contains_key(last.name) {
            return Err(Errno::EEXIST);
        }
        let inode = self.number(actor);
        self.inodes.insert(inode, FileNode { body: body(last.dir.inode), mode, links: 1 });
        self.names_mut(last.dir).insert(last.name, inode);
        Ok(MountedFile { inode, ..last.dir })
    }

    fn link(&mut self, old: &'static str, new: &'static str) -> ModelOutcome {
        let source = self.resolve(old, false)?;
        self.link_found(source, self.is_dir(source), new)
    }

    /// As `link`, of a file that was found, it may be some time ago.
    pub(super) fn link_found(
        &mut self,
        source: MountedFile,
        is_dir: bool,
        new: &'static str,
    ) -> ModelOutcome {
        let last = self.parent_of(new)?;
        if self.names(last.dir)?.contains_key(last.name) {
            return Err(Errno::EEXIST);
        }
        if source.mount != last.dir.mount {
            return Err(Errno::EXDEV);
        }
        if is_dir {
            return Err(Errno::EPERM);
        }
        match self.inodes.get_mut(&source.inode) {
            Some(node) if node.links > 0 => node.links += 1,
            _ => return Err(Errno::ENOENT),
        }
        self.names_mut(last.dir).insert(last.name, source.inode);
        Ok(Value::Done)
    }

    fn unlink(&mut self, path: &'static str) -> ModelOutcome {
        let last = self.parent_of(path)?;
        let inode = *self.names(last.dir)?.get(last.name).ok_or(Errno::ENOENT)?;
        let victim = MountedFile { inode, ..last.dir };
        if self.is_dir(victim) {
            return Err(Errno::EISDIR);
        }
        self.names_mut(last.dir).remove(last.name);
        self.node_mut(victim).links -= 1;
        Ok(Value::Done)
    }

    fn rmdir(&mut self, path: &'static str) -> ModelOutcome {
        let last = self.parent_of(path)?;
        let inode = *self.names(last.dir)?.get(last.name).ok_or(Errno::ENOENT)?;
        self.bury(MountedFile { inode, ..last.dir })?;
        self.names_mut(last.dir).remove(last.name);
        Ok(Value::Done)
    }

    /// Ends an empty directory.
    fn bury(&mut self, dir: MountedFile) -> Result<(), Errno> {
        let empty = self.names(dir)?.is_empty();
        if self.is_mount_point(dir.inode) {
            return Err(Errno::EBUSY);
        }
        if !empty {
            return Err(Errno::ENOTEMPTY);
        }
        self.node_mut(dir).links = 0;
        Ok(())
    }

    fn rename(&mut self, old: &'static str, new: &'static str) -> ModelOutcome {
        let (from, to) = (self.parent_of(old)?, self.parent_of(new)?);
        if from.dir.mount != to.dir.mount {
            return Err(Errno::EXDEV);
        }
        let source = *self.names(from.dir)?.get(from.name).ok_or(Errno::ENOENT)?;
        let target = self.names(to.dir)?.get(to.name).copied();
        if from.dir != to.dir {
            if self.is_above(source, to.dir.inode) {
                return Err(Errno::EINVAL);
            }
            if target.is_some_and(|target| self.is_above(target, from.dir.inode)) {
                return Err(Errno::ENOTEMPTY);
            }
        }
        if target == Some(source) {
            return Ok(Value::Done);
        }
        let is_dir = |inode: Id| matches!(self.inodes[&inode].body, Body::Directory(..));
        if let Some(target) = target {
            match (is_dir(source), is_dir(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        if self.is_mount_point(source) || target.is_some_and(|target| self.is_mount_point(target)) {
            return Err(Errno::EBUSY);
        }
        if let Some(inode) = target {
            let victim = MountedFile { inode, ..to.dir };
            if is_dir(inode) {
                self.bury(victim)?;
            } else {
                self.node_mut(victim).links -= 1;
            }
        }
        self.names_mut(from.dir).remove(from.name);
        self.names_mut(to.dir).insert(to.name, source);
        if let Body::Directory(_, above) = &mut self.inodes.get_mut(&source).expect("it has a name").body {
            *above = to.dir.inode;
        }
        Ok(Value::Done)
    }

    fn readdir(&mut self, process: usize, fd: i32, most: usize) -> ModelOutcome {
        let open = self.opened(process, fd)?.clone();
        let names = self.names(open.place)?.clone();
        // "." and ".." are entries too.
        let left = (names.len() + 2).saturating_sub(open.offset as usize);
        let count = left.min(most);
        self.opened_mut(process, fd)?.offset += count as i64;
        if open.offset == 0 && count == left {
            return Ok(Value::Names(names.into_keys().chain([".", ".."]).collect()));
        }
        Ok(Value::Part(count, names))
    }

    fn range_lock(
        &mut self,
        process: usize,
        fd: i32,
        lock: Lock,
        blocks: std::ops::Range<u8>,
        owner: impl FnOnce(Id) -> RangeOwner,
    ) -> ModelOutcome {
        let open = self.id_of(process, fd)?;
        let (inode, owner) = (self.opens[&open].place.inode, owner(open));
        for block in blocks.clone() {
            check_lock(self.ranges.entry((inode, block)).or_default(), owner, lock)?;
        }
        for block in blocks {
            set_lock(self.ranges.entry((inode, block)).or_default(), owner, lock);
        }
        Ok(Value::Done)
    }
}

fn check_lock<O: PartialEq>(holders: &Holders<O>, owner: O, lock: Lock) -> Result<(), Errno> {
    let in_the_way = |(holder, exclusive): (&O, &bool)| {
        *holder != owner && (*exclusive && lock == Lock::Shared || lock == Lock::Exclusive)
    };
    if holders.iter().any(in_the_way) { Err(Errno::EAGAIN) } else { Ok(()) }
}

fn set_lock<O: Ord>(holders: &mut Holders<O>, owner: O, lock: Lock) {
    match lock {
        Lock::Unlock => holders.remove(&owner),
        Lock::Shared => holders.insert(owner, false),
        Lock::Exclusive => holders.insert(owner, true),
    };
}

/// The byte with which `actor` fills a block; it shows the last writer and the block.
pub(super) fn fill_of(actor: Actor, block: usize) -> u8 {
    [b'a' + block as u8, b'A', b'B'][actor]
}
