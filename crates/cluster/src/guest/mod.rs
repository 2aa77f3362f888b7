//! Guest: a mount of a file system of this process whose kernel another process talks to.
//!
//! # Theory
//! A [`Host`] serves one file system to guests. A guest's messages are those of `/dev/fuse`, and how they travel is not known
//! here: its owner calls [`Guest::take`] for each in the order of the kernel, and [`Guest::serve`] on any thread. Answers and
//! notices go to a [`GuestChannel`]. At the other end a [`Relay`](crate::relay::Relay) reads and writes the device.
//!
//! *Coherence.* A kernel caches without a time limit, so each change is announced to the guests whose kernel knows what
//! changed. The answer to the request that made the change is *held* (`hold`) until they have all been told, and so is each
//! answer that tells of the change before. So a program that sees the new state finds it in every guest.
//!
//! *Another host.* A relay knows its kernel's node numbers, open files and locks, too ([`Holdings`]). A host that
//! takes over gets it back with [`Guest::restore`], before other requests are served.
//!
//! # Clients must
//! - drop a [`Notice`] when the guest's kernel has been told, or can be asked no more, and at no other time.

pub(crate) mod again;
mod ahead;
mod coherence;
mod cover;
mod delegation;
mod given_up;
mod growth;
mod hold;
mod holdings;
#[cfg(test)]
mod hostile_tests;
mod questions;

pub(crate) use again::{mark, set_slot};
#[cfg(test)]
pub(crate) use cover::cover_recall;
pub(crate) use cover::{ToldBesides, cover_recalled};
pub(crate) use delegation::{give_back_message, recalled};
pub use holdings::Holdings;

use crate::lock_class::UNWANTED;
use again::{id_of, is_behind};
use ahead::{Ahead, Settling, Unsettled, hands_out};
use coherence::GuestCoherence;
use cover::{CoverEnds, Covers};
use delegation::{Delegate, Delegations, given_back, gives_back};
use given_up::{GivenUp, LockWitness};
use growth::note_size;
use hold::{Announcement, Holds, Telling};
use sluice_fuse::internal::abi::{FlushIn, InHeader, LkIn, OutHeader};
use sluice_fuse::internal::{
    Again, Answer, Channel, Connection, Event, Releasing, Reply, Served, Serving, again, may_map,
    set_lock_again,
};
use sluice_fuse::{LockMode, MountOptions, Transport, opcode};
use sluice_sync::{Arc, Mutex, OnceLock, mpsc};
use sluice_vfs::{Errno, InodeRef, Superblock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::mem::offset_of;
use zerocopy::FromBytes;

/// A file system that is served to guests.
pub struct Host {
    superblock: Arc<Superblock>,
    holds: Arc<Holds>,
    delegations: Arc<Delegations>,
    covers: Arc<Covers>,
    given_up: Arc<GivenUp>,
}

/// Where the messages to a guest's kernel go.
pub trait GuestChannel: Send + Sync {
    /// Sends an answer.
    ///
    /// # Errors
    /// The guest cannot be reached: then there is nobody left to tell.
    fn answer(&self, message: &[u8]) -> io::Result<()>;
    /// Has the kernel told of a change. Does not wait for the kernel.
    fn announce(&self, notice: Notice);
}

/// A channel that nobody listens to.
#[cfg(test)]
struct Nowhere;

#[cfg(test)]
impl GuestChannel for Nowhere {
    fn answer(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn announce(&self, notice: Notice) {
        drop(notice);
    }
}

/// A change that a guest's kernel is to be told of. Dropping it says that it has been.
pub struct Notice {
    bytes: Vec<u8>,
    /// Before the answer that is held: what its caller does next finds the guest quiet.
    _settling: Option<Settling>,
    /// Before the answer, too.
    _ends: Option<CoverEnds>,
    _announcement: Option<Arc<Announcement>>,
}

impl Notice {
    /// A notice without waiters.
    fn silent(bytes: Vec<u8>) -> Notice {
        Notice { bytes, _settling: None, _ends: None, _announcement: None }
    }

    /// Notifications for `/dev/fuse` in sequence, each with its length.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A mount of a [`Host`]'s file system.
pub struct Guest {
    connection: Arc<Connection>,
    coherence: Arc<GuestCoherence>,
    holds: Arc<Holds>,
    /// A number that no other mount has. *immutable*
    mount: u64,
    /// Requests that were executed before this guest was there: their [numbers](Superblock::executed_requests). *set once*
    executed: OnceLock<BTreeMap<u64, u64>>,
    /// The answers to requests that it [caught up](Self::catch_up) with, by number. *set once*
    caught_up: OnceLock<HashMap<u64, Vec<u8>>>,
    /// Events of inodes that its kernel must forget. *protected by its mutex*
    unwanted: Mutex<mpsc::Receiver<Event>>,
}

/// An accepted request, to be served later.
pub struct Ticket {
    _releasing: Option<Releasing>,
    is_behind: bool,
}

impl Ticket {
    /// Whether the kernel has had the answer to the request: then none that was taken later may be served before it has been.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }
}

/// The lost part of a guest's [`Holdings`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Handles whose file is gone, or whose locks other mounts have taken.
    pub handles: BTreeSet<u64>,
    /// Nodes that have lost their last name: synchronised writes to them may be lost.
    pub nameless: BTreeSet<u64>,
    /// Not lost: numbers of the mount's durably executed requests. From these follows which other changes are durable.
    pub executed: BTreeSet<u64>,
}

/// A guest's channel as the handler sees it.
struct ToGuest(Arc<dyn GuestChannel>);

impl Channel for ToGuest {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        const UNIQUE: usize = offset_of!(OutHeader, unique);
        if message.get(UNIQUE..UNIQUE + 8).is_some_and(|unique| unique != [0; 8]) {
            return self.0.answer(message);
        }
        self.0.announce(Notice::silent(message.to_vec()));
        Ok(())
    }
}

impl Host {
    /// Serves `superblock`.
    pub fn new(superblock: Arc<Superblock>) -> Host {
        superblock.expect_inodes();
        Host {
            superblock,
            holds: Arc::default(),
            delegations: Arc::default(),
            covers: Arc::default(),
            given_up: Arc::default(),
        }
    }

    /// The inodes of `holdings` that must be known before anything changes: those of open files, and those without a
    /// name, which are deleted otherwise. Other inodes are not read.
    pub fn adopt(&self, holdings: &Holdings) -> BTreeMap<u64, InodeRef> {
        let wanted: BTreeSet<u64> = holdings.inodes().collect();
        let mut found = self.superblock.adopt_nameless(&wanted);
        found.append(&mut self.superblock.adopt(&holdings.open_inodes()));
        found
    }

    /// Ends the wait for `guest`, whose locks are about to be freed. The caller frees the locks afterwards.
    pub fn give_up(&self, guest: &Guest) {
        self.given_up.put(guest.mount, guest.connection.handles.files());
    }

    /// Ends the expectation of a mount that was [given up](Self::give_up): if it still returns, all its locks are lost.
    pub fn forget(&self, mount: u64) {
        drop(self.given_up.take(mount));
    }

    /// A guest, which has [restored](Guest::restore) `holdings`, was given up, here or by another host: the locks of files that another
    /// mount may have locked meanwhile are lost.
    pub fn void_locks(&self, guest: &Guest, holdings: &Holdings, lost: &mut Lost) {
        let untouched = self.given_up.take(guest.mount);
        for (nodeid, lock) in &holdings.locks {
            let (Ok(arg), Some(inode)) = (LkIn::read_from_bytes(lock), guest.connection.nodes.get(*nodeid))
            else {
                continue;
            };
            if !untouched.contains(&inode.ino()) {
                guest.connection.handles.unlock_file(inode.ino());
                lost.handles.insert(arg.fh);
            }
        }
    }

    /// The file system.
    pub fn superblock(&self) -> &Arc<Superblock> {
        &self.superblock
    }

    /// A new guest, which is reached by `channel`. Its file locks are served here. `is_remote`: the processes that use it are
    /// on another machine. `mount` is a number that the guest's mount has for as long as it lasts, and no other has.
    ///
    /// # Errors
    /// `EBUSY` if the file system has a mount that must be alone.
    pub fn admit(&self, channel: Arc<dyn GuestChannel>, is_remote: bool, mount: u64) -> Result<Guest, Errno> {
        let mut options = MountOptions::default();
        (options.locks, options.transport) = (LockMode::Sluice, Transport::Classic);
        let (later, unwanted) = mpsc::channel();
        let to_guest = Arc::new(ToGuest(channel.clone()));
        let connection = Arc::new(Connection::new(self.superblock.clone(), options, 0, to_guest, later));
        // Nobody else sets them.
        let delegate = Delegate {
            number: self.delegations.next_guest(),
            mount,
            channel: channel.clone(),
            handles: connection.handles.clone(),
        };
        let coherence = Arc::new(GuestCoherence {
            delegations: self.delegations.clone(),
            covers: self.covers.clone(),
            is_remote,
            delegate,
            channel,
            holds: self.holds.clone(),
            unsettled: Unsettled::default(),
            ahead: Ahead::default(),
        });
        let _ = connection.coherence.set(coherence.clone());
        let _ = connection.handles.witness.set(Box::new(LockWitness::new(self.given_up.clone(), mount)));
        connection.observe(false)?;
        Ok(Guest {
            connection,
            coherence,
            holds: self.holds.clone(),
            mount,
            executed: OnceLock::new(),
            caught_up: OnceLock::new(),
            unwanted: Mutex::with_class(&UNWANTED, unwanted),
        })
    }
}

impl Guest {
    /// Inodes that found no memory since the last call, and that the kernel must be [told of](Self::tell_unwanted).
    pub fn take_unwanted(&self) -> Vec<u64> {
        let unwanted = self.unwanted.lock();
        let inodes_of = |event| match event {
            Event::Unwanted { inos } => inos,
            // Nothing else is left for later.
            _ => Vec::new(),
        };
        unwanted.try_iter().flat_map(inodes_of).collect()
    }

    /// Has the kernel forget those of `inos` that no program uses there. Called with nothing locked.
    pub fn tell_unwanted(&self, inos: &[u64]) {
        self.connection.prune(inos);
    }

    /// Notes that a request was read. To be called in the order in which the kernel sends them, and to be followed by
    /// [`serve`](Self::serve).
    pub fn take(&self, message: &[u8]) -> Ticket {
        if gives_back(message) {
            // Now, before later messages.
            self.take_locks_back(message);
        }
        if let Some(arg) = noted_flush(message) {
            // No lock of its owner is there.
            let _ = self.connection.handles.flush(arg.fh, arg.lock_owner);
        }
        let is_release =
            InHeader::read_from_prefix(message).is_ok_and(|(header, _)| header.opcode == opcode::RELEASE);
        let _releasing = is_release.then(|| self.connection.releasing());
        Ticket { _releasing, is_behind: is_behind(message) }
    }

    /// Serves a request, and answers it if an answer is due. Bytes that form no request are answered with an error, or
    /// not at all. Its changes are announced without waiting. A request that [is behind](Ticket::is_behind) is to be
    /// served before what was taken later.
    pub fn serve(&self, ticket: Ticket, message: &mut [u8]) {
        if gives_back(message) || noted_flush(message).is_some() {
            return;
        }
        let _serving = Serving::begin();
        self.blur_pid(message);
        let connection = &self.connection;
        if ticket.is_behind
            && let Ok((header, _)) = InHeader::read_from_prefix(message)
            && let Some(answer) = self.caught_up.get().and_then(|all| all.get(&header.unique))
        {
            return connection.send(answer);
        }
        let head = head_of(message);
        // Until what the kernel gets by the answer is noted.
        let counted = hands_out(head.0).then(|| self.coherence.unsettled.count());
        let id = id_of(self.mount, message);
        let (mut reply, mut found, mut instead) = (Reply::new(), Reply::new(), None);
        if let Some(id) = id
            && let Some(&named) = self.executed.get().and_then(|executed| executed.get(&id.number))
        {
            match again(connection, message, named, &mut found) {
                Some(Again::Answer(answer)) => return connection.send(answer),
                Some(Again::Instead(other)) => instead = Some(other),
                None => {}
            }
        }
        let noted = id.map(|id| connection.superblock.serve_request(id));
        let (request, head) = instead.as_deref().map_or((&*message, head), |other| (other, head_of(other)));
        self.holds.begin(head, request);
        note_size(connection, request);
        let served = self.execute(request, &mut reply);
        drop(noted);
        let kind = served.kind;
        let mut spare = Reply::new();
        let answer = match served.answer {
            Answer::Now(answer) => Some(answer),
            // A guest's kernel is not waited for.
            Answer::Seek(seek) => Some(connection.seek_at_once(&seek, &mut spare)),
            Answer::Elsewhere => None,
        };
        // A store that has failed refuses changes, and this server is about to end: the next one answers.
        let is_refused = |answer: &&[u8]| {
            let refusal = -Errno::EROFS.raw();
            OutHeader::read_from_prefix(answer).is_ok_and(|(out, _)| out.error == refusal)
        };
        let answer = answer.filter(|answer| !is_refused(answer) || connection.superblock.failure().is_none());
        let guest = self.coherence.delegate.number;
        self.holds.settle(&Telling { connection, guest, request, head, answer }, counted);
        connection.count(kind);
        drop(ticket);
        connection.serve_due(&mut Reply::new());
    }

    /// Executes a request. A directory that it makes may be covered.
    fn execute<'r>(&self, request: &[u8], reply: &'r mut Reply) -> Served<'r> {
        let may_cover = self.coherence.is_remote && head_of(request).0 == opcode::MKDIR;
        let _making = may_cover.then(|| self.coherence.covers.making());
        self.connection.process(request, reply)
    }

    /// The number of a process elsewhere is somebody else here.
    fn blur_pid(&self, message: &mut [u8]) {
        const PID: usize = offset_of!(InHeader, pid);
        if self.coherence.is_remote
            && let Some(pid) = message.get_mut(PID..PID + 4)
        {
            pid.fill(0);
        }
    }

    /// Executes what the kernel has had answers to and the last server may not have executed. Called once, after
    /// [`restore`](Self::restore) and before any other guest is served. `may_execute` is false if the guest was given
    /// up since: others may have changed what it changed. In that case all these requests fail.
    pub fn catch_up(&self, holdings: &Holdings, may_execute: bool) {
        let _serving = Serving::begin();
        let mut answers = HashMap::new();
        for message in &holdings.behind {
            let Ok((header, _)) = InHeader::read_from_prefix(message) else { continue };
            let mut reply = Reply::new();
            let Some(id) = id_of(self.mount, message).filter(|_| may_execute) else {
                answers.insert(header.unique, reply.failure(header.unique, Errno::EIO).to_vec());
                continue;
            };
            if self.executed.get().is_some_and(|executed| executed.contains_key(&id.number)) {
                continue;
            }
            let mut message = message.clone();
            self.blur_pid(&mut message);
            let noted = self.connection.superblock.serve_request(id);
            let served = self.execute(&message, &mut reply);
            drop(noted);
            if let Answer::Now(answer) = served.answer {
                answers.insert(header.unique, answer.to_vec());
            }
            // Nobody waits for this answer yet.
            self.holds.forget();
        }
        // Nobody else sets it.
        let _ = self.caught_up.set(answers);
    }

    /// Gives the guest what its kernel holds already; `found` are the inodes of these that are [known](Host::adopt).
    /// The others are looked for when the kernel names them. Called before any other request is served.
    pub fn restore(&self, holdings: &Holdings, found: &BTreeMap<u64, InodeRef>) -> Lost {
        let connection = &self.connection;
        // Nobody else sets it.
        let executed = connection.superblock.executed_requests(self.mount);
        let numbers = executed.keys().copied().collect();
        let _ = self.executed.set(executed);
        if !holdings.init.is_empty() {
            // The kernel has had its answer.
            let _ = connection.process(&holdings.init, &mut Reply::new());
        }
        let mut lost = Lost { executed: numbers, ..Lost::default() };
        let open = holdings.open_inodes();
        for &(nodeid, generation, lookups) in &holdings.nodes {
            // Another inode may have the number: the kernel's was lost in a crash then.
            if let Some(inode) = found.get(&nodeid)
                && connection.nodes.generation(inode) == generation
            {
                connection.nodes.restore(inode, lookups);
                if !inode.has_name() {
                    lost.nameless.insert(nodeid);
                }
            } else if !open.contains(&nodeid) {
                connection.nodes.expect((nodeid, generation, lookups), &connection.superblock);
            }
        }
        for &(fh, nodeid) in &holdings.handles {
            connection.handles.reserve(fh);
            match connection.nodes.get(nodeid) {
                Some(inode) if !self.may_lock_again(&inode, nodeid) => drop(lost.handles.insert(fh)),
                Some(inode) if may_map(fh) && !connection.may_map(&inode) => drop(lost.handles.insert(fh)),
                Some(inode) => connection.handles.restore(fh, inode),
                None => drop(lost.handles.insert(fh)),
            }
        }
        for (nodeid, lock) in &holdings.locks {
            let Ok(arg) = LkIn::read_from_bytes(lock) else { continue };
            let kept = connection
                .nodes
                .get(*nodeid)
                .is_some_and(|inode| set_lock_again(&connection.handles, &inode, &arg).is_ok());
            if !kept {
                lost.handles.insert(arg.fh);
            }
        }
        lost
    }

    /// Whether others have given back the locks of a file that the guest's kernel has open.
    fn may_lock_again(&self, inode: &InodeRef, nodeid: u64) -> bool {
        self.coherence.delegations.take_back(inode.ino(), nodeid, &self.coherence.delegate)
    }

    /// The guest's relay gives back the locks of a file.
    fn take_locks_back(&self, message: &[u8]) {
        let (connection, coherence) = (&self.connection, &self.coherence);
        let Some((header, arg, locks)) = given_back(message) else { return };
        let Some(inode) = connection.nodes.get(header.nodeid) else { return };
        let (ino, number) = (inode.ino(), coherence.delegate.number);
        if !coherence.delegations.is_delegated(ino, number, arg.serial) {
            return;
        }
        if arg.decided != 0 {
            connection.handles.unlock_file(ino);
            for lock in &locks {
                if let Err(errno) = set_lock_again(&connection.handles, &inode, lock) {
                    log::error!("a lock that was granted elsewhere cannot be taken: {errno}");
                }
            }
        }
        coherence.delegations.given_back(ino, arg.serial, arg.cools_down != 0);
    }

    /// The inode that the guest's kernel calls `nodeid`.
    #[cfg(test)]
    pub(crate) fn inode(&self, nodeid: u64) -> Option<InodeRef> {
        self.connection.nodes.get(nodeid)
    }

    /// The inodes of `holdings` that this guest's kernel knows or has named.
    pub fn known_inodes(&self, holdings: &Holdings) -> BTreeMap<u64, InodeRef> {
        let known = |nodeid| Some((nodeid, self.connection.nodes.get_known(nodeid)?));
        holdings.inodes().filter_map(known).collect()
    }

    /// How many answers to guests of the same host have waited until others were told of a change, or it was made.
    pub fn held_answers(&self) -> u64 {
        self.holds.held()
    }

    /// How many requests of `opcode` (see [`opcode`]) have come.
    pub fn requests(&self, opcode: u32) -> u64 {
        self.connection.counters.get(opcode)
    }

    /// To be called before this guest is dropped, when no thread serves it: leaves the locks of owners that `heir` has too,
    /// which has restored what this guest's kernel holds.
    pub fn give_way(&self, heir: &Guest) {
        self.connection.withdraw_all();
        let kept = heir.connection.handles.owners();
        self.connection.handles.leave(&kept);
    }
}

/// The code and the node of a request; zeros for what is none, which is answered with an error.
fn head_of(message: &[u8]) -> (u32, u64) {
    InHeader::read_from_prefix(message).map_or((0, 0), |(header, _)| (header.opcode, header.nodeid))
}

/// A FLUSH that is noted on arrival, and gets no answer.
fn noted_flush(message: &[u8]) -> Option<FlushIn> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let is_noted = header.opcode == opcode::FLUSH && header.unique == 0;
    is_noted.then(|| FlushIn::read_from_prefix(body).ok()).flatten().map(|(arg, _)| arg)
}

impl Drop for Guest {
    /// Gives back what the guest's kernel held, its locks too.
    fn drop(&mut self) {
        self.connection.close();
    }
}
