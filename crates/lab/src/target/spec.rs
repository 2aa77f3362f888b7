//! Spec: a TARGET as it is written on the command line.

use super::{HostDir, Library, Target};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::mounted::Mounted;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which target to run on. Parsed from `lib`, `dir:PATH` or `mount`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spec {
    /// The library, in this process, in memory.
    Lib,
    /// A directory of any mounted file system.
    Dir(PathBuf),
    /// A RAM file system of ours, mounted for the occasion.
    Mount,
}

impl Spec {
    /// Makes the target ready. `program` is the `sluice` binary, which serves the mount in a process of its
    /// own, so that daemon and load do not share one.
    ///
    /// # Errors
    /// When its directory cannot be created or it cannot be mounted.
    pub fn open(&self, program: &Path) -> Result<Box<dyn Target>> {
        Ok(match self {
            Spec::Lib => Box::new(Library::new()),
            Spec::Dir(path) => Box::new(HostDir::below(path)?),
            Spec::Mount => Box::new(OwnMount::new(program)?),
        })
    }
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
            Some(("sim", _)) => usage(format!(
                "target {text}: the simulated machine is not there yet; use lib, dir:PATH or mount"
            )),
            _ => usage(format!("target {text}: unknown; use lib, dir:PATH or mount")),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Lib => f.write_str("lib"),
            Spec::Dir(path) => write!(f, "dir:{}", path.display()),
            Spec::Mount => f.write_str("mount"),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_reads_as_it_is_written() {
        for text in ["lib", "mount", "dir:/dev/shm", "dir:a:b"] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_there_yet_is_refused_in_one_line_that_says_what_to_use() {
        for text in ["lib:/store", "mount:/store", "sim:uma-2", "dir:", "nfs", ""] {
            let Err(Failure::Usage(line)) = text.parse::<Spec>() else { panic!("{text} was accepted") };
            assert!(line.contains("use ") && !line.contains('\n'), "{line}");
        }
    }
}
