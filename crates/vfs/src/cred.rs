//! Cred: on whose behalf a call is made.

use crate::ObserverId;
use bitflags::bitflags;
use sluice_sync::Arc;

bitflags! {
    /// The Linux capabilities that a file system looks at.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct Caps: u64 {
        /// Change owner and group at will.
        const CHOWN = 1 << 0;
        /// Bypass permission bits.
        const DAC_OVERRIDE = 1 << 1;
        /// Bypass permission bits for reading files and searching directories.
        const DAC_READ_SEARCH = 1 << 2;
        /// Do what otherwise only the owner may.
        const FOWNER = 1 << 3;
        /// Keep set-ID bits where they would be cleared.
        const FSETID = 1 << 4;
        /// Set and clear the flags that keep a file as it is.
        const LINUX_IMMUTABLE = 1 << 9;
        /// Mount, and use `trusted.` extended attributes.
        const SYS_ADMIN = 1 << 21;
        /// Create device nodes.
        const MKNOD = 1 << 27;
        /// Take leases on files of others.
        const LEASE = 1 << 28;
        /// Set file capabilities (`security.capability`).
        const SETFCAP = 1 << 31;
    }
}

/// User, groups and capabilities of a caller. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    /// User for permission checks and new files (Linux: fsuid).
    pub uid: u32,
    /// Group likewise (Linux: fsgid).
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
    /// Capabilities in effect.
    pub caps: Caps,
    /// The observer on whose behalf the call is made: it is not told of the change that it made itself.
    pub via: Option<ObserverId>,
    /// The process that makes the call, as a lease's holder is told of it; 0 if it is none. A [`Process`](crate::Process) puts
    /// its own.
    pub pid: i32,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Cred {
        Cred::with_groups(0, 0, &[])
    }

    /// User `uid` in group `gid` alone. User 0 has every capability, others have none.
    pub fn user(uid: u32, gid: u32) -> Cred {
        Cred::with_groups(uid, gid, &[])
    }

    /// User `uid` in group `gid` and the supplementary `groups`.
    pub fn with_groups(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        let caps = if uid == 0 { Caps::all() } else { Caps::empty() };
        Cred { uid, gid, groups: groups.into(), caps, via: None, pid: 0 }
    }

    /// A caller whose permissions somebody else (such as the kernel above a FUSE mount) has checked already:
    /// new files belong to `uid` and `gid`, nothing is refused, set-ID bits are kept as they are asked for.
    pub fn checked_elsewhere(uid: u32, gid: u32, via: Option<ObserverId>) -> Cred {
        Cred { uid, gid, groups: Arc::from([]), caps: Caps::all(), via, pid: 0 }
    }

    /// True when `gid` is one of the caller's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// True when every capability in `caps` is in effect.
    pub fn has(&self, caps: Caps) -> bool {
        self.caps.contains(caps)
    }
}
