//! Hold: an answer that waits until all guests concerned have been told of a change.
//!
//! # Theory
//! The answer to the request that made a change waits, so that a program that sees its call return finds the new state in every
//! guest. So does each answer that *tells* of the change before all have heard of it: a program that has seen the new state may
//! have another one look, which must not find the old state in its kernel. Without that, what programs see has no order.
//!
//! - While a request that may change something is being executed, nobody knows what of it is to be seen already.
//!   Answers that may show the change wait for its end, and then for the relevant announcements. Which file a removal
//!   or a rename takes a name from, the request does not say; the file system does, before it does it
//!   ([`Holds::leaves`]).
//! - An [`Announcement`] is what one guest is told of one change. Its notices have references to it, and when the last is
//!   dropped, the answers go out that waited for it and for nothing else.
//!
//! Announcements wait for no answer, so nothing waits in a circle here. A kernel that takes one in only after an answer
//! which waits for it is told otherwise: see `relay/announcer.rs`. The pages of a READ are such a case each time. The
//! answer to a READ does not wait for notices to its own guest, which wait for these pages.
//!
//! # Not held
//! A kernel believes the names of a listing as of when it has the answer, also if it was told meanwhile to look every name up again. So a
//! listing that waited would bring back names that are gone.
//!
//! A kernel believes what its own program changes when it has the answer, or, of bytes, before. Another program of that
//! node may see the change earlier or later than the other nodes.
//!
//! # Ordering
//! A change is counted, then made; an answer is made, then the count is looked at. An answer that tells of a change has seen it.

use super::ahead::Settling;
use crate::lock_class::{ANNOUNCEMENT, HOLDS};
use sluice_fuse::internal::abi::{InHeader, OutHeader};
use sluice_fuse::internal::{Connection, Event};
use sluice_fuse::opcode;
use sluice_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sluice_sync::{Arc, Mutex, OnceLock, Weak, thread};
use std::collections::HashMap;

/// An answer that waits. Dropping the last reference sends it.
#[derive(Default)]
struct Hold(OnceLock<(Arc<Connection>, Vec<u8>, Option<Settling>)>);

impl Drop for Hold {
    fn drop(&mut self) {
        // The guest is quiet only when it has been sent.
        if let Some((connection, answer, _counted)) = self.0.take() {
            connection.send(&answer);
        }
    }
}

/// The notices to a guest about a change. When the last reference is dropped, it has been.
pub(super) struct Announcement(Mutex<Vec<Arc<Hold>>>);

/// The nodes of which an answer tells, or a change is: some, 0 for none, or any. A rename is of two directories and two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concerned {
    Nodes([u64; 4]),
    Any,
}

/// An answer, and for which guest: see [`Holds::settle`].
pub(super) struct Telling<'a> {
    pub(super) connection: &'a Arc<Connection>,
    pub(super) guest: u64,
    pub(super) request: &'a [u8],
    /// The opcode and the node of the request; zeros if there is no request.
    pub(super) head: (u32, u64),
    pub(super) answer: Option<&'a [u8]>,
}

/// An answer that may tell of a change that is being made.
#[derive(Clone)]
struct WaitingAnswer {
    subject: Concerned,
    /// The guest whose announcements it does not wait for.
    passes: Option<u64>,
    hold: Arc<Hold>,
}

/// The request that a thread executes.
#[derive(Default)]
struct Execution {
    /// The subject of a possible change, if the request can change anything.
    changes: Option<Concerned>,
    made: Vec<Made>,
    waiters: Vec<WaitingAnswer>,
}

/// An announcement of a change: to which guest, and of what.
struct Made {
    guest: u64,
    subjects: Vec<Concerned>,
    announcement: Arc<Announcement>,
}

#[derive(Default)]
struct HoldState {
    by_thread: HashMap<thread::ThreadId, Execution>,
    /// Announcements of requests that have been executed.
    announced: Vec<(u64, Vec<Concerned>, Weak<Announcement>)>,
}

/// The answers of a host that wait, and what they wait for.
pub(super) struct Holds {
    state: Mutex<HoldState>,
    /// The number of executions and announcements: at 0 no answer has to wait. *atomic (see Ordering)*
    count: AtomicUsize,
    /// Answers that waited. *atomic: a statistic*
    held: AtomicU64,
}

impl Default for Holds {
    fn default() -> Self {
        Holds {
            state: Mutex::with_class(&HOLDS, HoldState::default()),
            count: AtomicUsize::new(0),
            held: AtomicU64::new(0),
        }
    }
}

impl Concerned {
    fn meets(self, other: Concerned) -> bool {
        match (self, other) {
            // Node number 0 is unused.
            (Concerned::Nodes(these), Concerned::Nodes(those)) => {
                these.iter().any(|node| *node != 0 && those.contains(node))
            }
            _ => true,
        }
    }

    fn pair(one: u64, other: u64) -> Concerned {
        Concerned::Nodes([one, other, 0, 0])
    }

    fn add(&mut self, node: u64) {
        let Concerned::Nodes(nodes) = self else { return };
        if nodes.contains(&node) {
            return;
        }
        match nodes.iter_mut().find(|node| **node == 0) {
            Some(free) => *free = node,
            None => *self = Concerned::Any,
        }
    }

    /// The subject of `event`.
    pub(super) fn of_event(event: &Event, connection: &Connection) -> Concerned {
        let nodeid = |ino: u64| connection.nodes.nodeid(ino);
        match *event {
            Event::Entry { dir, child, .. } => Concerned::pair(nodeid(dir), child.map_or(0, nodeid)),
            Event::Attributes { ino } | Event::Data { ino, .. } => Concerned::pair(nodeid(ino), 0),
            Event::Unwanted { .. } => Concerned::pair(0, 0),
        }
    }
}

impl WaitingAnswer {
    fn waits_for(&self, guest: u64, subjects: &[Concerned]) -> bool {
        self.passes != Some(guest) && subjects.iter().any(|subject| subject.meets(self.subject))
    }
}

impl HoldState {
    fn count(&self) -> usize {
        self.by_thread.len() + self.announced.len()
    }
}

impl Holds {
    /// This thread is about to execute `request`, with this code and node. To be followed by [`settle`](Self::settle).
    pub(super) fn begin(&self, head: (u32, u64), request: &[u8]) {
        if let Some(changes) = changed_nodes(head, request) {
            let mut state = self.state.lock();
            state.by_thread.entry(thread::current().id()).or_default().changes = Some(changes);
            // Relaxed: see Ordering.
            self.count.store(state.count(), Ordering::Relaxed);
        }
    }

    /// The request on this thread is about to take a name from node `nodeid`, or to move one.
    pub(super) fn leaves(&self, nodeid: u64) {
        let mut state = self.state.lock();
        let mine = state.by_thread.get_mut(&thread::current().id());
        if let Some(changes) = mine.and_then(|mine| mine.changes.as_mut()) {
            changes.add(nodeid);
        }
    }

    /// How many answers have waited.
    pub(super) fn held(&self) -> u64 {
        // Relaxed: a statistic.
        self.held.load(Ordering::Relaxed)
    }

    /// The announcement to `guest` of this thread's change; `subject`: the file or directory for whose sake other
    /// answers wait.
    pub(super) fn announcement(&self, guest: u64, subject: Option<Concerned>) -> Arc<Announcement> {
        let mut state = self.state.lock();
        let made = &mut state.by_thread.entry(thread::current().id()).or_default().made;
        let at = made.iter().position(|made| made.guest == guest).unwrap_or_else(|| {
            let announcement = Arc::new(Announcement(Mutex::with_class(&ANNOUNCEMENT, Vec::new())));
            made.push(Made { guest, subjects: Vec::new(), announcement });
            made.len() - 1
        });
        made[at].subjects.extend(subject);
        let announcement = made[at].announcement.clone();
        // Relaxed: see Ordering.
        self.count.store(state.count(), Ordering::Relaxed);
        announcement
    }

    /// The announcements of this thread's change.
    pub(super) fn announcements(&self) -> Vec<Weak<Announcement>> {
        let state = self.state.lock();
        let mine = state.by_thread.get(&thread::current().id());
        mine.map_or_else(Vec::new, |mine| {
            mine.made.iter().map(|made| Arc::downgrade(&made.announcement)).collect()
        })
    }

    /// The request of this thread has been executed. The answer goes out now, or when what it waits for has been announced.
    /// `counted`: the guest is not quiet before the answer goes out.
    pub(super) fn settle(&self, told: &Telling<'_>, counted: Option<Settling>) {
        // Relaxed: see Ordering. A thread that has an execution has counted it.
        if self.count.load(Ordering::Relaxed) == 0 {
            return told.send();
        }
        let hold = Arc::new(Hold::default());
        let mut state = self.state.lock();
        let mine = state.by_thread.remove(&thread::current().id()).unwrap_or_default();
        // Which announcement which answer waits for: noted when the lock is free.
        let mut waits: Vec<_> =
            mine.made.iter().map(|made| (made.announcement.clone(), hold.clone())).collect();
        let mut waits_for_end = false;
        if let (Some(subject), Some(_)) = (told.subject(), told.answer) {
            let passes = told.passes();
            let waiter = WaitingAnswer { subject, passes, hold: hold.clone() };
            for other in state.by_thread.values_mut() {
                if other.changes.is_some_and(|changes| changes.meets(subject)) {
                    other.waiters.push(waiter.clone());
                    waits_for_end = true;
                }
            }
            for (guest, subjects, announcement) in &state.announced {
                if waiter.waits_for(*guest, subjects)
                    && let Some(announcement) = announcement.upgrade()
                {
                    waits.push((announcement, hold.clone()));
                }
            }
        }
        for made in &mine.made {
            for waiter in &mine.waiters {
                if waiter.waits_for(made.guest, &made.subjects) {
                    waits.push((made.announcement.clone(), waiter.hold.clone()));
                }
            }
        }
        state.announced.retain(|(_, _, announcement)| announcement.strong_count() > 0);
        let of_changes = mine.made.iter().filter(|made| !made.subjects.is_empty());
        state.announced.extend(
            of_changes.map(|made| (made.guest, made.subjects.clone(), Arc::downgrade(&made.announcement))),
        );
        // Relaxed: see Ordering.
        self.count.store(state.count(), Ordering::Relaxed);
        drop(state);
        let is_held = waits_for_end || waits.iter().any(|(_, waiting)| Arc::ptr_eq(waiting, &hold));
        waits.into_iter().for_each(|(announcement, waiting)| announcement.0.lock().push(waiting));
        if !is_held {
            told.send();
        } else if let Some(answer) = told.answer {
            // Relaxed: a statistic.
            self.held.fetch_add(1, Ordering::Relaxed);
            // Once for each request.
            let _ = hold.0.set((told.connection.clone(), answer.to_vec(), counted));
        }
    }

    /// Drops this thread's change, whose answer has no waiters.
    pub(super) fn forget(&self) {
        let mut state = self.state.lock();
        let mine = state.by_thread.remove(&thread::current().id());
        // Relaxed: see Ordering.
        self.count.store(state.count(), Ordering::Relaxed);
        drop(state);
        drop(mine);
    }
}

impl Telling<'_> {
    fn send(&self) {
        if let Some(answer) = self.answer {
            self.connection.send(answer);
        }
    }

    /// The subject of the answer, if kernels cache its content.
    fn subject(&self) -> Option<Concerned> {
        let (code, nodeid) = self.head;
        let made = || self.answer.map_or(0, |answer| u64_at(answer, size_of::<OutHeader>()));
        match code {
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::CREATE
            | opcode::TMPFILE => Some(Concerned::pair(nodeid, made())),
            // A listing: see Not held.
            opcode::READDIR | opcode::READDIRPLUS => None,
            opcode::GETATTR
            | opcode::STATX
            | opcode::OPEN
            | opcode::READ
            | opcode::LSEEK
            | opcode::READLINK
            | opcode::ACCESS
            | opcode::GETXATTR
            | opcode::LISTXATTR => Some(Concerned::pair(nodeid, 0)),
            _ => changed_nodes(self.head, self.request),
        }
    }

    /// The guest whose announcements the answer does not wait for.
    fn passes(&self) -> Option<u64> {
        (self.head.0 == opcode::READ).then_some(self.guest)
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// The nodes that `request`, with this code and node, names, if it may change something.
fn changed_nodes((code, nodeid): (u32, u64), request: &[u8]) -> Option<Concerned> {
    let other = |at: usize| u64_at(request, size_of::<InHeader>() + at);
    match code {
        opcode::RENAME | opcode::RENAME2 | opcode::LINK => Some(Concerned::pair(nodeid, other(0))),
        opcode::COPY_FILE_RANGE => Some(Concerned::pair(nodeid, other(16))),
        opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::CREATE
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::SETATTR
        | opcode::WRITE
        | opcode::FALLOCATE
        | opcode::SETXATTR
        | opcode::REMOVEXATTR
        | opcode::IOCTL => Some(Concerned::pair(nodeid, 0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_fuse::MountOptions;
    use sluice_fuse::internal::Channel;
    use sluice_sync::mpsc;
    use sluice_vfs::{Options, Superblock};
    use std::io;

    /// Counts what is sent.
    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Channel for Counter {
        fn send(&self, _: &[u8]) -> io::Result<()> {
            // Relaxed, here and below: read when those that write have ended.
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn an_answer_waits_for_a_removal_only_if_it_tells_of_the_directory_or_of_what_is_removed() {
        let counter = Arc::new(Counter::default());
        let superblock = Superblock::new(Options::default());
        let (later, _) = mpsc::channel();
        let connection =
            Arc::new(Connection::new(superblock, MountOptions::default(), 0, counter.clone(), later));
        let holds = Holds::default();
        let settle = |head| {
            let told =
                Telling { connection: &connection, guest: 1, request: &[], head, answer: Some(&[0; 16]) };
            holds.settle(&told, None);
        };
        let asks = |code, node| {
            thread::scope(|scope| {
                scope.spawn(|| settle((code, node)));
            });
            (counter.0.load(Ordering::Relaxed), holds.held())
        };
        holds.begin((opcode::UNLINK, 5), &[]);
        assert_eq!(asks(opcode::GETATTR, 9), (1, 0), "another file");
        assert_eq!(asks(opcode::LOOKUP, 5), (1, 1), "the directory");
        for _ in 0..2 {
            holds.leaves(9);
        }
        assert_eq!(asks(opcode::GETATTR, 9), (1, 2), "it may be what loses its name");
        assert_eq!(asks(opcode::READ, 8), (2, 2));
        // Too many nodes for the list: then any node counts.
        (10..14).for_each(|node| holds.leaves(node));
        assert_eq!(asks(opcode::READ, 8), (2, 3));
        settle((opcode::UNLINK, 5));
        assert_eq!(counter.0.load(Ordering::Relaxed), 6, "all that waited, and its own");
        assert_eq!(asks(opcode::GETATTR, 9), (7, 3));
    }
}
