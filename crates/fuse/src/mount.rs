//! Mounting and unmounting: by system call for root, through `fusermount3` for others.
//!
//! `fusermount3` is installed set-user-ID. It mounts on behalf of its caller and hands the open `/dev/fuse`
//! back over a Unix socket, whose number it finds in the environment variable `_FUSE_COMMFD`. The socket is
//! given to it as standard input, so that no descriptor needs to leak into other children.

use crate::mountinfo::{self, SUBTYPE};
use crate::{CheckMode, MountError, MountOptions, is_dead};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use sluice_sync::time::Duration;
use sluice_sync::{mpsc, thread};
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long a mount that is in use may take to say that it is dead: that is known at once.
const REACH_MAX: Duration = Duration::from_millis(500);
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// How a mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// Nobody used it.
    Unmounted,
    /// Files were in use, and it was taken out of the tree all the same. They are cut off when its server ends.
    Detached,
}

/// The absolute path of `dir`, if one may mount on it.
pub fn mountpoint(dir: &Path) -> Result<PathBuf, MountError> {
    let unreachable = |error: io::Error| MountError::of_place(dir, error);
    let path = dir.canonicalize().map_err(unreachable)?;
    let metadata = path.metadata().map_err(unreachable)?;
    reach(&path).map_err(unreachable)?;
    match () {
        () if !metadata.is_dir() => Err(MountError::NotADirectory(path)),
        () if source_at(&path).is_some() => Err(MountError::Mounted(path)),
        () => Ok(path),
    }
}

/// Mounts on `dir`, an absolute path. Returns the device to serve and the number (`st_dev`) of the mount.
pub fn mount(dir: &Path, options: &MountOptions) -> Result<(OwnedFd, (u32, u32)), MountError> {
    let device = if is_root() { mount_directly(dir, options) } else { mount_with_helper(dir, options) }?;
    let number =
        mountinfo::device_at(dir).and_then(|found| found.ok_or_else(|| io::ErrorKind::NotFound.into()));
    match number {
        Ok(number) => Ok((device, number)),
        Err(error) => {
            // The first error is the one to tell.
            let _ = detach(dir, true);
            Err(MountError::System("find the new mount in the table of mounts", error))
        }
    }
}

/// Asks the file system that holds `path`, which must answer by itself: names and attributes the kernel may have in its
/// cache also when the mount is dead.
pub(crate) fn reach(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::statfs(path).map(drop)?)
}

/// Asks the file system, as [`reach`] does, but returns `Ok` if its server does not answer soon.
fn reach_soon(path: &Path) -> io::Result<()> {
    let (tell, told) = mpsc::channel();
    let place = path.to_owned();
    // A thread that waits for a server that hangs is left behind.
    thread::Builder::new().name("sluice-reach".into()).spawn(move || _ = tell.send(reach(&place)))?;
    told.recv_timeout(REACH_MAX).unwrap_or(Ok(()))
}

/// The device number of the file system that holds `path`.
pub(crate) fn device_of(path: &Path) -> io::Result<(u32, u32)> {
    // The kernel's cached attributes suffice: a node of a cluster may have no server to ask.
    match rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) {
        Ok(found) => Ok((found.stx_dev_major, found.stx_dev_minor)),
        Err(rustix::io::Errno::NOSYS) => {
            let dev = path.metadata()?.dev();
            Ok((rustix::fs::major(dev), rustix::fs::minor(dev)))
        }
        Err(error) => Err(error.into()),
    }
}

/// The treatment of the users of a mount that is unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// They are served on: a mount that is in use stays mounted.
    Keep,
    /// They are served until they have closed what they use; the mount is out of the tree at once.
    LetFinish,
    /// Their calls fail (`ENOTCONN`), and so do those that wait for a server that does not answer (`ECONNABORTED`).
    Fail,
}

/// Unmounts the sluicefs that is mounted at `dir`, whichever process serves it, also when that has died.
/// A dead mount is unmounted in any case, and says so if it was in use: its users can finish nothing there.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::OfAnotherUser`], [`MountError::Busy`], [`MountError::HoldsMount`], or as the operating system says.
pub fn unmount_at(dir: &Path, users: Users) -> Result<Ended, MountError> {
    let (dir, device) = place_of(dir)?;
    let own = rustix::process::getuid().as_raw();
    if own != 0
        && let Some(user) = user_of(device).filter(|user| *user != own)
    {
        return Err(MountError::OfAnotherUser(dir, user));
    }
    if users == Users::Fail {
        abort(&dir, device)?;
    }
    match unmount(&dir, device, users != Users::Keep) {
        Err(MountError::Busy(_)) if reach_soon(&dir).is_err_and(|error| is_dead(&error)) => {
            unmount(&dir, device, true).map(|()| Ended::Detached)
        }
        outcome => outcome.map(|()| Ended::Unmounted),
    }
}

/// Whether `device` is mounted in the mount namespace of this process.
pub(crate) fn is_mounted_here(device: (u32, u32)) -> bool {
    mountinfo::read().is_ok_and(|all| all.iter().any(|one| one.device == device))
}

/// The absolute path of `dir` and the device number of the sluicefs that is mounted there.
///
/// # Errors
/// [`MountError::NotMounted`], or as the operating system says.
pub(crate) fn place_of(dir: &Path) -> Result<(PathBuf, (u32, u32)), MountError> {
    let mounts = mountinfo::read().map_err(|error| MountError::System("read the table of mounts", error))?;
    let dir = absolute(dir, &mounts).map_err(|error| MountError::Unreachable(dir.into(), error))?;
    match mounts.iter().rev().find(|entry| entry.mountpoint == dir) {
        Some(entry) if entry.is_sluicefs() => Ok((dir, entry.device)),
        _ => Err(MountError::NotMounted(dir)),
    }
}

/// The user who made the mount `device`, if the table of mounts says so.
fn user_of(device: (u32, u32)) -> Option<u32> {
    mountinfo::read().ok()?.iter().find(|entry| entry.device == device)?.user
}

/// A mount that stands in the one on `dir`, the uppermost.
fn below(dir: &Path) -> Option<PathBuf> {
    let mounts = mountinfo::read().ok()?;
    let stands_in =
        |entry: &mountinfo::MountEntry| entry.mountpoint != dir && entry.mountpoint.starts_with(dir);
    mounts.into_iter().rev().find(stands_in).map(|entry| entry.mountpoint)
}

/// The source of our mount on `dir`, as named by its server with `fsname`.
pub fn source_at(dir: &Path) -> Option<OsString> {
    let mounts = mountinfo::read().ok()?;
    let dir = absolute(dir, &mounts).ok()?;
    let entry = mounts.into_iter().rev().find(|entry| entry.mountpoint == dir)?;
    entry.is_sluicefs().then_some(entry.source)
}

/// Whether a sluicefs holds `path`, mounted where this process sees it.
///
/// # Errors
/// When `path` or the table of mounts cannot be read.
pub fn is_within(path: &Path) -> io::Result<bool> {
    let device = device_of(path)?;
    Ok(mountinfo::read()?.iter().any(|entry| entry.device == device && entry.is_sluicefs()))
}

/// The device number of the mount of ours whose source is `source`, if there is one.
pub fn device_of_source(source: &OsStr) -> Option<(u32, u32)> {
    mountinfo::read().ok()?.iter().rev().find(|entry| is_of(entry, source)).map(|entry| entry.device)
}

/// Whether `process` sees a mount of ours whose source is `source`.
///
/// # Errors
/// The system's, when there is no such process.
pub fn is_mounted_for(process: u32, source: &OsStr) -> io::Result<bool> {
    Ok(mountinfo::read_of(process)?.iter().any(|entry| is_of(entry, source)))
}

fn is_of(entry: &mountinfo::MountEntry, source: &OsStr) -> bool {
    entry.is_sluicefs() && entry.source == source
}

/// The absolute path of `dir` without links, as the table of `mounts` has it. A mountpoint itself is not looked at: a server that
/// hangs does not answer, and of a dead one the kernel knows nothing.
fn absolute(dir: &Path, mounts: &[mountinfo::MountEntry]) -> io::Result<PathBuf> {
    if let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let place = parent.canonicalize()?.join(name);
        if mounts.iter().any(|entry| entry.mountpoint == place) {
            return Ok(place);
        }
    }
    dir.canonicalize()
}

/// Unmounts `device` wherever it is mounted in this mount namespace, such as by `mount --bind`.
pub fn unmount_everywhere(device: (u32, u32), lazy: bool) -> Result<(), MountError> {
    let mounts = mountinfo::read().map_err(|error| MountError::System("read the table of mounts", error))?;
    let places = mounts.iter().rev().filter(|entry| entry.device == device);
    places.map(|entry| &entry.mountpoint).try_for_each(|place| unmount(place, device, lazy))
}

/// Unmounts `dir` if what is mounted there is `device`; `lazy`: even if it is in use.
pub(crate) fn unmount(dir: &Path, device: (u32, u32), lazy: bool) -> Result<(), MountError> {
    let mounts = mountinfo::read().map_err(|error| MountError::System("read the table of mounts", error))?;
    let mut here = mounts.iter().rev().filter(|entry| entry.mountpoint == dir);
    match here.next() {
        Some(entry) if entry.device == device => {
            detach(dir, lazy).map_err(|error| match (error, below(dir)) {
                (MountError::Busy(dir), Some(below)) => MountError::HoldsMount(dir, below),
                (error, _) => error,
            })
        }
        Some(_) if here.any(|entry| entry.device == device) => Err(MountError::Covered(dir.into())),
        // Somebody else unmounted it.
        _ => Ok(()),
    }
}

/// Has the kernel give up the requests of what is mounted on `dir`, if that is `device`.
pub(crate) fn abort(dir: &Path, device: (u32, u32)) -> Result<(), MountError> {
    let here =
        mountinfo::device_at(dir).map_err(|error| MountError::System("read the table of mounts", error))?;
    if here != Some(device) {
        return Ok(());
    }
    let given_up = if is_root() {
        // BUSY: the mount is in use and stays, but its requests are given up.
        match rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    } else {
        // The file is its user's.
        fs::write(format!("/sys/fs/fuse/connections/{}/abort", device.1), "1")
    };
    given_up.map_err(|error| MountError::System("give up the mount's requests", error))
}

/// Unmounts whatever is uppermost on `dir`.
fn detach(dir: &Path, lazy: bool) -> Result<(), MountError> {
    if !is_root() {
        return unmount_with_helper(dir, lazy);
    }
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        // INVAL: not a mount any more; NOENT: its directory is gone.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(dir.into())),
        Err(errno) => Err(MountError::System("unmount", errno.into())),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process may give these `options`: permissions are checked, and set-ID bits and devices used, as they say.
pub fn check_checks(options: &MountOptions) -> Result<(), MountError> {
    match options.checks {
        CheckMode::Sluice if options.admits_others(false) => Err(MountError::Checks(
            "others could use names that the kernel knows unchecked: leave out allow_other, or checks=sluice",
        )),
        CheckMode::Sluice if !is_root() => Err(MountError::Checks(
            "the kernel would not check who may search a directory: mount as root, or leave it out",
        )),
        // The helper program would leave them out.
        _ if options.nosuid == Some(false) && !is_root() => Err(MountError::ForRootAlone("suid")),
        _ if options.nodev == Some(false) && !is_root() => Err(MountError::ForRootAlone("dev")),
        _ => Ok(()),
    }
}

fn mount_directly(dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| MountError::NoDevice(errno.into()))?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.checks == CheckMode::Kernel {
        data.push_str(",default_permissions");
    }
    if options.admits_others(true) {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::NODIRATIME, options.nodiratime);
    flags.set(MountFlags::STRICTATIME, options.strictatime);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags.set(MountFlags::NOSUID, options.nosuid.unwrap_or(false));
    flags.set(MountFlags::NODEV, options.nodev.unwrap_or(false));
    flags.set(MountFlags::NOEXEC, options.noexec);
    // The data have no NUL in them.
    let data = CString::new(data).map_err(|error| MountError::System("mount", error.into()))?;
    match rustix::mount::mount(&options.fsname, dir, format!("fuse.{SUBTYPE}"), flags, &*data) {
        Ok(()) => Ok(device),
        Err(Errno::PERM | Errno::ACCESS) => Err(MountError::Denied(dir.into())),
        Err(errno) => Err(MountError::System("mount", errno.into())),
    }
}

fn mount_with_helper(dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let mut list = OsString::from(format!("default_permissions,subtype={SUBTYPE},fsname="));
    list.push(escaped(&options.fsname));
    let switches = [
        (options.admits_others(false), ",allow_other"),
        (options.read_only, ",ro"),
        (options.noatime, ",noatime"),
        (options.nodiratime, ",nodiratime"),
        (options.strictatime, ",strictatime"),
        (options.synchronous, ",sync"),
        (options.noexec, ",noexec"),
    ];
    switches.iter().filter(|(on, _)| *on).for_each(|(_, name)| list.push(name));

    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| MountError::System("make a socket pair", errno.into()))?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(&list).arg("--").arg(dir).env("_FUSE_COMMFD", "0").stdin(theirs);
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output().map_err(no_helper)?;
    // The child's end must be closed for the receive below to end if nothing was sent.
    drop(command);
    if !output.status.success() {
        return Err(match helper_message(&output.stderr) {
            message if message.contains("user_allow_other") => MountError::AllowOther,
            message if message.contains("open /dev/fuse: Permission denied") => MountError::DeviceForRootOnly,
            message => MountError::Helper(message),
        });
    }
    receive_descriptor(&ours)
        .map_err(|error| MountError::System("receive the device from fusermount3", error))?
        .ok_or_else(|| MountError::Helper("it sent no device".into()))
}

/// `name` as the helper reads it in a list of options.
fn escaped(name: &OsStr) -> OsString {
    let bytes = name.as_bytes().iter();
    let escaped = bytes.flat_map(|&byte| [(b",\\".contains(&byte)).then_some(b'\\'), Some(byte)]);
    OsString::from_vec(escaped.flatten().collect())
}

/// The descriptor that the helper sent along with one byte.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

fn unmount_with_helper(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir);
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output().map_err(no_helper)?;
    if output.status.success() {
        return Ok(());
    }
    let message = helper_message(&output.stderr);
    Err(if message.contains("busy") { MountError::Busy(dir.into()) } else { MountError::Helper(message) })
}

fn no_helper(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::System("run fusermount3", error),
    }
}

/// The first line that the helper printed, without its name.
fn helper_message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().next().unwrap_or("no reason given");
    line.trim_start_matches("fusermount3: ").trim_start_matches("/usr/bin/fusermount3: ").into()
}
