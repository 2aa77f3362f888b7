//! Socket file: where in the file system the socket of a server is, for clients in other network namespaces.
//!
//! # Theory
//! An abstract name belongs to a network namespace, a socket file to none. So each server also listens on a file, named after the
//! device number of its mount, in a directory of its user: `/run/sluicefs` of root's, `/run/user/UID/sluicefs` of others', or
//! `/tmp/.sluicefs-UID` where there is no such. A client learns from the table of mounts whose the server is, and does not
//! believe what it finds: it looks at the credentials of the other end, as over the abstract name.
//!
//! A server that was killed leaves its file. It is in nobody's way: nobody listens there, so a client goes on as if it were not there;
//! a server with the same number replaces it, and each server that starts removes those on which nobody listens. A
//! device number is used again at once, so a server that ends removes the file only if it is still its own. A server that changes
//! the directory has it locked (flock).

use crate::mountinfo;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

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
        let Some(_locked) = self.path.parent().and_then(|dir| lock(dir).ok()) else { return };
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
        match UnixStream::connect(dir.join(name(device))) {
            Ok(stream) => return Ok(Some(stream)),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
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
    let locked = lock(dir)?;
    let found = locked.metadata()?;
    if found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the directory is another user's"));
    }
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
        let is_left =
            UnixStream::connect(&path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        let is_socket = rustix::fs::lstat(&path)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
        if is_left && is_socket {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Locks the directory `dir` until the file is closed.
fn lock(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::openat(CWD, dir, flags, Mode::empty())?);
    rustix::fs::flock(&opened, FlockOperation::LockExclusive)?;
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
        assert!(bind_in(&dir, (0, 7), user + 1).is_err(), "the directory is not that user's");
        fs::remove_dir(&dir).expect("it is empty");
    }
}
