//! Numbers: by which numbers a kernel knows the nodes of a workspace, in requests, answers and notices.
//!
//! A relay and its server number the nodes of their own file system, as if there were no other. The messages are rewritten where they
//! come from the kernel and go to it: see [`workspace`] for the numbers.

use sluice_fuse::internal::abi::flags::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NOTIFY_STORE};
use sluice_fuse::internal::abi::{
    AttrOut, CopyFileRangeIn, Dirent, EntryOut, InHeader, NotifyPruneOut, OutHeader, RECORD_ALIGN, ROOT_ID,
    Statx, StatxOut,
};
use sluice_fuse::internal::workspace;
use sluice_fuse::opcode;
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

/// The offset of the node in a request.
const NODE: usize = offset_of!(InHeader, nodeid);
/// The length of the header of a request, and of an answer.
const IN: usize = size_of::<InHeader>();
const OUT: usize = size_of::<OutHeader>();
/// The types of a [`Dirent`].
const UNKNOWN: u32 = 0;
const CHAR_DEVICE: u32 = 2;
const DIRECTORY: u32 = 4;

/// A file system's view of the kernel's numbers.
pub(super) struct Numbers<'n> {
    /// The workspace; 0 for the file system of the mount's root.
    pub(super) number: u32,
    /// The workspace to which an inode of this file system leads, as far as the kernel was told.
    pub(super) leads: &'n dyn Fn(u64) -> Option<u32>,
    /// The kernel is told that an inode leads to a workspace.
    pub(super) learn: &'n dyn Fn(u64, u32),
}

/// Whether the answer to a request of this kind begins with an entry.
pub(super) fn gives_entry(code: u32) -> bool {
    matches!(
        code,
        opcode::LOOKUP
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE
    )
}

/// Where a request has a second node, if it has one.
pub(super) fn second_node(code: u32) -> Option<usize> {
    match code {
        opcode::LINK | opcode::RENAME | opcode::RENAME2 => Some(IN),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            Some(IN + offset_of!(CopyFileRangeIn, nodeid_out))
        }
        _ => None,
    }
}

/// The number at `at` of a message.
pub(super) fn number_at(message: &[u8], at: usize) -> Option<u64> {
    u64::read_from_prefix(message.get(at..)?).ok().map(|(number, _)| number)
}

/// Puts `number` at `at` of a message.
pub(super) fn put_number(message: &mut [u8], at: usize, number: u64) {
    if let Some(field) = message.get_mut(at..at + 8) {
        field.copy_from_slice(&number.to_ne_bytes());
    }
}

/// Puts `node` into the header of a request.
pub(super) fn put_node(message: &mut [u8], node: u64) {
    put_number(message, NODE, node);
}

/// The root of workspace `number`, as the kernel knows it.
pub(super) fn root_of(number: u32) -> u64 {
    workspace::join(number, ROOT_ID)
}

impl Numbers<'_> {
    /// The kernel's number of an inode of this file system.
    fn of(&self, node: u64) -> u64 {
        (self.leads)(node).map_or_else(|| workspace::join(self.number, node), root_of)
    }

    /// The answer to a request of this kind, as the kernel gets it; none if it stays the same.
    pub(super) fn answer(&self, code: u32, answer: &[u8]) -> Option<Vec<u8>> {
        let (out, body) = OutHeader::read_from_prefix(answer).ok()?;
        if out.error != 0 || body.is_empty() {
            return None;
        }
        let may_lead = matches!(code, opcode::LOOKUP | opcode::READDIR | opcode::READDIRPLUS | opcode::MKNOD);
        if self.number == 0 && !may_lead {
            return None;
        }
        let mut message = answer.to_vec();
        match code {
            code if gives_entry(code) => {
                let (entry, _) = EntryOut::read_from_prefix(body).ok()?;
                let entry = self.entry(code, entry)?;
                entry.write_to_prefix(&mut message[OUT..]).ok()?;
            }
            opcode::GETATTR | opcode::SETATTR => {
                let (mut out, _) = AttrOut::read_from_prefix(body).ok()?;
                out.attr.ino = workspace::join(self.number, out.attr.ino);
                out.write_to_prefix(&mut message[OUT..]).ok()?;
            }
            opcode::STATX => {
                let at = OUT + offset_of!(StatxOut, stat) + offset_of!(Statx, ino);
                let ino = number_at(&message, at)?;
                put_number(&mut message, at, workspace::join(self.number, ino));
            }
            opcode::READDIR => self.listing(&mut message, false)?,
            opcode::READDIRPLUS => self.listing(&mut message, true)?,
            _ => return None,
        }
        Some(message)
    }

    /// An entry as the kernel gets it; none if it stays the same.
    fn entry(&self, code: u32, mut entry: EntryOut) -> Option<EntryOut> {
        if entry.nodeid == 0 {
            return None;
        }
        let leads = workspace::of_junction(entry.attr.mode, entry.attr.rdev);
        match leads {
            // The kernel takes no directory for the device that it asked for: it is to look the name up again.
            Some(_) if code == opcode::MKNOD => {
                (entry.entry_valid, entry.entry_valid_nsec) = (0, 0);
            }
            Some(number) => {
                (self.learn)(entry.nodeid, number);
                entry.nodeid = root_of(number);
                entry.generation = 0;
                // The attributes are those of the workspace's root: the kernel asks for them.
                (entry.attr_valid, entry.attr_valid_nsec) = (0, 0);
                entry.attr.ino = entry.nodeid;
                entry.attr.mode = DIRECTORY << 12 | entry.attr.mode & 0o777;
                (entry.attr.rdev, entry.attr.nlink) = (0, 2);
                return Some(entry);
            }
            None if self.number == 0 => return None,
            None => {}
        }
        entry.nodeid = workspace::join(self.number, entry.nodeid);
        entry.attr.ino = workspace::join(self.number, entry.attr.ino);
        Some(entry)
    }

    /// Rewrites the listing of a directory; `plus`: with the attributes of each entry.
    fn listing(&self, message: &mut [u8], plus: bool) -> Option<()> {
        let mut at = OUT;
        while at < message.len() {
            let mut leads = None;
            if plus {
                let (entry, _) = EntryOut::read_from_prefix(&message[at..]).ok()?;
                if let Some(entry) = self.entry(opcode::READDIRPLUS, entry) {
                    leads = Some(entry.nodeid).filter(|_| entry.attr_valid == 0);
                    entry.write_to_prefix(&mut message[at..]).ok()?;
                }
                at += size_of::<EntryOut>();
            }
            let (mut dirent, _) = Dirent::read_from_prefix(message.get(at..)?).ok()?;
            if dirent.kind == CHAR_DEVICE && !plus {
                leads = (self.leads)(dirent.ino).map(root_of);
                // Perhaps a junction: programs that want to know ask.
                dirent.kind = UNKNOWN;
            }
            match leads {
                Some(root) => (dirent.ino, dirent.kind) = (root, DIRECTORY),
                None => dirent.ino = workspace::join(self.number, dirent.ino),
            }
            dirent.write_to_prefix(&mut message[at..]).ok()?;
            at += (size_of::<Dirent>() + dirent.namelen as usize).next_multiple_of(RECORD_ALIGN);
        }
        Some(())
    }

    /// A notice as the kernel gets it.
    pub(super) fn notice(&self, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        let Ok((out, _)) = OutHeader::read_from_prefix(&message) else { return message };
        match out.error {
            NOTIFY_INVAL_INODE | NOTIFY_STORE => self.renumber(&mut message, OUT),
            // A name is in the directory itself, which is never a junction.
            NOTIFY_INVAL_ENTRY => self.renumber(&mut message, OUT),
            NOTIFY_PRUNE => {
                for at in (OUT + size_of::<NotifyPruneOut>()..message.len()).step_by(8) {
                    self.renumber(&mut message, at);
                }
            }
            _ => {}
        }
        message
    }

    fn renumber(&self, message: &mut [u8], at: usize) {
        if let Some(node) = number_at(message, at) {
            put_number(message, at, self.of(node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::notices::inval_inode;
    use super::*;
    use sluice_fuse::internal::Reply;
    use sluice_fuse::internal::abi::Attr;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use zerocopy::FromZeros;

    fn entry(nodeid: u64, mode: u32, rdev: u32) -> EntryOut {
        let attr = Attr { ino: nodeid, mode, rdev, ..Attr::new_zeroed() };
        EntryOut { nodeid, generation: 9, entry_valid: 7, attr_valid: 7, attr, ..EntryOut::new_zeroed() }
    }

    fn with<R>(number: u32, act: impl FnOnce(&Numbers<'_>) -> R) -> R {
        let known = RefCell::new(HashMap::new());
        act(&Numbers {
            number,
            leads: &|node| known.borrow().get(&node).copied(),
            learn: &|node, number| _ = known.borrow_mut().insert(node, number),
        })
    }

    fn answer(numbers: &Numbers<'_>, code: u32, value: &EntryOut) -> Option<EntryOut> {
        let mut reply = Reply::new();
        reply.put(value);
        let told = numbers.answer(code, reply.success(4))?;
        Some(EntryOut::read_from_prefix(&told[OUT..]).expect("it is one").0)
    }

    #[test]
    fn nodes_of_a_workspace_have_its_number_and_those_of_the_root_stay_as_they_are() {
        let file = entry(5, 0o100_644, 0);
        with(0, |numbers| {
            assert!(answer(numbers, opcode::LOOKUP, &file).is_none());
            assert!(answer(numbers, opcode::CREATE, &file).is_none());
        });
        with(3, |numbers| {
            let told = answer(numbers, opcode::CREATE, &file).expect("changed");
            assert_eq!((told.nodeid, told.attr.ino, told.generation), (3 << 44 | 5, 3 << 44 | 5, 9));
            assert!(answer(numbers, opcode::LOOKUP, &entry(0, 0, 0)).is_none(), "no such name");
            assert_eq!(numbers.notice(&inval_inode(5, 0, 0)), inval_inode(3 << 44 | 5, 0, 0));
            assert_eq!(numbers.notice(&inval_inode(1, -1, 0)), inval_inode(3 << 44 | 1, -1, 0));
        });
    }

    #[test]
    fn a_junction_is_told_as_the_root_of_its_workspace_and_so_are_notices_of_it() {
        let junction = entry(5, 0o020_700, workspace::junction(300));
        for number in [0, 2] {
            with(number, |numbers| {
                let made = answer(numbers, opcode::MKNOD, &junction).expect("changed");
                assert_eq!((made.nodeid, made.entry_valid), (workspace::join(number, 5), 0));
                let told = answer(numbers, opcode::LOOKUP, &junction).expect("changed");
                assert_eq!((told.nodeid, told.attr.ino), (root_of(300), root_of(300)));
                assert_eq!((told.attr.mode, told.attr_valid, told.entry_valid), (0o040_700, 0, 7));
                assert_eq!(numbers.notice(&inval_inode(5, 0, 0)), inval_inode(root_of(300), 0, 0));
            });
        }
    }

    #[test]
    fn a_listing_tells_the_kind_of_a_junction_if_that_is_known_and_else_says_that_it_is_not() {
        let junction = entry(5, 0o020_700, workspace::junction(300));
        let dirent = |ino, kind| Dirent { ino, off: 1, namelen: 3, kind };
        let listing = |plus: bool| {
            let mut reply = Reply::new();
            for (one, kind) in [(&junction, CHAR_DEVICE), (&entry(6, 0o040_755, 0), DIRECTORY)] {
                if plus {
                    reply.put(one);
                }
                reply.put(&dirent(one.nodeid, kind));
                reply.put_bytes(b"abc\0\0\0\0\0");
            }
            reply.success(4).to_vec()
        };
        let kinds = |message: &[u8], plus: bool| {
            let step = if plus { size_of::<EntryOut>() } else { 0 } + size_of::<Dirent>() + 8;
            let starts = (OUT..message.len()).step_by(step);
            let read = |at| Dirent::read_from_prefix(&message[at + step - size_of::<Dirent>() - 8..]);
            let told = starts.map(|at| read(at).expect("it is one").0).map(|it| (it.ino, it.kind));
            told.collect::<Vec<_>>()
        };
        with(2, |numbers| {
            let told = |plus: bool| {
                let code = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
                kinds(&numbers.answer(code, &listing(plus)).expect("changed"), plus)
            };
            assert_eq!(told(false), [(2 << 44 | 5, UNKNOWN), (2 << 44 | 6, DIRECTORY)]);
            assert_eq!(told(true), [(root_of(300), DIRECTORY), (2 << 44 | 6, DIRECTORY)]);
            assert_eq!(told(false), [(root_of(300), DIRECTORY), (2 << 44 | 6, DIRECTORY)]);
        });
    }
}
