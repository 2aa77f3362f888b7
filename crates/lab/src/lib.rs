//! `sluice-lab`: measures how file systems scale, on this library, on our mount and on any mounted file system.
//!
//! # Entry points
//! - [`bench::bench`]: a plan (workloads, targets, CPU counts) in, one [`row::Row`] per line of the result out.
//! - [`commute::Plan`]: whether calls that commute share a written line, on the simulated machine.
//! - [`experiment::Experiment`]: what the sources say about locks, shown on simulated machines and on this one.
//! - [`against::against`]: a plan carried out by this program and by another in turn, and what differs beyond chance.
//! - [`compare::compare`] and [`report`]: two results and what differs beyond chance; results as a page.
//! - [`target::Target`]: the small POSIX surface that every workload is written against, once.
//!
//! # How a figure is made
//! ```text
//! for each workload, for each number of CPUs:
//!     for each run:
//!         for each target:                    A B A B: a slow minute of the machine hits all of them
//!             one thread per task, pinned: set up, warm up | barrier | work | stop, verify, tidy up
//!     for each target: median over the runs -> one row
//! ```
//! Every run ends with the workload's own check of what it did: a fast wrong answer is an error, not a figure.

#![forbid(unsafe_code)]

pub mod against;
pub mod bench;
mod command_run;
pub mod commute;
pub mod compare;
pub mod distance;
pub mod disturbance;
pub mod experiment;
pub mod footprint;
pub mod history;
pub mod hot_lines;
pub mod report;
pub mod row;
pub mod row_table;
mod simulated_fs;
pub mod sleep_places;
pub mod stats;
pub mod target;
pub mod timed_run;
pub mod workload;

/// As in the program `sluice-lab`: on simulated machines no two objects share a line by chance.
#[cfg(test)]
#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;
