//! Capabilities: which volumes there can be, and what the services can do.

use super::bind_mounts::flag_of;
use super::errors::given;
use super::messages::{
    CapabilityType, GetCapabilitiesResponse, ServiceCapability, VolumeAccess, VolumeCapability,
};
use rustix::mount::MountFlags;
use tonic::Status;

/// The names that a file system of a volume may have in a request.
const FILE_SYSTEMS: [&str; 2] = ["", "sluice"];
/// Mount options for the usual case.
const USUAL: [&str; 4] = ["rw", "suid", "dev", "exec"];

/// The capabilities of a service, by their numbers.
pub(super) fn answer(numbers: &[i32]) -> GetCapabilitiesResponse {
    let of = |&number: &i32| ServiceCapability { rpc: Some(CapabilityType { number }) };
    GetCapabilitiesResponse { capabilities: numbers.iter().map(of).collect() }
}

/// # Errors
/// `INVALID_ARGUMENT`: the list is empty, or a volume cannot have these capabilities.
pub(super) fn check_capabilities(wanted: &[VolumeCapability], is_shared: bool) -> Result<(), Status> {
    if wanted.is_empty() {
        given("volume_capabilities", "")?;
    }
    refusal(wanted, is_shared).map_or(Ok(()), |text| Err(Status::invalid_argument(text)))
}

/// The reason why a volume cannot have these capabilities. A mount that `is_shared` is reached from several nodes.
pub(super) fn refusal(wanted: &[VolumeCapability], is_shared: bool) -> Option<String> {
    wanted.iter().find_map(|wanted| {
        let mode = wanted.access_mode.as_ref().map_or(VolumeAccess::Unknown, |access| access.mode());
        let is_of_several = matches!(
            mode,
            VolumeAccess::MultiNodeReader
                | VolumeAccess::MultiNodeSingleWriter
                | VolumeAccess::MultiNodeMultiWriter
        );
        let mount = wanted.mount.as_ref();
        match () {
            () if wanted.block.is_some() => {
                Some("volumes are directories: ask for one to mount, not for a block device".into())
            }
            () if mount.is_none() => Some("the access type is missing: ask for a volume to mount".into()),
            () if mode == VolumeAccess::Unknown => {
                Some("the access mode is missing or unknown: give one".into())
            }
            () if is_of_several && !is_shared => {
                Some("one node mounts the store: ask for an access mode of a single node".into())
            }
            () => mount.and_then(|mount| {
                let kind = mount.fs_type.as_str();
                if !FILE_SYSTEMS.contains(&kind) {
                    return Some(format!("the file system {kind:?}: leave fsType out"));
                }
                if !mount.volume_mount_group.is_empty() {
                    return Some(
                        "volume_mount_group: let the orchestrator change the group (fsGroupPolicy: File)"
                            .into(),
                    );
                }
                flags(&mount.mount_flags).err()
            }),
        }
    })
}

/// The flags of the mount options of a volume.
///
/// # Errors
/// A line that says which is none.
fn flags(options: &[String]) -> Result<MountFlags, String> {
    let wanted =
        options.iter().flat_map(|options| options.split(',')).filter(|option| !USUAL.contains(option));
    wanted.map(|option| {
        flag_of(option).ok_or_else(|| format!("the mount option {option:?}: a volume takes ro, nosuid, nodev, noexec, noatime, nodiratime and relatime"))
    }).collect()
}

/// The flags with which a volume is published, and its mode.
///
/// # Errors
/// `INVALID_ARGUMENT`: the capability is missing, or none of volumes here.
pub(super) fn flags_of(
    wanted: Option<&VolumeCapability>,
    is_shared: bool,
) -> Result<(MountFlags, VolumeAccess), Status> {
    let wanted = wanted.map(std::slice::from_ref).unwrap_or_default();
    if wanted.is_empty() {
        given("volume_capability", "")?;
    }
    check_capabilities(wanted, is_shared)?;
    let mode =
        wanted.iter().filter_map(|wanted| wanted.access_mode.as_ref()).map(|access| access.mode()).next();
    let mode = mode.unwrap_or(VolumeAccess::Unknown);
    let options =
        wanted.iter().filter_map(|wanted| wanted.mount.as_ref()).flat_map(|mount| &mount.mount_flags);
    let mut flags = flags(&options.cloned().collect::<Vec<_>>()).map_err(Status::invalid_argument)?;
    flags.set(
        MountFlags::RDONLY,
        flags.contains(MountFlags::RDONLY)
            || matches!(mode, VolumeAccess::SingleNodeReader | VolumeAccess::MultiNodeReader),
    );
    Ok((flags, mode))
}

#[cfg(test)]
mod tests {
    use super::super::messages::{AccessMode, EmptyMessage, MountVolume};
    use super::*;

    fn capability(mode: VolumeAccess, options: &[&str]) -> VolumeCapability {
        let mount_flags = options.iter().map(|&option| option.to_owned()).collect();
        let mount = MountVolume { mount_flags, ..MountVolume::default() };
        VolumeCapability {
            block: None,
            mount: Some(mount),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    #[test]
    fn a_volume_that_cannot_be_is_refused_with_the_cure() {
        let writer = || capability(VolumeAccess::SingleNodeWriter, &[]);
        let refused = |wanted: VolumeCapability, text: &str| {
            let said = refusal(&[writer(), wanted], false).expect("refused");
            assert!(said.contains(text), "{said}");
        };
        assert_eq!(refusal(&[writer()], false), None);
        refused(VolumeCapability { block: Some(EmptyMessage {}), ..writer() }, "volumes are directories");
        refused(VolumeCapability { mount: None, ..writer() }, "the access type is missing");
        refused(VolumeCapability { access_mode: None, ..writer() }, "the access mode is missing or unknown");
        refused(
            capability(VolumeAccess::MultiNodeMultiWriter, &[]),
            "ask for an access mode of a single node",
        );
        refused(capability(VolumeAccess::SingleNodeWriter, &["discard"]), "a volume takes ro, nosuid");
        let mount = |fs_type: &str, group: &str| {
            let mount = MountVolume {
                fs_type: fs_type.into(),
                volume_mount_group: group.into(),
                ..MountVolume::default()
            };
            VolumeCapability { mount: Some(mount), ..writer() }
        };
        refused(mount("ext4", ""), "leave fsType out");
        refused(mount("", "7"), "let the orchestrator change the group");
        assert_eq!(refusal(&[capability(VolumeAccess::MultiNodeMultiWriter, &[])], true), None);
    }

    #[test]
    fn flags_are_those_of_the_options_and_of_the_mode() {
        let of = |mode, options: &[&str]| flags_of(Some(&capability(mode, options)), false).expect("right").0;
        assert_eq!(
            of(VolumeAccess::SingleNodeWriter, &["rw", "nosuid,nodev"]),
            MountFlags::NOSUID | MountFlags::NODEV
        );
        assert_eq!(of(VolumeAccess::SingleNodeReader, &[]), MountFlags::RDONLY);
        let missing = flags_of(None, false).expect_err("none").message().to_owned();
        assert_eq!(missing, "the field volume_capability is missing: give it");
    }
}
