//! Relay: a mount whose requests are served elsewhere: by a [`Guest`] of this process, or by another process.
//!
//! # Theory
//! A relay reads requests from `/dev/fuse` and hands them to its server; answers come back by [`Relay::answer`]. The server may
//! go and another take its place: the relay keeps each request until it is answered, and a [ledger] of what the kernel holds.
//!
//! ```text
//!   detach ──> no server: requests wait ──> holdings to the next server ──> attach: what was not answered is sent again
//! ```
//!
//! One thread at a time reads, and hands its request on before the next one reads. So requests reach a server in the order in
//! which the kernel makes them. A request for a guest of this process is served by the thread that has read it. While one client
//! is at work no other reads meanwhile, and the thread stays on the client's CPU ([`Crew`]).
//!
//! # Clients must
//! - give each server a [number](Relay::next_attachment) of its own, and pass its answers on with that: those of a server that is
//!   detached count for nothing;
//! - pass on the messages of a remote server in the order in which it sends them.
//!
//! # Lock order
//! `relay.reading`, held while a request is awaited and handed on; within it `relay.state`, then `relay.ledger`. An [`Uplink`] is
//! given requests with the first two, and flushed with none.

mod announcer;
mod behind;
#[cfg(test)]
mod behind_tests;
mod caches;
mod changes;
mod device;
mod doubt;
mod ending;
#[cfg(test)]
mod hostile_tests;
mod knowledge;
mod ledger;
mod lock_cache;
mod mkdir;
mod near;
mod notices;
mod numbers;
mod old_reads;
mod overdue;
mod parking;
mod received;
mod refused;
mod rmdir;
mod stat;
#[cfg(test)]
mod tests;
mod workspaces;

use crate::guest::{Guest, Holdings, Lost, cover_recalled, recalled};
use crate::lock_class::{CONTROL, LEDGER, READING, RELAY};
use announcer::{Announcer, Done};
use behind::{SentBehind, error_of};
use caches::{Busy, apart, changes_names_of};
use changes::UnderWay;
pub use device::Device;
use knowledge::Knowledge;
use ledger::Ledger;
use lock_cache::LockCache;
use near::Reader;
pub use near::RestoredGuest;
use notices::{inval_entry_dir, inval_inode_arg, split};
use sluice_fuse::internal::abi::OutHeader;
use sluice_fuse::internal::{Counters, Crew, DevFuse, HEADROOM, Reply, control, mount};
use sluice_fuse::{Ended, MountError, MountOptions, StopSignals, StorageStat, opcode};
use sluice_sync::atomic::AtomicBool;
use sluice_sync::thread::Builder;
use sluice_sync::time::Instant;
use sluice_sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use sluice_vfs::Errno;
pub use stat::RelayCounts;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
#[cfg(test)]
pub(crate) use tests::message;
use workspaces::{NumberedDevice, Workspaces};
use zerocopy::FromBytes;

/// Where a relay's requests go.
#[derive(Clone)]
pub enum Server {
    /// A guest of this process.
    Local(Arc<Guest>),
    /// Elsewhere.
    Remote(Arc<dyn Uplink>),
}

/// The way to a server elsewhere.
pub trait Uplink: Send + Sync {
    /// Queues a request. Does not wait: what cannot be sent is sent again to the next server.
    fn request(&self, message: &[u8]);
    /// Sends what is queued. Called with nothing locked, after one request or several.
    fn flush(&self) {}
}

/// A mounted file system that is served elsewhere. Dropping it unmounts.
pub struct Relay(Arc<Shared>);

struct Shared {
    /// *immutable*
    dir: PathBuf,
    /// *immutable*
    number: (u32, u32),
    /// The number of the file system among those of the mount; 0 for that of the mount's root. *immutable*
    workspace: u32,
    workspaces: Arc<Workspaces>,
    /// Itself. *set once*
    own: OnceLock<Weak<Shared>>,
    device: Arc<dyn Device>,
    /// Held by the thread that reads the device.
    reading: Mutex<()>,
    /// It awaits a request. *atomic: a guess of what may be unread*
    is_reading: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
    ledger: Arc<Mutex<Ledger>>,
    announcer: Arc<Announcer>,
    counters: Counters,
    /// Changes are durable when they are answered. *immutable*
    is_synchronous: bool,
    /// Whether reading, and listing, moves access times. *immutable*
    updates_atime: [bool; 2],
    /// Tells of the storage below the file system while this node has it. *immutable*
    storage_stat: Option<StorageStat>,
    /// Answers questions. *protected by its own mutex*, a leaf
    control: Mutex<Option<control::Server>>,
}

#[derive(Default)]
struct State {
    server: Option<Server>,
    /// Requests that were not answered, with a number that tells their order.
    in_flight: HashMap<u64, InFlight>,
    last: u64,
    /// FORGETs since the holdings were told to a server that is not attached yet.
    forgets: Vec<Vec<u8>>,
    /// The number of the server that is or was attached, and the last one given out.
    attachment: u64,
    next_attachment: u64,
    threads: usize,
    is_detached: bool,
    locks: LockCache,
    knowledge: Knowledge,
    behind: SentBehind,
    counts: RelayCounts,
    /// How often a server was attached.
    attachments: u64,
    /// The relay has ended, and so each request fails.
    ended: Option<Errno>,
    parked: RelayParking,
}

/// Whether a relay is without a server because nobody uses its workspace.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RelayParking {
    /// The relay has a server, or needs one now.
    #[default]
    No,
    /// The kernel has inodes of the workspace: the next request is to find the relay a server.
    Waits,
    /// The kernel has nothing: the relay has ended, and the workspace's next request makes another one.
    Ended,
}

struct InFlight {
    order: u64,
    /// The kernel has its answer.
    is_behind: bool,
    /// People were told that it waits.
    is_told: bool,
    message: Vec<u8>,
    /// The request's number among those under way, if it changes something.
    slot: Option<u16>,
    /// The number of answered changes when the request was made.
    changes: u64,
    opcode: u32,
    arrival: Instant,
    /// Delegations, or covers, up to this number are void if the answer has one.
    void: u64,
    /// Its number among the requests that may change the attributes of its directory, if that is covered and no other of them is
    /// under way; else 0.
    number_in_dir: u64,
    /// The number of changes of extended attributes when the request was made.
    xattr_changes: u64,
    /// The request must be sent again: its answer may be old.
    is_old: bool,
}

impl Relay {
    /// Mounts on `dir`. Nothing is answered before a server is [attached](Self::attach).
    ///
    /// # Errors
    /// A [`MountError`]; nothing is left mounted.
    pub fn mount(dir: &Path, options: &MountOptions) -> Result<Relay, MountError> {
        let dir = mount::mountpoint(dir)?;
        mount::check_checks(options)?;
        let (device, number) = mount::mount(&dir, options)?;
        Relay::over(Arc::new(DevFuse::new(device)), dir, number, options)
    }

    fn over(
        device: Arc<dyn Device>,
        dir: PathBuf,
        number: (u32, u32),
        options: &MountOptions,
    ) -> Result<Relay, MountError> {
        let buffer_len = options.max_write as usize + HEADROOM;
        let crew = Arc::new(Crew::new(options.thread_count()));
        let threads = crew.workers();
        let workspaces: Arc<Workspaces> = Arc::default();
        let device = Arc::new(NumberedDevice { device, number: 0, workspaces: workspaces.clone() });
        let relay = Relay::new(Shared {
            dir,
            number,
            workspace: 0,
            workspaces,
            is_synchronous: options.synchronous,
            updates_atime: [options.updates_atime(), options.updates_dir_atime()],
            storage_stat: options.storage_stat.clone(),
            ..Shared::over(device, threads)
        })?;
        // All are counted already: readers that cannot be started are uncounted as they are dropped.
        let readers: Vec<_> = (0..threads).map(|_| Reader(relay.0.clone(), crew.clone())).collect();
        let own_session = options.own_session;
        for (number, reader) in readers.into_iter().enumerate() {
            let thread = Builder::new().name(format!("sluice-fuse-{number}"));
            thread
                .spawn(move || reader.run(buffer_len, own_session))
                .map_err(|error| MountError::System("start a thread", error))?;
        }
        Ok(relay)
    }

    /// A relay with its announcer. From here on, whatever fails, dropping it unmounts.
    fn new(shared: Shared) -> Result<Relay, MountError> {
        let relay = Relay(Arc::new(shared));
        let of = Arc::downgrade(&relay.0);
        // Nobody else sets these.
        let _ = relay.0.own.set(of.clone());
        let is_held = move |notices: &[u8], is_stuck| {
            of.upgrade().is_none_or(|shared| shared.is_held(notices, is_stuck))
        };
        let _ = relay.0.announcer.is_held.set(Box::new(is_held));
        relay.0.announcer.start().map_err(|error| MountError::System("start a thread", error))?;
        Ok(relay)
    }

    /// Where the file system is mounted, as an absolute path.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// The mount's device number (`st_dev`), as major and minor.
    pub fn device(&self) -> (u32, u32) {
        self.0.number
    }

    /// Takes the server away: requests wait from here on. The kernel drops all that it has cached. Returns what it holds, for the
    /// next server.
    pub fn detach(&self) -> Holdings {
        let recalls = {
            let mut state = self.0.state.lock();
            state.server = None;
            // Locks that were granted here are in the ledger.
            state.locks.clear();
            state.knowledge.clear();
            state.behind.take_recalls()
        };
        drop(recalls);
        self.0.drop_caches();
        self.holdings()
    }

    /// The kernel's current holdings, while there is no server: for a server that is to be attached.
    pub fn holdings(&self) -> Holdings {
        let mut state = self.0.state.lock();
        state.forgets.clear();
        let behind = state.behind_in_order();
        Holdings { behind, ..self.0.ledger.lock().holdings() }
    }

    /// The next server, which knows the [`Holdings`] and found that so much is lost: it gets what was not answered, in
    /// the order of the kernel. `is_another`: the server goes on from the durable state, and other changes may be lost.
    /// Its answers have the number `attachment`.
    pub fn attach(&self, attachment: u64, server: Server, lost: &Lost, is_another: bool) {
        let shared = &self.0;
        let again = {
            let mut state = shared.state.lock();
            {
                let mut ledger = shared.ledger.lock();
                ledger.lost(&lost.handles);
                if is_another {
                    ledger.taken_over(lost, &UnderWay::all(&state.in_flight));
                }
            }
            if is_another || !lost.handles.is_empty() {
                shared.fail_what_is_lost(&mut state);
            }
            state.attachments += 1;
            let mut waiting: Vec<_> =
                state.in_flight.values().map(|request| (request.order, request.message.clone())).collect();
            waiting.extend(std::mem::take(&mut state.forgets).into_iter().map(|forget| (0, forget)));
            waiting.sort_unstable_by_key(|(order, _)| *order);
            if let Server::Remote(uplink) = &server {
                waiting.iter().for_each(|(_, message)| uplink.request(message));
            }
            // Another server counts from the start.
            state.locks.clear();
            state.knowledge.clear();
            state.behind.agreed();
            state.in_flight.values_mut().for_each(|request| (request.void, request.number_in_dir) = (0, 0));
            state.server = Some(server.clone());
            state.attachment = attachment;
            waiting
        };
        shared.flush();
        shared.settle_behind(shared.state.lock());
        if let Server::Local(guest) = server {
            // Requests that come meanwhile may overtake these: their callers do not wait for each other.
            let serve = move || {
                let tickets: Vec<_> = again.iter().map(|(_, message)| guest.take(message)).collect();
                for (ticket, (_, mut message)) in tickets.into_iter().zip(again) {
                    guest.serve(ticket, &mut message);
                }
            };
            let spawned = Builder::new().name("sluice-fuse-again".into()).spawn(serve);
            if let Err(error) = spawned {
                log::error!("requests that waited for a server stay unanswered: {error}");
            }
        }
    }

    /// Whether changes that the kernel was told of were lost with a server, or would be if there is no other.
    pub fn has_lost_changes(&self) -> bool {
        let has_server = self.0.state.lock().server.is_some();
        self.0.ledger.lock().changes.are_lost(has_server)
    }

    /// A number for the next server.
    pub fn next_attachment(&self) -> u64 {
        let mut state = self.0.state.lock();
        state.next_attachment += 1;
        state.next_attachment
    }

    /// Has the kernel get an answer of the server with the number `attachment`.
    pub fn answer(&self, attachment: u64, answer: &[u8]) {
        self.0.answer(attachment, answer);
    }

    /// Has the kernel told of a change. `done` is called when the kernel has been told, or when the wait must end.
    pub fn announce(&self, notifications: &[u8], done: impl FnOnce() + Send + 'static) {
        self.0.announce(notifications, Box::new(done));
    }

    /// Whether the kernel still has the mount.
    pub fn is_mounted(&self) -> bool {
        self.0.state.lock().threads > 0
    }

    /// Unmounts, like [`Mount::unmount`](sluice_fuse::Mount::unmount).
    ///
    /// # Errors
    /// Errors of [`Mount::unmount`](sluice_fuse::Mount::unmount).
    pub fn unmount(&self) -> Result<(), MountError> {
        self.0.unmount()
    }

    /// Takes the mount out of the tree even if it is in use.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn unmount_lazily(&self) -> Result<(), MountError> {
        self.0.unmount_lazily()
    }

    /// Serves until somebody unmounts or one of `signals` comes, which unmounts.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn run_until_signal(&self, signals: StopSignals) -> io::Result<Ended> {
        let shared = self.0.clone();
        let stop = signals.on_each(move || {
            if shared.unmount().is_err()
                && let Err(error) = shared.unmount_lazily()
            {
                log::error!("{error}");
            }
        })?;
        self.0.wait();
        stop.end();
        let state = self.0.state.lock();
        Ok(if state.threads == 0 { Ended::Unmounted } else { Ended::Detached })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.0.unmount().is_err() {
            // In use, or worse: a destructor has nobody to tell.
            let _ = self.0.unmount_lazily();
        }
        let control = self.0.control.lock().take();
        drop(control);
        self.0.fail_what_waits(Errno::EIO);
        self.0.announcer.end();
    }
}

impl Shared {
    /// The parts of a relay over `device`, which `threads` read.
    fn over(device: Arc<dyn Device>, threads: usize) -> Shared {
        let ledger = Arc::new(Mutex::with_class(&LEDGER, Ledger::default()));
        let announcer = Announcer::new(device.clone(), ledger.clone());
        Shared {
            dir: PathBuf::new(),
            number: device::NO_MOUNT,
            workspace: 0,
            workspaces: Arc::default(),
            own: OnceLock::new(),
            device,
            reading: Mutex::with_class(&READING, ()),
            is_reading: AtomicBool::new(false),
            state: Mutex::with_class(&RELAY, State { threads, ..State::default() }),
            ended: Condvar::new(),
            ledger,
            announcer,
            counters: Counters::default(),
            is_synchronous: false,
            updates_atime: [true; 2],
            storage_stat: None,
            control: Mutex::with_class(&CONTROL, None),
        }
    }

    /// A relay of this mount for workspace `workspace`, whose kernel is known and has nothing of it.
    ///
    /// # Errors
    /// Without threads.
    fn new_relay(&self, workspace: u32) -> Result<Relay, MountError> {
        let (device, workspaces) = (self.device.clone(), self.workspaces.clone());
        let device = NumberedDevice { device, number: workspace, workspaces: workspaces.clone() };
        let parts = Shared::over(Arc::new(device), 0);
        let ledger = self.ledger.lock().of_same_kernel();
        *parts.ledger.lock() = ledger;
        Relay::new(Shared {
            workspace,
            workspaces,
            is_synchronous: self.is_synchronous,
            updates_atime: self.updates_atime,
            ..parts
        })
    }

    fn announce(&self, notifications: &[u8], done: Done) {
        if let Some((nodeid, serial)) = recalled(notifications) {
            self.recall(nodeid, serial);
            self.flush();
            return done();
        }
        if let Some((nodeid, serial)) = cover_recalled(notifications) {
            return self.uncover(nodeid, serial, done);
        }
        let (is_busy, writes) = {
            let mut state = self.state.lock();
            state.counts.notices += 1;
            for arg in split(notifications).filter_map(inval_inode_arg) {
                state.knowledge.may_have_xattrs(arg.ino);
            }
            let dir = split(notifications).find_map(inval_entry_dir);
            let is_busy = dir.is_some_and(|dir| {
                state.in_flight.values().any(|request| changes_names_of(&request.message, dir))
            });
            (is_busy, if dir.is_none() { state.busy(|code| code == opcode::WRITE) } else { Busy::new() })
        };
        if is_busy {
            // The kernel would take the notice in only after that request is answered, which may have to wait for this
            // notice.
            return self.announcer.cut_short(notifications, done);
        }
        self.announcer.announce(&apart(notifications, &writes), done);
    }

    fn answer(&self, attachment: u64, answer: &[u8]) {
        let Ok((out, _)) = OutHeader::read_from_prefix(answer) else { return };
        let corrected;
        let mut answer = answer;
        let (request, for_kernel) = {
            let mut state = self.state.lock();
            if attachment != state.attachment || state.server.is_none() {
                return;
            }
            let Some(request) = state.in_flight.remove(&out.unique) else { return };
            if request.is_old {
                self.ask_again(&mut state, out.unique, request);
                drop(state);
                return self.flush();
            }
            self.counters.took(request.opcode, request.arrival.elapsed());
            if request.is_behind {
                self.end_behind(&mut state, &request, error_of(&request.message, answer));
                return self.settle_behind(state);
            }
            let for_kernel = if let Some(failure) = self.take_failure(&request, &out) {
                Some(failure)
            } else {
                {
                    let mut ledger = self.ledger.lock();
                    ledger.answered(&request.message, answer, request.changes);
                    corrected = ledger.doubts.correct(request.opcode, request.arrival, answer);
                    if state.in_flight.is_empty() {
                        ledger.doubts.clear();
                    }
                }
                answer = corrected.as_deref().unwrap_or(answer);
                let learnt = self.learn(&mut state, &request, answer);
                learnt.or_else(|| self.take_delegation(&mut state, &request, answer))
            };
            (request, for_kernel)
        };
        match &for_kernel {
            None if self.answers_for_workspace(&request.message, &out) => {}
            _ => self.tell(request.opcode, for_kernel.as_deref().unwrap_or(answer)),
        }
        if for_kernel.is_some() {
            // Locks may have been given back.
            self.flush();
        }
    }

    /// The relay of a workspace ends, and the mount goes on perhaps: what waits fails, and what comes.
    fn fail_what_waits(&self, errno: Errno) {
        if self.workspace == 0 {
            return;
        }
        let waiting: Vec<_> = {
            let mut state = self.state.lock();
            state.server = None;
            state.ended.get_or_insert(errno);
            let waiting = state.in_flight.drain().filter(|(_, request)| !request.is_behind);
            waiting.map(|(unique, request)| (unique, request.opcode)).collect()
        };
        waiting.into_iter().for_each(|(unique, code)| {
            self.tell(code, Reply::new().failure(unique, errno));
        });
    }

    /// Sends what is queued for a server elsewhere.
    fn flush(&self) {
        let server = self.state.lock().server.clone();
        if let Some(Server::Remote(uplink)) = server {
            uplink.flush();
        }
    }
}
