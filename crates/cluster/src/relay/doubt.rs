//! Doubt: attributes on their way to a kernel that was told before that they have changed.
//!
//! # Theory
//! A kernel does not keep attributes that it asked for before a notice of their inode. For an inode that it does not
//! know yet, the kernel remembers no notice, and keeps the attributes of an answer. A server may announce a change
//! before an answer goes out that was made before the change, above all one that is held. So the inodes of which the
//! kernel was told, and knew nothing, are noted here. An answer to a request from before that tells of such an inode
//! goes to the kernel with attributes that it may not keep.

use super::numbers::gives_entry;
use sluice_fuse::internal::abi::{Dirent, EntryOut, OutHeader, RECORD_ALIGN};
use sluice_fuse::opcode;
use sluice_sync::time::Instant;
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

/// The inodes of which the kernel was told too early, and when.
#[derive(Default)]
pub(super) struct Doubts(HashMap<u64, Instant>);

impl Doubts {
    /// The kernel was told of a node that it does not know.
    pub(super) fn note(&mut self, nodeid: u64) {
        self.0.insert(nodeid, Instant::now());
    }

    /// No request is under way.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The replacement for `answer`, to a request of kind `code` that the kernel made at `arrival`, if the kernel may
    /// not keep all of its attributes.
    pub(super) fn correct(&mut self, code: u32, arrival: Instant, answer: &[u8]) -> Option<Vec<u8>> {
        let tells = gives_entry(code) || code == opcode::READDIRPLUS;
        if !tells || self.0.is_empty() {
            return None;
        }
        let (mut corrected, mut at, mut is_corrected) = (answer.to_vec(), size_of::<OutHeader>(), false);
        while let Some(told) = corrected.get_mut(at..)
            && let Ok((mut entry, rest)) = EntryOut::read_from_prefix(told)
        {
            let dirent = Dirent::read_from_prefix(rest).ok().map(|(dirent, _)| dirent.namelen as usize);
            let next = dirent.filter(|_| code == opcode::READDIRPLUS);
            if self.0.get(&entry.nodeid).is_some_and(|told_at| arrival <= *told_at) {
                (entry.attr_valid, entry.attr_valid_nsec) = (0, 0);
                // It was read from there.
                is_corrected |= entry.write_to_prefix(told).is_ok();
            } else {
                self.0.remove(&entry.nodeid);
            }
            let Some(namelen) = next else { break };
            let len = size_of::<EntryOut>() + size_of::<Dirent>() + namelen;
            at += len.next_multiple_of(RECORD_ALIGN);
        }
        is_corrected.then_some(corrected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    /// For how long the kernel may keep the attributes in an answer that tells of `nodeids`, each under a name of three bytes.
    fn kept(doubts: &mut Doubts, code: u32, arrival: Instant, nodeids: &[u64]) -> Vec<u64> {
        const RECORD: usize =
            size_of::<EntryOut>() + (size_of::<Dirent>() + 3).next_multiple_of(RECORD_ALIGN);
        let mut answer = vec![0; size_of::<OutHeader>()];
        for nodeid in nodeids {
            let entry = EntryOut { nodeid: *nodeid, attr_valid: 9, ..EntryOut::new_zeroed() };
            let dirent = Dirent { namelen: 3, ..Dirent::new_zeroed() };
            answer.extend([entry.as_bytes(), dirent.as_bytes(), &[b'n'; 3]].concat());
            answer.resize(answer.len().next_multiple_of(RECORD_ALIGN), 0);
        }
        let told = doubts.correct(code, arrival, &answer).unwrap_or(answer);
        let entries = told[size_of::<OutHeader>()..].chunks(RECORD);
        entries.map(|entry| EntryOut::read_from_prefix(entry).expect("it is whole").0.attr_valid).collect()
    }

    #[test]
    fn what_was_asked_for_before_the_kernel_was_told_of_an_unknown_inode_is_not_kept() {
        let (mut doubts, before) = (Doubts::default(), Instant::now());
        doubts.note(5);
        assert_eq!(kept(&mut doubts, opcode::LOOKUP, before, &[4]), [9]);
        assert_eq!(kept(&mut doubts, opcode::READDIRPLUS, before, &[4, 5, 6]), [9, 0, 9]);
        assert_eq!(kept(&mut doubts, opcode::LOOKUP, before, &[5]), [0], "a second one is as old");
        assert_eq!(kept(&mut doubts, opcode::GETATTR, before, &[5]), [9], "the kernel knows that inode");
        sluice_sync::thread::sleep(sluice_sync::time::Duration::from_millis(1));
        assert_eq!(kept(&mut doubts, opcode::LOOKUP, Instant::now(), &[5]), [9], "asked for since");
        doubts.note(5);
        doubts.clear();
        assert_eq!(kept(&mut doubts, opcode::LOOKUP, before, &[5]), [9], "nothing was under way");
    }
}
