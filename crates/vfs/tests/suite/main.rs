//! The tests of the library's public interface, as one program.

mod capabilities;
mod clone_tree;
mod descriptors;
mod handles;
mod host;
mod leases;
mod lock_owners;
mod missing_fsync;
mod moments;
mod open_files;
mod process;
mod readme;
mod recall;
mod remembered;
mod restore;
mod space;
