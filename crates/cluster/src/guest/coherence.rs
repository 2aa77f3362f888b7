//! Coherence: how a guest's kernel agrees with those of the others.

use super::ahead::{Ahead, Unsettled};
use super::cover::{CoverEnds, Covers, ToldBesides, cover_recall};
use super::delegation::{Delegate, Delegations, recall_message};
use super::growth::growth;
use super::hold::{Announcement, Concerned, Holds};
use super::{GuestChannel, Notice};
use sluice_fuse::internal::abi::InHeader;
use sluice_fuse::internal::abi::flags::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE};
use sluice_fuse::internal::{Believed, Coherence, Connection, Event, Reply, attr_of, is_worker};
use sluice_sync::Arc;
use sluice_vfs::{FileType, InodeRef};

/// A guest among the guests of its host.
pub(super) struct GuestCoherence {
    pub(super) channel: Arc<dyn GuestChannel>,
    pub(super) holds: Arc<Holds>,
    pub(super) unsettled: Unsettled,
    pub(super) ahead: Ahead,
    pub(super) delegations: Arc<Delegations>,
    pub(super) delegate: Delegate,
    pub(super) covers: Arc<Covers>,
    /// Its processes are on another machine: a question costs its relay a round trip. *immutable*
    pub(super) is_remote: bool,
}

impl Coherence for GuestCoherence {
    fn tell(&self, connection: &Connection, event: &Event, may_hold: bool) {
        let counted = self.unsettled.count();
        let bytes = self.notices(connection, event);
        if !bytes.is_empty() {
            let subject = Concerned::of_event(event, connection);
            let _announcement = may_hold.then(|| self.announcement(Some(subject)));
            self.channel.announce(Notice { bytes, _settling: Some(counted), _ends: None, _announcement });
        }
    }

    fn name_leaves(&self, nodeid: u64) {
        self.holds.leaves(nodeid);
    }

    /// The answer waits until no other guest has the directory covered.
    fn found(&self, connection: &Connection, inode: &InodeRef) {
        if inode.file_type() == FileType::Directory
            && let Some((serial, channel)) = self.covers.found(inode.ino(), self.delegate.number)
        {
            let announcement = is_worker().then(|| self.announcement(None));
            self.recall_cover(connection, inode.ino(), serial, &*channel, announcement);
        }
    }

    fn missed(&self) {
        self.ahead.missed();
    }

    fn names_changed(
        &self,
        connection: &Connection,
        header: &InHeader,
        made: Option<u64>,
        reply: &mut Reply,
    ) {
        if self.is_remote {
            self.put_told(connection, header.nodeid, made, reply);
        }
    }

    /// The answer waits until no other guest has the file's locks.
    fn opened(&self, connection: &Connection, ino: u64) {
        if let Some(recall) = self.delegations.opened(ino, self.delegate.number) {
            let bytes = recall_message(connection.nodes.nodeid(ino), recall.serial);
            let _announcement = is_worker().then(|| self.announcement(None));
            recall.channel.announce(Notice { bytes, _settling: None, _ends: None, _announcement });
        }
    }

    fn claim_mapping(&self, ino: u64) -> bool {
        self.delegations.claim_mapping(ino, &self.delegate)
    }

    fn closed(&self, ino: u64, mapped: bool) {
        if mapped {
            self.delegations.end_mapping(ino, self.delegate.number);
        }
        self.delegations.closed(ino, self.delegate.number);
    }

    fn delegate(&self, ino: u64) -> Option<u64> {
        self.delegations.delegate(ino, &self.delegate)
    }

    fn gone(&self) {
        self.delegations.gone(self.delegate.number);
        self.covers.gone(self.delegate.number);
    }
}

impl GuestCoherence {
    /// The announcement to this guest of the calling thread's change.
    fn announcement(&self, subject: Option<Concerned>) -> Arc<Announcement> {
        self.holds.announcement(self.delegate.number, subject)
    }

    /// The notices of `event` for the kernel, in this order; empty if its caches are not affected. The caller counts itself as
    /// unsettled.
    fn notices(&self, connection: &Connection, event: &Event) -> Vec<u8> {
        let nodes = &connection.nodes;
        // No request of the kernel is served, and it has taken in all notices.
        let is_quiet = || self.unsettled.is_one();
        let mut bytes = Vec::new();
        let inode = |bytes: &mut Vec<u8>, ino: u64, off, len| {
            if nodes.mark_changed(ino) {
                bytes.extend(connection.inode_message(ino, off, len).notification(NOTIFY_INVAL_INODE));
            }
        };
        match event {
            Event::Entry { dir, name, child } => {
                // The kernel may have cached a negative dentry for the name.
                let number = nodes.name(*dir, name);
                let believed =
                    child.map_or(Believed::Name, |child| nodes.mark_name_changed(child, number, is_quiet));
                if let (Believed::NameAndAttributes, Some(child)) = (believed, child) {
                    bytes.extend(connection.inode_message(*child, -1, 0).notification(NOTIFY_INVAL_INODE));
                }
                // Attributes first, for which the kernel waits for nothing. It may forget the inode with its name.
                let ahead = if believed == Believed::NameAndAttributes {
                    self.ahead.drop_names(connection, *dir, is_quiet, &mut bytes)
                } else {
                    Vec::new()
                };
                let is_listed = nodes.mark_listing_changed(*dir, is_quiet);
                // The notice goes out before a listing, too: the kernel takes it in after a listing under way.
                if is_listed || believed != Believed::Nothing && nodes.knows(*dir) {
                    bytes.extend(connection.entry_message(*dir, name, 0).notification(NOTIFY_INVAL_ENTRY));
                }
                if is_listed {
                    bytes.extend(connection.inode_message(*dir, 0, 0).notification(NOTIFY_INVAL_INODE));
                }
                bytes.extend(ahead);
            }
            Event::Attributes { ino } => inode(&mut bytes, *ino, -1, 0),
            Event::Data { ino, offset, len } => {
                bytes.extend(growth(connection, *ino, *offset, *len));
                inode(&mut bytes, *ino, offset.cast_signed().max(0), len.cast_signed().max(0));
            }
            Event::Unwanted { .. } => {}
        }
        bytes
    }

    /// Has the guest behind `channel` drop the cover of directory `ino`.
    fn recall_cover(
        &self,
        connection: &Connection,
        ino: u64,
        serial: u64,
        channel: &dyn GuestChannel,
        announcement: Option<Arc<Announcement>>,
    ) {
        let bytes = cover_recall(connection.nodes.nodeid(ino), serial);
        let ends = CoverEnds { covers: self.covers.clone(), ino, serial };
        channel.announce(Notice { bytes, _settling: None, _ends: Some(ends), _announcement: announcement });
    }

    /// The number under which directory `ino`, which was just made, is covered, or 0.
    fn cover(&self, connection: &Connection, ino: u64) -> u64 {
        let Some((serial, oldest)) = self.covers.cover(ino, self.delegate.number, &self.channel) else {
            return 0;
        };
        if let Some((ino, serial)) = oldest {
            self.recall_cover(connection, ino, serial, &*self.channel, None);
        }
        serial
    }

    /// Has the answer to a request that changed names in directory `nodeid` end with what a relay may know. `made`: a new directory.
    fn put_told(&self, connection: &Connection, nodeid: u64, made: Option<u64>, reply: &mut Reply) {
        if let Some(dir) = connection.nodes.get(nodeid) {
            let serial = made.map_or(0, |ino| self.cover(connection, ino));
            reply.put(&ToldBesides { serial, dir: attr_of(&dir.stat()) });
        }
    }
}
