//! Coherence: a mount whose kernel caches without a limit, as others do that cache the same files, and never shows an old state
//! beside a new one.
//!
//! # Theory
//! A kernel that is served by this crate alone is told of changes as soon as it can be ([`notify`](crate::notify)). Another crate
//! (`sluice-cluster`) serves several kernels as one: it gives the [`Connection`] of each a [`Coherence`]. The handler says there what
//! the kernel is about to learn, opens and closes. A mount without one loads a word and branches in these places.

use crate::abi::InHeader;
use crate::connection::Connection;
use crate::event::Event;
use crate::reply::Reply;
use sluice_vfs::InodeRef;

/// The caches of one kernel beside those of others. Called with no lock held.
pub trait Coherence: Send + Sync {
    /// `event` is to be announced to the kernel. `may_hold`: the answer to the request that the calling thread serves waits for that.
    fn tell(&self, connection: &Connection, event: &Event, may_hold: bool);
    /// The calling thread is about to take a name from node `nodeid`.
    fn name_leaves(&self, nodeid: u64);
    /// The kernel is about to learn of `inode`.
    fn found(&self, connection: &Connection, inode: &InodeRef);
    /// The kernel asks for a node that it was told to drop before the node changed.
    fn missed(&self);
    /// The kernel has changed names in the directory that `header` names; `made` is a directory that it has made there. The answer
    /// may end with more than a kernel reads.
    fn names_changed(&self, connection: &Connection, header: &InHeader, made: Option<u64>, reply: &mut Reply);
    /// The kernel has opened file `ino`.
    fn opened(&self, connection: &Connection, ino: u64);
    /// Whether the kernel may map file `ino`, which it has opened.
    fn claim_mapping(&self, ino: u64) -> bool;
    /// The kernel has closed file `ino`, which it could map if `mapped`.
    fn closed(&self, ino: u64, mapped: bool);
    /// The number under which the locks of file `ino` are the kernel's own from now on, if they can be.
    fn delegate(&self, ino: u64) -> Option<u64>;
    /// The kernel is gone.
    fn gone(&self);
}

impl Connection {
    /// The kernel is about to be told the attributes of `nodeid`. To be called before they are read.
    pub(crate) fn mark_told(&self, nodeid: u64) {
        if self.nodes.mark_told(nodeid)
            && let Some(coherence) = self.coherence.get()
        {
            coherence.missed();
        }
    }

    /// A request has changed names in its directory. `made`: a new directory.
    pub(crate) fn names_changed(&self, header: &InHeader, made: Option<u64>, reply: &mut Reply) {
        if let Some(coherence) = self.coherence.get() {
            coherence.names_changed(self, header, made, reply);
        }
    }
}
