//! Survival: a store is mounted, written to, its server killed with SIGKILL, and mounted again: what is there?

use rustix::process::{Pid, Signal, kill_process};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::mounted::Mounted;
use sluice_console::private_dir::PrivateDir;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Files that are written, the odd ones made durable by fsync(2).
const FILES: usize = 100;

/// The number of files that were fsynced before the kill, and how many of these and of the others exist afterwards. The
/// store is below `host`.
pub(super) fn kill_and_mount_again(program: &Path, host: &Path) -> Result<(usize, usize, usize)> {
    let dir = PrivateDir::below(host)?;
    let store = dir.path().join("store");
    let made = Command::new(program).arg("mkfs").arg(&store).stderr(Stdio::piped()).output();
    let made = made.context(|| "cannot run sluice mkfs")?;
    if !made.status.success() {
        return Err(Failure::Failed(String::from_utf8_lossy(&made.stderr).trim_end().to_owned()));
    }
    let mount = Mounted::start_on(program, Some(&store), &[])?;
    let mut fsynced = 0;
    for number in 0..FILES {
        let mut file = File::create(mount.path().join(number.to_string()))?;
        file.write_all(number.to_string().as_bytes())?;
        if number % 2 == 1 {
            file.sync_all()?;
            fsynced += 1;
        }
    }
    let server = i32::try_from(mount.server_pid()).ok().and_then(Pid::from_raw);
    kill_process(server.ok_or_else(|| Failure::Failed("the server has no number".into()))?, Signal::KILL)
        .map_err(std::io::Error::from)?;
    // It waits for the server's end, and takes the dead mount away.
    drop(mount);
    let mount = Mounted::start_on(program, Some(&store), &[])?;
    let there = |odd: usize| {
        let numbers = (0..FILES).filter(|number| number % 2 == odd);
        let read = |number: &usize| fs::read_to_string(mount.path().join(number.to_string()));
        numbers.filter(|number| read(number).is_ok_and(|text| text == number.to_string())).count()
    };
    let (kept, others) = (there(1), there(0));
    mount.unmount()?;
    if kept < fsynced {
        return Err(Failure::Failed(format!("{} of {fsynced} fsynced files were lost", fsynced - kept)));
    }
    Ok((fsynced, kept, others))
}
