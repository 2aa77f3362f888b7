//! Ending: how a relay's mount is taken out of the tree, and waited for.

use super::Shared;
use sluice_fuse::MountError;
use sluice_fuse::internal::mount;

impl Shared {
    pub(super) fn unmount(&self) -> Result<(), MountError> {
        if !self.device.is_connected() {
            return Ok(());
        }
        mount::unmount_everywhere(self.number, false)?;
        if !self.state.lock().is_detached && self.device.is_connected() {
            return Err(MountError::Elsewhere(self.dir.clone()));
        }
        self.wait();
        Ok(())
    }

    pub(super) fn unmount_lazily(&self) -> Result<(), MountError> {
        if self.device.is_connected() {
            mount::unmount_everywhere(self.number, true)?;
        }
        self.state.lock().is_detached = true;
        self.ended.notify_all();
        Ok(())
    }

    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while state.threads > 0 && !state.is_detached {
            state = self.ended.wait(state);
        }
    }
}
