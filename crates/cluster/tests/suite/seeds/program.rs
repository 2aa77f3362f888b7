//! Program: the calls of a node's programs, as its kernel makes requests of them, and what they answer.

use crate::fields;
use crate::history::call::{Answer, CONTRADICTION, Call, DIRS, Outcome, Path, SLOTS, Seen, Slot, Tree};
use crate::history::model::{EEXIST, EINVAL, ENOENT, ESTALE};
use crate::seeds::kernel::{Failure, Kernel, u32_at, u64_at};
use sluice_fuse::opcode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const O_RDWR: u32 = 2;
const O_CREAT_EXCL: u32 = 0o300;
const O_APPEND: u32 = 0o2000;
/// How often a path is walked again that leads to what is there no more.
const AGAIN: usize = 8;

struct Open {
    fh: u64,
    nodeid: u64,
    flags: u32,
    /// Past the page cache.
    is_direct: bool,
    is_locked: bool,
}

/// The programs of a node: one call at a time.
pub(crate) struct Programs {
    kernel: Arc<Kernel>,
    open: BTreeMap<Slot, Open>,
}

impl Programs {
    pub(crate) fn new(kernel: Arc<Kernel>) -> Programs {
        Programs { kernel, open: BTreeMap::new() }
    }

    /// The files that are open, and whether each is locked.
    pub(crate) fn open(&self) -> BTreeMap<Slot, bool> {
        self.open.iter().map(|(slot, open)| (*slot, open.is_locked)).collect()
    }

    /// Makes a call.
    pub(crate) fn call(&mut self, call: &Call) -> Outcome {
        for _ in 0..AGAIN {
            match self.perform(call) {
                Ok(answer) => return Some(Ok(answer)),
                Err(Failure::Dead) => return None,
                // The kernel's view of the path is old: it walks again, and believes nothing.
                Err(Failure::Errno(ESTALE)) if walks(call) => {
                    self.kernel.drop_caches(&self.open.values().map(|open| open.nodeid).collect());
                }
                Err(Failure::Errno(errno)) => return Some(Err(errno)),
            }
        }
        Some(Err(ESTALE))
    }

    fn perform(&mut self, call: &Call) -> Result<Answer, Failure> {
        let kernel = self.kernel.clone();
        match *call {
            Call::Make(slot, path, appends) => {
                self.close(slot)?;
                let dir = kernel.lock(kernel.walk(path.dir())?);
                if kernel.find(&dir, path.name())?.is_some() {
                    return Err(Failure::Errno(EEXIST));
                }
                let flags = O_RDWR | if appends { O_APPEND } else { 0 };
                let body = fields!(flags | O_CREAT_EXCL, 0o100_644_u32, 0o22_u32, 0_u32);
                let answer = kernel.ask(opcode::CREATE, dir.nodeid(), &named(&body, path.name()))?;
                let nodeid = kernel.learn(&dir, path.name(), &answer).unwrap_or_default();
                let (fh, is_direct) = opened(answer.body(), 128);
                self.open.insert(slot, Open { fh, nodeid, flags, is_direct, is_locked: false });
            }
            Call::Open(slot, path, appends) => {
                self.close(slot)?;
                let nodeid = self.find(path)?;
                if kernel.attr(nodeid)?.is_dir {
                    return Err(Failure::Errno(EINVAL));
                }
                let flags = O_RDWR | if appends { O_APPEND } else { 0 };
                let answer = kernel.ask(opcode::OPEN, nodeid, &fields!(flags, 0_u32))?;
                let (fh, is_direct) = opened(answer.body(), 0);
                self.open.insert(slot, Open { fh, nodeid, flags, is_direct, is_locked: false });
            }
            Call::Close(slot) => self.close(slot)?,
            Call::Write(slot, offset, bytes) => {
                let open = &self.open[&slot];
                let is_append = open.flags & O_APPEND != 0;
                let offset = if is_append { kernel.attr(open.nodeid)?.size } else { offset };
                kernel.write(open.nodeid, open.fh, open.flags, (offset, &bytes), open.is_direct)?;
            }
            Call::Read(slot) => {
                let open = &self.open[&slot];
                return Ok(Answer::Bytes(kernel.read(open.nodeid, open.fh, open.is_direct)?));
            }
            Call::Truncate(slot, size) => {
                const SIZE: u32 = 1 << 3;
                const FH: u32 = 1 << 6;
                let open = &self.open[&slot];
                let mut body = fields!(SIZE | FH, 0_u32, open.fh, size);
                body.resize(88, 0);
                let answer = kernel.ask(opcode::SETATTR, open.nodeid, &body);
                kernel.wrote(open.nodeid);
                answer?;
            }
            Call::Fsync(slot) => {
                let open = &self.open[&slot];
                drop(kernel.ask(opcode::FSYNC, open.nodeid, &fields!(open.fh, 0_u32, 0_u32))?);
            }
            Call::TryLock(slot) => {
                self.set_lock(slot, 1)?;
                self.open.get_mut(&slot).expect("it is open").is_locked = true;
            }
            Call::Unlock(slot) => {
                self.set_lock(slot, 2)?;
                self.open.get_mut(&slot).expect("it is open").is_locked = false;
            }
            Call::Stat(path) => return Ok(Answer::Attr(kernel.attr(self.find(path)?)?)),
            Call::Rename(old, new) => {
                let (from, to) = (kernel.walk(old.dir())?, kernel.walk(new.dir())?);
                let first = kernel.lock(from.min(to));
                let second = (from != to).then(|| kernel.lock(from.max(to)));
                let pick = |of: u64| {
                    if first.nodeid() == of { &first } else { second.as_ref().unwrap_or(&first) }
                };
                let moved = kernel.find(pick(from), old.name())?.ok_or(Failure::Errno(ENOENT))?;
                let replaced = kernel.find(pick(to), new.name())?;
                if replaced == Some(moved) {
                    // Nothing moves, and the kernel does not ask.
                    return Ok(Answer::Done);
                }
                let body = [old.name().as_bytes(), &[0], new.name().as_bytes(), &[0]].concat();
                let body = [fields!(to, 0_u32, 0_u32), body].concat();
                kernel.ask(opcode::RENAME2, from, &body)?;
                kernel.moved((from, old.name()), (to, new.name()));
                [Some(moved), replaced].into_iter().flatten().for_each(|nodeid| kernel.forget_attr(nodeid));
            }
            Call::Link(old, new) => {
                let target = self.find(old)?;
                let dir = kernel.lock(kernel.walk(new.dir())?);
                if kernel.find(&dir, new.name())?.is_some() {
                    return Err(Failure::Errno(EEXIST));
                }
                let answer = kernel.ask(opcode::LINK, dir.nodeid(), &named(&fields!(target), new.name()))?;
                kernel.forget_attr(target);
                kernel.learn(&dir, new.name(), &answer);
            }
            Call::Unlink(path) | Call::Rmdir(path) => {
                let dir = kernel.lock(kernel.walk(path.dir())?);
                let nodeid = kernel.find(&dir, path.name())?.ok_or(Failure::Errno(ENOENT))?;
                let code = if matches!(call, Call::Rmdir(_)) { opcode::RMDIR } else { opcode::UNLINK };
                kernel.ask(code, dir.nodeid(), &named(&[], path.name()))?;
                kernel.unlearn(&dir, path.name());
                kernel.forget_attr(nodeid);
            }
            Call::Mkdir(path) => {
                let dir = kernel.lock(kernel.walk(path.dir())?);
                if kernel.find(&dir, path.name())?.is_some() {
                    return Err(Failure::Errno(EEXIST));
                }
                let body = named(&fields!(0o755_u32, 0o22_u32), path.name());
                let answer = kernel.ask(opcode::MKDIR, dir.nodeid(), &body)?;
                kernel.learn(&dir, path.name(), &answer);
            }
            Call::DropCaches => kernel.drop_caches(&self.open.values().map(|open| open.nodeid).collect()),
            Call::Look => return self.look().map(Answer::Tree),
        }
        Ok(Answer::Done)
    }

    fn find(&self, path: Path) -> Result<u64, Failure> {
        let dir = self.kernel.lock(self.kernel.walk(path.dir())?);
        self.kernel.find(&dir, path.name())?.ok_or(Failure::Errno(ENOENT))
    }

    fn set_lock(&self, slot: Slot, kind: u32) -> Result<(), Failure> {
        const FLOCK: u32 = 1;
        let open = &self.open[&slot];
        let owner = open.fh | (self.kernel.machine + 1) << 32;
        let body = fields!(open.fh, owner, 0_u64, i64::MAX, kind, 1_u32, FLOCK, 0_u32);
        self.kernel.ask(opcode::SETLK, open.nodeid, &body).map(drop)
    }

    /// Closes the file that was open there.
    fn close(&mut self, slot: Slot) -> Result<(), Failure> {
        if !self.open.contains_key(&slot) {
            return Ok(());
        }
        let lives = |done: Result<(), Failure>| if done == Err(Failure::Dead) { done } else { Ok(()) };
        if self.open[&slot].is_locked {
            lives(self.set_lock(slot, 2))?;
        }
        let Some(open) = self.open.remove(&slot) else { return Ok(()) };
        let ask = |code, body: Vec<u8>| lives(self.kernel.ask(code, open.nodeid, &body).map(drop));
        // It may fail, as after a takeover: nothing stays open.
        ask(opcode::FLUSH, fields!(open.fh, 0_u64, open.fh))?;
        ask(opcode::RELEASE, fields!(open.fh, open.flags, 0_u32, 0_u64))
    }

    /// The whole tree. Nobody changes it meanwhile.
    fn look(&mut self) -> Result<Tree, Failure> {
        let mut tree = Tree::new();
        for dir in DIRS {
            let listed = self.kernel.list(self.kernel.walk(dir)?)?;
            let mut there = BTreeSet::new();
            for path in Path::all().filter(|path| path.dir() == dir) {
                let nodeid = match self.find(path) {
                    Err(Failure::Errno(ENOENT)) => continue,
                    found => found?,
                };
                there.insert(path.name().to_string());
                let attr = self.kernel.attr(nodeid)?;
                let seen = if attr.is_dir {
                    Seen::Dir
                } else {
                    self.perform(&Call::Open(SLOTS, path, false))?;
                    let open = &self.open[&SLOTS];
                    let bytes = self.kernel.read(nodeid, open.fh, open.is_direct)?;
                    self.close(SLOTS)?;
                    if bytes.len() as u64 != attr.size {
                        return Err(Failure::Errno(CONTRADICTION));
                    }
                    Seen::File(bytes, attr.nlink)
                };
                tree.insert(path, seen);
            }
            if listed != there {
                return Err(Failure::Errno(CONTRADICTION));
            }
        }
        Ok(tree)
    }
}

/// Whether a call follows a path.
fn walks(call: &Call) -> bool {
    !matches!(
        call,
        Call::Close(_)
            | Call::Write(..)
            | Call::Read(_)
            | Call::Truncate(..)
            | Call::Fsync(_)
            | Call::TryLock(_)
            | Call::Unlock(_)
    )
}

/// The handle, and whether it goes past the page cache, in an answer.
pub(crate) fn opened(body: &[u8], at: usize) -> (u64, bool) {
    const FOPEN_DIRECT_IO: u32 = 1;
    (u64_at(body, at), u32_at(body, at + 8) & FOPEN_DIRECT_IO != 0)
}

fn named(before: &[u8], name: &str) -> Vec<u8> {
    [before, name.as_bytes(), &[0]].concat()
}
