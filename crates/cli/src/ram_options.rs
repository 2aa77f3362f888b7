//! RAM options: what may be chosen about a file system in memory, in the same `-o` list as the options of its mount.
//!
//! # Theory
//! The names and their meaning are those of the kernel's tmpfs, so that a line of `/etc/fstab` can be taken over:
//! by default half of the memory may be filled that the process can have and no other file system of it was promised, because a
//! file system that may fill all of it takes the machine down with it. The list is taken apart here; what is not ours goes to [`MountOptions`].

use sluice_console::failure::{Failure, Result};
use sluice_fuse::MountOptions;
use sluice_store::DiskCache;
use sluice_vfs::{Options, Superblock};
use std::path::PathBuf;

/// The list of known mount options, shown after an unknown option.
const KNOWN: &str = "size=N[K|M|G|T|%], nr_inodes=N[K|M|G|T], mode=OCTAL, uid=N, gid=N, \
                     nr_locks=N[K|M|G|T], nr_owner_locks=N[K|M|G|T], nodeadlock; of a store: memory=N[K|M|G|T|%], \
                     volatile; of one in an object store: cache=DIR, cache_size=N[K|M|G|T], takeover; track, log=LEVEL, metrics=ADDRESS:PORT";
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

/// Parses the options of a file system in a store or in memory.
///
/// # Errors
/// Errors of [`parse`].
pub(crate) fn parse_for(is_store: bool, list: &str) -> Result<(Options, MountOptions)> {
    if is_store { parse_for_store(list) } else { parse(list) }
}

/// Parses the options of a file system in a store, which its disk limits.
///
/// # Errors
/// Errors of [`parse`].
pub(crate) fn parse_for_store(list: &str) -> Result<(Options, MountOptions)> {
    let (options, mount) = parse(list)?;
    let sizes = || list.split(',').filter_map(|option| option.strip_prefix("size="));
    if let Some(share) = sizes().find(|size| size.ends_with('%')) {
        let text =
            format!("mount option size={share}: a share of the memory; for a store give bytes, such as 20G");
        return Err(Failure::Usage(text));
    }
    let size_limit = options.size_limit.filter(|_| sizes().next().is_some());
    Ok((Options { size_limit, ..options }, mount))
}

/// The options of the file system and those of its mount that `list` gives, separated by commas; later ones win.
///
/// # Errors
/// The first option that is unknown or has a bad value: one line that says what would be accepted.
fn parse(list: &str) -> Result<(Options, MountOptions)> {
    let memory = memory_bytes();
    let mut ram = Options {
        size_limit: limit(share_of(memory.saturating_sub(Superblock::promised_bytes()), DEFAULT_PERCENT)),
        lock_limit: Some(DEFAULT_LOCKS),
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
        ..Options::default()
    };
    let mut mount = MountOptions::default();
    for option in list.split(',') {
        if apply(&mut ram, option, memory)? {
            continue;
        }
        mount.apply(option).map_err(|error| {
            let more = if error.is_unknown() { format!(", {KNOWN}") } else { String::new() };
            Failure::Usage(format!("{error}{more}"))
        })?;
    }
    if ram.store.disk_cache.as_ref().is_some_and(|cache| cache.dir.as_os_str().is_empty()) {
        return Err(Failure::Usage("mount option cache_size: give cache=DIR, too".into()));
    }
    Ok((ram, mount))
}

/// Applies `option` if it is one of the file system in memory, and says whether it is.
fn apply(ram: &mut Options, option: &str, memory: u64) -> Result<bool> {
    if option == "nodeadlock" {
        ram.deadlock_detection = false;
        return Ok(true);
    }
    if option == "volatile" {
        ram.store.volatile = true;
        return Ok(true);
    }
    if option == "takeover" {
        ram.store.takeover = true;
        return Ok(true);
    }
    let Some((name, value)) = option.split_once('=') else { return Ok(false) };
    let refuse = |wanted: &str| Failure::Usage(format!("mount option {option}: {wanted}"));
    let count = || {
        let count =
            scaled(value).ok_or_else(|| refuse("give a number, such as 100000 or 1M; 0 for no limit"));
        count.map(limit)
    };
    let bytes = || {
        let wanted = "give bytes, such as 500M or 2G, or a share of the memory up to 100%, such as 25%";
        size(value, memory).ok_or_else(|| refuse(wanted))
    };
    // Both options, in whichever order.
    let cache = |ram: &mut Options, set: &dyn Fn(&mut DiskCache)| {
        let default = || DiskCache { dir: PathBuf::new(), bytes: DEFAULT_CACHE };
        set(ram.store.disk_cache.get_or_insert_with(default));
    };
    match name {
        "cache" => {
            let dir = PathBuf::from(value);
            if !dir.is_absolute() {
                return Err(refuse("give the path of a directory from the root on"));
            }
            cache(ram, &|cache| cache.dir.clone_from(&dir));
        }
        "cache_size" => {
            let bytes = scaled(value).filter(|bytes| *bytes > 0);
            let bytes = bytes.ok_or_else(|| refuse("give bytes, such as 500M or 20G"))?;
            cache(ram, &|cache| cache.bytes = bytes);
        }
        "size" => ram.size_limit = limit(bytes()?),
        "memory" => ram.memory_limit = Some(bytes()?).filter(|bytes| *bytes != 0),
        "nr_inodes" => ram.inode_limit = count()?,
        "nr_locks" => ram.lock_limit = count()?,
        "nr_owner_locks" => ram.owner_lock_limit = count()?,
        "mode" => {
            ram.root_mode = octal(value).ok_or_else(|| refuse("give octal digits, such as 755 or 1777"))?;
        }
        "uid" => ram.root_uid = id(value).ok_or_else(|| refuse("give the number of a user"))?,
        "gid" => ram.root_gid = id(value).ok_or_else(|| refuse("give the number of a group"))?,
        _ => return Ok(false),
    }
    Ok(true)
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
fn scaled(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()?.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return digits(text),
    };
    digits(&text[..text.len() - 1])?.checked_mul(1 << shift)
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
        parse(list).expect(list).0
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
        let size = |list: &str| parse_for_store(list).map(|(options, _)| options.size_limit);
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
        let (ram, mount) =
            parse("size=1M,locks=sluice,uid=7,nr_inodes=2k,,ro,gid=9,mode=1777,uid=8").expect("valid");
        assert_eq!((ram.size_limit, ram.inode_limit), (Some(1 << 20), Some(2048)));
        assert_eq!((ram.root_mode, ram.root_uid, ram.root_gid), (0o1777, 8, 9));
        assert!(mount.read_only && mount.locks == LockMode::Sluice);
    }

    #[test]
    fn a_cache_on_disk_has_a_place_and_a_size_in_either_order() {
        let cache = |dir: &str, bytes| Some(DiskCache { dir: dir.into(), bytes });
        assert_eq!(ram("").store.disk_cache, None);
        assert_eq!(ram("cache=/var/cache/fs").store.disk_cache, cache("/var/cache/fs", DEFAULT_CACHE));
        assert_eq!(ram("cache_size=2G,cache=/a").store.disk_cache, cache("/a", 2 * GIB));
        assert!(refusal("cache_size=2G").contains("give cache=DIR"));
    }

    #[test]
    fn an_unknown_option_is_answered_with_those_of_both_kinds() {
        for unknown in ["turbo", "turbo=1", "size", "mode"] {
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
            "nr_inodes=-1",
            "mode=888",
            "mode=10000",
            "mode=+7",
            "mode=",
            "uid=root",
            "gid=4294967295",
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
