//! Files: the segments' files, of which a bounded number is open.

use crate::StoreError;
use crate::disk::{Disk, DiskFile};
use sluice_sync::{Arc, LockClass, Mutex};
use std::collections::VecDeque;
use std::io;

static FILES: LockClass = LockClass::new("store.segments.files");

/// Files that are kept open for reading, beside those that are being written.
const OPEN_MAX: usize = 64;

/// The name of a segment's file.
pub(crate) fn name(segment: u32) -> String {
    format!("segment-{segment:08x}")
}

/// The segments' files.
pub(super) struct Files {
    disk: Arc<dyn Disk>,
    /// The longest unused first. *protected by its mutex, which is held across no I/O*
    open: Mutex<VecDeque<(u32, Arc<dyn DiskFile>)>>,
}

impl Files {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Files {
        Files { disk, open: Mutex::with_class(&FILES, VecDeque::new()) }
    }

    /// Free bytes of the disk.
    ///
    /// # Errors
    /// The disk's, if it does not tell.
    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    /// The file of `segment`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when there is none, and the disk's.
    pub(super) fn get(&self, segment: u32) -> Result<Arc<dyn DiskFile>, StoreError> {
        let known = {
            let mut open = self.open.lock();
            let at = open.iter().position(|(number, _)| *number == segment);
            at.and_then(|at| open.remove(at))
        };
        let file = match known {
            Some((_, file)) => file,
            None => self.disk.open(&name(segment)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => StoreError::Damaged(format!("`{}` is missing", name(segment))),
                _ => StoreError::io("open a segment")(error),
            })?,
        };
        self.keep(segment, &file);
        Ok(file)
    }

    /// The file of `segment`, created if missing. Its name is durable.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn make(&self, segment: u32) -> Result<Arc<dyn DiskFile>, StoreError> {
        let file = match self.disk.create(&name(segment), 0) {
            // A crash may have left a file that no record names.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.disk.open(&name(segment)),
            made => made,
        };
        let file = file.map_err(StoreError::io("make a segment"))?;
        self.disk.sync_names().map_err(StoreError::io("make a segment's name durable"))?;
        self.keep(segment, &file);
        Ok(file)
    }

    fn keep(&self, segment: u32, file: &Arc<dyn DiskFile>) {
        let mut open = self.open.lock();
        open.push_back((segment, file.clone()));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
    }
}
