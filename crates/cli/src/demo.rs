//! Demo: the tour. A real source tree is unpacked, listed, searched, built in and deleted on a mount,
//! and each step is repeated on the host's file systems and in process, alternating, with the same inputs.
//!
//! Each step tells what came out of it (names listed, files found, rows counted), and the places must agree: the
//! tour is a check before it is a comparison.

mod byte_lock;
mod crate_build;
mod host_place;
mod inputs;
mod library_place;
mod sqlite;
mod survival;
mod threads;

pub(crate) use byte_lock::{hold_until_told, lock_rounds};

use host_place::HostPlace;
use inputs::Inputs;
use library_place::LibraryPlace;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::mounted::Mounted;
use sluice_console::private_dir::PrivateDir;
use sluice_console::table::{Table, duration};
use sluice_sync::time::{Duration, Instant};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A step of the tour, the same in every place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DemoStep {
    Unpack,
    List,
    Search,
    Compile,
    Sqlite,
    Locks,
    Delete,
}

impl DemoStep {
    const ALL: [DemoStep; 7] = [
        DemoStep::Unpack,
        DemoStep::List,
        DemoStep::Search,
        DemoStep::Compile,
        DemoStep::Sqlite,
        DemoStep::Locks,
        DemoStep::Delete,
    ];

    /// Its name in the table.
    fn name(self) -> &'static str {
        match self {
            DemoStep::Unpack => "unpack (tar)",
            DemoStep::List => "list (find)",
            DemoStep::Search => "search (grep -r)",
            DemoStep::Compile => "compile (cargo)",
            DemoStep::Sqlite => "SQLite, 2 processes",
            DemoStep::Locks => "byte-range lock, 2 processes",
            DemoStep::Delete => "delete (rm -rf)",
        }
    }
}

/// How a step went in a place.
enum StepResult {
    /// The step succeeded, with this result.
    Yes { time: Duration, told: String },
    /// The step does not apply here: this place has no descriptors that other programs could use.
    NotHere,
    /// A tool is missing; the text names it.
    Skipped(String),
}

/// A place where the steps are taken.
trait DemoPlace {
    /// Column of the table.
    fn name(&self) -> String;
    /// Takes one step.
    fn perform(&mut self, step: DemoStep, inputs: &Inputs) -> Result<StepResult>;
}

/// Runs `work` and says how long it took.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let start = Instant::now();
    let value = work()?;
    Ok((start.elapsed(), value))
}

/// Gives the tour on `out`, in plain lines. `program` is the `sluice` binary.
///
/// # Errors
/// When a step fails or two places disagree. Everything is cleaned up in any case.
pub(crate) fn tour(program: &Path, out: &mut dyn Write, interrupt: &Interrupt) -> Result<()> {
    let begun = Instant::now();
    writeln!(
        out,
        "sluicefs {}: the tour, well under a minute. {}, {}\n",
        env!("CARGO_PKG_VERSION"),
        sluice_console::machine::name(),
        sluice_console::machine::kernel()
    )?;
    let inputs = Inputs::prepare()?;
    writeln!(out, "Sources: {}", inputs.description)?;
    let mut guide = Guide { program, out, interrupt, inputs: &inputs, others_max: 0 };
    let mut places = guide.places()?;
    guide.walk(&mut places)?;
    writeln!(guide.out, "\nDone in {}.", duration(begun.elapsed().as_nanos() as f64))?;
    guide.out.write_all(NEXT.as_bytes())?;
    Ok(())
}

/// The disk space for the store of the tour, with some reserve.
const STORE_BYTES: u64 = 256 << 20;

/// The most space that the files of the threads take.
const THREADS_BYTES: u64 = 1 << 20;

/// The line that stands above the figures if `others` tasks of other programs were more than the `cpus` could take.
fn busy(others: u64, cpus: u64) -> Option<String> {
    (others >= cpus).then(|| {
        format!(
            "Busy machine: {others} other tasks ran beside the tour. Times below are too long; repeat on an idle one."
        )
    })
}

const NEXT: &str = "
Try next:
  sluice run -- bash                               a shell on a file system of its own, gone when you leave
  mkdir m && sluice mount m && sluice umount m     a mount to keep for a while
  sluice mkfs s && mkdir m && sluice mount s m     the same, and what is there stays
After `make build`, which adds object stores, clusters and the lab:
  sluice bench creat-unlink --on lib,mount,dir:/dev/shm
  sluice bench footprint --on lib                  memory for a million files
";

struct Guide<'a> {
    program: &'a Path,
    out: &'a mut dyn Write,
    interrupt: &'a Interrupt,
    inputs: &'a Inputs,
    /// The most tasks of others that ran between two steps, when nothing of ours does.
    others_max: u64,
}

/// The places of a tour. Dropping them removes what is on them.
struct Places {
    /// The narrated one first.
    list: Vec<Box<dyn DemoPlace>>,
    mounted: Option<Mounted>,
}

impl Guide<'_> {
    fn say(&mut self, what: &str, time: Duration) -> Result<()> {
        writeln!(self.out, "{what:<80} {:>9}", duration(time.as_nanos() as f64))?;
        self.out.flush()?;
        Ok(())
    }

    /// Mounts, and finds the host's file systems to compare with.
    fn places(&mut self) -> Result<Places> {
        let mut list: Vec<Box<dyn DemoPlace>> = Vec::new();
        let mut mounted = None;
        writeln!(self.out)?;
        match timed(|| Mounted::start(self.program, &[])) {
            Ok((time, mount)) => {
                self.say(&format!("Mounted a fresh file system on {}", mount.path().display()), time)?;
                list.push(Box::new(HostPlace::mount(mount.path(), self.program)?));
                mounted = Some(mount);
            }
            Err(failure) => {
                writeln!(self.out, "No mount here: {failure}")?;
                writeln!(self.out, "The tour goes on in process, with the same file system as a library.")?;
                list.push(Box::new(LibraryPlace::new()));
            }
        }
        let room = self.inputs.bytes_wanted();
        match tmpfs_dir(room) {
            Some(dir) => list.push(Box::new(HostPlace::host("tmpfs", &dir, self.program)?)),
            None => writeln!(self.out, "No tmpfs with {} MB to spare: no such column.", room >> 20)?,
        }
        match disk_dir(room) {
            Some((dir, kind)) => list.push(Box::new(HostPlace::host(kind, &dir, self.program)?)),
            None => {
                writeln!(self.out, "No disk file system with {} MB to spare: no such column.", room >> 20)?
            }
        }
        if mounted.is_some() {
            list.push(Box::new(LibraryPlace::new()));
        }
        Ok(Places { list, mounted })
    }

    /// Takes every step in every place, tells of the first place, and draws the table.
    fn walk(&mut self, places: &mut Places) -> Result<()> {
        let mut table = Table::with_left_columns(1);
        let names: Vec<String> = places.list.iter().map(|place| place.name()).collect();
        table.line(std::iter::once("".to_owned()).chain(names.iter().cloned()));
        let mut not_here = false;
        for (number, step) in DemoStep::ALL.into_iter().enumerate() {
            let all = self.everywhere(step, number, &mut places.list)?;
            self.agree(step, &names, &all)?;
            if let StepResult::Yes { time, told } = &all[0] {
                self.say(told, *time)?;
            }
            if let Some(why) =
                all.iter().find_map(|done| if let StepResult::Skipped(why) = done { Some(why) } else { None })
            {
                writeln!(self.out, "Skipped {}: {why}", step.name())?;
            }
            if step == DemoStep::Locks {
                self.show_the_waiter(places.mounted.is_some())?;
            }
            not_here |= all.iter().any(|done| matches!(done, StepResult::NotHere));
            let cells = all.iter().map(|done| match done {
                StepResult::Yes { time, .. } => duration(time.as_nanos() as f64),
                StepResult::NotHere => "-".to_owned(),
                StepResult::Skipped(_) => "skipped".to_owned(),
            });
            table.line(std::iter::once(step.name().to_owned()).chain(cells));
        }
        // Files of the places must be gone before the mount is.
        places.list.clear();
        if let Some(mount) = places.mounted.take() {
            let (time, ()) = timed(|| mount.unmount())?;
            self.say("Unmounted", time)?;
            self.show_survival()?;
        }
        let threads = match sluice_sync::cpu::count() {
            1 => None,
            _ => Some(threads::one_against_two(tmpfs_dir(THREADS_BYTES).as_deref())?),
        };
        let simulated = threads::on_simulated_cpus()?;
        writeln!(self.out)?;
        if let Some(line) = busy(self.others_max, sluice_sync::cpu::count() as u64) {
            writeln!(self.out, "{line}")?;
        }
        writeln!(self.out, "The same steps, each once per place, in turn, from warm caches:\n")?;
        self.out.write_all(table.render().as_bytes())?;
        if not_here {
            writeln!(
                self.out,
                "-: needs descriptors that other programs can use, which a library does not give them"
            )?;
        }
        if let Some(threads) = threads {
            writeln!(
                self.out,
                "\nFiles created, written, looked at and removed a second, each thread in its own directory:\n"
            )?;
            self.out.write_all(threads.as_bytes())?;
        }
        if let Some(line) = simulated {
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    /// A step in each place, starting each time with another place, so that no place is always first.
    fn everywhere(
        &mut self,
        step: DemoStep,
        number: usize,
        places: &mut [Box<dyn DemoPlace>],
    ) -> Result<Vec<StepResult>> {
        let mut all: Vec<Option<StepResult>> = places.iter().map(|_| None).collect();
        for turn in 0..places.len() {
            self.interrupt.check()?;
            let running = sluice_console::machine::running_tasks().unwrap_or(1);
            self.others_max = self.others_max.max(running.saturating_sub(1));
            let index = (number + turn) % places.len();
            let done = places[index].perform(step, self.inputs);
            // A tool that an interrupt has ended looks like a failure.
            self.interrupt.check()?;
            all[index] = Some(done.context(|| format!("{} on {}", step.name(), places[index].name()))?);
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// The places must have seen the same.
    fn agree(&self, step: DemoStep, names: &[String], all: &[StepResult]) -> Result<()> {
        let told: Vec<(&String, &String)> = names
            .iter()
            .zip(all)
            .filter_map(
                |(name, done)| {
                    if let StepResult::Yes { told, .. } = done { Some((name, told)) } else { None }
                },
            )
            .collect();
        match told.windows(2).find(|pair| pair[0].1 != pair[1].1) {
            None => Ok(()),
            Some(pair) => Err(Failure::Failed(format!(
                "{}: {} says \"{}\", {} says \"{}\"",
                step.name(),
                pair[0].0,
                pair[0].1,
                pair[1].0,
                pair[1].1
            ))),
        }
    }

    /// Shows the content of a store whose server was killed.
    fn show_survival(&mut self) -> Result<()> {
        self.interrupt.check()?;
        let Some((host, _)) = disk_dir(STORE_BYTES) else { return Ok(()) };
        let (time, (fsynced, kept, others)) = timed(|| survival::kill_and_mount_again(self.program, &host))?;
        let told = format!(
            "A store, its server killed with -9, mounted again: {kept} of {fsynced} fsynced files there, {others} others"
        );
        self.say(&told, time)
    }

    fn show_the_waiter(&mut self, mount: bool) -> Result<()> {
        let (time, lines) = timed(|| {
            if mount {
                byte_lock::show_waiter_on_mount(self.program)
            } else {
                byte_lock::show_waiter_in_process()
            }
        })?;
        let list = if mount { "`sluice locks` (with -o locks=sluice)" } else { "the list of locks" };
        self.say(&format!("One has bytes 100-199, one waits; {list} says:"), time)?;
        for line in lines {
            writeln!(self.out, "    {line}")?;
        }
        Ok(())
    }
}

/// A directory on a tmpfs with `room` bytes free.
fn tmpfs_dir(room: u64) -> Option<PathBuf> {
    let candidates = [
        Some("/dev/shm".into()),
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some("/tmp".into()),
    ];
    candidates
        .into_iter()
        .flatten()
        .find(|dir| FileSystem::of(dir).is_some_and(|fs| fs.memory && fs.free >= room) && writable(dir))
}

/// A directory on a file system that is not in memory, with `room` bytes free, and that file system's name.
fn disk_dir(room: u64) -> Option<(PathBuf, &'static str)> {
    let beside_us = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let here = std::env::current_dir().ok();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let candidates = [beside_us, here, Some(std::env::temp_dir()), Some("/var/tmp".into()), home];
    candidates.into_iter().flatten().find_map(|dir| {
        let fs = FileSystem::of(&dir)?;
        (!fs.memory && fs.free >= room && writable(&dir)).then_some((dir, fs.name))
    })
}

fn writable(dir: &Path) -> bool {
    PrivateDir::below(dir).is_ok()
}

/// The `statfs` data of the file system below a directory.
struct FileSystem {
    name: &'static str,
    memory: bool,
    free: u64,
}

impl FileSystem {
    fn of(dir: &Path) -> Option<FileSystem> {
        let stat = rustix::fs::statfs(dir).ok()?;
        // Magic numbers of statfs(2).
        let (name, memory) = match stat.f_type as u32 {
            0x0102_1994 => ("tmpfs", true),
            0x8584_58F6 => ("ramfs", true),
            0x0000_EF53 => ("ext4", false),
            0x5846_5342 => ("xfs", false),
            0x9123_683E => ("btrfs", false),
            0x794C_7630 => ("overlay", false),
            0x2FC1_2FC1 => ("zfs", false),
            0x0000_6969 => ("nfs", false),
            _ => ("disk", false),
        };
        #[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
        Some(FileSystem { name, memory, free: stat.f_bavail as u64 * stat.f_bsize as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_console::corpus::Corpus;

    #[test]
    fn a_host_directory_and_the_library_tell_the_same_of_each_step() {
        let inputs = Inputs::of(&Corpus::generated(200)).unwrap();
        let mut host = HostPlace::host("host", &std::env::temp_dir(), Path::new("/no/such/program")).unwrap();
        let mut library = LibraryPlace::new();
        for step in [DemoStep::Unpack, DemoStep::List, DemoStep::Search, DemoStep::Delete] {
            let told =
                [host.perform(step, &inputs).unwrap(), library.perform(step, &inputs).unwrap()].map(|done| {
                    let StepResult::Yes { told, .. } = done else { panic!("{step:?} was not taken") };
                    told
                });
            assert_eq!(told[0], told[1]);
        }
    }

    #[test]
    fn a_machine_is_busy_when_others_could_use_all_cpus() {
        assert_eq!(busy(1, 2), None);
        assert!(busy(2, 2).is_some_and(|line| line.starts_with("Busy machine: 2 other")));
    }

    #[test]
    fn places_that_disagree_end_the_tour() {
        let inputs = Inputs::of(&Corpus::generated(0)).unwrap();
        let (program, interrupt) = (Path::new("/no/such/program"), Interrupt::new());
        let guide =
            Guide { program, out: &mut Vec::new(), interrupt: &interrupt, inputs: &inputs, others_max: 0 };
        let done = |told: &str| StepResult::Yes { time: Duration::ZERO, told: told.into() };
        let names = ["mount", "tmpfs", "in process"].map(String::from);
        assert!(guide.agree(DemoStep::List, &names, &[done("5"), StepResult::NotHere, done("5")]).is_ok());
        let failure =
            guide.agree(DemoStep::List, &names, &[done("5"), StepResult::NotHere, done("6")]).unwrap_err();
        assert_eq!(failure.to_string(), "list (find): mount says \"5\", in process says \"6\"");
    }
}
