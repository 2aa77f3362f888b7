//! Plugin: `sluice csi` as a process of its own, and a client of it.

use super::messages::*;
use crate::harness::{SLUICE, Scratch, can_mount, kill, skipped, sluice, until};
use prost::Message;
use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

pub(super) const MIB: i64 = 1 << 20;

/// A running plugin, and a client of it.
pub(super) struct Plugin {
    pub(super) process: Child,
    pub(super) runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Plugin {
    /// Starts one in `scratch`, with the further `arguments`, and waits until it answers.
    pub(super) fn start(scratch: &Scratch, arguments: &[&str]) -> Plugin {
        Plugin::start_through(&[SLUICE], scratch, arguments)
    }

    /// As [`start`](Plugin::start), by the command `through`.
    pub(super) fn start_through(through: &[&str], scratch: &Scratch, arguments: &[&str]) -> Plugin {
        let socket = scratch.0.join("csi.sock");
        let log = File::options().append(true).create(true).open(scratch.0.join("log")).expect("room");
        let process = Command::new(through[0])
            .args(&through[1..])
            .args(["csi", "--node-id", "here"])
            .args(arguments)
            .env("CSI_ENDPOINT", format!("unix://{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads");
        let address = format!("unix:{}", socket.display());
        let channel = {
            let _inside = runtime.enter();
            Endpoint::from_shared(address).expect("a path").connect_lazy()
        };
        let plugin = Plugin { process, runtime, channel };
        let log = || fs::read_to_string(scratch.0.join("log")).unwrap_or_default();
        until("the plugin answers", || match plugin.probe() {
            Ok(_) => true,
            Err(status) => {
                let pid = plugin.process.id();
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                assert!(!stat.contains(") Z "), "it has ended: {status}: {}", log());
                false
            }
        });
        plugin
    }

    pub(super) fn probe(&self) -> Result<ProbeResponse, Status> {
        self.call("Identity/Probe", EmptyMessage {})
    }

    pub(super) fn call<Q, A>(&self, name: &str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = PathAndQuery::from_maybe_shared(format!("/csi.v1.{name}")).expect("a path");
        self.runtime.block_on(async {
            let mut client = tonic::client::Grpc::new(self.channel.clone());
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec: tonic_prost::ProstCodec<Q, A> = tonic_prost::ProstCodec::default();
            client.unary(Request::new(request), path, codec).await.map(Response::into_inner)
        })
    }

    pub(super) fn create(&self, request: CreateVolumeRequest) -> Result<VolumeMessage, Status> {
        let made: CreateVolumeResponse = self.call("Controller/CreateVolume", request)?;
        Ok(made.volume.expect("an answer has it"))
    }

    pub(super) fn delete(&self, volume_id: &str) -> Result<EmptyMessage, Status> {
        self.call("Controller/DeleteVolume", DeleteVolumeRequest { volume_id: volume_id.into() })
    }

    pub(super) fn stage(&self, volume: &str, staging: &Path) -> Result<EmptyMessage, Status> {
        let request = NodeStageVolumeRequest {
            volume_id: volume.into(),
            staging_target_path: text(staging),
            volume_capability: Some(capability(VolumeAccess::SingleNodeWriter)),
        };
        self.call("Node/NodeStageVolume", request)
    }

    pub(super) fn publish(&self, request: NodePublishVolumeRequest) -> Result<EmptyMessage, Status> {
        self.call("Node/NodePublishVolume", request)
    }

    pub(super) fn unpublish(&self, volume: &str, target: &Path) -> Result<EmptyMessage, Status> {
        self.unmount_by("Node/NodeUnpublishVolume", volume, target)
    }

    pub(super) fn unstage(&self, volume: &str, staging: &Path) -> Result<EmptyMessage, Status> {
        self.unmount_by("Node/NodeUnstageVolume", volume, staging)
    }

    /// As an orchestrator does, it calls again while `path` is busy: a process that another test forks has what this process had open there
    /// for as long as it has not executed its program.
    fn unmount_by(&self, call: &str, volume: &str, path: &Path) -> Result<EmptyMessage, Status> {
        let request = NodeUnmountRequest { volume_id: volume.into(), path: text(path) };
        let last = Cell::new(None);
        until("nothing uses the mount", || {
            let outcome: Result<EmptyMessage, Status> = self.call(call, request.clone());
            let is_busy = outcome.as_ref().is_err_and(|status| status.message().contains("busy"));
            last.set(Some(outcome));
            !is_busy
        });
        last.into_inner().expect("one call at least")
    }

    pub(super) fn snapshot(&self, name: &str, volume: &str) -> Result<SnapshotMessage, Status> {
        let request = CreateSnapshotRequest {
            source_volume_id: volume.into(),
            name: name.into(),
            ..CreateSnapshotRequest::default()
        };
        let taken: CreateSnapshotResponse = self.call("Controller/CreateSnapshot", request)?;
        Ok(taken.snapshot.expect("an answer has it"))
    }

    /// Kills it, and no other process.
    pub(super) fn kill(&mut self) {
        kill("-KILL", self.process.id());
        self.process.wait().expect("it has ended");
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

pub(super) fn capability(mode: VolumeAccess) -> VolumeCapability {
    VolumeCapability {
        block: None,
        mount: Some(MountVolume::default()),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(super) fn volume(name: &str, required_bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability(VolumeAccess::SingleNodeWriter)],
        ..CreateVolumeRequest::default()
    }
}

pub(super) fn publication(volume: &str, staging: &Path, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume.into(),
        staging_target_path: text(staging),
        target_path: text(target),
        volume_capability: Some(capability(VolumeAccess::SingleNodeWriter)),
        readonly: false,
    }
}

/// Asserts that a call was refused with a code and words.
pub(super) fn refused<A: std::fmt::Debug>(outcome: Result<A, Status>, code: Code, words: &str) {
    let status = outcome.expect_err(words);
    assert!(status.code() == code && status.message().contains(words), "{status:?}");
    assert!(!status.message().contains('\n'), "{status:?}");
}

/// A store, made anew.
pub(super) fn store(scratch: &Scratch) -> PathBuf {
    let store = scratch.0.join("store");
    sluice(["mkfs".as_ref(), store.as_os_str()]).well();
    store
}

pub(super) fn can_serve(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped(test, "bind mounts are root's");
        return false;
    }
    can_mount(test)
}
