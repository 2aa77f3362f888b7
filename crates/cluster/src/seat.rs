//! Seat: a mount of another node, at the owner: its guest, its connection, and the threads that serve it.

use crate::guest::{Guest, GuestChannel, Notice, Ticket};
use crate::link::Link;
use crate::lock_class::{JOBS, NOTICES};
use crate::wire::Frame;
use sluice_membership::{NodeId, now};
use sluice_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_sync::thread::{Builder, JoinHandle};
use sluice_sync::{Arc, Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Threads that serve one mount. A thread that waits for the store blocks no request while other threads are free.
const WORKERS: usize = 8;
/// So many requests of one mount, and about so many bytes of them, may wait for a thread: a kernel makes fewer. Further requests are not
/// read.
const JOBS_MAX: usize = 1024;
const JOB_BYTES_MAX: usize = 256 << 20;

/// A mount of another node.
pub(crate) struct Seat {
    /// Its node. *immutable*
    pub(crate) node: NodeId,
    pub(crate) guest: Arc<Guest>,
    pub(crate) channel: Arc<Channel>,
    jobs: Arc<Jobs>,
    /// When its node was last heard of. Before it is served that counts as later. *atomic (stands alone)*
    heard: AtomicU64,
    /// Requests of its kernel. *atomic (stands alone: a statistic)*
    requests: AtomicU64,
    /// A thread removes it. *atomic (stands alone)*
    is_given_up: AtomicBool,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// The way to its kernel.
pub(crate) struct Channel {
    link: Arc<Link>,
    notices: Mutex<Notices>,
    /// Until when the owner may answer: shared by all. *atomic (stands alone)*
    valid_until: Arc<AtomicU64>,
}

#[derive(Default)]
struct Notices {
    last: u64,
    /// Notices that the kernel has not taken in.
    pending: BTreeMap<u64, Notice>,
    is_closed: bool,
}

struct Jobs {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Ticket, Vec<u8>)>,
    bytes: usize,
    /// A request is served that its kernel has the answer to: none that came later is begun.
    is_behind: bool,
    is_closed: bool,
}

impl Channel {
    pub(crate) fn new(link: Arc<Link>, valid_until: Arc<AtomicU64>) -> Arc<Channel> {
        let notices = Mutex::with_class(&NOTICES, Notices::default());
        Arc::new(Channel { link, notices, valid_until })
    }

    /// Tells the node that the owner lets the store go, for `to`.
    pub(crate) fn tell_of_hand_over(&self, to: NodeId) {
        self.link.send(&Frame::HandOver(to.0));
    }

    fn is_valid(&self) -> bool {
        // Relaxed: see the field.
        now() < self.valid_until.load(Ordering::Relaxed)
    }
}

impl GuestChannel for Channel {
    fn answer(&self, message: &[u8]) -> io::Result<()> {
        // Answers of an owner whose lease is over may be wrong.
        if self.is_valid() {
            self.link.send(&Frame::Answer(message.to_vec()));
        }
        Ok(())
    }

    fn announce(&self, notice: Notice) {
        let mut notices = self.notices.lock();
        if notices.is_closed {
            // With nothing locked: the answer that it held goes out.
            drop(notices);
            return drop(notice);
        }
        notices.last += 1;
        let number = notices.last;
        let frame = Frame::Notice(number, notice.bytes().to_vec());
        notices.pending.insert(number, notice);
        // In the order of their numbers.
        self.link.queue(&frame);
        drop(notices);
        self.link.flush();
    }
}

impl Seat {
    /// A new mount of `node`, without a served request yet.
    pub(crate) fn new(node: NodeId, guest: Arc<Guest>, channel: Arc<Channel>) -> Seat {
        let queue = Mutex::with_class(&JOBS, Queue::default());
        Seat {
            node,
            guest,
            channel,
            jobs: Arc::new(Jobs { queue, changed: Condvar::new() }),
            heard: AtomicU64::new(u64::MAX),
            requests: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            workers: Mutex::with_class(&JOBS, Vec::new()),
        }
    }

    /// Reads and serves what the node sends, until the link breaks or the owner's lease is over. True if the mount is gone.
    pub(crate) fn serve(&self) -> io::Result<bool> {
        // Relaxed: see the field.
        self.heard.store(now(), Ordering::Relaxed);
        {
            let mut workers = self.workers.lock();
            for number in 0..WORKERS {
                let (jobs, guest) = (self.jobs.clone(), self.guest.clone());
                let thread = Builder::new().name(format!("sluice-guest-{number}"));
                workers.push(thread.spawn(move || jobs.serve(&guest))?);
            }
        }
        let link = &self.channel.link;
        loop {
            let frame = link.read(false)?;
            if !self.channel.is_valid() {
                return Ok(false);
            }
            // Relaxed: see the field.
            self.heard.store(now(), Ordering::Relaxed);
            match frame {
                Frame::Request(message) => {
                    // Relaxed: see the field.
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    self.jobs.push(&self.guest, message);
                }
                Frame::Noticed(number) => {
                    let notice = self.channel.notices.lock().pending.remove(&number);
                    // With nothing locked.
                    drop(notice);
                }
                Frame::Ping(time) => link.send(&Frame::Pong(time)),
                Frame::Detach => return Ok(true),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Nothing more is read or answered.
    pub(crate) fn hang_up(&self) {
        self.channel.link.close();
    }

    /// Its node has been silent for too long. True for the caller that says so first.
    pub(crate) fn give_up(&self) -> bool {
        // Relaxed: see the field.
        !self.is_given_up.swap(true, Ordering::Relaxed)
    }

    /// Stops reading; requests that have begun are served. Returns when no thread serves the guest.
    pub(crate) fn quiesce(&self) {
        self.hang_up();
        self.jobs.close();
        let workers = std::mem::take(&mut *self.workers.lock());
        // A panic of its own was reported where it happened.
        workers.into_iter().for_each(|worker| drop(worker.join()));
    }

    /// Marks all pending notices to the kernel as delivered.
    pub(crate) fn release_notices(&self) {
        let pending = {
            let mut notices = self.channel.notices.lock();
            notices.is_closed = true;
            std::mem::take(&mut notices.pending)
        };
        drop(pending);
    }

    /// The requests of its kernel so far.
    pub(crate) fn requests(&self) -> u64 {
        // Relaxed: see the field.
        self.requests.load(Ordering::Relaxed)
    }

    /// When the node was last heard of.
    pub(crate) fn heard(&self) -> u64 {
        // Relaxed: see the field.
        self.heard.load(Ordering::Relaxed)
    }
}

impl Queue {
    fn is_full(&self) -> bool {
        self.waiting.len() >= JOBS_MAX || self.bytes >= JOB_BYTES_MAX
    }
}

impl Jobs {
    fn push(&self, guest: &Guest, message: Vec<u8>) {
        let mut queue = self.queue.lock();
        while queue.is_full() && !queue.is_closed {
            queue = self.changed.wait(queue);
        }
        queue.bytes += message.len();
        queue.waiting.push_back((guest.take(&message), message));
        let is_behind = queue.is_behind;
        drop(queue);
        // Else the thread that serves what is before it takes it.
        if !is_behind {
            self.changed.notify_one();
        }
    }

    fn serve(&self, guest: &Guest) {
        loop {
            let (ticket, mut message, has_more) = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.is_closed {
                        return;
                    }
                    let was_full = queue.is_full();
                    let next = if queue.is_behind { None } else { queue.waiting.pop_front() };
                    if let Some((ticket, message)) = next {
                        queue.bytes -= message.len();
                        if was_full {
                            self.changed.notify_all();
                        }
                        queue.is_behind = ticket.is_behind();
                        let has_more = !queue.is_behind && !queue.waiting.is_empty();
                        break (ticket, message, has_more);
                    }
                    queue = self.changed.wait(queue);
                }
            };
            if has_more {
                self.changed.notify_one();
            }
            let is_behind = ticket.is_behind();
            guest.serve(ticket, &mut message);
            if is_behind {
                // This thread continues with the requests that wait for this one.
                self.queue.lock().is_behind = false;
            }
        }
    }

    fn close(&self) {
        let left = {
            let mut queue = self.queue.lock();
            queue.is_closed = true;
            std::mem::take(&mut queue.waiting)
        };
        self.changed.notify_all();
        drop(left);
    }
}
