//! ToldPaths: the findings of a check name inodes, and a person knows paths.
//!
//! # Theory
//! A finding is written when its record is seen, and names come later. So a finding has a mark with the number of an inode, and that
//! inode is noted. A check that found something shows all records once more: of the noted inodes a name is kept. At the end each mark
//! becomes a path, or the number where no name is known.

use super::keys::{self, ino_of, name_of};
use super::record;
use crate::superblock::ROOT_INO;
use sluice_store::Report;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Stands on both sides of a number. No finding has it otherwise: names are told escaped.
const MARK: char = '\u{1}';
/// The most ancestors that are followed: parents may form a cycle.
const DEPTH_MAX: usize = 1000;

/// The inodes that findings name, and names of them.
#[derive(Debug, Default)]
pub(super) struct ToldPaths {
    noted: RefCell<BTreeSet<u64>>,
    /// Where each inode has a name, and which.
    places: BTreeMap<u64, (u64, Vec<u8>)>,
    /// The same by lost records of the log: for inodes that have no name in the tree.
    lost: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl ToldPaths {
    /// The mark of inode `ino`.
    pub(super) fn mark(&self, ino: u64) -> String {
        self.noted.borrow_mut().insert(ino);
        format!("{MARK}{ino}{MARK}")
    }

    /// Takes each record once more.
    pub(super) fn see(&mut self, key: &[u8], value: &[u8]) {
        if key.first() == Some(&keys::NAME)
            && let Some((dir, (ino, bits))) = ino_of(key).zip(record::named_type(value))
        {
            let is_dir = bits == crate::FileType::Directory.mode_bits();
            if is_dir || self.noted.borrow().contains(&ino) {
                self.places.entry(ino).or_insert_with(|| (dir, name_of(key).to_vec()));
            }
        }
    }

    /// Takes a lost name: `name` in directory `dir` leads to inode `ino`.
    pub(super) fn see_lost(&mut self, ino: u64, dir: u64, name: &[u8]) {
        self.lost.insert(ino, (dir, name.to_vec()));
    }

    /// Puts paths into the findings of `report`.
    pub(super) fn put_into(&self, report: &mut Report) {
        for one in report.findings.iter_mut().filter(|one| one.text.contains(MARK)) {
            let parts = one.text.split(MARK).enumerate().map(|(at, part)| match part.parse() {
                Ok(ino) if at % 2 == 1 => self.path(ino),
                _ => part.to_owned(),
            });
            one.text = parts.collect();
        }
    }

    fn path(&self, ino: u64) -> String {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != ROOT_INO && names.len() < DEPTH_MAX {
            let Some((dir, name)) = self.places.get(&at).or_else(|| self.lost.get(&at)) else { break };
            names.push(String::from_utf8_lossy(name).into_owned());
            at = *dir;
        }
        names.reverse();
        match at {
            ROOT_INO => format!("{:?} (inode {ino})", format!("/{}", names.join("/"))),
            _ if names.is_empty() => format!("inode {ino}"),
            _ => format!("{:?} (inode {ino})", format!(".../{}", names.join("/"))),
        }
    }
}
