//! MountOptions: what may be chosen when mounting, and the `-o` strings that say it.

use crate::mount_stat::ObjectStoreStat;
use sluice_sync::{Arc, cpu};
use sluice_vfs::NAME_MAX;
use std::ffi::OsString;
use std::fmt;

/// The smallest and largest `max_write`, in bytes.
const MAX_WRITE: std::ops::RangeInclusive<u32> = 4096..=1 << 20;
/// The most worker threads.
const THREADS_MAX: usize = 256;
/// The options with the forms of their values: the answer to an unknown or misused one.
const KNOWN: &str = "locks=kernel|sluice, lockfile=NAME, checks=kernel|sluice, allow_other, noallow_other, ro, rw, noatime, relatime, strictatime, nodiratime, diratime, sync, async, nosuid, suid, \
                     nodev, dev, noexec, exec, writeback, nowriteback, transport=auto|uring|classic, threads=N, max_write=N, nfs_export, fsname=NAME";

/// Who serves the file locks of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum LockMode {
    /// The kernel, on its own: no messages, complete for the programs that use this mount. These programs do not see
    /// locks that are taken in process.
    #[default]
    Kernel,
    /// sluicefs: one set of locks for the mount and for users in process. Each `open`, `close` and lock
    /// request is a message.
    Sluice,
}

/// Which side checks permissions in a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CheckMode {
    /// The kernel, by the attributes that it knows. On Linux 6.18 and before, each change in a directory makes it ask for
    /// the attributes of that directory before the next one.
    #[default]
    Kernel,
    /// sluicefs. Only where root mounts and nobody else may use the mount: the kernel then walks names that it knows
    /// without asking, and every caller is one that may. A process of root without capabilities is treated as if it had
    /// them.
    Sluice,
}

/// How messages travel between the kernel and a mount's server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Transport {
    /// Over io_uring where the kernel allows it, the kernel serves the locks, the file system is not in a store, and the process is
    /// [`dedicated`](MountOptions::dedicated); by the classic device elsewhere.
    #[default]
    Auto,
    /// Over io_uring, with a queue and a thread for each CPU.
    Uring,
    /// By reading and writing `/dev/fuse`.
    Classic,
}

impl Transport {
    /// Its name in an option string.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Uring => "uring",
            Transport::Classic => "classic",
        }
    }
}

/// How a file system is to be mounted. Each field has a method that sets it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MountOptions {
    /// Who serves file locks.
    pub locks: LockMode,
    /// The name of a file in the root that shows all locks as `/proc/locks` does, and is in no listing. Only where sluicefs
    /// serves them.
    pub lock_file: Option<String>,
    /// Which side checks permissions.
    pub checks: CheckMode,
    /// Whether users other than the mounting one may use the mount. `None`: yes for root whose kernel checks permissions,
    /// no for others.
    pub allow_other: Option<bool>,
    /// Refuse changes.
    pub read_only: bool,
    /// Do not update access times when data are read.
    pub noatime: bool,
    /// Do not update access times when directories are listed.
    pub nodiratime: bool,
    /// Update access times at every read that reaches the server, and not only where that tells something new (`relatime`).
    pub strictatime: bool,
    /// Every write is made durable before it returns, as if each file were open with O_SYNC.
    pub synchronous: bool,
    /// Ignore set-ID bits of programs. `None`: yes, unless root mounts.
    pub nosuid: Option<bool>,
    /// Refuse to open device nodes. `None`: yes, unless root mounts.
    pub nodev: Option<bool>,
    /// Refuse to run programs.
    pub noexec: bool,
    /// The kernel collects writes, and keeps size and times of files itself, until it writes them back. Only where it is
    /// the one writer: the process must be [`dedicated`](Self::dedicated), and the file system has no other mount.
    pub writeback: bool,
    /// The calling process does nothing but serve this mount: it has no other use of the file system and is no client of
    /// the mount. Not said by an `-o` string, because only the program knows.
    pub dedicated: bool,
    /// The calling process has made a session of its own (`setsid`) and is alone in it, as a daemon is, so that its
    /// threads may be scheduled behind those of its clients. Not said by an `-o` string.
    pub own_session: bool,
    /// Another process, a holder, keeps the mount when this one dies, and starts a server that [resumes](Self::resume) it. Only with a
    /// store, where the kernel serves locks and collects no writes; messages travel by the classic device. Not said by an `-o` string.
    pub held: bool,
    /// How messages travel.
    pub transport: Transport,
    /// Worker threads, with the classic transport. `None`: one for each CPU, at least 2.
    pub threads: Option<usize>,
    /// Most bytes in one READ or WRITE, rounded down to whole pages.
    pub max_write: u32,
    /// A file handle leads to its file also when the kernel has forgotten the file, as an NFS server wants it. An overlayfs on
    /// top of such a mount answers `ESTALE`, for a fault of the kernel.
    pub nfs_export: bool,
    /// The source in the mount table.
    pub fsname: OsString,
    /// Fields of `stat` about the storage below the file system. Not said by an `-o` string.
    pub storage_stat: Option<StorageStat>,
}

/// The function that gives the part of the answer to `stat` about the storage below a file system, which only the program knows.
#[derive(Clone)]
pub struct StorageStat(Arc<dyn Fn() -> ObjectStoreStat + Send + Sync>);

impl StorageStat {
    /// `stat` is called each time that somebody asks.
    pub fn new(stat: impl Fn() -> ObjectStoreStat + Send + Sync + 'static) -> StorageStat {
        StorageStat(Arc::new(stat))
    }

    /// The counts as they are now.
    pub(crate) fn now(&self) -> ObjectStoreStat {
        (self.0)()
    }
}

impl fmt::Debug for StorageStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StorageStat")
    }
}

impl PartialEq for StorageStat {
    /// Whether it is the same function.
    fn eq(&self, other: &StorageStat) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for StorageStat {}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            locks: LockMode::Kernel,
            lock_file: None,
            checks: CheckMode::Kernel,
            allow_other: None,
            read_only: false,
            noatime: false,
            nodiratime: false,
            strictatime: false,
            synchronous: false,
            nosuid: None,
            nodev: None,
            noexec: false,
            writeback: false,
            dedicated: false,
            own_session: false,
            held: false,
            transport: Transport::Auto,
            threads: None,
            max_write: 128 << 10,
            nfs_export: false,
            fsname: "sluicefs".into(),
            storage_stat: None,
        }
    }
}

sluice_sync::setters!(MountOptions {
    locks: LockMode => locks;
    lock_file: impl Into<String> => Some(lock_file.into());
    checks: CheckMode => checks;
    allow_other: bool => Some(allow_other);
    read_only: bool => read_only;
    noatime: bool => noatime;
    nodiratime: bool => nodiratime;
    strictatime: bool => strictatime;
    synchronous: bool => synchronous;
    nosuid: bool => Some(nosuid);
    nodev: bool => Some(nodev);
    noexec: bool => noexec;
    writeback: bool => writeback;
    dedicated: bool => dedicated;
    own_session: bool => own_session;
    held: bool => held;
    transport: Transport => transport;
    threads: usize => Some(threads);
    max_write: u32 => max_write;
    nfs_export: bool => nfs_export;
    fsname: impl Into<OsString> => fsname.into();
    storage_stat: StorageStat => Some(storage_stat);
});

/// Why an option string was refused: one line that says what would be accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionError {
    text: String,
    unknown: bool,
}

impl OptionError {
    /// True when there is no such option. The message then ends with the list of the known ones, so that a caller
    /// that has options of its own can add them.
    pub fn is_unknown(&self) -> bool {
        self.unknown
    }

    fn bad_value(text: impl Into<String>) -> OptionError {
        OptionError { text: text.into(), unknown: false }
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for OptionError {}

impl MountOptions {
    /// Applies `options`, a list separated by commas as `mount -o` takes it; later ones win.
    ///
    /// # Errors
    /// The first option that is unknown or has a bad value; `self` may then be partly changed.
    pub fn apply(&mut self, options: &str) -> Result<(), OptionError> {
        options.split(',').filter(|option| !option.is_empty()).try_for_each(|option| self.apply_one(option))
    }

    /// The options that `options` gives.
    ///
    /// # Errors
    /// Errors of [`apply`](Self::apply).
    pub fn parse(options: &str) -> Result<MountOptions, OptionError> {
        let mut parsed = MountOptions::default();
        parsed.apply(options)?;
        Ok(parsed)
    }

    /// Whether users other than the mounting one may use the mount, where nothing is said when `by_default`.
    pub(crate) fn admits_others(&self, by_default: bool) -> bool {
        self.allow_other.unwrap_or(by_default && self.checks == CheckMode::Kernel)
    }

    /// Whether reading moves access times.
    #[doc(hidden)]
    pub fn updates_atime(&self) -> bool {
        !self.noatime && !self.read_only
    }

    /// Whether listing moves the access times of directories.
    #[doc(hidden)]
    pub fn updates_dir_atime(&self) -> bool {
        self.updates_atime() && !self.nodiratime
    }

    /// The number of worker threads that these options ask for.
    pub fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| cpu::count().max(2)).clamp(1, THREADS_MAX)
    }

    fn apply_one(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("locks", Some("kernel")) => self.locks = LockMode::Kernel,
            ("locks", Some("sluice")) => self.locks = LockMode::Sluice,
            ("checks", Some("kernel")) => self.checks = CheckMode::Kernel,
            ("checks", Some("sluice")) => self.checks = CheckMode::Sluice,
            ("lockfile", Some(name)) => {
                if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) || name.len() > NAME_MAX {
                    let text = "mount option lockfile: give the name that a file in the root may have";
                    return Err(OptionError::bad_value(text));
                }
                self.lock_file = Some(name.into());
            }
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("noatime", None) => (self.noatime, self.strictatime) = (true, false),
            ("relatime" | "atime" | "nostrictatime", None) => {
                (self.noatime, self.strictatime) = (false, false)
            }
            ("strictatime" | "norelatime", None) => (self.noatime, self.strictatime) = (false, true),
            ("nodiratime", None) => self.nodiratime = true,
            ("diratime", None) => self.nodiratime = false,
            ("sync", None) => self.synchronous = true,
            ("async", None) => self.synchronous = false,
            ("nosuid", None) => self.nosuid = Some(true),
            ("suid", None) => self.nosuid = Some(false),
            ("nodev", None) => self.nodev = Some(true),
            ("dev", None) => self.nodev = Some(false),
            ("noexec", None) => self.noexec = true,
            ("exec", None) => self.noexec = false,
            ("writeback", None) => self.writeback = true,
            ("nowriteback", None) => self.writeback = false,
            ("transport", Some("auto")) => self.transport = Transport::Auto,
            ("transport", Some("uring")) => self.transport = Transport::Uring,
            ("transport", Some("classic")) => self.transport = Transport::Classic,
            ("threads", Some(value)) => match value.parse() {
                Ok(threads) if (1..=THREADS_MAX).contains(&threads) => self.threads = Some(threads),
                _ => {
                    return Err(OptionError::bad_value(format!(
                        "mount option threads={value}: give 1 to {THREADS_MAX}"
                    )));
                }
            },
            ("max_write", Some(value)) => match value.parse() {
                Ok(bytes) if MAX_WRITE.contains(&bytes) => self.max_write = bytes,
                _ => {
                    let (low, high) = MAX_WRITE.into_inner();
                    return Err(OptionError::bad_value(format!(
                        "mount option max_write={value}: give {low} to {high} bytes"
                    )));
                }
            },
            ("nfs_export", None) => self.nfs_export = true,
            ("fsname", Some(value)) if value.contains('\0') || value.is_empty() => {
                return Err(OptionError::bad_value("mount option fsname: give a name"));
            }
            ("fsname", Some(value)) => self.fsname = value.into(),
            _ => {
                let wanted = KNOWN.split(", ").find(|known| known.split('=').next() == Some(name));
                let text = wanted.map_or_else(
                    || format!("unknown mount option {option}; known are {KNOWN}"),
                    |wanted| format!("mount option {option}: give {wanted}"),
                );
                return Err(OptionError { text, unknown: wanted.is_none() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_applied_in_order() {
        let options =
            MountOptions::parse("ro,locks=sluice,threads=3,,max_write=1048576,fsname=x=y,rw").expect("valid");
        assert_eq!(options.locks, LockMode::Sluice);
        assert_eq!((options.threads, options.thread_count()), (Some(3), 3));
        assert_eq!((options.max_write, options.fsname.to_str()), (1 << 20, Some("x=y")));
        assert!(!options.read_only);
        assert!(MountOptions::default().thread_count() >= 2);
    }

    #[test]
    fn an_unknown_option_is_answered_with_the_known_ones_in_one_line() {
        let error = MountOptions::parse("ro,turbo").expect_err("there is no such option");
        assert!(error.is_unknown());
        let error = error.to_string();
        assert!(
            error.starts_with("unknown mount option turbo; known are locks=kernel|sluice, lockfile=NAME, ")
        );
        assert!(!error.contains('\n'));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for bad in [
            "threads=0",
            "threads=x",
            "max_write=1",
            "max_write=2000000",
            "locks=none",
            "locks",
            "checks=none",
            "lockfile=a/b",
            "lockfile=..",
            "ro=1",
            "threads",
            "transport=fast",
            "fsname=",
        ] {
            let error = MountOptions::parse(bad).expect_err(bad);
            assert!(!error.is_unknown(), "{bad}");
            let error = error.to_string();
            assert!(error.starts_with("mount option ") && error.contains(": give "), "{error}");
        }
    }
}
