//! View: what a call said, reduced to what two file systems must agree on.
//!
//! # Theory
//! Linux leaves inode numbers, directory sizes, directory order and the clock free. A view replaces them by
//! what can be compared:
//! - an inode number becomes the rank in which this run first saw it, so hard links still show;
//! - a time that some `utimens` set is compared exactly; any other is only "the clock". A call that should have
//!   set a time, or should not have, shows as soon as the time before was an explicit one;
//! - the change time (and the modification time, when it is of the clock) also says whether it changed since
//!   this run last looked at it. Where a clock ticks too seldom to show that, the `compare` module looks again
//!   with pauses;
//! - holes of files that `copy_file_range` wrote, or whose space was reserved twice, are not compared: whether
//!   holes are copied or filled is the file system's choice.

use sluice_vfs::{Errno, FileType, Stat, Timestamp};
use std::collections::{HashMap, HashSet};

use crate::word::LockKind;

/// The outcome of a call.
pub type Outcome = Result<Value, Errno>;

/// The good news that a call can bring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Nothing but success.
    Done,
    /// A number: a descriptor, a count of bytes, an offset.
    Number(i64),
    /// Bytes: contents, a link's target, an attribute's value.
    Bytes(Vec<u8>),
    /// A file's attributes.
    Stat(StatView),
    /// A directory's entries, sorted.
    Entries(Vec<EntryView>),
    /// Names of extended attributes, sorted.
    Names(Vec<Vec<u8>>),
    /// A byte-range lock that is in the way, or none.
    Lock(Option<LockView>),
    /// Something that the file system is free to choose.
    Free,
}

/// A file's attributes, as far as they can be compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatView {
    /// Which inode, by the order in which this run first saw them.
    pub inode: usize,
    /// Type and permissions, in octal when printed.
    pub mode: Octal,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, of device nodes.
    pub rdev: u64,
    /// Size, except of a directory.
    pub size: Option<u64>,
    /// Storage of a regular file in units of 512 bytes, where it can be compared.
    pub blocks: Option<u64>,
    /// Last read.
    pub atime: TimeView,
    /// Last change of the contents.
    pub mtime: TimeView,
    /// Last change of anything.
    pub ctime: TimeView,
}

impl StatView {
    /// The view without what the resolution of the clock can falsify.
    pub fn without_clock(&self) -> StatView {
        let plain = |time: &TimeView| match time {
            TimeView::Same | TimeView::Changed => TimeView::Clock,
            other => other.clone(),
        };
        StatView {
            atime: plain(&self.atime),
            mtime: plain(&self.mtime),
            ctime: plain(&self.ctime),
            ..self.clone()
        }
    }
}

/// A number that prints in octal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Octal(pub u32);

impl std::fmt::Debug for Octal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0o{:o}", self.0)
    }
}

/// A time, as far as it can be compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TimeView {
    /// Set by a `utimens`.
    Explicit(Timestamp),
    /// A clock time during the run.
    Clock,
    /// A clock time, unchanged since this run last looked.
    Same,
    /// A clock time, changed since this run last looked.
    Changed,
}

/// A directory entry as the file system tells it.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct ListedEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode number.
    pub ino: u64,
    /// The type.
    pub kind: Option<FileType>,
}

/// A directory entry, as far as it can be compared.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct EntryView {
    /// The name.
    pub name: Vec<u8>,
    /// The type that the entry tells.
    pub kind: Option<FileType>,
    /// Which inode; unknown for `..`, which may lead out of the file system.
    pub inode: Option<usize>,
}

/// A lock that is in the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockView {
    /// Shared or exclusive.
    pub kind: LockKind,
    /// First byte.
    pub start: i64,
    /// Number of bytes; 0: to the end.
    pub len: i64,
    /// True when it belongs to an open file description (the process number is -1).
    pub ofd: bool,
}

/// The memory of one run on one file system, for turning what it says into views.
#[derive(Default)]
pub struct View {
    ranks: HashMap<u64, usize>,
    seen: HashMap<u64, (Timestamp, Timestamp)>,
    holes_free: HashSet<u64>,
    all_holes_free: bool,
    reserved: HashSet<u64>,
}

/// Explicit times of the generator are farther from the present than this, in seconds.
const PRESENT: i64 = 1_000_000;

impl View {
    /// The rank of inode `ino`.
    pub fn rank(&mut self, ino: u64) -> usize {
        let next = self.ranks.len();
        *self.ranks.entry(ino).or_insert(next)
    }

    /// From now on the holes and blocks of inode `ino` are not compared.
    pub fn free_holes(&mut self, ino: u64) {
        self.holes_free.insert(ino);
    }

    /// The view of a run in which holes and blocks of no file are compared.
    pub fn without_holes() -> View {
        View { all_holes_free: true, ..View::default() }
    }

    /// Space of inode `ino` was reserved. When asked to reserve space twice, tmpfs fills it with zeros and calls it
    /// data; other file systems need not follow.
    pub fn reserve(&mut self, ino: u64) {
        if !self.reserved.insert(ino) {
            self.free_holes(ino);
        }
    }

    /// True when the holes of inode `ino` are compared.
    pub fn compares_holes(&self, ino: u64) -> bool {
        !self.all_holes_free && !self.holes_free.contains(&ino)
    }

    /// The view of `stat`.
    pub fn stat(&mut self, stat: &Stat) -> StatView {
        let kind = stat.file_type();
        let before = self.seen.insert(stat.ino, (stat.mtime, stat.ctime));
        let now = Timestamp::now().sec;
        let time = |time: Timestamp, before: Option<Timestamp>| match before {
            _ if (time.sec - now).abs() > PRESENT => TimeView::Explicit(time),
            Some(before) if before == time => TimeView::Same,
            Some(_) => TimeView::Changed,
            None => TimeView::Clock,
        };
        let (atime, mtime, ctime) = (
            time(stat.atime, None),
            time(stat.mtime, before.map(|b| b.0)),
            time(stat.ctime, before.map(|b| b.1)),
        );
        let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        StatView {
            inode: self.rank(stat.ino),
            mode: Octal(stat.mode),
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: if device { stat.rdev } else { 0 },
            size: (kind != FileType::Directory).then_some(stat.size),
            // In whole pages: a mount shows one block where it has none and the kernel may.
            blocks: (kind == FileType::Regular && self.compares_holes(stat.ino)).then_some(stat.blocks & !7),
            atime,
            mtime,
            ctime,
        }
    }

    /// The view of a directory's entries.
    pub fn entries(&mut self, mut entries: Vec<ListedEntry>) -> Value {
        entries.sort();
        let view = |entry: ListedEntry| {
            let inode = (entry.name != b"..").then(|| self.rank(entry.ino));
            EntryView { name: entry.name, kind: entry.kind, inode }
        };
        Value::Entries(entries.into_iter().map(view).collect())
    }
}

/// The view of a list of extended attribute names. A host's own security module adds one that no file
/// system under it can be asked for.
pub fn names(mut names: Vec<Vec<u8>>) -> Value {
    names.retain(|name| name != b"security.selinux" && name != b"security.SMACK64");
    names.sort();
    Value::Names(names)
}
