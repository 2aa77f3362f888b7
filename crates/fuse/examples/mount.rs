//! Mount: the program serves its own file system to all programs of the machine, and goes on using it.
//!
//! `cargo run -p sluice-fuse --example mount -- DIR [OPTIONS]`, until it is unmounted or a signal comes. OPTIONS are those of
//! `mount -o`.

use sluice_fuse::{MountOptions, StopSignals};
use sluice_vfs::Fs;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: mount DIR [OPTIONS]")?;
    let options = MountOptions::parse(&arguments.next().unwrap_or_default())?;

    let fs = Fs::new();
    fs.write("/hello", "from a file system in this process\n")?;
    // Before the mount: a signal between the two would leave a mount without a server.
    let signals = StopSignals::catch()?;
    let mount = options.mount(fs.superblock(), &dir)?;
    println!("mounted on {}", mount.dir().display());
    mount.run_until_signal(signals)?;
    for entry in fs.read_dir("/")? {
        println!("left: {}", entry?.name().display());
    }
    Ok(())
}
