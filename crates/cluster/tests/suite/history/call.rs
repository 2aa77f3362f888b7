//! Call: the system calls of programs on the nodes of a cluster, and what they answer.

use sluice_sync::random::Random;
use std::collections::BTreeMap;
use std::fmt;

/// No errno: what a node shows in one way it shows otherwise in another.
pub(crate) const CONTRADICTION: i32 = 1000;

/// A name: of six files in two directories.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Path(pub(crate) u8);

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.dir(), self.name())
    }
}

pub(crate) const PATHS: u8 = 6;
pub(crate) const DIRS: [&str; 2] = ["a", "b"];

impl Path {
    pub(crate) fn dir(self) -> &'static str {
        DIRS[usize::from(self.0 / 3)]
    }

    pub(crate) fn name(self) -> &'static str {
        ["x", "y", "z"][usize::from(self.0 % 3)]
    }

    pub(crate) fn all() -> impl Iterator<Item = Path> {
        (0..PATHS).map(Path)
    }
}

/// Where a program keeps an open file.
pub(crate) type Slot = u8;
pub(crate) const SLOTS: u8 = 3;

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `O_CREAT | O_EXCL`.
    Make(Slot, Path, bool),
    Open(Slot, Path, bool),
    Close(Slot),
    /// Eight bytes that no other call writes: to the end if the file was opened so, else to an offset.
    Write(Slot, u64, [u8; 8]),
    Read(Slot),
    Truncate(Slot, u64),
    Fsync(Slot),
    TryLock(Slot),
    Unlock(Slot),
    Stat(Path),
    Rename(Path, Path),
    Link(Path, Path),
    Unlink(Path),
    Mkdir(Path),
    Rmdir(Path),
    /// The kernel drops what it can.
    DropCaches,
    /// Everything, for the end.
    Look,
}

/// The file or directory at a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Seen {
    Dir,
    /// Contents, and how many names.
    File(Vec<u8>, u32),
}

pub(crate) type Tree = BTreeMap<Path, Seen>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Bytes(Vec<u8>),
    Attr(Attr),
    Tree(Tree),
}

/// The result of a call; `None`: the machine died first.
pub(crate) type Outcome = Option<Result<Answer, i32>>;

/// The attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) size: u64,
    pub(crate) nlink: u32,
    pub(crate) is_dir: bool,
}

impl Call {
    /// A call of a node that has these files open; of each whether it is locked.
    pub(crate) fn draw(random: &mut Random, open: &BTreeMap<Slot, bool>, serial: u64) -> Call {
        let slot = random.below(SLOTS);
        let (one, other) = (Path(random.below(PATHS)), Path(random.below(PATHS)));
        let (what, appends) = (random.below(100), random.chance(60));
        let offset = random.below(3) * 8;
        match (what, open.get(&slot)) {
            (0..8, _) => Call::Stat(one),
            (8..16, _) if one != other => Call::Rename(one, other),
            (16..20, _) => Call::Link(one, other),
            (20..27, _) => Call::Unlink(one),
            (27..30, _) => Call::Mkdir(one),
            (30..33, _) => Call::Rmdir(one),
            (33..35, _) => Call::DropCaches,
            (35..62, None) => Call::Make(slot, one, appends),
            (_, None) => Call::Open(slot, one, appends),
            (35..40, _) => Call::Close(slot),
            (40..60, _) => Call::Write(slot, offset, serial.to_be_bytes()),
            (60..70, _) => Call::Read(slot),
            (70..74, _) => Call::Truncate(slot, offset),
            (74..88, _) => Call::Fsync(slot),
            (_, Some(true)) => Call::Unlock(slot),
            (_, Some(false)) => Call::TryLock(slot),
        }
    }
}
