//! INIT: what the kernel offers and what this crate takes.

use crate::abi::{self, InitFlags};
use crate::connection::{Connection, Negotiated};
use crate::reply::Reply;
use crate::transport::uring::PAYLOAD_MIN;
use crate::{CheckMode, Transport};
use sluice_vfs::Errno;
use zerocopy::FromZeros;

/// How many requests that nobody waits for (read-ahead, write-back) may be under way.
const MAX_BACKGROUND: u16 = 128;
/// From this minor version on the kernel knows `EXPIRE_ONLY`.
const EXPIRE_ONLY_MINOR: u32 = 38;
/// From this minor version on the kernel knows `INC_EPOCH` (Linux 6.16).
const EPOCH_MINOR: u32 = 44;
/// From how many on the kernel holds back.
const CONGESTION_THRESHOLD: u16 = 96;

/// The features that every mount takes if the kernel offers them:
/// - `PARALLEL_DIROPS`, `ASYNC_READ`, `BIG_WRITES`, `MAX_PAGES`: more and larger requests at once;
/// - `DO_READDIRPLUS`, `READDIRPLUS_AUTO`: lookups come along with a listing when they are wanted;
/// - `NO_OPEN_SUPPORT`, `NO_OPENDIR_SUPPORT`: opening without a message;
/// - `HANDLE_KILLPRIV_V2`: set-ID bits are cleared here, so that no GETXATTR precedes each write;
/// - `CACHE_SYMLINKS`, `EXPLICIT_INVAL_DATA`: the kernel keeps what it has until it is told otherwise;
/// - `POSIX_ACL` with `DONT_MASK`: the kernel checks ACLs, and the umask is applied here, where a default ACL
///   can replace it;
/// - `SETXATTR_EXT`: the layout of SETXATTR that says when to clear the set-group-ID bit;
/// - `ALLOW_IDMAP`: mounts that map users to others. It needs `default_permissions`; the kernel then tells the user only of
///   requests that make a file.
///
/// `WRITEBACK_CACHE` makes the kernel the owner of size and times: only on request. So is `EXPORT_SUPPORT`: with it a file handle
/// leads to its file although the kernel has forgotten that (`nodes`), and what the kernel then has of the file is a dentry
/// without a name, which it later takes for one that is stale; overlayfs opens its layers by handles. Never taken: `ATOMIC_O_TRUNC`, which
/// loses truncations together with messageless opens, and `ASYNC_DIO` (the kernel drops cached pages before an
/// asynchronous direct write and not after it: a reader that came between kept the old bytes for ever), and `DIRECT_IO_ALLOW_MMAP`: a
/// kernel that goes past its page cache, as one of several may have to, must not map the file shared.
const WANTED: InitFlags = InitFlags::PARALLEL_DIROPS
    .union(InitFlags::ASYNC_READ)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::NO_OPEN_SUPPORT)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::ALLOW_IDMAP)
    .union(InitFlags::INIT_EXT);

/// Further features of a mount that serves locks.
const LOCKS: InitFlags = InitFlags::POSIX_LOCKS.union(InitFlags::FLOCK_LOCKS);

impl Connection {
    pub(super) fn init(&self, arg: &abi::InitIn, reply: &mut Reply) -> Result<(), Errno> {
        if arg.major > abi::KERNEL_VERSION {
            // The kernel will send a second INIT for the version named here.
            reply.put(&abi::InitOut { major: abi::KERNEL_VERSION, ..abi::InitOut::new_zeroed() });
            return Ok(());
        }
        let offered = InitFlags::from_bits_retain(u64::from(arg.flags) | u64::from(arg.flags2) << 32);
        let too_old = arg.major < abi::KERNEL_VERSION || arg.minor < abi::KERNEL_MINOR_VERSION_MIN;
        if too_old || !offered.contains(InitFlags::SETXATTR_EXT) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut wanted = WANTED;
        wanted.set(LOCKS, self.serves_locks());
        // With the first the kernel would check permissions; without its checks it refuses the second.
        let by_kernel = self.options.checks == CheckMode::Kernel;
        wanted.set(InitFlags::POSIX_ACL | InitFlags::ALLOW_IDMAP, by_kernel);
        wanted.set(InitFlags::WRITEBACK_CACHE, self.options.writeback);
        wanted.set(InitFlags::EXPORT_SUPPORT, self.options.nfs_export);
        wanted.set(InitFlags::OVER_IO_URING, self.options.transport == Transport::Uring);
        wanted.set(InitFlags::HAS_RESEND, self.options.held);
        let flags = wanted & offered;
        let negotiated = Negotiated {
            no_open: flags.contains(InitFlags::NO_OPEN_SUPPORT),
            no_opendir: flags.contains(InitFlags::NO_OPENDIR_SUPPORT),
            writeback: flags.contains(InitFlags::WRITEBACK_CACHE),
            uring: flags.contains(InitFlags::OVER_IO_URING),
            expires_names: arg.minor >= EXPIRE_ONLY_MINOR,
            resends: flags.contains(InitFlags::HAS_RESEND) && arg.minor >= EPOCH_MINOR,
        };
        if self.negotiated.set(negotiated).is_err() {
            return Err(Errno::EIO);
        }
        let page = rustix::param::page_size() as u32;
        let pages = (self.options.max_write / page).max(1);
        // The payload of a ring's entry, in which xattrs and lists come back, is as long as so many pages at least.
        let pages_max = if negotiated.uring { pages.max(PAYLOAD_MIN / page) } else { pages };
        reply.put(&abi::InitOut {
            major: abi::KERNEL_VERSION,
            minor: abi::KERNEL_MINOR_VERSION.min(arg.minor),
            max_readahead: arg.max_readahead,
            flags: flags.bits() as u32,
            flags2: (flags.bits() >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: CONGESTION_THRESHOLD,
            max_write: pages * page,
            time_gran: 1,
            max_pages: pages_max as u16,
            ..abi::InitOut::new_zeroed()
        });
        Ok(())
    }
}
