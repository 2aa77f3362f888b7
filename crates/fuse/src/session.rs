//! Session: a mount from its making to its end.
//!
//! # Theory
//! [`MountOptions::mount`] mounts, answers INIT, and starts the workers; each worker serves requests until the kernel
//! says that the mount is gone. The last worker to end gives back what the kernel held.
//! Dropping a [`Mount`] unmounts, also while a panic unwinds. If files are still in use then, the mount is
//! detached: it disappears from the tree at once, and its workers serve those files until they are closed.
//!
//! # Lock order
//! `Progress` is a leaf.

use crate::connection::Connection;
use crate::control::Server;
use crate::event::{Event, Serving};
use crate::handler::start_seeks;
use crate::held::{HeldMount, HeldServer, MountState, Restarts};
use crate::lock_class::{CONTROL, PROGRESS};
use crate::notify;
use crate::reply::Reply;
use crate::transport::crew::Crew;
use crate::transport::dev_fuse::{self, DevFuse, HEADROOM};
use crate::transport::policy::{self, InKernel};
use crate::transport::uring;
use crate::{Ended, LockMode, MountError, MountOptions, Transport, mount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use sluice_sync::thread::{Builder, JoinHandle};
use sluice_sync::{Arc, Condvar, Mutex, mpsc};
use sluice_vfs::{Fs, Superblock};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// A mounted file system. Dropping it unmounts.
///
/// Programs see the changes that this process makes in its [`Fs`] at once, and the reverse.
///
/// ```no_run
/// use sluice_fuse::Mount;
/// use sluice_vfs::Fs;
///
/// let fs = Fs::new();
/// fs.write("/hello", "world")?;
/// let mount = Mount::new(&fs, "/mnt")?;
/// assert_eq!(std::fs::read_to_string("/mnt/hello")?, "world");
/// mount.unmount()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mount {
    shared: Arc<MountShared>,
    connection: Arc<Connection>,
}

/// State that the workers and the owner of a mount share.
struct MountShared {
    /// Where the mount is, absolute. *immutable*
    dir: PathBuf,
    /// Its device number. *immutable*
    device: (u32, u32),
    /// *immutable*
    transport: Arc<DevFuse>,
    progress: Mutex<SessionEnd>,
    /// `progress` changed.
    changed: Condvar,
    /// Answers questions from other processes until the mount is gone. *protected by its own mutex*, a leaf
    control: Mutex<Option<Server>>,
}

struct SessionEnd {
    /// Worker threads that run.
    workers: usize,
    /// The mount was detached while in use.
    detached: bool,
}

/// SIGTERM, SIGINT and SIGHUP, caught. From [`catch`](Self::catch) on they no longer end the process.
#[derive(Debug)]
pub struct StopSignals(Signals);

impl StopSignals {
    /// Catches the signals. To be called before mounting: a signal that comes between mounting and
    /// [`Mount::run_until_signal`] is then remembered, instead of ending the process and leaving a dead mount.
    ///
    /// # Errors
    /// The operating system's.
    pub fn catch() -> io::Result<StopSignals> {
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map(StopSignals)
    }

    /// Calls `stop` on a thread of its own when a signal comes, each time.
    ///
    /// # Errors
    /// When no thread can be started.
    #[doc(hidden)]
    pub fn on_each(self, stop: impl Fn() + Send + 'static) -> io::Result<Stopping> {
        let StopSignals(mut signals) = self;
        let handle = signals.handle();
        let thread = Builder::new().name("sluice-signals".into());
        let thread = thread.spawn(move || signals.forever().for_each(|_| stop()))?;
        Ok(Stopping { handle, thread })
    }
}

/// The thread that waits for signals.
pub struct Stopping {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Stopping {
    /// Ends the wait.
    pub fn end(self) {
        self.handle.close();
        // The thread ends when the handle is closed; it does not panic.
        let _ = self.thread.join();
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, device) = (self.dir(), self.device());
        f.debug_struct("Mount").field("dir", &dir).field("device", &device).finish_non_exhaustive()
    }
}

impl MountOptions {
    /// Mounts `superblock` on `dir` and serves it on threads of its own. When this returns the mount works.
    ///
    /// # Errors
    /// A [`MountError`]; nothing is left mounted.
    pub fn mount(self, superblock: &Arc<Superblock>, dir: impl AsRef<Path>) -> Result<Mount, MountError> {
        let (dir, mut options) = (mount::mountpoint(dir.as_ref())?, self);
        options.held &= superblock.is_durable() && options.locks == LockMode::Kernel && !options.writeback;
        if options.held && options.transport == Transport::Auto {
            options.transport = Transport::Classic;
        }
        mount::check_checks(&options)?;
        if options.writeback && !options.dedicated {
            return Err(MountError::Writeback(
                "only where nobody but the kernel can write: a program that promises that sets `dedicated`",
            ));
        }
        let asked = options.transport;
        options.transport = policy::choose(&options, superblock.is_durable(), InKernel::look())?;
        match Mount::with(superblock.clone(), dir.clone(), options.clone()) {
            // For a reason that only shows when it is tried, such as a filter of system calls.
            Err(MountError::Transport(_)) if asked == Transport::Auto => {
                options.transport = Transport::Classic;
                Mount::with(superblock.clone(), dir, options)
            }
            decided => decided,
        }
    }

    /// Serves a mount whose server has died, with the `superblock` that its store has now and the options that it had. Requests that
    /// the last server had read and not answered are answered.
    ///
    /// # Errors
    /// [`MountError::System`]; the mount stays as it is.
    pub fn resume(
        self,
        superblock: &Arc<Superblock>,
        held: HeldMount,
        restarts: Restarts,
    ) -> Result<Mount, MountError> {
        let state = MountState::read(&held.state, self.max_write)?;
        let options = MountOptions { held: true, transport: Transport::Classic, ..self };
        let device = Arc::new(DevFuse::new(held.device));
        let place = (state.dir(), state.device);
        let (mount, events) = Mount::over(superblock.clone(), place, &device, options);
        let begun = mount.connection.observe(false).map_err(|_| MountError::Alone);
        let begun = begun.and_then(|()| mount.connection.resume(&state, held.changes, restarts));
        let begun = begun.and_then(|()| {
            mount.connection.ask_again();
            mount.begin(&device, events)
        });
        match begun {
            Ok(()) => Ok(mount),
            Err(error) => {
                // Dropping it would unmount; the holder starts another server.
                std::mem::forget(mount);
                Err(error)
            }
        }
    }
}

impl Mount {
    /// Mounts the file system at the bottom of the tree of `fs` on `dir`, and serves it on threads of its own. When this returns the
    /// mount works.
    ///
    /// # Errors
    /// A [`MountError`]; nothing is left mounted.
    pub fn new(fs: &Fs, dir: impl AsRef<Path>) -> Result<Mount, MountError> {
        Mount::builder().mount(fs.superblock(), dir)
    }

    /// The options of a mount.
    ///
    /// ```no_run
    /// use sluice_fuse::Mount;
    /// use sluice_vfs::Fs;
    ///
    /// let fs = Fs::new();
    /// let mount = Mount::builder().read_only(true).noatime(true).mount(fs.superblock(), "/mnt")?;
    /// # Ok::<(), sluice_fuse::MountError>(())
    /// ```
    pub fn builder() -> MountOptions {
        MountOptions::default()
    }

    /// Mounts on `dir`, an absolute path, with the transport that `options` name.
    fn with(superblock: Arc<Superblock>, dir: PathBuf, options: MountOptions) -> Result<Mount, MountError> {
        let buffer_len = options.max_write as usize + HEADROOM;
        let (device, number) = mount::mount(&dir, &options)?;
        let device = Arc::new(DevFuse::new(device));
        // From here on, whatever fails, dropping `mount` unmounts.
        let (mount, events) = Mount::over(superblock, (dir, number), &device, options);

        let writeback = mount.connection.options.writeback;
        mount.connection.observe(writeback).map_err(|_| match writeback {
            true => MountError::Writeback("the file system has another mount: unmount that first"),
            false => MountError::Alone,
        })?;
        mount.connection.make_lock_file()?;
        negotiate(&mount.connection, &device, buffer_len)?;
        if mount.connection.options.held {
            mount.connection.begin_held()?;
        }
        mount.begin(&device, events)?;
        Ok(mount)
    }

    /// A mount that is at `place`, a directory and a device number, without threads.
    fn over(
        superblock: Arc<Superblock>,
        (dir, number): (PathBuf, (u32, u32)),
        device: &Arc<DevFuse>,
        options: MountOptions,
    ) -> (Mount, mpsc::Receiver<Event>) {
        let (later, events) = mpsc::channel();
        let dev = rustix::fs::makedev(number.0, number.1);
        let connection = Arc::new(Connection::new(superblock, options, dev, device.clone(), later));
        let progress = Mutex::with_class(&PROGRESS, SessionEnd { workers: 0, detached: false });
        let shared = Arc::new(MountShared {
            dir,
            device: number,
            transport: device.clone(),
            progress,
            changed: Condvar::new(),
            control: Mutex::with_class(&CONTROL, None),
        });
        (Mount { shared, connection }, events)
    }

    /// Starts to serve it.
    fn begin(&self, device: &Arc<DevFuse>, events: mpsc::Receiver<Event>) -> Result<(), MountError> {
        let buffer_len = self.connection.options.max_write as usize + HEADROOM;
        self.start(device, buffer_len, events)?;
        *self.shared.control.lock() = Server::start(self.shared.device, &self.connection, device);
        Ok(())
    }

    /// The parts that a holder is to keep; none if the mount cannot outlive its server.
    ///
    /// # Errors
    /// The operating system's, when there are no descriptors left.
    pub fn held(&self) -> io::Result<Option<HeldMount>> {
        let MountShared { dir, device, transport, .. } = &*self.shared;
        self.connection.held_mount(dir.clone(), *device, transport.as_fd().try_clone_to_owned())
    }

    /// The server, for the holder of the mount; none if the mount cannot outlive its server.
    pub fn held_server(&self) -> Option<HeldServer> {
        self.connection.held.get().map(|_| HeldServer::new(Arc::downgrade(&self.connection)))
    }

    /// Where the file system is mounted, as an absolute path.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// The mount's device number (`st_dev`), as major and minor.
    pub fn device(&self) -> (u32, u32) {
        self.shared.device
    }

    /// How many requests of `opcode` (see [`opcode`](crate::opcode)) the kernel has sent.
    pub fn requests(&self, opcode: u32) -> u64 {
        self.connection.counters.get(opcode)
    }

    /// How many requests the kernel has sent.
    pub fn requests_total(&self) -> u64 {
        self.connection.counters.total()
    }

    /// How many inodes the kernel knows.
    pub fn known_inodes(&self) -> usize {
        self.connection.nodes.len()
    }

    /// How many lock requests wait. Always 0 when the kernel serves the locks.
    pub fn waiting_locks(&self) -> usize {
        self.connection.parked.len()
    }

    /// Unmounts, also where it was mounted a second time (`mount --bind`), and returns when the last request is answered.
    /// Nothing happens if it is unmounted already.
    ///
    /// # Errors
    /// [`MountError::Busy`] while files are in use: the mount stays. [`MountError::Elsewhere`] while another mount namespace
    /// has it.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.shared.unmount()
    }

    /// Takes the mount out of the tree even if it is in use; what is in use goes on working until it is closed.
    ///
    /// # Errors
    /// As the operating system says; not because of use.
    pub fn unmount_lazily(&self) -> Result<(), MountError> {
        self.shared.unmount_lazily()
    }

    /// Waits until the mount is gone, whichever process unmounts it.
    pub fn wait(&self) {
        self.shared.wait(|progress| progress.workers == 0);
    }

    /// Serves until somebody unmounts or one of `signals` comes, which unmounts.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn run_until_signal(self, signals: StopSignals) -> io::Result<Ended> {
        let shared = self.shared.clone();
        let stop = signals.on_each(move || {
            // A second signal finds the mount gone. A mount that cannot be unmounted cleanly is detached.
            if shared.unmount().is_err()
                && let Err(error) = shared.unmount_lazily()
            {
                log::error!("{error}");
            }
        })?;
        self.shared.wait(|progress| progress.workers == 0 || progress.detached);
        stop.end();
        let ended = if self.shared.progress.lock().workers == 0 { Ended::Unmounted } else { Ended::Detached };
        Ok(ended)
    }

    /// Starts the workers and the thread that announces what they may not.
    fn start(
        &self,
        device: &Arc<DevFuse>,
        buffer_len: usize,
        events: mpsc::Receiver<Event>,
    ) -> Result<(), MountError> {
        let uring = self.connection.negotiated.get().is_some_and(|negotiated| negotiated.uring);
        if self.connection.options.transport == Transport::Uring && !uring {
            return Err(MountError::Transport("the kernel did not offer it".into()));
        }
        let unstarted = |error| MountError::System("start a thread", error);
        let connection = Arc::downgrade(&self.connection);
        let notify = Builder::new().name("sluice-notify".into());
        notify.spawn(move || notify::run(&connection, &events)).map_err(unstarted)?;
        start_seeks(&self.connection).map_err(unstarted)?;
        // Each queue has a worker, and the classic device one.
        let queues = if uring { uring::queues() } else { 0 };
        let crew = Arc::new(Crew::new(self.connection.options.thread_count()));
        let threads = if uring { queues + 1 } else { crew.workers() };
        self.shared.progress.lock().workers = threads;
        // Counted all at once, so that the first to end cannot take itself for the last. Workers that cannot be started
        // are uncounted as they are dropped.
        let workers: Vec<_> =
            (0..threads).map(|_| WorkerShare(self.shared.clone(), self.connection.clone())).collect();
        let (opened, outcomes) = mpsc::channel();
        for (number, worker) in workers.into_iter().enumerate() {
            let (device, opened) = (device.clone(), opened.clone());
            let source = match () {
                () if number < queues => Source::Queue(number, opened),
                () if uring => Source::Rest,
                () => Source::Device(crew.clone()),
            };
            let thread = Builder::new().name(format!("sluice-fuse-{number}"));
            thread.spawn(move || worker.run(&device, buffer_len, source)).map_err(unstarted)?;
        }
        drop(opened);
        for _ in 0..queues {
            // An error here means that all remaining workers have panicked.
            let outcome = outcomes.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
            outcome.map_err(|error| MountError::Transport(format!("a queue cannot be opened: {error}")))?;
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.shared.unmount().is_err() {
            // In use, or worse: nothing better is left to try, and a destructor has nobody to tell.
            let _ = self.shared.unmount_lazily();
        }
        if self.shared.progress.lock().workers == 0 {
            // No effect if the last worker has closed it; a session without workers is closed only here.
            self.connection.close();
        }
    }
}

impl MountShared {
    fn unmount(&self) -> Result<(), MountError> {
        self.unmount_places(false)?;
        if !self.progress.lock().detached && self.transport.is_connected() {
            return Err(MountError::Elsewhere(self.dir.clone()));
        }
        // After an earlier lazy unmount the mount may still be in use: then there is nothing to wait for.
        self.wait(|progress| progress.workers == 0 || progress.detached);
        Ok(())
    }

    fn unmount_places(&self, lazy: bool) -> Result<(), MountError> {
        // Once the mount is gone, another mount may get its number.
        if self.transport.is_connected() { mount::unmount_everywhere(self.device, lazy) } else { Ok(()) }
    }

    fn unmount_lazily(&self) -> Result<(), MountError> {
        self.unmount_places(true)?;
        self.progress.lock().detached = true;
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the mount at once: requests under way and to come fail.
    fn abort(&self) {
        // It leaves the tree also where requests cannot be given up.
        for done in [mount::abort(&self.dir, self.device), self.unmount_lazily()] {
            if let Err(error) = done {
                log::error!("{error}");
            }
        }
    }

    fn wait(&self, done: impl Fn(&SessionEnd) -> bool) {
        let mut progress = self.progress.lock();
        while !done(&progress) {
            progress = self.changed.wait(progress);
        }
    }
}

/// A worker's share in its mount: counted from before its thread starts until the thread ends, also by a panic.
struct WorkerShare(Arc<MountShared>, Arc<Connection>);

/// Where the messages of a worker come from.
enum Source {
    /// The classic device, which the workers of this crew share.
    Device(Arc<Crew>),
    /// The queue of a CPU. It is said there whether it could be opened.
    Queue(usize, mpsc::Sender<io::Result<()>>),
    /// The classic device, as far as something comes by it beside the queues.
    Rest,
}

impl WorkerShare {
    /// Serves messages from `source` until the mount is gone.
    fn run(&self, device: &DevFuse, buffer_len: usize, source: Source) {
        let WorkerShare(shared, connection) = self;
        let _serving = Serving::begin();
        let is_queue = matches!(source, Source::Queue(..));
        let ended = match source {
            Source::Device(crew) => {
                policy::give_way(connection.options.own_session);
                dev_fuse::serve(device, buffer_len, connection, Some(&crew))
            }
            Source::Queue(queue, opened) => uring::serve(queue, device, connection, opened),
            Source::Rest => dev_fuse::serve(device, buffer_len, connection, None),
        };
        let Err(error) = ended else { return };
        log::error!("receiving requests failed, a worker ends: {error}");
        if is_queue {
            // Nobody serves the clients on this CPU any more: better an error than no answer.
            shared.abort();
        }
    }
}

impl Drop for WorkerShare {
    fn drop(&mut self) {
        let WorkerShare(shared, connection) = self;
        let mut progress = shared.progress.lock();
        if progress.workers == 1 {
            // The last one. It is still counted, so that a thread that waits finds everything given back.
            drop(progress);
            let control = shared.control.lock().take();
            drop(control);
            connection.close();
            progress = shared.progress.lock();
        }
        progress.workers -= 1;
        shared.changed.notify_all();
    }
}

/// Reads the kernel's INIT and answers it.
fn negotiate(connection: &Connection, device: &DevFuse, buffer_len: usize) -> Result<(), MountError> {
    let mut buffer = vec![0; buffer_len];
    let mut reply = Reply::new();
    // A kernel of a newer major version asks a second time.
    for _ in 0..2 {
        match device.receive(&mut buffer).map_err(|error| MountError::System("read /dev/fuse", error))? {
            None => {
                return Err(MountError::System(
                    "negotiate with the kernel",
                    io::ErrorKind::NotConnected.into(),
                ));
            }
            Some(len) => connection.serve(&buffer[..len], &mut reply),
        }
        if connection.negotiated.get().is_some() {
            return Ok(());
        }
    }
    Err(MountError::KernelTooOld)
}
