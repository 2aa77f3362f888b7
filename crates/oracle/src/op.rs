//! Op: one call of one process, as data. Numbers and flags are kept raw, so that calls can be as wrong as
//! any program's.

use crate::word::{Bytes, Data, Fd, List, LockKind, LockOwner, Mode, Target, TimeArg, Word};
use sluice_vfs::{AtFlags, FallocateMode, FileType, OpenFlags, RenameFlags, Whence, XattrFlags};
use std::fmt;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $word:literal ( $($field:ident: $type:ty),* );)*) => {
        /// A call with its arguments. The text form is the word and the arguments in this order.
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the fields are the arguments of the call, by their usual names")]
        pub enum Op {
            $($(#[$doc])* $name { $($field: $type),* },)*
        }

        impl fmt::Display for Op {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Op::$name { $($field),* } => {
                        f.write_str($word)?;
                        $(write!(f, " {}", $field.to_word())?;)*
                        Ok(())
                    })*
                }
            }
        }

        impl Op {
            fn from_words(call: &str, words: &mut dyn Iterator<Item = &str>) -> Result<Op, String> {
                let mut next = |field: &str| words.next().ok_or(format!("{call}: `{field}` is missing"));
                let op = match call {
                    $($word => Op::$name {
                        $($field: {
                            let word = next(stringify!($field))?;
                            Word::from_word(word).map_err(|e| format!("{call}: {}: {e}", stringify!($field)))?
                        }),*
                    },)*
                    _ => return Err(format!("`{call}` is no operation")),
                };
                match words.next() {
                    None => Ok(op),
                    Some(extra) => Err(format!("{call}: `{extra}` is too much")),
                }
            }
        }
    };
}

operations! {
    /// `openat`.
    Open = "open" (at: Fd, path: Bytes, flags: OpenFlags, mode: Mode);
    /// `close`.
    Close = "close" (fd: Fd);
    /// `dup`.
    Dup = "dup" (fd: Fd);
    /// `dup2`.
    Dup2 = "dup2" (fd: Fd, to: Fd);
    /// `read`.
    Read = "read" (fd: Fd, len: usize);
    /// `pread`.
    Pread = "pread" (fd: Fd, len: usize, offset: i64);
    /// `readv`, or `preadv` when there is an offset.
    Readv = "readv" (fd: Fd, lens: List<usize>, offset: Option<i64>);
    /// `write`.
    Write = "write" (fd: Fd, data: Data);
    /// `pwrite`.
    Pwrite = "pwrite" (fd: Fd, data: Data, offset: i64);
    /// `writev`, or `pwritev` when there is an offset.
    Writev = "writev" (fd: Fd, parts: List<Data>, offset: Option<i64>);
    /// `lseek`.
    Lseek = "lseek" (fd: Fd, offset: i64, whence: Whence);
    /// `truncate`.
    Truncate = "truncate" (path: Bytes, len: i64);
    /// `ftruncate`.
    Ftruncate = "ftruncate" (fd: Fd, len: i64);
    /// `fallocate`.
    Fallocate = "fallocate" (fd: Fd, mode: FallocateMode, offset: i64, len: i64);
    /// `fsync`, or `fdatasync` when `data_only` is not 0.
    Fsync = "fsync" (fd: Fd, data_only: u32);
    /// `copy_file_range`.
    CopyRange = "copy_file_range" (from: Fd, from_offset: Option<i64>, to: Fd, to_offset: Option<i64>, len: usize);

    /// `fstatat`.
    Stat = "stat" (at: Fd, path: Bytes, flags: AtFlags);
    /// `fstat`.
    Fstat = "fstat" (fd: Fd);
    /// `statx`.
    Statx = "statx" (at: Fd, path: Bytes, flags: AtFlags);
    /// `fchmodat2`.
    Chmod = "chmod" (at: Fd, path: Bytes, mode: Mode, flags: AtFlags);
    /// `fchmod`.
    Fchmod = "fchmod" (fd: Fd, mode: Mode);
    /// `fchownat`.
    Chown = "chown" (at: Fd, path: Bytes, uid: Option<u32>, gid: Option<u32>, flags: AtFlags);
    /// `fchown`.
    Fchown = "fchown" (fd: Fd, uid: Option<u32>, gid: Option<u32>);
    /// `utimensat`: access time, modification time.
    Utimens = "utimens" (at: Fd, path: Bytes, atime: TimeArg, mtime: TimeArg, flags: AtFlags);
    /// `futimens`.
    Futimens = "futimens" (fd: Fd, atime: TimeArg, mtime: TimeArg);
    /// `statfs`: the longest name.
    Statfs = "statfs" (path: Bytes);
    /// `fstatfs`: the longest name.
    Fstatfs = "fstatfs" (fd: Fd);
    /// `faccessat2`.
    Access = "access" (at: Fd, path: Bytes, mode: u32, flags: AtFlags);

    /// `linkat`.
    Link = "link" (from_at: Fd, from: Bytes, to_at: Fd, to: Bytes, flags: AtFlags);
    /// `symlinkat`.
    Symlink = "symlink" (to: Bytes, at: Fd, path: Bytes);
    /// `readlinkat`.
    Readlink = "readlink" (at: Fd, path: Bytes);
    /// `unlinkat`.
    Unlink = "unlink" (at: Fd, path: Bytes, flags: AtFlags);
    /// `mkdirat`.
    Mkdir = "mkdir" (at: Fd, path: Bytes, mode: Mode);
    /// `mknodat`.
    Mknod = "mknod" (at: Fd, path: Bytes, kind: FileType, mode: Mode, rdev: u64);
    /// `renameat2`.
    Rename = "rename" (from_at: Fd, from: Bytes, to_at: Fd, to: Bytes, flags: RenameFlags);
    /// Rewinds a directory and reads it to the end.
    Readdir = "readdir" (fd: Fd);

    /// `umask`.
    Umask = "umask" (mask: Mode);
    /// `chdir`.
    Chdir = "chdir" (path: Bytes);
    /// `fchdir`.
    Fchdir = "fchdir" (fd: Fd);
    /// `getcwd`.
    Getcwd = "getcwd" ();
    /// Process `child` ends, and a copy of this process takes its number: same open files, working
    /// directory, umask and user.
    Fork = "fork" (child: usize);

    /// `getxattr` and its kin.
    GetXattr = "getxattr" (of: Target, name: Bytes);
    /// `setxattr` and its kin.
    SetXattr = "setxattr" (of: Target, name: Bytes, value: Bytes, flags: XattrFlags);
    /// `listxattr` and its kin.
    ListXattr = "listxattr" (of: Target);
    /// `removexattr` and its kin.
    RemoveXattr = "removexattr" (of: Target, name: Bytes);

    /// `fcntl(F_GETFL)`.
    GetFl = "getfl" (fd: Fd);
    /// `fcntl(F_SETFL)`.
    SetFl = "setfl" (fd: Fd, flags: OpenFlags);
    /// `fcntl(F_SETLK)` or `fcntl(F_OFD_SETLK)`.
    SetLock = "setlk" (fd: Fd, owner: LockOwner, kind: LockKind, whence: Whence, start: i64, len: i64);
    /// `fcntl(F_GETLK)` or `fcntl(F_OFD_GETLK)`.
    GetLock = "getlk" (fd: Fd, owner: LockOwner, kind: LockKind, whence: Whence, start: i64, len: i64);
    /// `flock` with `LOCK_NB`.
    Flock = "flock" (fd: Fd, kind: LockKind);
}

/// One operation and the number of the process that makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessOp {
    /// Index of the process.
    pub process: usize,
    /// The call.
    pub op: Op,
}

impl fmt::Display for ProcessOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.process, self.op)
    }
}

/// The text of a sequence: one line a step.
pub fn to_text(steps: &[ProcessOp]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

/// The sequence that a text stands for. Empty lines and lines that start with `#` say nothing.
///
/// # Errors
/// One line with the number of the line that is wrong, and how.
pub fn from_text(text: &str) -> Result<Vec<ProcessOp>, String> {
    let mut steps = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        let step = first
            .parse()
            .map_err(|_| format!("a process number expected, not `{first}`"))
            .and_then(|process| {
                let call = words.next().unwrap_or_default();
                Ok(ProcessOp { process, op: Op::from_words(call, &mut words)? })
            })
            .map_err(|error| format!("line {}: {error}", index + 1))?;
        steps.push(step);
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_survives_its_text_form() {
        let text = "0 open cwd \"a/b\" RDWR|CREAT 0o644\n\
                    1 utimens 3 \"\" now 5/1000000007 0x1000\n\
                    2 writev 4 1*2,4096*7 none\n\
                    3 setxattr link:\"x\" \"user.a\" \"\\x00\\xff\" CREATE\n\
                    0 fork 2\n";
        let steps = from_text(text).expect("the text is a sequence");
        assert_eq!(steps.len(), 5);
        assert_eq!(from_text(&to_text(&steps)), Ok(steps));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, says) in [
            ("# remark\n\n0 opne", "line 3: `opne` is no operation"),
            ("0 close", "line 1: close: `fd` is missing"),
            ("0 close 1 2", "`2` is too much"),
            ("x close 1", "process number"),
        ] {
            let error = from_text(text).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
    }
}
