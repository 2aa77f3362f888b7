//! Stream: a snapshot as a sequence of bytes, whole or as the changes since another snapshot.
//!
//! # Theory
//! The sender walks the snapshot, or two snapshots side by side, and writes orders: make this file, put these bytes there, remove that
//! name. The receiver does what they say to a tree that nobody sees: an empty one, or a copy of the older snapshot. When the last
//! order says that the stream is whole, the receiver adds up its tree. If that is the tree that was sent, it becomes the snapshot.
//! ```text
//!   sender   digest of the older tree | orders ...                                  | digest of the tree
//!   receiver the same? else refused   | done to a copy of it, which nobody sees ... | the same? then it is a snapshot
//! ```
//! *The digest of a tree* (`digest.rs`) is of names, types, attributes and times, and so of the change time of each file, which a receiver
//! keeps. It tells two snapshots apart without a look at contents. Contents are covered by the checksums of the frames.
//!
//! *Frames* (`frame.rs`) have checksums, each of which covers the one before. So a stream that was cut, damaged, repeated or put
//! together of parts is refused at the first wrong frame. The frames before have been done by then. The receiver keeps its tree, and says where it
//! stands (`resume.rs`): from there on the sender can go on.
//!
//! An order names one directory entry in the directory where the receiver stands; it goes down by one name, which must be a directory, and comes back up. So no
//! stream leads out of the tree, whatever its names.
//!
//! # Cost
//! A sender reads all names and attributes of the newer tree three times, and of the older one four times, and of contents what the two do not share
//! ([`InodeRef::first_difference`](sluice_vfs::InodeRef::first_difference)). It holds the names of the directories on its way, and the paths of the files of
//! several names. A receiver holds one frame.
//!
//! `docs/format.md` has the bytes.

mod apply;
mod arrived;
mod digest;
pub(crate) mod facts;
mod frame;
#[cfg(test)]
mod fuzz_tests;
pub(crate) mod layout;
pub(crate) mod pairs;
mod receive;
mod resume;
mod send;

pub use receive::receive;
pub use resume::is_resume_token;
pub use send::send;
