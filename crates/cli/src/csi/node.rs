//! Node: directories of volumes are mounted where programs of this machine find them.
//!
//! # Theory
//! A volume is staged once on a node: a bind mount of its directory. To publish it is to mount that once more, for a program, with the
//! options of the program. Each call looks at the table of mounts first, so a caller may repeat it.

use super::Plugin;
use super::bind_mounts::{bind, is_dead_mount, is_read_only, mounts_of, mounts_on, place_of, shows, unbind};
use super::capabilities::{answer, flags_of};
use super::errors::{given, of_mount};
use super::messages::*;
use super::volumes::{VolumeShelf, signed};
use rustix::mount::MountFlags;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tonic::Status;

/// The calls that a node serves, by the numbers of the interface: stage, statistics, expansion, modes of one node.
const CAPABILITIES: [i32; 4] = [1, 2, 3, 5];
/// Units of the use of a volume.
const BYTES: i32 = 1;
const INODES: i32 = 2;

impl Plugin {
    pub(super) fn node_capabilities(&self, _: EmptyMessage) -> Result<GetCapabilitiesResponse, Status> {
        Ok(answer(&CAPABILITIES))
    }

    pub(super) fn node_info(&self, _: EmptyMessage) -> Result<NodeGetInfoResponse, Status> {
        Ok(NodeGetInfoResponse { node_id: self.node_id.clone(), accessible_topology: self.topology() })
    }

    pub(super) fn stage(&self, request: NodeStageVolumeRequest) -> Result<EmptyMessage, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let staging = absolute("staging_target_path", &request.staging_target_path)?;
        flags_of(request.volume_capability.as_ref(), self.place.is_shared())?;
        let _held = self.busy.hold(VolumeShelf::Volumes, id)?;
        let volume = self.directory_of(id)?;
        take_dead_away(&staging)?;
        if shows(&staging, &volume).map_err(of_mount(&staging))? {
            return Ok(EmptyMessage {});
        }
        refuse_other(&staging)?;
        fs::create_dir_all(&staging).map_err(of_mount(&staging))?;
        bind(&volume, &staging, MountFlags::empty()).map_err(of_mount(&staging))?;
        Ok(EmptyMessage {})
    }

    pub(super) fn unstage(&self, request: NodeUnmountRequest) -> Result<EmptyMessage, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let staging = absolute("staging_target_path", &request.path)?;
        let _held = self.busy.hold(VolumeShelf::Volumes, id)?;
        unbind(&staging).map_err(of_mount(&staging))?;
        Ok(EmptyMessage {})
    }

    pub(super) fn publish(&self, request: NodePublishVolumeRequest) -> Result<EmptyMessage, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let target = absolute("target_path", &request.target_path)?;
        let (mut flags, mode) = flags_of(request.volume_capability.as_ref(), self.place.is_shared())?;
        let staging = absolute("staging_target_path", &request.staging_target_path)?;
        flags.set(MountFlags::RDONLY, flags.contains(MountFlags::RDONLY) || request.readonly);
        let _held = self.busy.hold(VolumeShelf::Volumes, id)?;
        let volume = self.directory_of(id)?;
        if !shows(&staging, &volume).map_err(of_mount(&staging))? {
            let text =
                format!("the volume {id} is not staged on {}: call NodeStageVolume", staging.display());
            return Err(Status::failed_precondition(text));
        }
        take_dead_away(&target)?;
        if shows(&target, &volume).map_err(of_mount(&target))? {
            let is_so = |path: &Path| is_read_only(path).map_err(of_mount(path));
            let wanted = flags.contains(MountFlags::RDONLY) || is_so(&staging)?;
            return if is_so(&target)? == wanted {
                Ok(EmptyMessage {})
            } else {
                Err(otherwise_published(id, &target))
            };
        }
        refuse_other(&target)?;
        if mode == VolumeAccess::SingleNodeSingleWriter {
            refuse_second(id, &volume, [&staging, &target])?;
        }
        // The directory above is the caller's.
        match fs::create_dir(&target) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(of_mount(&target)(error)),
            _ => {}
        }
        bind(&staging, &target, flags).map_err(of_mount(&target))?;
        Ok(EmptyMessage {})
    }

    pub(super) fn unpublish(&self, request: NodeUnmountRequest) -> Result<EmptyMessage, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let target = absolute("target_path", &request.path)?;
        let _held = self.busy.hold(VolumeShelf::Volumes, id)?;
        unbind(&target).map_err(of_mount(&target))?;
        match fs::remove_dir(&target) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(of_mount(&target)(error)),
            _ => Ok(EmptyMessage {}),
        }
    }

    pub(super) fn volume_stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let path = Path::new(given("volume_path", &request.volume_path)?);
        self.find_on(id, path)?;
        // Within a quota the server tells the limit and what is left of it.
        let told = rustix::fs::statvfs(path).map_err(|errno| of_mount(path)(errno.into()))?;
        let usage = |unit, [total, free, available]: [u64; 3]| VolumeUsage {
            available: signed(available),
            total: signed(total),
            used: signed(total.saturating_sub(free)),
            unit,
        };
        let bytes = [told.f_blocks, told.f_bfree, told.f_bavail].map(|blocks| blocks * told.f_frsize);
        let inodes = [told.f_files, told.f_ffree, told.f_favail];
        Ok(NodeGetVolumeStatsResponse { usage: vec![usage(BYTES, bytes), usage(INODES, inodes)] })
    }

    /// Raises the quota of a volume, unless the controller has done that.
    pub(super) fn node_expand_volume(
        &self,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        self.find_on(id, Path::new(given("volume_path", &request.volume_path)?))?;
        Ok(NodeExpandVolumeResponse { capacity_bytes: self.expand(id, request.capacity_range)? })
    }

    /// The directory of a volume that is there.
    fn directory_of(&self, id: &str) -> Result<PathBuf, Status> {
        let volumes = self.volumes()?;
        volumes.volume(id)?;
        Ok(volumes.path(VolumeShelf::Volumes, id))
    }

    /// # Errors
    /// `NOT_FOUND`: the volume does not exist, or `path` does not show its directory.
    fn find_on(&self, id: &str, path: &Path) -> Result<(), Status> {
        let volume = self.directory_of(id)?;
        match shows(path, &volume).map_err(of_mount(path))? {
            true => Ok(()),
            false => {
                let text = format!("the volume {id} is not mounted on {}: publish it there", path.display());
                Err(Status::not_found(text))
            }
        }
    }
}

/// The path in the field `name`.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing, or relative.
fn absolute(name: &str, path: &str) -> Result<PathBuf, Status> {
    let path = Path::new(given(name, path)?);
    if !path.is_absolute() {
        let text = format!("{}: a relative path in {name}: give one from the root", path.display());
        return Err(Status::invalid_argument(text));
    }
    // Without links, where its parent is there.
    Ok(place_of(path).unwrap_or_else(|_| path.to_owned()))
}

/// Takes a dead mount on `path` away.
fn take_dead_away(path: &Path) -> Result<(), Status> {
    if is_dead_mount(path) { unbind(path).map_err(of_mount(path)) } else { Ok(()) }
}

/// # Errors
/// `ALREADY_EXISTS`: something else is mounted on `path`.
fn refuse_other(path: &Path) -> Result<(), Status> {
    match mounts_on(path).map_err(of_mount(path))?.last() {
        Some(_) => {
            let text = format!("{}: something else is mounted there: unmount it", path.display());
            Err(Status::already_exists(text))
        }
        None => Ok(()),
    }
}

fn otherwise_published(id: &str, target: &Path) -> Status {
    let place = target.display();
    let text =
        format!("the volume {id} is on {place}, read-only or not as it was asked first: unpublish it first");
    Status::already_exists(text)
}

/// # Errors
/// `FAILED_PRECONDITION`: the volume is mounted elsewhere than on these two.
fn refuse_second(id: &str, volume: &Path, own: [&PathBuf; 2]) -> Result<(), Status> {
    let mounts = mounts_of(volume).map_err(of_mount(volume))?;
    match mounts.iter().find(|entry| !own.contains(&&entry.mountpoint)) {
        Some(entry) => {
            let place = entry.mountpoint.display();
            let text = format!(
                "the volume {id} is for one program at a time, and is on {place}: unpublish it there"
            );
            Err(Status::failed_precondition(text))
        }
        None => Ok(()),
    }
}
