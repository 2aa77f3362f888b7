//! Address: what the address of a store says by itself, without a look at the object store.

use crate::Bucket;
use std::path::Path;

impl Bucket {
    /// Whether `store` is the address of a store in an object store, and not the path of a directory.
    pub fn is_url(store: &Path) -> bool {
        store.as_os_str().as_encoded_bytes().windows(3).any(|part| part == b"://")
    }

    /// The directory of a store with the address `file:///DIRECTORY`; none for other stores.
    pub fn directory(store: &Path) -> Option<&Path> {
        store.to_str()?.strip_prefix("file://").map(Path::new)
    }

    /// Whether `store` is an address with too few slashes or with capitals, such as `s3:/BUCKET/PATH`, and not meant as a directory: how it
    /// is spelt.
    ///
    /// ```
    /// # use std::path::Path;
    /// use sluice_bucket::Bucket;
    /// assert_eq!(Bucket::misspelt(Path::new("s3:/b/p")).as_deref(), Some("s3://b/p"));
    /// assert_eq!(Bucket::misspelt(Path::new("S3://b/p")).as_deref(), Some("s3://b/p"));
    /// assert_eq!(Bucket::misspelt(Path::new("file:p")).as_deref(), Some("file:///p"));
    /// assert_eq!(Bucket::misspelt(Path::new("s3://b/p")), None);
    /// assert_eq!(Bucket::misspelt(Path::new("./s3:/b")), None);
    /// ```
    pub fn misspelt(store: &Path) -> Option<String> {
        let store = store.to_string_lossy();
        let (scheme, rest) = store.split_once(':')?;
        let is_small = !scheme.contains(|letter: char| letter.is_ascii_uppercase());
        let scheme = scheme.to_ascii_lowercase();
        let slashes = match scheme.as_str() {
            "s3" => "//",
            "file" => "///",
            _ => return None,
        };
        (!(is_small && rest.starts_with("//")))
            .then(|| format!("{scheme}:{slashes}{}", rest.trim_start_matches('/')))
    }
}
