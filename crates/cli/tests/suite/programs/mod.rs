//! End to end: real programs on a real mount.
//!
//! Each test mounts a file system of its own with the built `sluice`, lets programs work in it, and unmounts it.
//! That it can be unmounted at the end, without force, is part of every test: nothing may keep it busy.

mod building;
mod databases;
mod files;
mod kills;
mod limits;
mod mappings;
mod meeting;
mod metadata;
mod overlays;
mod repositories;
mod stage;
mod trees;
