//! Spec: a TARGET as it is written on the command line.

use super::{HostDir, Library, Target};
use crate::simulated_fs::On;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::machine;
use sluice_console::mounted::Mounted;
use sluice_machine::Machine;
use sluice_sync::cpu;
use sluice_vfs::{Fs, StoreError};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which target to run on. Parsed from `lib`, `lib:STORE`, `dir:PATH`, `mount`, `mount:STORE`, `sim:MACHINE` or
/// `sim:MACHINE:store`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spec {
    /// The library, in this process, in memory.
    Lib,
    /// The library, in this process, over a store in this directory, which is made if it is missing.
    LibStore(PathBuf),
    /// A directory of any mounted file system.
    Dir(PathBuf),
    /// A RAM file system of ours, mounted for the occasion.
    Mount,
    /// The store there, which is made if it is missing, mounted for the occasion.
    MountStore(PathBuf),
    /// The library, on a simulated machine of this name.
    Simulated(String, On),
}

/// A target that is ready.
pub enum Ready {
    /// Runs take real time.
    Native(Box<dyn Target>),
    /// Runs take simulated time.
    Simulated(Box<Machine>, On),
    /// Commands run there.
    Root(RootDir),
}

/// The root of a target, for commands. A mount lasts as long as this value.
pub struct RootDir {
    path: PathBuf, // immutable
    _mounted: Option<Mounted>,
}

impl RootDir {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
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
            Spec::LibStore(store) => Box::new(OwnStore::new(store)?),
            Spec::Dir(path) => Box::new(HostDir::below(path)?),
            Spec::Mount => Box::new(OwnMount::new(program, None)?),
            Spec::MountStore(store) => {
                // Made here, and let go.
                open_or_make(store)?.superblock().close().context(|| store.display().to_string())?;
                Box::new(OwnMount::new(program, Some(store))?)
            }
            Spec::Simulated(name, on) => {
                return Ok(Ready::Simulated(Box::new(machine_called(name)?), *on));
            }
        }))
    }

    /// As [`open`](Self::open), for commands, which run in the target's root and find there what was there before.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open); a target without a directory.
    pub fn open_root(&self, program: &Path) -> Result<Ready> {
        let on = |store| -> Result<RootDir> {
            let mounted = Mounted::start_on(program, store, &[])?;
            Ok(RootDir { path: mounted.path().to_owned(), _mounted: Some(mounted) })
        };
        Ok(Ready::Root(match self {
            Spec::Dir(path) => RootDir { path: path.canonicalize()?, _mounted: None },
            Spec::Mount => on(None)?,
            Spec::MountStore(store) => {
                open_or_make(store)?.superblock().close().context(|| store.display().to_string())?;
                on(Some(store))?
            }
            _ => return Err(Failure::Usage("a command finds no files there; use dir:PATH or mount".into())),
        }))
    }

    /// How many CPUs there are to run on.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a machine that nobody knows.
    pub fn cpus_max(&self) -> Result<usize> {
        match self {
            Spec::Simulated(name, _) => Ok(machine_called(name)?.cpus_max()),
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
            Some(("lib", store)) if !store.is_empty() => Ok(Spec::LibStore(PathBuf::from(store))),
            Some(("mount", store)) if !store.is_empty() => Ok(Spec::MountStore(PathBuf::from(store))),
            Some(("sim", name)) => {
                let (name, on) =
                    name.strip_suffix(":store").map_or((name, On::Ram), |name| (name, On::Store));
                machine_called(name).map(|_| Spec::Simulated(name.to_owned(), on))
            }
            _ => usage(format!(
                "target {text}: unknown; use lib, lib:STORE, dir:PATH, mount, mount:STORE, sim:MACHINE or \
                 sim:MACHINE:store"
            )),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Lib => f.write_str("lib"),
            Spec::LibStore(store) => write!(f, "lib:{}", store.display()),
            Spec::Dir(path) => write!(f, "dir:{}", path.display()),
            Spec::Mount => f.write_str("mount"),
            Spec::MountStore(store) => write!(f, "mount:{}", store.display()),
            Spec::Simulated(name, on) => f.write_str(&on.target(name)),
        }
    }
}

/// The file system in `store`, which is made if it is missing.
fn open_or_make(store: &Path) -> Result<Fs> {
    let opened = Fs::open_store(store).or_else(|error| match error {
        StoreError::NotAStore => Fs::create_store(store),
        error => Err(error),
    });
    opened.map_err(|error| Failure::Failed(format!("{}: {error}", store.display())))
}

/// The target `lib:STORE`: a directory of its own in the store, which is removed in the end.
struct OwnStore {
    library: Library,
    fs: Fs,
    dir: String,
}

impl OwnStore {
    fn new(store: &Path) -> Result<OwnStore> {
        let (fs, dir) = (open_or_make(store)?, format!("/.sluice-bench-{}", std::process::id()));
        fs.create_dir(&dir).map_err(std::io::Error::from).context(|| dir.clone())?;
        Ok(OwnStore { library: Library::within(fs.clone(), &dir), fs, dir })
    }
}

impl Target for OwnStore {
    fn task(&self) -> Result<Box<dyn super::Calls>> {
        self.library.task()
    }
}

impl Drop for OwnStore {
    fn drop(&mut self) {
        // A failed removal does not void the measurement.
        let _ = self.fs.remove_dir_all(&self.dir);
        let _ = self.fs.superblock().close();
    }
}

/// The targets `mount` and `mount:STORE`: a host directory that happens to be ours.
struct OwnMount {
    dir: HostDir, // immutable; first: its files close before the unmount
    _mounted: Mounted,
}

impl OwnMount {
    fn new(program: &Path, store: Option<&Path>) -> Result<OwnMount> {
        let mounted = Mounted::start_on(program, store, &[])?;
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
    use crate::target::Open;
    use sluice_console::private_dir::{PrivateDir, runtime_dir};

    #[test]
    fn a_spec_reads_as_it_is_written() {
        for text in [
            "lib",
            "lib:/a/store",
            "mount",
            "mount:store",
            "dir:/dev/shm",
            "dir:a:b",
            "sim:uma-2",
            "sim:uma-2:store",
        ] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_store_is_made_where_none_is_and_the_load_leaves_nothing_in_it() {
        let place = PrivateDir::below(&runtime_dir()).expect("a directory");
        let store = place.path().join("store");
        for round in 0..2 {
            let target = OwnStore::new(&store).expect("a directory of ours");
            let mut task = target.task().expect("a directory of its own");
            let file = task.open("f", Open::New(0o600)).expect("a fresh name");
            task.pwrite(file, b"bytes", 0).expect("there is room");
            task.fsync(file).expect("it can be");
            task.close(file).expect("it is open");
            drop((task, target));
            let fs = open_or_make(&store).expect("it is there");
            assert_eq!(fs.read_dir("/").map(Iterator::count), Ok(0), "round {round}");
        }
    }

    #[test]
    fn what_is_not_there_yet_is_refused_in_one_line_that_says_what_to_use() {
        for text in ["lib:", "mount:", "sim:abacus", "dir:", "nfs", ""] {
            let Err(Failure::Usage(line)) = text.parse::<Spec>() else { panic!("{text} was accepted") };
            assert!((line.contains("use ") || line.contains("there are")) && !line.contains('\n'), "{line}");
        }
    }
}
