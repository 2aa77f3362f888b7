//! Reasons: why a conflict that is left has to be, or is worth it.

use super::run::LineName;

/// One kind of conflict that is known and accepted.
struct Known {
    /// The calls of which one at least takes part; empty: any.
    calls: &'static [&'static str],
    /// The type that the line belongs to, or the beginning of the place in the source.
    owner: &'static str,
    /// The beginning of the field's name.
    field: &'static str,
    /// The reason, for a person.
    why: &'static str,
}

/// Accepted conflicts. Any other conflict is a finding.
const KNOWN: &[Known] = &[
    Known {
        calls: &["mount", "umount", "bind"],
        owner: "MountTable",
        field: "",
        why: "calls that change the tree of mounts exclude each other",
    },
    Known { calls: &["bind"], owner: "Superblock", field: "", why: "mounts count the file system they show" },
    Known {
        calls: &["mount", "bind"],
        owner: "Processes",
        field: "",
        why: "a file system that is mounted knows the tree whose processes may have its files open",
    },
    Known {
        calls: &["lseek", "read", "write", "readdir"],
        owner: "OpenFile",
        field: "cursor",
        why: "both move the position of one open file; to the same place, but one must have done it",
    },
    Known {
        calls: &["dup", "close"],
        owner: "OpenFile",
        field: "descriptors",
        why: "whose close is the last must be known at once: locks go and an unmount succeeds",
    },
    Known {
        calls: &["close"],
        owner: "OpenFile",
        field: "ended",
        why: "the last close says so to calls that are given a lock meanwhile",
    },
    Known {
        calls: &["link", "unlink", "rename"],
        owner: "Inode",
        field: "links",
        why: "the names of one file are counted in one place; on the line of its mode, to keep files small",
    },
    Known {
        calls: &["chmod"],
        owner: "Inode",
        field: "attr",
        why: "the mode is written: the same by both, or beside the count of links, or read by a new file that inherits it",
    },
    Known {
        calls: &["open", "truncate", "ftruncate"],
        owner: "Inode",
        field: "data",
        why: "the size of one file is set: both leave the same, or one looks at the size where the other leaves it above",
    },
    Known {
        calls: &["write", "pwrite"],
        owner: "Inode",
        field: "data",
        why: "a write past its end raises the size of the file, at which the other call looks",
    },
    Known {
        calls: &["read", "write", "pread", "pwrite"],
        owner: "SeqBytes",
        field: "",
        why: "two blocks of one page: it is changed as a whole",
    },
    Known {
        calls: &["ofd-lock", "flock"],
        owner: "OpenFile",
        field: "may_own",
        why: "the first lock of an open file says that its last close must look for locks",
    },
    Known {
        calls: &["posix-lock"],
        owner: "vfs/src/process/lock_notes.rs",
        field: "",
        why: "the first lock of a file by a process says that a close must look for locks",
    },
    Known {
        calls: &["creat", "mkdir", "symlink", "link", "rename"],
        owner: "sync/src/tables/chains/mod.rs",
        field: "",
        why: "a directory gets the table of its names with the first one, on the line that walks across it read",
    },
    Known {
        calls: &["rename"],
        owner: "sync/src/tables/chains",
        field: "",
        why: "a name that moves within a directory, or gives way, changes buckets that a call which asks for the sum adds up",
    },
    Known {
        calls: &["rename"],
        owner: "sync/src/tables/name_table",
        field: "",
        why: "a name that gives way to another says so in its entry, which a lookup of it reads",
    },
    Known {
        calls: &["rename"],
        owner: "Shared",
        field: "rename_lock",
        why: "two directories get other parents: only one at a time, lest one end up below itself",
    },
    Known {
        calls: &[],
        owner: "sync/src/epoch/refcache",
        field: "",
        why: "two objects share a place in a CPU's cache of references, by chance of their addresses",
    },
    Known {
        calls: &["open", "truncate", "ftruncate", "write", "pwrite"],
        owner: "Stored",
        field: "",
        why: "over a store: two calls put down the size of one file, or what of it the next push is to collect",
    },
    Known {
        calls: &["chmod", "link", "unlink", "rename"],
        owner: "Stored",
        field: "",
        why: "over a store: two calls change what one record of an inode has, whose versions are counted",
    },
    Known {
        calls: &["unlink", "rmdir", "rename"],
        owner: "Pending",
        field: "listed",
        why: "over a store: two files whose last names go are taken off the list of the CPU where they were changed first",
    },
    Known {
        calls: &["posix-lock", "ofd-lock", "flock", "close"],
        owner: "FileState",
        field: "",
        why: "the locks of one file are one structure",
    },
];

/// Why `line` is in conflict between the calls of `pair`, if that is accepted.
pub(super) fn reason(pair: [&str; 2], line: &LineName) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| {
        let calls = known.calls.is_empty() || pair.iter().any(|call| known.calls.contains(call));
        let owned = known.owner == line.owner || line.line.starts_with(known.owner);
        calls && owned && line.field.starts_with(known.field)
    });
    known.map(|known| known.why)
}
