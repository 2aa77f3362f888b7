//! Failure: why the lab could not do what it was asked, as one line for a person.

use serde::{Deserialize, Serialize};
use sluice_vfs::Errno;
use std::fmt;
use std::io::ErrorKind;

/// An error of the lab. Its text is one line and names the remedy where that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The request itself is wrong; asking again will not help.
    Usage(String),
    /// The request was right and something went wrong.
    Failed(String),
    /// The file system does not offer what was asked of it.
    Unsupported(String),
    /// The user asked to stop.
    Interrupted,
}

/// The error of every call on a mount whose server has ended.
const DEAD_MOUNT: &str = "the server of this mount has ended: remove the mount with `sluice umount`";

/// The result of the lab's functions.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The same failure with `context` in front: `context: text`.
    pub fn in_context(self, context: impl fmt::Display) -> Failure {
        match self {
            Failure::Usage(text) => Failure::Usage(format!("{context}: {text}")),
            Failure::Failed(text) => Failure::Failed(format!("{context}: {text}")),
            Failure::Unsupported(text) => Failure::Unsupported(format!("{context}: {text}")),
            Failure::Interrupted => Failure::Interrupted,
        }
    }
}

/// Says what was being done when an error came up.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] that begins with `what()`.
    ///
    /// # Errors
    /// The error it was called on.
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<Failure>> Context<T> for std::result::Result<T, E> {
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| error.into().in_context(what()))
    }
}

/// `text` without the numbers of the system's errors, which it has in words.
pub fn in_words(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    parts.fold(first, |text, part| match part.split_once(')') {
        Some((number, rest)) if is_number(number) => text + rest,
        _ => text + " (os error " + part,
    })
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        match errno {
            Errno::EOPNOTSUPP | Errno::ENOSYS => Failure::Unsupported(errno.to_string()),
            _ => Failure::Failed(errno.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            _ if sluice_fuse::is_dead(&error) => Failure::Failed(DEAD_MOUNT.into()),
            // In the words of this project: arguments and variables are refused so. The system's own errors have no such words.
            ErrorKind::InvalidInput if error.get_ref().is_some() => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Failed(text) | Failure::Unsupported(text) => f.write_str(text),
            Failure::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_stands_in_front_of_the_reason() {
        let failed: Result<()> = Err(Errno::ENOSPC).context(|| "creat-unlink on dir:/x");
        assert_eq!(failed.unwrap_err().to_string(), "creat-unlink on dir:/x: no space left (ENOSPC)");
    }

    #[test]
    fn an_argument_that_a_library_of_ours_refuses_is_bad_usage() {
        let refused = std::io::Error::new(ErrorKind::InvalidInput, "give four seconds or more");
        assert_eq!(Failure::from(refused), Failure::Usage("give four seconds or more".into()));
        let of_system = Failure::from(std::io::Error::from_raw_os_error(22));
        assert!(matches!(of_system, Failure::Failed(_)), "{of_system:?}");
    }

    #[test]
    fn what_a_file_system_does_not_offer_is_told_apart() {
        let failed: Result<()> = Err(Errno::EOPNOTSUPP).context(|| "fallocate1");
        assert_eq!(failed, Err(Failure::Unsupported("fallocate1: not supported (EOPNOTSUPP)".into())));
    }
}
