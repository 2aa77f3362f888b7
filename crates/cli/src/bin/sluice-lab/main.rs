//! The `sluice-lab` command: measures file systems, this one and others. `sluice bench` and its like run it.

#![forbid(unsafe_code)]

#[path = "../../args/lab.rs"]
mod args;
mod bench;
mod commute;
mod lab;
mod pages;

use args::LabCommand;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use sluice_console::failure::Result;
use sluice_console::interrupt::outlive_file_size_limit;
use sluice_console::output::Output;
use sluice_console::program::{complain, exit_status, one_line};
use sluice_console::stack;
use sluice_lab::experiment::EXPERIMENTS;
use sluice_lab::workload::WORKLOADS;
use sluice_lab::{footprint, timed_run};
use std::fmt::Write as _;
use std::process::ExitCode;

/// On simulated machines no two objects share a line by chance; everywhere else this is the system's allocator.
#[global_allocator]
static HEAP: sluice_machine::Heap = sluice_machine::Heap;

/// The lab of sluicefs: measures where locking holds back a file system
#[derive(Parser)]
#[command(name = "sluice-lab", bin_name = "sluice", version)]
struct LabProgram {
    #[command(subcommand)]
    command: LabOrder,
}

#[derive(Subcommand)]
enum LabOrder {
    #[command(flatten)]
    Lab(LabCommand),
    /// The children that this program starts itself
    #[command(hide = true)]
    Child {
        #[command(subcommand)]
        child: LabChild,
    },
}

/// Work that benchmarks do in processes of their own.
#[derive(Subcommand)]
enum LabChild {
    /// Measure the memory of many files of BYTES bytes
    Footprint { bytes: usize },
    /// Be one task of a benchmark
    Task { orders: String },
}

/// The command line, with the lists that are known at run time filled in.
fn command() -> clap::Command {
    LabProgram::command()
        .mut_subcommand("bench", |bench| bench.after_help(bench_help()))
        .mut_subcommand("lab", |lab| lab.after_help(lab_help()))
}

fn main() -> ExitCode {
    stack::with_enough(run)
}

fn run() -> ExitCode {
    // Without the handler only what is beyond such a limit ends the program.
    let _ = outlive_file_size_limit();
    let parsed = command().try_get_matches().and_then(|matches| LabProgram::from_arg_matches(&matches));
    match parsed {
        Ok(program) => exit_status(perform(program.command)),
        Err(error) => usage(&error),
    }
}

/// Answers a command line that is none, or that asks for help.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has seen enough is no error.
            match Output::plain().give(error.render().to_string().as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => complain(&failure.to_string(), 1),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => complain(&one_line(&error.to_string()), 2),
    }
}

fn perform(order: LabOrder) -> Result<u8> {
    match order {
        LabOrder::Lab(LabCommand::Bench(options)) => return bench::bench(*options),
        LabOrder::Lab(LabCommand::Compare { before, after, output, fail_over }) => {
            return pages::compare(&before, &after, output.as_deref(), fail_over.as_deref());
        }
        LabOrder::Lab(LabCommand::Report { result: Some(result), output, .. }) => {
            pages::report(&result, &output)?;
        }
        LabOrder::Lab(LabCommand::Report { result: None, output, .. }) => pages::sources(&output)?,
        LabOrder::Lab(LabCommand::Lab(options)) => lab::lab(options)?,
        LabOrder::Lab(LabCommand::Commute(options)) => commute::commute(options)?,
        LabOrder::Child { child: LabChild::Footprint { bytes } } => {
            let measured = footprint::measure(footprint::FILES, bytes)?;
            Output::plain().give(footprint::to_line(&measured).as_bytes())?;
        }
        LabOrder::Child { child: LabChild::Task { orders } } => timed_run::serve(&orders)?,
    }
    Ok(0)
}

impl From<args::Below> for sluice_lab::commute::On {
    fn from(on: args::Below) -> Self {
        match on {
            args::Below::Ram => Self::Ram,
            args::Below::Store => Self::Store,
        }
    }
}

fn lab_help() -> String {
    let mut text = String::from("Experiments:\n");
    for experiment in EXPERIMENTS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:11} {}", experiment.name, experiment.about);
    }
    text.push_str(
        "
Tables, then what each source said, what is seen, and a verdict; a miss is a result and no error. Figures of the
simulated machines are labelled so, and the same on every computer. Most experiments take a minute or two;
vfs takes up to half an hour and 12 GB of memory.

Examples:
  sluice lab spin
  sluice lab rwsem --json result.json
  sluice lab calibrate",
    );
    text
}

fn bench_help() -> String {
    let mut text = String::from("Workloads:\n");
    for workload in WORKLOADS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:17} {}", workload.name, workload.about);
    }
    text.push_str(
        "
Each workload checks its own results at the end of each run. Runs alternate between the targets. A pass of its own
after each run times every operation for p50, p99 and max. Ctrl-C keeps the runs that are finished.
With --exec a command is the load: each run starts it once in the target's root (PATH itself, the mount) and takes its wall time.
With --against each run is a process of its own, of this build and of the other in turn; the ratio is this build's rate over
the other's, and has no verdict where the same load on a tmpfs of the host moved as much.

Examples:
  sluice bench creat-unlink --on lib,dir:/dev/shm
  sluice bench stat open-close --on mount,dir:/dev/shm,dir:/var/tmp --cpus 1,2 --seconds 1
  sluice bench posix02 --on lib --tasks 16 --json result.json
  sluice bench open-close-same --on sim:power7-64 --cpus 1,8,64 --runs 3
  sluice bench footprint --on lib --runs 1
  sluice bench stat creat-unlink --against ../before/target/release/sluice --fail-over 5%
  sluice bench --exec 'make -j2' --on dir:/home/me/project --runs 3

On a simulated machine each CPU does 100 operations, or --ops, and the lines that CPUs waited for most are shown.
Machines: uma-2, skylake-4, vm-16, opteron-32, power7-64, westmere-160, icelake-2s, milan-2s.",
    );
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_options_are_consistent() {
        super::command().debug_assert();
    }
}
