//! Bind mounts: directories of volumes, mounted where programs on a node find them.

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use sluice_fuse::{MountEntry, is_dead, mount_table};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The options of a bind mount.
const OPTIONS: [(&str, MountFlags); 7] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
];

/// The flag of a mount option; none if a bind mount has no such option.
pub(super) fn flag_of(option: &str) -> Option<MountFlags> {
    OPTIONS.iter().find(|(name, _)| *name == option).map(|(_, flag)| *flag)
}

/// The flags of a mount that stands.
fn flags_of(entry: &MountEntry) -> MountFlags {
    entry.options.split(',').filter_map(flag_of).collect()
}

/// `path` without links, also where a dead mount stands on it: its last part is not looked at.
pub(super) fn place_of(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Whether the directory `path` is the directory `volume`: no directory has two names, so it is mounted there then. False if there is no
/// `path`.
///
/// # Errors
/// A dead mount on `path`, and others of the system.
pub(super) fn shows(path: &Path, volume: &Path) -> io::Result<bool> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    let volume = fs::metadata(volume)?;
    Ok((found.dev(), found.ino()) == (volume.dev(), volume.ino()))
}

/// Whether nothing can be written below `path`.
pub(super) fn is_read_only(path: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statvfs(path)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// The mounts on `path`, the lowest first.
pub(super) fn mounts_on(path: &Path) -> io::Result<Vec<MountEntry>> {
    let place = match place_of(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        place => place?,
    };
    Ok(mount_table()?.into_iter().filter(|entry| entry.mountpoint == place).collect())
}

/// Mounts the directory `from` on the directory `on`, with `flags` beside those that `from` has.
pub(super) fn bind(from: &Path, on: &Path, flags: MountFlags) -> io::Result<()> {
    mount_bind(from, on)?;
    let changed = || {
        let own = mounts_on(on)?.last().map_or(MountFlags::empty(), flags_of);
        match own.contains(flags) {
            true => Ok(()),
            false => Ok(mount_remount(on, MountFlags::BIND | own | flags, "")?),
        }
    };
    changed().inspect_err(|_: &io::Error| {
        // A program must not find a mount that it may write to where it should not. The first error is the one to tell.
        let _ = detach(on);
    })
}

/// Unmounts all that is mounted on `path`. A dead mount goes also while programs use it: they can finish nothing there.
///
/// # Errors
/// `ResourceBusy`: a program uses what is mounted there.
pub(super) fn unbind(path: &Path) -> io::Result<()> {
    for entry in mounts_on(path)?.iter().rev() {
        match unmount(&entry.mountpoint, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) if is_dead_mount(&entry.mountpoint) => {
                detach(&entry.mountpoint)?;
            }
            // Somebody else unmounted it.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Unmounts what is uppermost on `path`, whoever uses it.
fn detach(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // Somebody else unmounted it.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the server of the mount on `path` has ended.
pub(super) fn is_dead_mount(path: &Path) -> bool {
    rustix::fs::statfs(path).map_err(io::Error::from).is_err_and(|error| is_dead(&error))
}

/// The mounts of the directory `volume`, wherever they are.
pub(super) fn mounts_of(volume: &Path) -> io::Result<Vec<MountEntry>> {
    let table = mount_table()?;
    let Some((device, root)) = place_in_mount(&table, volume)? else { return Ok(Vec::new()) };
    Ok(table.into_iter().filter(|entry| entry.device == device && entry.root == root).collect())
}

/// The device that holds the directory `dir`, and the path of `dir` from its root.
fn place_in_mount(table: &[MountEntry], dir: &Path) -> io::Result<Option<((u32, u32), PathBuf)>> {
    let dir = dir.canonicalize()?;
    let above = table.iter().rev().filter(|entry| dir.starts_with(&entry.mountpoint));
    let nearest = above.max_by_key(|entry| entry.mountpoint.as_os_str().len());
    Ok(nearest.map(|entry| {
        let rest = dir.strip_prefix(&entry.mountpoint).unwrap_or(Path::new(""));
        (entry.device, entry.root.components().chain(rest.components()).collect())
    }))
}

/// Takes dead mounts of the file system `source` away, and mounts anew on their places what they showed, from the file system that is now
/// mounted on `mount`. Returns how many places have it back. Programs that were in a dead mount stay in it.
pub(super) fn renew(source: &std::ffi::OsStr, mount: &Path) -> io::Result<usize> {
    let table = mount_table()?;
    let is_stale = |entry: &&MountEntry| {
        entry.is_sluicefs() && entry.source == source && is_dead_mount(&entry.mountpoint)
    };
    let stale: Vec<&MountEntry> = table.iter().filter(is_stale).collect();
    for entry in stale.iter().rev() {
        detach(&entry.mountpoint)?;
    }
    let Some((_, top)) = place_in_mount(&table, mount)? else { return Ok(0) };
    let mut renewed = 0;
    for entry in stale {
        // A mount of a directory elsewhere shows no volume.
        let Ok(rest) = entry.root.strip_prefix(&top) else { continue };
        let from = mount.join(rest);
        if rest == Path::new("") || !from.is_dir() {
            continue;
        }
        match bind(&from, &entry.mountpoint, flags_of(entry)) {
            Ok(()) => renewed += 1,
            // Its directory is gone, and with it who used the mount.
            Err(error) => log::warn!("{}: not mounted again: {error}", entry.mountpoint.display()),
        }
    }
    Ok(renewed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_bind_mounts_have_flags_and_others_have_none() {
        assert_eq!(flag_of("ro"), Some(MountFlags::RDONLY));
        assert_eq!(flag_of("discard"), None);
    }

    #[test]
    fn a_directory_is_shown_by_its_own_path_alone() {
        let [here, other] = [Path::new("/proc"), Path::new("/proc/self/")];
        assert!(shows(here, here).expect("it is there"));
        assert!(!shows(here, other).expect("both are there"));
        assert!(!shows(Path::new("/no/such/place"), here).expect("it is missing"));
        assert_eq!(place_of(Path::new("/proc/../none")).expect("its parent is there"), Path::new("/none"));
    }
}
