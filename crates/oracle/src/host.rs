//! Host: runs steps on a directory of the host's own kernel, which knows the right answers.
//!
//! # Theory
//! Each simulated process is a thread that has unshared its descriptor table and working directory and
//! taken its own credentials: the kernel treats it as a process in all that a file system can see, POSIX
//! lock ownership included. A *keeper* thread has unshared the mount table and mounted a private tmpfs, so
//! nobody else sees it and it vanishes with the threads, however they end. Each run gets a fresh directory
//! in it as its root.
//!
//! ```text
//! keeper (own mounts) ── run ── process 0..n-1, inspector     each: own descriptors, own cwd, chroot, own user
//! ```
//! Without the superuser's rights there is no mount, no `chroot` and no other user: one process with the
//! tester's own credentials works in `/dev/shm`, and the generator leaves out absolute paths and `..`.

use crate::executor::{Executor, User, process_users};
use crate::host_call::Caller;
use crate::op::{Op, ProcessOp};
use crate::sys;
use crate::view::{Outcome, Value, View};
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::mpsc::{Receiver, Sender, channel};
use sluice_sync::{Arc, Mutex, thread};
use sluice_vfs::Errno;
use std::path::{Path, PathBuf};

/// A directory of the host on which sequences run.
pub struct Host {
    tasks: Sender<KeeperTask>,
    keeper: Option<thread::JoinHandle<()>>,
    confined: bool,
    directory: bool,
    holes: bool,
}

enum KeeperTask {
    Start { number: u64, holes: bool, reply: Sender<Result<Vec<ProcessThread>, String>> },
    Remove(u64, Sender<()>),
}

/// Where a [`Host`] keeps its directories.
#[derive(Clone, Debug)]
pub enum Ground {
    /// A private tmpfs, or `/dev/shm` without the rights to mount one.
    Tmpfs,
    /// A directory that exists, such as a mount of the file system under test.
    Directory(PathBuf),
}

struct ProcessThread {
    tasks: Sender<ThreadTask>,
    outcomes: Receiver<Outcome>,
    thread: Option<thread::JoinHandle<()>>,
}

enum ThreadTask {
    Run(Op),
    Fork(Sender<ProcessThread>),
}

impl Host {
    /// Prepares `place`.
    ///
    /// # Errors
    /// One line that says why the directory cannot be used.
    pub fn new(place: &Ground) -> Result<Host, String> {
        let (tasks, inbox) = channel();
        let (ready, when_ready) = channel();
        let place = place.clone();
        let directory = matches!(place, Ground::Directory(_));
        let confined = !is_superuser();
        let keeper = thread::spawn(move || match prepare(&place, confined) {
            Ok(base) => {
                let _ = ready.send(Ok(()));
                keep(&base, &place, confined, &inbox);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        });
        when_ready.recv().map_err(|_| "the keeper thread ended".to_string())??;
        Ok(Host { tasks, keeper: Some(keeper), confined, directory, holes: true })
    }

    /// True when there is only one process, and paths must not leave the working directory.
    pub fn confined(&self) -> bool {
        self.confined
    }

    /// True for a directory that somebody else mounted.
    pub fn is_directory(&self) -> bool {
        self.directory
    }

    /// Holes and blocks are compared.
    pub fn has_holes(&self) -> bool {
        self.holes
    }

    /// Turns the comparison of holes and blocks on or off, as `holes` says.
    pub fn compare_holes(&mut self, holes: bool) {
        self.holes = holes;
    }

    /// A fresh directory and fresh processes.
    ///
    /// # Errors
    /// One line that says what failed.
    pub fn start(&mut self) -> Result<HostRun, String> {
        let number = unique_number();
        let (reply, answer) = channel();
        let gone = || "the keeper thread ended".to_string();
        self.tasks.send(KeeperTask::Start { number, holes: self.holes, reply }).map_err(|_| gone())?;
        let processes = answer.recv().map_err(|_| gone())??;
        Ok(HostRun { processes, keeper: self.tasks.clone(), number })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Closing the channel ends the keeper, and with it the private tmpfs.
        let (closed, _) = channel();
        self.tasks = closed;
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// True when this process may mount, change its root and become other users.
pub fn is_superuser() -> bool {
    sys::current_user().is_ok_and(|(uid, _, _)| uid == 0)
        && thread::spawn(|| sys::unshare_mounts().is_ok()).join().unwrap_or(false)
}

/// A kernel setting that forbids what POSIX allows, such as `protected_hardlinks`.
pub fn policy(name: &str) -> bool {
    let value = std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
    !matches!(value.trim(), "" | "0")
}

fn prepare(place: &Ground, confined: bool) -> Result<PathBuf, String> {
    let failed = |what: &str, error: Errno| format!("the oracle cannot {what}: {error}");
    match place {
        Ground::Directory(dir) => {
            std::fs::canonicalize(dir).map_err(|e| format!("the directory {}: {e}", dir.display()))
        }
        Ground::Tmpfs if confined => {
            let name = format!("sluice-oracle-{}-{}", std::process::id(), unique_number());
            let base = Path::new("/dev/shm").join(name);
            std::fs::create_dir(&base).map_err(|e| format!("cannot create {}: {e}", base.display()))?;
            Ok(base)
        }
        Ground::Tmpfs => {
            sys::unshare_mounts().map_err(|e| failed("unshare the mount table", e))?;
            sys::make_mounts_private().map_err(|e| failed("make mounts private", e))?;
            // Any directory serves: the mount covers it for the threads of the keeper alone.
            let base = std::env::temp_dir();
            sys::mount_tmpfs(base.as_os_str().as_encoded_bytes()).map_err(|e| failed("mount tmpfs", e))?;
            Ok(base)
        }
    }
}

/// The keeper's life: starts processes, so that they inherit its mounts, and removes what they left.
fn keep(base: &Path, place: &Ground, confined: bool, inbox: &Receiver<KeeperTask>) {
    while let Ok(task) = inbox.recv() {
        match task {
            KeeperTask::Start { number, holes, reply } => {
                let _ = reply.send(start(&directory(base, number), confined, holes));
            }
            KeeperTask::Remove(number, reply) => {
                // A directory that cannot be removed stays until the tmpfs is unmounted.
                let _ = remove_tree(&directory(base, number));
                let _ = reply.send(());
            }
        }
    }
    if confined && matches!(place, Ground::Tmpfs) {
        let _ = remove_tree(base);
    }
}

fn directory(base: &Path, number: u64) -> PathBuf {
    base.join(format!("run-{}-{number}", std::process::id()))
}

/// A number that no other run or host of this process has.
fn unique_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Removes a directory with all its contents, even if its owner may not read it.
fn remove_tree(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    std::fs::remove_dir(dir)
}

fn start(root: &Path, confined: bool, holes: bool) -> Result<Vec<ProcessThread>, String> {
    std::fs::create_dir(root).map_err(|e| format!("cannot create {}: {e}", root.display()))?;
    let view = Arc::new(Mutex::new(if holes { View::default() } else { View::without_holes() }));
    let users = process_users(confined);
    users.into_iter().map(|user| spawn_process(user, root, confined, &view)).collect()
}

fn spawn_process(
    user: User,
    root: &Path,
    confined: bool,
    view: &Arc<Mutex<View>>,
) -> Result<ProcessThread, String> {
    let (ready, when_ready) = channel();
    let (tasks, inbox) = channel();
    let (outbox, outcomes) = channel();
    let (root, view) = (root.to_path_buf(), view.clone());
    let thread = thread::spawn(move || {
        let caller = match enter(&user, &root, confined) {
            Ok(()) => Caller::new(view, confined.then_some(root)),
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(()));
        live(caller, &inbox, &outbox);
    });
    when_ready
        .recv()
        .map_err(|_| "a process thread ended".to_string())?
        .map_err(|error| format!("the oracle cannot start a process: {error}"))?;
    Ok(ProcessThread { tasks, outcomes, thread: Some(thread) })
}

/// Makes the calling thread a process of `user` with `root` as its root and no open files.
fn enter(user: &User, root: &Path, confined: bool) -> Result<(), Errno> {
    sys::unshare_process()?;
    sys::close_all()?;
    let root = root.as_os_str().as_encoded_bytes();
    if confined {
        sys::chdir(root)?;
    } else {
        sys::chroot(root)?;
        sys::chdir(b"/")?;
        sys::become_user(user.uid, user.gid, &user.groups)?;
    }
    sys::umask(0o022)?;
    Ok(())
}

/// The life of a process thread: it makes the calls it is told to, and ends when nobody can tell it more.
fn live(mut caller: Caller, inbox: &Receiver<ThreadTask>, outbox: &Sender<Outcome>) {
    while let Ok(task) = inbox.recv() {
        match task {
            ThreadTask::Run(op) => {
                let outcome = caller.run(&op);
                if outbox.send(outcome).is_err() {
                    break;
                }
            }
            ThreadTask::Fork(reply) => {
                if let Some(child) = fork(&caller) {
                    let _ = reply.send(child);
                }
            }
        }
    }
    // The thread is joined before the kernel closes its files, so it closes them itself.
    let _ = sys::close_all();
    let _ = sys::chdir(b"/");
}

/// A thread starts with the descriptor table of the one that starts it; unsharing makes a copy, which is
/// what `fork` does to it.
fn fork(parent: &Caller) -> Option<ProcessThread> {
    let (ready, when_ready) = channel();
    let (tasks, inbox) = channel();
    let (outbox, outcomes) = channel();
    let caller = parent.clone();
    let thread = thread::spawn(move || {
        if sys::unshare_process().is_ok() {
            let _ = ready.send(());
            drop(ready);
            live(caller, &inbox, &outbox);
        }
    });
    when_ready.recv().ok()?;
    Some(ProcessThread { tasks, outcomes, thread: Some(thread) })
}

impl ProcessThread {
    /// Ends the process: its files are closed when this returns.
    fn end(&mut self) {
        let (closed, _) = channel();
        self.tasks = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One run on a [`Host`].
pub struct HostRun {
    processes: Vec<ProcessThread>,
    keeper: Sender<KeeperTask>,
    number: u64,
}

impl HostRun {
    fn fork(&mut self, parent: usize, child: usize) -> Outcome {
        // The inspector, which is the last, stays.
        if parent == child || child + 1 >= self.processes.len() {
            return Ok(Value::Done);
        }
        self.processes[child].end();
        let (reply, answer) = channel();
        let sent = self.processes[parent].tasks.send(ThreadTask::Fork(reply));
        self.processes[child] = sent.ok().and_then(|()| answer.recv().ok()).ok_or(Errno::EAGAIN)?;
        Ok(Value::Done)
    }
}

impl Executor for HostRun {
    fn run(&mut self, step: &ProcessOp) -> Outcome {
        let index = step.process % self.processes.len();
        if let Op::Fork { child } = step.op {
            return self.fork(index, child);
        }
        let process = &self.processes[index];
        // A process thread that is gone is a defect of the oracle itself: its answer differs from every other.
        process.tasks.send(ThreadTask::Run(step.op.clone())).map_err(|_| Errno::from_raw(9999))?;
        process.outcomes.recv().map_err(|_| Errno::from_raw(9999))?
    }

    fn processes(&self) -> usize {
        self.processes.len()
    }
}

impl Drop for HostRun {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(ProcessThread::end);
        let (reply, answer) = channel();
        if self.keeper.send(KeeperTask::Remove(self.number, reply)).is_ok() {
            let _ = answer.recv();
        }
    }
}
