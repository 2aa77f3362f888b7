//! Socket file: where in the file system the socket of a server is, for clients in other network namespaces.
//!
//! # Theory
//! An abstract name belongs to a network namespace, a socket file to none. So each server also listens on a file, named after the
//! device number of its mount, in a directory of its user: `/run/sluicefs` of root's, `/run/user/UID/sluicefs` of others', or
//! `/tmp/.sluicefs-UID` where there is no such. A client learns from the table of mounts whose the server is, and does not
//! believe what it finds: it looks at the credentials of the other end, as over the abstract name.
//!
//! Every user may make a directory in `/tmp`. So a directory is used only if it is the user's own and nobody else may use it. The
//! question is asked of the opened directory, before its lock, which another user could hold for ever.
//!
//! A server that was killed leaves its file. It is in nobody's way: nobody listens there, so a client goes on as if it were not there;
//! a server with the same number replaces it, and each server that starts removes those on which nobody listens. A
//! device number is used again at once, so a server that ends removes the file only if it is still its own. A server that changes
//! the directory has it locked (flock).

use super::{ANSWER_PATIENCE, PATIENCE, connect as connect_to, of_another_user, trusted, user_of};
use crate::mountinfo;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::net::SocketAddrUnix;
use sluice_sync::thread::sleep;
use sluice_sync::time::{Duration, Instant};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// How long a listener may take to accept a server that looks which sockets were left, ...
const LOOK_PATIENCE: Duration = Duration::from_millis(1);
/// ... and how often the lock of a directory is tried.
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// A socket file that goes when this is dropped.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    id: (u64, u64),
}

impl SocketFile {
    /// Listens on the file of the mount `device`.
    pub(super) fn bind(device: (u32, u32)) -> io::Result<(UnixListener, SocketFile)> {
        let user = rustix::process::geteuid().as_raw();
        let mut last = ErrorKind::NotFound.into();
        for dir in directories(user) {
            match bind_in(&dir, device, user) {
                Err(error) => last = error,
                bound => return bound,
            }
        }
        Err(last)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock it stays, and the next server removes it.
        let user = rustix::process::geteuid().as_raw();
        let Some(_locked) = self.path.parent().and_then(|dir| lock(dir, user).ok()) else { return };
        if id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects to the server of the mount `device`. None if no server listens.
pub(super) fn connect(device: (u32, u32)) -> io::Result<Option<UnixStream>> {
    let mounts = mountinfo::read()?;
    let Some(user) = mounts.iter().find(|entry| entry.device == device).and_then(|entry| entry.user) else {
        return Ok(None);
    };
    for dir in directories(user) {
        match connect_in(&dir, device, user) {
            Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
            // Also root's server is not the one that was asked for, if the mount is another user's.
            Ok(stream) if user_of(&stream)? == user => return trusted(stream).map(Some),
            Ok(_) => return Err(of_another_user()),
            // No socket, no right to the directory, or a directory of another user.
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Connects to the server of the mount `device` in `dir`, if that is a directory of `user` alone. Who answers is for the caller to look at.
fn connect_in(dir: &Path, device: (u32, u32), user: u32) -> io::Result<UnixStream> {
    let opened = open(dir, OFlags::PATH, user)?;
    let path = format!("/proc/self/fd/{}/{}", opened.as_raw_fd(), name(device));
    connect_to(&SocketAddrUnix::new(path)?, ANSWER_PATIENCE)
}

/// Where the sockets of `user` may be.
fn directories(user: u32) -> Vec<PathBuf> {
    if user == 0 {
        return vec!["/run/sluicefs".into()];
    }
    vec![format!("/run/user/{user}/sluicefs").into(), format!("/tmp/.sluicefs-{user}").into()]
}

fn name((major, minor): (u32, u32)) -> String {
    format!("{major}:{minor}")
}

fn bind_in(dir: &Path, device: (u32, u32), user: u32) -> io::Result<(UnixListener, SocketFile)> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let _locked = lock(dir, user)?;
    remove_left(dir)?;
    let path = dir.join(name(device));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    let id = id(&path)?;
    Ok((listener, SocketFile { path, id }))
}

/// Removes the sockets in `dir`, which is locked, on which nobody listens.
fn remove_left(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_left = connect_to(&SocketAddrUnix::new(&path)?, LOOK_PATIENCE)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        let is_socket = rustix::fs::lstat(&path)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
        if is_left && is_socket {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Locks the directory `dir`, which must be of `user` alone, until the file is closed.
fn lock(dir: &Path, user: u32) -> io::Result<File> {
    let opened = open(dir, OFlags::RDONLY, user)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::AGAIN) if Instant::now() < end => sleep(LOCK_AGAIN),
            decided => return Ok(decided.map(|()| opened)?),
        }
    }
}

/// Opens the directory `dir`.
///
/// # Errors
/// The system's; `PermissionDenied` for a directory of another user, or with rights for others.
fn open(dir: &Path, access: OFlags, user: u32) -> io::Result<File> {
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::openat(CWD, dir, flags, Mode::empty())?);
    let found = opened.metadata()?;
    if found.uid() != user || found.mode() & 0o077 != 0 {
        let text = format!(
            "{} is of another user, or others may use it: remove it, or let its owner chmod it 700",
            dir.display()
        );
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    Ok(opened)
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let found = path.symlink_metadata()?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_file_replaces_one_that_was_left_and_goes_with_its_server_alone() {
        let dir = std::env::temp_dir().join(format!("sluice-place-{}", std::process::id()));
        let user = rustix::process::geteuid().as_raw();
        let names = || fs::read_dir(&dir).expect("it is there").count();
        // Left by servers that were killed.
        let left = [(0, 7), (0, 8)].map(|device| bind_in(&dir, device, user).expect("a fresh directory"));
        for (listener, file) in left {
            drop(listener);
            std::mem::forget(file);
        }
        assert_eq!(names(), 2);
        let (listener, first) = bind_in(&dir, (0, 7), user).expect("nobody listens there");
        assert_eq!(names(), 1, "the other is removed");
        assert!(UnixStream::connect(&first.path).is_ok());
        // The number is used again while the server ends.
        let (_listener, second) = bind_in(&dir, (0, 7), user).expect("it is replaced");
        drop((listener, first));
        assert!(UnixStream::connect(&second.path).is_ok());
        drop(second);
        assert_eq!(names(), 0);
        let taken = bind_in(&dir, (0, 7), user + 1).err().expect("the directory is not that user's");
        assert_eq!(taken.kind(), ErrorKind::PermissionDenied);
        assert!(taken.to_string().contains("is of another user, or others may use it"), "{taken}");
        fs::remove_dir(&dir).expect("it is empty");
    }

    #[test]
    fn a_directory_that_another_user_holds_is_neither_waited_for_nor_trusted() {
        const OTHER: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("sluice-held-{}", std::process::id()));
        let (taken, device) = (dir.clone(), (0, 7));
        // A thread has credentials of its own, which a socket takes over when it listens.
        let squatter = sluice_sync::thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(OTHER)).expect("root may");
            bind_in(&taken, device, OTHER).map(|bound| (lock(&taken, OTHER), bound))
        });
        let (_held, _bound) = squatter.join().expect("no panic").expect("everybody may");
        let refused = |outcome: io::Result<()>| outcome.err().map(|error| error.kind());
        assert_eq!(refused(bind_in(&dir, device, 0).map(drop)), Some(ErrorKind::PermissionDenied));
        assert_eq!(refused(connect_in(&dir, device, 0).map(drop)), Some(ErrorKind::PermissionDenied));
        // Also a client that takes the directory for its user's looks who answers.
        let stream = connect_in(&dir, device, OTHER).expect("it listens");
        assert_eq!(user_of(&stream).expect("connected"), OTHER);
        assert_eq!(refused(trusted(stream).map(drop)), Some(ErrorKind::PermissionDenied));
        // One's own directory, which a process of one's own has locked for ever, is given up.
        std::os::unix::fs::chown(&dir, Some(0), Some(0)).expect("root may");
        assert_eq!(refused(bind_in(&dir, device, 0).map(drop)), Some(ErrorKind::WouldBlock));
        fs::remove_dir_all(&dir).expect("it is there");
    }
}
