//! Args: the command line, with its help texts.

mod child;
mod cluster;
mod coherence;
mod crash;
mod csi;
#[allow(dead_code, reason = "the program `sluice-lab` reads the options")]
mod lab;
mod lock;
mod quota;
mod store;
mod streams;
mod upgrade;
mod workspace;

pub(crate) use cluster::{ClusterAction, Watched};
pub(crate) use coherence::CheckCoherence;
pub(crate) use crash::{CrashMoments, CrashTest};
pub(crate) use csi::CsiArgs;
pub(crate) use lock::{DlmAction, LockCommand, WantedLock};
pub(crate) use store::Fsck;
pub(crate) use workspace::WorkspaceAction;
pub(crate) use {child::Child, lab::LabCommand, quota::QuotaArgs};

use crate::key_source::KeySource;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use coherence::CHECK_COHERENCE_EXAMPLES;
use crash::CRASH_TEST_EXAMPLES;
use std::{ffi::OsString, path::PathBuf};
use store::{INFO_EXAMPLES, KEY_EXAMPLES, MKFS_EXAMPLES};
use streams::{DIFF_EXAMPLES, EXPORT_EXAMPLES, RECEIVE_EXAMPLES, SEND_EXAMPLES};

/// The command line.
pub(crate) fn command() -> clap::Command {
    Cli::command()
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

/// The actions on snapshots.
#[derive(Subcommand)]
pub(crate) enum Snapshot {
    /// Copy the tree as it is now, without copying contents
    Create {
        /// Any file or directory of the mount
        dir: PathBuf,
        /// The name of the snapshot
        name: OsString,
    },
    /// Print the snapshots: name, time of creation (UTC), bytes shared with other files and bytes of their own
    List {
        /// As an array of objects, the times in RFC 3339
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount
        dir: PathBuf,
    },
    /// Bring the tree, or a part of it, back to what a snapshot has, without copying contents
    Restore {
        /// Any file or directory of the mount
        dir: PathBuf,
        /// The name of the snapshot
        name: OsString,
        /// A file or directory, from the root of the mount; without it the whole tree
        path: Option<PathBuf>,
    },
    /// Remove a snapshot
    Delete {
        /// Any file or directory of the mount
        dir: PathBuf,
        /// The name of the snapshot
        name: OsString,
    },
}

/// The key of an encrypted store. Without it a person at a terminal is asked for a passphrase.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct KeyFiles {
    /// The key of an encrypted store: a file of at least 32 random bytes
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_file")]
    pub(crate) key_file: Option<PathBuf>,
    /// The passphrase of an encrypted store: the first line of this file
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
}

impl KeyFiles {
    pub(crate) fn source(&self) -> Option<KeySource> {
        KeySource::of(self.key_file.as_ref(), self.passphrase_file.as_ref())
    }
}

/// A change of the keys of a store, or their list.
#[derive(Subcommand)]
pub(crate) enum KeyAction {
    /// Let another key open the store, and print its slot
    Add {
        #[command(flatten)]
        files: KeyFiles,
        /// The new key: a file of at least 32 random bytes
        #[arg(long, value_name = "FILE", conflicts_with = "new_passphrase_file")]
        new_key_file: Option<PathBuf>,
        /// The new passphrase: the first line of this file
        #[arg(long, value_name = "FILE")]
        new_passphrase_file: Option<PathBuf>,
        /// The store; nobody uses it meanwhile
        store: PathBuf,
    },
    /// Take from a key that it opens the store; give a key that stays
    Remove {
        #[command(flatten)]
        files: KeyFiles,
        /// The store; nobody uses it meanwhile
        store: PathBuf,
        /// The number of the key's slot
        slot: usize,
    },
    /// Print the slots that are used: number, and passphrase or key file
    List {
        /// As JSON, one object per line
        #[arg(long)]
        json: bool,
        /// The store, even while in use
        store: PathBuf,
    },
}

#[derive(clap::Args)]
pub(crate) struct Scrub {
    /// Print the state of the scrub and read nothing
    #[arg(long, conflicts_with_all = ["restart", "rate"])]
    pub(crate) status: bool,
    /// Begin anew, where an interrupted scrub would go on
    #[arg(long)]
    pub(crate) restart: bool,
    /// Bytes a second, such as 50M; without it the scrub rests as long as it reads
    #[arg(long, value_name = "BYTES")]
    pub(crate) rate: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Any file or directory of the mount
    pub(crate) dir: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Fault {
    /// Track the effects of a crash from now on; present files count as durable
    #[arg(long, group = "what", conflicts_with = "rules")]
    pub(crate) track: bool,
    /// List what a crash now may lose: bytes, what else, and the path
    #[arg(long, group = "what", conflicts_with = "rules")]
    pub(crate) unsynced: bool,
    /// Write the tree as a power failure now would leave it to this new directory
    #[arg(long, group = "what", conflicts_with = "rules", value_name = "TO")]
    pub(crate) crash_clone: Option<PathBuf>,
    /// Chooses the changes kept beside durable ones: with 0 none, with 1 all
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
    /// The fault to inject: CALL,...:EFFECT, then if wanted :path=GLOB, :nth=N, :times=N; without any, the rules are
    /// listed
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
        /// Nobody reads the store without a key: that of a file, or a passphrase, for which a person is asked
        #[arg(long)]
        encrypt: bool,
        /// Contents of files take less of the disk, where they can be compressed (LZ4)
        #[arg(long)]
        compress: bool,
        #[command(flatten)]
        key: KeyFiles,
        /// An empty directory, or a new one
        store: PathBuf,
    },
    /// Add, remove or list the keys that open an encrypted store
    #[command(after_help = KEY_EXAMPLES)]
    Key {
        #[command(subcommand)]
        action: KeyAction,
    },
    /// Check a store, and mend it
    Fsck(Fsck),
    /// Print what a store says of itself: size, bytes shared and private, use of its log, version, UUID
    #[command(after_help = INFO_EXAMPLES)]
    Info {
        /// As one line of JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        key: KeyFiles,
        /// The store, even while in use, or its mount directory
        store: PathBuf,
    },
    /// Mount a file system on a directory
    Mount(Mount),
    /// Unmount what `sluice mount` has mounted
    #[command(after_help = UMOUNT_EXAMPLES)]
    Umount {
        /// Unmount even if it is in use; open files go on working until they are closed
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
    /// Take, list, restore or delete snapshots of a mount
    #[command(after_help = SNAPSHOT_EXAMPLES)]
    Snapshot {
        #[command(subcommand)]
        action: Snapshot,
    },
    /// Limit what a directory of a mount may hold, or print how much of that is in use
    #[command(after_help = quota::QUOTA_EXAMPLES)]
    Quota(QuotaArgs),
    /// Read all that the store of a mount holds, while it is used, and name the damaged files
    #[command(after_help = SCRUB_EXAMPLES)]
    Scrub(Scrub),
    /// Print the changes between two snapshots, or between a snapshot and the present tree
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// As JSON, one object per line
        #[arg(long, group = "form")]
        json: bool,
        /// Only the names, with a NUL behind each
        #[arg(short = '0', long = "null", group = "form")]
        names: bool,
        /// The older tree: a snapshot, DIR/.snapshots/NAME, or another directory of a mount
        #[arg(value_name = "A")]
        old: PathBuf,
        /// The newer tree, of the same mount [default: the mount as it is now]
        #[arg(value_name = "B")]
        new: Option<PathBuf>,
    },
    /// Write a snapshot to standard output as a stream for `sluice receive`
    #[command(after_help = SEND_EXAMPLES)]
    Send {
        /// Only what changed since this snapshot of the same mount
        #[arg(long, value_name = "OLDER")]
        since: Option<OsString>,
        /// Only what is missing: the token of a `sluice receive` that failed
        #[arg(long, value_name = "TOKEN")]
        resume: Option<String>,
        /// The snapshot: DIR/.snapshots/NAME
        snapshot: PathBuf,
    },
    /// Make a snapshot of the stream on standard input
    #[command(after_help = RECEIVE_EXAMPLES)]
    Receive {
        #[command(flatten)]
        key: KeyFiles,
        /// A store that is not mounted, or the directory of a mount
        store: PathBuf,
    },
    /// Write a snapshot to standard output as a tar archive
    #[command(after_help = EXPORT_EXAMPLES)]
    Export {
        /// The snapshot: DIR/.snapshots/NAME
        snapshot: PathBuf,
    },
    /// Make calls on a mount fail, or see what a crash would leave of it: for tests of programs
    #[command(after_help = FAULT_EXAMPLES)]
    Fault(Fault),
    /// Find what a program loses in a power failure, and which fsync is missing
    #[command(
        override_usage = "sluice crash-test [OPTIONS] --check CMD -- WORKLOAD...",
        after_help = CRASH_TEST_EXAMPLES
    )]
    CrashTest(CrashTest),
    /// Check that several mounts of one tree show one file system to programs that use them at once
    #[command(after_help = CHECK_COHERENCE_EXAMPLES)]
    CheckCoherence(CheckCoherence),
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
    /// One file system on several machines
    Cluster {
        #[command(subcommand)]
        action: ClusterAction,
    },
    /// Give directories of a cluster's mount a store and an owner of their own
    #[command(after_help = workspace::WORKSPACE_EXAMPLES)]
    Workspace {
        #[command(subcommand)]
        action: WorkspaceAction,
    },
    #[command(flatten)]
    Lock(LockCommand),
    /// Serve volumes to Kubernetes and its like: the Container Storage Interface
    #[command(after_help = csi::CSI_EXAMPLES)]
    Csi(CsiArgs),
    /// List all mounts of sluicefs that are seen from here: directory, store, state, server
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// As one array of JSON
        #[arg(long)]
        json: bool,
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
        /// Instead: each figure with its meaning
        #[arg(long, conflicts_with_all = ["json", "files"])]
        explain: bool,
        /// Any file or directory of the mount
        dir: PathBuf,
    },
    /// Watch a mount, or all nodes of a cluster: requests per second, waiting locks, memory, what is not durable
    Top(Watched),
    /// Replace the program that serves a mount by this one, while programs use the mount
    #[command(after_help = upgrade::UPGRADE_EXAMPLES)]
    Upgrade {
        /// Any file or directory of the mount
        dir: PathBuf,
    },
    #[command(flatten)]
    Lab(LabCommand),
    /// Print a completion script
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a manual page for each command
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// A directory, such as /usr/local/share/man/man1
        dir: PathBuf,
    },
    /// The children that this program starts itself
    #[command(hide = true)]
    Child {
        #[command(subcommand)]
        child: Child,
    },
}

const DEMO_EXAMPLES: &str = "\
Unpacks the crates that Cargo has downloaded, lists and searches them, compiles a small crate, writes to a SQLite
database from two processes (sqlite3), lets two processes contend for a byte-range lock, deletes it all, kills the
server of a store and mounts that again, and compares one thread with two; all beside tmpfs, a disk and the library
in process. Needs /dev/fuse, and fusermount3 for ordinary users; says so and goes on in process without. Everything
it makes is removed, also on Ctrl-C.

Example:
  sluice demo";

const UMOUNT_EXAMPLES: &str = "Examples:
  sluice umount ~/scratch
  sluice umount --lazy ~/scratch      also when a shell still sits in it
  sluice umount --force ~/scratch     also when its server hangs, or was killed and programs still wait";

const CLONE_EXAMPLES: &str = "\
The copy appears when it is whole, and is the tree as of one moment: programs may go on. Original and copy share the
contents until one side writes. File locks are not copied.

Example:
  sluice clone ~/scratch/project ~/scratch/experiment";

const SNAPSHOT_EXAMPLES: &str = "\
A snapshot is the tree as of one moment: programs may go on. That of a store is durable when the command returns. It shares its
contents with the tree, and nothing in it changes: calls fail with EROFS. It stands in `.snapshots` at the root of the mount. No
listing has that directory, and only the owner of the root may enter it (`mkdir -m 755 .snapshots` before the first snapshot
lets others in). The commands are for root and for the user who serves the mount. `sluice mount -o snapshots=hourly:24,daily:7` takes
snapshots by the clock, and deletes old ones.

`restore` gives the tree, or PATH, the names, contents and attributes of the snapshot; whatever came since is gone. A crash leaves the old
state or the new one. Programs keep the files that they have open, without a name. Another file system that is mounted below
a directory that goes is unmounted. The names at the root change one after the other; each leads to the old or to the new file.

Examples:
  sluice snapshot create ~/scratch monday
  sluice snapshot list ~/scratch
  sluice snapshot list --json ~/scratch
  diff -r ~/scratch/project ~/scratch/.snapshots/monday/project
  sluice snapshot restore ~/scratch monday project/src
  sluice snapshot delete ~/scratch monday";

const SCRUB_EXAMPLES: &str = "\
Each extent is read once from the disk itself, past all caches, and compared with its checksums, and each record of the tree is read.
A scrub that ends early goes on there the next time, also after another mount.

Exit status: 0 all is sound, 1 something is damaged (the files are named), or it failed, 2 bad usage.

Examples:
  sluice scrub /srv/files
  sluice scrub --rate 20M /srv/files             beside other work
  sluice scrub --status --json /srv/files
  sluice mount -o scrub=weekly /srv/store /srv/files      by the clock";

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
as EIO or ENOSPC, short=BYTES, delay=MILLISECONDS. A rule acts when the command returns, and prints its number. Calls that the
kernel answers by itself, such as reads of cached pages, meet no rule. A list shows number, calls met, rule.

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

const LIST_EXAMPLES: &str = "\
The state of a mount is one of: serves; read-only (an error of the disk ended all writing); ended (its server is gone: calls in the mount
fail); silent (no answer within 2 s); refused (the server of another user, or of another version).

Examples:
  sluice list
  sluice list --json";

const STAT_EXAMPLES: &str = "Examples:
  sluice stat ~/scratch
  sluice stat --json ~/scratch
  sluice stat --files ~/scratch                         which files are open, by processes that you may look at
  sluice mount -o metrics=127.0.0.1:9180 ~/scratch      the same for Prometheus";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  sluice completions bash > ~/.local/share/bash-completion/completions/sluice
  sluice completions fish > ~/.config/fish/completions/sluice.fish";

const MAN_EXAMPLES: &str = "Example:
  sluice man /usr/local/share/man/man1";

const MOUNT_EXAMPLES: &str = "\
Returns when the file system answers, and prints nothing. A process in the background serves it until it is
unmounted or gets SIGTERM.

Options for -o: locks=kernel|sluice (which side serves file locks; kernel), lockfile=NAME (a file in the root, in no listing,
that shows all locks as /proc/locks does; with locks=sluice), checks=kernel|sluice (which side checks permissions;
kernel; sluice saves messages, where root mounts for itself alone), allow_other, noallow_other, ro, noatime,
relatime, strictatime, nodiratime, sync, nosuid, nodev, noexec, writeback (the kernel collects writes),
transport=auto|uring|classic (auto: io_uring where the kernel allows it and serves the locks), threads=N (of classic), max_write=BYTES,
nfs_export (file handles outlast the kernel's caches; not below an overlayfs), fsname=NAME, holder=on|off and watchdog=SECONDS (a store's mount outlives its server, and one that hangs), log=LEVEL (off, error, warn, info, debug or trace: to the system's log, in the foreground to standard error;
warn), metrics=ADDRESS:PORT (counts for Prometheus, by HTTP), track (for `sluice fault`),
snapshots=PERIOD:N,PERIOD:N... (taken by the clock: frequently, hourly, daily, weekly or monthly; the newest N are kept); for a file system on disk: scrub=daily, weekly or monthly (its data is read and compared with its checksums), memory=N (about so many bytes in memory, but for all names of a directory
in use, 1.2 KB each; half of the machine's), volatile (nothing is flushed: after an unclean end the store must be made anew), key_file=FILE, passphrase_file=FILE (the key of an encrypted store; without them a person at a terminal is asked); for a store in an object store:
cache=DIR (a directory of this machine's disk for copies of what was read and written), cache_size=N (bytes of them; 10G), takeover (from any process that has it open);
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
    /// A holder keeps the mount; standard input leads to it
    #[arg(long, hide = true, requires = "foreground", conflicts_with = "attached")]
    pub(crate) held: bool,
    /// The holder of a mount, as a new program; standard input tells what it must know
    #[arg(long, hide = true, requires = "foreground", conflicts_with_all = ["attached", "held"])]
    pub(crate) keeps: bool,
    /// The inherited descriptor of the store's directory
    #[arg(long, hide = true, requires = "foreground")]
    pub(crate) kept: Option<i32>,
}
