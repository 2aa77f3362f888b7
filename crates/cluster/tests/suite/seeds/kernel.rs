//! Kernel: the client side of FUSE as a node's machine has it, played: what it asks, what it caches, what it drops when it is told.
//!
//! # Theory
//! As Linux does it: names, attributes and pages are kept without a time limit. A name is looked up, and made or removed, with its
//! directory locked, and a notice about a name waits for that lock. Attributes that were asked for before a notice are not kept.
//! After "look every name up again" (the *epoch*) no name is believed that was asked for earlier. A page that is read is locked until the
//! answer was taken in, as is one that is written and was not there, and a notice about it waits for that. An answer wakes the program that
//! asked, which takes it in itself; a notice is taken in when the sender's call returns.

use crate::history::call::Attr;
use crate::history::model::ENOENT;
use crate::seeds::Mutant;
use sluice_cluster::Device;
use sluice_fuse::opcode;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

const ENODEV: i32 = 19;
const ROOT: u64 = 1;
const HEADER: usize = 40;
const PAGE: i64 = 4096;

/// Why a call has no answer: an error, or the machine died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Errno(i32),
    Dead,
}

/// A request that was answered.
pub(crate) struct Answered {
    body: Vec<u8>,
    /// The version that the kernel had been told when it asked.
    version: u64,
    epoch: u64,
}

#[derive(Default)]
struct State {
    /// Requests that nobody has read.
    asked: VecDeque<Vec<u8>>,
    waiting: BTreeSet<u64>,
    answers: HashMap<u64, Vec<u8>>,
    last: u64,
    is_gone: bool,
    /// Node, and the epoch in which it was asked for.
    entries: HashMap<(u64, String), (u64, u64)>,
    attrs: HashMap<u64, Attr>,
    pages: HashMap<u64, Vec<u8>>,
    /// When a node was last told of.
    told: HashMap<u64, u64>,
    version: u64,
    epoch: u64,
    locked: BTreeSet<u64>,
    /// Nodes whose page a program reads or writes.
    locked_pages: BTreeSet<u64>,
    lookups: BTreeMap<u64, u64>,
}

/// A machine's kernel, with one mount.
pub(crate) struct Kernel {
    /// Tells what is told apart by chance from that of other machines.
    pub(crate) machine: u64,
    state: Mutex<State>,
    changed: Condvar,
    mutant: Option<Mutant>,
}

/// Unlocks a directory.
pub(crate) struct Locked<'k>(&'k Kernel, u64);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.state().locked.remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl Locked<'_> {
    /// Which directory.
    pub(crate) fn nodeid(&self) -> u64 {
        self.1
    }
}

/// Unlocks the page of a node.
struct LockedPage<'k>(&'k Kernel, u64);

impl Drop for LockedPage<'_> {
    fn drop(&mut self) {
        self.0.state().locked_pages.remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl Answered {
    /// The bytes behind the header.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(number(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(number(bytes, at))
}

fn attr_at(bytes: &[u8], at: usize) -> Attr {
    let mode = u32_at(bytes, at + 60);
    Attr { size: u64_at(bytes, at + 8), nlink: u32_at(bytes, at + 64), is_dir: mode & 0o170_000 == 0o040_000 }
}

/// Fields one after the other.
#[macro_export]
macro_rules! fields {
    ($($field:expr),*) => {{
        let mut bytes = Vec::new();
        $(bytes.extend_from_slice(&$field.to_ne_bytes());)*
        bytes
    }};
}

impl Kernel {
    /// With a mount whose first request is asked already.
    pub(crate) fn new(machine: u64, mutant: Option<Mutant>) -> Arc<Kernel> {
        let kernel = Kernel { machine, state: Mutex::default(), changed: Condvar::new(), mutant };
        let mut init = fields!(7_u32, 45_u32, 0_u32, u32::MAX, u32::MAX);
        init.resize(64, 0);
        kernel.push(opcode::INIT, 0, &init);
        Arc::new(kernel)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The machine dies.
    pub(crate) fn die(&self) {
        self.state().is_gone = true;
        self.changed.notify_all();
    }

    fn push(&self, code: u32, nodeid: u64, body: &[u8]) -> u64 {
        let mut state = self.state();
        state.last += 2;
        let unique = state.last;
        let len = (HEADER + body.len()) as u32;
        let mut message = fields!(len, code, unique, nodeid, 0_u32, 0_u32, 1_u32, 0_u32);
        message.extend_from_slice(body);
        state.asked.push_back(message);
        if !matches!(code, opcode::FORGET | opcode::INIT) {
            state.waiting.insert(unique);
        }
        self.changed.notify_all();
        unique
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&self, code: u32, nodeid: u64, body: &[u8]) -> Result<Answered, Failure> {
        let (version, epoch) = {
            let state = self.state();
            (state.version, state.epoch)
        };
        let unique = self.push(code, nodeid, body);
        let mut state = self.state();
        loop {
            if state.is_gone {
                return Err(Failure::Dead);
            }
            if let Some(answer) = state.answers.remove(&unique) {
                state.waiting.remove(&unique);
                let error = u32_at(&answer, 4).cast_signed();
                return match error {
                    0 => Ok(Answered { body: answer[16..].to_vec(), version, epoch }),
                    error => Err(Failure::Errno(-error)),
                };
            }
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Locks a directory for a program.
    pub(crate) fn lock(&self, dir: u64) -> Locked<'_> {
        let mut state = self.state();
        while !state.locked.insert(dir) {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        Locked(self, dir)
    }

    /// The node that a name in a locked directory leads to.
    pub(crate) fn find(&self, dir: &Locked<'_>, name: &str) -> Result<Option<u64>, Failure> {
        {
            let state = self.state();
            if let Some(&(nodeid, epoch)) = state.entries.get(&(dir.1, name.to_string()))
                && (epoch == state.epoch || self.mutant == Some(Mutant::StaleNames))
            {
                return Ok(Some(nodeid).filter(|nodeid| *nodeid != 0));
            }
        }
        let answer = self.ask(opcode::LOOKUP, dir.1, &[name.as_bytes(), &[0]].concat())?;
        Ok(self.learn(dir, name, &answer))
    }

    /// The node of a directory below the root.
    pub(crate) fn walk(&self, dir: &str) -> Result<u64, Failure> {
        let root = self.lock(ROOT);
        self.find(&root, dir)?.ok_or(Failure::Errno(ENOENT))
    }

    /// Takes in an answer that begins with what a name leads to.
    pub(crate) fn learn(&self, dir: &Locked<'_>, name: &str, answer: &Answered) -> Option<u64> {
        let mut state = self.state();
        let nodeid = u64_at(&answer.body, 0);
        state.entries.insert((dir.1, name.to_string()), (nodeid, answer.epoch));
        if nodeid == 0 {
            return None;
        }
        if nodeid != ROOT {
            *state.lookups.entry(nodeid).or_default() += 1;
        }
        keep_attr(&mut state, nodeid, answer, 40);
        Some(nodeid)
    }

    /// A name in a locked directory is gone, or leads elsewhere.
    pub(crate) fn unlearn(&self, dir: &Locked<'_>, name: &str) {
        self.state().entries.remove(&(dir.1, name.to_string()));
    }

    /// A name moves.
    pub(crate) fn moved(&self, old: (u64, &str), new: (u64, &str)) {
        let mut state = self.state();
        if let Some(entry) = state.entries.remove(&(old.0, old.1.to_string())) {
            state.entries.insert((new.0, new.1.to_string()), entry);
        }
    }

    /// Attributes are not believed any more, because of what this kernel did itself.
    pub(crate) fn forget_attr(&self, nodeid: u64) {
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        state.told.insert(nodeid, version);
        state.attrs.remove(&nodeid);
    }

    /// The attributes of a node.
    pub(crate) fn attr(&self, nodeid: u64) -> Result<Attr, Failure> {
        if let Some(attr) = self.state().attrs.get(&nodeid) {
            return Ok(*attr);
        }
        let answer = self.ask(opcode::GETATTR, nodeid, &[0; 16])?;
        keep_attr(&mut self.state(), nodeid, &answer, 16);
        Ok(attr_at(&answer.body, 16))
    }

    /// The contents of a file, which has at most a page.
    pub(crate) fn read(&self, nodeid: u64, fh: u64, is_direct: bool) -> Result<Vec<u8>, Failure> {
        if !is_direct && let Some(bytes) = self.state().pages.get(&nodeid) {
            return Ok(bytes.clone());
        }
        let body = fields!(fh, 0_u64, PAGE as u32, 0_u32, 0_u64, 0_u32, 0_u32);
        let _locked = (!is_direct).then(|| self.lock_page(nodeid));
        if !is_direct && let Some(bytes) = self.state().pages.get(&nodeid) {
            // Another program has read it meanwhile.
            return Ok(bytes.clone());
        }
        let answer = self.ask(opcode::READ, nodeid, &body)?;
        let mut state = self.state();
        if !is_direct && state.told.get(&nodeid).is_none_or(|told| *told <= answer.version) {
            state.pages.insert(nodeid, answer.body.clone());
        }
        Ok(answer.body)
    }

    fn lock_page(&self, nodeid: u64) -> LockedPage<'_> {
        let mut state = self.state();
        while !state.is_gone && state.locked_pages.contains(&nodeid) {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state.locked_pages.insert(nodeid);
        LockedPage(self, nodeid)
    }

    /// Writes eight bytes through an open file, into its page.
    pub(crate) fn write(
        &self,
        nodeid: u64,
        fh: u64,
        flags: u32,
        at: (u64, &[u8; 8]),
        is_direct: bool,
    ) -> Result<(), Failure> {
        let mut body = fields!(fh, at.0, 8_u32, 0_u32, 0_u64, flags, 0_u32);
        body.extend(at.1);
        let is_there = self.state().pages.contains_key(&nodeid);
        let _locked = (!is_direct && !is_there).then(|| self.lock_page(nodeid));
        let answer = self.ask(opcode::WRITE, nodeid, &body);
        self.wrote(nodeid);
        assert_eq!(u32_at(answer?.body(), 0), 8, "a part was written");
        Ok(())
    }

    /// Takes in the answer to a WRITE.
    pub(crate) fn wrote(&self, nodeid: u64) {
        self.forget_attr(nodeid);
        self.state().pages.remove(&nodeid);
    }

    /// The names in a directory.
    pub(crate) fn list(&self, dir: u64) -> Result<BTreeSet<String>, Failure> {
        let _locked = self.lock(dir);
        let (mut names, mut from) = (BTreeSet::new(), 0_u64);
        loop {
            let body = fields!(0_u64, from, 4096_u32, 0_u32, 0_u64, 0_u32, 0_u32);
            let told = self.ask(opcode::READDIR, dir, &body)?.body;
            if told.is_empty() {
                return Ok(names);
            }
            let mut rest = told.as_slice();
            while rest.len() >= 24 {
                from = u64_at(rest, 8);
                let len = u32_at(rest, 16) as usize;
                let name = String::from_utf8_lossy(&rest[24..24 + len]).into_owned();
                if name != "." && name != ".." {
                    names.insert(name);
                }
                rest = rest.get((24 + len).next_multiple_of(8)..).unwrap_or_default();
            }
        }
    }

    /// Drops what is cached, and forgets the nodes that are not `kept`.
    pub(crate) fn drop_caches(&self, kept: &BTreeSet<u64>) {
        let forgotten = {
            let mut state = self.state();
            let (kept, forgotten): (BTreeMap<_, _>, _) =
                std::mem::take(&mut state.lookups).into_iter().partition(|(nodeid, _)| kept.contains(nodeid));
            state.lookups = kept;
            state.entries.clear();
            state.attrs.clear();
            state.pages.clear();
            forgotten
        };
        for (nodeid, lookups) in forgotten {
            self.push(opcode::FORGET, nodeid, &fields!(lookups));
        }
    }

    fn inval_inode(&self, mut state: MutexGuard<'_, State>, body: &[u8]) -> io::Result<()> {
        let nodeid = u64_at(body, 0);
        let has_page = (0..PAGE).contains(&u64_at(body, 8).cast_signed());
        if nodeid != ROOT && !state.lookups.contains_key(&nodeid) {
            return Err(io::Error::from_raw_os_error(ENOENT));
        }
        if self.mutant == Some(Mutant::StaleAttributes) {
            return Ok(());
        }
        state.version += 1;
        let version = state.version;
        state.told.insert(nodeid, version);
        state.attrs.remove(&nodeid);
        if has_page {
            while state.locked_pages.contains(&nodeid) && !state.is_gone {
                state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            state.pages.remove(&nodeid);
        }
        Ok(())
    }

    fn inval_entry(&self, mut state: MutexGuard<'_, State>, body: &[u8]) -> io::Result<()> {
        let (dir, len) = (u64_at(body, 0), u32_at(body, 8) as usize);
        let name = String::from_utf8_lossy(&body[16..16 + len]).into_owned();
        while state.locked.contains(&dir) && !state.is_gone {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if self.mutant == Some(Mutant::StaleNames) {
            return Ok(());
        }
        match state.entries.remove(&(dir, name)) {
            Some(_) => Ok(()),
            None => Err(io::Error::from_raw_os_error(ENOENT)),
        }
    }
}

/// Keeps attributes that nobody was told of since they were asked for.
fn keep_attr(state: &mut State, nodeid: u64, answer: &Answered, at: usize) {
    // How long they are valid stands before them: for ever, or not at all.
    if u64_at(&answer.body, at - 16) > 0 && state.told.get(&nodeid).is_none_or(|told| *told <= answer.version)
    {
        state.attrs.insert(nodeid, attr_at(&answer.body, at));
    }
}

impl Device for Kernel {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut state = self.state();
        loop {
            if state.is_gone {
                return Ok(None);
            }
            if let Some(message) = state.asked.pop_front() {
                buffer[..message.len()].copy_from_slice(&message);
                return Ok(Some(message.len()));
            }
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        if state.is_gone {
            return Err(io::Error::from_raw_os_error(ENODEV));
        }
        let (code, unique) = (u32_at(message, 4), u64_at(message, 8));
        match (unique, code) {
            (0, 2) => self.inval_inode(state, &message[16..]),
            (0, 3) => self.inval_entry(state, &message[16..]),
            (0, 8) => {
                state.epoch += 1;
                Ok(())
            }
            // It maps no file, and drops the bytes that it is given.
            (0, 4) => Ok(()),
            (0, code) => panic!("no notice of a relay: {code}"),
            _ if state.waiting.contains(&unique) => {
                state.answers.insert(unique, message.to_vec());
                self.changed.notify_all();
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(ENOENT)),
        }
    }

    fn is_connected(&self) -> bool {
        !self.state().is_gone
    }
}
