//! `sluice-fuse`: mounts a sluicefs file system.
//!
//! # Entry points
//! - [`Mount`]: mounts a [`Superblock`](sluice_vfs::Superblock) and serves it; dropping it unmounts.
//! - [`MountOptions`]: what can be chosen, and the `-o` strings for it.
//! - [`unmount_at`]: unmounts a mount that any process serves.
//! - [`Host`], [`Guest`] and [`Relay`]: a mount that another process serves.
//! - [`control`]: what another process may ask the server of a mount.
//!
//! # Code map
//! ```text
//!   session      a mount from its making to its end: threads, signals
//!     mount        mount(2), umount2(2), fusermount3          remount  its flags, later
//!     transport    how messages travel; dev_fuse: the classic device, uring: a queue for each CPU, policy: which
//!     connection   what the workers share; the path of one message
//!       request      taking a message apart           abi   the kernel's layouts and numbers
//!       handler      what each request does           reply   the answer's bytes
//!       nodes        inodes that the kernel knows     handles  open files, when locks are served here
//!       parked       lock requests that wait          notify  changes by others, told to the kernel
//!       blocked_call what a client's thread waits for, by /proc
//!     control      questions by other processes
//!   relay        a mount whose requests go elsewhere       guest   a mount whose requests come from elsewhere
//! ```
//!
//! # Lock order
//! Every lock of this crate is a leaf: none is held while another is taken, across a call into the file system
//! or the lock manager, or across a system call. A relay's are in the header of its module.

#![deny(unsafe_code)]

mod abi;
mod blocked_call;
mod connection;
mod counters;
mod error;
mod guest;
mod handler;
mod handles;
mod lock_class;
mod mount;
mod mountinfo;
mod nodes;
mod notify;
mod options;
mod parked;
mod relay;
mod remount;
mod reply;
mod request;
mod session;
mod transport;

pub mod control;

pub use abi::opcode;
pub use error::{MountError, is_dead};
pub use guest::{Guest, GuestChannel, Holdings, Host, Lost, Notice, Ticket};
pub use mount::{Users, device_of_source, is_mounted_for, is_within, source_at, unmount_at};
pub use options::{CheckMode, LockMode, MountOptions, OptionError, Transport};
pub use relay::{Device, Relay, RelayCounts, RestoredGuest, Server, Uplink};
pub use remount::{is_of_remount, remount_at};
pub use session::{Ended, Mount, StopSignals};
