//! Notify: tells the kernel of changes that it did not make, so that it may cache everything for ever.
//!
//! # Theory
//! A mount observes its file system. A change by anybody else (a user in process, another mount) becomes
//! INVAL_ENTRY and INVAL_INODE messages, sent on the changer's own thread before its call returns: a program
//! that hears of the change from the changer sees it through the mount.
//!
//! Three races decide the details:
//! - *A lookup or listing is under way* when a name changes, and will cache the old state after the
//!   announcement. INVAL_ENTRY waits in the kernel for the directory's lock, which lookups and listings hold, so
//!   it comes after them; therefore the name is announced first and the directory's pages second.
//! - *Attributes are under way*. The kernel discards an answer that was asked for before an INVAL_INODE. But if
//!   the inode itself is new to it, the announcement finds nothing (ENOENT) and the answer is cached. The
//!   announcement is then repeated by the mount's own thread, until the kernel has taken it in or forgotten the inode.
//! - *Two mounts of one file system* change a directory together. Each worker would wait in the other mount's kernel
//!   side for a lock whose holder waits for a worker. So workers never announce: they hand the event to
//!   the mount's own thread.
//!
//! The other way round, a caller in process that is about to read or change contents has the kernel write back first what
//! it has newer ([`Connection::write_back`]): INVAL_INODE does that too.
//!
//! # Lock order
//! Called and sent with no lock held.

use crate::abi::flags::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_PRUNE};
use crate::abi::{NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPruneOut};
use crate::connection::Connection;
use crate::event::{Event, is_worker};
use crate::nodes::Noted;
use crate::reply::Reply;
use sluice_sync::mpsc::{self, RecvTimeoutError};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Weak};
use sluice_vfs::{Errno, FILE_SIZE_MAX, InodeRef, Observer};
use std::ops::Range;

/// How long after an announcement that found nothing it is repeated.
const REPEAT_AFTER: Duration = Duration::from_millis(1);

/// A mount as an observer of its file system.
struct Watcher {
    /// *immutable*
    connection: Weak<Connection>,
    /// The kernel collects writes. *immutable*
    is_alone: bool,
}

impl Watcher {
    fn tell(&self, event: Event) {
        let Some(connection) = self.connection.upgrade() else { return };
        if let Some(coherence) = connection.coherence.get() {
            return coherence.tell(&connection, &event, is_worker());
        }
        if is_worker() || !connection.announce(&event) {
            connection.tell_later(event);
        }
    }
}

impl Observer for Watcher {
    fn is_alone(&self) -> bool {
        self.is_alone
    }

    fn entry_changed(&self, dir: u64, name: &[u8], child: Option<u64>) {
        self.tell(Event::Entry { dir, name: name.to_vec(), child });
    }

    fn attributes_changed(&self, ino: u64) {
        self.tell(Event::Attributes { ino });
    }

    fn name_leaves(&self, inode: &InodeRef) {
        if let Some(connection) = self.connection.upgrade() {
            connection.nodes.meet(inode);
            if let Some(coherence) = connection.coherence.get() {
                coherence.name_leaves(connection.nodes.nodeid(inode.ino()));
            }
        }
    }

    fn name_lost(&self, ino: u64) {
        if let Some(connection) = self.connection.upgrade() {
            connection.nodes.let_go_if_removed(ino);
        }
    }

    fn memory_is_short(&self, inos: &[u64]) {
        if let Some(connection) = self.connection.upgrade() {
            connection.leave_for_later(Event::Unwanted { inos: inos.to_vec() });
        }
    }

    fn write_back(&self, ino: u64, bytes: Range<u64>) {
        // A worker that waited here for another mount's kernel could wait for one of that mount that waits for ours.
        // One of several kernels is told later, and is not waited for either.
        if !is_worker()
            && let Some(connection) = self.connection.upgrade()
            && connection.coherence.get().is_none()
        {
            connection.write_back(ino, Noted::Cached, &bytes);
        }
    }

    fn write_back_all(&self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.nodes.with_pages().into_iter().for_each(|ino| self.write_back(ino, 0..u64::MAX));
        }
    }

    fn data_changed(&self, ino: u64, offset: u64, len: u64) {
        self.tell(Event::Data { ino, offset, len });
    }
}

/// Announces what workers could not, until the mount is gone.
pub(crate) fn run(connection: &Weak<Connection>, events: &mpsc::Receiver<Event>) {
    // Events of inodes that the kernel is about to learn of.
    let mut early: Vec<Event> = Vec::new();
    loop {
        let event = match early.is_empty() {
            true => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => events.recv_timeout(REPEAT_AFTER),
        };
        let Some(connection) = connection.upgrade() else { return };
        early.retain(|event| !connection.announce(event));
        match event {
            Ok(event) if connection.announce(&event) || early.contains(&event) => {}
            Ok(event) => early.push(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Connection {
    /// Begins to observe the file system. `is_alone`: as the only mount of it, whose kernel collects writes.
    ///
    /// # Errors
    /// [`Superblock::observe`](sluice_vfs::Superblock::observe)'s.
    pub fn observe(self: &Arc<Self>, is_alone: bool) -> Result<(), Errno> {
        let watcher = Watcher { connection: Arc::downgrade(self), is_alone };
        let observer = self.superblock.observe(Arc::new(watcher))?;
        // Nobody else sets it.
        let _ = self.observer.set(observer);
        Ok(())
    }

    /// Tells the kernel of `event`. False: it should be told again, because it is only about to learn of
    /// the inode.
    pub(crate) fn announce(&self, event: &Event) -> bool {
        match event {
            Event::Entry { dir, name, child } => {
                if self.nodes.may_inherit(*dir) || self.nodes.mark_changed(*dir) {
                    self.invalidate_entry(*dir, name);
                    self.invalidate_inode(*dir, 0, 0);
                }
                match child {
                    Some(child) => self.tell_if_known(*child, -1, 0),
                    None => true,
                }
            }
            Event::Attributes { ino } => self.tell_if_known(*ino, -1, 0),
            Event::Data { ino, offset, len } => {
                // Offsets and lengths are at most FILE_SIZE_MAX, which is what an i64 holds.
                let (offset, len) = (offset.cast_signed().max(0), len.cast_signed().max(0));
                self.tell_if_known(*ino, offset, len)
            }
            Event::Unwanted { inos } => {
                self.prune(inos);
                true
            }
        }
    }

    /// The kernel forgets those of `inos` that nobody uses, and says so by FORGET.
    pub fn prune(&self, inos: &[u64]) {
        let known = inos.iter().filter(|ino| self.nodes.knows(**ino));
        let known: Vec<u64> = known.map(|ino| self.nodes.nodeid(*ino)).collect();
        for message in prune_messages(&known) {
            if self.notify(&message).is_err() {
                // The kernel is older, or the mount is gone.
                return;
            }
        }
    }

    /// Has the kernel hand down what it has newer of the pages that are `noted` in `bytes` of inode `ino`: it writes dirty
    /// pages back before it drops them. Returns when the workers have served those WRITEs, and so is not for a worker. The
    /// kernel may hold pages locked until requests under way are answered, which therefore must not wait for this.
    pub(crate) fn write_back(&self, ino: u64, noted: Noted, bytes: &Range<u64>) {
        if let Some(taken) = self.nodes.take(ino, noted, bytes) {
            let end = taken.end.min(FILE_SIZE_MAX);
            let start = taken.start.min(end);
            self.invalidate_inode(ino, start.cast_signed(), (end - start).cast_signed());
        }
    }

    /// INVAL_ENTRY, without its header.
    pub fn entry_message(&self, dir: u64, name: &[u8], flags: u32) -> Reply {
        let mut message = Reply::new();
        let namelen = name.len() as u32;
        message.put(&NotifyInvalEntryOut { parent: self.nodes.nodeid(dir), namelen, flags });
        message.put_bytes(name);
        message.put_bytes(&[0]);
        message
    }

    /// INVAL_INODE, without its header.
    pub fn inode_message(&self, ino: u64, off: i64, len: i64) -> Reply {
        let mut message = Reply::new();
        message.put(&NotifyInvalInodeOut { ino: self.nodes.nodeid(ino), off, len });
        message
    }

    fn invalidate_entry(&self, dir: u64, name: &[u8]) {
        // ENOENT: the kernel has nothing cached under this name.
        let _ = self.notify(self.entry_message(dir, name, 0).notification(NOTIFY_INVAL_ENTRY));
    }

    /// The kernel is to ask for the attributes of `ino` before it believes in them again.
    pub(crate) fn forget_attributes(&self, ino: u64) {
        // False: it does not know the inode, and so no attributes.
        self.invalidate_inode(ino, -1, 0);
    }

    /// As `invalidate_inode`, if the kernel knows the inode. True if that needs no repetition.
    fn tell_if_known(&self, ino: u64, off: i64, len: i64) -> bool {
        if self.nodes.may_inherit(ino) {
            self.invalidate_inode(ino, off, len);
            return true;
        }
        !self.nodes.mark_changed(ino) || self.invalidate_inode(ino, off, len)
    }

    /// Drops pages from `off` on, or no pages if `off` is negative. False: the kernel does not know the inode.
    pub(crate) fn invalidate_inode(&self, ino: u64, off: i64, len: i64) -> bool {
        match self.notify(self.inode_message(ino, off, len).notification(NOTIFY_INVAL_INODE)) {
            Ok(()) => true,
            Err(error) => error.raw_os_error() != Some(Errno::ENOENT.raw()),
        }
    }
}

/// The messages that have a kernel forget those of these nodes that nobody uses. A kernel before Linux 6.18 refuses them.
pub fn prune_messages(nodeids: &[u64]) -> impl Iterator<Item = Vec<u8>> {
    /// Numbers in one message: as many as the kernel looks at in one go.
    const AT_ONCE: usize = 512;
    nodeids.chunks(AT_ONCE).map(|some| {
        let mut message = Reply::new();
        message.put(&NotifyPruneOut { count: some.len() as u32, padding: 0, spare: 0 });
        some.iter().for_each(|nodeid| message.put(nodeid));
        message.notification(NOTIFY_PRUNE).to_vec()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MountOptions;
    use crate::transport::Channel;
    use sluice_sync::atomic::{AtomicU64, Ordering};
    use sluice_sync::thread;
    use sluice_vfs::{Options, Superblock};
    use std::io;

    /// A kernel that learns of an inode only after it has been told of it often.
    struct Late {
        told: AtomicU64,
        taken: mpsc::Sender<()>,
    }

    impl Channel for Late {
        fn send(&self, _: &[u8]) -> io::Result<()> {
            // Relaxed: one thread tells it.
            if self.told.fetch_add(1, Ordering::Relaxed) < 50 {
                return Err(Errno::ENOENT.into());
            }
            // The test may have ended.
            let _ = self.taken.send(());
            Ok(())
        }
    }

    #[test]
    fn a_kernel_that_learns_of_an_inode_late_is_told_of_its_change_all_the_same() {
        let (taken, heard) = mpsc::channel();
        let (later, events) = mpsc::channel();
        let kernel = Arc::new(Late { told: AtomicU64::new(0), taken });
        let superblock = Superblock::new(Options::default());
        let inode = superblock.root().clone();
        let connection = Arc::new(Connection::new(superblock, MountOptions::default(), 0, kernel, later));
        connection.nodes.restore(&inode, 1);
        let of = Arc::downgrade(&connection);
        let told = thread::spawn(move || run(&of, &events));
        connection.tell_later(Event::Attributes { ino: inode.ino() });
        assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(()));
        drop(connection);
        told.join().expect("it ends");
    }
}
