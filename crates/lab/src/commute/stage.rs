//! Stage: the state of a case made for real, on which calls are done and which is compared with the model.

use super::call::{BLOCK, Call, From, How, Lock};
use super::cases::{CaseState, DESCRIPTORS, LATE, LOCKS, TREE};
use super::model::{ModelKind, ModelOutcome, Stat, Value, fill_of};
use super::world::{Actor, Body, Id, MountedFile, ROOT_MOUNT, World};
use crate::simulated_fs::On;
use sluice_machine::cell::OwnLine;
use sluice_sync_sim::Arc;
use sluice_vfs_sim::{
    Cred, Errno, Fd, FileLock, FileType, FlockOperation, Fs, LockType, MountFlags, OpenFlags, Options,
    Process, Superblock, UmountFlags, Whence,
};

/// A file system with everything that a case needs.
pub(super) struct Stage {
    processes: [OwnLine<Process>; 2],
    /// For what is done beside the case.
    helpers: [OwnLine<Process>; 2],
    /// File systems for the actors to mount.
    spares: [OwnLine<Arc<Superblock>>; 3],
    /// All file systems, until everything else has let go of them: one over a store wants to end outside of any destructor.
    all: Vec<Arc<Superblock>>,
}

impl Stage {
    /// Makes the state.
    ///
    /// # Errors
    /// Text, if the file system refuses what the model allows.
    pub(super) fn set_up(state: CaseState, on: On) -> Result<Stage, String> {
        let new = || on.superblock(Options::default()).map_err(|error| format!("setting up: {error}"));
        let all = [new()?, new()?, new()?, new()?];
        let [root, spares @ ..] = all.clone();
        let fs = Fs::with_superblock(root);
        let process = || OwnLine(fs.process(Cred::root()));
        let mut stage = Stage {
            processes: [process(), process()],
            helpers: [process(), process()],
            spares: spares.map(OwnLine),
            all: all.into(),
        };
        stage.do_all(0, TREE)?;
        stage.do_all(0, DESCRIPTORS)?;
        match state {
            CaseState::Forked => stage.processes[1] = OwnLine(stage.processes[0].fork()),
            CaseState::OneProcess => {}
            CaseState::Apart | CaseState::Locked => stage.do_all(1, DESCRIPTORS)?,
        }
        if state == CaseState::Locked {
            LOCKS.iter().try_for_each(|(process, call)| stage.do_all(*process, &[*call]))?;
        }
        stage.do_all(0, LATE)?;
        for helper in &stage.helpers {
            let work = format!("/work{}", helper.pid());
            helper.mkdir(work, 0o755).map_err(|error| format!("setting up: {error}"))?;
        }
        Ok(stage)
    }

    /// Takes everything apart.
    pub(super) fn end(self) {
        let Stage { processes, helpers, spares, all } = self;
        drop((processes, helpers, spares));
        all.iter().for_each(|superblock| superblock.settle());
    }

    fn do_all(&self, process: usize, calls: &[Call]) -> Result<(), String> {
        calls.iter().try_for_each(|call| match self.perform(0, process, call) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("setting up: {call}: {error}")),
        })
    }

    /// Does a little of everything elsewhere, so that what a CPU makes once it has made.
    pub(super) fn warm_up(&self, actor: Actor) -> Result<(), Errno> {
        let helper = &self.helpers[actor - 1];
        let path = |name: &str| format!("/work{}/{name}", helper.pid());
        for _ in 0..2 {
            let fd = helper.open(path("a"), OpenFlags::RDWR | OpenFlags::CREAT, 0o644)?;
            helper.write(fd, &[1; 2 * BLOCK])?;
            helper.pread(fd, &mut [0; BLOCK], 0)?;
            helper.flock(fd, FlockOperation::Exclusive)?;
            helper.ofd_setlk(fd, &FileLock::range(LockType::Write, 0, 1))?;
            helper.fcntl_setlk(fd, &FileLock::range(LockType::Read, 2, 1))?;
            helper.link(path("a"), path("b"))?;
            helper.rename(path("b"), path("c"))?;
            helper.unlink(path("a"))?;
            helper.unlink(path("c"))?;
            helper.close(fd)?;
            helper.mkdir(path("d"), 0o755)?;
            helper.rmdir(path("d"))?;
        }
        Ok(())
    }

    /// Does `call` for `actor` in one of the two processes.
    pub(super) fn perform(&self, actor: Actor, process: usize, call: &Call) -> Result<CallAnswer, Errno> {
        let process = &*self.processes[process];
        let bytes = |blocks: usize| blocks * BLOCK;
        let offset = |blocks: usize| (blocks * BLOCK) as i64;
        let done = |()| CallAnswer::Done;
        match *call {
            Call::Open(path, how) => {
                process.open(path, flags(how), 0o666).map(|fd| CallAnswer::Number(fd.0.into()))
            }
            Call::Close(fd) => process.close(Fd(fd)).map(done),
            Call::Dup(fd) => process.dup(Fd(fd)).map(|fd| CallAnswer::Number(fd.0.into())),
            Call::Stat(path) => process.stat(path).map(|stat| CallAnswer::Stat(told(&stat))),
            Call::Lstat(path) => process.lstat(path).map(|stat| CallAnswer::Stat(told(&stat))),
            Call::Fstat(fd) => process.fstat(Fd(fd)).map(|stat| CallAnswer::Stat(told(&stat))),
            Call::Lseek(fd, by, from) => {
                let whence = match from {
                    From::Start => Whence::Set,
                    From::Here => Whence::Cur,
                    From::End => Whence::End,
                };
                process.lseek(Fd(fd), by * BLOCK as i64, whence).map(|at| CallAnswer::Bytes(at as usize))
            }
            Call::Read(fd, length) => {
                let mut data = vec![0; bytes(length)];
                let count = process.read(Fd(fd), &mut data)?;
                data.truncate(count);
                Ok(CallAnswer::Data(data))
            }
            Call::Pread(fd, length, at) => {
                let mut data = vec![0; bytes(length)];
                let count = process.pread(Fd(fd), &mut data, offset(at))?;
                data.truncate(count);
                Ok(CallAnswer::Data(data))
            }
            Call::Write(fd, length) => {
                // Setting up fills each block with a letter of its own.
                let data: Vec<u8> = (0..bytes(length)).map(|at| fill_of(actor, at / BLOCK)).collect();
                process.write(Fd(fd), &data).map(CallAnswer::Bytes)
            }
            Call::Pwrite(fd, length, at) => {
                let data = vec![fill_of(actor, at); bytes(length)];
                process.pwrite(Fd(fd), &data, offset(at)).map(CallAnswer::Bytes)
            }
            Call::Truncate(path, size) => process.truncate(path, offset(size)).map(done),
            Call::Ftruncate(fd, size) => process.ftruncate(Fd(fd), offset(size)).map(done),
            Call::Link(old, new) => process.link(old, new).map(done),
            Call::Unlink(path) => process.unlink(path).map(done),
            Call::Rename(old, new) => process.rename(old, new).map(done),
            Call::Mkdir(path) => process.mkdir(path, 0o777).map(done),
            Call::Rmdir(path) => process.rmdir(path).map(done),
            Call::Symlink(target, path) => process.symlink(target, path).map(done),
            Call::Readlink(path) => {
                process.readlink(path).map(|to| CallAnswer::Text(to.display().to_string()))
            }
            Call::Chmod(path, mode) => process.chmod(path, mode).map(done),
            Call::Readdir(fd, most) => process.getdents(Fd(fd), most).map(|entries| {
                CallAnswer::Names(
                    entries.iter().flat_map(|entry| entry.name.to_str().map(str::to_owned)).collect(),
                )
            }),
            Call::Posix(fd, lock, from, to) => process
                .fcntl_setlk(Fd(fd), &FileLock::range(lock_type(lock), from.into(), (to - from).into()))
                .map(done),
            Call::Ofd(fd, lock, from, to) => process
                .ofd_setlk(Fd(fd), &FileLock::range(lock_type(lock), from.into(), (to - from).into()))
                .map(done),
            Call::Flock(fd, lock) => {
                let operation = match lock {
                    Lock::Shared => FlockOperation::Shared,
                    Lock::Exclusive => FlockOperation::Exclusive,
                    Lock::Unlock => FlockOperation::Unlock,
                };
                process.flock(Fd(fd), operation).map(done)
            }
            Call::Mount(path) => {
                process.mount(self.spares[actor].0.clone(), path, MountFlags::empty()).map(done)
            }
            Call::Bind(from, to) => process.bind(from, to, MountFlags::empty()).map(done),
            Call::Umount(path) => process.umount(path, UmountFlags::empty()).map(done),
        }
    }

    /// Differences from the `world` of the model; empty if there are none.
    pub(super) fn differences(&self, world: &World) -> Vec<String> {
        let mut found = Vec::new();
        let top = MountedFile { mount: ROOT_MOUNT, inode: 0 };
        self.compare_directory(world, "", top, &mut found);
        for (process, descriptors) in world.processes.iter().enumerate() {
            // In a single process the second one has nothing.
            for (&fd, open) in descriptors {
                self.compare_descriptor(world, process, fd, *open, &mut found);
            }
        }
        found
    }

    fn compare_directory(&self, world: &World, path: &str, dir: MountedFile, found: &mut Vec<String>) {
        let Body::Directory(names, _) = &world.node(dir).body else { return };
        for &name in names.keys() {
            let path = format!("{path}/{name}");
            let place = world.child(dir, name).expect("it is listed");
            let expected = world.stat(place);
            match self.helpers[0].lstat(&path).map(|stat| told(&stat)) {
                Ok(stat) if stat.is(&expected) => {}
                other => found.push(format!("lstat({path}) is {other:?}, not {expected:?}")),
            }
            match &world.node(place).body {
                Body::File(blocks) => match self.helpers[0].fs().read(&path) {
                    Ok(data) if is_filled(&data, blocks) => {}
                    _ => found.push(format!("{path} does not hold {blocks:?}")),
                },
                // A directory that is bound below itself has no end.
                Body::Directory(..) if path.len() < 8 => self.compare_directory(world, &path, place, found),
                _ => {}
            }
        }
        let listed = self.helpers[0].fs().read_dir(if path.is_empty() { "/" } else { path });
        let helpers = if path.is_empty() { self.helpers.len() } else { 0 };
        if !listed.is_ok_and(|entries| entries.count() == names.len() + helpers) {
            found.push(format!("{path}/ does not list {:?}", names.keys()));
        }
    }

    fn compare_descriptor(&self, world: &World, process: usize, fd: i32, open: Id, found: &mut Vec<String>) {
        let expected = &world.opens[&open];
        let stat = self.processes[process].fstat(Fd(fd)).map(|stat| told(&stat));
        if !stat.as_ref().is_ok_and(|stat| stat.is(&world.stat(expected.place))) {
            found.push(format!("fstat({fd}) of process {process} is {stat:?}"));
        }
        let at = self.processes[process].lseek(Fd(fd), 0, Whence::Cur);
        // Positions in directories are the file system's own.
        if !world.is_dir(expected.place) && at != Ok(expected.offset as u64 * BLOCK as u64) {
            found.push(format!("descriptor {fd} of process {process} is at {at:?}, not {}", expected.offset));
        }
    }
}

/// The answer of a call in the file system's terms.
#[derive(Clone, Debug)]
pub(super) enum CallAnswer {
    Done,
    Number(i64),
    Bytes(usize),
    Data(Vec<u8>),
    Stat(Told),
    Text(String),
    Names(Vec<String>),
}

/// The attributes that `stat` returned.
#[derive(Clone, Debug)]
pub(super) struct Told {
    kind: Option<ModelKind>,
    mode: u32,
    links: u32,
    size: u64,
}

impl Told {
    /// Whether the file had no name any more.
    #[cfg(test)]
    pub(super) fn has_no_name(&self) -> bool {
        self.links == 0
    }

    fn is(&self, expected: &Stat) -> bool {
        let size = match expected.kind {
            ModelKind::File => Some(expected.size * BLOCK),
            ModelKind::Symlink => Some(expected.size),
            // The size of a directory is unspecified.
            ModelKind::Directory => None,
        };
        self.kind == Some(expected.kind)
            && self.mode == expected.mode
            && self.links == expected.links
            && size.is_none_or(|size| size as u64 == self.size)
    }
}

fn told(stat: &sluice_vfs_sim::Stat) -> Told {
    let kind = match stat.file_type() {
        FileType::Regular => Some(ModelKind::File),
        FileType::Directory => Some(ModelKind::Directory),
        FileType::Symlink => Some(ModelKind::Symlink),
        _ => None,
    };
    Told { kind, mode: stat.mode & 0o7777, links: stat.nlink, size: stat.size }
}

/// Whether the file system answered what the model answers.
pub(super) fn agrees(answer: &Result<CallAnswer, Errno>, outcome: &ModelOutcome) -> bool {
    match (answer, outcome) {
        (Err(error), Err(expected)) => error == expected,
        (Ok(CallAnswer::Done), Ok(Value::Done)) => true,
        (Ok(CallAnswer::Number(number)), Ok(Value::Number(expected))) => number == expected,
        (Ok(CallAnswer::Bytes(bytes)), Ok(Value::Number(blocks))) => *bytes as i64 == blocks * BLOCK as i64,
        (Ok(CallAnswer::Data(data)), Ok(Value::Data(blocks))) => is_filled(data, blocks),
        (Ok(CallAnswer::Stat(told)), Ok(Value::Stat(expected))) => told.is(expected),
        (Ok(CallAnswer::Text(text)), Ok(Value::Text(expected))) => text == expected,
        (Ok(CallAnswer::Names(names)), Ok(Value::Names(expected))) => {
            names.len() == expected.len() && names.iter().all(|name| expected.contains(name.as_str()))
        }
        (Ok(CallAnswer::Names(names)), Ok(Value::Part(count, _))) => names.len() == *count,
        _ => false,
    }
}

/// Whether each block of `data` is filled with what `blocks` says.
fn is_filled(data: &[u8], blocks: &[u8]) -> bool {
    data.len() == blocks.len() * BLOCK
        && data.chunks(BLOCK).zip(blocks).all(|(chunk, fill)| chunk.iter().all(|byte| byte == fill))
}

fn flags(how: How) -> OpenFlags {
    let mut flags = if how.write { OpenFlags::RDWR } else { OpenFlags::empty() };
    for (on, flag) in [
        (how.create, OpenFlags::CREAT),
        (how.exclusive, OpenFlags::EXCL),
        (how.truncate, OpenFlags::TRUNC),
        (how.append, OpenFlags::APPEND),
        (how.directory, OpenFlags::DIRECTORY),
    ] {
        flags.set(flag, on);
    }
    flags
}

fn lock_type(lock: Lock) -> LockType {
    match lock {
        Lock::Shared => LockType::Read,
        Lock::Exclusive => LockType::Write,
        Lock::Unlock => LockType::Unlock,
    }
}
