//! The help texts of the commands about stores, and the arguments of fsck.

use super::KeyFiles;
use std::path::PathBuf;

pub(super) const MKFS_EXAMPLES: &str = "\
A store is a directory with a few files: see docs/format.md. Everything that fsync(2) made durable survives any crash.

Examples:
  sluice mkfs ~/store; sluice mount ~/store ~/scratch
  sluice mkfs --compress ~/logs
  sluice mkfs --encrypt ~/private                             asks for a passphrase, as mount then does
  head -c 32 /dev/urandom > ~/key; sluice mkfs --encrypt --key-file ~/key ~/private
  sluice mount -o key_file=/home/me/key ~/private ~/scratch";

pub(super) const KEY_EXAMPLES: &str = "\
A store has up to eight keys, each in a slot. The store stays encrypted under one master key, which each slot has once more: so nothing
else is written. A person who has had a key, and a copy of the file `keys` of that time, can read the store for good.

Examples:
  sluice key list ~/private
  sluice key add --key-file ~/key ~/private                   asks for the new passphrase
  sluice key add --key-file ~/key --new-key-file ~/key2 ~/private
  sluice key remove --key-file ~/key2 ~/private 0";

pub(super) const INFO_EXAMPLES: &str = "Examples:
  sluice info ~/store
  sluice info --json ~/store
  sluice info ~/scratch";

const FSCK_EXAMPLES: &str = "\
Looks at every record and every byte of data, and changes nothing without --repair. Files without a name go to lost+found.
A `note` is what a crash leaves, and no fault; a `count` is mended without loss; `damage` is not what was written.
Exit status as of fsck(8): 0 clean, 1 mended, 4 not mended, 8 could not be checked, 16 bad usage.

Examples:
  sluice fsck ~/store
  sluice fsck --repair ~/store
  sluice fsck s3://BUCKET/fs      also while it is mounted";

/// The options of `fsck`.
#[derive(clap::Args)]
#[command(after_help = FSCK_EXAMPLES)]
pub(crate) struct Fsck {
    /// Mend what can be mended
    #[arg(long)]
    pub(crate) repair: bool,
    /// As one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) key: KeyFiles,
    /// The store; nobody uses it meanwhile
    pub(crate) store: PathBuf,
}
