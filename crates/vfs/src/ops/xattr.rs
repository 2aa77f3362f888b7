//! Extended attributes: named values beside a file's contents, in the name spaces of Linux.
//!
//! `user.` follows the permissions of the file and exists on regular files and directories only; `trusted.`
//! is for `SYS_ADMIN`; `security.` is read by all and written by `SYS_ADMIN` (`security.capability`:
//! `SETFCAP`); `system.posix_acl_access` and `system.posix_acl_default` are views of the POSIX ACLs.

use crate::acl::Acl;
use crate::attributes::{Acls, Attr};
use crate::durable::Section;
use crate::inode::{Extra, flag};
use crate::stat::{S_ISGID, S_ISVTX};
use crate::superblock::charged;
use crate::{
    Access, Caps, Cred, Errno, FileType, Inode, InodeFlags, InodeRef, NAME_MAX, XATTR_SIZE_MAX, XattrFlags,
};
use std::collections::BTreeMap;

/// The named values of one inode.
#[derive(Clone, Default)]
pub(crate) struct Xattrs {
    values: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The charge for all of them. *Protected by the mutex around all of this.*
    charged: u64,
}

/// Memory of an entry beside name and value: two pointers and two lengths, and its share of a node.
const ENTRY_BYTES: usize = 48;

/// The charge for the extended attribute or access control list `name` with this value, in bytes.
pub(crate) fn charge_of_stored(name: &[u8], value: &[u8]) -> u64 {
    match Namespace::of(name) {
        Namespace::AclAccess | Namespace::AclDefault => {
            Acl::from_xattr(value).ok().flatten().map_or(0, |list| charged(list.bytes() as u64))
        }
        _ => charge_of(name, value),
    }
}

/// The charge for a value, in bytes.
fn charge_of(name: &[u8], value: &[u8]) -> u64 {
    charged((ENTRY_BYTES + name.len() + value.len()) as u64)
}

impl Xattrs {
    /// The charge for all values together, in bytes: whole units.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Puts `value` there, as `flags` ask; returns what that which it replaces counted for.
    fn set(&mut self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<u64, Errno> {
        let exists = self.values.contains_key(name);
        if exists && flags.contains(XattrFlags::CREATE) {
            return Err(Errno::EEXIST);
        }
        if !exists && flags.contains(XattrFlags::REPLACE) {
            return Err(Errno::ENODATA);
        }
        let old = self.values.insert(name.into(), value.into()).map_or(0, |old| charge_of(name, &old));
        self.charged = self.charged + charge_of(name, value) - old;
        Ok(old)
    }

    /// Takes the value out; returns what it counted for.
    fn remove(&mut self, name: &[u8]) -> Result<u64, Errno> {
        let old = charge_of(name, &self.values.remove(name).ok_or(Errno::ENODATA)?);
        self.charged -= old;
        Ok(old)
    }
}

pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The rights of a program beyond those of its caller: a statement about the contents and the owner, which goes when these change.
const CAPABILITY: &[u8] = b"security.capability";

/// The namespace that a name's prefix means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
    AclAccess,
    AclDefault,
    /// A name that no file has. Permissions are checked before that is said.
    Unknown,
}

/// Checks what Linux checks of a name before it looks for the file.
///
/// # Errors
/// `ERANGE` for an empty or long name.
pub(crate) fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) { Err(Errno::ERANGE) } else { Ok(()) }
}

/// Checks what Linux checks of a new value before it looks for the file.
///
/// # Errors
/// `EINVAL` for bad flags, `ERANGE` for a bad name, `E2BIG` for a long value.
pub(crate) fn check_xattr(name: &[u8], value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
    if !(XattrFlags::CREATE | XattrFlags::REPLACE).contains(flags) {
        return Err(Errno::EINVAL);
    }
    check_xattr_name(name)?;
    if value.len() > XATTR_SIZE_MAX { Err(Errno::E2BIG) } else { Ok(()) }
}

impl Namespace {
    fn of(name: &[u8]) -> Namespace {
        match name {
            ACL_ACCESS => Namespace::AclAccess,
            ACL_DEFAULT => Namespace::AclDefault,
            _ if name.starts_with(b"user.") => Namespace::User,
            _ if name.starts_with(b"trusted.") => Namespace::Trusted,
            _ if name.starts_with(b"security.") => Namespace::Security,
            _ => Namespace::Unknown,
        }
    }

    /// # Errors
    /// `EINVAL` for a name space without a name in it, `EOPNOTSUPP` for one that does not exist.
    fn check_exists(self, name: &[u8]) -> Result<(), Errno> {
        match (self, name) {
            (Namespace::Unknown, _) => Err(Errno::EOPNOTSUPP),
            (_, b"user." | b"trusted." | b"security.") => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }
}

impl Inode {
    /// The value of attribute `name`.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP` (unknown name space), `ERANGE` (empty or long name), `EACCES`.
    pub fn get_xattr(&self, cred: &Cred, name: &[u8]) -> Result<Vec<u8>, Errno> {
        check_xattr_name(name)?;
        let space = Namespace::of(name);
        if matches!(space, Namespace::AclAccess | Namespace::AclDefault) {
            return self.get_acl(space);
        }
        self.permit_xattr(cred, space, name, Access::READ)?;
        space.check_exists(name)?;
        let extra = self.extra_if_any().ok_or(Errno::ENODATA)?;
        let xattrs = extra.xattrs.lock();
        xattrs.values.get(name).map(|value| value.to_vec()).ok_or(Errno::ENODATA)
    }

    /// The names of all attributes that `cred` may know of.
    pub fn list_xattr(&self, cred: &Cred) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        self.with_acls(|_, acls| {
            if acls.access.is_some() {
                names.push(ACL_ACCESS.to_vec());
            }
            if acls.default.is_some() {
                names.push(ACL_DEFAULT.to_vec());
            }
        });
        if let Some(extra) = self.extra_if_any() {
            let visible = |name: &[u8]| !name.starts_with(b"trusted.") || cred.has(Caps::SYS_ADMIN);
            let xattrs = extra.xattrs.lock();
            names.extend(xattrs.values.keys().filter(|name| visible(name)).map(|name| name.to_vec()));
        }
        names
    }

    /// The rules of Linux's `xattr_permission` and of its capability module.
    fn permit_xattr(&self, cred: &Cred, space: Namespace, name: &[u8], want: Access) -> Result<(), Errno> {
        let reading = want == Access::READ;
        if !reading {
            self.check_not(InodeFlags::FIXED)?;
        }
        match space {
            Namespace::Trusted if cred.has(Caps::SYS_ADMIN) => Ok(()),
            Namespace::Trusted => Err(if reading { Errno::ENODATA } else { Errno::EPERM }),
            Namespace::Security if reading => Ok(()),
            Namespace::Security => {
                let needed = if name == CAPABILITY { Caps::SETFCAP } else { Caps::SYS_ADMIN };
                if cred.has(needed) { Ok(()) } else { Err(Errno::EPERM) }
            }
            Namespace::User => {
                if !matches!(self.file_type(), FileType::Regular | FileType::Directory) {
                    return Err(if reading { Errno::ENODATA } else { Errno::EPERM });
                }
                let attr = self.attr.read();
                if self.is_dir() && !reading && attr.mode & S_ISVTX != 0 && !attr.owned_by(cred) {
                    return Err(Errno::EPERM);
                }
                self.access(cred, want)
            }
            Namespace::AclAccess | Namespace::AclDefault => Ok(()),
            Namespace::Unknown if name.starts_with(b"system.") => Ok(()),
            Namespace::Unknown => self.access(cred, want),
        }
    }

    fn get_acl(&self, space: Namespace) -> Result<Vec<u8>, Errno> {
        if self.file_type() == FileType::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        self.with_acls(|_, acls| {
            let acl = if space == Namespace::AclAccess { &acls.access } else { &acls.default };
            acl.as_ref().map(Acl::to_xattr).ok_or(Errno::ENODATA)
        })
    }
}

impl InodeRef {
    /// Sets attribute `name` to `value`; `flags` may ask that it be new, or that it be there.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` (as `flags` ask), `ENOSPC`, `EOPNOTSUPP`, `ERANGE`, `E2BIG`, `EACCES`, `EPERM`, `EINVAL`
    /// (bad flags or a malformed ACL).
    pub fn set_xattr(&self, cred: &Cred, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
        check_xattr(name, value, flags)?;
        let space = Namespace::of(name);
        if matches!(space, Namespace::AclAccess | Namespace::AclDefault) {
            return self.set_acl(cred, space, value);
        }
        self.permit_xattr(cred, space, name, Access::WRITE)?;
        space.check_exists(name)?;
        // As with tmpfs, space is asked for before the old value is looked at.
        let charge = charge_of(name, value);
        self.may_have_xattrs();
        self.change_attributes(cred, |section| {
            self.shared.charge(charge)?;
            let replaced = self.extra().xattrs.lock().set(name, value, flags);
            self.shared.discharge(*replaced.as_ref().unwrap_or(&charge));
            replaced?;
            self.xattr_changed(section, name);
            Ok(())
        })
    }

    /// Removes attribute `name`.
    ///
    /// # Errors
    /// Errors of [`InodeRef::set_xattr`].
    pub fn remove_xattr(&self, cred: &Cred, name: &[u8]) -> Result<(), Errno> {
        check_xattr_name(name)?;
        let space = Namespace::of(name);
        if matches!(space, Namespace::AclAccess | Namespace::AclDefault) {
            return self.set_acl(cred, space, &[]);
        }
        self.permit_xattr(cred, space, name, Access::WRITE)?;
        space.check_exists(name)?;
        let extra = self.extra_if_any().ok_or(Errno::ENODATA)?;
        self.change_attributes(cred, |section| {
            let removed = extra.xattrs.lock().remove(name)?;
            self.shared.discharge(removed);
            self.xattr_changed(section, name);
            Ok(())
        })
    }

    /// Takes the file capability away, if there is one, in `section`.
    #[inline]
    pub(crate) fn drop_capability(&self, section: &Section<'_>) {
        if !self.has(flag::XATTRS) {
            return;
        }
        // The lock is given back before the space is.
        let removed = self.extra().xattrs.lock().remove(CAPABILITY);
        if let Ok(removed) = removed {
            self.shared.discharge(removed);
            self.xattr_changed(section, CAPABILITY);
        }
    }

    /// Attribute `name` changed in `section`.
    fn xattr_changed(&self, section: &Section<'_>, name: &[u8]) {
        self.touch_ctime();
        section.xattrs(self, &[name]);
        section.inode(self);
    }

    /// Sets the ACL that `value` spells, or removes it. An access ACL also sets the permission bits that it
    /// contains. The checks are made in the order of Linux.
    fn set_acl(&self, cred: &Cred, space: Namespace, value: &[u8]) -> Result<(), Errno> {
        let removes = !Acl::check_form(value)?;
        self.check_not(InodeFlags::FIXED)?;
        if self.file_type() == FileType::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let slot_is_access = space == Namespace::AclAccess;
        if !slot_is_access && !self.is_dir() {
            return if removes { Ok(()) } else { Err(Errno::EACCES) };
        }
        self.shared.make_room(value.len() as u64);
        let set = |attr: &mut Attr, acls: &mut Acls| {
            if !attr.owned_by(cred) {
                return Err(Errno::EPERM);
            }
            let mut kept = Acl::from_xattr(value)?;
            if slot_is_access {
                if let Some(acl) = &kept {
                    attr.mode = (attr.mode & !0o777) | acl.mode_bits();
                    if acl.equivalent_mode().is_some() {
                        kept = None;
                    }
                }
                if !attr.may_keep_setgid(cred) {
                    attr.mode &= !S_ISGID;
                }
            }
            *(if slot_is_access { &mut acls.access } else { &mut acls.default }) = kept;
            Ok(())
        };
        self.change_attributes(cred, |section| {
            self.change_acls(set)?;
            self.xattr_changed(section, if slot_is_access { ACL_ACCESS } else { ACL_DEFAULT });
            Ok(())
        })
    }
}

/// For a store: the attributes as they are, without a check of permission.
impl Inode {
    /// Whether there are any, access control lists aside.
    pub(crate) fn has_xattrs(&self) -> bool {
        let has_any = |extra: &Extra| !extra.xattrs.lock().values.is_empty();
        self.has(flag::XATTRS) && self.extra_if_any().is_some_and(has_any)
    }

    /// There will be some.
    pub(crate) fn may_have_xattrs(&self) {
        if !self.has(flag::XATTRS) {
            self.raise(flag::XATTRS);
        }
    }

    /// The names of all, access control lists included.
    pub(crate) fn xattr_names(&self) -> Vec<Box<[u8]>> {
        let Some(extra) = self.extra_if_any() else { return Vec::new() };
        let mut names: Vec<Box<[u8]>> = extra.xattrs.lock().values.keys().cloned().collect();
        self.with_acls(|_, acls| {
            names.extend(acls.access.as_ref().map(|_| ACL_ACCESS.into()));
            names.extend(acls.default.as_ref().map(|_| ACL_DEFAULT.into()));
        });
        names
    }

    /// The value of `name`, an access control list's included.
    pub(crate) fn xattr_value(&self, name: &[u8]) -> Option<Vec<u8>> {
        match Namespace::of(name) {
            Namespace::AclAccess => self.with_acls(|_, acls| acls.access.as_ref().map(Acl::to_xattr)),
            Namespace::AclDefault => self.with_acls(|_, acls| acls.default.as_ref().map(Acl::to_xattr)),
            _ => self.extra_if_any()?.xattrs.lock().values.get(name).map(|value| value.to_vec()),
        }
    }

    /// Puts an attribute there that the store has.
    ///
    /// # Errors
    /// `EIO` for an access control list that is none; `ENOSPC` for one that leads beyond the limit.
    pub(crate) fn restore_xattr(&self, name: &[u8], value: &[u8], is_counted: bool) -> Result<(), Errno> {
        let space = Namespace::of(name);
        if matches!(space, Namespace::AclAccess | Namespace::AclDefault) {
            let list = Acl::from_xattr(value).map_err(|_| Errno::EIO)?;
            return self.change_acls_counting(is_counted, |_, acls| {
                *(if space == Namespace::AclAccess { &mut acls.access } else { &mut acls.default }) = list;
                Ok(())
            });
        }
        if is_counted {
            self.shared.charge_loaded(charge_of(name, value));
        }
        self.may_have_xattrs();
        self.extra().xattrs.lock().set(name, value, XattrFlags::empty()).map(drop)
    }
}
