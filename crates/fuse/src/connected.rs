//! Connected: whether the kernel still has a mount, by the descriptor of its device.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;

/// Whether the mount of `device`, a descriptor of `/dev/fuse`, still exists.
pub(crate) fn is_connected(device: BorrowedFd<'_>) -> bool {
    let mut device = [PollFd::new(&device, PollFlags::empty())];
    // Without a wait it cannot fail.
    let _ = poll(&mut device, Some(&Timespec::default()));
    !device[0].revents().contains(PollFlags::ERR)
}
