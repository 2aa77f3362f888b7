//! Workspace: the numbers of nodes where several file systems share one mount, and the device file that stands for one of them in
//! the directory of another.
//!
//! ```text
//!   the kernel's number of a node    | workspace: 20 bits | node in the file system of the workspace: 44 bits |
//! ```
//! The file system of the mount's root is workspace 0, so its nodes have the numbers that they have without others.
//!
//! The place of a workspace, its *junction*, is a character device with the [`MAJOR`] number of no driver, and with the number of the
//! workspace for its minor number, as a whiteout of overlayfs is the device 0/0. So names can neither be made below it nor moved over
//! it, only a caller with `CAP_MKNOD` makes it, and programs that know of no workspaces leave it alone.

use crate::abi::ROOT_ID;
use sluice_vfs::{Cred, Errno, FileType, Inode};
use std::io;
use std::path::Path;

/// Bits of a node's number in its own file system.
const NODE_BITS: u32 = 44;
/// The greatest number of a workspace: numbers of nodes have no sign.
pub const NUMBER_MAX: u32 = (1 << 19) - 1;
/// The major number of the devices that are junctions.
const MAJOR: u32 = 0xfff;
const TYPE: u32 = 0o170_000;
/// The attribute of a directory whose new directories become workspaces.
pub const MAKES_WORKSPACES: &str = "trusted.sluicefs.workspaces";
/// The refusal of a directory that is to be a workspace, in another file system: the relay that passed the request on makes it.
pub const WANTED: Errno = Errno::EXDEV;

/// The workspace of node `nodeid`, and the node there.
pub fn split(nodeid: u64) -> (u32, u64) {
    let (number, node) = (nodeid >> NODE_BITS, nodeid & ((1 << NODE_BITS) - 1));
    // 20 bits.
    (number as u32, node)
}

/// The kernel's number of `node` in workspace `number`.
pub fn join(number: u32, node: u64) -> u64 {
    u64::from(number) << NODE_BITS | node
}

/// The workspace whose root has this inode number on a mount; none for other files.
pub fn with_root(ino: u64) -> Option<u32> {
    let (number, node) = split(ino);
    (number != 0 && node == ROOT_ID).then_some(number)
}

/// The device number, as messages have it, of the junction to workspace `number`.
pub fn junction(number: u32) -> u32 {
    MAJOR << 8 | number & 0xff | (number & 0xfff00) << 12
}

/// The workspace to which a file with this mode and device number leads.
pub fn of_junction(mode: u32, rdev: u32) -> Option<u32> {
    let (major, minor) = ((rdev & 0xfff00) >> 8, rdev & 0xff | rdev >> 12 & 0xfff00);
    let is_junction = mode & TYPE == FileType::CharDevice.mode_bits() && major == MAJOR;
    is_junction.then_some(minor).filter(|number| (1..=NUMBER_MAX).contains(number))
}

/// The beginning of an order about workspace `number`.
pub(crate) fn named(number: u32) -> String {
    if number == 0 { String::new() } else { format!("workspace {number}\n") }
}

/// The beginning of an order about the workspace that `path` is in.
///
/// # Errors
/// When `path` cannot be reached.
pub(crate) fn around(path: &Path) -> io::Result<String> {
    Ok(named(split(rustix::fs::stat(path)?.st_ino).0))
}

/// The device number that the kernel is told of `inode`, which has `rdev`. A workspace is no part of a snapshot: there its junction leads nowhere.
pub(crate) fn told_of(inode: &Inode, mode: u32, rdev: u32) -> u32 {
    if inode.is_read_only() && of_junction(mode, rdev).is_some() { junction(0) } else { rdev }
}

/// Whether a directory that is made in `dir` is to be a workspace.
pub(crate) fn are_made_in(dir: &Inode) -> bool {
    !dir.is_read_only() && dir.get_xattr(&Cred::root(), MAKES_WORKSPACES.as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_node_and_a_junction_say_their_workspace() {
        for number in [1, 255, 256, 4095, NUMBER_MAX] {
            for node in [1, 77, (1 << NODE_BITS) - 1] {
                assert_eq!(split(join(number, node)), (number, node));
                assert!(join(number, node).cast_signed() > 0);
            }
            assert_eq!(of_junction(0o020_000, junction(number)), Some(number));
            assert_eq!(of_junction(0o060_000, junction(number)), None, "another type");
        }
        assert_eq!(split(77), (0, 77));
        for rdev in [0, junction(0), junction(NUMBER_MAX + 1), 0x0103] {
            assert_eq!(of_junction(0o020_644, rdev), None, "{rdev:x}");
        }
    }
}
