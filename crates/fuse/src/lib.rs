//! `sluice-fuse`: mounts a sluicefs file system.
//!
//! ```no_run
//! use sluice_fuse::Mount;
//! use sluice_vfs::Fs;
//!
//! let fs = Fs::new();
//! fs.write("/hello", "from this process")?;
//! let mount = Mount::new(&fs, "/mnt")?;
//! assert_eq!(std::fs::read_to_string("/mnt/hello")?, "from this process");
//! std::fs::write("/mnt/answer", "from any program")?;
//! assert_eq!(fs.read_to_string("/answer")?, "from any program");
//! mount.unmount()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Entry points
//! - [`Mount`]: mounts a file system and serves it; dropping it unmounts. `examples/mount.rs` is a server that ends by a signal.
//! - [`Mount::builder`], [`MountOptions`]: what can be chosen, and the `-o` strings for it.
//! - [`unmount_at`]: unmounts a mount that any process serves.
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
//!       held         a mount that may outlive its server      calling_process  who asked
//!       blocked_call what a client's thread waits for, by /proc
//!       coherence    kernels that agree, for another crate that serves several      marks  what such a crate adds to a request
//!     control      questions by other processes
//!   internal     the names that `sluice-cluster` uses beside the public ones
//! ```
//!
//! # Lock order
//! Every lock of this crate is a leaf: none is held while another is taken, across a call into the file system
//! or the lock manager, or across a system call.

#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("sluice-fuse is for Linux: it serves /dev/fuse");

mod abi;
mod blocked_call;
mod calling_process;
mod coherence;
mod connected;
mod connection;
mod counters;
mod error;
mod event;
mod handler;
mod handles;
mod held;
mod lock_class;
mod marks;
mod mount;
mod mount_stat;
mod mountinfo;
mod nodes;
mod notify;
mod options;
mod parked;
mod proc_stat;
mod remount;
mod reply;
mod request;
mod session;
mod transport;
mod workspace;

pub mod control;
#[doc(hidden)]
pub mod internal;

pub use abi::opcode;
pub use error::{MountError, is_dead};
pub use held::{HeldMount, HeldServer, Restarts};
pub use mount::{Ended, Users, device_of_source, is_mounted_for, is_within, source_at, unmount_at};
pub use mountinfo::{MountEntry, read as mount_table};
pub use options::{CheckMode, LockMode, MountOptions, OptionError, StorageStat, Transport};
pub use remount::{is_of_remount, remount_at};
pub use session::{Mount, StopSignals};
pub use workspace::NUMBER_MAX as WORKSPACES_MAX;

/// The program in the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct MountReadme;
