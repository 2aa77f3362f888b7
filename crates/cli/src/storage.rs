//! Storage: what is below a mount: how it is opened, and what an object store there has counted.

use crate::bucket::{self, Bucket};
use crate::leaving::once_left;
use crate::ram_options::ObjectOptions;
use sluice_fuse::control::ObjectStoreStat;
use sluice_store::StoreError;
use sluice_store::disk::{Disk, HostDisk, OverlayDisk};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::{Options, Superblock};
use std::path::Path;

/// The storage of one mount: a store in an object store or in a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Storage {
    pub(crate) options: ObjectOptions,
    /// The bucket that was opened last. *protected by its mutex*
    opened: Arc<Mutex<Option<Bucket>>>,
}

impl Storage {
    /// A storage that is used with these `options`.
    pub(crate) fn with(options: ObjectOptions) -> Storage {
        Storage { options, ..Storage::default() }
    }

    /// The bucket at the address `store`, with its cache, to be opened; none if it is the path of a directory.
    ///
    /// # Errors
    /// A wrong address.
    pub(crate) fn bucket(&self, store: &Path) -> Result<Option<Bucket>, StoreError> {
        let found = bucket::at(store)?.map(|bucket| bucket::with_cache(bucket, self.options.cache.as_ref()));
        self.opened.lock().clone_from(&found);
        Ok(found)
    }

    /// The file system in `store`; `looks`: opens it for reading only. `waits` is called when it must be seen who has the store.
    pub(crate) fn open(
        &self,
        store: &Path,
        options: Options,
        looks: bool,
        waits: &dyn Fn(&StoreError),
    ) -> Result<Arc<Superblock>, StoreError> {
        if let Some(bucket) = self.bucket(store)? {
            return bucket::open(&bucket, options, (looks, self.options.takeover), waits);
        }
        if !looks {
            return once_left(store, || Superblock::open(store, options.clone()));
        }
        let disk = once_left(store, || HostDisk::lock_read_only(store))?;
        disk.refuse_unfinished()?;
        let disk: Arc<dyn Disk> = Arc::new(OverlayDisk::new(Arc::new(disk)));
        Superblock::open_on(disk, options)
    }

    /// The counts of an object store: all 0 without one.
    pub(crate) fn stat(&self) -> ObjectStoreStat {
        self.opened.lock().clone().as_ref().map_or_else(ObjectStoreStat::default, bucket::stat)
    }
}
