//! Mount statistics: the form of the answer to `stat`, for the server that gives it and for who asks.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Makes a structure of the answer, and `FIGURES`: its fields, each with the text of its documentation, for a person who reads the answer.
macro_rules! explained {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[doc = $text:literal])+ $(#[serde($($attribute:tt)*)])? pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$about])*
        pub struct $name {
            $($(#[doc = $text])+ $(#[serde($($attribute)*)])? pub $field: $type,)*
        }

        impl $name {
            /// Each field's name, and what it is.
            pub const FIGURES: &[(&str, &str)] = &[$((stringify!($field), concat!($($text),+)),)*];
        }
    };
}

explained! {
/// The answer to `stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStat {
    /// Requests since the mount began.
    pub requests_total: u64,
    /// The same by kind.
    pub requests: BTreeMap<String, u64>,
    /// How long they took, by kind.
    pub latency: BTreeMap<String, Latency>,
    /// Inodes that the kernel knows.
    pub known_inodes: u64,
    /// Files open, where the server is told of it (`-o locks=sluice`).
    pub open_files: u64,
    /// Lock requests that wait.
    pub waiting_locks: u64,
    /// Memory of the server, all of it.
    pub resident_bytes: u64,
    /// How messages travel: `uring`, `classic`, or `relay` on a node of a cluster; nothing from a server of an earlier version.
    #[serde(default)]
    pub transport: String,
    /// The version of the server's program; empty from a server of an earlier version.
    #[serde(default)]
    pub version: String,
    /// Seconds since the mount began.
    #[serde(default)]
    pub uptime_seconds: u64,
    /// For a mount that a holder keeps: how often its server was started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    /// How the last server ended that was replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_cause: Option<String>,
    /// The number of the process that keeps the mount when its server dies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<u32>,
    /// Facts of the process that has the file system; None on a node of a cluster that is not the owner.
    #[serde(flatten)]
    pub file_system: Option<FileSystemStat>,
    /// For a node of a cluster: its role, the owner, the epoch, and its counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster: BTreeMap<String, Value>,
}
}

explained! {
/// The part of the answer that is of the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystemStat {
    /// The reason why changes are refused, if they are.
    #[serde(default)]
    pub failure: Option<String>,
    /// The reason why snapshots are not taken by the clock as they should be, if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_failure: Option<String>,
    /// The reason why the scrub by the clock cannot go on, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_failure: Option<String>,
    /// The files whose locks were waited for most, with `-o locks=sluice`.
    pub hot_locks: Vec<HotFile>,
    /// Inodes of the file system.
    pub live_inodes: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks there may be; 0: no limit.
    pub blocks: u64,
    /// Blocks of them that are free.
    pub blocks_free: u64,
    /// Bytes of files, extended attributes and the like.
    #[serde(default)]
    pub file_bytes: u64,
    /// Memory that the machine and its limits leave for the server.
    #[serde(default)]
    pub left_bytes: u64,
    /// Pieces of work that free something when no reader can see it any more.
    #[serde(default)]
    pub deferred_calls: u64,
    /// The bytes of pages among that.
    #[serde(default)]
    pub deferred_bytes: u64,
    /// Inodes and open files that seem to have lost their last reference.
    #[serde(default)]
    pub objects_in_review: u64,
    /// Pages without a file, kept for the next.
    #[serde(default)]
    pub spare_page_bytes: u64,
    /// Blocks for inodes and the like, kept for the next.
    #[serde(default)]
    pub spare_block_bytes: u64,
    /// Bytes that a file system with a store may have in memory; 0: there is none.
    #[serde(default)]
    pub memory_limit_bytes: u64,
    /// Bytes that these take.
    #[serde(default)]
    pub memory_used_bytes: u64,
    /// Inodes of the store that are in memory.
    #[serde(default)]
    pub inodes_in_memory: u64,
    /// Inodes in memory whose names are not in memory.
    #[serde(default)]
    pub inodes_apart: u64,
    /// Directories whose names are in memory.
    #[serde(default)]
    pub directories_in_memory: u64,
    /// How often the names of a directory have left memory.
    #[serde(default)]
    pub directory_departures: u64,
    /// For a file system with a store: bytes of contents that wait for the next push to it, by whole chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
    /// For a file system with a store: how it keeps contents.
    #[serde(flatten)]
    pub store: Option<StoreStat>,
    /// For a file system with a store that was ever scrubbed.
    #[serde(flatten)]
    pub scrub: Option<ScrubStat>,
    /// For a store in an object store: requests to it.
    #[serde(flatten)]
    pub objects: Option<ObjectStoreStat>,
}
}

explained! {
/// The part of the answer that is of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStat {
    /// It is encrypted.
    pub encrypted: bool,
    /// Its contents are compressed where that saves room.
    pub compressed: bool,
    /// Bytes of its segments that contents take, as of the last checkpoint. Contents of small files are in records, and do not count.
    pub contents_stored_bytes: u64,
    /// Bytes of contents that were written to segments since the mount, also of those that were freed since.
    pub contents_written_bytes: u64,
    /// Bytes of segments that these took.
    pub contents_written_stored_bytes: u64,
}
}

explained! {
/// The part of the answer that is of the current or last scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStat {
    /// Seconds since it began.
    pub scrub_age_seconds: u64,
    /// Seconds since a scrub ended last; None if none ever did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_end_age_seconds: Option<u64>,
    /// 1 until it has ended.
    pub scrub_unfinished: u64,
    /// Bytes that it has read.
    pub scrub_bytes: u64,
    /// Bytes of data in the store when it began.
    pub scrub_total_bytes: u64,
    /// Its findings.
    pub scrub_damaged: u64,
}
}

explained! {
/// The part of the answer that is of an object store; all 0 without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectStoreStat {
    /// Requests by kind.
    pub object_requests: BTreeMap<String, ObjectRequests>,
    /// How often a part of an object was looked for in the cache on disk.
    pub cache_lookups: u64,
    /// The number of hits.
    pub cache_hits: u64,
    /// Bytes in that cache.
    pub cache_bytes: u64,
    /// How often a write waited until records in memory had become objects.
    pub write_stalls: u64,
}
}

/// How long requests of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// All of them together, in nanoseconds.
    pub ns_total: u64,
    /// At most so many nanoseconds, and more than the bound before: so many requests.
    pub buckets: Vec<(u64, u64)>,
}

/// Requests of one kind to an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRequests {
    /// Requests that failed, and may have been repeated, or that found no such object, as a search for newer objects
    /// does.
    pub failed: u64,
    /// How long they took.
    #[serde(flatten)]
    pub latency: Latency,
}

/// Lock statistics of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotFile {
    /// The file's inode number.
    pub inode: u64,
    /// Locks that are held now.
    pub held: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// Locks that were given.
    pub grants: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// How often one was given past another that waited.
    pub bypasses: u64,
    /// How long those waited that do no longer.
    pub wait_ns_total: u64,
    /// The longest of these.
    pub wait_ns_max: u64,
}

impl Latency {
    /// The requests since `earlier`.
    pub fn since(&self, earlier: Option<&Latency>) -> Latency {
        let Some(earlier) = earlier else { return self.clone() };
        let before = |bound| earlier.buckets.iter().find(|(b, _)| *b == bound).map_or(0, |(_, count)| *count);
        let buckets = self.buckets.iter().map(|&(bound, count)| (bound, count.saturating_sub(before(bound))));
        Latency { ns_total: self.ns_total.saturating_sub(earlier.ns_total), buckets: buckets.collect() }
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_does_not_know_is_left_out_and_what_it_tells_is_read_again() {
        let of_guest = MountStat { transport: "relay".into(), ..MountStat::default() };
        let json = serde_json::to_string(&of_guest).expect("numbers and text");
        assert_eq!(
            json,
            r#"{"requests_total":0,"requests":{},"latency":{},"known_inodes":0,"open_files":0,"waiting_locks":0,"resident_bytes":0,"transport":"relay","version":"","uptime_seconds":0}"#
        );
        assert_eq!(serde_json::from_str::<MountStat>(&json).expect("as written"), of_guest);
        let objects = Some(ObjectStoreStat { cache_hits: 7, ..ObjectStoreStat::default() });
        let known =
            FileSystemStat { failure: Some("a \"quoted\" path".into()), objects, ..Default::default() };
        let of_owner = MountStat { file_system: Some(known), ..of_guest };
        let json = serde_json::to_string(&of_owner).expect("numbers and text");
        assert_eq!(serde_json::from_str::<MountStat>(&json).expect("as written"), of_owner);
    }
}
