//! Open files: what the handles of one task stand for.

use super::{CallResult, Handle};
use sluice_vfs::Errno;

/// A table of `F`s; a handle is an index, the lowest free one as for descriptors.
pub(super) struct OpenFiles<F>(Vec<Option<F>>);

impl<F> OpenFiles<F> {
    pub(super) fn new() -> OpenFiles<F> {
        OpenFiles(Vec::new())
    }

    pub(super) fn keep(&mut self, file: F) -> Handle {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(file);
        Handle(free)
    }

    pub(super) fn get(&self, file: Handle) -> CallResult<&F> {
        self.0.get(file.0).and_then(Option::as_ref).ok_or(Errno::EBADF)
    }

    pub(super) fn take(&mut self, file: Handle) -> CallResult<F> {
        self.0.get_mut(file.0).and_then(Option::take).ok_or(Errno::EBADF)
    }
}
