//! Failures of stores and mounts, with the commands that help.

use sluice_console::failure::Failure;
use sluice_fuse::MountError;
use sluice_store::StoreError;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The cure for a full disk where nothing is mounted.
pub(crate) const MEANWHILE: &str = "; -o ro mounts it meanwhile";

/// The text of an error of the store at `store` for a person.
pub(crate) fn failure(store: &Path) -> impl Fn(StoreError) -> Failure {
    move |error| {
        let text = format!("{}: {}", store.display(), told(&error));
        match error {
            // An address, or a variable of the environment, is refused.
            StoreError::Io(_, error)
                if error.kind() == ErrorKind::InvalidInput && error.get_ref().is_some() =>
            {
                Failure::Usage(text)
            }
            _ => Failure::Failed(text),
        }
    }
}

/// The text of an error of a store, with the command that helps.
pub(crate) fn told(error: &StoreError) -> String {
    let help = match error {
        StoreError::NotAStore => " (make one: sluice mkfs STORE)",
        StoreError::NewerFormat(_) => " (use a newer sluice)",
        StoreError::Damaged(_) => " (check it: sluice fsck STORE)",
        StoreError::DamagedLog(_) => {
            " (see what is lost: sluice fsck STORE; give it up and go on: sluice fsck --repair STORE)"
        }
        StoreError::Locked => {
            " (-o key_file=FILE or passphrase_file=FILE; for commands --key-file or --passphrase-file)"
        }
        StoreError::Lost => " (make it anew: sluice mkfs STORE)",
        StoreError::Io(_, error) if lacks_room(error) => {
            return format!("{error} (make room on the disk that has the store{MEANWHILE})");
        }
        _ => "",
    };
    format!("{error}{help}")
}

/// Whether a disk has no room, or a quota of the host leaves none.
pub(crate) fn lacks_room(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The failure to mount or unmount, with the command that helps.
pub(crate) fn mount_failure(error: MountError) -> Failure {
    let help = match &error {
        MountError::Mounted(dir) | MountError::Dead(dir) => format!(" (sluice umount {})", dir.display()),
        _ => String::new(),
    };
    let text = format!("{error}{help}");
    match error {
        MountError::Checks(_) | MountError::ForRootAlone(_) => Failure::Usage(text),
        _ => Failure::Failed(text),
    }
}
