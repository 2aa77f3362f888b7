//! Names for what lies at an address, so that reports speak of `Inode.links` and not of an offset in a line.
//!
//! Labels belong to the host thread that set them, and they last: set them before or during a run, for
//! objects that have found their final place (a value that is moved leaves its label behind). A newer label
//! replaces older ones that it overlaps, so memory that is used again may simply be labelled again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

/// A type and one of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The type that owns the field.
    pub owner: &'static str,
    /// The field; empty for a whole object.
    pub field: &'static str,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            "" => f.write_str(self.owner),
            field => write!(f, "{}.{field}", self.owner),
        }
    }
}

thread_local! {
    /// Whether [`name_object`] does anything.
    static NAMING: Cell<bool> = const { Cell::new(false) };
    /// By first address: the address after the last, and the name.
    static LABELS: RefCell<BTreeMap<usize, (usize, Name)>> = const { RefCell::new(BTreeMap::new()) };
}

/// Names the memory of `object`. An object of no size gets no label.
///
/// ```
/// use sluice_machine::{atomic::AtomicU32, label};
/// let refs = Box::new(AtomicU32::new(0));
/// label(&*refs, "Inode", "refs");
/// ```
pub fn label<T: ?Sized>(object: &T, owner: &'static str, field: &'static str) {
    set(std::ptr::from_ref(object).addr(), size_of_val(object), Name { owner, field });
}

/// Whether objects of this host thread tell their names to [`name_object`], which costs time at each birth; not
/// unless set.
pub fn name_objects(on: bool) {
    NAMING.set(on);
}

/// Labels memory, as [`label`] does, if [`name_objects`] is on: for code that makes objects of any kind. `owner` may be a path,
/// of which the last part counts.
pub fn name_object(start: *const u8, length: usize, owner: &'static str, field: &'static str) {
    if NAMING.get() {
        set(start.addr(), length, Name { owner: last_part(owner), field });
    }
}

/// `Inode` of `crate::inode::Inode`, and `Slot<T>` of `crate::Slot<T>`.
pub(crate) fn last_part(path: &'static str) -> &'static str {
    let generics = path.find('<').unwrap_or(path.len());
    path[..generics].rfind("::").map_or(path, |at| &path[at + 2..])
}

fn set(start: usize, length: usize, name: Name) {
    let end = start + length;
    if start == end {
        return;
    }
    LABELS.with_borrow_mut(|labels| {
        let overlapped = |(&first, &(last, _)): (&usize, &(usize, Name))| (last > start).then_some(first);
        let old: Vec<usize> = labels.range(..end).rev().map_while(overlapped).collect();
        for first in old {
            labels.remove(&first);
        }
        labels.insert(start, (end, name));
    });
}

/// Forgets all labels of this host thread.
pub fn clear_labels() {
    LABELS.with_borrow_mut(BTreeMap::clear);
}

/// The name of what lies at `address`, and how far behind the beginning of what is so called.
pub(crate) fn name_of(address: usize) -> Option<(Name, usize)> {
    LABELS.with_borrow(|labels| {
        let (&first, &(end, name)) = labels.range(..=address).next_back()?;
        (address < end).then_some((name, address - first))
    })
}

/// The name of what lies at `address` as text; within a whole object with the offset: `Inode+64`. Empty: none.
pub(crate) fn text_of(address: usize) -> String {
    match name_of(address) {
        None => String::new(),
        Some((name, offset)) if offset > 0 && name.field.is_empty() => format!("{name}+{offset}"),
        Some((name, _)) => name.to_string(),
    }
}

/// Names fields of an object by their own names: `label!(inode, Inode { links, refs })` labels `inode.links`
/// as `Inode.links` and so on; `label!(lock, SpinLock)` labels the whole object.
#[macro_export]
macro_rules! label {
    ($object:expr, $owner:ident { $($field:ident),+ $(,)? }) => {
        $($crate::label(&$object.$field, stringify!($owner), stringify!($field));)+
    };
    ($object:expr, $owner:ident) => {
        $crate::label(&$object, stringify!($owner), "")
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_each_of_its_bytes() {
        struct Pair {
            left: u32,
            right: [u8; 3],
        }
        let pair = Box::new(Pair { left: 1, right: [2; 3] });
        label!(pair, Pair { left, right });
        let at = std::ptr::from_ref(&pair.right).addr();
        assert_eq!(text_of(at + 2), "Pair.right");
        assert_eq!(name_of(std::ptr::from_ref(&pair.left).addr() + 3).unwrap().0.field, "left");
        assert_eq!(text_of(at + 3), "");
    }

    #[test]
    fn a_new_label_replaces_those_it_overlaps() {
        clear_labels();
        let words = Box::new([0u64; 4]);
        label(&words[0], "Old", "a");
        label(&words[1], "Old", "b");
        label(&words[3], "Old", "d");
        label(&words[..2], "New", "");
        let at = |index: usize| text_of(std::ptr::from_ref(&words[index]).addr());
        assert_eq!([at(0), at(1), at(2), at(3)], ["New", "New+8", "", "Old.d"]);
    }

    #[test]
    fn objects_name_themselves_only_while_asked_to() {
        clear_labels();
        let word = Box::new(0u64);
        let at = std::ptr::from_ref(&*word);
        name_object(at.cast(), 8, "a::b::Inode<x::Y>", "");
        assert_eq!(text_of(at.addr()), "");
        name_objects(true);
        name_object(at.cast(), 8, "a::b::Inode<x::Y>", "");
        name_objects(false);
        assert_eq!(text_of(at.addr() + 4), "Inode<x::Y>+4");
    }
}
