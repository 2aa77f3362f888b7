//! RAM options: what may be chosen about a file system, its store and its server, in the same `-o` list as the options of its mount.
//!
//! # Theory
//! The names and their meaning are those of the kernel's tmpfs, so that a line of `/etc/fstab` can be taken over:
//! by default half of the memory may be filled that the process can have and no other file system of it was promised, because a
//! file system that may fill all of it takes the machine down with it. The list is taken apart here; what is not ours goes to [`MountOptions`].

use crate::key_source::KeySource;
use log::LevelFilter;
use sluice_console::failure::{Failure, Result};
use sluice_fuse::MountOptions;
use sluice_sync::time::Duration;
use sluice_vfs::{Options, SnapshotPeriod, SnapshotSchedule, Superblock};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The options that are none of a mount by itself, with the forms of their values: shown after an unknown option.
const KNOWN: &str = "size=N[K|M|G|T|%], nr_inodes=N[K|M|G|T], mode=OCTAL, uid=N, gid=N, \
                     nr_locks=N[K|M|G|T], nr_owner_locks=N[K|M|G|T], nodeadlock, memory=N[K|M|G|T|%], \
                     snapshots=PERIOD:N[,PERIOD:N], scrub=PERIOD, \
                     volatile, key_file=FILE, passphrase_file=FILE, cache=DIR, cache_size=N[K|M|G|T], takeover, park=SECONDS|off, holder=on|off, watchdog=SECONDS, track, log=LEVEL, metrics=ADDRESS:PORT";
/// The seconds that `watchdog` and `park` may have.
const SECONDS: std::ops::RangeInclusive<u64> = 1..=86_400;
/// The default of `park`.
const DEFAULT_PARK: Duration = Duration::from_secs(60);
/// The unit of memory for file data: whole pages.
const PAGE: u64 = 4096;
/// Permission bits, the set-ID and sticky bits among them.
const MODE_MAX: u32 = 0o7777;
/// The default of `nr_locks`: a hostile client can make us keep so many records of some 200 bytes, and no more.
const DEFAULT_LOCKS: u64 = 1_000_000;
/// The default of `cache_size`.
const DEFAULT_CACHE: u64 = 10 << 30;
/// The default of `size`, in per cent of the machine's memory, as tmpfs has it.
const DEFAULT_PERCENT: u64 = 50;

/// The mount options of a store in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectOptions {
    /// The directory of a cache of its objects, and the bytes that these may take.
    pub(crate) cache: Option<(PathBuf, u64)>,
    /// The store is taken from any process that has it open.
    pub(crate) takeover: bool,
    /// How long a workspace that nobody uses stays open; none: as long as the mount.
    pub(crate) park: Option<Duration>,
}

impl Default for ObjectOptions {
    fn default() -> ObjectOptions {
        ObjectOptions { cache: None, takeover: false, park: Some(DEFAULT_PARK) }
    }
}

/// A parsed list of options.
#[derive(Debug)]
pub(crate) struct MountList {
    /// The options of the file system.
    pub(crate) ram: Options,
    /// The options of an object store below it.
    pub(crate) objects: ObjectOptions,
    /// The options of the mount.
    pub(crate) mount: MountOptions,
    /// Where the key of an encrypted store comes from.
    pub(crate) key: Option<KeySource>,
    /// Messages of this level and above are kept.
    pub(crate) level: LevelFilter,
    /// Where counts are told by HTTP.
    pub(crate) metrics: Option<SocketAddr>,
    /// Crashes are tracked from the beginning.
    pub(crate) is_tracked: bool,
    /// Whether the mount is to outlive its server, if that is said.
    pub(crate) holder: Option<bool>,
    /// After how long without an answer the server is replaced, if so.
    pub(crate) watchdog: Option<Duration>,
}

/// Parses the options of a file system in a store or in memory.
///
/// # Errors
/// Errors of [`parse`].
pub(crate) fn parse_for(is_store: bool, list: &str) -> Result<MountList> {
    if is_store { parse_for_store(list) } else { parse(list) }
}

/// Parses the options of a file system in a store, which its disk limits.
///
/// # Errors
/// Errors of [`parse`].
pub(crate) fn parse_for_store(list: &str) -> Result<MountList> {
    let mut parsed = parse(list)?;
    let sizes = || list.split(',').filter_map(|option| option.strip_prefix("size="));
    if let Some(share) = sizes().find(|size| size.ends_with('%')) {
        let text =
            format!("mount option size={share}: a share of the memory; for a store give bytes, such as 20G");
        return Err(Failure::Usage(text));
    }
    parsed.ram.size_limit = parsed.ram.size_limit.filter(|_| sizes().next().is_some());
    Ok(parsed)
}

/// The options that `list` gives, separated by commas; later ones win.
///
/// # Errors
/// The first option that is unknown or has a bad value: one line that says what would be accepted.
fn parse(list: &str) -> Result<MountList> {
    let memory = memory_bytes();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut ram = Options::default().lock_limit(DEFAULT_LOCKS).root_owner(uid, gid);
    ram.size_limit = limit(share_of(memory.saturating_sub(Superblock::promised_bytes()), DEFAULT_PERCENT));
    let mut parsed = MountList {
        ram,
        objects: ObjectOptions::default(),
        mount: MountOptions::default(),
        key: None,
        level: LevelFilter::Warn,
        metrics: None,
        is_tracked: false,
        holder: None,
        watchdog: None,
    };
    for option in list.split(',') {
        if apply(&mut parsed, option, memory)? {
            continue;
        }
        parsed.mount.apply(option).map_err(|error| {
            let more = if error.is_unknown() { format!(", {KNOWN}") } else { String::new() };
            Failure::Usage(format!("{error}{more}"))
        })?;
    }
    if parsed.objects.cache.as_ref().is_some_and(|(dir, _)| dir.as_os_str().is_empty()) {
        return Err(Failure::Usage("mount option cache_size: give cache=DIR, too".into()));
    }
    Ok(parsed)
}

/// Applies `option` if it is none of a mount by itself, and says whether it is.
fn apply(list: &mut MountList, option: &str, memory: u64) -> Result<bool> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let refuse = |wanted: &str| Failure::Usage(format!("mount option {option}: {wanted}"));
    let count = |value| {
        let count =
            scaled(value).ok_or_else(|| refuse("give a number, such as 100000 or 1M; 0 for no limit"));
        count.map(limit)
    };
    let bytes = |value| {
        let wanted = "give bytes, such as 500M or 2G, or a share of the memory up to 100%, such as 25%";
        size(value, memory).ok_or_else(|| refuse(wanted))
    };
    let MountList { ram, objects, .. } = list;
    // Both options of a cache, in whichever order.
    let default = || (PathBuf::new(), DEFAULT_CACHE);
    match (name, value) {
        ("size", Some(value)) => ram.size_limit = limit(bytes(value)?),
        ("memory", Some(value)) => {
            let wanted = "give bytes, such as 64M; without it a store takes up to half of the memory";
            ram.memory_limit = Some(limit(bytes(value)?).ok_or_else(|| refuse(wanted))?);
        }
        ("nr_inodes", Some(value)) => ram.inode_limit = count(value)?,
        ("nr_locks", Some(value)) => ram.lock_limit = count(value)?,
        ("nr_owner_locks", Some(value)) => ram.owner_lock_limit = count(value)?,
        ("mode", Some(value)) => {
            ram.root_mode = octal(value).ok_or_else(|| refuse("give octal digits, such as 755 or 1777"))?;
        }
        ("uid", Some(value)) => {
            ram.root_uid = id(value).ok_or_else(|| refuse("give the number of a user"))?;
        }
        ("gid", Some(value)) => {
            ram.root_gid = id(value).ok_or_else(|| refuse("give the number of a group"))?;
        }
        ("snapshots", Some(value)) => {
            ram.snapshots =
                Some(scheduled(value, SnapshotSchedule::default()).ok_or_else(|| refuse(SCHEDULE))?);
        }
        // The list goes on.
        (item, None) if item.contains(':') && ram.snapshots.is_some() => {
            let schedule = ram.snapshots.take().unwrap_or_default();
            ram.snapshots = Some(scheduled(item, schedule).ok_or_else(|| refuse(SCHEDULE))?);
        }
        ("scrub", value) => {
            let wanted = || refuse("give daily, weekly, monthly or off");
            ram.scrub = scrub_period(value.unwrap_or_default()).ok_or_else(wanted)?;
        }
        ("nodeadlock", None) => ram.deadlock_detection = false,
        ("volatile", None) => ram.store.volatile = true,
        ("key_file" | "passphrase_file", Some(value)) => {
            if value.is_empty() {
                return Err(refuse("give FILE, the path of the key"));
            }
            let source = if name == "key_file" { KeySource::File } else { KeySource::Passphrase };
            list.key = Some(source(value.into()));
        }
        ("takeover", None) => objects.takeover = true,
        ("park", Some("off")) => objects.park = None,
        ("park", Some(value)) => {
            let time = seconds(value).ok_or_else(|| refuse("give 1 to 86400 seconds, or off"))?;
            objects.park = Some(time);
        }
        ("cache", Some(value)) => {
            let dir = PathBuf::from(value);
            if !dir.is_absolute() {
                return Err(refuse("give the path of a directory from the root on"));
            }
            objects.cache.get_or_insert_with(default).0 = dir;
        }
        ("cache_size", Some(value)) => {
            let bytes = scaled(value).filter(|bytes| *bytes > 0);
            objects.cache.get_or_insert_with(default).1 =
                bytes.ok_or_else(|| refuse("give bytes, such as 500M or 20G"))?;
        }
        ("track", None) => list.is_tracked = true,
        ("holder", Some("on")) => list.holder = Some(true),
        ("holder", Some("off")) => list.holder = Some(false),
        ("watchdog", Some(value)) => {
            let time = seconds(value);
            let time =
                time.ok_or_else(|| refuse("give 1 to 86400 seconds, more than the slowest call takes"))?;
            list.watchdog = Some(time);
        }
        ("log", Some(value)) => {
            list.level = value.parse().map_err(|_| refuse("give off, error, warn, info, debug or trace"))?;
        }
        ("metrics", Some(value)) => {
            let wanted = "give an address and a port, such as 127.0.0.1:9180";
            list.metrics = Some(value.parse().map_err(|_| refuse(wanted))?);
        }
        _ => {
            let wanted = KNOWN.split(", ").find(|known| known.split('=').next() == Some(name));
            return wanted.map_or(Ok(false), |wanted| Err(refuse(&format!("give {wanted}"))));
        }
    }
    Ok(true)
}

/// The form of a schedule of snapshots.
const SCHEDULE: &str = "give periods (frequently, hourly, daily, weekly, monthly) and how many snapshots to keep, such as \
                        snapshots=hourly:24,daily:7";

/// `schedule` with the period of `item`.
fn scheduled(item: &str, schedule: SnapshotSchedule) -> Option<SnapshotSchedule> {
    let (period, count) = item.split_once(':')?;
    let count = u32::try_from(digits(count)?).ok().filter(|count| *count > 0)?;
    Some(schedule.keep(SnapshotPeriod::named(period)?, count))
}

/// How often the store is scrubbed; none for off.
fn scrub_period(text: &str) -> Option<Option<SnapshotPeriod>> {
    use SnapshotPeriod::{Daily, Monthly, Weekly};
    match SnapshotPeriod::named(text) {
        Some(period) => matches!(period, Daily | Weekly | Monthly).then_some(Some(period)),
        None => (text == "off").then_some(None),
    }
}

/// None for no limit, which tmpfs calls 0.
fn limit(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

/// A number of bytes, in whole pages: a limit that is no multiple of a page is rounded up, as tmpfs does.
fn size(text: &str, memory: u64) -> Option<u64> {
    let bytes = match text.strip_suffix('%') {
        Some(percent) => share_of(memory, digits(percent).filter(|percent| *percent <= 100)?),
        None => scaled(text)?,
    };
    bytes.checked_next_multiple_of(PAGE)
}

/// `percent` of `memory` bytes, or the largest number if the product is larger.
fn share_of(memory: u64, percent: u64) -> u64 {
    let share = u128::from(memory) * u128::from(percent) / 100;
    u64::try_from(share).unwrap_or(u64::MAX) / PAGE * PAGE
}

/// A number with a power of 1024 after it, or without.
pub(crate) fn scaled(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return digits(text),
    };
    digits(&text[..text.len() - 1])?.checked_mul(1 << shift)
}

/// A number of [`SECONDS`], as a time.
fn seconds(text: &str) -> Option<Duration> {
    digits(text).filter(|seconds| SECONDS.contains(seconds)).map(Duration::from_secs)
}

/// Digits only: no sign, which Rust's own parser would take.
fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn octal(text: &str) -> Option<u32> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= MODE_MAX)
}

/// The number of a user or group. The largest one means "unchanged" to the kernel and belongs to nobody.
fn id(text: &str) -> Option<u32> {
    u32::try_from(digits(text)?).ok().filter(|id| *id != u32::MAX)
}

/// The memory that this process can have: the machine's, or that of a control group around it, or of its limits. In bytes.
fn memory_bytes() -> u64 {
    sluice_sync::memory::total_bytes().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_fuse::LockMode;

    const GIB: u64 = 1 << 30;

    fn ram(list: &str) -> Options {
        parse(list).expect(list).ram
    }

    fn refusal(list: &str) -> String {
        match parse(list) {
            Err(Failure::Usage(line)) => line,
            other => panic!("{list}: {:?}", other.map(drop)),
        }
    }

    #[test]
    fn locks_are_limited_and_their_deadlocks_found_unless_somebody_wants_otherwise() {
        let options = ram("");
        assert_eq!((options.lock_limit, options.deadlock_detection), (Some(DEFAULT_LOCKS), true));
        let options = ram("nr_locks=2K,nodeadlock");
        assert_eq!((options.lock_limit, options.deadlock_detection), (Some(2048), false));
        assert_eq!(ram("nr_locks=0").lock_limit, None);
        assert_eq!((ram("").owner_lock_limit, ram("nr_owner_locks=1k").owner_lock_limit), (None, Some(1024)));
        assert!(refusal("nr_locks=many").contains("0 for no limit"));
        assert!(refusal("nodeadlocks").contains("nodeadlock"));
    }

    #[test]
    fn half_of_the_memory_may_be_filled_by_default_with_any_number_of_files() {
        let options = ram("");
        let half = options.size_limit.expect("a limit");
        assert!(half.is_multiple_of(PAGE) && (memory_bytes() / 2 - half) < PAGE, "{half}");
        assert_eq!((options.inode_limit, options.root_mode), (None, 0o755));
        assert_eq!(ram("size=50%").size_limit, Some(half));
    }

    #[test]
    fn sizes_have_powers_of_1024_or_shares_of_the_memory() {
        let cases = [
            ("1", Some(PAGE)),
            ("4096", Some(PAGE)),
            ("4097", Some(2 * PAGE)),
            ("16k", Some(16 << 10)),
            ("3M", Some(3 << 20)),
            ("2g", Some(2 * GIB)),
            ("1T", Some(1 << 40)),
            ("25%", Some(GIB)),
            ("0", Some(0)),
            ("0%", Some(0)),
            ("100%", Some(4 * GIB)),
        ];
        for (text, bytes) in cases {
            assert_eq!(size(text, 4 * GIB), bytes, "{text}");
        }
        for bad in [
            "",
            "K",
            "%",
            "-1",
            "+1",
            "1.5G",
            "1KB",
            "1 G",
            "x",
            "99999999T",
            "18446744073709551615",
            "1é",
            "101%",
        ] {
            assert_eq!(size(bad, 4 * GIB), None, "{bad}");
        }
    }

    #[test]
    fn the_disk_limits_a_store_unless_a_size_is_given() {
        let size = |list: &str| parse_for_store(list).map(|parsed| parsed.ram.size_limit);
        assert_eq!(size("memory=64M").expect("valid"), None);
        assert_eq!(size("size=3M,ro").expect("valid"), Some(3 << 20));
        assert_eq!(size("size=0").expect("valid"), None);
        assert!(matches!(size("size=25%"), Err(Failure::Usage(line)) if line.contains("give bytes")));
    }

    #[test]
    fn zero_is_no_limit() {
        assert_eq!(ram("size=0").size_limit, None);
        assert_eq!(ram("nr_inodes=7,nr_inodes=0").inode_limit, None);
    }

    #[test]
    fn options_of_both_kinds_stand_in_one_list_and_later_ones_win() {
        let MountList { ram, mount, .. } =
            parse("size=1M,locks=sluice,uid=7,nr_inodes=2k,,ro,gid=9,mode=1777,uid=8").expect("valid");
        assert_eq!((ram.size_limit, ram.inode_limit), (Some(1 << 20), Some(2048)));
        assert_eq!((ram.root_mode, ram.root_uid, ram.root_gid), (0o1777, 8, 9));
        assert!(mount.read_only && mount.locks == LockMode::Sluice);
    }

    #[test]
    fn a_cache_on_disk_has_a_place_and_a_size_in_either_order() {
        let cache = |list: &str| parse(list).expect(list).objects.cache;
        let wanted = |dir: &str, bytes| Some((PathBuf::from(dir), bytes));
        assert_eq!(cache(""), None);
        assert_eq!(cache("cache=/var/cache/fs"), wanted("/var/cache/fs", DEFAULT_CACHE));
        assert_eq!(cache("cache_size=2G,cache=/a"), wanted("/a", 2 * GIB));
        assert!(refusal("cache_size=2G").contains("give cache=DIR"));
    }

    #[test]
    fn a_workspace_that_nobody_uses_stays_open_for_some_seconds_or_always() {
        let park = |list: &str| parse(list).expect(list).objects.park.map(|park| park.as_secs());
        assert_eq!([park(""), park("park=5"), park("park=off")], [Some(60), Some(5), None]);
        for wrong in ["park=0", "park=86401", "park=-1", "park=on"] {
            assert!(refusal(wrong).contains("give 1 to 86400 seconds, or off"), "{wrong}");
        }
    }

    #[test]
    fn options_of_the_server_stand_in_the_same_list() {
        let MountList { level, metrics, is_tracked, .. } =
            parse("ro,log=info,track,metrics=127.0.0.1:9180").expect("valid");
        assert_eq!((level, is_tracked), (LevelFilter::Info, true));
        assert_eq!(metrics, Some(SocketAddr::from(([127, 0, 0, 1], 9180))));
        let MountList { level, metrics, is_tracked, .. } = parse("ro").expect("valid");
        assert_eq!((level, metrics, is_tracked), (LevelFilter::Warn, None, false));
    }

    #[test]
    fn a_schedule_of_snapshots_is_a_list_within_the_list_and_a_later_one_wins() {
        let of = |list: &str| ram(list).snapshots;
        let hourly = SnapshotSchedule::default().keep(SnapshotPeriod::Hourly, 24);
        assert_eq!((of("ro"), of("snapshots=hourly:24")), (None, Some(hourly.clone())));
        let both = hourly.clone().keep(SnapshotPeriod::Daily, 7);
        assert_eq!(of("snapshots=hourly:24,daily:7,log=info"), Some(both));
        assert_eq!(of("snapshots=daily:9,snapshots=hourly:24"), Some(hourly));
        let scrub = |list: &str| ram(list).scrub;
        assert_eq!((scrub("ro"), scrub("scrub=weekly")), (None, Some(SnapshotPeriod::Weekly)));
        assert_eq!(scrub("scrub=daily,scrub=off"), None);
        assert!(refusal("scrub=hourly").contains("scrub=hourly: give daily, weekly, monthly or off"));
        assert!(refusal("snapshots=hourly:24,dayly:7").contains("mount option dayly:7: give periods"));
        assert!(refusal("daily:7").starts_with("unknown mount option daily:7"));
    }

    #[test]
    fn an_unknown_option_is_answered_with_those_of_both_kinds() {
        for unknown in ["turbo", "turbo=1"] {
            let line = refusal(unknown);
            assert!(line.contains("locks=kernel|sluice") && line.ends_with(KNOWN), "{line}");
        }
    }

    #[test]
    fn a_bad_value_is_answered_with_what_would_be_a_good_one() {
        let bad = [
            "size=x",
            "cache=somewhere",
            "cache_size=0",
            "key_file=",
            "passphrase_file=",
            "nr_inodes=-1",
            "mode=888",
            "mode=10000",
            "mode=+7",
            "mode=",
            "uid=root",
            "gid=4294967295",
            "log=loud",
            "metrics=here",
            "size",
            "track=1",
            "snapshots=hourly",
            "snapshots=hourly:0",
            "snapshots=yearly:1",
            "scrub",
            "scrub=",
            "scrub=yearly",
            "snapshots=hourly:-1",
            "snapshots",
        ];
        for option in bad {
            let line = refusal(option);
            assert!(
                line.starts_with(&format!("mount option {option}: give ")) && !line.contains(KNOWN),
                "{line}"
            );
        }
        assert!(!refusal("threads=0").contains(KNOWN));
    }
}
