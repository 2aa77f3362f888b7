//! The kernel's table of mounts, `/proc/self/mountinfo`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type in `/proc/mounts` is `fuse.` and this, in the form of `mount -t`.
pub(crate) const SUBTYPE: &str = "sluice";

/// A mount that this process sees: a line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountEntry {
    /// The mount's own number.
    pub id: u64,
    /// Device number (`st_dev`) as major and minor.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted, from its root: for a bind mount often another one than `/`.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The mount's own options, such as `rw,nosuid`.
    pub options: String,
    /// File system type, such as `fuse.sluice`.
    pub kind: String,
    /// The source, as named by the server of the mount.
    pub source: OsString,
    /// The user who made it, of a FUSE mount.
    pub user: Option<u32>,
}

impl MountEntry {
    /// Whether the file system is a sluicefs.
    pub fn is_sluicefs(&self) -> bool {
        self.kind.strip_prefix("fuse.") == Some(SUBTYPE)
    }
}

/// All mounts that this process sees, in the order in which they were made.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// All mounts that `process` sees.
pub(crate) fn read_of(process: u32) -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read(format!("/proc/{process}/mountinfo"))?))
}

/// Whether a process that this one may look at sees a mount of `device`: in the mount namespace of a container, for example.
pub(crate) fn is_seen_by_others(device: (u32, u32)) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut namespaces = HashSet::new();
    // One process of each namespace.
    let mut is_new = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|space| namespaces.insert(space))
    };
    pids.filter(|pid| is_new(pid))
        .any(|pid| read_of(pid).is_ok_and(|mounts| mounts.iter().any(|one| one.device == device)))
}

/// The device of the uppermost mount on `mountpoint`, if there is one.
pub(crate) fn device_at(mountpoint: &Path) -> io::Result<Option<(u32, u32)>> {
    Ok(read()?.iter().rev().find(|entry| entry.mountpoint == mountpoint).map(|entry| entry.device))
}

/// The device of mount `id` as `thread` sees it, if it does.
pub(crate) fn device_of(thread: u32, id: u64) -> io::Result<Option<(u32, u32)>> {
    Ok(read_of(thread)?.iter().find(|entry| entry.id == id).map(|entry| entry.device))
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// Fields: number, parent, major:minor, root, mountpoint, options, any number of tags, "-", type, source, options of the file system.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = str::from_utf8(fields.nth(1)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = unescape(fields.next()?);
    let mountpoint = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    fields.find(|&field| field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    let user = fields.next().and_then(|options| {
        let mut options = options.split(|&byte| byte == b',');
        options.find_map(|option| str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok())
    });
    Some(MountEntry {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: PathBuf::from(OsString::from_vec(root)),
        options,
        mountpoint: PathBuf::from(OsString::from_vec(mountpoint)),
        kind,
        source,
        user,
    })
}

/// Blanks and backslashes are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail
            .first_chunk::<3>()
            .filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(digits) = code {
            plain.push(
                digits.iter().fold(0_u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
            );
            rest = &tail[3..];
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_device_and_mountpoint() {
        let table = b"22 1 0:21 / /proc rw - proc proc rw\n90 22 0:47 /d /a\\040b\\134c ro,nosuid - fuse.sluice sluicefs rw,user_id=7,group_id=8\nbad\n";
        let entries = parse(table);
        assert_eq!(entries.len(), 2);
        let mountpoint = PathBuf::from("/a b\\c");
        assert_eq!(
            entries[1],
            MountEntry {
                id: 90,
                device: (0, 47),
                root: "/d".into(),
                options: "ro,nosuid".into(),
                mountpoint,
                kind: "fuse.sluice".into(),
                source: "sluicefs".into(),
                user: Some(7),
            }
        );
    }

    #[test]
    fn this_process_sees_its_proc() {
        assert!(device_at(Path::new("/proc")).expect("proc is mounted").is_some());
        assert_eq!(device_at(Path::new("/no/such/place")).expect("proc is mounted"), None);
    }
}
