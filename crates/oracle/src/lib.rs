//! `sluice-oracle`: the differential test of sluicefs against Linux.
//!
//! # Theory
//! The kernel's tmpfs is the specification that nobody can misread. A [`generate::sequence`] of operations
//! by several users runs on a directory of tmpfs ([`host::Host`]) and on the file system under test
//! ([`lib_exec::InProcess`], or a `Host` on a mounted directory). [`compare::compare`] looks at each outcome
//! and at the whole tree in the end; [`shrink::shrink`] cuts a failing sequence down to the steps that matter;
//! [`op::to_text`] writes them as a file that is replayed ever after.
//!
//! [`view`] lists the compared facts, and the facts that Linux leaves open.
//!
//! # Environment
//! `SLUICE_ORACLE_OPS` (operations to run), `SLUICE_ORACLE_SEED` (one seed, instead of fresh ones),
//! `SLUICE_ORACLE_REPLAY` (a file to replay), `SLUICE_ORACLE_DIR` (a mounted directory to test against tmpfs).

#![deny(unsafe_code)]

pub mod campaign;
pub mod compare;
pub mod executor;
pub mod generate;
pub mod host;
mod host_call;
#[cfg(test)]
mod leases;
pub mod lib_exec;
pub mod op;
mod pool;
pub mod shrink;
pub mod store_run;
mod sys;
pub mod tree;
pub mod view;
pub mod word;

pub use pool::Limits;
