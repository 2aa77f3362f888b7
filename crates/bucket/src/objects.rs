//! Objects: the place in an object store that a URL names, and the two ways in which small objects are written there.
//!
//! Credentials come from the environment or a file and never stand in a URL: it is shown in lists of mounts and of processes.

use crate::anchored::{Anchor, AnchoredObjects};
use crate::credentials::{self, Credentials};
use crate::error::of_objects;
use crate::reason;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use sluice_store::StoreError;
use sluice_sync::Arc;
use sluice_sync::time::Duration;
use std::io;
use std::os::unix::fs::DirBuilderExt;

/// Where all objects of one store are.
pub(crate) type Objects = Arc<dyn ObjectStore>;

/// How long the client tries one request again by itself. How long an answer may take: see `line`.
const REQUEST: Duration = Duration::from_secs(10);

/// The place that `url` names; with `make`, the directory of a `file://` is made if need be.
///
/// # Errors
/// A wrong URL, or wrong settings of the client.
pub(crate) fn at(url: &str, make: bool) -> Result<Objects, StoreError> {
    let refused = |what: &str| {
        let text = format!("{what}; a store's address is file:///DIRECTORY or s3://BUCKET/PATH");
        StoreError::Io("use this address", io::Error::new(io::ErrorKind::InvalidInput, text))
    };
    let Some((scheme, rest)) = url.split_once("://") else { return Err(refused("it has no scheme")) };
    match scheme {
        "file" => {
            if !rest.starts_with('/') {
                return Err(refused("the directory must begin with /"));
            }
            if make {
                std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(rest)
                    .map_err(|error| StoreError::Io("make the store's directory", error))?;
            }
            let local = LocalFileSystem::new_with_prefix(rest).map_err(|error| match &error {
                _ if !std::path::Path::new(rest).is_dir() => StoreError::NotAStore,
                _ => of_objects("open the directory")(error),
            })?;
            let objects = Arc::new(local.with_fsync(true));
            let anchor = std::fs::canonicalize(rest).and_then(Anchor::at);
            let anchor = anchor.map_err(|error| StoreError::Io("open the directory", error))?;
            Ok(Arc::new(AnchoredObjects { objects, anchor }))
        }
        "s3" => {
            let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() || bucket.contains('@') {
                return Err(refused("it names no bucket"));
            }
            if bucket.len() < 3
                || !bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
            {
                return Err(refused(&format!("`{bucket}` is no name of a bucket")));
            }
            let plain = s3_settings()?;
            let retry = RetryConfig { max_retries: 2, retry_timeout: 2 * REQUEST, ..RetryConfig::default() };
            let options = ClientOptions::new().with_allow_http(plain).with_timeout_disabled();
            // Once for the process: a second time changes nothing.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let mut s3 = AmazonS3Builder::from_env();
            if let Some(Credentials { key, secret, token }) = credentials::from_file() {
                s3 = s3.with_access_key_id(key).with_secret_access_key(secret);
                s3 = token.into_iter().fold(s3, AmazonS3Builder::with_token);
            }
            let s3 = s3.with_bucket_name(bucket).with_client_options(options).with_retry(retry);
            // The bucket has been looked at: what is left is the environment.
            let s3 = s3.build().map_err(|_| {
                let text = "a variable AWS_... has a value that cannot be used: see `env | grep AWS_`";
                StoreError::Io("use the environment", io::Error::new(io::ErrorKind::InvalidInput, text))
            })?;
            Ok(Arc::new(PrefixStore::new(s3, path.trim_matches('/'))))
        }
        _ => Err(refused("it is of an unknown kind")),
    }
}

/// Whether the server of S3 is reached without TLS, by the environment.
///
/// # Errors
/// Settings with which no request could be made.
fn s3_settings() -> Result<bool, StoreError> {
    let refused = |text: String| {
        Err(StoreError::Io("use the environment", io::Error::new(io::ErrorKind::InvalidInput, text)))
    };
    let is_usable = |value: &str| value.bytes().all(|byte| byte.is_ascii_graphic());
    let settings = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    for (name, value) in settings.filter(|(name, _)| name.starts_with("AWS_")) {
        // A value that is no text has a character that it cannot have, too.
        let value = value.to_string_lossy();
        if ["KEY", "SECRET", "TOKEN", "REGION"].iter().any(|part| name.contains(part)) && !is_usable(&value) {
            return refused(format!(
                "{name} has a space, a line's end or another character that it cannot have"
            ));
        }
    }
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    for [one, other] in [keys, [keys[1], keys[0]]] {
        if is_set(one) && !is_set(other) {
            return refused(format!("{one} is set and {other} is not: set both, or neither"));
        }
    }
    let mut plain = false;
    for name in ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"] {
        let Some(value) = std::env::var_os(name) else { continue };
        let value = value.to_string_lossy();
        if value.contains('@') {
            return refused(format!(
                "{name} has a user or a password: give these as {} and {}",
                keys[0], keys[1]
            ));
        }
        let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
        let is_url = is_usable(&value) && reqwest::Url::parse(&value).is_ok_and(|url| url.has_host());
        if !is_url || host.is_none_or(str::is_empty) {
            return refused(format!(
                "{name} is `{}`, which is no URL: give it as http://HOST:PORT or https://HOST",
                value.escape_debug()
            ));
        }
        plain |= value.starts_with("http://");
    }
    Ok(plain)
}

/// Makes the object `path` if it is missing; false if an object with other content exists. An answer that was lost is
/// asked for again: `bytes` must be such as nobody else writes.
///
/// # Errors
/// Errors of the object store: then it is unknown whether the object was made.
pub(crate) async fn create(objects: &Objects, path: &Path, bytes: &[u8]) -> Result<bool, StoreError> {
    const TRIES: usize = 5;
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    let mut last = None;
    for _ in 0..TRIES {
        let payload = PutPayload::from(bytes.to_vec());
        match objects.put_opts(path, payload, options.clone()).await {
            Ok(_) => return Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => {
                return Ok(get(objects, path).await?.as_deref() == Some(bytes));
            }
            // The object may have been made all the same.
            Err(error) => last = Some(error),
        }
    }
    let error = last.expect("tried at least once");
    Err(of_objects("make an object")(error))
}

/// Writes the object `path`, whether or not it is there.
///
/// # Errors
/// The object store's.
pub(crate) async fn put(objects: &Objects, path: &Path, bytes: Vec<u8>) -> Result<(), StoreError> {
    objects.put(path, PutPayload::from(bytes)).await.map_err(of_objects("write an object"))?;
    Ok(())
}

/// The content of the object `path`; None if it is missing.
///
/// # Errors
/// The object store's.
pub(crate) async fn get(objects: &Objects, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    /// Objects read by this function are never larger.
    const MAX: u64 = 1 << 16;
    let found = match objects.get(path).await {
        // Not when the bucket, or the key of the caller, is missing.
        Err(error @ object_store::Error::NotFound { .. })
            if reason::code(&error.to_string()).is_none_or(|code| code == "NoSuchKey") =>
        {
            return Ok(None);
        }
        found => found.map_err(of_objects("read an object"))?,
    };
    if found.meta.size > MAX {
        return Err(StoreError::Damaged(format!("`{path}` has {} bytes", found.meta.size)));
    }
    Ok(Some(found.bytes().await.map_err(of_objects("read an object"))?.to_vec()))
}

/// Deletes the object `path`, if it is there.
///
/// # Errors
/// The object store's.
pub(crate) async fn delete(objects: &Objects, path: &Path) -> Result<(), StoreError> {
    match objects.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(of_objects("delete an object")(error)),
    }
}

/// The paths of all objects.
///
/// # Errors
/// The object store's.
pub(crate) async fn paths(objects: &Objects) -> Result<Vec<Path>, StoreError> {
    Ok(all(objects).await?.into_iter().map(|one| one.location).collect())
}

/// Bytes that all objects take.
///
/// # Errors
/// The object store's.
pub(crate) async fn size(objects: &Objects) -> Result<u64, StoreError> {
    Ok(all(objects).await?.iter().map(|one| one.size).sum())
}

async fn all(objects: &Objects) -> Result<Vec<ObjectMeta>, StoreError> {
    let (mut places, mut all) = (vec![Path::default()], Vec::new());
    while let Some(place) = places.pop() {
        let found =
            objects.list_with_delimiter(Some(&place)).await.map_err(of_objects("list the objects"))?;
        all.extend(found.objects);
        places.extend(found.common_prefixes);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_a_scheme_is_no_address() {
        let refused = at("bucket/path", false).expect_err("it is a path").to_string();
        assert!(refused.contains("it has no scheme; a store's address is "), "{refused}");
    }
}
