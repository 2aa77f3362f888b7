//! Places: where the workspaces of a cluster have their stores: below that of the file system, by number.

use crate::bucket::Bucket;
use crate::cluster;
use crate::storage::Storage;
use sluice_cluster::{Cluster, WorkspaceStores};
use sluice_membership::Membership;
use sluice_store::StoreError;
use sluice_sync::Arc;
use sluice_sync::time::Duration;
use sluice_vfs::{Cred, Errno, Options, SetAttr, Superblock};
use std::io;
use std::path::{Path, PathBuf};

/// The greatest number of a workspace.
const NUMBER_MAX: u32 = sluice_fuse::WORKSPACES_MAX;

/// The stores of the workspaces of one file system in an object store.
pub(crate) struct WorkspacePlaces {
    /// The address of the file system's own store, without a slash at its end.
    base: String,
    storage: Storage,
    options: Options,
    cluster: Cluster,
}

impl WorkspacePlaces {
    /// The stores below `store`, opened with the same options; none for a store in a directory.
    pub(crate) fn below(
        store: &Path,
        storage: &Storage,
        options: &Options,
        cluster: &Cluster,
    ) -> Option<WorkspacePlaces> {
        let base = store.to_str().filter(|_| Bucket::is_url(store))?.trim_end_matches('/').to_owned();
        let (storage, options, cluster) =
            (Storage::with(storage.options.clone()), options.clone(), cluster.clone());
        Some(WorkspacePlaces { base, storage, options, cluster })
    }

    fn address(&self, number: u32) -> String {
        format!("{}/workspaces/{number}", self.base)
    }

    /// The greatest number of a workspace. Stores are made in the order of their numbers, and stay: so the last one is found by halving.
    fn last(&self) -> io::Result<u32> {
        let mut beyond = 1;
        while beyond <= NUMBER_MAX && self.exists(beyond)? {
            beyond *= 2;
        }
        let (mut last, mut beyond) = (beyond / 2, beyond.min(NUMBER_MAX + 1));
        while last + 1 < beyond {
            let middle = last + (beyond - last) / 2;
            match self.exists(middle)? {
                true => last = middle,
                false => beyond = middle,
            }
        }
        Ok(last)
    }

    /// Makes the store of workspace `number`. False: another node has made it.
    fn try_make(&self, number: u32, root: [u32; 3]) -> Result<bool, StoreError> {
        let made = make_empty(&self.address(number), self.options.clone(), root);
        match made {
            Ok(()) => Ok(true),
            Err(StoreError::Exists | StoreError::InUse(_) | StoreError::Claimed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl WorkspaceStores for WorkspacePlaces {
    fn exists(&self, number: u32) -> io::Result<bool> {
        let info = Bucket::at(&self.address(number)).and_then(|bucket| bucket.info());
        match info {
            Ok(_) => Ok(true),
            Err(StoreError::NotAStore) => Ok(false),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn membership(&self, number: u32) -> io::Result<Arc<dyn Membership>> {
        self.cluster.workspace_membership(number)
    }

    fn open(&self, number: u32, epoch: u64) -> io::Result<Arc<Superblock>> {
        let place = PathBuf::from(self.address(number));
        // Each has statistics of its own.
        let storage = Storage::with(self.storage.options.clone());
        cluster::open((&place, &storage), self.options.clone(), (&self.cluster, epoch))
            .map_err(io::Error::other)
    }

    fn make(&self, root: [u32; 3]) -> io::Result<u32> {
        let last = self.last()?;
        for number in last + 1..=NUMBER_MAX {
            if self.try_make(number, root).map_err(io::Error::other)? {
                return Ok(number);
            }
        }
        Err(io::Error::other(
            "there are no numbers left for workspaces: the store of a deleted one keeps its number",
        ))
    }

    fn park_after(&self) -> Option<Duration> {
        self.storage.options.park
    }
}

/// Makes an empty file system at the address `url`, as `options` say, with this mode, owner and group of its root.
fn make_empty(url: &str, options: Options, [mode, uid, gid]: [u32; 3]) -> Result<(), StoreError> {
    let made = Bucket::make(url)?.create(options.store.clone())?;
    let superblock = Superblock::create_in(made, options)?;
    let change = SetAttr { mode: Some(mode), uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    let io = |errno: Errno| StoreError::Io("make a store", errno.into());
    superblock.root().set_attr(&Cred::root(), &change).map_err(io)?;
    superblock.sync().and_then(|()| superblock.close()).map_err(io)
}
