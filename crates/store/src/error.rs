//! StoreError: why a store cannot be opened or changed, said for the person that must act on it.

use std::{error, fmt, io};

/// An error of a store.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory holds no store.
    NotAStore,
    /// The new store's place already contains a store.
    Exists,
    /// Another process, or this one, has the store open: its process number, if known.
    InUse(Option<u32>),
    /// A process that cannot be seen from here has the store open: which, and what can be done.
    Claimed(String),
    /// A newer program made it: its format version.
    NewerFormat(u32),
    /// The disk's content is inconsistent: the damaged part, and the evidence.
    Damaged(String),
    /// Batches of the log that were durable cannot be read: how that shows. Nothing was changed.
    DamagedLog(String),
    /// It was used without flushes ([`Options::volatile`](crate::Options::volatile)), and did not end cleanly.
    Lost,
    /// The store is encrypted, and no key was given.
    Locked,
    /// The given key opens no slot.
    WrongKey,
    /// The store is not encrypted, and a key was given: somebody may have put this store in the place of an encrypted one.
    NotEncrypted,
    /// The store is compressed, or would be, and this build of the program cannot do that.
    NoCompression,
    /// A key cannot be used, added or removed: why.
    BadKey(String),
    /// The disk's error: what was tried, and what the system said.
    Io(&'static str, io::Error),
    /// An earlier error of the disk ended all writing; what was synchronised before is safe.
    Failed(String),
    /// A later owner has opened the store, and changes of this one no longer count. Synchronised changes are safe.
    Superseded,
}

impl StoreError {
    /// Wraps an error of the disk that came while trying `what`. A disk says `InvalidData` of what cannot be a file of a store.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |error| match error.kind() {
            io::ErrorKind::InvalidData => StoreError::Damaged(error.to_string()),
            _ => StoreError::Io(what, error),
        }
    }

    /// Whether the disk [lacks room]: a later attempt may succeed.
    ///
    /// [lacks room]: lacks_room
    pub(crate) fn is_full_disk(&self) -> bool {
        matches!(self, StoreError::Io(_, error) if lacks_room(error))
    }

    /// The error number that a program sees for it.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            StoreError::NotAStore
            | StoreError::NewerFormat(_)
            | StoreError::NotEncrypted
            | StoreError::BadKey(_) => Errno::INVAL,
            StoreError::NoCompression => Errno::OPNOTSUPP,
            StoreError::Locked => Errno::NOKEY,
            StoreError::WrongKey => Errno::KEYREJECTED,
            StoreError::Exists => Errno::EXIST,
            StoreError::InUse(_) | StoreError::Claimed(_) => Errno::BUSY,
            StoreError::Damaged(_) | StoreError::DamagedLog(_) | StoreError::Failed(_) | StoreError::Lost => {
                Errno::IO
            }
            StoreError::Superseded => Errno::STALE,
            // Other errors of the host are about the store's files, and would say something false of the program's.
            StoreError::Io(_, error) => match error.kind() {
                io::ErrorKind::StorageFull => Errno::NOSPC,
                io::ErrorKind::QuotaExceeded => Errno::DQUOT,
                io::ErrorKind::FileTooLarge => Errno::FBIG,
                io::ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
                _ => Errno::IO,
            },
        };
        errno.raw_os_error()
    }
}

/// Whether the disk has no room, or a quota of the host leaves none.
pub(crate) fn lacks_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::NotAStore => f.write_str("this is no sluicefs store"),
            StoreError::Exists => f.write_str("there is a sluicefs store here already (mount it, or give another place)"),
            StoreError::InUse(None) => f.write_str("the store is in use (unmount it first)"),
            StoreError::InUse(Some(pid)) => {
                write!(f, "the store is in use by process {pid} (unmount it first)")
            }
            StoreError::Claimed(by) => write!(f, "the store is in use by {by}"),
            StoreError::NewerFormat(version) => {
                write!(
                    f,
                    "the store has format {version}, which is newer than this program"
                )
            }
            StoreError::Damaged(what) => {
                write!(f, "the store is damaged: {what}")
            }
            StoreError::DamagedLog(how) => write!(
                f,
                "the log is damaged, and the newest changes cannot be read: {how}"
            ),
            StoreError::Lost => f.write_str(
                "the store was in use without flushes (volatile) and did not end cleanly: what it held is lost",
            ),
            StoreError::Locked => f.write_str("the store is encrypted: give its key file or passphrase"),
            StoreError::WrongKey => f.write_str("the key is wrong: it opens no slot of the store"),
            StoreError::NotEncrypted => f.write_str("the store is not encrypted: give no key"),
            StoreError::NoCompression => f.write_str(
                "this build of sluice has no compression; `make build` in the source of sluicefs makes one that has",
            ),
            StoreError::BadKey(why) => f.write_str(why),
            StoreError::Io(what, error) => write!(f, "could not {what}: {error}"),
            StoreError::Failed(why) => {
                write!(f, "the store takes no more changes since an earlier error: {why}")
            }
            StoreError::Superseded => {
                f.write_str("another process has opened the store since: changes of this one no longer count (mount it again)")
            }
        }
    }
}

impl error::Error for StoreError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            StoreError::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_a_line_that_says_what_is_wrong() {
        for (error, told) in [
            (StoreError::NotAStore, "this is no sluicefs store"),
            (StoreError::Exists, "there is a sluicefs store here already (mount it, or give another place)"),
            (StoreError::InUse(None), "the store is in use (unmount it first)"),
            (StoreError::InUse(Some(7)), "the store is in use by process 7 (unmount it first)"),
            (StoreError::Claimed("x".into()), "the store is in use by x"),
            (StoreError::NewerFormat(99), ", which is newer than this program"),
            (StoreError::Damaged("x".into()), "the store is damaged: x"),
            (StoreError::DamagedLog("x".into()), "the newest changes cannot be read: x"),
            (StoreError::Lost, "did not end cleanly: what it held is lost"),
            (StoreError::Locked, "the store is encrypted: give its key file or passphrase"),
            (StoreError::WrongKey, "the key is wrong: it opens no slot of the store"),
            (StoreError::NotEncrypted, "the store is not encrypted: give no key"),
            (StoreError::NoCompression, "this build of sluice has no compression; `make build`"),
            (StoreError::BadKey("x".into()), "x"),
            (StoreError::Io("open the log", io::ErrorKind::NotFound.into()), "could not open the log: "),
            (StoreError::Failed("x".into()), "the store takes no more changes since an earlier error: "),
            (StoreError::Superseded, "changes of this one no longer count (mount it again)"),
        ] {
            let line = error.to_string();
            assert!(line.contains(told) && !line.contains('\n'), "{line}");
        }
    }
}
