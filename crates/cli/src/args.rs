//! Args: the command line, with its help texts.

mod cluster;

pub(crate) use cluster::{ClusterAction, DlmAction, Watched};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use sluice_lab::experiment::EXPERIMENTS;
use sluice_lab::workload::WORKLOADS;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

/// The command line, with what is only known at run time filled in.
pub(crate) fn command() -> clap::Command {
    Cli::command()
        .mut_subcommand("bench", |bench| bench.after_help(bench_help()))
        .mut_subcommand("lab", |lab| lab.after_help(lab_help()))
}

#[derive(Parser)]
#[command(name = "sluice", version, about, after_help = EXAMPLES, disable_help_subcommand = false)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "Examples:
  sluice demo                                        the tour, well under a minute
  sluice run -- bash                                 a shell on a file system of its own
  sluice mount ~/scratch; sluice umount ~/scratch
  sluice bench creat-unlink --on lib,mount,dir:/dev/shm

Exit status: 0 done, 1 failed, 2 bad usage; with one line that says what to do.";

const COMMUTE_EXAMPLES: &str = "\
Each case is a pair of calls in a small state in which, by a model of the API, their order shows in nothing. Both run
at once on two simulated CPUs. A case is conflict-free when no line that one writes is touched by the other.
Exit status 1 when a conflict has no explanation, or an answer is not the model's.

Examples:
  sluice commute
  sluice commute --on store
  sluice commute --pair open,unlink
  sluice commute --json pairs.json";

/// What to do with snapshots.
#[derive(Subcommand)]
pub(crate) enum Snapshot {
    /// Copy the tree as it is now, without copying contents
    Create {
        /// Any file or directory of the mount
        dir: PathBuf,
        /// What to call it
        name: OsString,
    },
    /// Print the names of the snapshots, a line each
    List {
        /// Any file or directory of the mount
        dir: PathBuf,
    },
    /// Remove a snapshot
    Delete {
        /// Any file or directory of the mount
        dir: PathBuf,
        /// What it is called
        name: OsString,
    },
}

#[derive(clap::Args)]
pub(crate) struct Fault {
    /// Track from now on what a crash would leave; what is there counts as durable
    #[arg(long, group = "what", conflicts_with = "rules")]
    pub(crate) track: bool,
    /// List what a crash now may lose: bytes, what else, and the path
    #[arg(long, group = "what", conflicts_with = "rules")]
    pub(crate) unsynced: bool,
    /// Write the tree as a power failure now would leave it to this new directory
    #[arg(long, group = "what", conflicts_with = "rules", value_name = "TO")]
    pub(crate) crash_clone: Option<PathBuf>,
    /// Chooses what is kept of all that is not durable: with 0 nothing, with 1 everything
    #[arg(long, requires = "crash_clone", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Take a rule away, or all
    #[arg(
        long,
        group = "what",
        conflicts_with = "rules",
        value_name = "ID",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all"
    )]
    pub(crate) clear: Option<String>,
    /// Any file or directory of the mount
    pub(crate) dir: PathBuf,
    /// What to inject: CALL,...:EFFECT, then if wanted :path=GLOB, :nth=N, :times=N; without any, the rules are listed
    #[arg(value_name = "RULE")]
    pub(crate) rules: Vec<String>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Take the tour: real programs on a mount, compared with the host's file systems
    #[command(after_help = DEMO_EXAMPLES)]
    Demo,
    /// Make an empty file system that survives, in a directory of the host
    #[command(after_help = MKFS_EXAMPLES)]
    Mkfs {
        /// An empty directory, or one that is not there yet
        store: PathBuf,
    },
    /// Check a store, and mend it
    Fsck(Fsck),
    /// Print what a store says of itself: size, bytes shared and private, use of its log, version, UUID
    #[command(after_help = INFO_EXAMPLES)]
    Info {
        /// As one line of JSON
        #[arg(long)]
        json: bool,
        /// The store, which may be in use, or the directory that it is mounted on
        store: PathBuf,
    },
    /// Mount a file system on a directory
    Mount(Mount),
    /// Unmount what `sluice mount` has mounted
    #[command(after_help = UMOUNT_EXAMPLES)]
    Umount {
        /// Unmount even if it is in use; what is in use goes on working until it is closed
        #[arg(short, long)]
        lazy: bool,
        /// Unmount even if its server does not answer; calls of programs that use it fail
        #[arg(short, long, conflicts_with = "lazy")]
        force: bool,
        /// Where it is mounted
        dir: PathBuf,
    },
    /// Copy a directory of a mount with all that is in it, without copying contents
    #[command(after_help = CLONE_EXAMPLES)]
    Clone {
        /// A file or directory of a mount
        from: PathBuf,
        /// The new name of the copy, in the same mount
        to: PathBuf,
    },
    /// Take, list or delete snapshots of a mount
    #[command(after_help = SNAPSHOT_EXAMPLES)]
    Snapshot {
        #[command(subcommand)]
        action: Snapshot,
    },
    /// Make calls on a mount fail, or see what a crash would leave of it: for tests of programs
    #[command(after_help = FAULT_EXAMPLES)]
    Fault(Fault),
    /// Run a command on a file system of its own
    #[command(
        override_usage = "sluice run [--ram | STORE] [-o OPT,...] -- COMMAND...",
        after_help = RUN_EXAMPLES
    )]
    Run {
        /// In memory: everything is gone when the command ends (the default)
        #[arg(long, conflicts_with = "store")]
        ram: bool,
        /// A store, made by `sluice mkfs`: what the command leaves there stays
        store: Option<PathBuf>,
        /// Mount options, as for `sluice mount`
        #[arg(short = 'o', value_name = "OPT,...")]
        options: Vec<String>,
        /// The command and its arguments, after --
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// List the file locks of a mount, held and waited for
    #[command(after_help = LOCKS_EXAMPLES)]
    Locks {
        /// As a table, with the names of the processes; a waiting request is indented below what it waits for
        #[arg(long, group = "form")]
        table: bool,
        /// As JSON, one object per line
        #[arg(long, group = "form")]
        json: bool,
        /// Instead: what happened to each file's locks, the most waited for first
        #[arg(long, group = "form")]
        hot: bool,
        /// Any file or directory of the mount
        dir: PathBuf,
    },
    /// Look at a node of the cluster lock manager
    Dlm {
        #[command(subcommand)]
        action: DlmAction,
    },
    /// One file system on several machines
    Cluster {
        #[command(subcommand)]
        action: ClusterAction,
    },
    /// Print what the server of a mount has counted
    #[command(after_help = STAT_EXAMPLES)]
    Stat {
        /// As one line of JSON
        #[arg(long)]
        json: bool,
        /// Instead: the files that are open, and by whom; with --json in a further field
        #[arg(long)]
        files: bool,
        /// Any file or directory of the mount
        dir: PathBuf,
    },
    /// Watch a mount, or all nodes of a cluster: requests per second, waiting locks, memory, what is not durable
    Top(Watched),
    /// Measure workloads on this library, on a mount of it, and on other file systems
    Bench(Bench),
    /// Compare two results, and say what became faster or slower beyond chance
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare {
        /// What `bench --json` wrote before; lines of one thing from several runs may be appended
        before: PathBuf,
        /// What it wrote after
        after: PathBuf,
        /// Write a page there, with both in the same plots
        #[arg(short, long, value_name = "PAGE")]
        output: Option<PathBuf>,
        /// Exit status 1 when something became slower by more than this
        #[arg(long, value_name = "PERCENT")]
        fail_over: Option<String>,
    },
    /// Make a page of a result: one HTML file, for any browser, without a network
    #[command(after_help = REPORT_EXAMPLES)]
    Report {
        /// What `bench --json` or `lab --json` wrote
        #[arg(required_unless_present = "sources")]
        result: Option<PathBuf>,
        /// Run every experiment, and set what it shows beside what its source said
        #[arg(long, conflicts_with = "result")]
        sources: bool,
        /// Where the page goes
        #[arg(short, long, value_name = "PAGE", required = true)]
        output: PathBuf,
    },
    /// Show what is known about locks, on simulated machines and on this one
    Lab(Lab),
    /// Look for lines that commuting calls share, on the simulated machine
    #[command(after_help = COMMUTE_EXAMPLES)]
    Commute(Commute),
    /// Print a completion script
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// What this program starts itself for
    #[command(hide = true)]
    Child {
        #[command(subcommand)]
        child: Child,
    },
}

const DEMO_EXAMPLES: &str = "\
Unpacks the crates that Cargo has downloaded, lists and searches them, compiles a small crate, writes to a SQLite
database from two processes, lets two processes contend for a byte-range lock, and deletes it all; then compares
with tmpfs, a disk and the library in process. Needs /dev/fuse, and fusermount3 for ordinary users; says so and
goes on in process without. Everything it makes is removed, also on Ctrl-C.

Example:
  sluice demo";

const MKFS_EXAMPLES: &str = "\
A store is a directory with a few files: see docs/format.md. What was made durable by fsync(2) survives any crash.

Examples:
  sluice mkfs ~/store; sluice mount ~/store ~/scratch";

const INFO_EXAMPLES: &str = "Examples:
  sluice info ~/store
  sluice info --json ~/store
  sluice info ~/scratch";

const FSCK_EXAMPLES: &str = "\
Looks at every record and every byte of data, and changes nothing without --repair. Files without a name go to lost+found.
A `note` is what a crash leaves, and no fault; a `count` is mended without loss; `damage` is not what was written.
Exit status as of fsck(8): 0 clean, 1 mended, 4 not mended, 8 could not be checked, 16 bad usage.

Examples:
  sluice fsck ~/store
  sluice fsck --repair ~/store
  sluice fsck s3://BUCKET/fs      also while it is mounted";

/// The options of `fsck`.
#[derive(clap::Args)]
#[command(after_help = FSCK_EXAMPLES)]
pub(crate) struct Fsck {
    /// Mend what can be mended
    #[arg(long)]
    pub(crate) repair: bool,
    /// As one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The store; nobody uses it meanwhile
    pub(crate) store: PathBuf,
}

const UMOUNT_EXAMPLES: &str = "Examples:
  sluice umount ~/scratch
  sluice umount --lazy ~/scratch      also when a shell still sits in it
  sluice umount --force ~/scratch     also when its server hangs, or was killed and programs still wait";

const CLONE_EXAMPLES: &str = "\
The copy appears when it is whole. Original and copy share the contents until one side writes. Open files may be
written meanwhile: each is copied as of one moment. File locks are not copied.

Example:
  sluice clone ~/scratch/project ~/scratch/experiment";

const SNAPSHOT_EXAMPLES: &str = "\
A snapshot is a directory in `.snapshots` at the root of the mount, which only the owner of the root may enter. It shares
its contents with the tree until one side writes, and is read like any directory.

Examples:
  sluice snapshot create ~/scratch monday
  sluice snapshot list ~/scratch
  diff -r ~/scratch/project ~/scratch/.snapshots/monday/project
  sluice snapshot delete ~/scratch monday";

const RUN_EXAMPLES: &str = "\
The command starts in the new, empty file system, finds its place in $SLUICE_MOUNT, and its exit status is that
of `sluice run`.

Examples:
  sluice run -- bash
  sluice run -- sh -c 'git clone ~/project . && make test'
  sluice run -o locks=sluice,size=1G -- ./stress
  sluice run ~/store -- make                       in a store, where it stays";

const FAULT_EXAMPLES: &str = "\
Calls: open, create, read, write, truncate, fallocate, fsync, remove, rename, link, setattr, or all. Effects: an error such
as EIO or ENOSPC, short=BYTES, delay=MILLISECONDSms. A rule acts when the command returns, and prints its number. What the
kernel answers by itself, such as a read of cached pages, meets no rule. A list shows number, calls met, rule.

What a crash leaves: all that was synchronised, and of the rest what the seed chooses; writes may be torn.

Examples:
  sluice fault ~/scratch write:ENOSPC:path=/db/*.log:nth=3
  sluice fault ~/scratch fsync:EIO:times=1 fsync:delay=20ms
  sluice fault ~/scratch; sluice fault --clear ~/scratch
  sluice mount -o track ~/scratch; ./database ~/scratch; sluice fault --unsynced ~/scratch
  sluice fault --crash-clone /tmp/after --seed 7 ~/scratch; ./database --recover /tmp/after";

const LOCKS_EXAMPLES: &str = "\
One line per lock, in the form of /proc/locks; `->` marks one that waits for the one above it.

Examples:
  sluice locks ~/scratch
  sluice locks --table ~/scratch
  sluice locks --hot ~/scratch                how often and how long each file's locks were waited for
  sluice mount -o locks=sluice ~/scratch      locks served here instead of by the kernel";

const COMPARE_EXAMPLES: &str = "\
A row is called faster or slower when the 99% bootstrap interval of its ratio excludes 1 and Welch's test agrees at
one in two thousand; give each side five runs or more. To keep the machine's drift out, measure in turn and append.

Examples:
  sluice compare before.json after.json
  sluice compare before.json after.json -o page.html --fail-over 5%";

const REPORT_EXAMPLES: &str = "Examples:
  sluice bench open-close stat --on lib,dir:/dev/shm --json result.json; sluice report result.json -o page.html
  sluice report --sources -o sources.html       every experiment; some minutes";

const STAT_EXAMPLES: &str = "Examples:
  sluice stat ~/scratch
  sluice stat --json ~/scratch
  sluice stat --files ~/scratch                         which files are open, by processes that you may look at
  sluice mount -o metrics=127.0.0.1:9180 ~/scratch      the same for Prometheus";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  sluice completions bash > ~/.local/share/bash-completion/completions/sluice
  sluice completions fish > ~/.config/fish/completions/sluice.fish";

const MOUNT_EXAMPLES: &str = "\
Returns when the file system answers, and prints nothing. A process in the background serves it until it is
unmounted or gets SIGTERM.

Options for -o: locks=kernel|sluice (which side serves file locks; kernel), lockfile=NAME (a file in the root, in no listing,
that shows all locks as /proc/locks does; with locks=sluice), checks=kernel|sluice (which side checks permissions;
kernel; sluice saves messages, where root mounts for itself alone), allow_other, noallow_other, ro, noatime,
relatime, strictatime, nodiratime, sync, nosuid, nodev, noexec, writeback (the kernel collects writes),
transport=auto|uring|classic (auto: io_uring where the kernel allows it and serves the locks), threads=N, max_write=BYTES,
fsname=NAME, log=LEVEL (off, error, warn, info, debug or trace: to the system's log, in the foreground to standard error;
warn), metrics=ADDRESS:PORT (counts for Prometheus, by HTTP); for a file system on disk: memory=N (at most so many bytes of contents in memory; half of the
machine's), volatile (nothing is flushed: after an unclean end the store must be made anew); for a store in an object store:
cache=DIR (a directory of this machine's disk for copies of what was read and written), cache_size=N (bytes of them; 10G);
for the file system in memory: size=N, with K, M, G, T or % of the machine's memory (at most so many bytes of file data; half of the memory; 0: no limit),
nr_inodes=N (at most so many files; no limit), mode=OCTAL, uid=N, gid=N (of the root directory; 755 and yours),
nr_locks=N (at most so many file locks, with locks=sluice; 1000000), nr_owner_locks=N (of one process or open file;
no limit), nodeadlock (do not look for deadlocks).

Examples:
  mkdir ~/scratch && sluice mount ~/scratch
  sluice mount -o size=2G,mode=700 ~/scratch
  sluice mount --ram -o noatime,locks=sluice ~/scratch
  sluice mount --foreground ~/scratch      until Ctrl-C
  sluice mkfs ~/store; sluice mount ~/store ~/scratch      what is there stays";

#[derive(clap::Args)]
#[command(
    override_usage = "sluice mount [--ram | STORE] DIR [-o OPT,...] [--foreground] [--cluster CLUSTER]",
    after_help = MOUNT_EXAMPLES
)]
pub(crate) struct Mount {
    /// In memory: everything is gone after unmounting (the default)
    #[arg(long)]
    pub(crate) ram: bool,
    /// The directory to mount on; before it the store, made by `sluice mkfs`
    #[arg(value_name = "DIR", required = true, num_args = 1..=2)]
    pub(crate) places: Vec<PathBuf>,
    /// Mount options
    #[arg(short = 'o', value_name = "OPT,...")]
    pub(crate) options: Vec<String>,
    /// Mount as a node of this cluster, which `sluice cluster init` has made: `http://HOST:PORT[,...][/NAME]` of an
    /// etcd, or `dir:SHARED`
    #[arg(long, value_name = "CLUSTER", conflicts_with = "ram")]
    pub(crate) cluster: Option<String>,
    /// The identity of the node, or the key of the cluster's authority [default: where init put it]
    #[arg(long, value_name = "DIR", requires = "cluster")]
    pub(crate) identity: Option<PathBuf>,
    /// Where the other nodes reach this one; port 0 chooses one [default: the address from which this machine
    /// reaches etcd]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "cluster")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Stay in the foreground, until Ctrl-C or until it is unmounted
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Say when it is mounted, and unmount when standard input ends
    #[arg(long, hide = true, requires = "foreground")]
    pub(crate) attached: bool,
    /// Say when it is mounted, and leave terminal and pipes then
    #[arg(long, hide = true, requires = "foreground", conflicts_with = "attached")]
    pub(crate) detach: bool,
}

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// What to measure; see the list below, or `all`
    #[arg(value_name = "WORKLOAD", required = true)]
    pub(crate) workloads: Vec<String>,
    /// Where: `lib` (in process), `mount` (a mount of ours), `dir:PATH` (any file system), `sim:MACHINE` (in
    /// process on a simulated machine); the first is the one that ratios refer to
    #[arg(long, value_name = "TARGET,...", value_delimiter = ',', default_value = "lib")]
    pub(crate) on: Vec<String>,
    /// Numbers of CPUs to pin the load to, each in turn [default: 1 and all]; the daemon of a mount is not pinned
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Tasks at once [default: one per CPU; 128 for the lock workloads]
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<usize>,
    /// Make each task a process of its own, as will-it-scale does, and not a thread; on `dir:PATH` and `mount`
    #[arg(long)]
    pub(crate) processes: bool,
    /// Let tasks run on any CPU, as programs do, instead of pinning them
    #[arg(long)]
    pub(crate) unpinned: bool,
    /// Runs of which the median is taken
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) runs: usize,
    /// Length of a run [default: 0.2]
    #[arg(long, value_name = "S", conflicts_with = "ops", allow_negative_numbers = true)]
    pub(crate) seconds: Option<f64>,
    /// Length of a run, in operations of each task
    #[arg(long, value_name = "N")]
    pub(crate) ops: Option<u64>,
    /// Show at the end how often locks of each class were taken and waited for, for how long, and where; on `lib`
    /// only, in builds with the feature lock-debug or with assertions
    #[arg(long)]
    pub(crate) lock_stats: bool,
    /// Write the results there, one JSON object per line; `-` for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Lab {
    /// Which; see the list below
    pub(crate) experiment: String,
    /// Write the results there, one JSON object per line; `-` for standard output instead of the tables
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Commute {
    /// What the file system stands on
    #[arg(long, value_enum, default_value_t = Below::Ram)]
    pub(crate) on: Below,
    /// Only the cases of these two calls
    #[arg(long, value_name = "A,B")]
    pub(crate) pair: Option<String>,
    /// Write the results there, one JSON object for each pair of calls; `-` for standard output instead of the
    /// tables
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// What a simulated file system stands on.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Below {
    /// Memory alone
    Ram,
    /// A store, with its disk in memory
    Store,
}

impl From<Below> for sluice_lab::commute::On {
    fn from(on: Below) -> Self {
        match on {
            Below::Ram => Self::Ram,
            Below::Store => Self::Store,
        }
    }
}

/// Work that the tour and the benchmarks do in processes of their own.
#[derive(Subcommand)]
pub(crate) enum Child {
    /// Measure the memory of many files of BYTES bytes
    Footprint { bytes: usize },
    /// Be one task of a benchmark
    Task { orders: String },
    /// Lock some bytes of FILE until standard input ends
    HoldLock { file: PathBuf },
    /// Lock and unlock them ROUNDS times
    LockRounds { file: PathBuf, rounds: u32 },
    /// Write transactions
    SqliteWriter { database: PathBuf },
}

fn lab_help() -> String {
    let mut text = String::from("Experiments:\n");
    for experiment in EXPERIMENTS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:11} {}", experiment.name, experiment.about);
    }
    text.push_str(
        "
Tables, then what each source said, what is seen, and a verdict; a miss is a result and no error. Figures of the
simulated machines are labelled so, and the same on every computer. Most experiments take a minute or two;
vfs takes up to half an hour and 12 GB of memory.

Examples:
  sluice lab spin
  sluice lab rwsem --json result.json
  sluice lab calibrate",
    );
    text
}

fn bench_help() -> String {
    let mut text = String::from("Workloads:\n");
    for workload in WORKLOADS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:17} {}", workload.name, workload.about);
    }
    text.push_str(
        "
Each workload checks its own results at the end of each run. Runs alternate between the targets. A pass of its own
after each run times every operation for p50, p99 and max. Ctrl-C keeps the runs that are finished.

Examples:
  sluice bench creat-unlink --on lib,dir:/dev/shm
  sluice bench stat open-close --on mount,dir:/dev/shm,dir:/var/tmp --cpus 1,2 --seconds 1
  sluice bench posix02 --on lib --tasks 16 --json result.json
  sluice bench open-close-same --on sim:power7-64 --cpus 1,8,64 --runs 3
  sluice bench footprint --on lib --runs 1

On a simulated machine each CPU does 100 operations, or --ops, and the lines that CPUs waited for most are shown.
Machines: uma-2, skylake-4, vm-16, opteron-32, power7-64, westmere-160, icelake-2s, milan-2s.",
    );
    text
}
