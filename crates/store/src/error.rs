//! StoreError: why a store cannot be opened or changed, said for the person that must act on it.

use std::{error, fmt, io};

/// An error of a store.
#[derive(Debug)]
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
    /// The disk's error: what was tried, and what the system said.
    Io(&'static str, io::Error),
    /// An earlier error of the disk ended all writing; what was synchronised before is safe.
    Failed(String),
    /// Another node has opened the store since, and what this one writes no longer counts. Synchronised changes are
    /// safe.
    Fenced,
}

impl StoreError {
    /// Wraps an error of the disk that came while trying `what`.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
        move |error| StoreError::Io(what, error)
    }

    /// The error number that a program sees for it.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            StoreError::NotAStore | StoreError::NewerFormat(_) => Errno::INVAL,
            StoreError::Exists => Errno::EXIST,
            StoreError::InUse(_) | StoreError::Claimed(_) => Errno::BUSY,
            StoreError::Damaged(_) | StoreError::DamagedLog(_) | StoreError::Failed(_) | StoreError::Lost => {
                Errno::IO
            }
            StoreError::Fenced => Errno::STALE,
            StoreError::Io(_, error) => return error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        };
        errno.raw_os_error()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::NotAStore => f.write_str("this is no sluicefs store (make one: sluice mkfs STORE)"),
            StoreError::Exists => f.write_str("there is a sluicefs store here already"),
            StoreError::InUse(None) => f.write_str("the store is in use (unmount it first)"),
            StoreError::InUse(Some(pid)) => {
                write!(f, "the store is in use by process {pid} (unmount it first)")
            }
            StoreError::Claimed(by) => write!(f, "the store is in use by {by}"),
            StoreError::NewerFormat(version) => {
                write!(
                    f,
                    "the store has format {version}, which is newer than this program (use a newer sluice)"
                )
            }
            StoreError::Damaged(what) => {
                write!(f, "the store is damaged: {what} (check it: sluice fsck STORE)")
            }
            StoreError::DamagedLog(how) => write!(
                f,
                "the log is damaged, and the newest changes cannot be read: {how} (see what is lost: sluice fsck STORE; \
                 give it up and go on: sluice fsck --repair STORE)"
            ),
            StoreError::Lost => f.write_str(
                "the store was in use with `-o volatile` and did not end cleanly: what it held is lost \
                 (make it anew: sluice mkfs STORE)",
            ),
            StoreError::Io(what, error) => write!(f, "could not {what}: {error}"),
            StoreError::Failed(why) => {
                write!(f, "the store takes no more changes since an earlier error: {why}")
            }
            StoreError::Fenced => {
                f.write_str("another node has opened the store since: changes of this one no longer count (mount it again)")
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
    fn each_error_is_a_line_that_says_what_to_do() {
        for (error, told) in [
            (StoreError::NotAStore, "this is no sluicefs store (make one: sluice mkfs STORE)"),
            (StoreError::Exists, "there is a sluicefs store here already"),
            (StoreError::InUse(None), "the store is in use (unmount it first)"),
            (StoreError::InUse(Some(7)), "the store is in use by process 7 (unmount it first)"),
            (StoreError::Claimed("x".into()), "the store is in use by x"),
            (StoreError::NewerFormat(99), ", which is newer than this program (use a newer sluice)"),
            (StoreError::Damaged("x".into()), "the store is damaged: x (check it: sluice fsck STORE)"),
            (StoreError::Damaged("x".into()), " (check it: sluice fsck STORE)"),
            (StoreError::DamagedLog("x".into()), "give it up and go on: sluice fsck --repair STORE"),
            (StoreError::Lost, "what it held is lost (make it anew: sluice mkfs STORE)"),
            (StoreError::Io("open the log", io::ErrorKind::NotFound.into()), "could not open the log: "),
            (StoreError::Failed("x".into()), "the store takes no more changes since an earlier error: "),
            (StoreError::Fenced, "changes of this one no longer count (mount it again)"),
        ] {
            let line = error.to_string();
            assert!(line.contains(told) && !line.contains('\n'), "{line}");
        }
    }
}
