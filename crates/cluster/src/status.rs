//! Status: what a node says of itself.

use crate::relay::RelayCounts;
use serde::{Deserialize, Serialize};

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It has no server: its mount's requests wait.
    Waiting,
    /// It has the store.
    Owner,
    /// Another node serves it.
    Guest,
}

/// A node at one instant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The name of the cluster.
    pub cluster: String,
    /// Its number.
    pub node: u64,
    /// The node's role.
    pub role: Role,
    /// Why it could not open the store, if it is to and waits; else left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The owner's number; 0 if there is none.
    pub owner: u64,
    /// The epoch of the owner.
    pub epoch: u64,
    /// The members that are alive.
    pub members: usize,
    /// The mounts of other nodes that it serves.
    pub guests: usize,
    /// The counts of its mount. At the owner `dirty_bytes` are contents that wait for the next push, by whole chunks.
    #[serde(flatten)]
    pub counts: RelayCounts,
    /// The last takeover by this node.
    #[serde(flatten)]
    pub takeover: Takeover,
    /// The workspaces that its mount uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workspaces: Vec<WorkspaceStatus>,
}

/// A workspace on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceStatus {
    /// Its number.
    pub workspace: u32,
    /// The node's role there.
    pub role: Role,
    /// Why the node could not open its store, if the node is to and waits; else left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The epoch of its owner.
    pub epoch: u64,
    /// The mounts of other nodes that this node serves there.
    pub guests: usize,
    /// Requests of the node's kernel there, and how many of them somebody waited for the owner on another node.
    pub requests: u64,
    /// The requests among these that the owner got; see [`RelayCounts`].
    pub awaited: u64,
}

/// How long the parts of a takeover took, in milliseconds, one after the other. All 0 on a node that never was an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// From when this node lost its server until it was to be owner: the rest of the last owner's lease. 0 if it had no server.
    pub takeover_wait_ms: u64,
    /// Until the store was open.
    pub takeover_open_ms: u64,
    /// Until what its own kernel holds was found.
    pub takeover_restore_ms: u64,
    /// Until the other members had told what theirs hold, and calls were served.
    pub takeover_grace_ms: u64,
}

impl Status {
    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// If it is nothing of the kind.
    pub fn parse(json: &str) -> std::io::Result<Status> {
        Ok(serde_json::from_str(json)?)
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        // All its values can be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}
