//! Attributes: mode and owner of an inode, read without a store.
//!
//! # Theory
//! Permission checks read a small value behind a sequence lock: readers store nothing. It changes by `chmod` and its
//! like alone; what other calls change lies elsewhere ([`Times`](crate::times), [`Links`](crate::links)), so that
//! opening or reading a file does not meet a call that gives it another name.
//!
//! POSIX ACLs are too large for such a lock. They hang behind a pointer of their own, read under RCU, and
//! [`Attr::has_acls`] says whether there are any; they change only under the lock's writers.
//!
//! # Invariants
//! - I1: `has_acls` says whether the inode's [`Acls`] hold a list; then they have the stamp `acl_stamp`, except
//!   while a writer changes both;
//! - I2: an access ACL and the mode say the same of owner, mask and others.

use crate::acl::Acl;
use crate::durable::Section;
use crate::superblock::charged;
use crate::{Caps, Cred, Errno, Inode, InodeRef};
use sluice_sync::rcu::{self, RcuCell, Replaced};
use sluice_sync::seqlock::Words;

/// The attributes that change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attr {
    /// Permission, set-ID and sticky bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// There are POSIX ACLs.
    pub(crate) has_acls: bool,
    /// The ACLs that belong to these attributes are those with this stamp.
    acl_stamp: u32,
}

/// The POSIX ACLs of an inode.
#[derive(Clone, Default, Debug)]
pub(crate) struct Acls {
    /// Changes whenever they do.
    stamp: u32,
    pub(crate) access: Option<Acl>,
    /// The list that new files in this directory inherit.
    pub(crate) default: Option<Acl>,
}

impl Acls {
    /// The bytes that these lists take from the file system's size limit.
    pub(crate) fn charged(&self) -> u64 {
        let lists = [&self.access, &self.default];
        lists.into_iter().flatten().map(|list| charged(list.bytes() as u64)).sum()
    }
}

/// A bit of the first word above those of the mode; the stamp is above it.
const HAS_ACLS: u64 = 1 << 16;

impl Words<2> for Attr {
    fn to_words(self) -> [u64; 2] {
        let has_acls = if self.has_acls { HAS_ACLS } else { 0 };
        [
            u64::from(self.mode) | has_acls | u64::from(self.acl_stamp) << 32,
            u64::from(self.uid) | u64::from(self.gid) << 32,
        ]
    }

    fn from_words([first, owner]: [u64; 2]) -> Attr {
        Attr {
            mode: first as u32 & 0xffff,
            uid: owner as u32,
            gid: (owner >> 32) as u32,
            has_acls: first & HAS_ACLS != 0,
            acl_stamp: (first >> 32) as u32,
        }
    }
}

impl Attr {
    /// The attributes of a new inode.
    pub(crate) fn new(mode: u32, uid: u32, gid: u32) -> Attr {
        Attr { mode, uid, gid, has_acls: false, acl_stamp: 0 }
    }
}

impl InodeRef {
    /// `cred` changed the contents in `section`: set-ID bits go unless it may keep them, a file capability goes in any case, and the
    /// times move.
    #[inline]
    pub(crate) fn contents_changed(&self, cred: &Cred, section: &Section<'_>) {
        // A caller that may keep them need not look at them.
        if !cred.has(Caps::FSETID) && self.attr.read().set_id_bits_to_clear(cred) != 0 {
            self.attr.change(|attr| attr.mode &= !attr.set_id_bits_to_clear(cred));
        }
        self.drop_capability(section);
        self.touch_mtime();
    }
}

impl Inode {
    /// Calls `look` with the attributes and the ACLs that belong to them.
    pub(crate) fn with_acls<R>(&self, look: impl FnOnce(&Attr, &Acls) -> R) -> R {
        let attr = self.attr.read();
        if !attr.has_acls {
            return look(&attr, &Acls::default());
        }
        let section = rcu::domain().read();
        match self.acls(&section) {
            Some(acls) if acls.stamp == attr.acl_stamp => look(&attr, acls),
            // A change is under way: in line behind it.
            _ => self.attr.change(|attr| look(attr, self.acls(&section).unwrap_or(&Acls::default()))),
        }
    }

    /// Changes attributes and ACLs together, unless `change` fails, or there is no space for additions to the ACLs.
    ///
    /// # Errors
    /// `ENOSPC`; errors of `change`.
    pub(crate) fn change_acls(
        &self,
        change: impl FnOnce(&mut Attr, &mut Acls) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.change_acls_counting(true, change)
    }

    /// Changes attributes and ACLs; additions to the ACLs are counted here if `is_counted`, and were counted before if not. See
    /// [`change_acls`](Self::change_acls).
    pub(crate) fn change_acls_counting(
        &self,
        is_counted: bool,
        change: impl FnOnce(&mut Attr, &mut Acls) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let section = rcu::domain().read();
        // Dropped after the writers' lock, a leaf: what waits for a grace period beside it may count references. Inside the section, so
        // that nothing is waited for.
        let mut replaced = None;
        self.attr.change(|attr| {
            let (mut new_attr, mut acls) = (*attr, self.acls(&section).cloned().unwrap_or_default());
            let before = acls.charged();
            change(&mut new_attr, &mut acls)?;
            if is_counted {
                // Space for the additions is taken first, so that nothing has changed if it runs out.
                self.shared.charge_at_once(acls.charged().saturating_sub(before))?;
                self.shared.discharge(before.saturating_sub(acls.charged()));
            }
            new_attr.has_acls = acls.access.is_some() || acls.default.is_some();
            if attr.has_acls || new_attr.has_acls {
                new_attr.acl_stamp = attr.acl_stamp.wrapping_add(1);
                replaced = self.replace_acls(Acls { stamp: new_attr.acl_stamp, ..acls });
            }
            *attr = new_attr;
            Ok(())
        })
    }

    fn acls<'g>(&'g self, section: &'g rcu::Guard<'_>) -> Option<&'g Acls> {
        Some(self.extra_if_any()?.acls.get()?.load(section))
    }

    fn replace_acls(&self, acls: Acls) -> Option<Replaced<Acls>> {
        let slot = &self.extra().acls;
        if let Some(cell) = slot.get() {
            return Some(cell.swap(acls));
        }
        // Only writers of the attributes come here, one at a time.
        let _ = slot.set(RcuCell::new(rcu::domain(), acls));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewInode, NewKind, Options, SetAttr, Superblock};
    use sluice_sync::thread;

    #[test]
    fn attributes_survive_their_words() {
        let attr = Attr { mode: 0o7777, uid: u32::MAX, gid: 7, has_acls: false, acl_stamp: u32::MAX };
        assert_eq!(Attr::from_words(attr.to_words()), attr);
        let other = Attr { mode: 0, uid: 0, has_acls: true, acl_stamp: 1, ..attr };
        assert_eq!(Attr::from_words(other.to_words()), other);
    }

    #[test]
    fn a_reader_never_sees_an_acl_and_the_mode_of_another_change() {
        if !sluice_sync::face::HOSTS_SHARE {
            return;
        }
        let superblock = Superblock::new(Options::default());
        let new = NewInode { kind: NewKind::Regular, mode: 0o600, umask: 0 };
        let file = superblock.root().create(&Cred::root(), b"f", &new).expect("a fresh name");
        file.change_acls(|_, acls| {
            acls.access = Some(Acl::from_mode(0o600));
            Ok(())
        })
        .expect("nothing forbids it");
        thread::scope(|scope| {
            scope.spawn(|| {
                for mode in 0..2_000 {
                    let change = SetAttr { mode: Some(mode & 0o777), ..SetAttr::default() };
                    file.set_attr(&Cred::root(), &change).expect("root may");
                }
            });
            for _ in 0..10_000 {
                file.with_acls(|attr, acls| {
                    assert_eq!(acls.access.as_ref().map(Acl::mode_bits), Some(attr.mode));
                });
            }
        });
    }
}
