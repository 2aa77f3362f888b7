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
use crate::holder;
use crate::holder_link::{HolderLink, HolderMessage};
use crate::holder_state::Holding;
use crate::kept_directory;
use crate::nowhere::nowhere;
use crate::processes::command_of;
use crate::ram_options::{self, MountList};
use crate::serving::{ServingWay, serve_and_tell};
use crate::store::{directory_of, refuse_mount, warn_if_loose};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::mounted;
use sluice_console::program::this_program;
use sluice_store::disk::HostDisk;
use sluice_store::{Store, StoreError};
use sluice_sync::Arc;
use std::cell::Cell;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    let (attached, detach) = (args.attached, args.detach);
    let way = ServingWay { attached, detach, link: None, kept: None, lacks_room: Cell::new(false) };
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
    let (detach, kept) = (args.detach, args.kept);
    let way =
        ServingWay { attached: false, detach, link: Some(link.clone()), kept, lacks_room: Cell::new(false) };
    let served = serve_and_tell(Some(store), dir, &list, &way, None);
    if let Err(error) = &served {
        // Without a holder nobody hears it.
        let _ = link.say(&HolderMessage::Fails(error.to_string()));
        if way.lacks_room.get() {
            let _ = link.say(&HolderMessage::LacksRoom);
        }
    }
    served
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
    let command = server.map_or_else(String::new, command_of);
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
