//! Device: the way to a kernel, which a test may play.

use super::Relay;
use sluice_fuse::internal::{Channel, DevFuse};
use sluice_fuse::{MountError, MountOptions};
use sluice_sync::Arc;
use std::io;
use std::path::PathBuf;

/// The number of a mount that a test plays.
pub(super) const NO_MOUNT: (u32, u32) = (0, 0);

/// The way to a kernel: `/dev/fuse`, or a test's. Each call transfers a single message of the kernel, or to it.
pub trait Device: Send + Sync {
    /// Waits for a request and puts it into `buffer`. `None`: the mount is gone.
    ///
    /// # Errors
    /// Errors that no retry would cure.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>>;
    /// Has the kernel take in an answer or a notification. Returns when the kernel has taken it in.
    ///
    /// # Errors
    /// `ENOENT`: it does not know what the message is about.
    fn send(&self, message: &[u8]) -> io::Result<()>;
    /// Whether the mount is there.
    fn is_connected(&self) -> bool;
}

impl Device for DevFuse {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        DevFuse::receive(self, buffer)
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        Channel::send(self, message)
    }

    fn is_connected(&self) -> bool {
        DevFuse::is_connected(self)
    }
}

impl Relay {
    /// A relay for a kernel that a test plays; no mount is made.
    ///
    /// # Errors
    /// When no thread can be started.
    #[doc(hidden)]
    pub fn over_kernel(kernel: Arc<dyn Device>, options: &MountOptions) -> Result<Relay, MountError> {
        Relay::over(kernel, PathBuf::new(), NO_MOUNT, options)
    }
}
