//! Stat: the line of JSON that tells what a mount has counted, and what its file system knows.
//!
//! # Theory
//! It has two parts. Facts that a mount knows by itself are in each answer ([`of_mount`]). Facts known only to the
//! process that has the file system ([`of_file_system`]) are left out in other processes: on the guests of a cluster. A
//! missing field does not mean 0.

use crate::connection::Connection;
use crate::counters::Counters;
use sluice_locks::FileStatistics;
use sluice_vfs::Superblock;

/// So many of the hottest files are told of.
const HOT_IN_STAT: usize = 5;

/// Facts that a mount knows by itself, beside its counts.
pub(crate) struct KnownByMount {
    /// Inodes that its kernel knows.
    pub(crate) known_inodes: usize,
    /// Files that are open.
    pub(crate) open_files: usize,
    /// Requests of its kernel that wait for a lock.
    pub(crate) waiting_locks: usize,
    /// How its messages travel.
    pub(crate) transport: &'static str,
}

/// One line of JSON.
pub(super) fn of_connection(connection: &Connection) -> String {
    let of_file_system = of_file_system(&connection.superblock);
    let known = KnownByMount {
        known_inodes: connection.nodes.len(),
        open_files: connection.handles.len(),
        waiting_locks: connection.parked.len(),
        transport: connection.options.transport.name(),
    };
    format!("{{{},{of_file_system}}}", of_mount(&connection.counters, &known))
}

/// The fields of what a mount knows, without braces.
pub(crate) fn of_mount(counters: &Counters, known: &KnownByMount) -> String {
    let KnownByMount { known_inodes, open_files, waiting_locks, transport } = known;
    format!(
        "\"requests_total\":{},\"requests\":{},\"latency\":{},\"known_inodes\":{known_inodes},\
         \"open_files\":{open_files},\"waiting_locks\":{waiting_locks},\"resident_bytes\":{},\
         \"transport\":\"{transport}\"",
        counters.total(),
        counters.to_json(),
        counters.latency_json(),
        sluice_sync::memory::resident_bytes().unwrap_or(0),
    )
}

/// The fields of what the file system knows, without braces.
pub(crate) fn of_file_system(superblock: &Superblock) -> String {
    // First, as the next look frees what can be.
    let memory = superblock.memory();
    let statfs = superblock.statfs();
    // All 0 of a file system that has no store.
    let in_memory = superblock.memory_use().unwrap_or_default();
    let dirty =
        superblock.changed_bytes().map_or_else(String::new, |bytes| format!("\"dirty_bytes\":{bytes},"));
    let traffic = superblock.object_traffic();
    let object_requests = traffic.requests.iter().map(|of| {
        let buckets: Vec<String> =
            of.buckets.iter().map(|(bound, count)| format!("[{bound},{count}]")).collect();
        let (kind, failed, ns_total, buckets) = (of.kind, of.failed, of.ns_total, buckets.join(","));
        format!("\"{kind}\":{{\"failed\":{failed},\"ns_total\":{ns_total},\"buckets\":[{buckets}]}}")
    });
    format!(
        "\"hot_locks\":[{}],\"live_inodes\":{},\"block_size\":{},\"blocks\":{},\"blocks_free\":{},\
         \"file_bytes\":{},\"left_bytes\":{},\"deferred_calls\":{},\"deferred_bytes\":{},\
         \"objects_in_review\":{},\"spare_page_bytes\":{},\"spare_block_bytes\":{},\"memory_limit_bytes\":{},\
         \"memory_used_bytes\":{},\"inodes_in_memory\":{},\"inodes_apart\":{},\"directories_in_memory\":{},\
         \"directory_departures\":{},{dirty}\"object_requests\":{{{}}},\"cache_lookups\":{},\"cache_hits\":{},\
         \"cache_bytes\":{},\"write_stalls\":{},\"failure\":{}",
        hot(superblock, HOT_IN_STAT).collect::<Vec<_>>().join(","),
        memory.inodes,
        statfs.block_size,
        statfs.blocks,
        statfs.blocks_free,
        memory.file_bytes,
        memory.left_bytes,
        memory.held.deferred_calls,
        memory.held.deferred_bytes,
        memory.held.objects_in_review,
        memory.held.spare_page_bytes,
        memory.held.spare_block_bytes,
        in_memory.limit,
        in_memory.used,
        in_memory.inodes,
        in_memory.inodes_apart,
        in_memory.directories,
        in_memory.departures,
        object_requests.collect::<Vec<_>>().join(","),
        traffic.cache_lookups,
        traffic.cache_hits,
        traffic.cache_bytes,
        traffic.write_stalls,
        failure(superblock),
    )
}

/// Why nothing can be changed any more, as JSON.
fn failure(superblock: &Superblock) -> String {
    // The replaced characters come only from paths within the message.
    let quoted =
        |why: String| format!("\"{}\"", why.replace(|c: char| c.is_control() || "\"\\".contains(c), " "));
    superblock.failure().map_or("null".into(), quoted)
}

/// A JSON object for each file that was ever locked, the most waited for first, `most` of them.
pub(super) fn hot(superblock: &Superblock, most: usize) -> impl Iterator<Item = String> {
    let line = |file: FileStatistics| {
        let FileStatistics {
            dev: _,
            ino,
            held,
            waiting,
            grants,
            waits,
            bypasses,
            wait_ns_total,
            wait_ns_max,
        } = file;
        format!(
            "{{\"inode\":{ino},\"held\":{held},\"waiting\":{waiting},\"grants\":{grants},\"waits\":{waits},\
             \"bypasses\":{bypasses},\"wait_ns_total\":{wait_ns_total},\"wait_ns_max\":{wait_ns_max}}}"
        )
    };
    let files = superblock.lock_domain().statistics();
    files.into_iter().filter(|file| file.grants > 0).take(most).map(line)
}
