//! Serve: `sluice mount`, in the foreground or as a daemon.
//!
//! # Theory
//! Without `--foreground` the program starts itself again, with it, and waits on a pipe until the mount answers:
//! when `sluice mount` returns, the file system is there. The process that stays has no terminal and no open
//! pipe of its parent's.

use crate::args::Mount as MountArgs;
use crate::ram_options;
use crate::watch::{serve_metrics, take_metrics};
use crate::{announce, refuse_store, this_program};
use rustix::fs::{CWD, Mode, OFlags};
use sluice_fuse::{Ended, Mount, StopSignals};
use sluice_lab::failure::{Context, Failure, Result};
use sluice_lab::mount_files::{self, MountFile};
use sluice_lab::mounted;
use sluice_sync::thread;
use sluice_vfs::Superblock;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// Several `-o` as one list, checked.
pub(crate) fn option_list(options: &[String]) -> Result<String> {
    let list = options.join(",");
    ram_options::parse(&take_metrics(&list)?.0)?;
    Ok(list)
}

pub(crate) fn mount(args: MountArgs) -> Result<()> {
    let (dir, store) = match <[_; 2]>::try_from(args.places) {
        Ok([store, dir]) if !args.ram => (dir, Some(store)),
        Ok([_, dir]) => {
            return Err(Failure::Usage(format!("--ram takes no STORE: give only {}", dir.display())));
        }
        Err(mut one) => (one.remove(0), None),
    };
    refuse_store(store)?;
    let list = option_list(&args.options)?;
    if args.foreground { serve(&dir, &list, args.attached, args.detach) } else { daemonize(&dir, &list) }
}

/// Starts the serving process and waits until its mount answers.
fn daemonize(dir: &Path, list: &str) -> Result<()> {
    let mut child = Command::new(this_program()?)
        .args(["mount", "--ram", "--foreground", "--detach", "-o", list, "--"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(|| "cannot start the serving process")?;
    mounted::await_ready(&mut child).inspect_err(|_| {
        // It has said why and is about to end.
        let _ = child.wait();
    })
}

/// Mounts, serves until unmounted or told to stop by a signal, and unmounts.
fn serve(dir: &Path, list: &str, attached: bool, detach: bool) -> Result<()> {
    let (list, metrics) = take_metrics(list)?;
    let (ram, mut options) = ram_options::parse(&list)?;
    options.dedicated = true;
    options.own_session = detach;
    // Before mounting: a signal in between would otherwise leave a mount without a server.
    let signals = StopSignals::catch()?;
    if detach {
        // No controlling terminal, and a share of the CPUs of its own.
        rustix::process::setsid().map_err(std::io::Error::from)?;
    }
    let mount =
        Mount::new(Superblock::new(ram), dir, options).map_err(|error| Failure::Failed(error.to_string()))?;
    let (major, minor) = mount.device();
    let device = rustix::fs::makedev(major, minor);
    if let Some(address) = metrics {
        serve_metrics(address, mount.device())?;
    }
    if detach {
        // Not a directory that somebody may want to unmount.
        std::env::set_current_dir("/")?;
    }
    if attached || detach {
        announce()?;
    }
    if detach {
        leave_the_pipes()?;
    }
    if attached {
        thread::spawn(stop_when_input_ends);
    }
    match mount.run_until_signal(signals)? {
        Ended::Unmounted => Ok(()),
        Ended::Detached => {
            // The path of a file that is out of the tree says nothing.
            let users = mount_files::of_programs_on(device).unwrap_or_default();
            let user = users.first().map_or("a process that ends".into(), MountFile::user);
            let text = format!("{} was detached while in use: {user} loses what it has open", dir.display());
            Err(Failure::Failed(text))
        }
    }
}

/// Standard output and standard error go nowhere from here on.
fn leave_the_pipes() -> Result<()> {
    let null = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).and_then(
        |null| {
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&null)
        },
    );
    null.map_err(std::io::Error::from).context(|| "/dev/null")
}

/// The process at the other end of our standard input has closed it, or died: stop, as if by SIGTERM.
fn stop_when_input_ends() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // Our own process: cannot fail.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}
