//! Controller: volumes and snapshots are made, listed, expanded and removed.

use super::Plugin;
use super::capabilities::{check_capabilities, refusal};
use super::errors::given;
use super::messages::*;
use super::volumes::{
    CAPACITY, SnapshotRecord, VolumeOrigin, VolumeRecord, VolumeShelf, Volumes, capacity_of, id_of, page,
    signed,
};
use sluice_sync::time::realtime;
use std::collections::BTreeMap;
use tonic::Status;

/// The calls that the controller serves, by the numbers of the interface: volumes, lists of them, capacity, snapshots, lists of them, clones,
/// expansion, modes of one node.
const CAPABILITIES: [i32; 8] = [1, 3, 4, 5, 6, 7, 9, 13];
/// Parameters that provisioners add say for whom a volume is.
const OF_PROVISIONERS: &str = "csi.storage.k8s.io/";

impl Plugin {
    pub(super) fn controller_capabilities(&self, _: EmptyMessage) -> Result<GetCapabilitiesResponse, Status> {
        Ok(super::capabilities::answer(&CAPABILITIES))
    }

    pub(super) fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let id = id_of(given("name", &request.name)?)?;
        check_capabilities(&request.volume_capabilities, self.place.is_shared())?;
        refuse_parameters(request.parameters.keys().chain(request.mutable_parameters.keys()))?;
        self.check_topology(request.accessibility_requirements.as_ref())?;
        let volumes = self.volumes()?;
        let _held = self.busy.hold(VolumeShelf::Volumes, &id)?;
        let origin = request.volume_content_source.as_ref().and_then(origin_of);
        if let Some(record) = volumes.record::<VolumeRecord>(VolumeShelf::Volumes, &id)? {
            let CapacityRange { required_bytes, limit_bytes } = request.capacity_range.unwrap_or_default();
            let has = signed(record.capacity);
            let fits = has >= required_bytes && (limit_bytes == 0 || has <= limit_bytes);
            if !fits || record.name != request.name || record.origin != origin {
                let name = &request.name;
                let text =
                    format!("the volume {name:?} is there, of another size or content: choose another name");
                return Err(Status::already_exists(text));
            }
            return Ok(CreateVolumeResponse { volume: Some(self.volume_message(&id, &record)) });
        }
        let (least, from) = match &origin {
            None => (CAPACITY, None),
            Some(origin) => {
                let (capacity, shelf, source) = source_of(&volumes, origin)?;
                (capacity, Some(volumes.path(shelf, source)))
            }
        };
        let capacity = capacity_of(request.capacity_range, least)?;
        if from.is_some() && capacity < least {
            let text = format!("the source of the volume has {least} bytes: ask for as many or more");
            return Err(Status::out_of_range(text));
        }
        volumes.check_room(capacity)?;
        let record = VolumeRecord { name: request.name, capacity, origin };
        volumes.create(&id, &record, from.as_deref())?;
        Ok(CreateVolumeResponse { volume: Some(self.volume_message(&id, &record)) })
    }

    pub(super) fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<EmptyMessage, Status> {
        let id = given("volume_id", &request.volume_id)?;
        let _held = self.busy.hold(VolumeShelf::Volumes, id)?;
        self.volumes()?.remove(VolumeShelf::Volumes, id)?;
        Ok(EmptyMessage {})
    }

    pub(super) fn validate_volume_capabilities(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return check_capabilities(&[], false).map(|()| ValidateVolumeCapabilitiesResponse::default());
        }
        self.volumes()?.volume(id)?;
        Ok(match refusal(&request.volume_capabilities, self.place.is_shared()) {
            Some(message) => ValidateVolumeCapabilitiesResponse { confirmed: None, message },
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(ConfirmedCapabilities {
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                }),
                message: String::new(),
            },
        })
    }

    pub(super) fn list_volumes(&self, request: ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let volumes = self.volumes()?;
        let (ids, next_token) =
            page(volumes.ids(VolumeShelf::Volumes)?, request.max_entries, &request.starting_token)?;
        let mut entries = Vec::new();
        for id in ids {
            // Another call may have removed the volume meanwhile.
            if let Some(record) = volumes.record(VolumeShelf::Volumes, &id)? {
                entries.push(CreateVolumeResponse { volume: Some(self.volume_message(&id, &record)) });
            }
        }
        Ok(ListVolumesResponse { entries, next_token })
    }

    pub(super) fn get_capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        let ours = self.topology();
        let is_elsewhere =
            request.accessible_topology.is_some_and(|asked| ours.is_some_and(|ours| asked != ours));
        let cannot_be = !request.volume_capabilities.is_empty()
            && refusal(&request.volume_capabilities, self.place.is_shared()).is_some();
        if is_elsewhere || cannot_be {
            return Ok(GetCapacityResponse { available_capacity: 0, maximum_volume_size: None });
        }
        let (total, free) = self.volumes()?.room()?;
        Ok(GetCapacityResponse { available_capacity: signed(free), maximum_volume_size: Some(signed(total)) })
    }

    pub(super) fn controller_expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let id = given("volume_id", &request.volume_id)?;
        if request.capacity_range.is_none() {
            given("capacity_range", "")?;
        }
        let capacity_bytes = self.expand(id, request.capacity_range)?;
        Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false })
    }

    /// Raises the quota of a volume. Returns its capacity.
    pub(super) fn expand(&self, id: &str, range: Option<CapacityRange>) -> Result<i64, Status> {
        let _held = self.busy.hold(VolumeShelf::Volumes, id)?;
        self.volumes()?.expand(id, range).map(signed)
    }

    pub(super) fn create_snapshot(
        &self,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        let id = id_of(given("name", &request.name)?)?;
        let volume = given("source_volume_id", &request.source_volume_id)?;
        refuse_parameters(request.parameters.keys())?;
        let volumes = self.volumes()?;
        let _held = self.busy.hold(VolumeShelf::Snapshots, &id)?;
        if let Some(record) = volumes.record::<SnapshotRecord>(VolumeShelf::Snapshots, &id)? {
            if record.volume != volume || record.name != request.name {
                let name = &request.name;
                let text = format!("the snapshot {name:?} is there, of another volume: choose another name");
                return Err(Status::already_exists(text));
            }
            return Ok(snapshot_message(&id, &record));
        }
        let capacity = volumes.volume(volume)?.capacity;
        let record = SnapshotRecord {
            name: request.name.clone(),
            volume: volume.to_owned(),
            capacity,
            seconds: realtime().0,
        };
        volumes.take(&id, &record)?;
        Ok(snapshot_message(&id, &record))
    }

    pub(super) fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<EmptyMessage, Status> {
        let id = given("snapshot_id", &request.snapshot_id)?;
        let _held = self.busy.hold(VolumeShelf::Snapshots, id)?;
        self.volumes()?.remove(VolumeShelf::Snapshots, id)?;
        Ok(EmptyMessage {})
    }

    pub(super) fn list_snapshots(
        &self,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let volumes = self.volumes()?;
        let mut records = BTreeMap::new();
        for id in volumes.ids(VolumeShelf::Snapshots)? {
            let is_asked = request.snapshot_id.is_empty() || request.snapshot_id == id;
            // As for volumes.
            let record =
                if is_asked { volumes.record::<SnapshotRecord>(VolumeShelf::Snapshots, &id)? } else { None };
            let of_volume = |record: &SnapshotRecord| {
                request.source_volume_id.is_empty() || request.source_volume_id == record.volume
            };
            records.extend(record.filter(of_volume).map(|record| (id, record)));
        }
        let ids = records.keys().cloned().collect();
        let (ids, next_token) = page(ids, request.max_entries, &request.starting_token)?;
        let entries = ids.iter().map(|id| snapshot_message(id, &records[id])).collect();
        Ok(ListSnapshotsResponse { entries, next_token })
    }

    /// # Errors
    /// `RESOURCE_EXHAUSTED`: the volume must be reached from other nodes.
    fn check_topology(&self, asked: Option<&TopologyRequirement>) -> Result<(), Status> {
        let requisite = asked.map_or(&[][..], |asked| &asked.requisite);
        match self.topology() {
            Some(ours) if !requisite.is_empty() && !requisite.contains(&ours) => {
                let node = &self.node_id;
                let text =
                    format!("volumes of this store are reached from the node {node} alone: ask for that");
                Err(Status::resource_exhausted(text))
            }
            _ => Ok(()),
        }
    }

    fn volume_message(&self, id: &str, record: &VolumeRecord) -> VolumeMessage {
        let source = |id: &String| Some(SourceId { id: id.clone() });
        VolumeMessage {
            capacity_bytes: signed(record.capacity),
            volume_id: id.to_owned(),
            content_source: record.origin.as_ref().map(|origin| match origin {
                VolumeOrigin::Snapshot(id) => VolumeContentSource { snapshot: source(id), volume: None },
                VolumeOrigin::Volume(id) => VolumeContentSource { snapshot: None, volume: source(id) },
            }),
            accessible_topology: self.topology().into_iter().collect(),
        }
    }
}

fn origin_of(source: &VolumeContentSource) -> Option<VolumeOrigin> {
    let snapshot = source.snapshot.as_ref().map(|source| VolumeOrigin::Snapshot(source.id.clone()));
    snapshot.or_else(|| source.volume.as_ref().map(|source| VolumeOrigin::Volume(source.id.clone())))
}

/// The capacity of the source of a new volume, and where it is.
///
/// # Errors
/// `NOT_FOUND`.
fn source_of<'a>(volumes: &Volumes, origin: &'a VolumeOrigin) -> Result<(u64, VolumeShelf, &'a str), Status> {
    match origin {
        VolumeOrigin::Volume(id) => Ok((volumes.volume(id)?.capacity, VolumeShelf::Volumes, id)),
        VolumeOrigin::Snapshot(id) => {
            let record: Option<SnapshotRecord> = volumes.record(VolumeShelf::Snapshots, id)?;
            let missing = || {
                let text = format!("there is no snapshot {id:?}: ListSnapshots names those of this driver");
                Status::not_found(text)
            };
            Ok((record.ok_or_else(missing)?.capacity, VolumeShelf::Snapshots, id))
        }
    }
}

fn snapshot_message(id: &str, record: &SnapshotRecord) -> CreateSnapshotResponse {
    let snapshot = SnapshotMessage {
        size_bytes: signed(record.capacity),
        snapshot_id: id.to_owned(),
        source_volume_id: record.volume.clone(),
        creation_time: Some(CreationTime { seconds: record.seconds, nanos: 0 }),
        ready_to_use: true,
    };
    CreateSnapshotResponse { snapshot: Some(snapshot) }
}

/// # Errors
/// `INVALID_ARGUMENT`: a parameter, of which this driver has none.
fn refuse_parameters<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<(), Status> {
    match names.find(|name| !name.starts_with(OF_PROVISIONERS)) {
        Some(name) => {
            let text = format!("the parameter {name:?}: this driver has none, so leave it out");
            Err(Status::invalid_argument(text))
        }
        None => Ok(()),
    }
}
