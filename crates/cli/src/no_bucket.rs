//! No bucket: stands for `bucket.rs` in a build without object stores, and refuses each address of one.

pub(crate) use NoBucket as Bucket;

use crate::failures::failure;
use sluice_console::failure::Result;
use sluice_fuse::control::ObjectStoreStat;
use sluice_store::{Info, KeySlot, Progress, Report, StoreError, StoreKey};
use sluice_sync::Arc;
use sluice_vfs::{Options, Superblock};
use std::io;
use std::path::{Path, PathBuf};

/// A place in an object store, of which this build has none.
#[derive(Clone, Debug)]
pub(crate) enum NoBucket {}

impl NoBucket {
    /// Whether `store` is the address of an object store.
    pub(crate) fn is_url(store: &Path) -> bool {
        store.to_str().is_some_and(|text| text.contains("://"))
    }

    /// None: see [`is_url`](Self::is_url).
    pub(crate) fn directory(_: &Path) -> Option<&Path> {
        None
    }

    pub(crate) fn info(&self) -> std::result::Result<Info, StoreError> {
        match *self {}
    }

    pub(crate) fn user(&self) -> std::result::Result<Option<StoreError>, StoreError> {
        match *self {}
    }
}

fn absent() -> StoreError {
    let text = "this build of sluice has no object stores; `make build` in the source of sluicefs makes one that has";
    StoreError::Io("open the store", io::Error::new(io::ErrorKind::Unsupported, text))
}

pub(crate) fn at(store: &Path) -> std::result::Result<Option<NoBucket>, StoreError> {
    if NoBucket::is_url(store) { Err(absent()) } else { Ok(None) }
}

/// Refuses a `store` in an object store, as a person has written it.
pub(crate) fn given(store: &Path) -> Result<Option<NoBucket>> {
    refuse_misspelt(store)?;
    at(store).map_err(failure(store))
}

/// Refuses `s3:/b/p`, which is nearly an address, too. A directory of that name can be given as `./s3:/b/p`.
pub(crate) fn refuse_misspelt(store: &Path) -> Result<()> {
    let scheme = store.to_str().and_then(|text| text.split_once(':')).map(|(scheme, _)| scheme);
    let is_near =
        scheme.is_some_and(|scheme| ["s3", "file"].iter().any(|one| scheme.eq_ignore_ascii_case(one)));
    if is_near { Err(failure(store)(absent())) } else { Ok(()) }
}

pub(crate) fn mkfs(
    store: &Path,
    _is_compressed: bool,
    _key: &dyn Fn() -> Result<Option<StoreKey>>,
) -> Result<bool> {
    refuse_misspelt(store)?;
    at(store).map_err(failure(store))?;
    Ok(false)
}

pub(crate) fn open(
    bucket: &Bucket,
    _: Options,
    _: (bool, bool),
    _: &dyn Fn(&StoreError),
) -> std::result::Result<Arc<Superblock>, StoreError> {
    match *bucket {}
}

pub(crate) fn with_cache(bucket: Bucket, _: Option<&(PathBuf, u64)>) -> Bucket {
    match bucket {}
}

pub(crate) fn stat(bucket: &Bucket) -> ObjectStoreStat {
    match *bucket {}
}

pub(crate) fn info(bucket: &Bucket) -> std::result::Result<(Info, u64, Option<StoreError>), StoreError> {
    match *bucket {}
}

pub(crate) fn is_encrypted(bucket: &Bucket) -> bool {
    match *bucket {}
}

pub(crate) fn unlocked(bucket: &Bucket, _: &StoreKey) -> std::result::Result<Bucket, StoreError> {
    match *bucket {}
}

pub(crate) fn keys(bucket: &Bucket) -> std::result::Result<Vec<KeySlot>, StoreError> {
    match *bucket {}
}

pub(crate) fn add_key(bucket: &Bucket, _: &StoreKey, _: &StoreKey) -> std::result::Result<usize, StoreError> {
    match *bucket {}
}

pub(crate) fn remove_key(bucket: &Bucket, _: &StoreKey, _: usize) -> std::result::Result<(), StoreError> {
    match *bucket {}
}

pub(crate) fn check(bucket: &Bucket, _: &mut dyn FnMut(Progress)) -> std::result::Result<Report, StoreError> {
    match *bucket {}
}

pub(crate) fn repair(bucket: &Bucket) -> std::result::Result<(), StoreError> {
    match *bucket {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_what_is_nearly_one_are_refused_and_directories_are_not() {
        for address in ["s3://bucket/path", "file:///directory", "gs://bucket", "s3:/bucket", "S3:bucket"] {
            let failure = mkfs(Path::new(address), false, &|| Ok(None)).unwrap_err().to_string();
            let tells = |word| failure.contains(word);
            assert!(tells(address) && tells("no object stores") && tells("make build"), "{failure}");
        }
        for directory in ["/srv/store", "./s3:/bucket", "s3", "a:b"] {
            assert_eq!(mkfs(Path::new(directory), false, &|| Ok(None)), Ok(false), "{directory}");
        }
    }
}
