//! Bucket: what is done to a store whose address is a URL: `mkfs`, `info`, `fsck`, and opening it for a mount.

pub(crate) use sluice_bucket::Bucket;

use crate::ram_options;
use crate::store::failure;
use sluice_bucket::Claim;
use sluice_console::failure::{Context, Failure, Result};
use sluice_store::{Info, Progress, Report, StoreError};
use sluice_sync::Arc;
use sluice_vfs::{Options, Superblock};
use std::path::Path;

/// The place at the address `store`; none if it is the path of a directory.
///
/// # Errors
/// A wrong address.
pub(crate) fn at(store: &Path) -> std::result::Result<Option<Bucket>, StoreError> {
    url(store).map(Bucket::at).transpose()
}

/// The bucket that a person has written as `store`, if it is an address.
///
/// # Errors
/// A wrong address.
pub(crate) fn given(store: &Path) -> Result<Option<Bucket>> {
    refuse_misspelt(store)?;
    at(store).map_err(failure(store))
}

/// # Errors
/// That `store` is nearly an address. A directory of that name can be given as `./NAME`.
pub(crate) fn refuse_misspelt(store: &Path) -> Result<()> {
    let text = |right: String| {
        format!(
            "{}: for a store in an object store write {right}; for a directory, ./{}",
            store.display(),
            store.display()
        )
    };
    Bucket::misspelt(store).map_or(Ok(()), |right| Err(Failure::Usage(text(right))))
}

fn url(store: &Path) -> Option<&str> {
    store.to_str().filter(|_| Bucket::is_url(store))
}

/// Makes an empty file system, if the store's place is the address of one: false if it is none.
pub(crate) fn mkfs(store: &Path) -> Result<bool> {
    refuse_misspelt(store)?;
    let Some(url) = url(store) else { return Ok(false) };
    let (options, _) = ram_options::parse_for_store("")?;
    let made = Bucket::make(url).and_then(|bucket| {
        let made = bucket.create(options.store.clone())?;
        Superblock::create_in(made, options)
    });
    let superblock = made.map_err(failure(store))?;
    superblock.sync().and_then(|()| superblock.close()).context(|| store.display().to_string())?;
    Ok(true)
}

/// The file system in `bucket`; `looks`: opens it for reading only.
pub(crate) fn open(
    bucket: &Bucket,
    options: Options,
    looks: bool,
) -> std::result::Result<Arc<Superblock>, StoreError> {
    let store = match looks {
        true => bucket.look(options.store.clone()),
        false if options.store.takeover => bucket.open(Claim::Takeover, options.store.clone()),
        false => bucket.open(Claim::Alone, options.store.clone()),
    };
    Superblock::open_in(store?, options)
}

/// The store's own info, the bytes of its objects, and its user.
pub(crate) fn info(bucket: &Bucket) -> std::result::Result<(Info, u64, Option<StoreError>), StoreError> {
    Ok((bucket.info()?, bucket.size()?, bucket.user()?))
}

/// Checks the store, which may be in use.
pub(crate) fn check(
    bucket: &Bucket,
    progress: &mut dyn FnMut(Progress),
) -> std::result::Result<Report, StoreError> {
    Superblock::check_shown(|look| bucket.check(look, progress))
}

/// That a store in an object store is not mended, as an error.
pub(crate) fn no_repair(store: &Path) -> Failure {
    let text = "a store in an object store is checked, and cannot be mended yet";
    Failure::Unsupported(format!("{}: {text}", store.display()))
}
