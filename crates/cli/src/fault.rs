//! Fault: `sluice fault`: faults and crashes of a mount, for tests of programs that use it.

use crate::args::Fault;
use crate::watch::no_server;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_fuse::control;
use sluice_vfs::Fs;
use std::path::Path;

pub(crate) fn fault(args: &Fault) -> Result<()> {
    let dir = args.dir.as_path();
    if let Some(to) = &args.crash_clone {
        return crash_clone(dir, to, args.seed);
    }
    if args.track {
        return answered(dir, control::track_crashes(dir)).map(drop);
    }
    if args.unsynced {
        return Output::plain().give(&answered(dir, control::unsynced(dir))?);
    }
    if let Some(which) = &args.clear {
        let id = match which.as_str() {
            "all" => None,
            id => Some(id.parse().map_err(|_| Failure::Usage(format!("--clear={id}: give a number")))?),
        };
        return answered(dir, control::clear_faults(dir, id)).map(drop);
    }
    if args.rules.is_empty() {
        return Output::plain().give(&answered(dir, control::faults(dir))?);
    }
    // All are looked at before the first acts.
    for rule in &args.rules {
        rule.parse::<sluice_vfs::Fault>().map_err(Failure::Usage)?;
    }
    for rule in &args.rules {
        Output::plain().give(&answered(dir, control::inject(dir, rule))?)?;
    }
    Ok(())
}

/// Writes what a crash would leave to the directory `to`.
fn crash_clone(dir: &Path, to: &Path, seed: u64) -> Result<()> {
    if std::fs::read_dir(to).is_ok_and(|mut names| names.next().is_some()) {
        return Err(Failure::Failed(format!("{}: not empty: give a new directory", to.display())));
    }
    let archive = answered(dir, control::crash_clone(dir, seed))?;
    let fs = Fs::new();
    sluice_trees::import_tar(&fs, archive.as_slice(), "/").context(|| dir.display().to_string())?;
    sluice_trees::export(&fs, "/", to).context(|| to.display().to_string())?;
    Ok(())
}

fn answered(dir: &Path, answer: std::io::Result<Option<Vec<u8>>>) -> Result<Vec<u8>> {
    answer.context(|| dir.display().to_string())?.ok_or_else(|| no_server(dir))
}
