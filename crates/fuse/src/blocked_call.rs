//! Blocked call: what a client's thread is waiting for, and what it has open, as `/proc` tells.
//!
//! # Theory
//! The kernel asks for a POSIX lock and for an OFD lock with the same message, and it does not say through which descriptor
//! a process locks. Both matter only where a request must wait, or where the process closed a descriptor of the file
//! meanwhile. The thread is then blocked in its `fcntl` until it is answered, so that its call can be read.
//!
//! # Limits
//! `/proc` may be missing or refuse: a mount of an ordinary user cannot read the calls of programs that are not its children
//! where the kernel's Yama restricts tracing. A request of which nothing is known counts as a POSIX one.

use crate::handler::pause;
use crate::mountinfo;
use std::fs;
use std::io::{self, ErrorKind};

/// `fcntl` commands: F_OFD_SETLK and F_OFD_SETLKW.
const OFD: [u64; 2] = [37, 38];
/// How often to look at a thread that is still about to block.
const LOOKS: u32 = 10_000;

/// A file of the mount.
#[derive(Clone, Copy)]
pub(crate) struct FileOfMount {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// True if `thread` is blocked in an `fcntl` that asks for an OFD lock.
pub(crate) fn asks_for_ofd(thread: u32) -> bool {
    arguments(thread).is_some_and(|[_, command]| OFD.contains(&command))
}

/// False if the descriptor that `thread` is blocked on leads to another file than `file` or nowhere. If that cannot be
/// found out: whether any descriptor of its process leads there.
pub(crate) fn still_has_open(thread: u32, file: FileOfMount) -> bool {
    let opens = |fd: &str| is_open(thread, fd, file).unwrap_or_else(|error| !is_gone(&error));
    if let Some([fd, _]) = arguments(thread) {
        // A descriptor is an int; the registers' upper halves do not count.
        return opens(&(fd as u32).to_string());
    }
    match fs::read_dir(format!("/proc/{thread}/fdinfo")) {
        Ok(mut entries) => {
            entries.any(|entry| entry.is_ok_and(|entry| opens(&entry.file_name().to_string_lossy())))
        }
        Err(error) => !is_gone(&error),
    }
}

/// The first two arguments of the system call that `thread` is blocked in.
fn arguments(thread: u32) -> Option<[u64; 2]> {
    let mut looks = 0;
    while looks < LOOKS {
        let text = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if text.trim_end() != "running" {
            return parse_call(&text);
        }
        pause(&mut looks);
    }
    None
}

/// Fields: number of the call, its six arguments in hexadecimal, stack pointer, program counter.
fn parse_call(text: &str) -> Option<[u64; 2]> {
    let mut fields = text.split_ascii_whitespace();
    let _call: u32 = fields.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    Some([argument()?, argument()?])
}

/// Whether descriptor `fd` of `thread` leads to `file`.
fn is_open(thread: u32, fd: &str, file: FileOfMount) -> io::Result<bool> {
    let text = fs::read_to_string(format!("/proc/{thread}/fdinfo/{fd}"))?;
    let number =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    if number("ino:").is_some_and(|ino| ino != file.ino) {
        return Ok(false);
    }
    let device = number("mnt_id:").and_then(|id| mountinfo::device_of(thread, id).ok()?);
    Ok(device.is_none_or(|(major, minor)| rustix::fs::makedev(major, minor) == file.dev))
}

/// There is no such thread or descriptor.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_call_has_its_descriptor_and_command_first() {
        assert_eq!(parse_call("72 0x4 0x26 0x7ffc 0x0 0x0 0x0 0x7ffd 0x7f00\n"), Some([4, 0x26]));
        assert_eq!(parse_call("-1 0x7ffd 0x7f00\n"), None);
        assert_eq!(parse_call("72 0x4"), None);
    }

    #[test]
    fn a_descriptor_leads_to_its_file_and_to_no_other() {
        let (file, me) = (fs::File::open("/proc/self/stat").expect("proc is mounted"), std::process::id());
        let stat = file.metadata().expect("it is open");
        let of = FileOfMount { dev: stat.dev(), ino: stat.ino() };
        let fd = file.as_raw_fd().to_string();
        assert!(is_open(me, &fd, of).expect("it is open"));
        assert!(!is_open(me, &fd, FileOfMount { ino: of.ino + 1, ..of }).expect("it is open"));
        assert!(!is_open(me, &fd, FileOfMount { dev: of.dev + 1, ..of }).expect("it is open"));
        assert!(is_gone(&is_open(me, "1000000", of).expect_err("there are not so many")));
        assert!(is_gone(&is_open(0, &fd, of).expect_err("no thread is called so")));
    }

    #[test]
    fn nobody_has_a_file_open_who_is_not_there() {
        assert!(!still_has_open(0, FileOfMount { dev: 0, ino: 1 }) && !asks_for_ofd(0));
    }
}
