//! The `sluice` command: options in, exit status out. The crates below it do the work; `sluice-lab` measures.
//!
//! Exit status: 0 done, 1 something failed or was found, 2 bad usage; each time with one line that says what to do. Bad usage are
//! arguments, options and variables of the environment that are refused by their words, whatever the state of the machine.

#![forbid(unsafe_code)]

mod args;
#[cfg_attr(not(feature = "s3"), path = "no_bucket.rs")]
mod bucket;
mod check_coherence;
#[cfg_attr(not(feature = "cluster"), path = "no_cluster.rs")]
mod cluster;
#[cfg(feature = "cluster")]
mod cluster_demo;
#[cfg(feature = "cluster")]
mod cluster_lock;
#[cfg(feature = "cluster")]
mod cluster_place;
#[cfg(feature = "cluster")]
mod cluster_top;
mod copies;
mod crash_test;
#[cfg_attr(not(feature = "csi"), path = "no_csi.rs")]
mod csi;
mod demo;
#[cfg(feature = "cluster")]
mod descendants;
#[cfg(feature = "cluster")]
mod dlm_status;
mod failures;
mod fault;
mod figures;
mod footing;
mod heed;
mod held_process;
mod holder;
mod holder_link;
mod holder_state;
mod holder_upgrade;
mod in_time;
mod kept_directory;
mod key_source;
mod keys;
mod lab_program;
mod leaving;
mod list;
#[cfg(feature = "cluster")]
mod lock_member;
mod metrics;
mod metrics_port;
mod mount_files;
mod mount_helper;
mod mount_locks;
mod mount_stat;
mod named_store;
#[cfg(feature = "cluster")]
mod network;
#[cfg(all(test, feature = "s3"))]
#[allow(dead_code, reason = "compiled for its tests")]
mod no_bucket;
#[cfg(all(test, feature = "cluster"))]
#[allow(dead_code, reason = "compiled for its tests")]
mod no_cluster;
#[cfg(all(test, feature = "csi"))]
#[allow(dead_code, reason = "compiled for its tests")]
mod no_csi;
mod nowhere;
mod processes;
mod quota;
mod ram_options;
mod run_in_mount;
mod screens;
mod scrub;
mod serve;
mod serving;
mod storage;
mod store;
mod streams;
mod system_log;
mod upgrade;
mod watch;
mod watchdog;
mod workspace;
#[cfg(feature = "cluster")]
mod workspace_places;

use args::{Child, Command, LockCommand};
use clap::FromArgMatches;
use clap::error::ErrorKind;
use footing::Footing;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::{Interrupt, outlive_file_size_limit};
use sluice_console::mounted;
use sluice_console::output::Output;
use sluice_console::program::{complain, exit_status, one_line, this_program};
use sluice_console::stack;
use sluice_fuse::{Ended, MountError, Users};
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use streams::ChangeForm;

fn main() -> ExitCode {
    stack::with_enough(run)
}

fn run() -> ExitCode {
    // Without the handler only what is beyond such a limit ends the program.
    let _ = outlive_file_size_limit();
    let mut arguments = std::env::args_os();
    if mount_helper::is_meant(arguments.next().as_deref()) {
        return ExitCode::from(mount_helper::run(arguments));
    }
    if lab_program::is_meant(std::env::args_os().skip(1)) {
        return exit_status(lab_program::run());
    }
    match parse() {
        Ok(command) => exit_status(perform(command)),
        Err(status) => status,
    }
}

/// The command line as a command, or the exit status when that was all there was to do.
fn parse() -> std::result::Result<Command, ExitCode> {
    let parsed = args::command().try_get_matches().and_then(|matches| args::Cli::from_arg_matches(&matches));
    let error = match parsed {
        Ok(cli) => return Ok(cli.command),
        Err(error) => error,
    };
    Err(match error.kind() {
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
        _ => {
            // fsck(8) has numbers of its own.
            let of_fsck = std::env::args_os().nth(1).is_some_and(|command| command == "fsck");
            complain(&one_line(&error.to_string()), if of_fsck { store::USAGE } else { 2 })
        }
    })
}

fn perform(command: Command) -> Result<u8> {
    match command {
        Command::Demo => {
            let interrupt = Interrupt::on_signals()?;
            let mut output = Output::stopping(&interrupt);
            let outcome = demo::tour(&this_program()?, &mut output, &interrupt);
            output.forgive(outcome)?;
        }
        Command::Mkfs { encrypt, compress, key, store } => store::mkfs(&store, (encrypt, compress), &key)?,
        Command::Key { action } => keys::perform(&action)?,
        Command::Info { json, key, store } => store::info(&store, json, &key)?,
        Command::Fsck(args) => {
            return store::fsck(&args).or_else(|failure| {
                let is_usage = matches!(failure, Failure::Usage(_));
                let status = if is_usage { store::USAGE } else { store::OPERATIONAL };
                complain(&failure.to_string(), status);
                Ok(status)
            });
        }
        Command::Mount(mount) => return serve::mount(mount),
        Command::Umount { lazy, force, dir } => {
            let store = store::mounted_on(&dir).filter(|_| !lazy && !force);
            // Before the mount is gone.
            let leaving = match &store {
                Some(_) => leaving::LeavingServer::of(&dir),
                None => leaving::LeavingServer::default(),
            };
            let users = match () {
                () if force => Users::Fail,
                () if lazy => Users::LetFinish,
                () => Users::Keep,
            };
            let ended = sluice_fuse::unmount_at(&dir, users).map_err(|error| match &error {
                MountError::Busy(dir) => Failure::Failed(format!(
                    "{error}{}",
                    leaving.silence().unwrap_or_else(|| first_user(dir))
                )),
                _ => failures::mount_failure(error),
            })?;
            if ended == Ended::Detached {
                complain(
                    &format!("{}: its server had ended while it was in use; detached", dir.display()),
                    0,
                );
            } else if let Some(store) = store {
                leaving.await_end(&store)?;
            }
        }
        Command::Clone { from, to } => copies::clone_tree(&from, &to)?,
        Command::Snapshot { action } => copies::snapshot(&action)?,
        Command::Quota(args) => quota::quota(&args)?,
        Command::Scrub(args) => return scrub::scrub(&args),
        Command::Diff { json, names, old, new } => {
            let form = match (json, names) {
                (true, _) => ChangeForm::Json,
                (_, true) => ChangeForm::Names,
                _ => ChangeForm::Text,
            };
            streams::diff(&old, new.as_deref(), &form)?;
        }
        Command::Send { since, resume, snapshot } => {
            streams::send(&snapshot, since.as_deref(), resume.as_deref())?;
        }
        Command::Receive { key, store } => streams::receive(&store, &key)?,
        Command::Export { snapshot } => streams::export(&snapshot)?,
        Command::Fault(args) => fault::fault(&args)?,
        Command::Run { ram: _, store, options, command } => {
            let options = serve::option_list(&options, Footing::of(store.as_deref(), false))?;
            let options = [OsStr::new("-o"), OsStr::new(&options)];
            return run_in_mount::run_in_mount(&this_program()?, store.as_deref(), &options, &command);
        }
        Command::CheckCoherence(args) => return check_coherence::check_coherence(&args),
        Command::CrashTest(args) => return Ok(crash_test::crash_test(&args)),
        Command::Locks { table, json, hot, dir } => watch::locks(&dir, table, json, hot)?,
        Command::Cluster { action } => cluster::perform(action)?,
        Command::Workspace { action } => workspace::perform(&action)?,
        Command::Lock(LockCommand::Lock { request, command }) => return cluster::lock(&request, &command),
        Command::Lock(LockCommand::Dlm { action }) => cluster::dlm(action)?,
        Command::Csi(args) => csi::csi(&args)?,
        Command::List { json } => list::list(json)?,
        Command::Stat { json, files, explain, dir } => watch::stat(&dir, json, files, explain)?,
        Command::Top(watched) => match (&watched.dir, &watched.cluster) {
            (Some(dir), _) => watch::top(dir, &watched)?,
            (None, Some(place)) => cluster::top(place, &watched)?,
            (None, None) => {
                return Err(Failure::Usage("top: give a directory of a mount, or --cluster CLUSTER".into()));
            }
        },
        Command::Upgrade { dir } => upgrade::upgrade(&dir)?,
        Command::Lab(_) => return lab_program::run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "sluice", &mut script);
            Output::plain().give(&script)?;
        }
        Command::Man { dir } => {
            clap_mangen::generate_to(args::command(), &dir).context(|| dir.display().to_string())?;
        }
        Command::Child { child } => return perform_as_child(child),
    }
    Ok(0)
}

/// One of the processes that use a mount, as the rest of a message; nothing if none may be looked at.
fn first_user(dir: &Path) -> String {
    // The kernel asks the server for attributes of open files.
    in_time::in_time(dir, mount_files::of_programs)
        .unwrap_or_default()
        .first()
        .map_or_else(String::new, |file| format!("; {}", file.in_words()))
}

fn perform_as_child(child: Child) -> Result<u8> {
    match child {
        Child::HoldLock { file } => demo::hold_until_told(&file)?,
        Child::LockRounds { file, rounds } => demo::lock_rounds(&file, rounds)?,
        Child::CoherenceWorker { dir } => check_coherence::work(&dir)?,
        Child::LockMember(request) => return cluster::hold_lock(&request),
        Child::Locked { parent, command } => return cluster::become_locked(parent, &command),
    }
    Ok(0)
}

/// Tells the parent that the serving process's mount works.
fn announce() -> Result<()> {
    tell_parent(mounted::READY)
}

fn tell_parent(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_is_one_line_with_its_tip() {
        let error = args::command().try_get_matches_from(["sluice", "mont"]).unwrap_err();
        let line = one_line(&error.to_string());
        assert!(line.contains("unrecognized subcommand 'mont'") && line.contains("'mount'"), "{line}");
        assert!(!line.contains('\n') && !line.contains("Usage:"), "{line}");
    }

    #[test]
    fn the_options_are_consistent() {
        args::command().debug_assert();
    }
}
