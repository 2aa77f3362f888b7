//! Nodes of a cluster with real and with played kernels, as one program.

mod behind;
mod cut_off;
#[path = "../../../bucket/tests/suite/faults/mod.rs"]
mod faults;
mod guest_knowledge;
mod guest_locks;
mod guest_promises;
mod guests;
mod harness;
mod history;
mod mapped;
#[path = "../../../fuse/tests/suite/harness/mod.rs"]
mod mounts;
mod nodes;
mod pair;
mod same_page;
mod seeds;
mod takeover;
