//! Knowledge: questions of a kernel that its relay answers by itself, because the answer is certain.
//!
//! # Theory
//! See `guest/cover.rs` for the server's side. About a *covered* directory, which this kernel has made and no other
//! knows, the relay has
//!
//! - the names: it was empty, and each request that may add one passes here. A name that was never added is missing
//!   (LOOKUP). Names are not taken out: of one that was removed the server is asked;
//! - the attributes: the answer to each change of names brings them, and the kernel, which forgets its own then, asks for them once
//!   for each (GETATTR);
//! - the files that were made in it: none has a capability before it is given one (GETXATTR, before the first write and before a
//!   change of owner).
//!
//! For any node the relay has the *missing extended attributes*: the server said that they are missing, and since then
//! no notice about the node came, and no request was sent that may add an attribute. `ls -l` asks for some of each
//! file.
//!
//! A close (FLUSH) ends the locks of its owner. Where the ledger knows of none, nothing is to be said, of whatever file. But the
//! server is to know which owners have closed a file when one of them asks for a lock through it: so it is told right before that.
//!
//! *Two requests at once.* Attributes are believed from the answer to a request beside which no other was about that directory.
//!
//! *A recall may overtake the answer* that it is about. Requests on their way then remember the number, as with locks.
//!
//! # Lock order
//! Called with `relay.state`; takes `relay.ledger`.

use super::behind::is_of_behind;
use super::{Done, InFlight, Shared, State};
use crate::guest::ToldBesides;
use sluice_fuse::internal::abi::{
    self, Attr, AttrOut, CreateIn, EntryOut, InHeader, LinkIn, MkdirIn, MknodIn, OpenOut, OutHeader,
    Rename2In, RenameIn,
};
use sluice_fuse::internal::{FOREVER, Operation, Reply, Request, request_bytes};
use sluice_fuse::opcode;
use sluice_vfs::{Errno, NAME_MAX};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The most names of a directory that are remembered, and files of all directories. Beyond these limits the server
/// answers.
const NAMES_MAX: usize = 1 << 16;
const FILES_MAX: usize = 1 << 14;
/// Missing extended attributes that are remembered for each node.
const ABSENT_MAX: usize = 8;
const CAPABILITY: &[u8] = b"security.capability";

/// The facts from which a relay may answer.
#[derive(Default)]
pub(super) struct Knowledge {
    dirs: HashMap<u64, KnownDir>,
    /// Files without a capability whose only changes are known.
    files: HashMap<u64, KnownFile>,
    /// Extended attributes that are not there, by node.
    absent: HashMap<u64, HashSet<Vec<u8>>>,
    /// How often some node may have got one.
    xattr_changes: u64,
    names: RandomState,
}

/// A covered directory.
struct KnownDir {
    serial: u64,
    /// Hashes of all names that the directory may have.
    names: HashSet<u64>,
    attr: Option<Attr>,
    /// Requests that may have changed the attributes: how many were made, and are under way.
    requests: u64,
    under_way: u32,
}

/// A file that was made in a covered directory.
struct KnownFile {
    dir: u64,
    /// The server's attributes after all requests under way, except times and blocks. `None`: not known any more.
    attr: Option<Attr>,
}

/// The objects of a request besides the node in its header.
#[derive(Default)]
struct Concerns<'m> {
    /// The name that it may add, and where.
    adds: Option<(u64, &'m [u8])>,
    /// Another directory.
    dir: Option<u64>,
    /// A file that may get another directory or a capability, or contents that are not here.
    file: Option<u64>,
}

/// Whether a request of this kind leaves the attributes of the node in its header as they are.
fn leaves_attributes(code: u32) -> bool {
    matches!(
        code,
        opcode::LOOKUP
            | opcode::FORGET
            | opcode::BATCH_FORGET
            | opcode::GETATTR
            | opcode::STATX
            | opcode::READLINK
            | opcode::STATFS
            | opcode::GETXATTR
            | opcode::LISTXATTR
            | opcode::ACCESS
            | opcode::OPENDIR
            | opcode::RELEASEDIR
            | opcode::INTERRUPT
    )
}

/// Whether after a request of this kind attributes of files are known as before: of the file that it is about, or those
/// of the directory. Predicted attributes of other files are noted elsewhere ([`is_of_behind`]).
fn leaves_files(code: u32) -> bool {
    let adds = matches!(code, opcode::CREATE | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK);
    let uses = matches!(code, opcode::OPEN | opcode::READ | opcode::FLUSH | opcode::FSYNC);
    leaves_attributes(code) || adds || uses || is_of_behind(code)
}

/// Whether a request of this kind may give the node in its header an extended attribute.
fn changes_xattrs(code: u32) -> bool {
    matches!(code, opcode::SETXATTR | opcode::REMOVEXATTR)
}

/// The bytes before the 0 that ends a name.
fn name(bytes: &[u8]) -> Option<&[u8]> {
    bytes.iter().position(|byte| *byte == 0).map(|end| &bytes[..end])
}

fn is_regular(attr: &Attr) -> bool {
    attr.mode & 0o170_000 == 0o100_000
}

fn about<'m>(header: &InHeader, body: &'m [u8]) -> Concerns<'m> {
    let adds = |before: usize| body.get(before..).and_then(name).map(|name| (header.nodeid, name));
    let other = || u64::read_from_prefix(body).ok().map(|(nodeid, _)| nodeid);
    match header.opcode {
        opcode::MKNOD => Concerns { adds: adds(size_of::<MknodIn>()), ..Concerns::default() },
        opcode::MKDIR => Concerns { adds: adds(size_of::<MkdirIn>()), ..Concerns::default() },
        opcode::SYMLINK => Concerns { adds: adds(0), ..Concerns::default() },
        opcode::CREATE => Concerns { adds: adds(size_of::<CreateIn>()), ..Concerns::default() },
        opcode::LINK => Concerns { adds: adds(size_of::<LinkIn>()), file: other(), ..Concerns::default() },
        opcode::RENAME | opcode::RENAME2 => {
            let is_second = header.opcode == opcode::RENAME2;
            let before = if is_second { size_of::<Rename2In>() } else { size_of::<RenameIn>() };
            let old = body.get(before..).and_then(name);
            let new = old.and_then(|old| name(&body[before + old.len() + 1..]));
            Concerns { adds: other().zip(new), dir: other(), file: None }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let out = abi::CopyFileRangeIn::read_from_prefix(body).ok().map(|(arg, _)| arg.nodeid_out);
            Concerns { file: out, ..Concerns::default() }
        }
        // After a close the kernel does not ask about it any more.
        opcode::SETXATTR | opcode::REMOVEXATTR | opcode::RELEASE => {
            Concerns { file: Some(header.nodeid), ..Concerns::default() }
        }
        _ => Concerns::default(),
    }
}

impl Knowledge {
    /// The attributes of a file that was made in a covered directory, if they are known.
    pub(super) fn attr_of_file(&mut self, nodeid: u64) -> Option<&mut Option<Attr>> {
        self.files.get_mut(&nodeid).map(|file| &mut file.attr)
    }

    /// The number under which a directory is covered.
    #[cfg(test)]
    pub(super) fn serial_of(&self, nodeid: u64) -> Option<u64> {
        self.dirs.get(&nodeid).map(|dir| dir.serial)
    }

    /// The server is gone, and what it said.
    pub(super) fn clear(&mut self) {
        self.absent.clear();
        self.xattr_changes += 1;
        self.dirs.clear();
        self.files.clear();
    }

    /// How often some node may have got an extended attribute.
    pub(super) fn xattr_changes(&self) -> u64 {
        self.xattr_changes
    }

    /// A node may have got an extended attribute.
    pub(super) fn may_have_xattrs(&mut self, nodeid: u64) {
        self.absent.remove(&nodeid);
        self.xattr_changes += 1;
    }

    /// The server says that an extended attribute is not there, for which it was asked after so many changes.
    fn lacks_xattr(&mut self, nodeid: u64, name: &[u8], changes: u64) {
        if changes != self.xattr_changes {
            return;
        }
        if self.absent.len() >= FILES_MAX && !self.absent.contains_key(&nodeid) {
            self.absent.clear();
        }
        let names = self.absent.entry(nodeid).or_default();
        if names.len() < ABSENT_MAX {
            names.insert(name.to_vec());
        }
    }

    /// The kernel has forgotten a node.
    pub(super) fn forget(&mut self, nodeid: u64) {
        self.absent.remove(&nodeid);
        self.dirs.remove(&nodeid);
        self.files.remove(&nodeid);
    }

    /// The answer to a request, if it is certain.
    fn answer(&self, header: &InHeader, body: &[u8]) -> Option<Vec<u8>> {
        let mut reply = Reply::new();
        match header.opcode {
            opcode::LOOKUP => {
                let dir = self.dirs.get(&header.nodeid)?;
                // The server refuses a name that is too long, rather than calling it absent.
                let is_ordinary = |name: &&[u8]| name.len() <= NAME_MAX && !matches!(*name, b"." | b"..");
                let name = name(body).filter(is_ordinary)?;
                if dir.names.contains(&self.names.hash_one(name)) {
                    return None;
                }
                reply.put(&EntryOut { entry_valid: FOREVER, ..EntryOut::new_zeroed() });
            }
            opcode::GETATTR => {
                let attr = self.dirs.get(&header.nodeid)?.attr?;
                reply.put(&AttrOut { attr_valid: FOREVER, attr_valid_nsec: 0, dummy: 0, attr });
            }
            opcode::GETXATTR => {
                let asked = body.get(size_of::<abi::GetxattrIn>()..).and_then(name)?;
                let lacks = asked == CAPABILITY && self.files.contains_key(&header.nodeid)
                    || self.absent.get(&header.nodeid).is_some_and(|names| names.contains(asked));
                return lacks.then(|| reply.failure(header.unique, Errno::ENODATA).to_vec());
            }
            _ => return None,
        }
        Some(reply.success(header.unique).to_vec())
    }

    /// The kernel makes a request that is for the server. Returns its number among the requests of its directory, or 0
    /// if another one is under way there.
    fn asked(&mut self, header: &InHeader, body: &[u8]) -> u64 {
        if changes_xattrs(header.opcode) {
            self.may_have_xattrs(header.nodeid);
        }
        let Concerns { adds, dir, file } = about(header, body);
        if let Some(file) = file {
            self.files.remove(&file);
        }
        if let Some(dir) = dir.filter(|dir| *dir != header.nodeid) {
            // A moved file is found in the other directory.
            self.files.retain(|_, file| file.dir != header.nodeid && file.dir != dir);
            self.change(dir);
        }
        if !leaves_files(header.opcode) {
            let is_about =
                |nodeid: u64, file: &KnownFile| nodeid == header.nodeid || file.dir == header.nodeid;
            let about = self.files.iter_mut().filter(|(nodeid, file)| is_about(**nodeid, file));
            about.for_each(|(_, file)| file.attr = None);
        }
        if let Some((nodeid, name)) = adds
            && let Some(known) = self.dirs.get_mut(&nodeid)
        {
            known.names.insert(self.names.hash_one(name));
            if known.names.len() > NAMES_MAX {
                self.uncover(nodeid);
            }
        }
        if leaves_attributes(header.opcode) { 0 } else { self.change(header.nodeid) }
    }

    fn change(&mut self, nodeid: u64) -> u64 {
        let Some(dir) = self.dirs.get_mut(&nodeid) else { return 0 };
        dir.attr = None;
        dir.requests += 1;
        dir.under_way += 1;
        if dir.under_way == 1 { dir.requests } else { 0 }
    }

    /// A request is answered, which [asked](Self::asked) gave this number, with what is `told` besides if it changed names.
    fn answered(&mut self, number: u64, header: &InHeader, body: &[u8], told: Option<&ToldBesides>) {
        let other = about(header, body).dir.filter(|dir| *dir != header.nodeid);
        let own = (!leaves_attributes(header.opcode)).then_some(header.nodeid);
        for nodeid in own.into_iter().chain(other) {
            if let Some(dir) = self.dirs.get_mut(&nodeid) {
                // A directory that was covered after the request was made has not counted it.
                dir.under_way = dir.under_way.saturating_sub(1);
            }
        }
        if let Some(dir) = self.dirs.get_mut(&header.nodeid)
            && number != 0
            && dir.requests == number
        {
            dir.attr = told.map(|told| told.dir);
        }
    }

    fn made(&mut self, header: &InHeader, made: &EntryOut, serial: u64) {
        match header.opcode {
            opcode::MKDIR if serial != 0 => {
                let (names, attr) = (HashSet::new(), Some(made.attr));
                self.dirs.insert(made.nodeid, KnownDir { serial, names, attr, requests: 0, under_way: 0 });
            }
            opcode::CREATE | opcode::MKNOD
                if self.dirs.contains_key(&header.nodeid) && self.files.len() < FILES_MAX =>
            {
                let attr = is_regular(&made.attr).then_some(made.attr);
                self.files.insert(made.nodeid, KnownFile { dir: header.nodeid, attr });
            }
            _ => {}
        }
    }

    fn uncover(&mut self, nodeid: u64) {
        self.dirs.remove(&nodeid);
        self.files.retain(|_, file| file.dir != nodeid);
    }
}

/// How long the answer to such a request is, without what is [`ToldBesides`] besides.
fn body_len(code: u32) -> Option<usize> {
    match code {
        opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK => Some(size_of::<EntryOut>()),
        opcode::CREATE => Some(size_of::<EntryOut>() + size_of::<OpenOut>()),
        opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2 => Some(0),
        _ => None,
    }
}

impl Shared {
    /// The answer to a request of which the ledger knows, if it is certain.
    pub(super) fn answer_by_knowledge(
        &self,
        state: &mut State,
        header: &InHeader,
        message: &[u8],
    ) -> Option<Vec<u8>> {
        let answer = state.knowledge.answer(header, &message[size_of::<InHeader>()..])?;
        state.counts.answered_here += 1;
        Some(answer)
    }

    /// The answer to a FLUSH by which no lock ends. Called before the ledger knows of it.
    pub(super) fn flush_in_silence(
        &self,
        state: &mut State,
        header: &InHeader,
        message: &[u8],
    ) -> Option<Vec<u8>> {
        if header.opcode != opcode::FLUSH || state.server.is_none() || state.may_lock(header.nodeid) {
            return None;
        }
        let (arg, _) = abi::FlushIn::read_from_prefix(&message[size_of::<InHeader>()..]).ok()?;
        let mut ledger = self.ledger.lock();
        let is_silent = ledger.flush_in_silence(header.nodeid, &arg);
        is_silent.then(|| {
            state.counts.answered_here += 1;
            let mut reply = Reply::new();
            let is_failed = ledger.take_failed_behind(arg.fh);
            let answer = match is_failed {
                true => reply.failure(header.unique, Errno::EIO),
                false => reply.success(header.unique),
            };
            answer.to_vec()
        })
    }

    /// Drops the knowledge of nodes that the kernel forgets by this request, according to the ledger.
    pub(super) fn forget(&self, state: &mut State, header: &InHeader, message: &[u8]) {
        if !matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            return;
        }
        let nodes = match Request::parse(message) {
            Ok(Request { header, operation: Operation::Forget(_) }) => vec![header.nodeid],
            Ok(Request { operation: Operation::BatchForget(forgets), .. }) => {
                forgets.iter().map(|one| one.nodeid).collect()
            }
            _ => return,
        };
        let ledger = self.ledger.lock();
        nodes
            .into_iter()
            .filter(|nodeid| !ledger.knows(*nodeid))
            .for_each(|nodeid| state.knowledge.forget(nodeid));
    }

    /// Learns from the answer to a request. Returns what is for the kernel then.
    pub(super) fn learn(&self, state: &mut State, request: &InFlight, answer: &[u8]) -> Option<Vec<u8>> {
        let (header, asked) = InHeader::read_from_prefix(&request.message).ok()?;
        let (out, body) = OutHeader::read_from_prefix(answer).ok()?;
        if changes_xattrs(header.opcode) {
            // Another request may have asked for the attribute before it existed.
            state.knowledge.may_have_xattrs(header.nodeid);
        }
        if header.opcode == opcode::GETXATTR
            && out.error == -Errno::ENODATA.raw()
            && let Some(name) = asked.get(size_of::<abi::GetxattrIn>()..).and_then(name)
        {
            state.knowledge.lacks_xattr(header.nodeid, name, request.xattr_changes);
        }
        if is_of_behind(header.opcode) {
            match out.error {
                0 => state.behind.agreed(),
                // The predicted answer did not come.
                _ => state.knowledge.attr_of_file(header.nodeid).into_iter().for_each(|attr| *attr = None),
            }
        }
        let split = body_len(header.opcode).and_then(|len| body.split_at_checked(len));
        let told = split.and_then(|(body, told)| Some((body, ToldBesides::read_from_bytes(told).ok()?)));
        state.knowledge.answered(request.number_in_dir, &header, asked, told.as_ref().map(|(_, told)| told));
        let (body, told) = told?;
        if let Ok((made, _)) = EntryOut::read_from_prefix(body) {
            let serial = if told.serial > request.void { told.serial } else { 0 };
            state.knowledge.made(&header, &made, serial);
        }
        let len = size_of::<OutHeader>() + body.len();
        Some([OutHeader { len: u32::try_from(len).unwrap_or(u32::MAX), ..out }.as_bytes(), body].concat())
    }

    /// The server ends the cover of `nodeid` that has this number. `done` is called when it has been.
    pub(super) fn uncover(&self, nodeid: u64, serial: u64, done: Done) {
        let mut state = self.state.lock();
        state.counts.recalls += 1;
        if state.knowledge.dirs.get(&nodeid).is_some_and(|dir| dir.serial == serial) {
            state.knowledge.uncover(nodeid);
        } else {
            for request in state.in_flight.values_mut().filter(|request| request.opcode == opcode::MKDIR) {
                request.void = request.void.max(serial);
            }
        }
        let done = state.after_behind(done);
        drop(state);
        if let Some(done) = done {
            done();
        }
    }
}

impl State {
    /// The kernel makes a request that goes to the server. See [`InFlight::number_in_dir`].
    pub(super) fn note_asked(&mut self, header: &InHeader, message: &[u8]) -> u64 {
        self.knowledge.asked(header, &message[size_of::<InHeader>()..])
    }

    /// Tells the server of a FLUSH of which it was not told, if the next lock may depend on it.
    pub(super) fn tell_flush(&self, header: &InHeader, arg: &abi::FlushIn) {
        // Number 0: it is not answered.
        let header = InHeader { opcode: opcode::FLUSH, nodeid: header.nodeid, ..InHeader::new_zeroed() };
        self.to_server(&request_bytes(header, &[arg.as_bytes()]));
    }
}

#[cfg(test)]
mod tests;
