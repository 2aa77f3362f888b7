//! Volumes: the directories of a mount that are volumes, and the copies of them that are snapshots.
//!
//! # Theory
//! ```text
//!   csi/volumes/ID           a volume: a directory with a quota, which bind mounts show to programs
//!   csi/snapshots/ID         a copy of one (`sluice clone`), which shares the bytes of its files
//!   csi/records/volumes/ID.json, csi/records/snapshots/ID.json
//! ```
//! A volume is there if its record is. The record is written last, and removed first: a call that is ended in its middle leaves a
//! directory without a record, and the caller repeats it, as the interface demands. The repeated call removes the directory.
//!
//! An ID follows from the name that the caller gave, so a call that is repeated finds what the first one made.

use super::bind_mounts::mounts_of;
use super::errors::{in_one_line, no_volume, of_mount};
use super::messages::CapacityRange;
use crate::watch::no_server;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sluice_fuse::control::{self, QuotaOrder};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tonic::Status;

/// The capacity of a volume for which none is asked, in bytes.
pub(super) const CAPACITY: u64 = 1 << 30;
/// A capacity is a multiple of this, and the least quota.
const PAGE: u64 = 4096;
/// The longest name that the interface has, and the longest ID, in bytes.
const NAME_MAX: usize = 128;
/// The beginning of an ID that is the digest of a name.
const DIGEST: &str = "sha-";
/// The beginning of a token of a list; an ID follows.
const AFTER: &str = "after:";

/// The two kinds of directories: volumes, and snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeShelf {
    Volumes,
    Snapshots,
}

impl VolumeShelf {
    fn name(self) -> &'static str {
        match self {
            VolumeShelf::Volumes => "volumes",
            VolumeShelf::Snapshots => "snapshots",
        }
    }
}

/// The record of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VolumeRecord {
    pub(super) name: String,
    /// Bytes; also the quota of the directory.
    pub(super) capacity: u64,
    pub(super) origin: Option<VolumeOrigin>,
}

/// The source of a volume's first contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum VolumeOrigin {
    Snapshot(String),
    Volume(String),
}

/// The record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotRecord {
    pub(super) name: String,
    /// The ID of the volume.
    pub(super) volume: String,
    /// The capacity of the volume, in bytes.
    pub(super) capacity: u64,
    /// Since the beginning of 1970.
    pub(super) seconds: i64,
}

/// The volumes and snapshots below a directory.
pub(super) struct Volumes {
    base: PathBuf,
}

impl Volumes {
    /// The volumes below the directory `base`, which is made if it is missing.
    pub(super) fn below(base: PathBuf) -> Result<Volumes, Status> {
        let private = |dir: &Path| DirBuilder::new().recursive(true).mode(0o700).create(dir);
        for shelf in [VolumeShelf::Volumes, VolumeShelf::Snapshots].map(VolumeShelf::name) {
            let made = private(&base.join(shelf)).and_then(|()| private(&base.join("records").join(shelf)));
            made.map_err(of_mount(&base))?;
        }
        Ok(Volumes { base })
    }

    /// The directory of a volume or a snapshot.
    pub(super) fn path(&self, shelf: VolumeShelf, id: &str) -> PathBuf {
        self.base.join(shelf.name()).join(id)
    }

    fn record_path(&self, shelf: VolumeShelf, id: &str) -> PathBuf {
        self.base.join("records").join(shelf.name()).join(format!("{id}.json"))
    }

    /// The record of an ID. None without a record, and for a text that cannot be an ID.
    pub(super) fn record<R: DeserializeOwned>(
        &self,
        shelf: VolumeShelf,
        id: &str,
    ) -> Result<Option<R>, Status> {
        if !is_id(id) {
            return Ok(None);
        }
        let path = self.record_path(shelf, id);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(of_mount(&path))?,
        };
        let damaged = |error| {
            Status::internal(format!("{}: the record is damaged ({error}): restore the file", path.display()))
        };
        serde_json::from_slice(&text).map(Some).map_err(damaged)
    }

    /// As [`record`](Self::record), of a volume.
    ///
    /// # Errors
    /// `NOT_FOUND`: there is none.
    pub(super) fn volume(&self, id: &str) -> Result<VolumeRecord, Status> {
        self.record(VolumeShelf::Volumes, id)?.ok_or_else(|| no_volume(id))
    }

    /// Notes a record, durably.
    fn note(&self, shelf: VolumeShelf, id: &str, record: &impl Serialize) -> Result<(), Status> {
        let path = self.record_path(shelf, id);
        let new = path.with_file_name(format!(".{id}.new"));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_directory_of(&path)
        };
        write().map_err(of_mount(&path))
    }

    /// The IDs of what there is, in their order.
    pub(super) fn ids(&self, shelf: VolumeShelf) -> Result<Vec<String>, Status> {
        let dir = self.base.join("records").join(shelf.name());
        let entries = fs::read_dir(&dir).map_err(of_mount(&dir))?;
        let name = |entry: io::Result<fs::DirEntry>| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_suffix(".json").filter(|id| is_id(id)).map(str::to_owned)
        };
        let mut ids: Vec<String> = entries.filter_map(name).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Makes a volume of nothing, or of a copy of `from`, and notes it.
    pub(super) fn create(&self, id: &str, record: &VolumeRecord, from: Option<&Path>) -> Result<(), Status> {
        let path = self.path(VolumeShelf::Volumes, id);
        remove_tree(&path)?;
        let made = match from {
            Some(from) => copy(from, &path),
            None => {
                let mode = fs::Permissions::from_mode(0o755);
                let made = fs::create_dir(&path).and_then(|()| fs::set_permissions(&path, mode));
                made.map_err(of_mount(&path))
            }
        };
        let made = made.and_then(|()| limit(&path, record.capacity));
        made.and_then(|()| self.note(VolumeShelf::Volumes, id, record)).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = remove_tree(&path);
        })
    }

    /// Makes a snapshot of a volume, and notes it.
    pub(super) fn take(&self, id: &str, record: &SnapshotRecord) -> Result<(), Status> {
        let path = self.path(VolumeShelf::Snapshots, id);
        remove_tree(&path)?;
        copy(&self.path(VolumeShelf::Volumes, &record.volume), &path)?;
        self.note(VolumeShelf::Snapshots, id, record)
    }

    /// Removes a volume or a snapshot, and what a call that was ended left of one.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`: it is mounted.
    pub(super) fn remove(&self, shelf: VolumeShelf, id: &str) -> Result<(), Status> {
        if !is_id(id) {
            return Ok(());
        }
        let (path, record) = (self.path(shelf, id), self.record_path(shelf, id));
        if path.is_dir()
            && let Some(mount) = mounts_of(&path).map_err(of_mount(&path))?.first()
        {
            let place = mount.mountpoint.display();
            let text = format!("the volume {id} is mounted on {place}: unpublish and unstage it first");
            return Err(Status::failed_precondition(text));
        }
        match fs::remove_file(&record).and_then(|()| sync_directory_of(&record)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(of_mount(&record)(error)),
            _ => {}
        }
        remove_tree(&path)
    }

    /// Gives a volume at least the capacity that `range` says, and returns what it has.
    pub(super) fn expand(&self, id: &str, range: Option<CapacityRange>) -> Result<u64, Status> {
        let mut record = self.volume(id)?;
        let wanted = capacity_of(range, record.capacity)?.max(record.capacity);
        if range.is_some_and(|range| range.limit_bytes > 0 && wanted > range.limit_bytes as u64) {
            let text = format!("the volume has {} bytes already: volumes do not shrink", record.capacity);
            return Err(Status::out_of_range(text));
        }
        self.check_room(wanted)?;
        if wanted > record.capacity {
            limit(&self.path(VolumeShelf::Volumes, id), wanted)?;
            record.capacity = wanted;
            self.note(VolumeShelf::Volumes, id, &record)?;
        }
        Ok(wanted)
    }

    /// # Errors
    /// `OUT_OF_RANGE`: the whole file system has not so many bytes.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), Status> {
        let (total, _) = self.room()?;
        if bytes > total {
            let text = format!("the file system of all volumes has {total} bytes: ask for no more than that");
            return Err(Status::out_of_range(text));
        }
        Ok(())
    }

    /// Bytes of the file system, and those that are free.
    pub(super) fn room(&self) -> Result<(u64, u64), Status> {
        let told = rustix::fs::statvfs(&self.base).map_err(|errno| of_mount(&self.base)(errno.into()))?;
        Ok((told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize))
    }
}

/// The ID of what is called `name`.
///
/// # Errors
/// `INVALID_ARGUMENT`: no name can be that long.
pub(super) fn id_of(name: &str) -> Result<String, Status> {
    if name.len() > NAME_MAX {
        return Err(Status::invalid_argument(format!("a name has {NAME_MAX} bytes at most: shorten it")));
    }
    if is_id(name) && !name.starts_with(DIGEST) {
        return Ok(name.to_owned());
    }
    let digest = Sha256::digest(name);
    Ok(digest.iter().take(16).fold(DIGEST.to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// Whether `text` can be an ID: also the name of a file.
fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= NAME_MAX && !text.starts_with('.') && text.bytes().all(is_plain)
}

/// The bytes that a volume gets for which `range` is asked; `least` where it says nothing.
///
/// # Errors
/// `INVALID_ARGUMENT`: no size is in the range; `OUT_OF_RANGE`: no multiple of a page is.
pub(super) fn capacity_of(range: Option<CapacityRange>, least: u64) -> Result<u64, Status> {
    let CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
    let (Ok(required), Ok(limit)) = (u64::try_from(required_bytes), u64::try_from(limit_bytes)) else {
        return Err(Status::invalid_argument("a capacity is negative: give 0 or more bytes"));
    };
    let limit = if limit == 0 { u64::MAX } else { limit };
    if required > limit {
        return Err(Status::invalid_argument("required_bytes is above limit_bytes: swap the two"));
    }
    let wanted = if required == 0 { least.min(limit) } else { required };
    let wanted = wanted.max(1).next_multiple_of(PAGE);
    if wanted > limit {
        return Err(Status::out_of_range(format!(
            "a volume has a multiple of {PAGE} bytes: raise limit_bytes"
        )));
    }
    Ok(wanted)
}

/// A number of bytes or inodes as messages have it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The part of `ids` that an answer has, and the token for the next: `most` entries, or all if that is 0, behind those before `token`.
///
/// # Errors
/// `ABORTED`: no list gave the token; `INVALID_ARGUMENT`: a negative number.
pub(super) fn page(mut ids: Vec<String>, most: i32, token: &str) -> Result<(Vec<String>, String), Status> {
    let Ok(most) = usize::try_from(most) else {
        return Err(Status::invalid_argument("max_entries is negative: give 0 or more"));
    };
    if !token.is_empty() {
        let Some(after) = token.strip_prefix(AFTER).filter(|id| is_id(id)) else {
            return Err(Status::aborted(format!(
                "no list gave the token {token:?}: list from the beginning"
            )));
        };
        ids.retain(|id| id.as_str() > after);
    }
    let is_cut = most > 0 && ids.len() > most;
    if is_cut {
        ids.truncate(most);
    }
    let next = ids.last().filter(|_| is_cut).map_or_else(String::new, |last| format!("{AFTER}{last}"));
    Ok((ids, next))
}

/// Copies a tree within the mount; both share their bytes.
fn copy(from: &Path, to: &Path) -> Result<(), Status> {
    let copied = File::open(from).and_then(|dir| {
        // The kernel may have collected newer bytes.
        rustix::fs::syncfs(&dir)?;
        control::clone_tree(from, to)
    });
    copied.map_err(of_mount(from))?.ok_or_else(|| Status::unavailable(in_one_line(&no_server(from))))
}

/// Limits what a directory holds to so many bytes.
fn limit(dir: &Path, bytes: u64) -> Result<(), Status> {
    let limited = control::quota(dir, QuotaOrder::Set(bytes)).map_err(of_mount(dir))?;
    limited.map(drop).ok_or_else(|| Status::unavailable(in_one_line(&no_server(dir))))
}

fn remove_tree(path: &Path) -> Result<(), Status> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(of_mount(path)),
    }
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_name_is_its_own_id_where_it_can_be_one() {
        assert_eq!(id_of("pvc-1").expect("short"), "pvc-1");
        let odd: Vec<String> =
            ["a/b", "..", "é", "sha-1"].iter().map(|name| id_of(name).expect("short")).collect();
        for id in &odd {
            assert!(is_id(id) && id.len() == 36 && id.starts_with("sha-"), "{id}");
        }
        assert_ne!(odd[0], odd[1]);
        assert!(is_id(&id_of(&"n".repeat(128)).expect("as long as may be")));
        let long = id_of(&"n".repeat(129)).expect_err("too long");
        assert!(long.message().contains("128 bytes at most: shorten it"), "{long}");
    }

    #[test]
    fn a_capacity_is_a_multiple_of_a_page_within_its_range() {
        let of = |required_bytes, limit_bytes| {
            capacity_of(Some(CapacityRange { required_bytes, limit_bytes }), CAPACITY)
                .map_err(|status| (status.code(), status.message().to_owned()))
        };
        assert_eq!(capacity_of(None, CAPACITY).expect("the usual"), CAPACITY);
        assert_eq!(of(1, 0), Ok(4096));
        assert_eq!(of(4097, 8192), Ok(8192));
        assert_eq!(of(0, 8192), Ok(8192));
        let refused = |required, limit, code, text: &str| {
            let (is, said) = of(required, limit).expect_err("refused");
            assert!(is == code && said.contains(text), "{said}");
        };
        refused(4097, 4098, Code::OutOfRange, "a multiple of 4096 bytes: raise limit_bytes");
        refused(2, 1, Code::InvalidArgument, "required_bytes is above limit_bytes");
        refused(-1, 0, Code::InvalidArgument, "a capacity is negative");
    }

    #[test]
    fn pages_of_a_list_follow_each_other_also_when_entries_go() {
        let ids = || ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(page(ids(), 0, "").expect("all"), (ids(), String::new()));
        let (first, next) = page(ids(), 2, "").expect("a part");
        assert_eq!((first.len(), next.as_str()), (2, "after:b"));
        let rest = vec!["c".to_owned()];
        assert_eq!(page(vec!["a".into(), "c".into()], 2, &next).expect("the rest"), (rest, String::new()));
        let wrong = page(ids(), 1, "b").expect_err("no token");
        assert!(wrong.code() == Code::Aborted && wrong.message().contains("list from the beginning"));
        let negative = page(ids(), -1, "").expect_err("negative").message().to_owned();
        assert_eq!(negative, "max_entries is negative: give 0 or more");
    }

    #[test]
    fn a_damaged_record_is_named() {
        let dir = sluice_console::private_dir::PrivateDir::below(&std::env::temp_dir()).expect("room");
        let volumes = Volumes::below(dir.path().join("csi")).expect("room");
        fs::write(volumes.record_path(VolumeShelf::Volumes, "v"), "{").expect("room");
        let damaged = volumes.volume("v").expect_err("no JSON");
        assert!(damaged.message().contains("the record is damaged"), "{damaged}");
        assert!(volumes.volume("w").expect_err("none").message().contains("there is no volume \"w\""));
        let no_mount = limit(dir.path(), 4096).expect_err("no mount");
        assert!(no_mount.message().contains("not in a sluicefs mount"), "{no_mount}");
    }
}
