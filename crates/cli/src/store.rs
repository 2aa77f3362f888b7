//! Store: what is done to a store by itself: `mkfs`, `info`, `fsck`.

use crate::args::{Fsck, KeyFiles};
use crate::bucket::{self, Bucket};
use crate::failures::{failure, told};
use crate::key_source::{bucket_unlocked, new_key, unlocked};
use crate::leaving::once_left;
use crate::mount_stat;
use crate::ram_options;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_fuse::control;
use sluice_store::disk::{Disk, HostDisk, UNFINISHED};
use sluice_store::{Content, Gravity, Progress, Report, Store, StoreError};
use sluice_sync::Arc;
use sluice_vfs::{Options, Superblock};
use std::fmt::Write as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The exit statuses of fsck(8).
const CORRECTED: u8 = 1;
const UNCORRECTED: u8 = 4;
pub(crate) const OPERATIONAL: u8 = 8;
pub(crate) const USAGE: u8 = 16;

/// The part of the host's free space that a log may take.
const LOG_SHARE: u64 = 8;

/// Makes an empty file system in the directory `store`, encrypted under a key of `files` or of a person if it `is_encrypted`.
pub(crate) fn mkfs(
    store: &Path,
    (is_encrypted, is_compressed): (bool, bool),
    files: &KeyFiles,
) -> Result<()> {
    if !is_encrypted && files.source().is_some() {
        return Err(Failure::Usage("a key without --encrypt: give both, or neither".into()));
    }
    let key = || is_encrypted.then(|| new_key(store, files.source())).transpose();
    if bucket::mkfs(store, is_compressed, &key)? {
        return Ok(());
    }
    refuse_mount(store)?;
    remove_lost(store)?;
    let named = || store.display().to_string();
    if std::fs::metadata(store).is_ok_and(|found| !found.is_dir()) {
        let text = "not a directory: give an empty or a new one";
        return Err(Failure::Failed(format!("{}: {text}", store.display())));
    }
    let is_new = !store.exists();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(store).context(named)?;
    let made = fill(store, is_encrypted, is_compressed, files);
    if made.is_err() && is_new {
        // Fails where another mkfs has begun meanwhile: the directory belongs to that one then.
        let _ = std::fs::remove_dir(store);
    }
    made?;
    // The names of the directories that were made must survive a power failure, too.
    let whole = store.canonicalize().context(named)?;
    whole
        .ancestors()
        .skip(1)
        .try_for_each(|parent| match std::fs::File::open(parent) {
            Ok(parent) => parent.sync_all(),
            // A parent directory without read permission existed before, so its sync is not needed.
            Err(_) => Ok(()),
        })
        .context(named)
}

/// Makes an empty file system in the existing directory `store`; see [`mkfs`].
fn fill(store: &Path, is_encrypted: bool, is_compressed: bool, files: &KeyFiles) -> Result<()> {
    let named = || store.display().to_string();
    // One mkfs at a time, and none below a mount.
    let disk = HostDisk::lock(store).map_err(failure(store))?;
    match Store::info(&disk) {
        _ if disk.refuse_unfinished().is_err() => remove_unfinished(store, &disk)?,
        Ok(_) => return Err(failure(store)(StoreError::Exists)),
        Err(StoreError::NotAStore) => remove_unfinished(store, &disk)?,
        Err(error) => return Err(failure(store)(error)),
    }
    // A person who ends the command here has made nothing.
    let key = is_encrypted.then(|| new_key(store, files.source())).transpose()?;
    disk.create(UNFINISHED, 0).context(named)?;
    disk.make_private().context(named)?;
    let mut options = ram_options::parse_for_store("")?.ram;
    options.store.key = key;
    options.store.compress = is_compressed;
    options.store.log_size = options.store.log_size.min(disk.free_bytes()? / LOG_SHARE);
    let disk = Arc::new(disk);
    let made = Superblock::create_on(disk.clone(), options).map_err(failure(store));
    let made = made.and_then(|superblock| superblock.sync().context(named));
    if made.is_err() {
        // A later attempt needs the room now; what cannot be removed here, that attempt removes.
        let _ = remove_unfinished(store, &disk);
    }
    made?;
    // Durably, before anybody uses the store: a later mkfs removes everything beside that file.
    disk.remove(UNFINISHED).and_then(|()| disk.sync_names()).context(named)
}

/// Removes what a `mkfs` that was killed left in the directory `store`, which is no store.
///
/// # Errors
/// The directory holds files of somebody else.
fn remove_unfinished(store: &Path, disk: &HostDisk) -> Result<()> {
    let names = disk.names()?;
    let is_ours = |name: &String| is_part(name) || [UNFINISHED, "super"].contains(&&**name);
    let is_unfinished = names.iter().any(|name| name == UNFINISHED);
    if !(names.is_empty() || is_unfinished && names.iter().all(is_ours)) {
        let text = "the directory holds files that are no store: give an empty or a new one";
        return Err(Failure::Failed(format!("{}: {text}", store.display())));
    }
    // The file that says so goes last.
    let parts = names.iter().filter(|name| *name != UNFINISHED);
    for name in parts.chain(names.iter().filter(|name| *name == UNFINISHED)) {
        disk.remove(name).context(|| store.join(name).display().to_string())?;
    }
    Ok(())
}

/// Whether a store keeps records or data in the file `name`.
fn is_part(name: &str) -> bool {
    ["log", "tree", "tree.new", "keys", "keys.new"].contains(&name) || name.starts_with("segment-")
}

/// Removes what is left of a store that was used with `-o volatile` and did not end cleanly.
fn remove_lost(store: &Path) -> Result<()> {
    let is_lost =
        || HostDisk::unlocked(store).and_then(|disk| Store::info(&disk)).is_ok_and(|info| info.is_volatile);
    if is_lost() {
        let _locked = HostDisk::lock(store).map_err(failure(store))?;
        // Another one may have ended it cleanly meanwhile.
        if is_lost() {
            let names = std::fs::read_dir(store).context(|| store.display().to_string())?;
            let names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            // Last what says that it is lost.
            for name in names.filter(|name| is_part(name)).chain(["super".to_owned()]) {
                let path = store.join(name);
                std::fs::remove_file(&path).context(|| path.display().to_string())?;
            }
        }
    }
    Ok(())
}

/// The store that is mounted on `dir`, if any.
pub(crate) fn mounted_on(dir: &Path) -> Option<PathBuf> {
    let source = PathBuf::from(sluice_fuse::source_at(dir)?);
    if Bucket::is_url(&source) {
        return Some(source);
    }
    let is_store = Store::info(&HostDisk::unlocked(&source).ok()?).is_ok();
    is_store.then_some(source)
}

/// # Errors
/// That `store` is a mount of sluicefs, and not a store.
pub(crate) fn refuse_mount(store: &Path) -> Result<()> {
    let Some(source) = sluice_fuse::source_at(store) else { return Ok(()) };
    let kind = HostDisk::unlocked(Path::new(&source)).err();
    if let Some(StoreError::Io(_, error)) = kind
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        let (dir, source) = (store.display(), Path::new(&source).display());
        let text = format!(
            "{dir}: a mount of the store {source}, which you may not read: ask as the user who mounted it, or as root"
        );
        return Err(Failure::Failed(text));
    }
    let (dir, source) = (store.display(), Path::new(&source).display());
    Err(Failure::Usage(match mounted_on(store) {
        Some(_) if Bucket::is_url(Path::new(&source.to_string())) => {
            format!("{dir}: a mount of the store {source}: give that")
        }
        Some(_) => {
            format!("{dir}: a mount of the store {source}: give that, after `sluice umount {dir}`")
        }
        None => format!("{dir}: a mount of {source}, which is no store: give the store that was mounted"),
    }))
}

/// The directory of this machine with the files of `store`; none for a store in S3.
pub(crate) fn directory_of(store: &Path) -> Option<&Path> {
    if Bucket::is_url(store) { Bucket::directory(store) } else { Some(store) }
}

/// Says so if others than its owner may open files of the directory `store`: they read all contents, and lock the store.
pub(crate) fn warn_if_loose(store: &Path) {
    let is_store = |dir: &Path| match bucket::given(store) {
        Ok(Some(bucket)) => bucket.info().is_ok(),
        _ => HostDisk::unlocked(dir).and_then(|disk| Store::info(&disk)).is_ok(),
    };
    if let Some(dir) = directory_of(store).filter(|dir| HostDisk::is_loose(dir) && is_store(dir)) {
        let (store, dir) = (store.display(), dir.display());
        eprintln!("sluice: warning: {store}: other users may read this store; to end that: chmod 700 {dir}");
    }
}

/// Prints the info of the store in `place`, or of the store mounted there.
pub(crate) fn info(place: &Path, json: bool, key: &KeyFiles) -> Result<()> {
    let mounted = mounted_on(place);
    let store = mounted.as_deref().unwrap_or(place);
    refuse_mount(store)?;
    let (info, size, content, user) = match bucket::given(store)? {
        Some(bucket) => {
            // These facts need no key, but a given key must be right.
            bucket_unlocked(store, &bucket, key.source(), false)?;
            let (info, size, user) = bucket::info(&bucket).map_err(failure(store))?;
            (info, size, None, user)
        }
        None => {
            let disk = HostDisk::unlocked(store).map_err(failure(store))?;
            let info = Store::info(&disk).map_err(failure(store))?;
            let (content, user) = match HostDisk::lock_read_only(store) {
                Ok(_) if info.is_volatile => (None, None),
                Ok(disk) => match unlocked(store, shared(disk), key.source())? {
                    disk if info.key_id.is_some() && disk.cipher().is_none() => (None, None),
                    disk => (Some(Superblock::store_content(disk).map_err(failure(store))?), None),
                },
                // Its server knows.
                Err(user @ StoreError::InUse(_)) => (content_in_use(store), Some(user)),
                Err(error) => return Err(failure(store)(error)),
            };
            (info, allocated(store)?, content, user)
        }
    };
    let uuid = info.uuid.iter().enumerate().fold(String::new(), |mut text, (at, byte)| {
        let dash = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{dash}{byte:02x}");
        text
    });
    let is_lost = info.is_volatile && user.is_none();
    let failure = match &user {
        Some(_) => failure_of_server(store),
        None => is_lost.then(|| told(&StoreError::Lost)),
    };
    let (content, shared) = content.unzip();
    let private = content.zip(shared).map(|(content, shared)| content.data_bytes.saturating_sub(shared));
    let cache = Options::default().store.cache;
    let text = if json {
        let fields = json!({
            "uuid": uuid,
            "version": info.version,
            "encrypted": info.key_id.is_some(),
            "compressed": info.is_compressed,
            "size_bytes": size,
            "data_bytes": content.map(|content| content.data_bytes),
            "shared_bytes": shared,
            "private_bytes": private,
            "segment_size": info.segment_size,
            "log_size": info.log_size,
            "log_used": content.map(|content| content.log_used),
            "log_batches": content.map(|content| content.batches),
            "cache_bytes": cache,
            "in_use": user.is_some(),
            "pid": match user {
                Some(StoreError::InUse(pid)) => pid,
                _ => None,
            },
            "failure": failure,
        });
        format!("{fields}\n")
    } else {
        let used = content.map(|content| {
            format!("{} used, {} batches to replay", bytes(content.log_used), content.batches)
        });
        let user = match user {
            Some(StoreError::InUse(Some(pid))) => Some(format!("in use by process {pid}")),
            Some(StoreError::Claimed(by)) => {
                // The remedy does not belong here.
                let by = by.split(" (").next().unwrap_or_default();
                Some(format!("in use by {by}, unless that has died"))
            }
            Some(_) => Some("in use".to_owned()),
            None if used.is_none() && info.key_id.is_some() && !Bucket::is_url(store) => {
                Some("a key shows its use".to_owned())
            }
            None => used.is_none().then(|| "not in use by this machine".to_owned()),
        };
        let is_url = Bucket::is_url(store);
        let size_of_log = if is_url { "an object for each commit".to_owned() } else { bytes(info.log_size) };
        let log: Vec<String> = [size_of_log].into_iter().chain(used).chain(user).collect();
        let place = if is_url { "in objects" } else { "on the host's disk" };
        let encrypted = if info.key_id.is_some() { ", encrypted" } else { "" };
        let compressed = if info.is_compressed { ", compressed" } else { "" };
        let failed = failure.map_or_else(String::new, |why| {
            let so = if is_lost { "" } else { "read-only: " };
            format!("failed   {so}{why}\n")
        });
        let data = match (content.zip(shared).zip(private), info.segment_size) {
            (Some(((content, shared), private)), segment_size) => {
                let [data, shared, private, size] =
                    [content.data_bytes, shared, private, segment_size].map(bytes);
                format!("{data} ({shared} shared, {private} private) in files of {size}")
            }
            (None, 0) => "in the tree, nothing of it shared".to_owned(),
            (None, _) if is_url => "in objects: `df` of a mount tells how much".to_owned(),
            (None, segment_size) => format!("? in files of {}", bytes(segment_size)),
        };
        format!(
            "uuid     {uuid}\nversion  {}{encrypted}{compressed}\nsize     {} {place}\ndata     {data}\n\
             log      {}\ncache    {} of the tree at most\n{failed}",
            info.version,
            bytes(size),
            log.join(", "),
            bytes(cache as u64),
        )
    };
    Output::plain().give(text.as_bytes())
}

/// The device number of the mount of `store`, if it is mounted.
fn device_of(store: &Path) -> Option<(u32, u32)> {
    // A bucket is no path.
    let source = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    sluice_fuse::device_of_source(source.as_os_str())
}

/// The content of `store` according to its server, if it is mounted, and how much of its data is shared.
fn content_in_use(store: &Path) -> Option<(Content, u64)> {
    control::content_of_device(device_of(store)?).ok()?
}

/// Why the server of `store`, if one has it mounted, cannot write there any more.
fn failure_of_server(store: &Path) -> Option<String> {
    let answer = control::stat_of_device(device_of(store)?).ok()??;
    mount_stat::parse(&answer).ok()?.file_system?.failure
}

/// Checks a store, and mends it if asked: the exit status of fsck(8).
pub(crate) fn fsck(args: &Fsck) -> Result<u8> {
    say_nothing_of_panics_that_are_findings();
    refuse_mount(&args.store)?;
    warn_if_loose(&args.store);
    if let Some(bucket) = bucket::given(&args.store)? {
        let bucket = bucket_unlocked(&args.store, &bucket, args.key.source(), true)?;
        return checked(args, &mut |progress| bucket::check(&bucket, progress), &|| bucket::repair(&bucket));
    }
    let lock =
        || if args.repair { HostDisk::lock(&args.store) } else { HostDisk::lock_read_only(&args.store) };
    let disk = once_left(&args.store, lock).and_then(|disk| disk.refuse_unfinished().map(|()| disk));
    let disk = shared(disk.map_err(failure(&args.store))?);
    let disk = unlocked(&args.store, disk, args.key.source())?;
    let repair = || Superblock::repair_store(disk.clone());
    checked(args, &mut |progress| Superblock::check_store(disk.clone(), progress), &repair)
}

/// Checks a store, and tells how far it is.
type StoreCheck<'s> = dyn FnMut(&mut dyn FnMut(Progress)) -> std::result::Result<Report, StoreError> + 's;

/// Tells the findings of `check`; if asked, has `repair` mend them first: the exit status of fsck(8).
fn checked(
    args: &Fsck,
    check: &mut StoreCheck<'_>,
    repair: &dyn Fn() -> std::result::Result<(), StoreError>,
) -> Result<u8> {
    let bar = ProgressBar::new(0);
    let mut check = || {
        let checked = check(&mut |progress| show(&bar, progress));
        bar.finish_and_clear();
        checked.map_err(failure(&args.store))
    };
    let found = check()?;
    if !args.repair || is_sound(&found) {
        let status = if is_sound(&found) { 0 } else { UNCORRECTED };
        tell(args, &found, &found, status)?;
        return Ok(status);
    }
    // The second check finds the obstacle to a repair again.
    let repaired = repair();
    let left = check()?;
    let status = if is_sound(&left) { CORRECTED } else { UNCORRECTED };
    tell(args, &found, &left, status)?;
    match repaired {
        Err(error) if status == UNCORRECTED => Err(failure(&args.store)(error)),
        _ => Ok(status),
    }
}

/// Whether the store is sound: a crash may leave notes.
fn is_sound(report: &Report) -> bool {
    report.worst().is_none_or(|worst| worst == Gravity::Note)
}

fn tell(args: &Fsck, found: &Report, left: &Report, status: u8) -> Result<()> {
    let gravity = |gravity| match gravity {
        Gravity::Note => "note",
        Gravity::Count => "count",
        Gravity::Damage => "damage",
    };
    let verdict = match status {
        0 => "clean",
        CORRECTED => "repaired",
        _ => "damaged",
    };
    let mut text = String::new();
    if args.json {
        let findings = found.findings.iter();
        let findings: Vec<_> =
            findings.map(|one| json!({"gravity": gravity(one.gravity), "text": one.text})).collect();
        let fields = json!({
            "status": verdict,
            "found": found.found,
            "left": if status == 0 { 0 } else { left.found },
            "findings": findings,
            "records": left.records,
            "extents": left.extents,
            "data_bytes": left.data_bytes,
            "log_size": left.log_size,
            "log_used": left.log_used,
            "log_batches": left.batches,
        });
        text = format!("{fields}\n");
    } else {
        for one in &found.findings {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}: {}", gravity(one.gravity), one.text);
        }
        let more = found.found - found.findings.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "and {more} more");
        }
        let _ = writeln!(
            text,
            "{}: {verdict}: {} records, {} of data in {} extents; log {}, {} used ({} batches to replay)",
            args.store.display(),
            left.records,
            bytes(left.data_bytes),
            left.extents,
            bytes(left.log_size),
            bytes(left.log_used),
            left.batches,
        );
        text += &advice(args, left, status);
    }
    Output::plain().give(text.as_bytes())
}

/// Advice about the findings that a check has `left`.
fn advice(args: &Fsck, left: &Report, status: u8) -> String {
    let mut text = String::new();
    if status != UNCORRECTED {
        return text;
    }
    let store = args.store.display();
    if !left.whole {
        text += "a part of the store cannot be read, and no repair brings it back: restore the named files from a backup, or, if \
                 the store can still be mounted, copy what can be read to a new one (sluice mkfs)\n";
    } else if left.found > left.lost_data && !args.repair {
        text += &format!("mend it: sluice fsck --repair {store}\n");
    }
    if left.lost_data > 0 {
        text += "no repair brings damaged contents back: restore or delete the files that are named; all else can be used\n";
    }
    text
}

pub(crate) fn show(bar: &ProgressBar, progress: Progress) {
    let template =
        if progress.of > 0 { "{bar:24} {percent}%, {eta} left: {msg}" } else { "{spinner} {pos} {msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(progress.of);
    bar.set_position(progress.done);
    bar.set_message(progress.part);
}

/// The libraries that keep trees and records panic on what they have not written. That is caught, and told as a finding.
fn say_nothing_of_panics_that_are_findings() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_of = |library| panic.location().is_some_and(|place| place.file().contains(library));
        if !["redb", "slatedb"].into_iter().any(is_of) {
            usual(panic);
        }
    }));
}

fn shared(disk: HostDisk) -> Arc<dyn Disk> {
    Arc::new(disk)
}

/// Bytes that the files in `store` take on the host's disk.
fn allocated(store: &Path) -> Result<u64> {
    let place = || store.display().to_string();
    let mut sum = 0;
    for entry in std::fs::read_dir(store).context(place)? {
        sum += entry.and_then(|entry| entry.metadata()).context(place)?.blocks() * 512;
    }
    Ok(sum)
}

/// A number of bytes for a person.
pub(crate) fn bytes(number: u64) -> String {
    let units = [("G", 1_u64 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    match units.iter().find(|(_, unit)| number >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}iB", number as f64 / *unit as f64),
        None => format!("{number} bytes"),
    }
}
