//! Permission: which user may do what to an inode. The rules are those of Linux's `generic_permission`.

use crate::acl::Acl;
use crate::attributes::Attr;
use crate::stat::{S_ISGID, S_ISUID, S_ISVTX, S_IXGRP};
use crate::{Access, Caps, Cred, Errno, Inode, InodeFlags};

impl Inode {
    /// May `cred` read, write or execute (search) this inode, as `want` asks?
    ///
    /// # Errors
    /// `EACCES` if not; `EPERM` when the inode is immutable and `want` includes writing.
    #[inline]
    pub fn access(&self, cred: &Cred, want: Access) -> Result<(), Errno> {
        if want.contains(Access::WRITE) {
            self.check_not(InodeFlags::IMMUTABLE)?;
        }
        // A user that may do everything need not look, and so does not meet a call that changes the mode.
        if cred.has(Caps::DAC_OVERRIDE) && (self.is_dir() || !want.contains(Access::EXEC)) {
            return Ok(());
        }
        self.access_by_mode(cred, want)
    }

    /// The check of [`access`](Self::access) for a user without capabilities over the file.
    #[inline(never)]
    fn access_by_mode(&self, cred: &Cred, want: Access) -> Result<(), Errno> {
        let attr = self.attr.read();
        if !attr.has_acls {
            return attr.access(None, cred, want, self.is_dir());
        }
        self.with_acls(|attr, acls| attr.access(acls.access.as_ref(), cred, want, self.is_dir()))
    }

    /// May `cred` add names to and remove names from this directory?
    pub(crate) fn may_change_names(&self, cred: &Cred) -> Result<(), Errno> {
        self.access(cred, Access::WRITE | Access::EXEC)
    }

    /// In a sticky directory, may `cred` remove or rename the name of `victim`?
    ///
    /// # Errors
    /// `EPERM` if not.
    pub(crate) fn check_sticky(&self, cred: &Cred, victim: &Inode) -> Result<(), Errno> {
        if cred.has(Caps::FOWNER) {
            return Ok(());
        }
        let attr = self.attr.read();
        if attr.mode & S_ISVTX == 0 || attr.uid == cred.uid || victim.attr.read().uid == cred.uid {
            return Ok(());
        }
        Err(Errno::EPERM)
    }
}

impl Attr {
    /// [`Inode::access`] for an inode with this access ACL.
    pub(crate) fn access(
        &self,
        acl: Option<&Acl>,
        cred: &Cred,
        want: Access,
        is_dir: bool,
    ) -> Result<(), Errno> {
        let want = want & (Access::READ | Access::WRITE | Access::EXEC);
        if self.bits_allow(acl, cred, want) {
            return Ok(());
        }
        let override_all = cred.has(Caps::DAC_OVERRIDE)
            && (is_dir || !want.contains(Access::EXEC) || self.mode & 0o111 != 0);
        let search_only = if is_dir { !want.contains(Access::WRITE) } else { want == Access::READ };
        if override_all || (search_only && cred.has(Caps::DAC_READ_SEARCH)) {
            return Ok(());
        }
        Err(Errno::EACCES)
    }

    /// Whether mode bits and ACL allow it, capabilities aside.
    fn bits_allow(&self, acl: Option<&Acl>, cred: &Cred, want: Access) -> bool {
        let allowed = |bits: u32| Access::from_bits_retain(bits & 7).contains(want);
        if cred.uid == self.uid {
            return allowed(self.mode >> 6);
        }
        if let Some(acl) = acl
            && self.mode & 0o070 != 0
        {
            return acl.permits(self.uid, self.gid, cred, want);
        }
        allowed(if cred.in_group(self.gid) { self.mode >> 3 } else { self.mode })
    }

    /// True when `cred` owns the inode or may act as its owner.
    pub(crate) fn owned_by(&self, cred: &Cred) -> bool {
        self.uid == cred.uid || cred.has(Caps::FOWNER)
    }

    /// Set-ID bits that do not survive a change by `cred` to the group given: without the group or
    /// `FSETID`, set-group-ID goes.
    pub(crate) fn may_keep_setgid(&self, cred: &Cred) -> bool {
        cred.in_group(self.gid) || cred.has(Caps::FSETID)
    }

    /// The set-ID bits to clear when a file changes hands or contents: set-user-ID always, set-group-ID when
    /// it means execution, or when `cred` is not in the group.
    pub(crate) fn set_id_bits_to_clear(&self, cred: &Cred) -> u32 {
        let mut clear = self.mode & S_ISUID;
        if self.mode & S_ISGID != 0 && (self.mode & S_IXGRP != 0 || !self.may_keep_setgid(cred)) {
            clear |= S_ISGID;
        }
        clear
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Cred, Errno, NewInode, NewKind, Options, Superblock};

    fn file(mode: u32) -> (sluice_sync::Arc<Superblock>, crate::InodeRef) {
        let superblock = Superblock::new(Options::default().root_mode(0o777));
        let new = NewInode { kind: NewKind::Regular, mode, umask: 0 };
        let inode = superblock.root().create(&Cred::user(1000, 100), b"f", &new).expect("a fresh name");
        (superblock, inode)
    }

    #[test]
    fn the_owner_is_judged_by_the_owner_bits_alone() {
        let (_keep, inode) = file(0o077);
        assert_eq!(inode.access(&Cred::user(1000, 100), Access::READ), Err(Errno::EACCES));
        assert_eq!(inode.access(&Cred::user(1001, 100), Access::READ), Ok(()));
    }

    #[test]
    fn the_superuser_executes_only_what_somebody_may() {
        let (_keep, inode) = file(0o600);
        assert_eq!(inode.access(&Cred::root(), Access::EXEC), Err(Errno::EACCES));
        assert_eq!(inode.access(&Cred::root(), Access::READ | Access::WRITE), Ok(()));
    }

    #[test]
    fn a_supplementary_group_counts() {
        let (_keep, inode) = file(0o640);
        assert_eq!(inode.access(&Cred::with_groups(1, 1, &[100]), Access::READ), Ok(()));
        assert_eq!(inode.access(&Cred::user(1, 1), Access::READ), Err(Errno::EACCES));
    }
}
