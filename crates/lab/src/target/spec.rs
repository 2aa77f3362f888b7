//! Spec: a TARGET as it is written on the command line.

use super::{HostDir, Library, Target};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::mounted::Mounted;
use sluice_machine::Machine;
use sluice_sync::cpu;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which target to run on. Parsed from `lib`, `dir:PATH`, `mount` or `sim:MACHINE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spec {
    /// The library, in this process, in memory.
    Lib,
    /// A directory of any mounted file system.
    Dir(PathBuf),
    /// A RAM file system of ours, mounted for the occasion.
    Mount,
    /// The library, on a simulated machine of this name.
    Simulated(String),
}

/// A target that is ready.
pub enum Ready {
    /// Runs take real time.
    Native(Box<dyn Target>),
    /// Runs take simulated time.
    Simulated(Box<Machine>),
}

impl Spec {
    /// Makes the target ready. `program` is the `sluice` binary, which serves the mount in a process of its
    /// own, so that daemon and load do not share one.
    ///
    /// # Errors
    /// When its directory cannot be created or it cannot be mounted.
    pub fn open(&self, program: &Path) -> Result<Ready> {
        Ok(Ready::Native(match self {
            Spec::Lib => Box::new(Library::new()),
            Spec::Dir(path) => Box::new(HostDir::below(path)?),
            Spec::Mount => Box::new(OwnMount::new(program)?),
            Spec::Simulated(name) => return Ok(Ready::Simulated(Box::new(machine_called(name)?))),
        }))
    }

    /// How many CPUs there are to run on.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a machine that nobody knows.
    pub fn cpus_max(&self) -> Result<usize> {
        match self {
            Spec::Simulated(name) => Ok(machine_called(name)?.cpus_max()),
            _ => Ok(cpu::allowed().len().max(1)),
        }
    }
}

fn machine_called(name: &str) -> Result<Machine> {
    Machine::find(name).map_err(|unknown| Failure::Usage(format!("target sim:{name}: {unknown}")))
}

impl Spec {
    /// Type and options of the file system, where it is a mounted one.
    pub fn file_system(&self) -> Option<String> {
        match self {
            Spec::Dir(path) => machine::file_system(path),
            _ => None,
        }
    }
}

impl FromStr for Spec {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Spec> {
        let usage = |text: String| Err(Failure::Usage(text));
        match text.split_once(':') {
            None if text == "lib" => Ok(Spec::Lib),
            None if text == "mount" => Ok(Spec::Mount),
            Some(("dir", path)) if !path.is_empty() => Ok(Spec::Dir(PathBuf::from(path))),
            Some((kind @ ("lib" | "mount"), _)) => usage(format!(
                "target {text}: durable stores are not there yet; use {kind}, which is in memory"
            )),
            Some(("sim", name)) => machine_called(name).map(|_| Spec::Simulated(name.to_owned())),
            _ => usage(format!("target {text}: unknown; use lib, dir:PATH, mount or sim:MACHINE")),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Lib => f.write_str("lib"),
            Spec::Dir(path) => write!(f, "dir:{}", path.display()),
            Spec::Mount => f.write_str("mount"),
            Spec::Simulated(name) => write!(f, "sim:{name}"),
        }
    }
}

/// The target `mount`: a host directory that happens to be ours.
struct OwnMount {
    dir: HostDir, // immutable; first: its files close before the unmount
    _mounted: Mounted,
}

impl OwnMount {
    fn new(program: &Path) -> Result<OwnMount> {
        let mounted = Mounted::start(program, &[])?;
        Ok(OwnMount { dir: HostDir::below(mounted.path())?, _mounted: mounted })
    }
}

impl Target for OwnMount {
    fn task(&self) -> Result<Box<dyn super::Calls>> {
        self.dir.task()
    }

    fn place(&self) -> Option<&Path> {
        self.dir.place()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_reads_as_it_is_written() {
        for text in ["lib", "mount", "dir:/dev/shm", "dir:a:b", "sim:uma-2"] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_there_yet_is_refused_in_one_line_that_says_what_to_use() {
        for text in ["lib:/store", "mount:/store", "sim:abacus", "dir:", "nfs", ""] {
            let Err(Failure::Usage(line)) = text.parse::<Spec>() else { panic!("{text} was accepted") };
            assert!((line.contains("use ") || line.contains("there are")) && !line.contains('\n'), "{line}");
        }
    }
}
