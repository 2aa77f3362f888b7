//! Announcer: tells a kernel of changes without waiting for it longer than others can wait.
//!
//! # Theory
//! INVAL_ENTRY waits in the kernel for the lock of the directory, INVAL_INODE for locked pages. Their holders may be requests
//! whose answers wait, elsewhere, until this kernel has been told. So an announcement that takes longer than [`PATIENCE`] is
//! cut short, as is one that would wait for a request that the relay knows of: the kernel is told what waits for no request
//! (attributes, and the listing of a directory), and to look *every* name up again (INC_EPOCH, which waits for nothing), and the
//! announcement counts as made. It goes on and is made later all the same. A page that is locked for so long is not up to date,
//! and a reader waits for it. An announcement of contents that no thread was free to begin is not cut short: there is a further
//! thread for it.
//!
//! *An inode that the kernel is about to learn of.* A program was answered, and has not run since: the kernel knows nothing of the inode,
//! and will believe the answer. What is announced of it is announced again until the kernel has taken it in, or forgets the
//! inode. On a busy machine that may take longer than others can wait. Then the announcement is cut short, too: names that the program
//! has asked for are not believed then.
//!
//! # Limits
//! A kernel before Linux 6.16 does not know INC_EPOCH: there a name may stay for the moment until the announcement is made. So may
//! the pages behind one that is locked, and those of a notice whose thread the system did not let run for so long.

use super::Device;
use super::caches::{self, inval_entry_dir};
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
/// How often an announcement that found nothing is repeated before others are told, and how long apart: the kernel is about to learn of
/// the inode.
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
    /// What no thread has taken, with its number.
    waiting: VecDeque<u64>,
    /// What has not been announced, by number.
    pending: BTreeMap<u64, Undelivered>,
    next: u64,
    threads: usize,
    /// Threads that announce something. All may be waiting in the kernel.
    busy: usize,
    is_over: bool,
}

struct Undelivered {
    since: Instant,
    is_begun: bool,
    notifications: Arc<[u8]>,
    /// Called when it counts as made: not twice.
    done: Option<Done>,
    /// It counts as made only when it is.
    is_whole: bool,
}

impl AnnouncerState {
    fn queue(&mut self, notifications: Vec<u8>, done: Option<Done>, is_whole: bool) {
        let number = self.next;
        self.next += 1;
        let (since, notifications) = (Instant::now(), notifications.into());
        self.pending.insert(number, Undelivered { since, is_begun: false, notifications, done, is_whole });
        self.waiting.push_back(number);
    }

    /// Something waits for a thread, all are busy, and there may be more.
    fn lacks_thread(&self) -> bool {
        !self.waiting.is_empty() && self.busy >= self.threads && self.threads < THREADS_MAX
    }
}

impl Undelivered {
    /// When it is to be looked at: when it is late. Of contents that are late and that no thread has begun, the thread that begins them says
    /// so.
    fn due(&self, now: Instant) -> Option<Instant> {
        let due = self.since + PATIENCE;
        let is_awaited = self.done.is_some() && !self.is_whole && (due > now || self.can_be_cut_short());
        is_awaited.then_some(due)
    }

    fn can_be_cut_short(&self) -> bool {
        self.is_begun || has_name(&self.notifications)
    }
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
        self.announce_as(notifications, done, false);
    }

    /// As [`announce`](Self::announce), and it is never cut short: when `done` is called the kernel has taken it in.
    pub(super) fn announce_wholly(&self, notifications: &[u8], done: Done) {
        self.announce_as(notifications, done, true);
    }

    fn announce_as(&self, notifications: &[u8], done: Done, is_whole: bool) {
        let mut later = Vec::new();
        for message in split(notifications) {
            if !later.is_empty() || !waits_for_nothing(message) || !self.send(message) {
                later.extend_from_slice(message);
            }
        }
        if later.is_empty() {
            return done();
        }
        self.state.lock().queue(later, Some(done), is_whole);
        self.changed.notify_all();
    }

    /// Announces `notifications`, of which the kernel takes in a part only after a request that waits for them: they count as
    /// announced.
    pub(super) fn cut_short(&self, notifications: &[u8], done: Done) {
        self.announce(notifications, Box::new(|| {}));
        self.tell_at_once(notifications);
        self.drop_names();
        // Relaxed: a statistic.
        self.cut_short.fetch_add(1, Ordering::Relaxed);
        done();
    }

    /// Tells the kernel of attributes and listings. With names comes a directory, whose pages no request keeps locked.
    fn tell_at_once(&self, notifications: &[u8]) {
        let has_name = has_name(notifications);
        for message in split(notifications) {
            match inval_inode(message) {
                Some(_) if has_name => drop(self.send(message)),
                Some(arg) => drop(self.send(&caches::inval_inode(arg.ino, -1, 0))),
                None => {}
            }
        }
    }

    /// Every name is to be looked up again.
    pub(super) fn drop_names(&self) {
        // An older kernel refuses.
        let _ = self.device.send(Reply::new().notification(NOTIFY_INC_EPOCH));
    }

    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let numbers = std::mem::take(&mut state.waiting).into_iter();
        let left: Vec<_> = numbers.filter_map(|number| state.pending.remove(&number)?.done).collect();
        drop(state);
        left.into_iter().for_each(|done| done());
        self.changed.notify_all();
    }

    /// False: it should be told again, because it is only about to learn of the inode.
    fn send(&self, message: &[u8]) -> bool {
        match self.device.send(message) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT.raw()) => {
                let Some(nodeid) = inval_inode(message).map(|arg| arg.ino) else { return true };
                let mut ledger = self.ledger.lock();
                let knows = ledger.knows(nodeid);
                if !knows {
                    // An answer that tells of it may be on its way.
                    ledger.doubts.note(nodeid);
                }
                !knows
            }
            _ => true,
        }
    }

    fn run(&self) {
        loop {
            let (number, notifications) = {
                let mut state = self.state.lock();
                loop {
                    if state.is_over {
                        return;
                    }
                    if let Some(number) = state.waiting.pop_front()
                        && let Some(pending) = state.pending.get_mut(&number)
                    {
                        pending.is_begun = true;
                        let is_late = pending.since + PATIENCE <= Instant::now();
                        let notifications = pending.notifications.clone();
                        state.busy += 1;
                        if is_late || state.lacks_thread() {
                            // The watch does not know yet.
                            self.changed.notify_all();
                        }
                        break (number, notifications);
                    }
                    if state.threads - state.busy > THREADS {
                        state.threads -= 1;
                        return;
                    }
                    state = self.changed.wait(state);
                }
            };
            let mut early = Vec::new();
            for message in split(&notifications) {
                let mut tries = 0..REPEATS;
                while !self.send(message) {
                    if tries.next().is_none() {
                        early.extend_from_slice(message);
                        break;
                    }
                    thread::sleep(REPEAT_AFTER);
                }
            }
            let is_early = !early.is_empty();
            let done = {
                let mut state = self.state.lock();
                state.busy -= 1;
                if is_early {
                    state.queue(early, None, false);
                }
                state.pending.remove(&number).and_then(|pending| pending.done)
            };
            if let Some(done) = done {
                if is_early {
                    self.drop_names();
                    // Relaxed: a statistic.
                    self.cut_short.fetch_add(1, Ordering::Relaxed);
                }
                done();
            }
        }
    }

    /// Cuts short what takes too long.
    fn watch(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.is_over {
            let now = Instant::now();
            // What waits for a thread, when all are in the kernel, gets one more when it would be due.
            let for_thread = state.waiting.front().and_then(|number| state.pending.get(number));
            let for_thread = for_thread.filter(|_| state.lacks_thread()).map(|first| first.since + PATIENCE);
            let dues = state.pending.values().filter_map(|pending| pending.due(now));
            let due = dues.chain(for_thread).min();
            let Some(due) = due else {
                state = self.changed.wait(state);
                continue;
            };
            if now < due {
                state = self.changed.wait_timeout(state, due - now).0;
                continue;
            }
            let needs_thread = for_thread.is_some_and(|due| due <= now);
            let is_late = |pending: &&mut Undelivered| {
                pending.can_be_cut_short() && pending.due(now).is_some_and(|due| due <= now)
            };
            let late = state.pending.values_mut().filter(is_late);
            let late: Vec<_> = late
                .filter_map(|pending| Some((pending.notifications.clone(), pending.done.take()?)))
                .collect();
            drop(state);
            if !late.is_empty() {
                late.iter().for_each(|(notifications, _)| self.tell_at_once(notifications));
                self.drop_names();
                // Relaxed: a statistic.
                self.cut_short.fetch_add(late.len() as u64, Ordering::Relaxed);
                late.into_iter().for_each(|(_, done)| done());
            }
            if needs_thread && let Err(error) = self.add_thread() {
                log::error!("no further thread to tell the kernel of changes: {error}");
                thread::sleep(PATIENCE);
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

/// Whether a name is among them.
fn has_name(notifications: &[u8]) -> bool {
    split(notifications).any(|message| inval_entry_dir(message).is_some())
}

/// Attributes alone are forgotten without a lock.
fn waits_for_nothing(message: &[u8]) -> bool {
    inval_inode(message).is_some_and(|arg| arg.off < 0)
}

/// Each whole message of `bytes`.
pub(super) fn split(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let (message, rest) = bytes.split_at_checked(len.max(size_of::<OutHeader>()))?;
        bytes = rest;
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::mpsc;

    /// A kernel that takes in no notice about a name before it may, and says so of an inode until then that it does not know it.
    #[derive(Default)]
    struct Slow {
        may: Mutex<bool>,
        changed: Condvar,
        /// Notices that were taken in.
        taken: AtomicU64,
    }

    impl Device for Slow {
        fn receive(&self, _: &mut [u8]) -> std::io::Result<Option<usize>> {
            Ok(None)
        }

        fn send(&self, message: &[u8]) -> std::io::Result<()> {
            let code = OutHeader::read_from_prefix(message).map_or(0, |(header, _)| header.error);
            let mut may = self.may.lock();
            if code == NOTIFY_INVAL_INODE && !*may {
                return Err(Errno::ENOENT.into());
            }
            while code != NOTIFY_INC_EPOCH && !*may {
                may = self.changed.wait(may);
            }
            // Relaxed, here and below: a count.
            self.taken.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn is_connected(&self) -> bool {
            true
        }
    }

    #[test]
    fn an_announcement_counts_as_made_though_every_thread_waits_in_the_kernel() {
        let kernel = Arc::new(Slow::default());
        let announcer = Announcer::new(kernel.clone(), Arc::new(Mutex::new(Ledger::default())));
        announcer.start().expect("threads");
        let name = Reply::new().notification(crate::abi::flags::NOTIFY_INVAL_ENTRY).to_vec();
        // One after the other, so that all threads of the beginning are in the kernel, and each further one has come and gone.
        for _ in 0..2 * THREADS + 1 {
            let (done, heard) = mpsc::channel();
            announcer.announce(&name, Box::new(move || done.send(()).expect("somebody listens")));
            assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(()), "others wait for it");
            thread::sleep(4 * PATIENCE);
        }
        *kernel.may.lock() = true;
        kernel.changed.notify_all();
        announcer.end();
    }
    #[test]
    fn a_kernel_that_learns_of_an_inode_late_is_told_all_the_same_and_others_do_not_wait_for_that() {
        let kernel = Arc::new(Slow::default());
        let announcer = Announcer::new(kernel.clone(), Arc::new(Mutex::new(Ledger::default())));
        announcer.start().expect("threads");
        // The root is always known.
        let notice = caches::inval_inode(crate::abi::ROOT_ID, -1, 0);
        let (done, heard) = mpsc::channel();
        announcer.announce(&notice, Box::new(move || done.send(()).expect("somebody listens")));
        assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(()), "others wait for it");
        let taken = || kernel.taken.load(Ordering::Relaxed);
        assert_ne!(taken(), 0, "names that were asked for before are believed");
        thread::sleep(4 * REPEATS * REPEAT_AFTER);
        let before = taken();
        *kernel.may.lock() = true;
        let begun = Instant::now();
        while taken() == before {
            assert!(begun.elapsed() < Duration::from_secs(30), "it is never told");
            thread::sleep(REPEAT_AFTER);
        }
        announcer.end();
    }
}
