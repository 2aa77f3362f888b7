//! `sluice-bucket`: a store in an object store, which one node at a time may change, and any node may take over.
//!
//! # Theory
//! The parts above are those of a store in a directory: transactions, pushes, the file system. Below them the library SlateDB
//! takes the place of the log and of the tree. It writes each push as one immutable object, only if no object has that number
//! yet (a conditional PUT), and brings the records into sorted objects behind it.
//!
//! ```text
//!   BUCKET/PATH/super              what this is: written last, if there is none                   bucket.rs
//!   BUCKET/PATH/keys               of an encrypted store: its key, once for each key that opens it
//!   BUCKET/PATH/owners/EPOCH       which process opened the store, an object each time            owner.rs
//!   BUCKET/PATH/records/wal/N      pushes                                                         SlateDB, by way of
//!   BUCKET/PATH/records/...        what they come to, sorted, and the list of those objects       engine.rs
//!   BUCKET/PATH/data/SEGMENT/...   data that are too large for a record, in objects of their own  data/
//! ```
//!
//! *Fencing.* A node that opens the store first claims an *epoch*, greater than all before, by making its object in
//! `owners/` if there is none. Then it opens the records, for which SlateDB puts an empty object behind the last push:
//! the push that the node before it writes next finds its number taken. From then on each call of the earlier node
//! fails with [`StoreError::Superseded`].
//! ```text
//!   node A, epoch 7   push 41  push 42                push 43: the number is taken -> Superseded
//!   node B, epoch 8                     claim, open: 43      push 44 ...
//! ```
//! A node that slept after its claim, and opens the records behind a node that is newer, finds the newer claim and stops; the
//! newer one finds its own claim to be the newest, opens the records once more and goes on.
//!
//! # Clients must
//! - open a store only with an epoch that the cluster's membership gave them, or alone;
//! - make a store with [`Bucket::create`], which takes only an object store whose conditional writes hold under a race.
//!
//! # Then
//! - what was synchronised before another node opened the store is there for that node;
//! - what a node could not synchronise because of that is not there, and the node is told so;
//! - a store does not fence readers: a node that was fenced and does not know it yet reads what was true when it was.
//!
//! # Lock order
//! `bucket.claims`: which claims this process holds, and has seen; a leaf.
//! `bucket.engine`: the open records; held for reading across I/O, for writing while they are opened again. Below `store.push`
//! and `store.checkpoint`. `bucket.blocks`: a leaf, see `blocks`. `bucket.traffic`: the counters of the store that was opened last; a leaf. `bucket.listed`: a leaf, see `listed`. `bucket.data`, `bucket.data.file`, `bucket.data.pieces`: see `data`.
//!
//! # Sources
//! RFC 1 of SlateDB for the fencing of its manifest and log; Burrows, "The Chubby lock service" (2006) for epochs.

#![forbid(unsafe_code)]

mod address;
mod anchored;
mod blocks;
mod bucket;
mod cache;
mod claimant;
mod clock;
mod counted;
mod credentials;
mod data;
mod engine;
mod error;
mod gaps;
mod layout;
mod line;
mod listed;
mod looking;
mod merging;
mod objects;
mod owner;
mod race;
mod reason;
mod runtime;
mod sealed;
mod traffic;

pub use bucket::Bucket;
pub use cache::DiskCache;
pub use claimant::process_runs;
pub use owner::Claim;
#[doc(hidden)]
pub use runtime::{run_on, wait_for};
pub use sluice_store::StoreError;
pub use traffic::{RequestCounts, Traffic};
