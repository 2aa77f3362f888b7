//! `sluice-store`: durability below a file system: transactions, a log, a checkpoint behind it, recovery.
//!
//! # Theory
//! A file system in memory changes objects: an inode's attributes, a name, a range of a file. Each change is one
//! [`Transaction`] that writes the *values after the change* of what it changed, as records: a key, the version of the object,
//! and a value, or none when the object is gone. A transaction costs memory copies on the CPU's own lines; it waits for no I/O.
//!
//! ```text
//!   transactions     each CPU's buffer of records                    memory          cil.rs
//!        |  push: fsync, age, or size; one cut through all CPUs
//!   batch            sorted, newest version of each key               log            log/
//!        |  checkpoint: many batches at once, sorted
//!   tree             every key with its value                         engine         engine/
//!   segments         data that is too large for a record              files          segments/
//! ```
//!
//! A *push* makes one batch of all transactions that ended before it, and writes it to the log with one write and one flush.
//! A *checkpoint* applies batches to the engine and frees their part of the log. Recovery applies to the engine what the log
//! holds beyond the engine's position.
//!
//! # Then
//! - after a crash the store holds what some prefix of the transactions wrote, in the order in which they exclude each other;
//! - that prefix contains each transaction that ended before a [`Store::sync`] that returned without an error;
//! - nothing of an encrypted store can be read without a key (`encryption/`); data of a compressed one take fewer blocks (`compression`);
//! - a damaged log is refused, unless only what was being written is missing; a batch is never applied in part. A damaged tree
//!   is an error, never a wrong value.
//!
//! # Lock order
//! ARCHITECTURE.md has it: *The one lock order*.
//!
//! # Sources
//! Chinner, "Improving Metadata Performance By Reducing Journal Overhead" (XFS delayed logging and its CIL); Haerder and
//! Reuter (1983) for the terms; the log's place in preallocated, recycled space is measured in `docs/measurements.md`.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod background;
mod check;
mod checkpoint;
mod cil;
mod compression;
mod encryption;
mod error;
mod flight;
mod format;
mod group;
mod growth;
mod info;
mod keys;
mod log;
mod mutant;
mod open;
mod options;
mod record;
mod recovery;
mod report;
mod room;
mod segments;
mod spare;
mod splice;
mod store;
mod tail;
mod why;

#[cfg(all(test, not(feature = "sim")))]
mod check_tests;
#[cfg(all(test, not(feature = "sim")))]
mod compaction_tests;
#[cfg(all(test, feature = "compression", not(feature = "sim")))]
mod compression_tests;
#[cfg(all(test, not(feature = "sim")))]
mod crash_tests;
#[cfg(all(test, feature = "encryption", not(feature = "sim")))]
mod encryption_tests;
#[cfg(all(test, not(feature = "sim")))]
mod full_disk_tests;
#[cfg(all(test, not(feature = "sim")))]
mod segment_tests;

pub mod disk;
pub mod engine;

pub use check::Look;
pub use cil::{Added, Data, Source, Transaction};
pub use encryption::{Cipher, ID, KeyFile, KeyKind, KeySlot, StoreKey, TAG};
pub use error::StoreError;
pub use format::{KEY_MAX, VALUE_MAX};
pub use info::{Content, Info};
pub use options::Options;
pub use record::Batch;
pub use report::{FINDINGS_MAX, Finding, Gravity, Progress, Report};
pub use segments::{EXTENT_MAX, EXTENT_ROOM, Extent};
pub use splice::Splice;
pub use store::{Stats, Store};
