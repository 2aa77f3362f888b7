//! Remount: changing the flags of a mount that is there, as `mount -o remount` asks.
//!
//! # Theory
//! The kernel keeps these flags by itself, and asks nobody: a mount that is remounted read-only is that to every program.
//! System calls set all flags at once, so those that are not named are first read.

use crate::MountError;
use crate::mount::place_of;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::path::Path;

/// Access times: at most one of these is set.
const ATIME: MountFlags = MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

/// Each option with the flags that it clears and sets.
const OPTIONS: [(&str, MountFlags, MountFlags); 14] = [
    ("ro", MountFlags::empty(), MountFlags::RDONLY),
    ("rw", MountFlags::RDONLY, MountFlags::empty()),
    ("nosuid", MountFlags::empty(), MountFlags::NOSUID),
    ("suid", MountFlags::NOSUID, MountFlags::empty()),
    ("nodev", MountFlags::empty(), MountFlags::NODEV),
    ("dev", MountFlags::NODEV, MountFlags::empty()),
    ("noexec", MountFlags::empty(), MountFlags::NOEXEC),
    ("exec", MountFlags::NOEXEC, MountFlags::empty()),
    ("noatime", ATIME, MountFlags::NOATIME),
    ("atime", ATIME, MountFlags::RELATIME),
    ("relatime", ATIME, MountFlags::RELATIME),
    ("strictatime", ATIME, MountFlags::STRICTATIME),
    ("nodiratime", MountFlags::empty(), MountFlags::NODIRATIME),
    ("diratime", MountFlags::NODIRATIME, MountFlags::empty()),
];

/// Further options of a FUSE mount that `/proc/mounts` shows and `mount -o remount` hands back.
const OF_KERNEL: [&str; 8] =
    ["remount", "default_permissions", "allow_other", "fd", "rootmode", "user_id", "group_id", "max_read"];

/// Whether `option` is one that only a mount that is there can have: `remount`, and what the kernel shows.
pub fn is_of_remount(option: &str) -> bool {
    OF_KERNEL.contains(&option.split('=').next().unwrap_or(option))
}

/// Changes the flags of the sluicefs that is mounted at `dir` as `options` say, a list separated by commas of `ro`, `rw`,
/// `nosuid`, `noatime` and their like; flags that it does not name stay. Returns the options that stay as they were, because
/// they are those of the file system and its server.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::OpenForWriting`], [`MountError::Denied`], or as the operating system says.
pub fn remount_at(dir: &Path, options: &str) -> Result<Vec<String>, MountError> {
    let (dir, _) = place_of(dir)?;
    let present = rustix::fs::statvfs(&dir).map_err(|errno| MountError::of_place(&dir, errno.into()))?;
    let mut flags = flags_of(present.f_flag);
    let mut unchanged = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match OPTIONS.iter().find(|(name, ..)| *name == option) {
            Some((_, clears, sets)) => flags = flags.difference(*clears) | *sets,
            None if is_of_remount(option) => {}
            None => unchanged.push(option.to_owned()),
        }
    }
    rustix::mount::mount_remount(&dir, flags, "").map_err(|errno| match errno {
        Errno::BUSY => MountError::OpenForWriting(dir.clone()),
        Errno::PERM | Errno::ACCESS => MountError::Denied(dir.clone()),
        errno => MountError::System("remount", errno.into()),
    })?;
    Ok(unchanged)
}

/// The flags of a mount that `statvfs` shows.
fn flags_of(shown: StatVfsMountFlags) -> MountFlags {
    let same = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let flags: MountFlags =
        same.iter().filter(|(there, _)| shown.contains(*there)).map(|(_, flag)| *flag).collect();
    // `/proc/mounts` shows no flag for strictatime.
    if flags.intersects(ATIME) { flags } else { flags | MountFlags::STRICTATIME }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_that_is_shown_is_kept() {
        let shown = StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOSUID | StatVfsMountFlags::RELATIME;
        assert_eq!(flags_of(shown), MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME);
        assert_eq!(flags_of(StatVfsMountFlags::empty()), MountFlags::STRICTATIME);
    }
}
