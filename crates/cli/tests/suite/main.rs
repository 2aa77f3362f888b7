//! The program `sluice` as its users run it, as one program.

mod bench_against;
mod cluster;
mod cluster_etcd;
mod command_line;
mod compression;
mod crash_test;
#[cfg(feature = "csi")]
mod csi;
mod debian;
mod encryption;
mod endings;
mod hanging;
mod harness;
#[allow(dead_code)] // nothing fails here
#[path = "../../../cluster/tests/suite/history/mod.rs"]
mod history;
mod holder;
mod holder_places;
mod holder_programs;
mod holder_resources;
mod io_uring;
mod lock;
mod memory;
mod mount_helper;
mod mounts;
mod processes;
mod programs;
mod quota;
mod room;
mod room_rounds;
mod schedule;
mod scrub;
mod store;
mod streams;
mod upgrade;
mod writeback;
