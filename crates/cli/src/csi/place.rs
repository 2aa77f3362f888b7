//! Place: the mount that holds the volumes. The plugin makes it of a store, or it stands already.
//!
//! # Theory
//! A mount that the plugin makes is one in the background, with a holder: it outlives the plugin, and the next plugin finds it by the
//! store's name in the table of mounts. When its holder is killed, too, the mount is dead, and so is each bind mount of a volume. Then the
//! next call takes all of them away, mounts the store again and mounts each volume where it was. A mount that stands already is made again
//! by whoever made it, and the next call sees another device number.

use super::bind_mounts::{is_dead_mount, renew};
use super::errors::{in_one_line, of_mount};
use crate::args::CsiArgs;
use crate::bucket::{self, Bucket};
use crate::mount_stat;
use crate::serve::mount_in_background;
use crate::watch::no_server;
use sluice_console::failure::{Context, Failure, Result};
use sluice_fuse::{Users, control, mount_table, source_at, unmount_at};
use sluice_store::Store;
use sluice_store::disk::HostDisk;
use sluice_sync::Mutex;
use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tonic::Status;

/// Below it a plugin mounts its store on a directory with the driver's name.
const MOUNTS: &str = "/run/sluicefs-csi";
/// The directory of the mount that the volumes are in.
const BASE: &str = "csi";

/// The mount that holds the volumes.
pub(super) struct VolumePlace {
    /// The store, if the plugin mounts it.
    store: Option<PathBuf>,
    options: Vec<String>,
    /// The directory whose `csi` has the volumes.
    dir: PathBuf,
    /// The source of the mount in the table of mounts.
    source: OsString,
    /// Whether the mount is of a cluster.
    is_shared: bool,
    /// The device number for which no dead mounts are left. *Protected by its mutex, held while others are taken away.*
    seen: Mutex<Option<u64>>,
}

impl VolumePlace {
    /// Mounts the store that `args` name, unless that is done.
    ///
    /// # Errors
    /// It can be neither found nor mounted.
    pub(super) fn open(args: &CsiArgs) -> Result<VolumePlace> {
        bucket::refuse_misspelt(&args.store)?;
        let named = || args.store.display().to_string();
        let is_url = Bucket::is_url(&args.store);
        let given = if is_url { args.store.clone() } else { args.store.canonicalize().context(named)? };
        // A store may itself stand in a mount.
        let is_store = is_url || HostDisk::unlocked(&given).and_then(|disk| Store::info(&disk)).is_ok();
        let dir = args.mount.clone().unwrap_or_else(|| Path::new(MOUNTS).join(&args.driver_name));
        let place = match is_store || !sluice_fuse::is_within(&given).context(named)? {
            true => VolumePlace {
                dir: std::path::absolute(dir)?,
                source: given.clone().into(),
                store: Some(given),
                options: args.options.clone(),
                is_shared: false,
                seen: Mutex::new(None),
            },
            false if args.mount.is_some() || !args.options.is_empty() => {
                let text = "is a mount: leave out --mount and -o, which are for a store that is mounted here";
                return Err(Failure::Usage(format!("{}: {text}", named())));
            }
            false => VolumePlace {
                source: source_of(&given).unwrap_or_default(),
                store: None,
                options: Vec::new(),
                dir: given,
                is_shared: false,
                seen: Mutex::new(None),
            },
        };
        place.mounted()
    }

    /// With its store mounted.
    fn mounted(mut self) -> Result<VolumePlace> {
        if let Some(store) = self.store.clone() {
            self.find_or_mount(&store)?;
        }
        self.is_shared = is_of_cluster(&self.dir)?;
        Ok(self)
    }

    fn find_or_mount(&mut self, store: &Path) -> Result<()> {
        // An earlier plugin has mounted the store, or a person.
        let is_store = |source: &OsString| source == store.as_os_str();
        let table = mount_table()?;
        let mut standing = table
            .iter()
            .rev()
            .filter(|entry| entry.is_sluicefs() && is_store(&entry.source) && entry.root == Path::new("/"));
        if let Some(entry) = standing.find(|entry| !is_dead_mount(&entry.mountpoint)) {
            self.dir = entry.mountpoint.clone();
        } else {
            self.mount()?;
        }
        Ok(())
    }

    /// Mounts the store.
    fn mount(&self) -> Result<()> {
        let named = || self.dir.display().to_string();
        if source_at(&self.dir).is_some() && is_dead_mount(&self.dir) {
            let _ = unmount_at(&self.dir, Users::LetFinish);
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).context(named)?;
        mount_in_background(self.store.as_deref(), &self.dir, &self.options, None)
    }

    /// The directory that holds the volumes, in a mount that answers.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the mount is dead, and the plugin cannot make it again.
    pub(super) fn reached(&self) -> std::result::Result<PathBuf, Status> {
        let base = self.dir.join(BASE);
        let mut seen = self.seen.lock();
        if is_dead_mount(&self.dir) && self.store.is_some() {
            log::warn!(
                "{}: the mount of the volumes is dead: the store is mounted again",
                self.dir.display()
            );
            self.mount().map_err(|failure| Status::unavailable(in_one_line(&failure)))?;
        }
        let device = self.dir.metadata().map_err(of_mount(&self.dir))?.dev();
        if *seen != Some(device) {
            rustix::fs::statfs(&self.dir).map_err(|errno| of_mount(&self.dir)(errno.into()))?;
            let renewed = renew(&self.source, &self.dir).map_err(of_mount(&self.dir))?;
            if renewed > 0 {
                log::warn!("{renewed} mounts of volumes were dead and are made again");
            }
            *seen = Some(device);
        }
        Ok(base)
    }

    /// The directory that has the volumes below it.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether other nodes reach the volumes, too: the mount is of a cluster.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// Whether the mount that holds `dir` is of a node of a cluster.
fn is_of_cluster(dir: &Path) -> Result<bool> {
    let stat = control::stat(dir).context(|| dir.display().to_string())?.ok_or_else(|| no_server(dir))?;
    Ok(!mount_stat::parse(&stat)?.cluster.is_empty())
}

/// The source of the mount that holds `dir`.
fn source_of(dir: &Path) -> Option<OsString> {
    dir.ancestors().find_map(source_at)
}
