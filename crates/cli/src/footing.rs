//! Footing: what a file system stands on, and which mount options have an effect there. Others are refused: an option without an
//! effect is a promise that nobody keeps.

use crate::bucket::Bucket;
use sluice_console::failure::{Failure, Result};
use sluice_fuse::{LockMode, MountOptions, Transport};
use std::path::Path;

/// The base of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Footing {
    /// Memory.
    Memory,
    /// A store in a directory.
    Directory,
    /// A store in an object store.
    Objects,
    /// A store, in a directory or not, which the nodes of a cluster share.
    Cluster { in_objects: bool },
}

/// Options, with a value or for any value; where they have an effect; what is said elsewhere.
type OptionRule = (&'static [&'static str], fn(Footing, &MountOptions) -> bool, &'static str);

const RULES: [OptionRule; 14] = [
    (
        &["memory", "volatile", "cache", "cache_size", "takeover"],
        |place, _| place != Footing::Memory,
        "only with a store; the size in memory is size=N",
    ),
    (
        &["mode", "uid", "gid"],
        |place, _| place == Footing::Memory,
        "only in memory: the root directory of a store keeps what chmod and chown gave it",
    ),
    (
        &["cache", "cache_size", "takeover"],
        |place, _| matches!(place, Footing::Objects | Footing::Cluster { in_objects: true }),
        "only with a store in an object store, whose address is s3://... or file://...",
    ),
    (
        &["takeover"],
        |place, _| place == Footing::Objects,
        "not with --cluster, whose nodes take the store from each other by themselves",
    ),
    (
        &["park"],
        |place, _| place == Footing::Cluster { in_objects: true },
        "only with --cluster and a store in an object store, which can have workspaces",
    ),
    (
        &["volatile"],
        |place, _| place == Footing::Directory,
        "only with a store in a directory, and not with --cluster, where another node goes on",
    ),
    (
        &["key_file", "passphrase_file"],
        |place, _| place != Footing::Memory,
        "only with a store: a file system in memory is not encrypted",
    ),
    (&["holder=on", "watchdog"], can_be_held, HOLDABLE),
    (
        &["snapshots"],
        |_, mount| !mount.read_only,
        "not with ro: snapshots that are taken and deleted are changes; leave one of the two out",
    ),
    (
        &["scrub"],
        |place, mount| place != Footing::Memory && !mount.read_only,
        "only with a store, and not with ro: the place of a scrub is noted in the store",
    ),
    (
        &["nr_locks", "nr_owner_locks", "nodeadlock"],
        |place, mount| mount.locks == LockMode::Sluice || matches!(place, Footing::Cluster { .. }),
        "only with locks=sluice; the kernel limits its own locks by nothing",
    ),
    (
        &["lockfile"],
        |place, mount| mount.locks == LockMode::Sluice || matches!(place, Footing::Cluster { .. }),
        "the kernel serves the locks: add locks=sluice",
    ),
    (
        &["checks=sluice"],
        |_, mount| mount.allow_other != Some(true),
        "others could use names that the kernel knows unchecked: leave out allow_other, or checks=sluice",
    ),
    (
        &[
            "locks=kernel",
            "lockfile",
            "checks=sluice",
            "writeback",
            "transport=uring",
            "max_write",
            "strictatime",
            "norelatime",
            "nfs_export",
            "track",
        ],
        |place, _| !matches!(place, Footing::Cluster { .. }),
        "not with --cluster, where the owner of the cluster serves all nodes alike: leave it out",
    ),
];

/// Where a holder keeps a mount.
pub(crate) const HOLDABLE: &str = "only with a store (what is in memory ends with its server), not with --cluster, and not with locks=sluice, \
                                writeback or transport=uring, whose state the server has";

/// Whether a holder can keep the mount, as far as the mount's options say.
pub(crate) fn can_be_held(place: Footing, mount: &MountOptions) -> bool {
    matches!(place, Footing::Directory | Footing::Objects)
        && mount.locks == LockMode::Kernel
        && !mount.writeback
        && mount.transport != Transport::Uring
}

impl Footing {
    /// Where a mount of `store` stands, or of a file system in memory; `in_cluster`: as a node of one.
    pub(crate) fn of(store: Option<&Path>, in_cluster: bool) -> Footing {
        match store.map(Bucket::is_url) {
            Some(in_objects) if in_cluster => Footing::Cluster { in_objects },
            Some(true) => Footing::Objects,
            Some(false) => Footing::Directory,
            None => Footing::Memory,
        }
    }

    /// # Errors
    /// The first option of `list` that has no effect here, where `mount` is what the list says of the mount.
    pub(crate) fn check(self, list: &str, mount: &MountOptions) -> Result<()> {
        for option in list.split(',') {
            let name = option.split('=').next().unwrap_or_default();
            let is_meant = |rule: &&OptionRule| rule.0.contains(&name) || rule.0.contains(&option);
            if let Some((_, _, why)) = RULES.iter().filter(is_meant).find(|rule| !rule.1(self, mount)) {
                return Err(Failure::Usage(format!("mount option {option}: {why}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::option_list;

    const PLACES: [Footing; 5] = [
        Footing::Memory,
        Footing::Directory,
        Footing::Objects,
        Footing::Cluster { in_objects: false },
        Footing::Cluster { in_objects: true },
    ];

    /// Each option with a value that it may have, and in how many of `PLACES` it has an effect: m, d, o, and c, C of a cluster.
    const EFFECTS: &[(&str, &str)] = &[
        ("locks=kernel", "mdo"),
        ("locks=sluice", "mdocC"),
        ("lockfile=locks,locks=sluice", "mdo"),
        ("checks=kernel", "mdocC"),
        ("checks=sluice", "mdo"),
        ("allow_other", "mdocC"),
        ("noallow_other", "mdocC"),
        ("ro", "mdocC"),
        ("rw", "mdocC"),
        ("noatime", "mdocC"),
        ("relatime", "mdocC"),
        ("strictatime", "mdo"),
        ("nodiratime", "mdocC"),
        ("diratime", "mdocC"),
        ("sync", "mdocC"),
        ("async", "mdocC"),
        ("nosuid", "mdocC"),
        ("suid", "mdocC"),
        ("nodev", "mdocC"),
        ("dev", "mdocC"),
        ("noexec", "mdocC"),
        ("exec", "mdocC"),
        ("writeback", "mdo"),
        ("nowriteback", "mdocC"),
        ("transport=auto", "mdocC"),
        ("transport=uring", "mdo"),
        ("transport=classic", "mdocC"),
        ("threads=3", "mdocC"),
        ("max_write=8192", "mdo"),
        ("nfs_export", "mdo"),
        ("fsname=name", "mdocC"),
        ("size=1M", "mdocC"),
        ("nr_inodes=100", "mdocC"),
        ("mode=700", "m"),
        ("uid=7", "m"),
        ("gid=7", "m"),
        ("nr_locks=7", "cC"),
        ("nr_owner_locks=7", "cC"),
        ("nodeadlock", "cC"),
        ("memory=64M", "docC"),
        ("volatile", "d"),
        ("key_file=/root/key", "docC"),
        ("passphrase_file=/root/passphrase", "docC"),
        ("cache=/var/cache/fs", "oC"),
        ("cache_size=1G,cache=/var/cache/fs", "oC"),
        ("takeover", "o"),
        ("park=30", "C"),
        ("park=off", "C"),
        ("holder=on", "do"),
        ("holder=off", "mdocC"),
        ("watchdog=30", "do"),
        ("track", "mdo"),
        ("snapshots=hourly:24,daily:7", "mdocC"),
        ("scrub=weekly", "docC"),
        ("log=info", "mdocC"),
        ("metrics=127.0.0.1:9180", "mdocC"),
    ];

    #[test]
    fn each_option_has_an_effect_in_each_place_or_is_refused_there() {
        for (option, where_used) in EFFECTS {
            for (place, letter) in PLACES.into_iter().zip("mdocC".chars()) {
                let taken = option_list(&[(*option).to_owned()], place);
                assert_eq!(taken.is_ok(), where_used.contains(letter), "{option} {place:?}: {taken:?}");
                if let Err(refused) = taken {
                    let Failure::Usage(line) = refused else { panic!("{option}: {refused:?}") };
                    let name = option.split(',').next().unwrap_or_default();
                    assert!(line.starts_with(&format!("mount option {name}: ")), "{line}");
                }
            }
        }
        // Whichever is said first.
        for list in ["snapshots=hourly:24,ro", "ro,snapshots=hourly:24"] {
            let refused = option_list(&[list.to_owned()], Footing::Memory);
            let Err(Failure::Usage(line)) = refused else { panic!("{list}: {refused:?}") };
            assert!(line.starts_with("mount option snapshots=hourly:24: not with ro"), "{line}");
        }
        for list in ["lockfile=locks", "checks=sluice,allow_other", "allow_other,checks=sluice"] {
            let refused = option_list(&[list.to_owned()], Footing::Memory);
            assert!(matches!(refused, Err(Failure::Usage(_))), "{list}: {refused:?}");
        }
        // With locks of ours they are limited everywhere.
        for place in [Footing::Memory, Footing::Directory, Footing::Objects] {
            let options = "locks=sluice,nr_locks=7,nr_owner_locks=7,nodeadlock".to_owned();
            assert!(option_list(&[options], place).is_ok());
        }
    }

    #[test]
    fn each_option_that_there_is_stands_in_the_table_of_effects_and_in_the_documentation() {
        const PAGE: &str = include_str!("../../../docs/fuse.md");
        let Err(Failure::Usage(known)) = option_list(&["turbo".to_owned()], Footing::Memory) else {
            panic!("there is no such option")
        };
        let (_, known) = known.split_once("known are ").expect("a list");
        for option in known.split(", ") {
            let (name, values) = option.split_once('=').unwrap_or((option, ""));
            let values = if values.starts_with(char::is_lowercase) { values } else { "" };
            for value in values.split('|') {
                let start = format!("{name}={value}");
                let is_there = EFFECTS.iter().any(|(one, _)| *one == name || one.starts_with(&start));
                assert!(is_there, "{option}: {value}");
            }
            assert!(PAGE.contains(&format!("`{name}")), "docs/fuse.md has no {name}");
        }
    }
}
