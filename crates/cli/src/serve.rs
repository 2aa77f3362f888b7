//! Serve: `sluice mount`, in the foreground or as a daemon.
//!
//! # Theory
//! Without `--foreground` the program starts itself again, with it, and waits on a pipe until the mount answers:
//! when `sluice mount` returns, the file system is there. The process that stays has no terminal and no open
//! pipe of its parent's.

use crate::args::Mount as MountArgs;
use crate::bucket::{self, Bucket};
use crate::cluster::ClusterMember;
use crate::failures::{failure, mount_failure};
use crate::footing::Footing;
use crate::heed;
use crate::holder;
use crate::holder_link::{HolderLink, HolderMessage};
use crate::holder_state::Holding;
use crate::kept_directory;
use crate::key_source::{KeySource, key_for, refuse_wrong_key};
use crate::metrics::MountPlace;
use crate::mount_files::{self, MountFile};
use crate::nowhere::{leave_for, nowhere};
use crate::ram_options::{self, MountList};
use crate::storage::Storage;
use crate::store::{directory_of, refuse_mount, warn_if_loose};
use crate::system_log;
use crate::watch::{serve_metrics, serve_metrics_later};
use crate::{announce, tell_parent};
use rustix::process::Resource;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::mounted;
use sluice_console::program::this_program;
use sluice_fuse::{Ended, MountOptions, Restarts, StopSignals, StorageStat, control};
use sluice_store::disk::HostDisk;
use sluice_store::{Store, StoreError};
use sluice_sync::{Arc, memory, thread};
use sluice_vfs::{Errno, Superblock};
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Descriptors without which a server could neither serve nor end its mount.
const FILES_MIN: u64 = 64;

/// Several `-o` as one list, checked.
pub(crate) fn option_list(options: &[String], place: Footing) -> Result<String> {
    let list = options.join(",");
    let parsed = ram_options::parse_for(place != Footing::Memory, &list)?;
    place.check(&list, &parsed.mount)?;
    holder::is_wanted(&parsed, place, false)?;
    Ok(list)
}

pub(crate) fn mount(args: MountArgs) -> Result<u8> {
    // A server that goes on with a mount must not look there: nobody answers yet.
    if args.held || args.keeps {
        return go_on(args);
    }
    let (dir, store) = match <[_; 2]>::try_from(args.places) {
        Ok([store, dir]) if !args.ram => (dir, Some(store)),
        Ok([_, dir]) => {
            return Err(Failure::Usage(format!("--ram takes no STORE: give only {}", dir.display())));
        }
        Err(mut one) => (one.remove(0), None),
    };
    // Absolute: the serving process goes elsewhere.
    let absolute = |store: PathBuf| {
        bucket::refuse_misspelt(&store)?;
        refuse_mount(&store)?;
        match Bucket::is_url(&store) {
            true => Ok(store),
            false => store.canonicalize().map_err(|error| match error.kind() {
                ErrorKind::NotFound => failure(&store)(StoreError::NotAStore),
                _ => Failure::from(error).in_context(store.display()),
            }),
        }
    };
    let store = store.map(absolute).transpose()?;
    let member =
        args.cluster.as_deref().map(|place| ClusterMember::of(place, args.identity.as_deref(), args.listen));
    let member = member.transpose()?;
    if member.is_some() && store.is_none() {
        return Err(Failure::Usage("--cluster needs a STORE before DIR".into()));
    }
    if let Some(store) = &store {
        if let Some(place) = directory_of(store) {
            refuse_over(place, "store", &dir)?;
        }
        warn_if_loose(store);
    }
    for (place, what) in member.iter().flat_map(ClusterMember::directories) {
        refuse_over(place, what, &dir)?;
    }
    for option in args.options.iter().flat_map(|list| list.split(',')) {
        for (name, what) in [("cache=", "cache"), ("key_file=", "key"), ("passphrase_file=", "passphrase")] {
            if let Some(place) = option.strip_prefix(name) {
                refuse_over(place.as_ref(), what, &dir)?;
            }
        }
    }
    if HostDisk::unlocked(&dir).and_then(|disk| Store::info(&disk)).is_ok() {
        let text =
            format!("{0}: is a store: give a directory to mount it on (sluice mount {0} DIR)", dir.display());
        return Err(Failure::Usage(text));
    }
    if !args.foreground {
        return mount_in_background(store.as_deref(), &dir, &args.options, member.as_ref()).map(|()| 0);
    }
    let place = Footing::of(store.as_deref(), member.is_some());
    let list = option_list(&args.options, place)?;
    let parsed = ram_options::parse_for(store.is_some(), &list)?;
    if !args.attached
        && let Some(store) = &store
        && holder::is_wanted(&parsed, place, args.detach)?
    {
        let dir = dir.canonicalize().unwrap_or(dir);
        let kept = kept_directory::keep(store).context(|| store.display().to_string())?;
        let arguments = held_arguments(args.detach, &list, kept, (store, &dir));
        return holder::hold(&Holding {
            dir: &dir,
            arguments,
            detach: args.detach,
            level: parsed.level,
            watchdog: parsed.watchdog,
        });
    }
    let way = ServingWay { attached: args.attached, detach: args.detach, link: None, kept: None };
    serve_and_tell(store.as_deref(), &dir, &list, &way, member.as_ref())
}

/// The arguments of a server with a holder.
fn held_arguments(
    detach: bool,
    list: &str,
    kept: Option<RawFd>,
    (store, dir): (&Path, &Path),
) -> Vec<OsString> {
    let words = ["mount", "--foreground", "--held"].into_iter().chain(detach.then_some("--detach"));
    let kept = kept.map(|kept| format!("--kept={kept}"));
    let words = words.chain(kept.as_deref()).chain(["-o", list, "--"]).map(OsString::from);
    words.chain([store.into(), dir.into()]).collect()
}

/// How a mount is served.
struct ServingWay {
    attached: bool,
    detach: bool,
    /// The holder of the mount.
    link: Option<Arc<HolderLink>>,
    /// The directory of the store: see [`kept_directory`].
    kept: Option<RawFd>,
}

/// `sluice mount --held`: the server of a mount that a holder keeps, which has checked the arguments. `sluice mount --keeps`: the holder, as
/// the program that was executed in its place.
fn go_on(args: MountArgs) -> Result<u8> {
    let (Some(dir), Some(store)) = (args.places.last(), args.places.first()) else { return Ok(0) };
    let list = args.options.join(",");
    if args.keeps {
        let MountList { level, watchdog, .. } = ram_options::parse_for(true, &list)?;
        let arguments = held_arguments(args.detach, &list, args.kept, (store, dir));
        return holder::keep_on(&Holding { dir, arguments, detach: args.detach, level, watchdog });
    }
    let link = Arc::new(HolderLink::of_stdin(&nowhere()?)?);
    let way = ServingWay { attached: false, detach: args.detach, link: Some(link), kept: args.kept };
    let served = serve_and_tell(Some(store), dir, &list, &way, None);
    if let (Err(error), Some(link)) = (&served, &way.link) {
        // Without a holder nobody hears it.
        let _ = link.say(&HolderMessage::Fails(error.to_string()));
    }
    served
}

/// Serves, and tells each process that asks how that ended.
fn serve_and_tell(
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

/// Refuses a mount on `dir` that would hide the directory `place` of `what`, or stand in it, also where a bind mount gives one of the
/// two another path.
fn refuse_over(place: &Path, what: &str, dir: &Path) -> Result<()> {
    // A mount point that is not there has an error of its own. A missing `place` will be made below its nearest ancestor.
    let (Ok(dir), Ok(place)) = (dir.canonicalize(), std::path::absolute(place)) else { return Ok(()) };
    let Some(near) = place.ancestors().find_map(|above| above.canonicalize().ok()) else { return Ok(()) };
    let upwards = |path: &Path| {
        let ids = path.ancestors().filter_map(|above| above.metadata().ok()).map(|it| (it.dev(), it.ino()));
        ids.collect::<Vec<_>>()
    };
    // A mount that answers nobody is refused by the mounting.
    if dir.metadata().is_err() {
        return Ok(());
    }
    let (from_place, from_dir) = (upwards(&near), upwards(&dir));
    let hides = from_dir.first().is_some_and(|dir| from_place.contains(dir));
    let stands_in = place.exists() && from_place.first().is_some_and(|place| from_dir.contains(place));
    if hides || stands_in {
        let text =
            format!("is, holds or stands in the directory of the {what}: give another directory to mount on");
        return Err(Failure::Failed(format!("{}: {text}", dir.display())));
    }
    Ok(())
}

/// Mounts on `dir`, served by a process in the background; or changes the flags of what is mounted there, if `options` say
/// `remount`.
pub(crate) fn mount_in_background(
    store: Option<&Path>,
    dir: &Path,
    options: &[String],
    member: Option<&ClusterMember>,
) -> Result<()> {
    let list = options.join(",");
    if !list.split(',').any(|option| option == "remount") {
        let place = Footing::of(store, member.is_some());
        return daemonize(store, dir, &option_list(options, place)?, member);
    }
    // Unknown options are mistakes.
    let others: Vec<&str> = list.split(',').filter(|option| !sluice_fuse::is_of_remount(option)).collect();
    let others = others.join(",");
    ram_options::parse_for(true, &others).or_else(|_| ram_options::parse_for(false, &others))?;
    let mut unchanged = sluice_fuse::remount_at(dir, &list).map_err(mount_failure)?;
    // mount(8) names all that stands in /etc/fstab.
    let present = options_of_server(dir);
    unchanged.retain(|option| !present.contains(option));
    if !unchanged.is_empty() {
        let (dir, unchanged) = (dir.display(), unchanged.join(","));
        eprintln!(
            "sluice: {dir}: {unchanged}: as when it was mounted; to remount changes ro, noatime and their like"
        );
    }
    Ok(())
}

/// The options with which the server of the mount at `dir` was started; none if that cannot be told.
fn options_of_server(dir: &Path) -> Vec<String> {
    let server = sluice_fuse::control::server_of(dir).ok().flatten();
    let command = server.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
    let command = command.unwrap_or_default();
    let list = command.split('\0').skip_while(|word| *word != "-o").nth(1).unwrap_or_default();
    list.split(',').map(str::to_owned).collect()
}

/// Starts the serving process and waits until its mount answers.
fn daemonize(store: Option<&Path>, dir: &Path, list: &str, member: Option<&ClusterMember>) -> Result<()> {
    let mut child = Command::new(this_program()?)
        .args(["mount", "--foreground", "--detach", "-o", list])
        .args(member.into_iter().flat_map(ClusterMember::arguments))
        .arg("--")
        .args(store)
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(|| "cannot start the serving process")?;
    mounted::await_ready(&mut child)
}

/// Mounts, serves until unmounted or told to stop by a signal, and unmounts.
fn serve(
    store: Option<&Path>,
    dir: &Path,
    list: &str,
    way: &ServingWay,
    member: Option<&ClusterMember>,
) -> Result<()> {
    let &ServingWay { attached, detach, kept, .. } = way;
    let address = store.map(|store| kept_directory::address(store, kept));
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
    let mut order = match &way.link {
        Some(link) => link.hear()?,
        None => None,
    };
    if let Some(HolderMessage::Resume(held, _) | HolderMessage::Prepare(held, _)) = &order {
        ram.name_key = held.name_key();
    }
    let is_resumed = matches!(order, Some(HolderMessage::Resume(..) | HolderMessage::Prepare(..)));
    let can_read_again = key.as_ref().map(KeySource::can_be_read_again);
    if is_resumed && can_read_again == Some(false) {
        // A pipe would be waited for without end, and programs with it.
        let text = "the file with the key of the store is gone or no file any more: put it back";
        return Err(Failure::Failed(text.into()));
    }
    // Here, and not where the options are checked: a pipe gives its key once. The terminal is still ours.
    ram.store.key = match &address {
        Some(address) => key_for(address, key, "Passphrase")?,
        None => None,
    };
    // A person is not asked a second time.
    options.held = way.link.is_some() && can_read_again.unwrap_or(ram.store.key.is_none());
    if holder == Some(true) && way.link.is_some() && !options.held {
        let text = "mount option holder=on: the next server needs the key again: give it in a file";
        return Err(Failure::Failed(text.into()));
    }
    if let (Some(_), Some(store)) = (member, store) {
        // A node may open the store much later, in the place of one that died: it must not learn then that its key is wrong.
        refuse_wrong_key(store, ram.store.key.as_ref())?;
    }
    let storage = Storage::with(objects);
    options.storage_stat = Some(StorageStat::new({
        let storage = storage.clone();
        move || storage.stat()
    }));
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    if let Some(limit) = limit.filter(|limit| *limit < FILES_MIN) {
        let text = format!(
            "a process here may open {limit} files, and a server needs {FILES_MIN}: ulimit -n {FILES_MIN}"
        );
        return Err(Failure::Failed(text));
    }
    options.dedicated = true;
    // Programs that run in the session of `sluice run` or of a measurement are its clients: the server is apart from both.
    options.own_session = attached || detach;
    system_log::begin(level, detach)?;
    // Each thread's arena would take 64 MiB of a limit on address space.
    let has_limit = |resource| rustix::process::getrlimit(resource).current.is_some();
    if ram.memory_limit.is_some() || has_limit(Resource::As) || has_limit(Resource::Data) {
        memory::keep_little();
    }
    // Before mounting: a signal in between would otherwise leave a mount without a server.
    let signals = StopSignals::catch()?;
    if options.own_session {
        // No controlling terminal, and a share of the CPUs of its own.
        rustix::process::setsid().map_err(std::io::Error::from)?;
    }
    if let Some(member) = member {
        // Given with it: see `mount`.
        let Some(store) = store else { return Ok(()) };
        name_after(store, &mut options);
        let answers = |device| {
            metrics
                .map_or(Ok(()), |address| serve_metrics(address, device, MountPlace::of(dir, Some(store))))?;
            ready(attached, detach)
        };
        let waits = |what: &str| tell_wait(attached || detach, what);
        let (ended, device) = member.serve((store, storage), ram, dir, options, signals, (waits, answers))?;
        return conclude(ended, dir, device, detach);
    }
    if let (Some(HolderMessage::Prepare(held, protocol)), Some(link), Some(address)) =
        (&order, &way.link, &address)
    {
        heed::refuse_other(held, protocol, &options, (address, ram.store.key.as_ref()))?;
        link.say(&HolderMessage::Prepared(env!("CARGO_PKG_VERSION").into()))?;
        // Without an answer the holder has ended, and nobody knows whether the last server has left.
        order = link.hear()?.or(order);
    }
    let is_volatile = ram.store.volatile;
    let superblock = match store.zip(address.as_deref()) {
        None => Superblock::new(ram),
        Some((store, address)) => {
            name_after(store, &mut options);
            let waits = |other: &StoreError| {
                let what = format!("{}: waits until it is known who lives: {other}", store.display());
                tell_wait(attached || detach, &what);
            };
            let open = || storage.open(address, ram.clone(), options.read_only, &waits);
            let is_alone = matches!(order, Some(HolderMessage::Prepare(..)));
            let opened = if is_alone { heed::once_free(open) } else { open() };
            opened.map_err(failure(store))?
        }
    };
    if is_tracked {
        superblock.track_crashes().map_err(std::io::Error::from)?;
    }
    let mount = match order {
        Some(HolderMessage::Resume(held, restarts)) => options.resume(&superblock, held, restarts),
        // The store is ours: the last server has left.
        Some(HolderMessage::Prepare(held, _)) => options.resume(&superblock, held, Restarts::default()),
        _ => options.mount(&superblock, dir),
    };
    let mount = mount.map_err(mount_failure)?;
    let begin = || -> Result<()> {
        if let Some(held) = mount.held()? {
            tell_holder(way, &HolderMessage::Hold(held));
        }
        match metrics {
            // Programs use the mount, whoever has the address now.
            Some(address) if is_resumed => {
                serve_metrics_later(address, mount.device(), MountPlace::of(dir, store))
            }
            Some(address) => serve_metrics(address, mount.device(), MountPlace::of(dir, store))?,
            None => {}
        }
        ready(attached, detach)?;
        if let (Some(link), Some(server)) = (&way.link, mount.held_server()) {
            heed::heed(link, server)?;
        }
        Ok(())
    };
    if let Err(error) = begin() {
        if is_resumed {
            // The holder has the mount. Without one, too, programs must not find the directory below.
            std::mem::forget(mount);
        }
        return Err(error);
    }
    let (major, minor) = mount.device();
    let device = rustix::fs::makedev(major, minor);
    tell_holder(way, &HolderMessage::Serves);
    log::info!("mounted on {}, device {major}:{minor}", dir.display());
    let ended = mount.run_until_signal(signals)?;
    tell_holder(way, &HolderMessage::Ends);
    log::info!("{} ended: {ended:?}", dir.display());
    if let Some(store) = store {
        let why = || superblock.failure().map_or_else(String::new, |why| format!(" ({why})"));
        let lost =
            |error| Failure::Failed(format!("{}: not all is durable: {error}{}", store.display(), why()));
        // A volatile store is whole only when it is closed. In others the log has all, and closing brings the tree up to it.
        if is_volatile {
            superblock.close().map_err(lost)?;
        } else {
            superblock.sync().map_err(lost)?;
            if superblock.failure().is_some() {
                return Err(lost(Errno::EIO));
            }
            // Files without a name that nobody has open are dead here: no other node serves this mount. Closing removes their data.
            superblock.settle();
            let _ = superblock.close();
        }
    }
    conclude(ended, dir, device, detach)
}

/// Tells the holder, if there is one.
fn tell_holder(way: &ServingWay, word: &HolderMessage) {
    if let Some(link) = &way.link
        && let Err(error) = link.say(word)
    {
        log::warn!("the holder of the mount has ended: the mount ends with its server now: {error}");
    }
}

/// Tells a person once what a mount waits for.
fn tell_wait(has_parent: bool, what: &str) {
    match has_parent {
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

/// The mount answers: says so to a process that waits for it.
fn ready(attached: bool, detach: bool) -> Result<()> {
    if detach {
        // Not a directory that somebody may want to unmount.
        std::env::set_current_dir("/")?;
    }
    // Steps that can fail come before the announcement of success.
    let null = detach.then(nowhere).transpose()?;
    if attached || detach {
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
