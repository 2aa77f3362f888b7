//! The asking side.

use super::{
    ANSWER_PATIENCE, LOCKS_IN_KERNEL, OK, PATIENCE, abstract_name, connect, is_same_process, pid_namespace,
    socket_file, trusted,
};
use crate::mount::{device_of, reach};
use crate::workspace;
use rustix::fs::{Mode, OFlags};
use rustix::net::SocketAddrUnix;
use sluice_sync::time::Duration;
use sluice_vfs::{Errno, SnapshotInfo, StoreContent, Timestamp, TreeSize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 1 << 30;

/// The locks of the sluicefs mount that holds `dir`, in the form of `/proc/locks`. `None` if no sluicefs server
/// serves them: it is another file system, or the kernel does.
///
/// # Errors
/// When `dir` cannot be reached, or the server does not answer.
pub fn locks(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    ask_about_locks(dir, "locks\n")
}

/// Lock statistics of each file of the sluicefs mount that holds `dir`: a line of JSON each, the most waited for first.
/// `None` as for [`locks`].
///
/// # Errors
/// Errors of [`locks`].
pub fn hot_locks(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    ask_about_locks(dir, "hot\n")
}

fn ask_about_locks(dir: &Path, question: &str) -> io::Result<Option<Vec<u8>>> {
    match ask_at(dir, &format!("{}{question}", workspace::around(dir)?))? {
        Some(answer) if answer == LOCKS_IN_KERNEL.as_bytes() => Ok(None),
        Some(answer) => unwrap(answer).map(Some),
        None => Ok(None),
    }
}

/// The locks that the kernel itself keeps on the file system that holds `dir`, in the form of `/proc/locks`,
/// requests that wait included. Processes that this one may not see show up as the kernel shows them.
///
/// # Errors
/// When `dir` or `/proc/locks` cannot be read.
pub fn kernel_locks(dir: &Path) -> io::Result<Vec<u8>> {
    let device = device_of(dir)?;
    let mut text = std::fs::read("/proc/locks")?;
    keep_lines_of(device, &mut text);
    Ok(text)
}

/// [`locks`], or else [`kernel_locks`].
///
/// # Errors
/// Errors of both.
pub fn all_locks(dir: &Path) -> io::Result<Vec<u8>> {
    match locks(dir)? {
        Some(text) => Ok(text),
        None => kernel_locks(dir),
    }
}

/// The counts of the server of the sluicefs mount that holds `dir`: one line of JSON. `None` if there is no server.
///
/// # Errors
/// Errors of [`locks`].
pub fn stat(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    ask_at(dir, "stat\n")?.map(unwrap).transpose()
}

/// The number of the process that serves the sluicefs mount that holds `dir`, as it sees it itself. `None` if there is no
/// server.
///
/// # Errors
/// Errors of [`locks`].
pub fn server_of(dir: &Path) -> io::Result<Option<u32>> {
    ask_at(dir, "server\n")?.map(process_number).transpose()
}

/// The number of the process that serves the mount with this device number, as it sees it itself. `None` if there is no server.
pub(super) fn server_of_device(device: (u32, u32)) -> io::Result<Option<u32>> {
    ask(device, b"server\n", Some(ANSWER_PATIENCE))?.map(process_number).transpose()
}

fn process_number(answer: Vec<u8>) -> io::Result<u32> {
    let number = String::from_utf8(unwrap(answer)?).unwrap_or_default();
    number.trim().parse().map_err(io::Error::other)
}

/// Whether `server`, which serves the mount `device`, has it mounted in its own mount namespace. False if another process has
/// the name of the device.
pub(super) fn is_mounted(device: (u32, u32), server: &UnixStream) -> bool {
    mounted(device, server).is_some_and(|told| told == b"true")
}

/// Whether the process at the other end of `server` still serves the mount `device`, wherever that is.
pub(super) fn serves(device: (u32, u32), server: &UnixStream) -> bool {
    mounted(device, server).is_some()
}

/// The answer of the process at the other end of `server` to the question whether it sees the mount `device`.
fn mounted(device: (u32, u32), server: &UnixStream) -> Option<Vec<u8>> {
    let stream = ask_and_keep(device, b"mounted\n").ok().flatten()?;
    let answer = Some(stream).filter(|stream| is_same_process(stream, server));
    unwrap(answer_on(answer?, Some(PATIENCE)).ok()?).ok()
}

/// Whether the server of the mount that holds `dir` is in another pid namespace than this process. Such a server
/// reports process numbers of its own namespace.
///
/// # Errors
/// Errors of [`locks`].
pub fn is_elsewhere(dir: &Path) -> io::Result<bool> {
    let answer = ask_at(dir, "namespace\n")?.map(unwrap).transpose()?;
    Ok(answer.is_some_and(|theirs| theirs != pid_namespace().into_bytes()))
}

/// Has the server of the cluster's mount that holds `dir` make the store of a workspace, whose root has this mode, owner and group, and says its
/// number. `None` if there is no server.
///
/// # Errors
/// Errors of [`locks`]; why there is none.
pub fn new_workspace(dir: &Path, [mode, uid, gid]: [u32; 3]) -> io::Result<Option<u32>> {
    let answer = order_of(device_of(dir)?, &format!("new workspace {mode} {uid} {gid}\n"))?;
    answer.map(|answer| String::from_utf8_lossy(&answer).trim().parse().map_err(io::Error::other)).transpose()
}

/// Asks the server of the mount that holds `dir` whether there may be workspaces. `None` if there is no server.
///
/// # Errors
/// Errors of [`locks`]; why there are none.
pub fn check_workspaces(dir: &Path) -> io::Result<Option<()>> {
    Ok(order_of(device_of(dir)?, "have workspaces\n")?.map(drop))
}

/// Has the server of the cluster's mount that holds `dir` see to it that the node of the cluster with the number `node` owns a workspace. `None` if
/// there is no server.
///
/// # Errors
/// Errors of [`locks`]; why it does not.
pub fn move_workspace(dir: &Path, workspace: u32, node: u64) -> io::Result<Option<()>> {
    Ok(order_of(device_of(dir)?, &format!("move workspace {workspace} {node}\n"))?.map(drop))
}

/// The files of the sluicefs mount that holds `dir` which the server's own process has open as a library: a line for
/// each descriptor, of process, user, number, inode, mode, flags (both octal), position and path, with blanks between.
/// The kernel knows the files that programs have open. `None` if there is no server.
///
/// # Errors
/// Errors of [`locks`].
pub fn library_files(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    ask_at(dir, "files\n")?.map(unwrap).transpose()
}

/// Copies the file `from`, or the directory with all that is below it, to the new name `to` in the same sluicefs mount; see
/// [`InodeRef::clone_tree`](sluice_vfs::InodeRef::clone_tree). Waits as long as that takes. `None` if there is no server.
///
/// # Errors
/// Errors of [`locks`]; what `clone_tree` says, as a line.
pub fn clone_tree(from: &Path, to: &Path) -> io::Result<Option<()>> {
    let exists = || io::Error::from_raw_os_error(Errno::EEXIST.raw());
    let name = to.file_name().filter(|_| to.symlink_metadata().is_err()).ok_or_else(exists)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // While they are open, the server knows them by these numbers.
    let pin = |path: &Path, flags| {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        io::Result::Ok((file, stat))
    };
    let (_from, original) = pin(from, OFlags::NOFOLLOW)?;
    let (_parent, dir) = pin(parent, OFlags::DIRECTORY)?;
    if original.st_dev != dir.st_dev {
        return Err(io::Error::new(ErrorKind::CrossesDevices, "both must be in one mount"));
    }
    let device = (rustix::fs::major(dir.st_dev), rustix::fs::minor(dir.st_dev));
    let ((number, original), (other, dir)) =
        (workspace::split(original.st_ino), workspace::split(dir.st_ino));
    if number != other {
        return Err(io::Error::new(ErrorKind::CrossesDevices, "both must be in one workspace"));
    }
    order(device, &format!("{}clone\n{original} {dir} ", workspace::named(number)), name)
}

/// Takes a snapshot of the sluicefs mount that holds `dir`; see
/// [`Superblock::take_snapshot`](sluice_vfs::Superblock::take_snapshot). `None` if there is no server.
///
/// # Errors
/// Errors of [`clone_tree`].
pub fn take_snapshot(dir: &Path, name: &OsStr) -> io::Result<Option<()>> {
    order(device_of(dir)?, &format!("{}take-snapshot\n", workspace::around(dir)?), name)
}

/// Removes the snapshot `name` of the sluicefs mount that holds `dir`. `None` if there is no server.
///
/// # Errors
/// Errors of [`clone_tree`].
pub fn drop_snapshot(dir: &Path, name: &OsStr) -> io::Result<Option<()>> {
    order(device_of(dir)?, &format!("{}drop-snapshot\n", workspace::around(dir)?), name)
}

/// Brings `path`, from the root of the sluicefs mount that holds `dir`, back to what the snapshot `name` has there; see
/// [`Superblock::restore_snapshot`](sluice_vfs::Superblock::restore_snapshot). `None` if there is no server.
///
/// # Errors
/// Errors of [`clone_tree`].
pub fn restore_snapshot(dir: &Path, name: &OsStr, path: &Path) -> io::Result<Option<()>> {
    let text = [name.as_bytes(), b"/", path.as_os_str().as_bytes()].concat();
    order(
        device_of(dir)?,
        &format!("{}restore-snapshot\n", workspace::around(dir)?),
        OsStr::from_bytes(&text),
    )
}

/// The snapshots of the sluicefs mount that holds `dir`; see
/// [`Superblock::list_snapshots`](sluice_vfs::Superblock::list_snapshots). Waits as long as that takes. `None` if there is no server.
///
/// # Errors
/// Errors of [`locks`].
pub fn snapshots(dir: &Path) -> io::Result<Option<Vec<SnapshotInfo>>> {
    let Some(answer) = order_at(dir, "snapshots\n")? else { return Ok(None) };
    let parts: Vec<&[u8]> = answer.split(|byte| *byte == 0).collect();
    let (snapshots, _) = parts.as_chunks();
    let read = |[name, created, shared, private]: &[&[u8]; 4]| {
        let number = |digits: &[u8]| str::from_utf8(digits).ok()?.parse::<u64>().ok();
        let size = TreeSize { shared_bytes: number(shared)?, private_bytes: number(private)? };
        let second = str::from_utf8(created).ok()?.parse().ok();
        Some(SnapshotInfo {
            name: name.to_vec(),
            created: second.map(|sec| Timestamp { sec, nsec: 0 }),
            size,
        })
    };
    let listed: Option<Vec<_>> = snapshots.iter().map(read).collect();
    listed
        .map(Some)
        .ok_or_else(|| io::Error::other("the server of the mount said what is no list of snapshots"))
}

/// Has the server of the mount `device` do what `order` and `name` say, however long that takes.
fn order(device: (u32, u32), order: &str, name: &OsStr) -> io::Result<Option<()>> {
    let mut order = format!("{order}{}\n", name.len()).into_bytes();
    order.extend_from_slice(name.as_bytes());
    Ok(ask(device, &order, None)?.map(unwrap).transpose()?.map(drop))
}

/// The answer to `order` of the server of the mount that holds `dir`, without a time limit. `None` if the mount has no
/// server.
pub(super) fn order_at(dir: &Path, order: &str) -> io::Result<Option<Vec<u8>>> {
    order_of(device_of(dir)?, &format!("{}{order}", workspace::around(dir)?))
}

/// The answer to `order` of the server of the mount with this device number; else like [`order_at`].
pub(super) fn order_of(device: (u32, u32), order: &str) -> io::Result<Option<Vec<u8>>> {
    ask(device, order.as_bytes(), None)?.map(unwrap).transpose()
}

/// The statistics of the mount with this device number; its files are not touched, so that a server may ask itself.
///
/// # Errors
/// When the server does not answer.
pub fn stat_of_device(device: (u32, u32)) -> io::Result<Option<Vec<u8>>> {
    ask(device, b"stat\n", Some(ANSWER_PATIENCE))?.map(unwrap).transpose()
}

/// The content of the store of the mount with this device number, and the bytes of its data that are shared; see
/// [`Superblock::content`](sluice_vfs::Superblock::content). `None` if there is no server.
///
/// # Errors
/// Errors of [`stat_of_device`]; when its mount has no store.
pub fn content_of_device(device: (u32, u32)) -> io::Result<Option<(StoreContent, u64)>> {
    let Some(answer) = ask(device, b"content\n", Some(ANSWER_PATIENCE))?.map(unwrap).transpose()? else {
        return Ok(None);
    };
    let numbers = String::from_utf8(answer).unwrap_or_default();
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
    match numbers[..] {
        [log_used, batches, data_bytes, shared] => {
            Ok(Some((StoreContent { log_used, batches, data_bytes }, shared)))
        }
        _ => Err(io::Error::other("the server of the mount said what is no content of a store")),
    }
}

/// Asks the server of the mount that holds `dir`. A dead mount is an error.
fn ask_at(dir: &Path, question: &str) -> io::Result<Option<Vec<u8>>> {
    let answer = ask(device_of(dir)?, question.as_bytes(), Some(ANSWER_PATIENCE))?;
    if answer.is_none() {
        reach(dir)?;
    }
    Ok(answer)
}

/// The whole answer of the server of the mount `device`, for which it has `patience`. `None` if nobody listens.
fn ask(device: (u32, u32), question: &[u8], patience: Option<Duration>) -> io::Result<Option<Vec<u8>>> {
    let stream = ask_and_keep(device, question)?;
    stream.map(|stream| answer_on(stream, patience)).transpose()
}

pub(super) fn answer_on(stream: UnixStream, patience: Option<Duration>) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(patience)?;
    let mut answer = Vec::new();
    match stream.take(ANSWER_MAX).read_to_end(&mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Err(io::Error::new(ErrorKind::TimedOut, "the server of this mount has not answered in time"))
        }
        // The server ended with the question unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Vec::new()),
        read => read.map(|_| answer),
    }
}

/// The connection to the server of the mount `device`, which was asked. `None` if nobody listens.
pub(super) fn ask_and_keep(device: (u32, u32), question: &[u8]) -> io::Result<Option<UnixStream>> {
    // The file first: another user cannot have made it, as an abstract name.
    let by_file = socket_file::connect(device)?;
    let Some(mut stream) = by_file.map_or_else(|| connect_by_name(device), |stream| Ok(Some(stream)))? else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
    stream.write_all(question)?;
    Ok(Some(stream))
}

/// Connects to the abstract name of the mount `device`. None if nobody listens.
fn connect_by_name(device: (u32, u32)) -> io::Result<Option<UnixStream>> {
    let address = SocketAddrUnix::new_abstract_name(abstract_name(device).as_bytes())?;
    match connect(&address, ANSWER_PATIENCE) {
        Ok(stream) => trusted(stream).map(Some),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error),
    }
}

/// The text of the error of a server that ended with a question.
const ENDED: &str = "the server of the mount ended before it answered: mount again, and see whether the order was carried out";

/// The answer behind the first line, or that line as an error.
pub(super) fn unwrap(answer: Vec<u8>) -> io::Result<Vec<u8>> {
    if answer.is_empty() {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, ENDED));
    }
    match answer.strip_prefix(OK.as_bytes()) {
        Some(rest) => Ok(rest.to_vec()),
        None => Err(io::Error::other(String::from_utf8_lossy(&answer).trim().to_string())),
    }
}

/// Removes the lines of other devices. A line has a field `major:minor:inode`, the first two in hexadecimal.
///
/// The kernel gives `/proc/locks` in pieces, and repeats a lock, with its waiters, if one before it was taken in between. A process has
/// a POSIX lock on a range once, so the repetition is removed, too.
fn keep_lines_of(device: (u32, u32), text: &mut Vec<u8>) {
    let prefix = format!("{:02x}:{:02x}:", device.0, device.1);
    let is_of_device =
        |line: &[u8]| line.split(|&byte| byte == b' ').any(|field| field.starts_with(prefix.as_bytes()));
    let (mut seen, mut is_repeated) = (BTreeSet::new(), false);
    let mut is_kept = |line: &[u8]| {
        // Behind the number, which a repetition does not share.
        let lock = line.splitn(2, |&byte| byte == b' ').nth(1).unwrap_or_default();
        if !lock.starts_with(b"->") {
            is_repeated = lock.starts_with(b"POSIX") && !seen.insert(lock.to_vec());
        }
        !is_repeated
    };
    let lines = text.split_inclusive(|&byte| byte == b'\n').filter(|line| is_of_device(line));
    *text = lines.filter(|line| is_kept(line)).flatten().copied().collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ended_before_its_answer_is_an_error_with_a_text() {
        let line = unwrap(Vec::new()).expect_err("there is none").to_string();
        assert!(line.contains("the server of the mount ended before it answered"), "{line}");
        let (one, other) = UnixStream::pair().expect("memory");
        // Its question is unread when it ends.
        (&one).write_all(b"stat\n").expect("room");
        drop(other);
        assert_eq!(answer_on(one, None).expect("that is the end"), b"");
    }

    #[test]
    fn lines_of_other_devices_are_left_out_and_waiters_kept() {
        let mut text = b"1: POSIX  ADVISORY  WRITE 12 00:2f:7 0 EOF\n\
            1: -> POSIX  ADVISORY  WRITE 13 00:2f:7 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 14 00:2e:7 0 EOF\n\
            3: POSIX  ADVISORY  READ 15 100:2f:7 0 EOF\n"
            .to_vec();
        keep_lines_of((0, 0x2f), &mut text);
        let kept = String::from_utf8(text).expect("ASCII");
        assert_eq!(kept.lines().count(), 2, "{kept}");
    }

    #[test]
    fn a_lock_that_the_kernel_tells_twice_is_shown_once_and_two_of_one_process_are_two() {
        let mut text = b"1: POSIX  ADVISORY  WRITE 12 00:2f:7 100 199\n\
            1: -> POSIX  ADVISORY  WRITE 13 00:2f:7 100 199\n\
            1: -> POSIX  ADVISORY  WRITE 13 00:2f:7 100 199\n\
            2: POSIX  ADVISORY  WRITE 12 00:2f:7 100 199\n\
            2: -> POSIX  ADVISORY  WRITE 13 00:2f:7 100 199\n\
            3: FLOCK  ADVISORY  READ 14 00:2f:7 0 EOF\n\
            4: FLOCK  ADVISORY  READ 14 00:2f:7 0 EOF\n"
            .to_vec();
        keep_lines_of((0, 0x2f), &mut text);
        let kept = String::from_utf8(text).expect("ASCII");
        assert!(kept.lines().count() == 5 && !kept.contains("2:"), "{kept}");
        assert!(kept.contains("-> POSIX"));
    }

    #[test]
    fn a_server_that_does_not_answer_is_named_in_words() {
        let (stream, _server) = UnixStream::pair().expect("descriptors");
        let late = answer_on(stream, Some(Duration::from_millis(1))).expect_err("nobody answers");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert_eq!(late.to_string(), "the server of this mount has not answered in time");
    }

    #[test]
    fn a_file_system_without_a_server_has_no_answer() {
        assert!(locks(Path::new("/proc")).expect("proc can be reached").is_none());
        assert!(all_locks(Path::new("/proc")).expect("proc can be reached").is_empty());
        assert!(locks(Path::new("/no/such/place")).is_err());
    }
}
