//! Mounts an empty file system in memory: `cargo run --example mount -- DIR [OPTIONS]`, until it is unmounted
//! or a signal comes.

use sluice_fuse::{Mount, MountOptions, StopSignals};
use sluice_vfs::{Options, Superblock};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: mount DIR [OPTIONS]")?);
    let options = arguments.next().unwrap_or_default();
    let options = MountOptions::parse(&options.to_string_lossy())?;
    let signals = StopSignals::catch()?;
    let mount = Mount::new(Superblock::new(Options::default()), &dir, options)?;
    println!("mounted");
    mount.run_until_signal(signals)?;
    Ok(())
}
