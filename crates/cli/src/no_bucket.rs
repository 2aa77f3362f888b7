//! No bucket: stands for `bucket.rs` in a build without object stores, and refuses each address of one.

pub(crate) use NoBucket as Bucket;

use sluice_console::failure::{Failure, Result};
use sluice_store::{Info, Progress, Report, StoreError};
use sluice_sync::Arc;
use sluice_vfs::{Options, Superblock};
use std::io;
use std::path::Path;

/// A place in an object store, of which this build has none.
pub(crate) enum NoBucket {}

impl NoBucket {
    /// Whether `store` is the address of an object store.
    pub(crate) fn is_url(store: &Path) -> bool {
        store.to_str().is_some_and(|text| text.contains("://"))
    }

    pub(crate) fn user(&self) -> std::result::Result<Option<StoreError>, StoreError> {
        match *self {}
    }
}

pub(crate) fn at(store: &Path) -> std::result::Result<Option<Bucket>, StoreError> {
    let text = "this build of sluice has no object stores; `make build` in the source of sluicefs makes one that has";
    match Bucket::is_url(store) {
        true => Err(StoreError::Io("open the store", io::Error::new(io::ErrorKind::Unsupported, text))),
        false => Ok(None),
    }
}

pub(crate) fn refuse_misspelt(_: &Path) -> Result<()> {
    Ok(())
}

pub(crate) fn mkfs(store: &Path) -> Result<bool> {
    at(store).map_err(crate::store::failure(store))?;
    Ok(false)
}

pub(crate) fn open(bucket: &Bucket, _: Options, _: bool) -> std::result::Result<Arc<Superblock>, StoreError> {
    match *bucket {}
}

pub(crate) fn info(bucket: &Bucket) -> std::result::Result<(Info, u64, Option<StoreError>), StoreError> {
    match *bucket {}
}

pub(crate) fn check(bucket: &Bucket, _: &mut dyn FnMut(Progress)) -> std::result::Result<Report, StoreError> {
    match *bucket {}
}

pub(crate) fn no_repair(store: &Path) -> Failure {
    Failure::Unsupported(format!("{}: not in this build", store.display()))
}
