//! Resume: how a mount is given to a holder, and how the next server goes on with it.

use super::changes::{ChangeFile, MAPPED, NotedChange};
use super::clock::now;
use super::lost::ToldLosses;
use super::state::{HeldState, Restarts};
use crate::abi::flags::{NOTIFY_INC_EPOCH, NOTIFY_RESEND};
use crate::connected::is_connected;
use crate::connection::{Connection, Negotiated};
use crate::reply::Reply;
use crate::{MountError, MountOptions};
use serde::{Deserialize, Serialize};
use sluice_sync::OnceLock;
use sluice_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use sluice_sync::thread::Builder;
use sluice_sync::{Arc, Weak};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The form of [`MountState`]. A server goes on with no other.
const FORM: u32 = 2;

/// A mount without a server: what a holder keeps.
#[derive(Debug)]
pub struct HeldMount {
    /// The state that the servers of the mount agree on; nobody else reads it.
    pub state: Vec<u8>,
    /// `/dev/fuse`.
    pub device: OwnedFd,
    /// The memory in which answered changes are noted.
    pub changes: OwnedFd,
}

impl HeldMount {
    /// Whether a server with these options can go on with the mount, as far as its state says.
    ///
    /// # Errors
    /// [`MountError::System`]: another version of sluice made it.
    pub fn check(&self, options: &MountOptions) -> Result<(), MountError> {
        MountState::read(&self.state, options.max_write).map(drop)
    }

    /// Whether the kernel still has the mount.
    pub fn is_connected(&self) -> bool {
        is_connected(self.device.as_fd())
    }

    /// The [key](sluice_vfs::Superblock::name_key) of names, with which the next server is to open the store; none if another version of sluice
    /// holds the mount.
    pub fn name_key(&self) -> Option<u64> {
        serde_json::from_slice(&self.state).ok().map(|state: MountState| state.name_key)
    }

    /// The device number of the mount; none as of [`name_key`](Self::name_key).
    pub(crate) fn device_number(&self) -> Option<(u32, u32)> {
        serde_json::from_slice(&self.state).ok().map(|state: MountState| state.device)
    }
}

/// The facts that a server needs to resume a mount.
#[derive(Serialize, Deserialize)]
pub(crate) struct MountState {
    form: u32,
    mount: u64,
    dir: Vec<u8>,
    pub(crate) device: (u32, u32),
    max_write: u32,
    name_key: u64,
    no_open: bool,
    no_opendir: bool,
    expires_names: bool,
}

impl MountState {
    /// Reads the state that the first server gave to the holder.
    pub(crate) fn read(state: &[u8], max_write: u32) -> Result<MountState, MountError> {
        let read = serde_json::from_slice(state).ok();
        read.filter(|state: &MountState| state.form == FORM && state.max_write == max_write).ok_or_else(
            || {
                let error = io::Error::new(io::ErrorKind::InvalidData, "another version of sluice made it");
                MountError::System("go on with a mount", error)
            },
        )
    }

    pub(crate) fn dir(&self) -> PathBuf {
        OsString::from_vec(self.dir.clone()).into()
    }
}

impl Connection {
    /// A holder is to keep the mount, which is new.
    pub(crate) fn begin_held(&self) -> Result<(), MountError> {
        if !self.negotiated.get().is_some_and(|negotiated| negotiated.resends) {
            return Ok(());
        }
        let mut number = [0; 8];
        let drawn = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
        drawn.map_err(|errno| MountError::System("draw a number", errno.into()))?;
        // Another mount of the store, whose holder has died, too.
        let _ = self.superblock.forget_requests(&self.superblock.stamped_mounts());
        let file = ChangeFile::new().map_err(|error| MountError::System("note changes in memory", error))?;
        let lost = ToldLosses::new(&[], &BTreeSet::new(), now());
        self.hold(
            u64::from_le_bytes(number) | 1,
            file,
            (BTreeMap::new(), HashMap::new()),
            (lost, Restarts::default()),
        );
        Ok(())
    }

    fn hold(
        &self,
        mount: u64,
        file: ChangeFile,
        (executed, attempts): (BTreeMap<u64, u64>, HashMap<u64, u64>),
        (lost, restarts): (ToldLosses, Restarts),
    ) {
        self.superblock.stamp_pushes(mount, Box::new(now));
        let holder = rustix::process::getppid();
        let next_worker = AtomicU64::new(0);
        // Nobody else sets it.
        let _ = self.held.set(HeldState {
            mount,
            file,
            executed,
            attempts,
            lost,
            restarts,
            holder,
            next_worker,
            leaves: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
            pass_on: OnceLock::new(),
        });
    }

    /// The parts that a holder is to keep; none if the mount cannot outlive its server.
    pub(crate) fn held_mount(
        &self,
        dir: PathBuf,
        device: (u32, u32),
        fuse: io::Result<OwnedFd>,
    ) -> io::Result<Option<HeldMount>> {
        let (Some(held), Some(negotiated)) = (self.held.get(), self.negotiated.get()) else {
            return Ok(None);
        };
        let state = MountState {
            form: FORM,
            mount: held.mount,
            dir: dir.into_os_string().into_vec(),
            device,
            max_write: self.options.max_write,
            name_key: self.superblock.name_key(),
            no_open: negotiated.no_open,
            no_opendir: negotiated.no_opendir,
            expires_names: negotiated.expires_names,
        };
        let state = serde_json::to_vec(&state)?;
        Ok(Some(HeldMount { state, device: fuse?, changes: held.file.try_clone()? }))
    }

    /// Goes on with a mount whose server has died. No request is served before this returns.
    pub(crate) fn resume(
        self: &Arc<Self>,
        state: &MountState,
        changes: OwnedFd,
        restarts: Restarts,
    ) -> Result<(), MountError> {
        let unread = |error| MountError::System("read what the last server noted", error);
        let negotiated = Negotiated {
            no_open: state.no_open,
            no_opendir: state.no_opendir,
            writeback: false,
            uring: false,
            expires_names: state.expires_names,
            resends: true,
        };
        // Nobody else sets it.
        let _ = self.negotiated.set(negotiated);
        let file = ChangeFile::of(changes);
        let attempts = file.attempts().map_err(unread)?;
        let is_whole = file.is_whole().map_err(unread)?;
        let changes = file.take_lost(self.superblock.durable_stamp(state.mount)).map_err(unread)?;
        let executed = self.superblock.executed_requests(state.mount);

        let kernel: Weak<Connection> = Arc::downgrade(self);
        let is_known = move |nodeid| kernel.upgrade().is_some_and(|kernel| kernel.is_known_to_kernel(nodeid));
        self.nodes.inherit(&self.superblock, Box::new(is_known));
        let nameless = self.keep_nameless();
        // The last server has brought the contents of these, too.
        let nameless = if is_whole { BTreeSet::new() } else { nameless };
        let lost = ToldLosses::new(&changes, &nameless, now());
        file.set_used().map_err(unread)?;
        self.hold(state.mount, file, (executed, attempts), (lost, restarts));
        self.drop_lost(&changes)
    }

    /// Keeps the files without a name that the kernel knows; returns which.
    fn keep_nameless(&self) -> BTreeSet<u64> {
        let found = self.superblock.nameless_inodes();
        let known = found.into_iter().filter(|ino| self.is_known_to_kernel(self.nodes.nodeid(*ino)));
        let adopted = self.superblock.adopt_nameless(&known.collect());
        adopted.values().for_each(|inode| self.nodes.hold(inode));
        adopted.into_keys().map(|ino| self.nodes.nodeid(ino)).collect()
    }

    /// Whether the kernel has an inode of this number. It drops the attributes.
    fn is_known_to_kernel(&self, nodeid: u64) -> bool {
        self.invalidate_inode(self.nodes.nodeid(nodeid), -1, 0)
    }

    /// Has the kernel drop what it has of nodes whose changes are lost: names and attributes now, contents when the workers serve, as pages
    /// may be locked until a request is answered. Bytes that a program has stored through a mapping stay as it sees them.
    fn drop_lost(self: &Arc<Self>, lost: &[NotedChange]) -> Result<(), MountError> {
        if lost.is_empty() {
            return Ok(());
        }
        let of = |changes: &mut dyn Iterator<Item = &NotedChange>| -> BTreeSet<u64> {
            changes.map(|change| change.nodeid).collect()
        };
        let nodes = of(&mut lost.iter());
        let written = of(&mut lost.iter().filter(|change| change.process != MAPPED));
        // An error: the mount is gone.
        let _ = self.notify(Reply::new().notification(NOTIFY_INC_EPOCH));
        nodes.iter().for_each(|nodeid| _ = self.is_known_to_kernel(*nodeid));
        let connection = Arc::downgrade(self);
        let drop_contents = move || {
            for nodeid in written {
                let Some(connection) = connection.upgrade() else { return };
                connection.invalidate_inode(connection.nodes.nodeid(nodeid), 0, 0);
            }
        };
        let spawned = Builder::new().name("sluice-drop".into()).spawn(drop_contents);
        spawned.map(drop).map_err(|error| MountError::System("start a thread", error))
    }

    /// Has the kernel make those requests again that the last server has read and not answered.
    pub(crate) fn ask_again(&self) {
        // An error: the mount is gone, and the workers find that.
        if let Err(error) = self.notify(Reply::new().notification(NOTIFY_RESEND)) {
            log::info!("no request comes again: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_goes_on_with_what_its_own_version_has_agreed_on() {
        let state = |form, max_write| {
            let (device, dir) = ((0, 7), b"/m".to_vec());
            let state = MountState {
                form,
                mount: 3,
                dir,
                device,
                max_write,
                name_key: 5,
                no_open: true,
                no_opendir: true,
                expires_names: true,
            };
            serde_json::to_vec(&state).expect("numbers")
        };
        let read = |state: &[u8]| MountState::read(state, 4096).map(|state| (state.dir(), state.device));
        assert_eq!(read(&state(FORM, 4096)).expect("its own"), ("/m".into(), (0, 7)));
        for other in [state(FORM + 1, 4096), state(FORM, 8192), b"{}".to_vec(), Vec::new()] {
            let refused = read(&other).expect_err("another").to_string();
            assert!(refused.contains("another version of sluice made it"), "{refused}");
        }
    }
}
