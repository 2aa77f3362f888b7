//! Section: one change of a file system, from before its first lock to after its last record.

use super::kept::WhereKnown;
use super::keys::Key;
use super::mutant::Mutant;
use super::record::{self, InodeRecord, QuotaRecord};
use super::{Durable, HiddenTree, pending};
use crate::inode::flag;
use crate::quota::{DirectoryQuota, NO_QUOTA, QuotaStage};
use crate::superblock::Shared;
use crate::watch::Recording;
use crate::{Inode, InodeRef};
use sluice_store::Transaction;
use sluice_sync::BrReadGuard;
use sluice_sync::atomic::Ordering;
use std::cell::RefCell;
use std::ops::Range;

/// A change under way: the store gets the whole change or nothing, and each [moment](crate::moment) comes before the change or after it. A file
/// system in memory without watchers puts nothing down.
#[must_use = "the change ends when this is dropped"]
pub(crate) struct Section<'s> {
    open: Option<Open<'s>>,
    _changing: Option<Changing<'s>>,
}

/// A change of a file system in memory is under way.
pub(crate) type Changing<'s> = BrReadGuard<'s, ()>;

struct Open<'s> {
    stored: Option<Stored<'s>>,
    recording: Option<Box<RefCell<Recording<'s>>>>,
}

/// The part of a section that goes to the store.
struct Stored<'s> {
    durable: &'s Durable,
    transaction: RefCell<Transaction<'s>>,
}

impl<'s> Section<'s> {
    /// To be put down in a store, and by what watches. Without a store it is `changing`.
    pub(super) fn new(
        stored: Option<(&'s Durable, Transaction<'s>)>,
        recording: Option<Recording<'s>>,
        changing: Option<Changing<'s>>,
    ) -> Section<'s> {
        let stored =
            stored.map(|(durable, transaction)| Stored { durable, transaction: RefCell::new(transaction) });
        let open = Open { stored, recording: recording.map(RefCell::new).map(Box::new) };
        Section { open: Some(open), _changing: changing }
    }

    /// The section of a file system in memory without watchers.
    #[inline]
    pub(super) fn in_memory(changing: Changing<'s>) -> Section<'s> {
        Section { open: None, _changing: Some(changing) }
    }

    /// No section, or that of a read section in memory.
    #[inline]
    pub(crate) fn none() -> Section<'s> {
        Section { open: None, _changing: None }
    }

    /// Attributes of `inode` changed.
    #[inline]
    pub(crate) fn inode(&self, inode: &InodeRef) {
        if let Some(open) = &self.open {
            open.put_down(|recording| recording.inode(inode), |stored| stored.changed(inode));
        }
    }

    /// The times of directory `dir` changed, if they `moved`: another call of the same tick may have moved them. The other
    /// call began before this call ended, so no later push can include it.
    #[inline]
    pub(crate) fn times(&self, dir: &Inode, moved: bool) {
        if moved && let Some(open) = &self.open {
            open.put_down(|_| (), |stored| stored.inode(dir));
        }
    }

    /// The times of `inode`, of any type, changed, if they `moved`; see [`times`](Self::times).
    pub(crate) fn times_of(&self, inode: &InodeRef, moved: bool) {
        if moved && let Some(open) = &self.open {
            open.put_down(|_| (), |stored| stored.changed(inode));
        }
    }

    /// In `dir`, `name` leads to this inode now. Called with the name locked.
    #[inline]
    pub(crate) fn name(&self, dir: &Inode, name: &[u8], leads_to: Option<&InodeRef>) {
        if let Some(open) = &self.open {
            open.put_down(
                |recording| recording.name(dir, name, leads_to),
                |stored| stored.name(dir, name, leads_to),
            );
        }
    }

    /// A new name in `dir` leads to `inode`, which is new or changed with that. Called with that name locked; the root has none.
    #[inline]
    pub(crate) fn gained_name(&self, inode: &InodeRef, dir: Option<&Inode>) {
        if let Some(open) = &self.open {
            open.put_down(|recording| recording.inode(inode), |stored| stored.gained_name(inode, dir));
        }
    }

    /// A new name leads to the top of `tree`, which is whole. Called with that name locked.
    #[inline]
    pub(crate) fn gained_tree(&self, tree: &HiddenTree) {
        if let Some(open) = &self.open {
            open.put_down(|recording| recording.tree(tree.top()), |stored| stored.gained_tree(tree));
        }
    }

    /// The directory `top` has lost its name in `dir`, and the tree below it is to go. Called with that name locked.
    pub(crate) fn lost_tree(&self, top: &InodeRef, dir: &Inode) {
        top.raise(flag::LOST);
        if let Some(open) = &self.open {
            open.put_down(|recording| recording.inode(top), |stored| stored.lost_tree(top, dir));
        }
    }

    /// The inode `top`, with the tree below it, has got the name of another in a directory without a name. Called with that name locked.
    pub(crate) fn took_over(&self, top: &InodeRef) {
        if let Some(open) = &self.open {
            open.put_down(|recording| recording.tree(top), |stored| stored.changed(top));
        }
    }

    /// Records the new inodes of `tree`, which has no name. Nobody watches.
    pub(super) fn hid_tree(&self, tree: &HiddenTree) {
        if let Some(open) = &self.open {
            open.put_down(|_| (), |stored| stored.hid_tree(tree));
        }
    }

    /// `inode` has lost a name in `dir`, and its change time moved. Called with that name locked.
    #[inline]
    pub(crate) fn lost_name(&self, inode: &InodeRef, dir: &Inode) {
        if let Some(open) = &self.open {
            open.put_down(
                |recording| recording.inode(inode),
                |stored| {
                    if stored.lose_name(inode, dir) {
                        stored.forget(inode);
                    }
                },
            );
        }
    }

    /// The variant of [`lost_name`](Self::lost_name) that never waits: returns whether all work is done. Else the inode
    /// is to be [forgotten](Self::forget) in this section.
    #[inline]
    pub(crate) fn lost_name_at_once(&self, inode: &InodeRef, dir: &Inode) -> bool {
        match &self.open {
            Some(Open { recording: None, stored: Some(stored) }) => {
                let is_done = !stored.lose_name(inode, dir) || stored.forget_at_once(inode);
                stored.end_change();
                is_done
            }
            Some(_) => {
                self.lost_name(inode, dir);
                true
            }
            None => true,
        }
    }

    /// `inode` lost its last name in this section: nothing holds it for the sake of the store any more.
    #[cold]
    pub(crate) fn forget(&self, inode: &InodeRef) {
        if let Some(Open { stored: Some(stored), .. }) = &self.open {
            stored.forget(inode);
        }
    }

    /// The quota `number` is this, or is gone.
    pub(crate) fn quota(&self, number: u32, is: Option<(&DirectoryQuota, QuotaStage)>) {
        if let Some(open) = &self.open {
            open.put_down(|_| (), |stored| stored.quota(number, is));
        }
    }

    /// Whether what changes in `shared` is put down.
    pub(crate) fn is_of(&self, shared: &Shared) -> bool {
        let own = self.open.as_ref().and_then(|open| open.stored.as_ref()).map(|stored| stored.durable);
        own.zip(shared.durable()).is_some_and(|(own, durable)| std::ptr::eq(own, durable))
    }

    /// Whether nothing is put down.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.open.is_none()
    }

    /// Contents of `inode` changed in `bytes`, or its size did.
    #[inline]
    pub(crate) fn contents(&self, inode: &InodeRef, bytes: Range<u64>) {
        if let Some(open) = &self.open {
            open.put_down(
                |recording| recording.contents(inode, bytes.clone()),
                |stored| stored.contents(inode, bytes.clone()),
            );
        }
    }

    /// `inode` ends at `size` or behind it now, and none of its contents changed.
    #[inline]
    pub(crate) fn grown(&self, inode: &InodeRef, size: u64) {
        if let Some(open) = &self.open {
            open.put_down(
                |recording| recording.contents(inode, size..u64::MAX),
                |stored| stored.grown(inode),
            );
        }
    }

    /// `inode` borrows chunks of another file, which nobody watches.
    pub(crate) fn borrowed(&self, inode: &InodeRef) {
        if let Some(open) = &self.open {
            open.put_down(|_| (), |stored| stored.mark(inode, |_| ()));
        }
    }

    /// Extended attributes of these names changed; access control lists count as such.
    #[inline]
    pub(crate) fn xattrs(&self, inode: &InodeRef, names: &[&[u8]]) {
        if let Some(open) = &self.open {
            open.put_down(
                |recording| recording.inode(inode),
                |stored| stored.mark(inode, |marks| marks.mark_xattrs(names.iter().copied())),
            );
        }
    }
}

impl Open<'_> {
    fn put_down(&self, watched: impl FnOnce(&mut Recording<'_>), stored: impl FnOnce(&Stored<'_>)) {
        if let Some(recording) = &self.recording {
            watched(&mut recording.borrow_mut());
        }
        if let Some(open) = &self.stored {
            stored(open);
            open.end_change();
        }
    }
}

impl Stored<'_> {
    /// Whether this fault is planted.
    #[inline]
    fn has(&self, mutant: Mutant) -> bool {
        self.durable.pending.planted.has(mutant)
    }

    /// Something was put down.
    fn end_change(&self) {
        self.durable.requests.put_down(&self.transaction, self.durable, 0);
    }

    fn inode(&self, inode: &Inode) {
        // Without a name it needs none.
        if !inode.has(flag::RECORDED) {
            return;
        }
        let Some(stored) = inode.stored() else { return };
        if stored.will_be_collected() && !inode.is_symlink() && !self.has(Mutant::RecordBeforeChange) {
            // The push has the record then. So this call reads no line that other calls write.
            stored.fall_behind();
            if inode.has_name() {
                return;
            }
        }
        self.put_inode(inode);
    }

    /// Puts down the record of `inode`, without unwritten pages: a file that has some has a name no more, or is listed.
    fn put_inode(&self, inode: &Inode) {
        let Some(stored) = inode.stored() else { return };
        // SeqCst, and before the values are read: the newest record has what each call changed that has moved the counter.
        let version = stored.version.fetch_add(1, Ordering::SeqCst) + 1;
        stored.stamp(&self.durable.pending);
        let mut record = InodeRecord::of(inode);
        stored.put_down(record.atime);
        if self.has(Mutant::QuotaForgotten) {
            record.quota = NO_QUOTA;
        }
        if self.has(Mutant::RecordBeforeChange) {
            record.ctime = record.born;
        }
        self.transaction.borrow_mut().put(&Key::inode(inode.ino()), version, &record.encode());
    }

    /// Attributes of `inode` changed.
    fn changed(&self, inode: &InodeRef) {
        let is_collected = || inode.stored().is_some_and(pending::Stored::will_be_collected);
        // Last: appends write to that line.
        if !inode.is_symlink() && (is_collected() || !inode.data.has_reserved()) {
            return self.inode(inode);
        }
        if !inode.has(flag::RECORDED) || !inode.has_name() {
            return;
        }
        // The section has no room for the record's tail: the push collects it.
        self.list(inode);
    }

    /// Has the next push collect `inode`, which has a name, and its record.
    fn list(&self, inode: &InodeRef) {
        self.stamp(inode);
        if self.durable.pending.list(inode) {
            self.ask_to_push(inode);
        }
    }

    /// Lets the store know of something to push. The key names no object, so the request is not ordered with other
    /// changes.
    fn ask_to_push(&self, inode: &Inode) {
        self.transaction.borrow_mut().remove(&Key::xattr(inode.ino(), &[]), 0);
    }

    /// Notes that `inode` is changed.
    fn stamp(&self, inode: &Inode) {
        inode.stored().into_iter().for_each(|stored| stored.stamp(&self.durable.pending));
    }

    fn name(&self, dir: &Inode, name: &[u8], leads_to: Option<&InodeRef>) {
        self.stamp(dir);
        let (key, mut version) = (Key::name(dir.ino(), name), self.durable.now());
        if self.has(Mutant::OlderName) {
            version = u64::MAX - version;
        }
        if self.has(Mutant::NameForgotten) && leads_to.is_none() {
            return;
        }
        let mut transaction = self.transaction.borrow_mut();
        match leads_to {
            Some(inode) => {
                inode.set_holder(dir);
                transaction.put(&key, version, &record::name(inode));
            }
            None => transaction.remove(&key, version),
        }
    }

    fn gained_name(&self, inode: &InodeRef, dir: Option<&Inode>) {
        self.durable.requests.put_down(&self.transaction, self.durable, inode.ino());
        dir.into_iter().for_each(|dir| inode.set_holder(dir));
        // Two calls may give it names at a time: it is counted once.
        let was_unnamed = inode.has(flag::UNNAMED) && inode.lower(flag::UNNAMED);
        if was_unnamed || !inode.has(flag::RECORDED) {
            if was_unnamed {
                if inode.has(flag::RECORDED) {
                    // It was spilled.
                    self.transaction.borrow_mut().remove(&Key::orphan(inode.ino()), 0);
                }
                self.durable.nameless.give(1);
                inode.stored().into_iter().for_each(|stored| self.durable.pending.memory.lose(inode, stored));
            }
            inode.raise(flag::RECORDED);
            self.durable.cover(inode.ino(), &mut self.transaction.borrow_mut());
            if inode.is_dir() {
                self.durable.names().enter(inode);
            }
            let names = inode.xattr_names();
            let has_contents = has_contents(inode);
            if was_unnamed || !names.is_empty() || has_contents {
                self.mark(inode, |stored| stored.mark_all(has_contents, names));
            }
            // The section has room for the target of a new link.
            return self.inode(inode);
        }
        self.changed(inode);
    }

    fn gained_tree(&self, tree: &HiddenTree) {
        let top = tree.top();
        if tree.is_begun() {
            self.transaction.borrow_mut().remove(&Key::orphan(top.ino()), 0);
            self.durable.nameless.give(1);
        } else {
            let directories = tree.made().iter().chain([top]).filter(|inode| inode.is_dir());
            directories.for_each(|dir| self.durable.names().enter(dir));
        }
        self.put_down_all(tree);
        self.inode(top);
    }

    fn quota(&self, number: u32, is: Option<(&DirectoryQuota, QuotaStage)>) {
        let (now, mut transaction) = (self.durable.now(), self.transaction.borrow_mut());
        match is {
            Some((quota, stage)) => {
                let stage = if self.has(Mutant::WalkUnmarked) { QuotaStage::Whole } else { stage };
                let record =
                    QuotaRecord { dir: quota.dir(), limit: quota.limit(), used: quota.used(), stage };
                transaction.put(&Key::quota(number), now, &record.encode());
                if stage == QuotaStage::Coming {
                    transaction.put(&Key::quota(NO_QUOTA), number.into(), &number.to_le_bytes());
                }
            }
            None => transaction.remove(&Key::quota(number), now),
        }
    }

    fn lost_tree(&self, top: &InodeRef, dir: &Inode) {
        top.stored().into_iter().for_each(|stored| stored.lose_holder(dir.ino()));
        self.durable.nameless.exceed(1);
        // Newer than what the first name removed.
        self.transaction.borrow_mut().put(&Key::orphan(top.ino()), 1, record::orphan(true));
    }

    fn hid_tree(&self, tree: &HiddenTree) {
        let top = tree.top();
        if !tree.is_begun() {
            self.durable.nameless.exceed(1);
            if !self.has(Mutant::OrphanForgotten) {
                self.transaction.borrow_mut().put(&Key::orphan(top.ino()), 0, record::orphan(true));
            }
        }
        self.put_down_all(tree);
        self.ask_to_push(top);
    }

    /// Has the next push collect what was made of `tree`.
    fn put_down_all(&self, tree: &HiddenTree) {
        let mut highest = 0;
        for inode in tree.made().iter().chain([tree.top()]) {
            highest = highest.max(inode.ino());
            let Some(stored) = inode.stored() else { continue };
            // The store has the contents of a file that got another name.
            if inode.is_dir() || !inode.has(flag::RECORDED) {
                inode.raise(flag::RECORDED);
                stored.mark_all(has_contents(inode), inode.xattr_names());
            }
            stored.stamp(&self.durable.pending);
            self.durable.pending.list(inode);
        }
        self.durable.cover(highest, &mut self.transaction.borrow_mut());
    }

    /// Puts down that `inode` has lost a name in `dir`: whether it is to be forgotten.
    fn lose_name(&self, inode: &InodeRef, dir: &Inode) -> bool {
        if inode.has_name() {
            // Before the record is written: what it says is a directory that has a name of the inode.
            if !self.has(Mutant::HolderStays) {
                inode.stored().into_iter().for_each(|stored| stored.lose_holder(dir.ino()));
            }
            self.changed(inode);
            return false;
        }
        // Nobody gives it a name again.
        if self.has(Mutant::OrphanForgotten) {
            return false;
        }
        // Newer than what a first name removed.
        self.transaction.borrow_mut().put(&Key::orphan(inode.ino()), 1, record::orphan(false));
        // A node of a cluster that has it open may need the record.
        if inode.stored().is_some_and(pending::Stored::catch_up) {
            self.put_inode(inode);
        }
        self.durable.nameless.exceed(1);
        true
    }

    /// Nothing holds `inode` any more, which lost its last name.
    fn forget(&self, inode: &InodeRef) {
        let known = inode.stored().map(|stored| stored.kept.lock().known()).unwrap_or_default();
        self.forget_known(inode, known);
    }

    /// The variant of [`forget`](Self::forget) for an inode with little stored state: false if it would have to wait.
    fn forget_at_once(&self, inode: &InodeRef) -> bool {
        // A thread that has it locked may wait for a grace period, and so for the caller's read section.
        let known = inode.stored().and_then(|stored| stored.kept.try_lock()).map(|kept| kept.known());
        let is_little = known.is_some_and(|known| !known.is_anything());
        if is_little {
            self.forget_known(inode, WhereKnown::default());
        }
        is_little
    }

    fn forget_known(&self, inode: &InodeRef, known: WhereKnown) {
        self.durable.pending.forget(inode, known);
        self.durable.touched.forget(inode);
        self.durable.names().forget(inode, known);
    }

    fn grown(&self, inode: &InodeRef) {
        // The push collects the size. A record of its own would meet the records of calls that change other attributes.
        // A file without a name has no dirty memory here; it is listed when it gets a name.
        if !inode.stored().is_some_and(|stored| stored.will_be_collected()) && inode.has_name() {
            self.mark(inode, |_| ());
        }
    }

    fn contents(&self, inode: &InodeRef, bytes: Range<u64>) {
        if !inode.stored().is_some_and(|stored| stored.has_marked(&bytes)) {
            self.mark(inode, |stored| stored.mark_contents(bytes));
        }
    }

    /// Marks what of `inode` the next push is to collect.
    fn mark(&self, inode: &InodeRef, mark: impl FnOnce(&pending::Stored)) {
        let Some(stored) = inode.stored() else { return };
        mark(stored);
        let pending = &self.durable.pending;
        // First: whether there is a name is on a line that calls which change names write. A listed inode may have lost
        // its name since.
        if stored.will_be_collected() {
            self.list(inode);
            if pending.must_push() {
                self.ask_to_push(inode);
            }
        } else if inode.has_name() {
            if inode.has(flag::RECORDED) {
                self.list(inode);
            }
        } else if pending.may_spill(inode) {
            self.durable.cover(inode.ino(), &mut self.transaction.borrow_mut());
            pending.list(inode);
            if pending.must_push() {
                self.ask_to_push(inode);
            }
        }
    }
}

/// Whether `inode` may have pages.
fn has_contents(inode: &Inode) -> bool {
    (inode.size() > 0 || inode.data.has_reserved()) && !inode.is_dir() && !inode.is_symlink()
}
