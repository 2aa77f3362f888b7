//! No cluster: stands for `cluster.rs` in a build without clusters, and refuses what is asked of one.

pub(crate) use NoClusterMember as ClusterMember;

use crate::args::{ClusterAction, DlmAction, WantedLock, Watched};
use crate::storage::Storage;
use sluice_console::failure::{Failure, Result};
use sluice_fuse::{Ended, MountOptions, StopSignals};
use sluice_vfs::Options;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

/// How a mount takes part in a cluster: in this build never.
pub(crate) enum NoClusterMember {}

fn absent() -> Failure {
    let text =
        "this build of sluice has no clusters; `make build` in the source of sluicefs makes one that has";
    Failure::Unsupported(text.into())
}

impl NoClusterMember {
    pub(crate) fn of(_: &str, _: Option<&Path>, _: Option<SocketAddr>) -> Result<ClusterMember> {
        Err(absent())
    }

    pub(crate) fn arguments(&self) -> Vec<OsString> {
        match *self {}
    }

    pub(crate) fn directories(&self) -> [(&Path, &'static str); 2] {
        match *self {}
    }

    pub(crate) fn serve(
        &self,
        _: (&Path, Storage),
        _: Options,
        _: &Path,
        _: MountOptions,
        _: StopSignals,
        _: (impl Fn(&str), impl FnOnce((u32, u32)) -> Result<()>),
    ) -> Result<(Ended, u64)> {
        match *self {}
    }
}

pub(crate) fn perform(_: ClusterAction) -> Result<()> {
    Err(absent())
}

pub(crate) fn top(_: &str, _: &Watched) -> Result<()> {
    Err(absent())
}

pub(crate) fn lock(_: &WantedLock, _: &[OsString]) -> Result<u8> {
    Err(absent())
}

pub(crate) fn hold_lock(_: &WantedLock) -> Result<u8> {
    Err(absent())
}

pub(crate) fn become_locked(_: i32, _: &[OsString]) -> Result<u8> {
    Err(absent())
}

pub(crate) fn dlm(_: DlmAction) -> Result<()> {
    Err(absent())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_asked_of_a_cluster_is_refused_with_the_cure() {
        let nowhere = || "dir:/nowhere".to_owned();
        let (name, cluster) = ("a".into(), nowhere());
        let request =
            WantedLock { name, cluster, identity: None, listen: None, shared: false, timeout: None };
        let refusals = [
            NoClusterMember::of(&nowhere(), None, None).err(),
            perform(ClusterAction::Demo).err(),
            top(&nowhere(), &Watched::default()).err(),
            lock(&request, &[]).err(),
            hold_lock(&request).err(),
            become_locked(1, &[]).err(),
            dlm(DlmAction::Status { json: false, identity: None, cluster: nowhere() }).err(),
        ];
        for refusal in refusals {
            let text = refusal.expect("refused").to_string();
            assert!(text.contains("no clusters") && text.contains("make build"), "{text}");
        }
    }
}
