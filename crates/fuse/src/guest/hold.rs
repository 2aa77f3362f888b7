//! Hold: an answer that waits until all guests concerned have been told of a change.
//!
//! # Theory
//! The answer to the request that made a change waits, so that a program that sees its call return finds the new state in every
//! guest. So does each answer that *tells* of the change before all have heard of it: a program that has seen the new state may
//! have another one look, which must not find the old state in its kernel. Without that, what programs see has no order.
//!
//! - While a request that may change something is being executed, nobody knows what of it is to be seen already. Answers that may
//!   tell of it wait for its end, and then for those of its announcements that concern them.
//! - An [`Announcement`] is what one guest is told of one change. Its notices have references to it, and when the last is
//!   dropped, the answers go out that waited for it and for nothing else.
//!
//! Announcements wait for no answer, so nothing waits in a circle here. A kernel that takes one in only after an answer which waits
//! for it is told otherwise: see `relay/announcer.rs`. The pages of a READ are such a case each time. It does not wait for what its own
//! guest is told, which waits for these pages.
//!
//! # Not held
//! A kernel believes the names of a listing as of when it has the answer, also if it was told meanwhile to look every name up again. So a
//! listing that waited would bring back names that are gone.
//!
//! A kernel believes what its own program changes when it has the answer, or, of bytes, before. Another program of that node may see
//! that at another moment than the other nodes.
//!
//! # Ordering
//! A change is counted, then made; an answer is made, then the count is looked at. An answer that tells of a change has seen it.

use super::ahead::Settling;
use crate::abi::{InHeader, OutHeader, opcode};
use crate::connection::Connection;
use crate::lock_class::{ANNOUNCEMENT, HOLDS};
use crate::notify::Event;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::{Arc, Mutex, OnceLock, Weak, thread};
use std::collections::HashMap;
use zerocopy::FromBytes;

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

/// What one guest is told of one change. When the last reference is dropped, it has been.
pub(super) struct Announcement(Mutex<Vec<Arc<Hold>>>);

/// The nodes of which an answer tells, or a change is: two at most, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concerned {
    Nodes(u64, u64),
    Any,
}

/// An answer, and for which guest: see [`Holds::settle`].
pub(super) struct Telling<'a> {
    pub(super) connection: &'a Arc<Connection>,
    pub(super) guest: u64,
    pub(super) request: &'a [u8],
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
    /// What it may change, if it changes anything.
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
    /// Of requests that have been executed.
    announced: Vec<(u64, Vec<Concerned>, Weak<Announcement>)>,
}

/// The answers of a host that wait, and what they wait for.
pub(super) struct Holds {
    state: Mutex<HoldState>,
    /// How many executions and announcements there are: without any there is nothing to wait for. *atomic (see Ordering)*
    count: AtomicUsize,
}

impl Default for Holds {
    fn default() -> Self {
        Holds { state: Mutex::with_class(&HOLDS, HoldState::default()), count: AtomicUsize::new(0) }
    }
}

impl Concerned {
    fn meets(self, other: Concerned) -> bool {
        match (self, other) {
            // There is no node 0.
            (Concerned::Nodes(a, b), Concerned::Nodes(c, d)) => {
                [a, b].iter().any(|node| *node != 0 && [c, d].contains(node))
            }
            _ => true,
        }
    }

    /// What `event` is about.
    pub(super) fn of_event(event: &Event, connection: &Connection) -> Concerned {
        let nodeid = |ino: u64| connection.nodes.nodeid(ino);
        match *event {
            Event::Entry { dir, child, .. } => Concerned::Nodes(nodeid(dir), child.map_or(0, nodeid)),
            Event::Attributes { ino } | Event::Data { ino, .. } => Concerned::Nodes(nodeid(ino), 0),
            Event::Unwanted { .. } => Concerned::Nodes(0, 0),
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
    /// This thread is about to execute `request`. To be followed by [`settle`](Self::settle).
    pub(super) fn begin(&self, request: &[u8]) {
        if let Some(changes) = changed_by(request) {
            let mut state = self.state.lock();
            state.by_thread.entry(thread::current().id()).or_default().changes = Some(changes);
            // Relaxed: see Ordering.
            self.count.store(state.count(), Ordering::Relaxed);
        }
    }

    /// The announcement to `guest` of what this thread does; `subject`: one that other answers wait for if they tell of it.
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
            // Once for each request.
            let _ = hold.0.set((told.connection.clone(), answer.to_vec(), counted));
        }
    }

    /// Nobody waits for the answer to what this thread did.
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

    /// What the answer tells of that kernels keep.
    fn subject(&self) -> Option<Concerned> {
        let (code, nodeid) = header(self.request)?;
        let made = || self.answer.map_or(0, |answer| u64_at(answer, size_of::<OutHeader>()));
        match code {
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::CREATE
            | opcode::TMPFILE => Some(Concerned::Nodes(nodeid, made())),
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
            | opcode::LISTXATTR => Some(Concerned::Nodes(nodeid, 0)),
            _ => changed_nodes(self.request),
        }
    }

    /// The guest whose announcements the answer does not wait for.
    fn passes(&self) -> Option<u64> {
        header(self.request).is_some_and(|(code, _)| code == opcode::READ).then_some(self.guest)
    }
}

fn header(request: &[u8]) -> Option<(u32, u64)> {
    InHeader::read_from_prefix(request).ok().map(|(header, _)| (header.opcode, header.nodeid))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// The nodes that `request` names, if it may change something.
fn changed_nodes(request: &[u8]) -> Option<Concerned> {
    let (code, nodeid) = header(request)?;
    let other = |at: usize| u64_at(request, size_of::<InHeader>() + at);
    match code {
        opcode::RENAME | opcode::RENAME2 | opcode::LINK => Some(Concerned::Nodes(nodeid, other(0))),
        opcode::COPY_FILE_RANGE => Some(Concerned::Nodes(nodeid, other(16))),
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
        | opcode::IOCTL => Some(Concerned::Nodes(nodeid, 0)),
        _ => None,
    }
}

/// What `request` may change. Which file loses a name the request does not say.
fn changed_by(request: &[u8]) -> Option<Concerned> {
    let names_a_file =
        |code| matches!(code, opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2);
    changed_nodes(request).map(|nodes| {
        if header(request).is_some_and(|(code, _)| names_a_file(code)) { Concerned::Any } else { nodes }
    })
}
