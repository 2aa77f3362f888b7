//! Messages: those of the Container Storage Interface that the services read and write, with the numbers of its public `csi.proto`
//! (version 1).
//!
//! Fields that no service looks at, such as secrets, are left out: a reader skips what it does not know. A choice of several (`oneof`)
//! is written here as optional fields, of which one is set; on the wire the two are the same.

use std::collections::BTreeMap;

/// A request or an answer without a field.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EmptyMessage {}

// Identity.

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetPluginInfoResponse {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) vendor_version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetPluginCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) capabilities: Vec<PluginCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PluginCapability {
    #[prost(message, optional, tag = "1")]
    pub(crate) service: Option<CapabilityType>,
    #[prost(message, optional, tag = "2")]
    pub(crate) volume_expansion: Option<CapabilityType>,
}

/// The number of a capability, within the message that says of what.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CapabilityType {
    #[prost(int32, tag = "1")]
    pub(crate) number: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) ready: Option<bool>,
}

// Messages within others.

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub(crate) block: Option<EmptyMessage>,
    #[prost(message, optional, tag = "2")]
    pub(crate) mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub(crate) access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MountVolume {
    #[prost(string, tag = "1")]
    pub(crate) fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) volume_mount_group: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AccessMode {
    #[prost(enumeration = "VolumeAccess", tag = "1")]
    pub(crate) mode: i32,
}

/// Who may use a volume at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum VolumeAccess {
    Unknown = 0,
    SingleNodeWriter = 1,
    SingleNodeReader = 2,
    MultiNodeReader = 3,
    MultiNodeSingleWriter = 4,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub(crate) required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub(crate) limit_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeContentSource {
    #[prost(message, optional, tag = "1")]
    pub(crate) snapshot: Option<SourceId>,
    #[prost(message, optional, tag = "2")]
    pub(crate) volume: Option<SourceId>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SourceId {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeTopology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) segments: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TopologyRequirement {
    #[prost(message, repeated, tag = "1")]
    pub(crate) requisite: Vec<NodeTopology>,
}

// Controller: volumes.

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(crate) parameters: BTreeMap<String, String>,
    #[prost(message, optional, tag = "6")]
    pub(crate) volume_content_source: Option<VolumeContentSource>,
    #[prost(message, optional, tag = "7")]
    pub(crate) accessibility_requirements: Option<TopologyRequirement>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) mutable_parameters: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) volume: Option<VolumeMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeMessage {
    #[prost(int64, tag = "1")]
    pub(crate) capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub(crate) volume_id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) content_source: Option<VolumeContentSource>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) accessible_topology: Vec<NodeTopology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeleteVolumeRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ValidateVolumeCapabilitiesRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(crate) parameters: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ValidateVolumeCapabilitiesResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) confirmed: Option<ConfirmedCapabilities>,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ConfirmedCapabilities {
    #[prost(message, repeated, tag = "2")]
    pub(crate) volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(crate) parameters: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListVolumesRequest {
    #[prost(int32, tag = "1")]
    pub(crate) max_entries: i32,
    #[prost(string, tag = "2")]
    pub(crate) starting_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListVolumesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<CreateVolumeResponse>,
    #[prost(string, tag = "2")]
    pub(crate) next_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetCapacityRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) volume_capabilities: Vec<VolumeCapability>,
    #[prost(message, optional, tag = "3")]
    pub(crate) accessible_topology: Option<NodeTopology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetCapacityResponse {
    #[prost(int64, tag = "1")]
    pub(crate) available_capacity: i64,
    #[prost(message, optional, tag = "2")]
    pub(crate) maximum_volume_size: Option<i64>,
}

/// The answer of the controller, and of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) capabilities: Vec<ServiceCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub(crate) rpc: Option<CapabilityType>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ControllerExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) capacity_range: Option<CapacityRange>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ControllerExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub(crate) capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    pub(crate) node_expansion_required: bool,
}

// Controller: snapshots.

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateSnapshotRequest {
    #[prost(string, tag = "1")]
    pub(crate) source_volume_id: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(crate) parameters: BTreeMap<String, String>,
}

/// Also an entry of a list.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) snapshot: Option<SnapshotMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SnapshotMessage {
    #[prost(int64, tag = "1")]
    pub(crate) size_bytes: i64,
    #[prost(string, tag = "2")]
    pub(crate) snapshot_id: String,
    #[prost(string, tag = "3")]
    pub(crate) source_volume_id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) creation_time: Option<CreationTime>,
    #[prost(bool, tag = "5")]
    pub(crate) ready_to_use: bool,
}

/// Since the beginning of 1970.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct CreationTime {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeleteSnapshotRequest {
    #[prost(string, tag = "1")]
    pub(crate) snapshot_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListSnapshotsRequest {
    #[prost(int32, tag = "1")]
    pub(crate) max_entries: i32,
    #[prost(string, tag = "2")]
    pub(crate) starting_token: String,
    #[prost(string, tag = "3")]
    pub(crate) source_volume_id: String,
    #[prost(string, tag = "4")]
    pub(crate) snapshot_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListSnapshotsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<CreateSnapshotResponse>,
    #[prost(string, tag = "2")]
    pub(crate) next_token: String,
}

// Node.

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeStageVolumeRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(string, tag = "3")]
    pub(crate) staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) volume_capability: Option<VolumeCapability>,
}

/// To unstage, or, with the target in the place of the staging path, to unpublish.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeUnmountRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(string, tag = "2")]
    pub(crate) path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodePublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(string, tag = "3")]
    pub(crate) staging_target_path: String,
    #[prost(string, tag = "4")]
    pub(crate) target_path: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub(crate) readonly: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeGetVolumeStatsRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(string, tag = "2")]
    pub(crate) volume_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeGetVolumeStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) usage: Vec<VolumeUsage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub(crate) available: i64,
    #[prost(int64, tag = "2")]
    pub(crate) total: i64,
    #[prost(int64, tag = "3")]
    pub(crate) used: i64,
    /// 1: bytes; 2: inodes.
    #[prost(int32, tag = "4")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub(crate) volume_id: String,
    #[prost(string, tag = "2")]
    pub(crate) volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) capacity_range: Option<CapacityRange>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub(crate) capacity_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeGetInfoResponse {
    #[prost(string, tag = "1")]
    pub(crate) node_id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) accessible_topology: Option<NodeTopology>,
}
