//! Errno: why a call failed, by the names and numbers of Linux.

use std::io::ErrorKind;
use std::{fmt, io};

/// An error of a file system call. The numbers are those of Linux on x86-64 and arm64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`: ", $text, ".")] pub const $name: Errno = Errno($number);)*

            /// The symbolic name, `"ENOENT"`.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($number => stringify!($name),)*
                    _ => "EUNKNOWN",
                }
            }

            /// Its meaning, in a few words.
            pub const fn text(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown error",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted by a signal";
    EIO = 5, "input or output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "too large";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "not on the same file system";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in the system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "not supported by this kind of file";
    ETXTBSY = 26, "program is running";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left";
    ESPIPE = 29, "cannot seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    EPIPE = 32, "broken pipe";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "deadlock";
    ENAMETOOLONG = 36, "name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no such attribute";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "not supported";
    ESTALE = 116, "stale file handle";
    ETIMEDOUT = 110, "timed out";
    EDQUOT = 122, "quota exceeded";
}

impl Errno {
    /// The number, positive.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// The error of number `raw`, as an operating system reports it (positive).
    pub const fn from_raw(raw: i32) -> Errno {
        Errno(raw)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.name())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "EUNKNOWN" => write!(f, "Errno({})", self.0),
            name => f.write_str(name),
        }
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        io::Error::from_raw_os_error(errno.0)
    }
}

impl From<io::Error> for Errno {
    /// The number that the operating system gave, or the number for the error's kind; `EIO` if neither exists.
    fn from(error: io::Error) -> Self {
        if let Some(raw) = error.raw_os_error() {
            return Errno(raw);
        }
        match error.kind() {
            ErrorKind::NotFound => Errno::ENOENT,
            ErrorKind::PermissionDenied => Errno::EACCES,
            ErrorKind::AlreadyExists => Errno::EEXIST,
            ErrorKind::NotADirectory => Errno::ENOTDIR,
            ErrorKind::IsADirectory => Errno::EISDIR,
            ErrorKind::DirectoryNotEmpty => Errno::ENOTEMPTY,
            ErrorKind::ReadOnlyFilesystem => Errno::EROFS,
            ErrorKind::InvalidFilename => Errno::ENAMETOOLONG,
            ErrorKind::InvalidInput | ErrorKind::InvalidData => Errno::EINVAL,
            ErrorKind::StorageFull => Errno::ENOSPC,
            ErrorKind::FileTooLarge => Errno::EFBIG,
            ErrorKind::QuotaExceeded => Errno::EDQUOT,
            ErrorKind::NotSeekable => Errno::ESPIPE,
            ErrorKind::ResourceBusy => Errno::EBUSY,
            ErrorKind::Deadlock => Errno::EDEADLK,
            ErrorKind::CrossesDevices => Errno::EXDEV,
            ErrorKind::TooManyLinks => Errno::EMLINK,
            ErrorKind::ArgumentListTooLong => Errno::E2BIG,
            ErrorKind::StaleNetworkFileHandle => Errno::ESTALE,
            ErrorKind::BrokenPipe => Errno::EPIPE,
            ErrorKind::WouldBlock => Errno::EAGAIN,
            ErrorKind::TimedOut => Errno::ETIMEDOUT,
            ErrorKind::Interrupted => Errno::EINTR,
            ErrorKind::Unsupported => Errno::EOPNOTSUPP,
            ErrorKind::OutOfMemory => Errno::ENOMEM,
            _ => Errno::EIO,
        }
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Errno(errno.raw_os_error())
    }
}

impl From<Errno> for rustix::io::Errno {
    fn from(errno: Errno) -> Self {
        rustix::io::Errno::from_raw_os_error(errno.0)
    }
}

impl From<sluice_sync::percpu::budget::Exhausted> for Errno {
    fn from(_: sluice_sync::percpu::budget::Exhausted) -> Self {
        Errno::ENOSPC
    }
}

impl From<sluice_sync::memory::Short> for Errno {
    fn from(_: sluice_sync::memory::Short) -> Self {
        Errno::ENOSPC
    }
}

impl From<sluice_locks::LockError> for Errno {
    fn from(error: sluice_locks::LockError) -> Self {
        use sluice_locks::LockError::{Deadlock, Interrupted, NoLocks, TimedOut, WouldBlock};
        match error {
            WouldBlock => Errno::EAGAIN,
            Deadlock => Errno::EDEADLK,
            Interrupted => Errno::EINTR,
            TimedOut => Errno::ETIMEDOUT,
            NoLocks => Errno::ENOLCK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_agree_with_the_operating_system() {
        let io: io::Error = Errno::ENOENT.into();
        assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
        let io: io::Error = Errno::ENOTEMPTY.into();
        assert_eq!(io.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    }

    #[test]
    fn each_error_is_said_in_words_of_its_own() {
        let said = [
            (Errno::EIO, "input or output error"),
            (Errno::ENXIO, "no such device or address"),
            (Errno::EBADF, "bad file descriptor"),
            (Errno::ENOMEM, "out of memory"),
            (Errno::ENODEV, "no such device"),
            (Errno::ENFILE, "too many open files in the system"),
            (Errno::EMFILE, "too many open files"),
            (Errno::ETXTBSY, "program is running"),
            (Errno::EROFS, "read-only file system"),
            (Errno::EMLINK, "too many links"),
            (Errno::ELOOP, "too many symbolic links"),
            (Errno::ENODATA, "no such attribute"),
            (Errno::ESTALE, "stale file handle"),
            (Errno::from_raw(3), "unknown error"),
        ];
        for (errno, words) in said {
            assert!(errno.to_string().contains(words), "{errno}");
        }
        let mut all: Vec<String> = (1..=133).map(|raw| Errno::from_raw(raw).to_string()).collect();
        all.retain(|words| !words.contains("unknown error"));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "two say the same");
    }

    #[test]
    fn each_error_survives_the_way_through_io_and_through_rustix() {
        for errno in (1..=133).map(Errno::from_raw) {
            assert_eq!(Errno::from(io::Error::from(errno)), errno);
            assert_eq!(Errno::from(rustix::io::Errno::from(errno)), errno);
            // An error that has a kind and no number. A kind that std cannot name becomes `EIO`.
            let kind = io::Error::from(errno).kind();
            let named = Errno::from(io::Error::from(kind));
            let alike = named == Errno::EIO || io::Error::from(named).kind() == kind;
            assert!(alike, "{errno}: {kind:?} became {named}");
        }
    }

    #[test]
    fn an_unknown_number_still_prints() {
        assert_eq!(format!("{:?}", Errno::from_raw(999)), "Errno(999)");
        assert_eq!(
            format!("{:?} {}", Errno::EXDEV, Errno::EXDEV),
            "EXDEV not on the same file system (EXDEV)"
        );
    }
}
