//! `sluice-console`: the parts that both programs, `sluice` and `sluice-lab`, need to talk to a person and to the host.
//!
//! # Entry points
//! - [`failure::Failure`]: an error as one line; [`output::Output`]: standard output whose reader may leave.
//! - [`interrupt::Interrupt`]: Ctrl-C as a flag; [`private_dir::PrivateDir`]: a directory that is removed at the end.
//! - [`mounted::Mounted`]: a mount that `sluice` serves in a process of its own, unmounted when it is dropped.
//! - [`corpus::Corpus`]: a source tree to work on; [`servers::ServerProcess`]: an etcd or an S3 server of our own.
//! - [`program`]: the file of this program, and that of the other one; [`stack::with_enough`]: whatever `ulimit -s` is.

#![deny(unsafe_code)]

mod closed_output;
pub mod corpus;
pub mod failure;
pub mod interrupt;
pub mod machine;
pub mod mounted;
pub mod output;
pub mod private_dir;
pub mod program;
pub mod servers;
pub mod stack;
pub mod table;
