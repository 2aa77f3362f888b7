//! Caller: the user on whose behalf a request is made.
//!
//! # Theory
//! A kernel that can map the users of a mount to others (idmapped mounts) tells the user only of requests that make a
//! file, mapped already. For all other requests, which the kernel has checked, it passes only the process number. It
//! never tells the supplementary groups.

use crate::abi::InHeader;
use sluice_vfs::Cred;

/// In the place of a user: the kernel does not tell.
pub const NOT_TOLD: u32 = u32::MAX;

/// Whether the superuser makes the request. To be asked only where it matters: it may mean to read a file of `/proc`.
pub(super) fn is_superuser(header: &InHeader) -> bool {
    match header.uid {
        NOT_TOLD => of_process(header.pid).is_some_and(|cred| cred.uid == 0),
        uid => uid == 0,
    }
}

/// User and groups of the process that makes the request. None when the process has ended, or is in an invisible pid
/// namespace.
pub(super) fn cred(header: &InHeader) -> Option<Cred> {
    of_process(header.pid)
}

/// The user and group in whose name a process uses files are the last of four in its status.
fn of_process(pid: u32) -> Option<Cred> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let (uid, gid) = (*numbers("Uid:")?.get(3)?, *numbers("Gid:")?.get(3)?);
    Some(Cred::with_groups(uid, gid, &numbers("Groups:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_process_is_found_and_of_none_is_not() {
        let cred = of_process(std::process::id()).expect("this process is there");
        assert_eq!(cred.uid, rustix::process::geteuid().as_raw());
        assert_eq!(cred.gid, rustix::process::getegid().as_raw());
        assert_eq!(of_process(0), None);
    }
}
