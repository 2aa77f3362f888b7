//! SetAttr: changing mode, owner and times of an inode.

use crate::attributes::{Acls, Attr};
use crate::durable::Section;
use crate::ops::TreeLock;
use crate::ops::xattr::ACL_ACCESS;
use crate::stat::{S_IALLUGO, S_ISGID, Timestamp};
use crate::watch::fault::Calls;
use crate::{Access, Caps, Cred, Errno, Inode, InodeFlags, InodeRef};

/// The attributes to change. `None` leaves as is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission, set-ID and sticky bits.
    pub mode: Option<u32>,
    /// Owner. Present owner and group clear set-ID bits and the file capability, also when they change nothing.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// This is a `chown`: clear set-ID bits and the file capability even when neither owner nor group is given.
    pub chown: bool,
}

impl SetAttr {
    fn is_chown(&self) -> bool {
        self.chown || self.uid.is_some() || self.gid.is_some()
    }

    /// The flags of a file that forbid this change.
    fn forbidden_by(&self) -> InodeFlags {
        let is_touch = [self.atime, self.mtime] == [Some(SetTime::Now); 2];
        let sets_times = self.atime.is_some() || self.mtime.is_some();
        if self.mode.is_some() || self.uid.is_some() || self.gid.is_some() || (sets_times && !is_touch) {
            InodeFlags::FIXED
        } else if is_touch {
            InodeFlags::IMMUTABLE
        } else {
            InodeFlags::empty()
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    At(Timestamp),
}

impl Inode {
    /// Checks that `cred` may make `change`; the mode that results, if it changes.
    fn permitted_mode(
        &self,
        attr: &Attr,
        acls: &Acls,
        cred: &Cred,
        change: &SetAttr,
    ) -> Result<Option<u32>, Errno> {
        let cleared = if change.is_chown() && !self.is_dir() { attr.set_id_bits_to_clear(cred) } else { 0 };
        let owner = attr.uid == cred.uid;
        if let Some(uid) = change.uid
            && !(owner && uid == attr.uid)
            && !cred.has(Caps::CHOWN)
        {
            return Err(Errno::EPERM);
        }
        if let Some(gid) = change.gid
            && !(owner && (gid == attr.gid || cred.in_group(gid)))
            && !cred.has(Caps::CHOWN)
        {
            return Err(Errno::EPERM);
        }
        if (change.mode.is_some() || cleared != 0) && !attr.owned_by(cred) {
            return Err(Errno::EPERM);
        }
        self.permit_times(attr, acls, cred, change)?;
        let Some(mode) = change.mode else {
            return Ok((cleared != 0).then_some(attr.mode & !cleared));
        };
        let gid = change.gid.unwrap_or(attr.gid);
        let keeps_setgid = cred.in_group(gid) || cred.has(Caps::FSETID);
        let mode = mode & S_IALLUGO & !cleared;
        Ok(Some(if keeps_setgid { mode } else { mode & !S_ISGID }))
    }

    fn permit_times(&self, attr: &Attr, acls: &Acls, cred: &Cred, change: &SetAttr) -> Result<(), Errno> {
        match (change.atime, change.mtime) {
            (None, None) => Ok(()),
            _ if attr.owned_by(cred) => Ok(()),
            (Some(SetTime::Now), Some(SetTime::Now)) => {
                attr.access(acls.access.as_ref(), cred, Access::WRITE, self.is_dir())
            }
            _ => Err(Errno::EPERM),
        }
    }
}

impl InodeRef {
    /// Changes attributes, all of them or none.
    ///
    /// # Errors
    /// `EPERM` when `cred` may not, or nobody may because of the file's [flags](InodeFlags); `EACCES` when both times are to be set to now by a user that neither owns
    /// the file nor may write it; `EINVAL` for nanoseconds out of range.
    pub fn set_attr(&self, cred: &Cred, change: &SetAttr) -> Result<(), Errno> {
        for time in [change.atime, change.mtime] {
            if matches!(time, Some(SetTime::At(at)) if at.nsec > 999_999_999) {
                return Err(Errno::EINVAL);
            }
        }
        self.check_not(change.forbidden_by())?;
        self.meet_faults(Calls::SETATTR)?;
        let attempt = |section: &Section<'_>| {
            let mut has_acls = false;
            self.change_acls(|attr, acls| {
                has_acls = acls.access.is_some();
                let new_mode = self.permitted_mode(attr, acls, cred, change)?;
                attr.uid = change.uid.unwrap_or(attr.uid);
                attr.gid = change.gid.unwrap_or(attr.gid);
                if let Some(mode) = new_mode {
                    attr.mode = mode;
                    if change.mode.is_some()
                        && let Some(acl) = &mut acls.access
                    {
                        acl.chmod(mode);
                    }
                }
                Ok(())
            })?;
            if change.is_chown() && !self.is_dir() {
                self.drop_capability(section);
            }
            let now = Timestamp::now();
            let instant = |time: SetTime| match time {
                SetTime::Now => now,
                SetTime::At(at) => at,
            };
            self.times.set(change.atime.map(instant), change.mtime.map(instant));
            self.touch_ctime();
            section.inode(self);
            if has_acls {
                section.xattrs(self, &[ACL_ACCESS]);
            }
            Ok(())
        };
        self.change_attributes(cred, attempt)
    }

    /// Makes one operation of `attempt`, which changes attributes of this inode.
    ///
    /// # Errors
    /// Errors of [`Shared::operate`](crate::superblock::Shared::operate).
    pub(crate) fn change_attributes(
        &self,
        cred: &Cred,
        attempt: impl Fn(&Section<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let attempt = |section: &Section<'_>, _: Option<&TreeLock<'_>>| {
            self.check_kept()?;
            Ok(attempt(section)?)
        };
        self.shared.operate(cred, &[self], 0, attempt, |()| self.notify_attributes(cred))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewInode, NewKind, Options, Superblock};
    use sluice_sync::Arc;

    fn file(mode: u32) -> (Arc<Superblock>, InodeRef) {
        let superblock = Superblock::new(Options::default().root_mode(0o777));
        let new = NewInode { kind: NewKind::Regular, mode, umask: 0 };
        let inode = superblock.root().create(&Cred::user(1000, 100), b"f", &new).expect("a fresh name");
        (superblock, inode)
    }

    #[test]
    fn chown_by_the_superuser_clears_the_set_id_bits() {
        let (_keep, inode) = file(0o6755);
        let change = SetAttr { uid: Some(7), ..SetAttr::default() };
        inode.set_attr(&Cred::root(), &change).expect("root may");
        assert_eq!((inode.stat().permissions(), inode.stat().uid), (0o755, 7));
    }

    #[test]
    fn a_time_out_of_range_becomes_the_nearest_in_range() {
        let (_keep, inode) = file(0o644);
        let at = |sec| Some(SetTime::At(Timestamp { sec, nsec: 5 }));
        let change = SetAttr { atime: at(i64::MIN), mtime: at(i64::MAX), ..SetAttr::default() };
        inode.set_attr(&Cred::root(), &change).expect("root may");
        assert_eq!((inode.stat().atime, inode.stat().mtime), (Timestamp::MIN, Timestamp::MAX));
    }

    #[test]
    fn a_member_only_may_set_the_group_bit() {
        let (_keep, inode) = file(0o644);
        inode
            .set_attr(&Cred::root(), &SetAttr { gid: Some(55), ..SetAttr::default() })
            .expect("root may give it to any group");
        let owner_outside = Cred::user(1000, 100);
        inode.set_attr(&owner_outside, &SetAttr { mode: Some(0o2755), ..SetAttr::default() }).expect("owner");
        assert_eq!(inode.stat().permissions(), 0o755);
    }

    #[test]
    fn one_who_may_write_may_set_both_times_to_now_and_nothing_else() {
        let (_keep, inode) = file(0o666);
        let other = Cred::user(5, 5);
        let now = Some(SetTime::Now);
        let both = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
        assert_eq!(inode.set_attr(&other, &both), Ok(()));
        let one = SetAttr { atime: now, ..SetAttr::default() };
        assert_eq!(inode.set_attr(&other, &one), Err(Errno::EPERM));
    }
}
