//! Bucket: what is done to a store whose address is a URL: `mkfs`, `info`, `fsck`, and opening it for a mount.

pub(crate) use sluice_bucket::Bucket;

use crate::failures::failure;
use crate::ram_options;
use sluice_bucket::{Claim, DiskCache, RequestCounts, Traffic};
use sluice_console::failure::{Context, Failure, Result};
use sluice_fuse::control::{Latency, ObjectRequests, ObjectStoreStat};
use sluice_store::{Info, KeySlot, Progress, Report, StoreError, StoreKey};
use sluice_sync::Arc;
use sluice_vfs::{Options, Superblock};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

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
/// That `store` is nearly an address, or one for the store of another kind. A directory of that name can be given as `./NAME`.
pub(crate) fn refuse_misspelt(store: &Path) -> Result<()> {
    let named = store.display();
    if Bucket::is_url(store) && store.to_str().is_none() {
        return Err(Failure::Usage(format!("{named}: an address is text in UTF-8")));
    }
    if let Some(right) = Bucket::misspelt(store) {
        let text =
            format!("{named}: for a store in an object store write {right}; for a directory, ./{named}");
        return Err(Failure::Usage(text));
    }
    let has = |dir: &Path, names: [&str; 2]| names.iter().all(|name| dir.join(name).exists());
    let right = match Bucket::directory(store) {
        Some(dir) => has(dir, ["super", "log"]).then(|| dir.display().to_string()),
        None if Bucket::is_url(store) || store.join("log").exists() => None,
        None => {
            let whole = std::path::absolute(store).unwrap_or_else(|_| store.to_owned());
            has(store, ["owners", "records"]).then(|| format!("file://{}", whole.display()))
        }
    };
    right.map_or(Ok(()), |right| {
        Err(Failure::Usage(format!("{named}: the store there is of another kind: give {right}")))
    })
}

fn url(store: &Path) -> Option<&str> {
    store.to_str().filter(|_| Bucket::is_url(store))
}

/// Makes an empty file system, if the store's place is the address of one: false if it is none. `key` gives the key of an encrypted
/// one.
pub(crate) fn mkfs(
    store: &Path,
    is_compressed: bool,
    key: &dyn Fn() -> Result<Option<StoreKey>>,
) -> Result<bool> {
    refuse_misspelt(store)?;
    let Some(url) = url(store) else { return Ok(false) };
    let mut options = ram_options::parse_for_store("")?.ram;
    options.store.compress = is_compressed;
    let bucket = Bucket::make(url).map_err(failure(store))?;
    options.store.key = key()?;
    let made = bucket.create(options.store.clone()).and_then(|made| Superblock::create_in(made, options));
    let superblock = made.map_err(failure(store))?;
    if let Some(dir) = Bucket::directory(store) {
        // Its objects are readable by all.
        let closed = std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700));
        closed.context(|| dir.display().to_string())?;
    }
    superblock.sync().and_then(|()| superblock.close()).context(|| store.display().to_string())?;
    Ok(true)
}

/// The file system in `bucket`; `looks`: opens it for reading only; `takes_over`: takes it from a process that has it. `waits`: see
/// [`Bucket::open_telling`].
pub(crate) fn open(
    bucket: &Bucket,
    options: Options,
    (looks, takes_over): (bool, bool),
    waits: &dyn Fn(&StoreError),
) -> std::result::Result<Arc<Superblock>, StoreError> {
    let store = match looks {
        true => bucket.look(options.store.clone()),
        false if takes_over => bucket.open(Claim::Takeover, options.store.clone()),
        false => bucket.open_telling(Claim::Alone, options.store.clone(), waits),
    };
    Superblock::open_in(store?, options)
}

/// `bucket` with a cache in a directory, of so many bytes.
pub(crate) fn with_cache(bucket: Bucket, cache: Option<&(PathBuf, u64)>) -> Bucket {
    let Some((dir, bytes)) = cache else { return bucket };
    bucket.with_cache(DiskCache { dir: dir.clone(), bytes: *bytes })
}

/// The requests of the store that was opened in `bucket`.
pub(crate) fn stat(bucket: &Bucket) -> ObjectStoreStat {
    let Traffic { requests, cache_lookups, cache_hits, cache_bytes, write_stalls } = bucket.traffic();
    let of_kind = |counts: RequestCounts| {
        let RequestCounts { kind, failed, ns_total, buckets } = counts;
        (kind.to_owned(), ObjectRequests { failed, latency: Latency { ns_total, buckets } })
    };
    let object_requests = requests.into_iter().map(of_kind).collect();
    ObjectStoreStat { object_requests, cache_lookups, cache_hits, cache_bytes, write_stalls }
}

/// The store's own info, the bytes of its objects, and its user.
pub(crate) fn info(bucket: &Bucket) -> std::result::Result<(Info, u64, Option<StoreError>), StoreError> {
    Ok((bucket.info()?, bucket.size()?, bucket.user()?))
}

/// Whether the store is encrypted.
pub(crate) fn is_encrypted(bucket: &Bucket) -> bool {
    bucket.info().is_ok_and(|info| info.key_id.is_some())
}

/// `bucket` with its encrypted store, which `key` opens.
pub(crate) fn unlocked(bucket: &Bucket, key: &StoreKey) -> std::result::Result<Bucket, StoreError> {
    bucket.unlocked(key)
}

/// The slots of the encrypted store that are used.
pub(crate) fn keys(bucket: &Bucket) -> std::result::Result<Vec<KeySlot>, StoreError> {
    bucket.keys()
}

/// Lets `new` open the store that `key` opens, and that nobody has open: its slot.
pub(crate) fn add_key(
    bucket: &Bucket,
    key: &StoreKey,
    new: &StoreKey,
) -> std::result::Result<usize, StoreError> {
    bucket.change_keys(|keys| keys.add(key, new))
}

/// Takes from the key of `slot` that it opens the store that `key` opens, and that nobody has open.
pub(crate) fn remove_key(
    bucket: &Bucket,
    key: &StoreKey,
    slot: usize,
) -> std::result::Result<(), StoreError> {
    bucket.change_keys(|keys| keys.remove(key, slot))
}

/// Checks the store, which may be in use.
pub(crate) fn check(
    bucket: &Bucket,
    progress: &mut dyn FnMut(Progress),
) -> std::result::Result<Report, StoreError> {
    Superblock::check_shown(|look| bucket.check(look, progress))
}

/// Mends the store, which nobody may have open.
pub(crate) fn repair(bucket: &Bucket) -> std::result::Result<(), StoreError> {
    let options = sluice_store::Options::default().background(false);
    Superblock::repair_opened(
        |look| bucket.check(look, &mut |_| ()),
        || bucket.open_without_lost(options.clone()),
    )
}
