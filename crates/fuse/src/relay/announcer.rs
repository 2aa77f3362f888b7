//! Announcer: tells a kernel of changes without waiting for it longer than others can wait.
//!
//! # Theory
//! INVAL_ENTRY waits in the kernel for the lock of the directory, INVAL_INODE for locked pages. Their holders may be requests
//! whose answers wait, elsewhere, until this kernel has been told. So an announcement that takes longer than [`PATIENCE`] is
//! cut short, as is one that would wait for a request that the relay knows of: the kernel is told to look *every* name up again (INC_EPOCH, which waits for nothing), and the announcement
//! counts as made. It goes on and is made later all the same. A page that is locked for so long is not up to date, and a reader
//! waits for it.
//!
//! # Limits
//! A kernel before Linux 6.16 does not know INC_EPOCH: there a name may stay for the moment until the announcement is made. So may
//! the pages behind one that is locked.

use super::Device;
use super::ledger::Ledger;
use crate::abi::flags::{NOTIFY_INC_EPOCH, NOTIFY_INVAL_INODE};
use crate::abi::{NotifyInvalInodeOut, OutHeader};
use crate::lock_class::ANNOUNCER;
use crate::reply::Reply;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::thread::{self, Builder};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex};
use sluice_vfs::Errno;
use std::collections::{BTreeMap, VecDeque};
use zerocopy::FromBytes;

/// How long others wait for an announcement.
const PATIENCE: Duration = Duration::from_millis(5);
/// Threads that are there at first, and at most.
const THREADS: usize = 2;
const THREADS_MAX: usize = 64;
/// How often an announcement that found nothing is repeated, and how long apart: the kernel is about to learn of the inode.
const REPEATS: u32 = 5;
const REPEAT_AFTER: Duration = Duration::from_millis(1);

/// Called when an announcement counts as made.
pub(super) type Done = Box<dyn FnOnce() + Send>;

pub(super) struct Announcer {
    device: Arc<dyn Device>,
    ledger: Arc<Mutex<Ledger>>,
    state: Mutex<AnnouncerState>,
    changed: Condvar,
    /// Announcements that were cut short. *atomic: a statistic*
    pub(super) cut_short: AtomicU64,
}

#[derive(Default)]
struct AnnouncerState {
    waiting: VecDeque<(Vec<u8>, Done)>,
    /// What threads are about, by a number of its own: since when, and what is to be called.
    under_way: BTreeMap<u64, (Instant, Option<Done>)>,
    next: u64,
    threads: usize,
    is_over: bool,
}

impl Announcer {
    pub(super) fn new(device: Arc<dyn Device>, ledger: Arc<Mutex<Ledger>>) -> Arc<Announcer> {
        let state = Mutex::with_class(&ANNOUNCER, AnnouncerState::default());
        Arc::new(Announcer { device, ledger, state, changed: Condvar::new(), cut_short: AtomicU64::new(0) })
    }

    /// Starts its threads.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let watch = self.clone();
        Builder::new().name("sluice-relay-watch".into()).spawn(move || watch.watch())?;
        (0..THREADS).try_for_each(|_| self.add_thread())
    }

    fn add_thread(self: &Arc<Self>) -> std::io::Result<()> {
        self.state.lock().threads += 1;
        let this = self.clone();
        let spawned = Builder::new().name("sluice-relay-notify".into()).spawn(move || this.run());
        spawned.map(drop).inspect_err(|_| self.state.lock().threads -= 1)
    }

    /// Announces `notifications`, one after the other. What waits for nothing is announced at once.
    pub(super) fn announce(&self, notifications: &[u8], done: Done) {
        let mut later = Vec::new();
        for message in split(notifications) {
            if !later.is_empty() || !waits_for_nothing(message) || !self.send(message) {
                later.extend_from_slice(message);
            }
        }
        if later.is_empty() {
            return done();
        }
        self.state.lock().waiting.push_back((later, done));
        self.changed.notify_all();
    }

    /// What is to be announced counts as announced.
    pub(super) fn cut_short(&self, done: Done) {
        self.drop_names();
        // Relaxed: a statistic.
        self.cut_short.fetch_add(1, Ordering::Relaxed);
        done();
    }

    /// Every name is to be looked up again.
    pub(super) fn drop_names(&self) {
        // An older kernel refuses.
        let _ = self.device.send(Reply::new().notification(NOTIFY_INC_EPOCH));
    }

    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        left.into_iter().for_each(|(_, done)| done());
        self.changed.notify_all();
    }

    /// False: it should be told again, because it is only about to learn of the inode.
    fn send(&self, message: &[u8]) -> bool {
        match self.device.send(message) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT.raw()) => {
                let nodeid = inval_inode(message).map(|arg| arg.ino);
                !nodeid.is_some_and(|nodeid| self.ledger.lock().knows(nodeid))
            }
            _ => true,
        }
    }

    fn run(&self) {
        loop {
            let (notifications, number) = {
                let mut state = self.state.lock();
                loop {
                    if state.is_over {
                        return;
                    }
                    if let Some((notifications, done)) = state.waiting.pop_front() {
                        let number = state.next;
                        state.next += 1;
                        state.under_way.insert(number, (Instant::now(), Some(done)));
                        // The watch looks at what is under way.
                        self.changed.notify_all();
                        break (notifications, number);
                    }
                    if state.threads > THREADS {
                        state.threads -= 1;
                        return;
                    }
                    state = self.changed.wait(state);
                }
            };
            for message in split(&notifications) {
                for _ in 0..REPEATS {
                    if self.send(message) {
                        break;
                    }
                    thread::sleep(REPEAT_AFTER);
                }
            }
            let done = self.state.lock().under_way.remove(&number).and_then(|(_, done)| done);
            if let Some(done) = done {
                done();
            }
        }
    }

    /// Cuts short what takes too long.
    fn watch(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.is_over {
            let now = Instant::now();
            let waited_for = state.under_way.values().filter(|(_, done)| done.is_some());
            let Some(first) = waited_for.map(|(since, _)| *since).min() else {
                state = self.changed.wait(state);
                continue;
            };
            let due = first + PATIENCE;
            if now < due {
                state = self.changed.wait_timeout(state, due - now).0;
                continue;
            }
            let late = state.under_way.values_mut().filter(|(since, _)| *since + PATIENCE <= now);
            let late: Vec<_> = late.filter_map(|(_, done)| done.take()).collect();
            let needs_thread = state.under_way.len() >= state.threads && state.threads < THREADS_MAX;
            drop(state);
            self.drop_names();
            // Relaxed: a statistic.
            self.cut_short.fetch_add(late.len() as u64, Ordering::Relaxed);
            late.into_iter().for_each(|done| done());
            if needs_thread && let Err(error) = self.add_thread() {
                log::error!("no further thread to tell the kernel of changes: {error}");
            }
            state = self.state.lock();
        }
    }
}

fn inval_inode(message: &[u8]) -> Option<NotifyInvalInodeOut> {
    let (header, body) = message.split_at_checked(size_of::<OutHeader>())?;
    let code = i32::from_le_bytes(header.get(4..8)?.try_into().ok()?);
    (code == NOTIFY_INVAL_INODE)
        .then(|| NotifyInvalInodeOut::read_from_prefix(body).ok())
        .flatten()
        .map(|(arg, _)| arg)
}

/// Attributes alone are forgotten without a lock.
fn waits_for_nothing(message: &[u8]) -> bool {
    inval_inode(message).is_some_and(|arg| arg.off < 0)
}

/// Each whole message of `bytes`.
fn split(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let (message, rest) = bytes.split_at_checked(len.max(size_of::<OutHeader>()))?;
        bytes = rest;
        Some(message)
    })
}
