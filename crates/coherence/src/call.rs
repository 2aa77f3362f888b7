//! Call: the system calls that programs on several mounts make, their answers, and both in words.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Names that a history is about: two in each of two directories.
pub(crate) const NAMES: usize = 4;
/// The directories. They are there before the history, and stay.
pub(crate) const DIRS: [&str; 2] = ["p", "q"];
/// Bytes of each write. No other write has the same ones.
pub(crate) const WORD: usize = 8;

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;

/// A name that programs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SharedName(pub(crate) u8);

impl SharedName {
    /// The names of a directory: 0 or 1.
    pub(crate) fn in_dir(dir: u8) -> [SharedName; 2] {
        [SharedName(dir * 2), SharedName(dir * 2 + 1)]
    }

    /// The name without its directory.
    pub(crate) fn last(self) -> &'static str {
        ["x", "y"][self.index() % 2]
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0) % NAMES
    }
}

impl fmt::Display for SharedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", DIRS[self.index() / 2], self.last())
    }
}

/// The kind of file locks in a history. A history has one, since some network file systems carry out one kind by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SharedLockKind {
    /// flock(2): of an open file description.
    Flock,
    /// fcntl(2) with `F_SETLK`, on the whole file: of a process.
    Posix,
}

/// A system call, or a few that make one answer. A slot is a place for a descriptor in a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are the arguments of the call")]
pub enum SharedCall {
    /// open with `O_CREAT | O_EXCL`.
    Create { slot: u8, name: SharedName, appends: bool },
    /// open, of a file that is there.
    Open { slot: u8, name: SharedName, appends: bool },
    /// close.
    Close { slot: u8 },
    /// pwrite of eight bytes.
    Write { slot: u8, offset: u64, word: [u8; WORD] },
    /// write of eight bytes, with `O_APPEND`.
    Append { slot: u8, word: [u8; WORD] },
    /// ftruncate.
    Truncate { slot: u8, size: u64 },
    /// fsync.
    Fsync { slot: u8 },
    /// pread of the whole file.
    Read { slot: u8 },
    /// fstat.
    Fstat { slot: u8 },
    /// A lock of the whole file, tried until the program has no patience left. The last try counts.
    Lock { slot: u8, shared: bool, kind: SharedLockKind },
    /// Its end.
    Unlock { slot: u8, kind: SharedLockKind },
    /// stat.
    Stat { name: SharedName },
    /// open, pread of the whole file, close.
    ReadFile { name: SharedName },
    /// opendir, readdir to the end, closedir.
    List { dir: u8 },
    /// rename.
    Rename { old: SharedName, new: SharedName },
    /// link.
    Link { old: SharedName, new: SharedName },
    /// unlink.
    Unlink { name: SharedName },
    /// mkdir.
    Mkdir { name: SharedName },
    /// rmdir.
    Rmdir { name: SharedName },
}

/// The answer of a call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedAnswer {
    /// Nothing but success.
    Done,
    /// Contents of a file.
    Bytes(Vec<u8>),
    /// Attributes.
    Attr {
        /// Bytes; of a directory nobody compares them.
        size: u64,
        /// Names; likewise.
        links: u64,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// Which of the two names of a directory were listed.
    Names([bool; 2]),
}

/// A call that a program made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedCall {
    /// The number of the program.
    pub process: usize,
    /// The call.
    pub call: SharedCall,
    /// The time before the call, in nanoseconds of the monotonic clock.
    pub begun: u64,
    /// The time after it. None if there was no answer.
    pub ended: Option<u64>,
    /// The answer, or an errno.
    pub result: Option<Result<SharedAnswer, i32>>,
}

impl SharedCall {
    /// The descriptor that the call uses or makes.
    pub(crate) fn slot(&self) -> Option<u8> {
        match *self {
            SharedCall::Create { slot, .. }
            | SharedCall::Open { slot, .. }
            | SharedCall::Close { slot }
            | SharedCall::Write { slot, .. }
            | SharedCall::Append { slot, .. }
            | SharedCall::Truncate { slot, .. }
            | SharedCall::Fsync { slot }
            | SharedCall::Read { slot }
            | SharedCall::Fstat { slot }
            | SharedCall::Lock { slot, .. }
            | SharedCall::Unlock { slot, .. } => Some(slot),
            _ => None,
        }
    }

    /// The names in it.
    pub(crate) fn names(&self) -> Vec<SharedName> {
        match *self {
            SharedCall::Create { name, .. }
            | SharedCall::Open { name, .. }
            | SharedCall::Stat { name }
            | SharedCall::ReadFile { name }
            | SharedCall::Unlink { name }
            | SharedCall::Mkdir { name }
            | SharedCall::Rmdir { name } => vec![name],
            SharedCall::Rename { old, new } | SharedCall::Link { old, new } => vec![old, new],
            _ => Vec::new(),
        }
    }

    /// Whether the call opens a file as its slot.
    pub(crate) fn opens(&self) -> bool {
        matches!(self, SharedCall::Create { .. } | SharedCall::Open { .. })
    }

    /// Whether the call only looks.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(
            self,
            SharedCall::Read { .. }
                | SharedCall::Fstat { .. }
                | SharedCall::Stat { .. }
                | SharedCall::ReadFile { .. }
                | SharedCall::List { .. }
        )
    }
}

impl TimedCall {
    /// The answer, if the model has one for it. Any other error (a server that is gone, a full disk) leaves open whether the call has
    /// done its work.
    pub fn known(&self) -> Option<&Result<SharedAnswer, i32>> {
        let has_a_meaning = |errno: &i32| [EPERM, ENOENT, EAGAIN, EEXIST, ENOTDIR, EISDIR].contains(errno);
        self.result.as_ref().filter(|result| result.as_ref().err().is_none_or(has_a_meaning))
    }

    /// Whether the call was answered with success.
    pub(crate) fn is_ok(&self) -> bool {
        matches!(self.result, Some(Ok(_)))
    }

    /// Whether the call has changed nothing, by its answer.
    pub(crate) fn changed_nothing(&self) -> bool {
        self.call.only_looks() || matches!(self.known(), Some(Err(_)))
    }

    /// The answer in words.
    pub fn result_in_words(&self) -> String {
        match &self.result {
            None => "no answer yet".to_owned(),
            Some(Ok(answer)) => answer.to_string(),
            Some(Err(errno)) => {
                let error = std::io::Error::from_raw_os_error(*errno).to_string();
                error.split(" (os error").next().unwrap_or_default().to_owned()
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let pieces = bytes.chunks(WORD).map(|word| match word {
        _ if word.iter().all(|byte| *byte == 0) => ".".repeat(word.len()),
        _ => String::from_utf8_lossy(word).escape_default().to_string(),
    });
    format!("\"{}\"", pieces.collect::<Vec<_>>().join(" "))
}

impl fmt::Display for SharedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let appending = |appends: bool| if appends { " | O_APPEND" } else { "" };
        let name_of = |kind: SharedLockKind| match kind {
            SharedLockKind::Flock => "flock",
            SharedLockKind::Posix => "fcntl lock",
        };
        match self {
            SharedCall::Create { slot, name, appends } => {
                write!(f, "open {name} (O_CREAT | O_EXCL{}) as {slot}", appending(*appends))
            }
            SharedCall::Open { slot, name, appends } => {
                write!(f, "open {name} (O_RDWR{}) as {slot}", appending(*appends))
            }
            SharedCall::Close { slot } => write!(f, "close {slot}"),
            SharedCall::Write { slot, offset, word } => {
                write!(f, "pwrite {slot} at {offset}: {}", text(word))
            }
            SharedCall::Append { slot, word } => write!(f, "append {slot}: {}", text(word)),
            SharedCall::Truncate { slot, size } => write!(f, "ftruncate {slot} to {size}"),
            SharedCall::Fsync { slot } => write!(f, "fsync {slot}"),
            SharedCall::Read { slot } => write!(f, "pread {slot}"),
            SharedCall::Fstat { slot } => write!(f, "fstat {slot}"),
            SharedCall::Lock { slot, shared, kind } => {
                write!(f, "{} {slot} {}", name_of(*kind), if *shared { "shared" } else { "exclusive" })
            }
            SharedCall::Unlock { slot, kind } => write!(f, "{} {slot} unlock", name_of(*kind)),
            SharedCall::Stat { name } => write!(f, "stat {name}"),
            SharedCall::ReadFile { name } => write!(f, "open and read {name}"),
            SharedCall::List { dir } => write!(f, "readdir {}", DIRS[usize::from(*dir % 2)]),
            SharedCall::Rename { old, new } => write!(f, "rename {old} to {new}"),
            SharedCall::Link { old, new } => write!(f, "link {old} as {new}"),
            SharedCall::Unlink { name } => write!(f, "unlink {name}"),
            SharedCall::Mkdir { name } => write!(f, "mkdir {name}"),
            SharedCall::Rmdir { name } => write!(f, "rmdir {name}"),
        }
    }
}

impl fmt::Display for SharedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedAnswer::Done => f.write_str("ok"),
            SharedAnswer::Bytes(bytes) => f.write_str(&text(bytes)),
            SharedAnswer::Attr { is_dir: true, .. } => f.write_str("a directory"),
            SharedAnswer::Attr { size, links, .. } => write!(f, "size {size}, links {links}"),
            SharedAnswer::Names(listed) => {
                let names = ["x", "y"].into_iter().zip(listed).filter(|(_, is_listed)| **is_listed);
                write!(f, "[{}]", names.map(|(name, _)| name).collect::<Vec<_>>().join(" "))
            }
        }
    }
}
