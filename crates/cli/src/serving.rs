//! Serving: the process that serves a mount, from the first look at its options until the mount has ended.

use crate::cluster::ClusterMember;
use crate::failures::{failure, lacks_room, mount_failure};
use crate::heed;
use crate::holder_link::{HolderLink, HolderMessage};
use crate::kept_directory::address;
use crate::key_source::{KeySource, key_for, refuse_wrong_key};
use crate::metrics::MountPlace;
use crate::metrics_port::{serve_metrics, serve_metrics_later};
use crate::mount_files::{self, MountFile};
use crate::named_store::NamedStore;
use crate::nowhere::{leave_for, nowhere};
use crate::ram_options::{self, MountList};
use crate::storage::Storage;
use crate::system_log;
use crate::{announce, tell_parent};
use log::LevelFilter;
use rustix::process::Resource;
use sluice_console::failure::{Failure, Result};
use sluice_fuse::{Ended, Mount, MountError, MountOptions, Restarts, StopSignals, StorageStat, control};
use sluice_store::StoreError;
use sluice_sync::{Arc, memory, thread};
use sluice_vfs::{Errno, Options, Superblock};
use std::cell::Cell;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;

/// Descriptors without which a server could neither serve nor end its mount.
const FILES_MIN: u64 = 64;

/// How a mount is served.
pub(crate) struct ServingWay {
    pub(crate) attached: bool,
    pub(crate) detach: bool,
    /// The holder of the mount.
    pub(crate) link: Option<Arc<HolderLink>>,
    /// The directory of the store: see [`kept_directory`](crate::kept_directory).
    pub(crate) kept: Option<RawFd>,
    /// The mount could not be taken over because the disk of the store is full.
    pub(crate) lacks_room: Cell<bool>,
}

impl ServingWay {
    /// Somebody waits for the line that says that the mount answers.
    fn has_parent(&self) -> bool {
        self.attached || self.detach
    }

    /// Tells the holder, if there is one.
    fn tell_holder(&self, word: &HolderMessage) {
        if let Some(link) = &self.link
            && let Err(error) = link.say(word)
        {
            log::warn!("the holder of the mount has ended: the mount ends with its server now: {error}");
        }
    }
}

/// Serves, and tells each process that asks how that ended.
///
/// # Errors
/// The mount failed, or changes are lost.
pub(crate) fn serve_and_tell(
    store: Option<&Path>,
    dir: &Path,
    list: &str,
    way: &ServingWay,
    member: Option<&ClusterMember>,
) -> Result<u8> {
    control::will_tell_end();
    let served = serve(store, dir, list, way, member);
    control::tell_end(served.as_ref().err().map(ToString::to_string).as_deref());
    served.map(|()| 0)
}

/// Mounts, serves until unmounted or told to stop by a signal, and unmounts.
fn serve(
    store: Option<&Path>,
    dir: &Path,
    list: &str,
    way: &ServingWay,
    member: Option<&ClusterMember>,
) -> Result<()> {
    let address = store.map(|store| address(store, way.kept));
    let named = store.zip(address.as_deref()).map(|(name, address)| NamedStore { name, address });
    let MountList {
        mut ram,
        objects,
        mount: mut options,
        key,
        level,
        metrics,
        is_tracked,
        holder,
        watchdog: _,
    } = ram_options::parse_for(store.is_some(), list)?;
    let order = way.link.as_ref().map_or(Ok(None), |link| link.hear())?;
    if let Some(HolderMessage::Resume(held, _) | HolderMessage::Prepare(held, _)) = &order {
        ram.name_key = held.name_key();
    }
    let is_resumed = matches!(order, Some(HolderMessage::Resume(..) | HolderMessage::Prepare(..)));
    options.held = take_key(&mut ram, named, (key, holder), (way, is_resumed))?;
    if let (Some(_), Some(store)) = (member, store) {
        // A node may open the store much later, in the place of one that died: it must not learn then that its key is wrong.
        refuse_wrong_key(store, ram.store.key.as_ref())?;
    }
    let storage = Storage::with(objects);
    options.storage_stat = Some(StorageStat::new({
        let storage = storage.clone();
        move || storage.stat()
    }));
    options.dedicated = true;
    // Programs that run in the session of `sluice run` or of a measurement are its clients: the server is apart from both.
    options.own_session = way.has_parent();
    let signals = become_server(level, way, ram.memory_limit.is_some())?;
    if let Some(store) = store {
        name_after(store, &mut options);
    }
    let port = MetricsOf { address: metrics, place: MountPlace::of(dir, store) };
    match (member, named) {
        (Some(member), Some(named)) => {
            let answers = |device| {
                port.serve(device)?;
                ready(way)
            };
            let waits = |what: &str| tell_wait(way, what);
            let served = member.serve((named.name, storage), ram, dir, options, signals, (waits, answers));
            let (ended, device) = served?;
            conclude(ended, dir, device, way.detach)
        }
        // Given with it: see `mount`.
        (Some(_), None) => Ok(()),
        (None, _) => {
            let order = prepare(order, named, (&ram, &options), way)?;
            let is_volatile = ram.store.volatile;
            let superblock = match named {
                None => Superblock::new(ram),
                Some(named) => open(named, (ram, options.read_only), &storage, (way, &order))?,
            };
            if is_tracked {
                superblock.track_crashes().map_err(std::io::Error::from)?;
            }
            let mount = make(&superblock, dir, options, order, way)?;
            let begun = begin(&mount, (&port, is_resumed), way);
            if let Err(error) = begun {
                if is_resumed {
                    // The holder has the mount. Without one, too, programs must not find the directory below.
                    std::mem::forget(mount);
                }
                return Err(error);
            }
            let (major, minor) = mount.device();
            let device = rustix::fs::makedev(major, minor);
            way.tell_holder(&HolderMessage::Serves);
            log::info!("mounted on {}, device {major}:{minor}", dir.display());
            let ended = mount.run_until_signal(signals)?;
            way.tell_holder(&HolderMessage::Ends);
            log::info!("{} ended: {ended:?}", dir.display());
            if let Some(store) = store {
                bring_to(store, &superblock, is_volatile)?;
            }
            conclude(ended, dir, device, way.detach)
        }
    }
}

/// Puts the key of the store into `ram`, and says whether the mount can have a holder, which a `holder` may demand.
fn take_key(
    ram: &mut Options,
    store: Option<NamedStore<'_>>,
    (key, holder): (Option<KeySource>, Option<bool>),
    (way, is_resumed): (&ServingWay, bool),
) -> Result<bool> {
    let can_read_again = key.as_ref().map(KeySource::can_be_read_again);
    if is_resumed && can_read_again == Some(false) {
        // A pipe would be waited for without end, and programs with it.
        let text = "the file with the key of the store is gone or no file any more: put it back";
        return Err(Failure::Failed(text.into()));
    }
    // Here, and not where the options are checked: a pipe gives its key once. The terminal is still ours.
    ram.store.key = match store {
        Some(store) => key_for(store, key, "Passphrase")?,
        None => None,
    };
    // A person is not asked a second time.
    let is_held = way.link.is_some() && can_read_again.unwrap_or(ram.store.key.is_none());
    if holder == Some(true) && way.link.is_some() && !is_held {
        let text = "mount option holder=on: the next server needs the key again: give it in a file";
        return Err(Failure::Failed(text.into()));
    }
    Ok(is_held)
}

/// Makes this process a server: its log, its memory, its session. It catches the signals that end a mount from here on.
fn become_server(level: LevelFilter, way: &ServingWay, has_memory_limit: bool) -> Result<StopSignals> {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    if let Some(limit) = limit.filter(|limit| *limit < FILES_MIN) {
        let text = format!(
            "a process here may open {limit} files, and a server needs {FILES_MIN}: ulimit -n {FILES_MIN}"
        );
        return Err(Failure::Failed(text));
    }
    system_log::begin(level, way.detach)?;
    // Each thread's arena would take 64 MiB of a limit on address space.
    let has_limit = |resource| rustix::process::getrlimit(resource).current.is_some();
    if has_memory_limit || has_limit(Resource::As) || has_limit(Resource::Data) {
        memory::keep_little();
    }
    // Before mounting: a signal in between would otherwise leave a mount without a server.
    let signals = StopSignals::catch()?;
    if way.has_parent() {
        // No controlling terminal, and a share of the CPUs of its own.
        rustix::process::setsid().map_err(std::io::Error::from)?;
    }
    Ok(signals)
}

/// Does what a holder wants to know before it lets the last server leave. The order after that.
fn prepare(
    order: Option<HolderMessage>,
    store: Option<NamedStore<'_>>,
    (ram, options): (&Options, &MountOptions),
    way: &ServingWay,
) -> Result<Option<HolderMessage>> {
    let (Some(HolderMessage::Prepare(held, protocol)), Some(link), Some(store)) = (&order, &way.link, store)
    else {
        return Ok(order);
    };
    heed::refuse_other(held, protocol, options, (store, ram.store.key.as_ref()))?;
    link.say(&HolderMessage::Prepared(env!("CARGO_PKG_VERSION").into()))?;
    // Without an answer the holder has ended, and nobody knows whether the last server has left.
    Ok(link.hear()?.or(order))
}

/// The file system in the store.
fn open(
    store: NamedStore<'_>,
    (ram, looks): (Options, bool),
    storage: &Storage,
    (way, order): (&ServingWay, &Option<HolderMessage>),
) -> Result<Arc<Superblock>> {
    let waits = |other: &StoreError| {
        let what = format!("{}: waits until it is known who lives: {other}", store.name.display());
        tell_wait(way, &what);
    };
    let open = || storage.open(store.address, ram.clone(), looks, &waits);
    let is_alone = matches!(order, Some(HolderMessage::Prepare(..)));
    let opened = if is_alone { heed::once_free(open) } else { open() };
    opened.map_err(|error| {
        if let StoreError::Io(_, error) = &error {
            way.lacks_room.set(lacks_room(error));
        }
        failure(store.name)(error)
    })
}

/// The new mount, or the one that a holder has.
fn make(
    superblock: &Arc<Superblock>,
    dir: &Path,
    options: MountOptions,
    order: Option<HolderMessage>,
    way: &ServingWay,
) -> Result<Mount> {
    let mount = match order {
        Some(HolderMessage::Resume(held, restarts)) => options.resume(superblock, held, restarts),
        // The store is ours: the last server has left.
        Some(HolderMessage::Prepare(held, _)) => options.resume(superblock, held, Restarts::default()),
        _ => options.mount(superblock, dir),
    };
    mount.map_err(|error| {
        if let MountError::System(_, error) = &error {
            way.lacks_room.set(lacks_room(error));
        }
        mount_failure(error)
    })
}

/// Tells the world of the mount: the holder, collectors of metrics, and the process that waits for it.
fn begin(mount: &Mount, (port, is_resumed): (&MetricsOf, bool), way: &ServingWay) -> Result<()> {
    if let Some(held) = mount.held()? {
        way.tell_holder(&HolderMessage::Hold(held));
    }
    // Programs use a mount that is resumed, whoever has the address now.
    if is_resumed {
        port.serve_later(mount.device())
    } else {
        port.serve(mount.device())?
    }
    ready(way)?;
    if let (Some(link), Some(server)) = (&way.link, mount.held_server()) {
        heed::heed(link, server)?;
    }
    Ok(())
}

/// Where the counts of a mount are told by HTTP, if anywhere.
struct MetricsOf {
    address: Option<SocketAddr>,
    place: MountPlace,
}

impl MetricsOf {
    fn serve(&self, device: (u32, u32)) -> Result<()> {
        self.address.map_or(Ok(()), |address| serve_metrics(address, device, self.place.clone()))
    }

    fn serve_later(&self, device: (u32, u32)) {
        if let Some(address) = self.address {
            serve_metrics_later(address, device, self.place.clone());
        }
    }
}

/// Brings everything to `store`, whose mount has ended.
///
/// # Errors
/// Not all is durable.
fn bring_to(store: &Path, superblock: &Superblock, is_volatile: bool) -> Result<()> {
    let why = || superblock.failure().map_or_else(String::new, |why| format!(" ({why})"));
    let lost = |error| Failure::Failed(format!("{}: not all is durable: {error}{}", store.display(), why()));
    // A volatile store is whole only when it is closed. In others the log has all, and closing brings the tree up to it.
    if is_volatile {
        return superblock.close().map_err(lost);
    }
    superblock.sync().map_err(lost)?;
    if superblock.failure().is_some() {
        return Err(lost(Errno::EIO));
    }
    // Files without a name that nobody has open are dead here: no other node serves this mount. Closing removes their data.
    superblock.settle();
    let _ = superblock.close();
    Ok(())
}

/// Tells a person once what a mount waits for.
fn tell_wait(way: &ServingWay, what: &str) {
    match way.has_parent() {
        // Nobody may listen any more.
        true => drop(tell_parent(what)),
        false => eprintln!("sluice: {what}"),
    }
}

/// The result of a mount that ended: an error if the mount was taken out of the tree while programs may have files
/// open.
///
/// # Errors
/// That, and which program.
fn conclude(ended: Ended, dir: &Path, device: u64, detach: bool) -> Result<()> {
    if ended == Ended::Unmounted {
        return Ok(());
    }
    let users = mount_files::of_programs_on(device).unwrap_or_default();
    // None: it has ended since, or another mount namespace has a copy of the mount that nobody uses.
    let Some(user) = users.first().map(MountFile::user) else { return Ok(()) };
    // The path of a file that is out of the tree says nothing.
    let text = format!("{} was detached while in use: {user} loses what it has open", dir.display());
    if detach {
        log::warn!("{text}");
    }
    Err(Failure::Failed(text))
}

/// The mount answers: says so to a process that waits for it. A holder says it itself, once it has left the terminal.
fn ready(way: &ServingWay) -> Result<()> {
    let &ServingWay { attached, detach, .. } = way;
    if detach {
        // Not a directory that somebody may want to unmount.
        std::env::set_current_dir("/")?;
    }
    // Steps that can fail come before the announcement of success.
    let null = detach.then(nowhere).transpose()?;
    if (attached || detach) && way.link.is_none() {
        announce()?;
    }
    if let Some(null) = null {
        leave_for(&null)?;
    }
    if attached {
        thread::spawn(stop_when_input_ends);
    }
    Ok(())
}

/// The mount's source is the store, unless it was given another name.
fn name_after(store: &Path, options: &mut MountOptions) {
    if options.fsname == MountOptions::default().fsname {
        options.fsname = store.as_os_str().to_owned();
    }
}

/// The process at the other end of our standard input has closed it, or died: stop, as if by SIGTERM.
fn stop_when_input_ends() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // Our own process: cannot fail.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}
