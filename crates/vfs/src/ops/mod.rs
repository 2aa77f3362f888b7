//! Operations: what one call does to a file system, from its beginning to its end.
//!
//! # Theory
//! Programs in process ([`Process`](crate::Process)) and servers of files, such as a mount, come through the same
//! methods of [`InodeRef`]. Each method that changes something is one operation. The method itself refuses invalid
//! requests without locks; the steps common to all operations stand here:
//!
//! ```text
//!   delegations of what changes are broken, until they are given up     waits with nothing held
//!     section of the store, and of what watches, begins
//!       the attempt: locks, permission, change, records                 locks nothing that it would have to wait for long
//!     section ends
//!     an obstacle is taken out of the way, and the attempt made again
//!   delegations that were taken meanwhile are told
//!   observers are told
//! ```
//!
//! Contents change in the same steps without the first (`io.rs`: `change_contents`): a writer has opened the file,
//! which broke its leases. Work that needs no wait is done in the section of the path walk
//! ([`at_once`](crate::at_once)), if there are neither delegations nor observers.
//!
//! # Lock order
//! The rename lock, if an attempt asks for it, is held from before its section until that has ended. No lock is held
//! while delegations are broken or told, or while observers are told.

pub(crate) mod attr;
pub(crate) mod create;
pub(crate) mod delegations;
pub(crate) mod io;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod xattr;

use crate::durable::Section;
use crate::inode::{flag, settle};
use crate::superblock::Shared;
use crate::{Cred, Errno, Inode, InodeRef};
use sluice_sync::MutexGuard;
use std::cell::RefCell;

/// Why an attempt came to nothing. It has changed nothing.
pub(crate) enum Obstacle {
    /// The call fails.
    Failed(Errno),
    /// To be tried again with the rename lock.
    NeedsTree,
    /// To be tried again when this directory, which is to go, is left alone, or in memory.
    Busy(InodeRef),
    /// To be tried again when this inode is [kept](crate::moment): it is about to change.
    Unkept(InodeRef),
    /// To be tried again when observers have been told that this is about to lose a name.
    Expected(InodeRef),
    /// To be tried again when the contents of this file, which a change has locked, are free.
    Locked(InodeRef),
}

impl From<Errno> for Obstacle {
    fn from(errno: Errno) -> Obstacle {
        Obstacle::Failed(errno)
    }
}

pub(crate) type TreeLock<'a> = MutexGuard<'a, ()>;

/// The numbers of inodes of which observers have been told that they are about to lose a name.
#[derive(Default)]
pub(crate) struct ToldAhead(RefCell<Vec<u64>>);

impl ToldAhead {
    /// Whether observers have been told of `inode`, if they are to be.
    ///
    /// # Errors
    /// Expected.
    #[inline]
    pub(crate) fn check(&self, inode: &InodeRef) -> Result<(), Obstacle> {
        if inode.shared.expects_inodes() { self.check_expected(inode) } else { Ok(()) }
    }

    #[cold]
    fn check_expected(&self, inode: &InodeRef) -> Result<(), Obstacle> {
        let mut told = self.0.borrow_mut();
        if told.contains(&inode.ino()) {
            return Ok(());
        }
        told.push(inode.ino());
        Err(Obstacle::Expected(inode.clone()))
    }
}

impl InodeRef {
    /// In the section of a change of names in this directory: whether all its names are in memory. Then they stay until it ends. And
    /// whether it is kept.
    ///
    /// # Errors
    /// Busy, Unkept.
    #[inline]
    pub(crate) fn check_names_here(&self) -> Result<(), Obstacle> {
        if self.has(flag::PARTIAL) { Err(Obstacle::Busy(self.clone())) } else { self.check_kept() }
    }
}

impl Shared {
    /// Makes one operation of `attempt`, on behalf of `cred`, to `changed`; the section has room for `bytes` of values. `tell` is
    /// called with what it did, and tells the observers.
    ///
    /// # Errors
    /// Errors of `attempt` and of the store; `EROFS` after the store failed.
    pub(crate) fn operate<R>(
        &self,
        cred: &Cred,
        changed: &[&Inode],
        bytes: usize,
        attempt: impl FnMut(&Section<'_>, Option<&TreeLock<'_>>) -> Result<R, Obstacle>,
        tell: impl FnOnce(&R),
    ) -> Result<R, Errno> {
        delegations::break_all(cred, changed, true)?;
        let done = self.attempt_until_done(bytes, attempt);
        // To tell is enough: the change is done.
        let _ = delegations::break_all(cred, changed, false);
        done.inspect(tell)
    }

    #[inline]
    fn attempt_until_done<R>(
        &self,
        bytes: usize,
        mut attempt: impl FnMut(&Section<'_>, Option<&TreeLock<'_>>) -> Result<R, Obstacle>,
    ) -> Result<R, Errno> {
        let (mut tree, mut has_settled) = (None, false);
        loop {
            let obstacle = {
                let section = self.begin(bytes)?;
                match attempt(&section, tree.as_ref()) {
                    Ok(done) => return Ok(done),
                    Err(obstacle) => obstacle,
                }
            };
            match obstacle {
                // Inodes that lost their last holder may not have been released yet.
                Obstacle::Failed(Errno::ENOSPC | Errno::EDQUOT) if !has_settled => {
                    (tree, has_settled) = (None, true);
                    settle();
                    // A disk that stays full fails the next attempt.
                    let _ = self.make_room_to_grow();
                }
                Obstacle::Failed(errno) => return Err(errno),
                Obstacle::NeedsTree => tree = Some(self.rename_lock.lock()),
                Obstacle::Unkept(inode) => {
                    tree = None;
                    inode.keep();
                }
                Obstacle::Busy(dir) if dir.has(flag::PARTIAL) => dir.load_names_beside()?,
                Obstacle::Busy(dir) => dir.await_burial()?,
                Obstacle::Expected(inode) => {
                    // With the rename lock free, too: an observer may count references.
                    tree = None;
                    self.notify_name_leaves(&inode);
                }
                Obstacle::Locked(inode) => {
                    tree = None;
                    drop(inode.data.alone());
                }
            }
        }
    }
}
