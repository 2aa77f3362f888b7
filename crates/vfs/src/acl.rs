//! Acl: a POSIX access control list, which refines the nine permission bits of a mode.
//!
//! # Theory
//! A list has one entry each for the owner, the owning group and everybody else, and may name further users
//! and groups. Then it has a *mask* too, which bounds what named users and all groups get, but neither the
//! owner nor the others:
//! ```text
//!   user::rw-           owner
//!   user:7:rwx          named user      }
//!   group::r-x          owning group    } at most the mask: r-- here
//!   group:20:rw-        named group     }
//!   mask::r--
//!   other::---
//! ```
//! The mode that `stat` shows is the list seen from afar: its group bits are the mask if there is one, the
//! owning group's entry otherwise. `chmod` writes the same places.
//!
//! # Sources
//! POSIX.1e, withdrawn draft 17: composition of a list, correspondence with the permission bits, access
//! check, inheritance; `acl(5)`, which sums it up. Analogous to Linux's `fs/posix_acl.c`, whose form of the
//! extended attributes this is.

use crate::{Access, Cred, Errno};

/// The only version of the attribute's form.
const VERSION: u32 = 2;
/// The id of an entry without a user or group. Names nobody as a user or group either.
const NO_ID: u32 = u32::MAX;
/// Bytes of the version, and of each entry after it: tag (16 bits), permissions (16 bits), id (32 bits).
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;

const TAG_USER_OBJ: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OBJ: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;

/// An access control list. Entries hold permission bits from 0 to 7, those of `Access`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl {
    /// The owner's entry.
    owner: u8,
    /// The owning group's entry.
    group: u8,
    /// The bound of all entries but the owner's and the others'. Always there when `users` or `groups` name
    /// somebody.
    mask: Option<u8>,
    /// Everybody else's entry.
    other: u8,
    /// Named users, in the order in which they were given.
    users: Box<[Named]>,
    /// Named groups likewise.
    groups: Box<[Named]>,
}

/// The entry of a named user or group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Named {
    id: u32,
    permissions: u8,
}

impl Acl {
    /// Reads the value of `system.posix_acl_access` or `system.posix_acl_default`. A value without entries,
    /// or an empty one, is `None`: it means that the list is to be removed.
    ///
    /// Entries must come in this order: owner, named users, owning group, named groups, mask, others; each
    /// but the named ones once, the mask only optional, and only without named ones. The order of the named
    /// ones among themselves is free and nobody checks that an id comes once, as on Linux.
    ///
    /// Errors: `EOPNOTSUPP` for another version of the form, `EINVAL` for all else that is not such a list.
    pub(crate) fn from_xattr(value: &[u8]) -> Result<Option<Acl>, Errno> {
        if !Acl::check_form(value)? {
            return Ok(None);
        }
        let (entries, _) = value[HEADER_LEN..].as_chunks::<ENTRY_LEN>();
        Acl::from_entries(entries).map(Some).ok_or(Errno::EINVAL)
    }

    /// The part of [`Acl::from_xattr`]'s checks that Linux makes before it looks at the file: the form, the
    /// version and the tags. Returns whether there are entries.
    ///
    /// Errors: `EOPNOTSUPP` for another version of the form, `EINVAL`.
    pub(crate) fn check_form(value: &[u8]) -> Result<bool, Errno> {
        const TAGS: [u16; 6] = [TAG_USER_OBJ, TAG_USER, TAG_GROUP_OBJ, TAG_GROUP, TAG_MASK, TAG_OTHER];
        if value.is_empty() {
            return Ok(false);
        }
        let (version, entries) = value.split_first_chunk::<HEADER_LEN>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (entries, []) = entries.as_chunks::<ENTRY_LEN>() else { return Err(Errno::EINVAL) };
        let known = entries.iter().map(AclEntry::decode).all(|entry| TAGS.contains(&entry.tag));
        if known { Ok(!entries.is_empty()) } else { Err(Errno::EINVAL) }
    }

    /// How much memory the list takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Acl>() + (self.users.len() + self.groups.len()) * size_of::<Named>()
    }

    /// The list that `entries` spell, if they spell one.
    fn from_entries(entries: &[[u8; ENTRY_LEN]]) -> Option<Acl> {
        let mut entries = entries.iter().map(AclEntry::decode).peekable();
        let owner = entries.next_if(|entry| entry.tag == TAG_USER_OBJ)?.permissions()?;
        let users = named(std::iter::from_fn(|| entries.next_if(|entry| entry.tag == TAG_USER)))?;
        let group = entries.next_if(|entry| entry.tag == TAG_GROUP_OBJ)?.permissions()?;
        let groups = named(std::iter::from_fn(|| entries.next_if(|entry| entry.tag == TAG_GROUP)))?;
        let mask = match entries.next_if(|entry| entry.tag == TAG_MASK) {
            Some(entry) => Some(entry.permissions()?),
            None if users.is_empty() && groups.is_empty() => None,
            None => return None,
        };
        let other = entries.next_if(|entry| entry.tag == TAG_OTHER)?.permissions()?;
        entries.next().is_none().then_some(Acl { owner, group, mask, other, users, groups })
    }

    /// The value of the extended attribute that holds this list.
    pub(crate) fn to_xattr(&self) -> Vec<u8> {
        let entries = 4 + self.users.len() + self.groups.len();
        let mut value = Vec::with_capacity(HEADER_LEN + entries * ENTRY_LEN);
        value.extend(VERSION.to_le_bytes());
        let mut push = |tag: u16, permissions: u8, id: u32| {
            value.extend(tag.to_le_bytes());
            value.extend(u16::from(permissions).to_le_bytes());
            value.extend(id.to_le_bytes());
        };
        push(TAG_USER_OBJ, self.owner, NO_ID);
        self.users.iter().for_each(|user| push(TAG_USER, user.permissions, user.id));
        push(TAG_GROUP_OBJ, self.group, NO_ID);
        self.groups.iter().for_each(|group| push(TAG_GROUP, group.permissions, group.id));
        if let Some(mask) = self.mask {
            push(TAG_MASK, mask, NO_ID);
        }
        push(TAG_OTHER, self.other, NO_ID);
        value
    }

    /// The list that says what the permission bits of `mode` say.
    #[cfg(test)]
    pub(crate) fn from_mode(mode: u32) -> Acl {
        let [owner, group, other] = split(mode);
        Acl { owner, group, mask: None, other, users: Box::default(), groups: Box::default() }
    }

    /// The permission bits that say all that this list says, or `None` when it says more: it has a mask or
    /// names somebody. A list that has such bits need not be kept.
    pub(crate) fn equivalent_mode(&self) -> Option<u32> {
        self.mask.is_none().then(|| self.mode_bits())
    }

    /// The permission bits that `stat` shows for this list: owner, mask (owning group without one), others.
    pub(crate) fn mode_bits(&self) -> u32 {
        join([self.owner, self.mask.unwrap_or(self.group), self.other])
    }

    /// Tells whether a caller may do all of `want` to a file that belongs to `owner` and `group`. Only the
    /// list is asked; capabilities are the caller's affair.
    ///
    /// The first that applies decides: the owner's entry; the caller's entry as a named user; the entries of
    /// the owning group and the named groups that the caller is in, if there is one, of which any may allow
    /// all of `want` but several may not add up; the others' entry.
    ///
    /// Linux asks the list only when the group bits of the mode are not all zero: with an empty mask, it puts
    /// a named user, and a member of a named group, among the others. A client that wants to equal it must
    /// look at [`Acl::mode_bits`] first.
    pub(crate) fn permits(&self, owner: u32, group: u32, cred: &Cred, want: Access) -> bool {
        let want = (want.bits() & 7) as u8;
        let grants = |permissions: u8| permissions & want == want;
        let mask = self.mask.unwrap_or(7);
        if cred.uid == owner {
            return grants(self.owner);
        }
        if let Some(user) = self.users.iter().find(|user| user.id == cred.uid) {
            return grants(user.permissions & mask);
        }
        let owning = Named { id: group, permissions: self.group };
        let groups = std::iter::once(&owning).chain(&self.groups);
        let mut mine = groups.filter(|group| cred.in_group(group.id)).peekable();
        if mine.peek().is_some() {
            return mine.any(|group| grants(group.permissions & mask));
        }
        grants(self.other)
    }

    /// Changes the list as `chmod` does: owner, mask (owning group without one) and others take the
    /// permission bits of `mode`. The other entries stay, and the mask bounds them.
    pub(crate) fn chmod(&mut self, mode: u32) {
        let [owner, group, other] = split(mode);
        self.owner = owner;
        *self.mask.as_mut().unwrap_or(&mut self.group) = group;
        self.other = other;
    }

    /// The access list and mode of a new object in a directory with this default list. The list is absent if the mode
    /// expresses it completely. `mode` is what the creator asked for, without regard to the umask; bits that are not
    /// permission bits stay.
    ///
    /// The access list is the default list, with owner, mask (owning group without one) and others cut to
    /// what `mode` allows. A new directory takes the default list itself, unchanged, as its own default list.
    /// Symbolic links take neither.
    pub(crate) fn inherit(&self, mode: u32) -> (Option<Acl>, u32) {
        let mut access = self.clone();
        access.chmod(self.mode_bits() & mode);
        let mode = (mode & !0o777) | access.mode_bits();
        (access.equivalent_mode().is_none().then_some(access), mode)
    }
}

/// An entry as it stands in the attribute.
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl AclEntry {
    fn decode(bytes: &[u8; ENTRY_LEN]) -> AclEntry {
        let [t0, t1, p0, p1, id @ ..] = *bytes;
        let (tag, permissions) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
        AclEntry { tag, permissions, id: u32::from_le_bytes(id) }
    }

    /// The permission bits, if there are no others.
    fn permissions(&self) -> Option<u8> {
        u8::try_from(self.permissions).ok().filter(|&permissions| permissions <= 7)
    }
}

/// The entries of named users or groups, if each is right.
fn named(entries: impl Iterator<Item = AclEntry>) -> Option<Box<[Named]>> {
    let check = |entry: AclEntry| {
        (entry.id != NO_ID).then_some(Named { id: entry.id, permissions: entry.permissions()? })
    };
    entries.map(check).collect()
}

/// The bits of owner, group and others in `mode`.
fn split(mode: u32) -> [u8; 3] {
    [mode >> 6, mode >> 3, mode].map(|bits| (bits & 7) as u8)
}

/// The mode of owner, group and others.
fn join([owner, group, other]: [u8; 3]) -> u32 {
    u32::from(owner) << 6 | u32::from(group) << 3 | u32::from(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: u16 = TAG_USER_OBJ;
    const G: u16 = TAG_GROUP_OBJ;
    const O: u16 = TAG_OTHER;
    const M: u16 = TAG_MASK;

    /// The attribute's value for entries of tag, permissions and id.
    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::from_xattr(&value(entries)).unwrap().unwrap()
    }

    /// Owner 1 `rw-`, user 7 `rwx`, owning group 10 `r-x`, group 20 `rw-`, group 21 `-wx`, the mask, others
    /// `--x`.
    fn with_mask(mask: u16) -> Acl {
        let named = [(TAG_USER, 7, 7), (G, 5, NO_ID), (TAG_GROUP, 6, 20), (TAG_GROUP, 3, 21)];
        acl(&[&[(U, 6, NO_ID)], &named[..], &[(M, mask, NO_ID), (O, 1, NO_ID)]].concat())
    }

    /// The subsets of read, write and execute that the list of `with_mask` grants user `uid` in groups `groups`.
    fn allowed(mask: u16, uid: u32, groups: &[u32]) -> Vec<u32> {
        let cred = Cred::with_groups(uid, 99, groups);
        let permits = |&want: &u32| with_mask(mask).permits(1, 10, &cred, Access::from_bits_retain(want));
        (1..8).filter(permits).collect()
    }

    #[test]
    fn a_list_survives_its_attribute() {
        for entries in [
            vec![(U, 7, NO_ID), (G, 5, NO_ID), (O, 0, NO_ID)],
            vec![(U, 7, NO_ID), (G, 5, NO_ID), (M, 4, NO_ID), (O, 0, NO_ID)],
            vec![
                (U, 7, NO_ID),
                (TAG_USER, 6, 9),
                (TAG_USER, 1, 3),
                (G, 5, NO_ID),
                (M, 4, NO_ID),
                (O, 0, NO_ID),
            ],
            vec![(U, 7, NO_ID), (G, 5, NO_ID), (TAG_GROUP, 0, 0), (M, 4, NO_ID), (O, 0, NO_ID)],
        ] {
            assert_eq!(acl(&entries).to_xattr(), value(&entries));
        }
        assert_eq!(Acl::from_xattr(&with_mask(7).to_xattr()), Ok(Some(with_mask(7))));
    }

    #[test]
    fn the_id_of_an_entry_that_names_nobody_is_not_kept() {
        assert_eq!(acl(&[(U, 7, 1), (G, 5, 2), (O, 0, 3)]), Acl::from_mode(0o750));
    }

    #[test]
    fn a_value_without_entries_means_removal() {
        assert_eq!(Acl::from_xattr(&value(&[])), Ok(None));
        assert_eq!(Acl::from_xattr(&[]), Ok(None));
    }

    #[test]
    fn values_of_another_form_are_refused() {
        let good = value(&[(U, 7, NO_ID), (G, 5, NO_ID), (O, 0, NO_ID)]);
        for len in 1..good.len() {
            if len != HEADER_LEN {
                assert_eq!(Acl::from_xattr(&good[..len]), Err(Errno::EINVAL), "{len} bytes");
            }
        }
        for version in [0, 1, 3, 2 << 24] {
            let other = [&u32::to_le_bytes(version), &good[HEADER_LEN..]].concat();
            assert_eq!(Acl::from_xattr(&other), Err(Errno::EOPNOTSUPP));
            assert_eq!(
                Acl::from_xattr(&other[..5]),
                Err(Errno::EOPNOTSUPP),
                "the version is looked at first"
            );
        }
    }

    #[test]
    fn lists_that_break_a_rule_are_refused() {
        let (u, g, m, o) = ((U, 7, NO_ID), (G, 5, NO_ID), (M, 4, NO_ID), (O, 0, NO_ID));
        let (user, group) = ((TAG_USER, 6, 7), (TAG_GROUP, 6, 20));
        for (entries, why) in [
            (&[g, o][..], "no owner"),
            (&[u, o], "no owning group"),
            (&[u, g], "no others"),
            (&[u, u, g, o], "two owners"),
            (&[u, g, g, o], "two owning groups"),
            (&[u, g, m, m, o], "two masks"),
            (&[u, g, o, o], "two entries for others"),
            (&[g, u, o], "owning group first"),
            (&[user, u, g, m, o], "named user first"),
            (&[u, g, user, m, o], "named user after the owning group"),
            (&[u, group, g, m, o], "named group before the owning group"),
            (&[u, g, m, group, o], "named group after the mask"),
            (&[u, g, o, m], "mask after others"),
            (&[u, user, g, o], "named user without mask"),
            (&[u, g, group, o], "named group without mask"),
            (&[(U, 8, NO_ID), g, o], "a permission that does not exist"),
            (&[u, g, (O, 0x100, NO_ID)], "a permission in the high byte"),
            (&[u, (TAG_USER, 8, 7), g, m, o], "a named user's permission that does not exist"),
            (&[u, (TAG_USER, 6, NO_ID), g, m, o], "a user that is nobody"),
            (&[u, g, (TAG_GROUP, 6, NO_ID), m, o], "a group that is nobody"),
            (&[u, g, (0x40, 0, NO_ID), o], "an unknown tag"),
            (&[u, g, (U | G, 0, NO_ID), o], "two tags in one"),
        ] {
            assert_eq!(Acl::from_xattr(&value(entries)), Err(Errno::EINVAL), "{why}");
        }
    }

    #[test]
    fn the_mode_shows_the_mask_where_there_is_one() {
        assert_eq!(Acl::from_mode(0o7754).mode_bits(), 0o754);
        assert_eq!(Acl::from_mode(0o7754).equivalent_mode(), Some(0o754));
        assert_eq!(with_mask(2).mode_bits(), 0o621);
        assert_eq!(with_mask(2).equivalent_mode(), None);
        let masked = acl(&[(U, 7, NO_ID), (G, 5, NO_ID), (M, 4, NO_ID), (O, 0, NO_ID)]);
        assert_eq!((masked.mode_bits(), masked.equivalent_mode()), (0o740, None));
    }

    #[test]
    fn a_list_made_from_a_mode_permits_what_the_mode_permits() {
        let list = Acl::from_mode(0o640);
        let may = |uid, gid, want| list.permits(1, 10, &Cred::user(uid, gid), want);
        assert!(may(1, 99, Access::READ | Access::WRITE) && !may(1, 99, Access::EXEC));
        assert!(may(2, 10, Access::READ) && !may(2, 10, Access::WRITE));
        assert!(!may(2, 99, Access::READ) && may(2, 99, Access::empty()));
    }

    #[test]
    fn the_owner_is_not_masked_and_takes_no_other_entry() {
        assert_eq!(allowed(0, 1, &[]), [2, 4, 6]);
        assert_eq!(allowed(7, 1, &[10, 20, 21]), [2, 4, 6]);
    }

    #[test]
    fn a_named_user_is_masked_and_takes_no_group() {
        assert_eq!(allowed(7, 7, &[]), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(allowed(4, 7, &[]), [4]);
        assert_eq!(allowed(0, 7, &[10, 20]), []);
    }

    #[test]
    fn the_first_of_two_entries_for_one_user_counts() {
        let users = [(TAG_USER, 4, 7), (TAG_USER, 2, 7)];
        let list =
            acl(&[&[(U, 7, NO_ID)], &users[..], &[(G, 0, NO_ID), (M, 7, NO_ID), (O, 0, NO_ID)]].concat());
        let cred = Cred::user(7, 99);
        assert!(list.permits(1, 10, &cred, Access::READ) && !list.permits(1, 10, &cred, Access::WRITE));
    }

    #[test]
    fn groups_are_masked_and_do_not_fall_through_to_others() {
        assert_eq!(allowed(7, 2, &[10]), [1, 4, 5]);
        assert_eq!(allowed(7, 2, &[20]), [2, 4, 6], "others may execute, the group may not");
        assert_eq!(allowed(4, 2, &[10]), [4]);
        assert_eq!(allowed(4, 2, &[20]), [4]);
        assert_eq!(allowed(4, 2, &[21]), []);
    }

    #[test]
    fn any_group_may_grant_but_groups_do_not_add_up() {
        assert_eq!(allowed(7, 2, &[10, 20, 21]), [1, 2, 3, 4, 5, 6], "no one group has all three");
        assert_eq!(allowed(7, 2, &[10, 21]), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn others_are_not_masked() {
        assert_eq!(allowed(0, 2, &[30]), [1]);
    }

    #[test]
    fn chmod_writes_the_mask_and_keeps_what_it_bounds() {
        let mut list = with_mask(7);
        list.chmod(0o100_604);
        assert_eq!(list.mode_bits(), 0o604);
        assert_eq!(list.group, 5);
        list.chmod(0o677);
        assert_eq!(list, Acl { other: 7, ..with_mask(7) });
        let mut plain = Acl::from_mode(0o777);
        plain.chmod(0o640);
        assert_eq!(plain, Acl::from_mode(0o640));
    }

    #[test]
    fn a_new_object_gets_the_default_list_cut_to_its_mode() {
        let (access, mode) = with_mask(7).inherit(0o102_640);
        assert_eq!(mode, 0o102_640);
        let access = access.unwrap();
        assert_eq!((access.owner, access.mask, access.other), (6, Some(4), 0));
        assert_eq!(
            (access.group, &access.users, &access.groups),
            (5, &with_mask(7).users, &with_mask(7).groups)
        );
        let (access, mode) = with_mask(2).inherit(0o777);
        assert_eq!((access, mode), (Some(with_mask(2)), 0o621));
    }

    #[test]
    fn a_default_list_that_is_a_mode_leaves_only_a_mode() {
        assert_eq!(Acl::from_mode(0o750).inherit(0o100_666), (None, 0o100_640));
    }
}
