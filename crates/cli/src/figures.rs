//! Figures: the meaning of each count of a mount, for `sluice stat --explain` and the help texts of metrics.

use sluice_fuse::control::{FileSystemStat, MountStat, ObjectStoreStat, ScrubStat, StoreStat};

/// The figures that only grow while a server runs. The others are of this moment.
pub(crate) const COUNTERS: [&str; 20] = [
    "directory_departures",
    "cache_lookups",
    "cache_hits",
    "write_stalls",
    "contents_written_bytes",
    "contents_written_stored_bytes",
    "hot_lock_grants",
    "hot_lock_waits",
    "hot_lock_wait_ns",
    "cluster_requests",
    "cluster_awaited",
    "cluster_behind",
    "cluster_answered_here",
    "cluster_locks_decided",
    "cluster_notices",
    "cluster_notices_cut_short",
    "cluster_recalls",
    "cluster_reconnections",
    "uptime_seconds",
    "restarts",
];

/// Figures that stand in no structure of the server's answer under their name.
const OTHER_FIGURES: &[(&str, &str)] = &[
    ("data_bytes", "Bytes of all blocks that are in use."),
    ("size_bytes", "Bytes that the file system may take."),
    ("free_bytes", "Bytes of these that are free."),
    ("mount_info", "1, with the directory, the store and the server's version as labels."),
    ("request_duration_seconds", "How long requests of the kernel took."),
    ("object_request_duration_seconds", "How long requests to the object store took."),
    ("object_requests_failed_total", "Requests to the object store that failed, or found no such object."),
    ("hot_lock_waiting", "Requests that wait for a lock of the file."),
    ("hot_lock_grants", "Locks of the file that were given."),
    ("hot_lock_waits", "Requests for a lock of the file that had to wait."),
    ("hot_lock_wait_ns", "Nanoseconds that these waited."),
    ("cluster_info", "1, with the role of the node as a label."),
    ("cluster_node", "The number of the node in the membership."),
    ("cluster_epoch", "How often the cluster has had another owner."),
    ("cluster_guests", "Other nodes that this node serves."),
    ("cluster_waiting_locks", "Requests of the node's kernel that wait for a lock."),
    ("cluster_notices_cut_short", "Notices that the node's kernel took too long to take in."),
    ("cluster_reconnections", "How often the node had another owner, or the same one again."),
    ("cluster_requests", "Requests of the node's kernel."),
    (
        "cluster_awaited",
        "Requests of the node's kernel that the owner was asked, and whose answer is waited for.",
    ),
    ("cluster_behind", "Requests of the node's kernel that were answered before the owner had them."),
    ("cluster_answered_here", "Requests of the node's kernel that the node answered by itself."),
    ("cluster_locks_decided", "Lock requests that the node decided by itself."),
    ("cluster_notices", "Changes by other nodes that the node's kernel was told."),
    ("cluster_recalls", "How often the owner took back what it had left to the node."),
    ("cluster_dirty_bytes", "Bytes that are on their way to the store."),
];

/// The meaning of the figure `name`; None for a figure of a later server.
pub(crate) fn meaning(name: &str) -> Option<&'static str> {
    let of_answer = [
        MountStat::FIGURES,
        FileSystemStat::FIGURES,
        StoreStat::FIGURES,
        ScrubStat::FIGURES,
        ObjectStoreStat::FIGURES,
        OTHER_FIGURES,
    ];
    let mut all = of_answer.into_iter().flatten();
    all.find(|(known, _)| *known == name).map(|(_, text)| text.trim_start())
}
