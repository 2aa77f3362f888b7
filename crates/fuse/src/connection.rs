//! Connection: what all workers of one mount share, and the path of one message through it.

use crate::abi::{InHeader, opcode};
use crate::coherence::Coherence;
use crate::counters::Counters;
use crate::event::{Event, is_worker};
use crate::handler::{Releasing, SecondLooks, Turns};
use crate::handles::Handles;
use crate::held::state::HeldState;
use crate::nodes::Nodes;
use crate::parked::{Parked, Withdrawal};
use crate::reply::{Disposition, Reply, Seek};
use crate::request::{Malformed, Request};
use crate::transport::{Channel, Replier};
use crate::{LockMode, MountOptions};
use sluice_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sluice_sync::time::Instant;
use sluice_sync::{Arc, OnceLock, mpsc};
use sluice_vfs::{Errno, InodeRef, ObserverId, Superblock};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The server's side of one mount.
pub struct Connection {
    /// *immutable*
    pub superblock: Arc<Superblock>,
    /// *immutable*
    pub(crate) options: MountOptions,
    /// The device number (`st_dev`) of the mount's files; 0 if the mount is elsewhere. *immutable*
    pub(crate) dev: u64,
    /// *immutable*
    channel: Arc<dyn Channel>,
    /// The result of INIT. *immutable once set*
    pub(crate) negotiated: OnceLock<Negotiated>,
    /// If the mount may outlive its server. *immutable once set*
    pub(crate) held: OnceLock<HeldState>,
    /// Under which name the file system knows this mount. *immutable once set*
    pub(crate) observer: OnceLock<ObserverId>,
    /// If the kernel is one of several that agree. *immutable once set*
    pub coherence: OnceLock<Arc<dyn Coherence>>,
    /// All locks as a file. *immutable once set*
    pub(crate) lock_file: OnceLock<LockFile>,
    /// The inodes that the kernel knows.
    pub nodes: Nodes,
    /// Its open files, where this crate serves locks.
    pub handles: Arc<Handles>,
    pub(crate) parked: Arc<Parked>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) second_looks: SecondLooks,
    /// Announcements that this thread must not make itself; see `notify`.
    later: mpsc::Sender<Event>,
    /// Seeks that wait for the kernel's pages. *immutable once set*
    pub(crate) seeks: OnceLock<mpsc::Sender<(Seek, Arc<dyn Channel>)>>,
    /// Streams that clients of the control socket send or receive. *atomic (no label: SeqCst)*
    pub(crate) transfers: Arc<AtomicUsize>,
    /// Its requests.
    pub counters: Counters,
    /// The kernel was told that it need not hand fsync on. *atomic (no label: a flag on its own)*
    pub(crate) declined_fsync: AtomicBool,
    /// A panic was reported. *atomic (no label: a flag on its own)*
    panicked: AtomicBool,
}

/// The result of INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// The kernel opens files without a message once OPEN was answered with ENOSYS.
    pub(crate) no_open: bool,
    /// The same for directories.
    pub(crate) no_opendir: bool,
    /// The kernel collects writes, and keeps size, mtime and ctime of regular files.
    pub(crate) writeback: bool,
    /// Requests come over io_uring once every queue is open.
    pub(crate) uring: bool,
    /// The kernel can be told to look a name up again that it keeps.
    pub(crate) expires_names: bool,
    /// The kernel can be served by a next server: it repeats unanswered requests (RESEND), and drops all names on demand (INC_EPOCH).
    pub(crate) resends: bool,
}

/// Where the lock file is. All *immutable*
pub(crate) struct LockFile {
    /// Its name in the root.
    pub(crate) name: Vec<u8>,
    pub(crate) nodeid: u64,
}

/// The result of serving a message.
pub struct Served<'r> {
    /// The answer, or where it comes from.
    pub answer: Answer<'r>,
    /// The opcode and when it came, if how long it takes is counted.
    pub kind: Option<(u32, Instant)>,
}

/// How a message is answered.
pub enum Answer<'r> {
    /// This answer, ready to be sent.
    Now(&'r [u8]),
    /// By `seek_later` or [`Connection::seek_at_once`], as the caller chooses.
    Seek(Seek),
    /// Another thread answers, or the message needs no answer.
    Elsewhere,
}

impl Connection {
    /// A connection to a kernel that is reached by `channel`; `later` gets what the thread that learns of it may not announce.
    pub fn new(
        superblock: Arc<Superblock>,
        options: MountOptions,
        dev: u64,
        channel: Arc<dyn Channel>,
        later: mpsc::Sender<Event>,
    ) -> Connection {
        let nodes = Nodes::new(superblock.root().clone());
        Connection {
            superblock,
            options,
            dev,
            channel,
            negotiated: OnceLock::new(),
            held: OnceLock::new(),
            observer: OnceLock::new(),
            coherence: OnceLock::new(),
            lock_file: OnceLock::new(),
            nodes,
            handles: Arc::default(),
            parked: Arc::default(),
            turns: Arc::default(),
            second_looks: SecondLooks::default(),
            later,
            seeks: OnceLock::new(),
            transfers: Arc::default(),
            counters: Counters::default(),
            declined_fsync: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        }
    }

    /// Takes one message apart, serves it and answers it, with `reply` as scratch space.
    pub(crate) fn serve(&self, message: &[u8], reply: &mut Reply) {
        let served = self.process(message, reply);
        match served.answer {
            Answer::Now(answer) => send(&*self.channel, answer),
            Answer::Seek(seek) => self.seek_by_channel(seek),
            Answer::Elsewhere => {}
        }
        self.count(served.kind);
    }

    /// Where answers go.
    pub(crate) fn channel(&self) -> &dyn Channel {
        &*self.channel
    }

    /// Has `seek` answered when the kernel has handed its pages down.
    pub(crate) fn seek_by_channel(&self, seek: Seek) {
        self.seek_later(seek, self.channel.clone());
    }

    /// Takes one message apart and serves it. An answer that is due now is built in `reply`.
    pub fn process<'r>(&self, message: &[u8], reply: &'r mut Reply) -> Served<'r> {
        reply.clear();
        let request = match Request::parse(message) {
            Ok(request) => request,
            Err(Malformed { unique: Some(unique), errno }) => {
                return Served { answer: Answer::Now(reply.failure(unique, errno)), kind: None };
            }
            Err(Malformed { unique: None, .. }) => return Served { answer: Answer::Elsewhere, kind: None },
        };
        let (opcode, arrival) = (request.header.opcode, Instant::now());
        self.counters.count(opcode);
        let (answer, parked) = self.outcome(&request.header, reply, |reply| self.handle(&request, reply));
        // The wait of a parked one is counted with the locks.
        Served { answer, kind: (!parked).then_some((opcode, arrival)) }
    }

    /// Serves the lock requests that waited for what was read before them. To be called after each request served.
    pub fn serve_due(&self, reply: &mut Reply) {
        for request in self.second_looks.due() {
            reply.clear();
            self.answer(&*self.channel, &request.header, reply, |reply| {
                self.lock_after_others(&request, reply)
            });
        }
    }

    /// Counts how long a request took, now that it is answered.
    pub fn count(&self, kind: Option<(u32, Instant)>) {
        if let Some((opcode, arrival)) = kind {
            self.counters.took(opcode, arrival.elapsed());
        }
    }

    /// Sends the result of `serve` by `channel`, if it is ready.
    pub(crate) fn answer(
        &self,
        channel: &dyn Channel,
        header: &InHeader,
        reply: &mut Reply,
        serve: impl FnOnce(&mut Reply) -> Disposition,
    ) {
        if let (Answer::Now(answer), _) = self.outcome(header, reply, serve) {
            send(channel, answer);
        }
    }

    /// The answer that `serve` finds, and whether the request is parked.
    fn outcome<'r>(
        &self,
        header: &InHeader,
        reply: &'r mut Reply,
        serve: impl FnOnce(&mut Reply) -> Disposition,
    ) -> (Answer<'r>, bool) {
        let disposition = catch_unwind(AssertUnwindSafe(|| serve(reply))).unwrap_or_else(|_| {
            self.report_panic(header.opcode);
            Disposition::Done(Err(Errno::EIO))
        });
        match disposition {
            Disposition::Done(Ok(())) => (Answer::Now(reply.success(header.unique)), false),
            Disposition::Done(Err(errno)) => (Answer::Now(reply.failure(header.unique, errno)), false),
            Disposition::NoReply => (Answer::Elsewhere, false),
            Disposition::Parked => (Answer::Elsewhere, true),
            Disposition::Seek(seek) => (Answer::Seek(seek), true),
        }
    }

    /// The means to answer request `unique` later.
    pub(crate) fn replier(&self, unique: u64) -> Replier {
        Replier::new(self.channel.clone(), unique)
    }

    /// A RELEASE was read; another thread serves it, and then drops this.
    pub fn releasing(&self) -> Releasing {
        self.turns.releasing()
    }

    /// Sends an answer.
    pub fn send(&self, answer: &[u8]) {
        send(&*self.channel, answer);
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, message: &[u8]) -> io::Result<()> {
        self.channel.send(message)
    }

    /// Has `event` announced by the mount's own thread.
    pub(crate) fn tell_later(&self, event: Event) {
        if let Some(coherence) = self.coherence.get() {
            return coherence.tell(self, &event, is_worker());
        }
        self.leave_for_later(event);
    }

    /// Has `event` announced by a thread that holds nothing: the mount's own, or whoever has the
    /// other end of `later`.
    pub(crate) fn leave_for_later(&self, event: Event) {
        // The receiver lives as long as the mount; after that there is nobody to tell.
        let _ = self.later.send(event);
    }

    /// Whether the kernel can be told to look a name up again that it keeps.
    pub fn expires_names(&self) -> bool {
        self.negotiated.get().is_some_and(|negotiated| negotiated.expires_names)
    }

    /// The inode that the kernel calls `nodeid`.
    pub(crate) fn node(&self, nodeid: u64) -> Result<InodeRef, Errno> {
        self.nodes.find(nodeid)?.ok_or(Errno::ESTALE)
    }

    /// True when this crate and not the kernel serves file locks.
    pub(crate) fn serves_locks(&self) -> bool {
        self.options.locks == LockMode::Sluice
    }

    /// The kernel is gone: gives back whatever it held. Workers must have ended.
    pub fn close(&self) {
        if let Some(observer) = self.observer.get() {
            self.superblock.unobserve(*observer);
        }
        self.withdraw_all();
        self.handles.close_all();
        if let Some(coherence) = self.coherence.get() {
            coherence.gone();
        }
        self.nodes.clear();
        self.end_held();
    }

    /// Takes back the lock requests that wait. The callers get no answer.
    pub fn withdraw_all(&self) {
        self.second_looks.clear();
        for Withdrawal { inode, ticket } in self.parked.drain() {
            inode.locks().cancel(&ticket);
        }
    }

    /// True if a request has panicked.
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Says once, on standard error, that requests panic. The panic's own message stands above it.
    #[cold]
    fn report_panic(&self, opcode: u32) {
        // Relaxed: only decides who prints.
        if !self.panicked.swap(true, Ordering::Relaxed) {
            let name = opcode::name(opcode);
            log::error!(
                "a {name} request panicked and was answered with EIO; the mount goes on. Please report it."
            );
        }
    }
}

pub(crate) fn send(channel: &dyn Channel, message: &[u8]) {
    // An error means that the request was aborted or the mount is gone: there is nobody left to tell.
    let _ = channel.send(message);
}
