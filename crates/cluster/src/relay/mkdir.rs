//! Mkdir: a directory that is made where each new directory becomes a workspace.
//!
//! # Theory
//! The server checks what it checks before each MKDIR, and refuses with [`WANTED`](workspace::WANTED). Then the relay
//! ```text
//!   makes a store, durably            a crash from here on leaves an empty store that nothing uses
//!   makes the junction, as root       another name may have come first: EEXIST
//!   looks the junction up             for the caller, whose kernel gets the root of the workspace
//! ```

use super::Shared;
use sluice_fuse::internal::abi::{AttrOut, EntryOut, InHeader, MkdirIn, MknodIn};
use sluice_fuse::internal::workspace;
use sluice_fuse::opcode;
use sluice_sync::Arc;
use sluice_vfs::{Errno, FileType};
use std::io;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Makes the store of a new workspace whose root has this mode, owner and group, and returns its number.
pub(crate) type MakeStore = Box<dyn Fn([u32; 3]) -> io::Result<u32> + Send + Sync>;

/// Bytes of GETATTR behind the header: zeros, which name no open file.
const GETATTR: usize = 16;
const PERMISSIONS: u32 = 0o7777;
const SET_GROUP_ID: u32 = 0o2000;

impl Shared {
    /// Makes the workspace that a MKDIR with this body asks for, and returns the entry of its junction.
    pub(super) fn make_workspace(self: &Arc<Self>, header: &InHeader, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let (arg, name) = MkdirIn::read_from_prefix(body).map_err(|_| Errno::EINVAL)?;
        let dir = header.nodeid;
        let told = self.ask(header, opcode::GETATTR, dir, &[0; GETATTR])?;
        let above = AttrOut::read_from_prefix(&told).map_err(|_| Errno::EIO)?.0.attr;
        let mode = arg.mode & PERMISSIONS & !arg.umask;
        let root = match above.mode & SET_GROUP_ID {
            0 => [mode, header.uid, header.gid],
            inherited => [mode | inherited, header.uid, above.gid],
        };
        let number = self.workspaces.make_store(root).map_err(|error| {
            log::warn!("no store for a new workspace: {error}");
            error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
        })?;
        let as_root = InHeader { uid: 0, gid: 0, ..*header };
        let mode = FileType::CharDevice.mode_bits() | 0o700;
        let arg = MknodIn { mode, rdev: workspace::junction(number), ..MknodIn::new_zeroed() };
        let made = self.ask(&as_root, opcode::MKNOD, dir, &[arg.as_bytes(), name].concat())?;
        let (junction, _) = EntryOut::read_from_prefix(&made).map_err(|_| Errno::EIO)?;
        let found = self.look_up(header, dir, name);
        self.forget_asked(header, junction.nodeid);
        found.map(|(_, answer)| answer)
    }
}
