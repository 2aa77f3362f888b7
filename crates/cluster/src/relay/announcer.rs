//! Announcer: tells a kernel of changes without waiting for it longer than others can wait.
//!
//! # Theory
//! INVAL_ENTRY waits in the kernel for the lock of the directory, INVAL_INODE for locked pages. Their holders may be
//! requests whose answers wait, elsewhere, until this kernel has been told. So an announcement that takes longer than
//! [`PATIENCE`] is cut short, as is one that would wait for a request that the relay knows of: the kernel is told what
//! waits for no request (attributes, and the listing of a directory), and to look *every* name up again (INC_EPOCH,
//! which waits for nothing), and the announcement counts as made. The announcement still goes on, and is made later. A
//! page that is locked for so long is not up to date, and a reader waits for it.
//!
//! *Lanes.* Each part of an announcement has a [lane](Lane): what waits for the same lock of the kernel. For each lane,
//! one part is in the kernel, and one waits; later parts merge into the waiting one. So the number of threads in the
//! kernel is the number of locks that are held there, not the number of changes. A part that waits in its lane waits
//! for a lock that is held: its announcement may be cut short. A part that no thread was free to begin may have pages
//! that are not locked: it gets a further thread. With [`THREADS_MAX`] threads in the kernel its announcement may be
//! cut short, too.
//!
//! *An inode that the kernel is about to learn of.* A program was answered, and has not run since: the kernel knows
//! nothing of the inode, and will believe the answer. An announcement of the inode is repeated until the kernel has
//! taken it in, or forgets the inode. On a busy machine that may take longer than others can wait. Then the
//! announcement is cut short, too: names that the program has asked for are not believed then.
//!
//! # Limits
//! A kernel before Linux 6.16 does not know INC_EPOCH: there a name may stay for the moment until the announcement is made. So may
//! the pages behind one that is locked. An announcement of pages about which no request is under way is not cut short: its thread
//! waits for a CPU, not for a request.

use super::Device;
use super::ledger::Ledger;
use super::notices::{inval_entry_dir, inval_inode, inval_inode_arg, split};
use crate::lock_class::ANNOUNCER;
use sluice_fuse::internal::Reply;
use sluice_fuse::internal::abi::flags::{NOTIFY_INC_EPOCH, NOTIFY_STORE};
use sluice_fuse::internal::abi::{NotifyStoreOut, OutHeader};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::thread::{self, Builder};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex, OnceLock};
use sluice_vfs::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use zerocopy::FromBytes;

/// How long others wait for an announcement.
const PATIENCE: Duration = Duration::from_millis(5);
/// The initial and the largest number of threads.
const THREADS: usize = 2;
const THREADS_MAX: usize = 64;
/// How often an announcement that found nothing is repeated before others are told, and how long apart: the kernel is about to learn of
/// the inode.
const REPEATS: u32 = 5;
const REPEAT_AFTER: Duration = Duration::from_millis(1);
/// After so long a lock is taken to be held by a request that no thread has read, if none reads.
const STUCK: Duration = Duration::from_secs(1);

/// Called when an announcement counts as made.
pub(super) type Done = Box<dyn FnOnce() + Send>;
type IsHeld = Box<dyn Fn(&[u8], bool) -> bool + Send + Sync>;

pub(super) struct Announcer {
    device: Arc<dyn Device>,
    ledger: Arc<Mutex<Ledger>>,
    state: Mutex<AnnouncerState>,
    changed: Condvar,
    /// Whether notices wait for a request, as far as is known; or, if they are stuck, as may be. *set once*
    pub(super) is_held: OnceLock<IsHeld>,
    /// Announcements that were cut short. *atomic: a statistic*
    pub(super) cut_short: AtomicU64,
}

#[derive(Default)]
struct AnnouncerState {
    /// By lane, its part in the kernel and its part that waits.
    lanes: HashMap<Lane, LaneQueue>,
    /// Lanes with a part that no thread has taken.
    ready: VecDeque<Lane>,
    /// Announcements under way, by number.
    pending: BTreeMap<u64, Undelivered>,
    next: u64,
    threads: usize,
    /// Threads that announce something. All may be waiting in the kernel.
    busy: usize,
    is_over: bool,
}

/// The number of an announcement that takes long, its notices, and whether it is stuck.
type Late = (u64, Arc<[u8]>, bool);

/// The announcements that wait for the same lock of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Lane {
    /// Names of a directory.
    Names(u64),
    /// Contents of a node: the offset and the length.
    Contents(u64, i64, i64),
    /// New bytes of a node that has grown.
    Growth(u64),
    /// Nothing else: the number of an announcement.
    Own(u64),
}

#[derive(Default)]
struct LaneQueue {
    /// A thread is in the kernel with the part before.
    is_begun: bool,
    waiting: Option<LanePart>,
}

/// A part of announcements.
#[derive(Default)]
struct LanePart {
    messages: Vec<u8>,
    /// The numbers of the announcements.
    of: Vec<u64>,
}

struct Undelivered {
    since: Instant,
    /// The time when it was found not to wait for a request.
    looked: Instant,
    /// How many parts the kernel has not taken in, and how many of these wait for a thread.
    left: usize,
    unbegun: usize,
    notifications: Arc<[u8]>,
    /// Called when it counts as made: not twice.
    done: Option<Done>,
    /// The announcement is never cut short.
    is_whole: bool,
    /// A part of it is only being learnt of.
    is_early: bool,
}

impl LanePart {
    fn merge(&mut self, messages: &[u8], of: u64) {
        // The notice of a directory's pages comes after the notice of a name: so an existing message moves to the end.
        for message in split(messages) {
            if let Some(at) = split_at(&self.messages, message) {
                self.messages.drain(at..at + message.len());
            }
            self.messages.extend_from_slice(message);
        }
        self.of.push(of);
    }
}

impl AnnouncerState {
    fn queue(&mut self, notifications: Vec<u8>, done: Option<Done>, is_whole: bool) {
        let number = self.next;
        self.next += 1;
        let mut parts: Vec<(Lane, &[u8])> = Vec::new();
        let growth = growth(&notifications);
        if is_whole {
            parts.push((Lane::Own(number), &notifications));
        } else if let Some(dir) = split(&notifications).find_map(inval_entry_dir) {
            parts.push((Lane::Names(dir), &notifications));
        } else {
            for message in split(&notifications).filter(|message| stored(message).is_none()) {
                let lane = inval_inode_arg(message)
                    .map_or(Lane::Own(number), |arg| Lane::Contents(arg.ino, arg.off, arg.len));
                parts.push((lane, message));
            }
        }
        parts.extend(growth.as_ref().map(|(nodeid, messages)| (Lane::Growth(*nodeid), &messages[..])));
        let (left, mut unbegun) = (parts.len(), 0);
        for (lane, messages) in parts {
            let queue = self.lanes.entry(lane).or_default();
            if queue.waiting.is_none() && !queue.is_begun {
                self.ready.push_back(lane);
            }
            unbegun += usize::from(!queue.is_begun);
            queue.waiting.get_or_insert_default().merge(messages, number);
        }
        let (since, notifications) = (Instant::now(), notifications.into());
        let undelivered = Undelivered {
            since,
            looked: since,
            left,
            unbegun,
            notifications,
            done,
            is_whole,
            is_early: false,
        };
        self.pending.insert(number, undelivered);
    }

    /// A part of a lane that no thread has taken, for the calling thread.
    fn begin(&mut self) -> Option<(Lane, LanePart)> {
        let lane = self.ready.pop_front()?;
        let queue = self.lanes.get_mut(&lane)?;
        queue.is_begun = true;
        let part = queue.waiting.take().unwrap_or_default();
        for number in &part.of {
            if let Some(pending) = self.pending.get_mut(number) {
                pending.unbegun -= 1;
            }
        }
        Some((lane, part))
    }

    /// A part was made. Returns what announcements that were, and what the thread is to begin next of the lane.
    fn made(&mut self, lane: Lane, part: &LanePart, is_early: bool) -> (Vec<(Done, bool)>, Option<LanePart>) {
        let mut made = Vec::new();
        for number in &part.of {
            let Some(pending) = self.pending.get_mut(number) else { continue };
            pending.left -= 1;
            pending.is_early |= is_early;
            if pending.left == 0
                && let Some(pending) = self.pending.remove(number)
            {
                made.extend(pending.done.map(|done| (done, pending.is_early)));
            }
        }
        let next = self.lanes.get_mut(&lane).and_then(|queue| queue.waiting.take());
        if next.is_none() {
            self.lanes.remove(&lane);
        }
        (made, next)
    }

    /// Whether a part waits for a thread while all threads are busy, and the limit allows another.
    fn lacks_thread(&self) -> bool {
        !self.ready.is_empty() && self.busy >= self.threads && self.threads < THREADS_MAX
    }

    fn first_ready(&self) -> Option<&Undelivered> {
        let part = self.lanes.get(self.ready.front()?)?.waiting.as_ref()?;
        self.pending.get(part.of.first()?)
    }
}

impl Undelivered {
    /// The time of its next check: when the announcement is late. For late contents without a thread, the thread that
    /// begins them triggers the check.
    fn due(&self, now: Instant, may_have_thread: bool) -> Option<Instant> {
        let due = self.looked + PATIENCE;
        let is_awaited =
            self.done.is_some() && !self.is_whole && (due > now || self.can_be_cut_short(may_have_thread));
        is_awaited.then_some(due)
    }

    fn can_be_cut_short(&self, may_have_thread: bool) -> bool {
        self.unbegun == 0 || !may_have_thread || has_name(&self.notifications)
    }
}

impl Announcer {
    pub(super) fn new(device: Arc<dyn Device>, ledger: Arc<Mutex<Ledger>>) -> Arc<Announcer> {
        let state = Mutex::with_class(&ANNOUNCER, AnnouncerState::default());
        Arc::new(Announcer {
            device,
            ledger,
            state,
            changed: Condvar::new(),
            is_held: OnceLock::new(),
            cut_short: AtomicU64::new(0),
        })
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

    /// Announces `notifications`, one after the other. Notices that wait for nothing are sent at once.
    pub(super) fn announce(&self, notifications: &[u8], done: Done) {
        self.announce_as(notifications, done, false);
    }

    /// Announces `notifications`, and is never cut short: when `done` is called, the kernel has taken them in.
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
            match inval_inode_arg(message) {
                Some(_) if has_name => drop(self.send(message)),
                Some(arg) => drop(self.send(&inval_inode(arg.ino, -1, 0))),
                None => {}
            }
        }
    }

    /// Every name is to be looked up again.
    pub(super) fn drop_names(&self) {
        // An older kernel refuses.
        let _ = self.device.send(Reply::new().notification(NOTIFY_INC_EPOCH));
    }

    /// How many announcements the kernel has not taken in, and for how long the oldest.
    pub(super) fn in_the_kernel(&self, now: Instant) -> (usize, Duration) {
        let state = self.state.lock();
        let oldest = state.pending.values().next().map(|first| now.saturating_duration_since(first.since));
        (state.pending.len(), oldest.unwrap_or_default())
    }

    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.ready.clear();
        let waiting: Vec<_> = state.pending.values_mut().filter(|pending| pending.unbegun > 0).collect();
        let left: Vec<_> = waiting.into_iter().filter_map(|pending| pending.done.take()).collect();
        drop(state);
        left.into_iter().for_each(|done| done());
        self.changed.notify_all();
    }

    /// False: it should be told again, because it is only about to learn of the inode.
    fn send(&self, message: &[u8]) -> bool {
        match self.device.send(message) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT.raw()) => {
                let Some(nodeid) = inval_inode_arg(message).map(|arg| arg.ino) else { return true };
                let mut ledger = self.ledger.lock();
                let knows = ledger.knows(nodeid);
                if !knows {
                    // An answer with its old attributes may be on its way.
                    ledger.doubts.note(nodeid);
                }
                !knows
            }
            _ => true,
        }
    }

    fn run(&self) {
        loop {
            let (lane, mut part) = {
                let mut state = self.state.lock();
                loop {
                    if state.is_over {
                        return;
                    }
                    if let Some((lane, part)) = state.begin() {
                        state.busy += 1;
                        let first = part.of.first().and_then(|number| state.pending.get(number));
                        let is_late = first.is_some_and(|first| first.since + PATIENCE <= Instant::now());
                        if is_late || state.lacks_thread() {
                            // The watch does not know yet.
                            self.changed.notify_all();
                        }
                        break (lane, part);
                    }
                    if state.threads - state.busy > THREADS {
                        state.threads -= 1;
                        return;
                    }
                    state = self.changed.wait(state);
                }
            };
            loop {
                let early = self.tell(&part.messages);
                let is_early = !early.is_empty();
                let (made, next) = {
                    let mut state = self.state.lock();
                    let (made, next) = state.made(lane, &part, is_early);
                    state.busy -= usize::from(next.is_none());
                    if is_early {
                        state.queue(early, None, false);
                    }
                    (made, next)
                };
                if made.iter().any(|(_, is_early)| *is_early) {
                    self.drop_names();
                    // Relaxed: a statistic.
                    self.cut_short.fetch_add(1, Ordering::Relaxed);
                }
                made.into_iter().for_each(|(done, _)| done());
                let Some(next) = next else { break };
                part = next;
            }
        }
    }

    /// Tells the kernel, and waits for it. Returns what is to be told again.
    fn tell(&self, messages: &[u8]) -> Vec<u8> {
        let mut early = Vec::new();
        for message in split(messages) {
            let mut tries = 0..REPEATS;
            while !self.send(message) {
                if tries.next().is_none() {
                    early.extend_from_slice(message);
                    break;
                }
                thread::sleep(REPEAT_AFTER);
            }
        }
        early
    }

    /// Parts the `late` announcements into those that may wait for a request under way, and the others: no request holds a lock on
    /// their pages.
    fn partition_held(&self, late: Vec<Late>) -> (Vec<Late>, Vec<Late>) {
        let is_held =
            |notices: &[u8], is_stuck| self.is_held.get().is_none_or(|is_held| is_held(notices, is_stuck));
        late.into_iter().partition(|(_, notices, is_stuck)| has_name(notices) || is_held(notices, *is_stuck))
    }

    /// Cuts short what takes too long.
    fn watch(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.is_over {
            let now = Instant::now();
            // If all threads are in the kernel, a part that waits gets another thread at its due time.
            let for_thread = state.first_ready().filter(|_| state.lacks_thread());
            let for_thread = for_thread.map(|first| first.since + PATIENCE);
            let may_have_thread = state.busy < THREADS_MAX;
            let dues = state.pending.values().filter_map(|pending| pending.due(now, may_have_thread));
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
            let is_late = |pending: &Undelivered| {
                pending.can_be_cut_short(may_have_thread)
                    && pending.due(now, may_have_thread).is_some_and(|due| due <= now)
            };
            let late = state.pending.iter_mut().filter(|(_, pending)| is_late(pending));
            let late: Vec<_> = late
                .map(|(number, pending)| {
                    (*number, pending.notifications.clone(), pending.since + STUCK <= now)
                })
                .collect();
            drop(state);
            let (late, held_up) = self.partition_held(late);
            state = self.state.lock();
            let late: Vec<_> = late
                .into_iter()
                .filter_map(|(number, notifications, _)| {
                    Some((notifications, state.pending.get_mut(&number)?.done.take()?))
                })
                .collect();
            for (number, ..) in held_up {
                // Its thread waits for a CPU, or the request that holds the lock has not been read yet. It is looked at again.
                if let Some(pending) = state.pending.get_mut(&number) {
                    pending.looked = now;
                }
            }
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

/// The bytes of a file, if the kernel is given some by `message`.
fn stored(message: &[u8]) -> Option<NotifyStoreOut> {
    let (header, body) = OutHeader::read_from_prefix(message).ok()?;
    let is_stored = header.error == NOTIFY_STORE;
    is_stored.then(|| NotifyStoreOut::read_from_prefix(body).ok()).flatten().map(|(arg, _)| arg)
}

/// The node of which the kernel is given bytes, and what gives them. A page that the kernel takes for whole by that it is to drop: what
/// changes later may be announced before.
fn growth(notifications: &[u8]) -> Option<(u64, Vec<u8>)> {
    let page = rustix::param::page_size() as u64;
    let mut growth = None;
    for message in split(notifications) {
        let Some(arg) = stored(message) else { continue };
        let (_, messages) = growth.get_or_insert((arg.nodeid, Vec::new()));
        messages.extend_from_slice(message);
        if arg.offset % page == 0 {
            messages.extend(inval_inode(arg.nodeid, arg.offset.cast_signed(), page.cast_signed()));
        }
    }
    growth
}

/// Whether a name is among them.
fn has_name(notifications: &[u8]) -> bool {
    split(notifications).any(|message| inval_entry_dir(message).is_some())
}

/// Attributes alone are forgotten without a lock.
fn waits_for_nothing(message: &[u8]) -> bool {
    inval_inode_arg(message).is_some_and(|arg| arg.off < 0)
}

/// Where `message` is among `messages`.
fn split_at(messages: &[u8], message: &[u8]) -> Option<usize> {
    let mut at = 0;
    split(messages).find_map(|other| {
        let found = (other == message).then_some(at);
        at += other.len();
        found
    })
}

#[cfg(test)]
mod tests;
