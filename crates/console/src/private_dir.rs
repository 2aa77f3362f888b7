//! Private directory: a directory of our own below one of the user's, removed when it is dropped.

use crate::failure::{Context, Result};
use sluice_sync::atomic::{AtomicU32, Ordering};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A fresh directory that only its owner may enter. Dropping it removes it with all its contents.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf, // immutable
}

static NEXT: AtomicU32 = AtomicU32::new(0); // atomic: numbers names, publishes nothing

impl PrivateDir {
    /// Creates a directory with a new name below `parent`.
    ///
    /// # Errors
    /// If `parent` is missing, or if its permissions forbid a new entry.
    pub fn below(parent: &Path) -> Result<PrivateDir> {
        let parent = parent.canonicalize().context(|| parent.display().to_string())?;
        loop {
            // Relaxed: only the number matters.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("sluice-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateDir { path }),
                // Left over by a process of the same number that was killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).context(|| format!("cannot create {}", path.display()));
                }
            }
        }
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // Nothing sensible can be done about an error here; the directory's name says whose it was.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Where this user's private mount points go: `$XDG_RUNTIME_DIR` where it exists, the temporary directory else.
pub fn runtime_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() && dir.is_dir() => dir,
        _ => std::env::temp_dir(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_directory_takes_its_contents_along() {
        let dir = PrivateDir::below(&std::env::temp_dir()).unwrap();
        let path = dir.path().to_owned();
        fs::create_dir(path.join("sub")).unwrap();
        fs::write(path.join("sub/file"), b"x").unwrap();
        let second = PrivateDir::below(&std::env::temp_dir()).unwrap();
        assert_ne!(path, second.path());
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_missing_parent_is_named() {
        let failure = PrivateDir::below(Path::new("/no/such/place")).unwrap_err();
        assert!(failure.to_string().starts_with("/no/such/place: "), "{failure}");
    }
}
