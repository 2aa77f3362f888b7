//! Stat: the line of JSON that tells what a mount has counted, and what its file system knows.
//!
//! # Theory
//! It has two parts. Facts that a mount knows by itself are in each answer ([`of_mount`]). Facts known only to the
//! process that has the file system ([`of_file_system`]) are left out in other processes, which pass requests on. A
//! missing field does not mean 0.

use crate::connection::Connection;
use crate::counters::Counters;
use crate::held::state::HeldState;
use crate::mount_stat::{FileSystemStat, HotFile, MountStat, ScrubStat, StoreStat};
use crate::options::StorageStat;
use serde::Serialize;
use sluice_locks::FileStatistics;
use sluice_vfs::{Superblock, Timestamp};

/// So many of the hottest files are told of.
const HOT_IN_STAT: usize = 5;

/// One line of JSON.
pub(super) fn of_connection(connection: &Connection) -> String {
    let held = connection.held.get();
    to_json(&MountStat {
        restarts: held.map(|held| held.restarts.count),
        restart_cause: held.and_then(|held| held.restarts.cause.clone()),
        holder: held.and_then(HeldState::holder),
        known_inodes: connection.nodes.len() as u64,
        open_files: connection.handles.len() as u64,
        waiting_locks: connection.parked.len() as u64,
        transport: connection.options.transport.name().into(),
        file_system: Some(of_file_system(&connection.superblock, connection.options.storage_stat.as_ref())),
        ..of_mount(&connection.counters)
    })
}

/// One line of JSON.
pub fn to_json(told: &impl Serialize) -> String {
    // All its values can be written as JSON.
    serde_json::to_string(told).unwrap_or_default()
}

/// The counters of a mount and its process.
pub fn of_mount(counters: &Counters) -> MountStat {
    MountStat {
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_seconds: counters.uptime_seconds(),
        requests_total: counters.total(),
        requests: counters.requests(),
        latency: counters.latency(),
        resident_bytes: sluice_sync::memory::resident_bytes().unwrap_or(0),
        ..MountStat::default()
    }
}

/// The state of the file system, and the `storage` below it.
pub fn of_file_system(superblock: &Superblock, storage: Option<&StorageStat>) -> FileSystemStat {
    // First, as the next look frees what can be.
    let memory = superblock.memory();
    let statfs = superblock.statfs();
    // All 0 of a file system that has no store.
    let in_memory = superblock.memory_use().unwrap_or_default();
    FileSystemStat {
        failure: superblock.failure(),
        snapshot_failure: superblock.snapshot_failure().map(|error| error.to_string()),
        scrub_failure: superblock.scrub_failure().map(|error| error.to_string()),
        hot_locks: hot(superblock, HOT_IN_STAT).collect(),
        live_inodes: memory.inodes,
        block_size: statfs.block_size.into(),
        blocks: statfs.blocks,
        blocks_free: statfs.blocks_free,
        file_bytes: memory.file_bytes,
        left_bytes: memory.left_bytes,
        deferred_calls: memory.held.deferred_calls,
        deferred_bytes: memory.held.deferred_bytes,
        objects_in_review: memory.held.objects_in_review,
        spare_page_bytes: memory.held.spare_page_bytes,
        spare_block_bytes: memory.held.spare_block_bytes,
        memory_limit_bytes: in_memory.limit,
        memory_used_bytes: in_memory.used,
        inodes_in_memory: in_memory.inodes,
        inodes_apart: in_memory.inodes_apart,
        directories_in_memory: in_memory.directories,
        directory_departures: in_memory.departures,
        dirty_bytes: superblock.changed_bytes(),
        store: store(superblock),
        scrub: scrub(superblock),
        objects: storage.map(StorageStat::now),
    }
}

/// How the store keeps contents; None in memory.
fn store(superblock: &Superblock) -> Option<StoreStat> {
    let kept = superblock.store_use()?;
    Some(StoreStat {
        encrypted: kept.is_encrypted,
        compressed: kept.is_compressed,
        contents_stored_bytes: kept.stored,
        contents_written_bytes: kept.written,
        contents_written_stored_bytes: kept.written_stored,
    })
}

/// The current or last scrub; None before the first, and in memory.
fn scrub(superblock: &Superblock) -> Option<ScrubStat> {
    let state = superblock.scrub_counts().ok()?;
    let age = |time: Timestamp| u64::try_from(Timestamp::now().sec.saturating_sub(time.sec)).unwrap_or(0);
    Some(ScrubStat {
        scrub_age_seconds: age(state.started?),
        scrub_end_age_seconds: state.last_end.map(age),
        scrub_unfinished: state.finished.is_none().into(),
        scrub_bytes: state.bytes,
        scrub_total_bytes: state.of,
        scrub_damaged: state.damaged,
    })
}

/// Each file that was ever locked, the most waited for first, `most` of them.
pub(super) fn hot(superblock: &Superblock, most: usize) -> impl Iterator<Item = HotFile> {
    let told = |file: FileStatistics| {
        let FileStatistics {
            dev: _,
            ino: inode,
            held,
            waiting,
            grants,
            waits,
            bypasses,
            wait_ns_total,
            wait_ns_max,
        } = file;
        HotFile { inode, held, waiting, grants, waits, bypasses, wait_ns_total, wait_ns_max }
    };
    let files = superblock.lock_domain().statistics();
    files.into_iter().filter(|file| file.grants > 0).take(most).map(told)
}
