//! Ahead: names that a guest's kernel drops before they are removed, because their neighbours are.
//!
//! # Theory
//! A removal waits until each kernel that knows the name has been told. A tree is removed name by name, and one notice for each
//! would be a round trip for each. So a notice of a removal has more of the same directory's names with it, in the order in which
//! programs list them: the kernel is to look them up again before it believes in them (`EXPIRE_ONLY`), and in their attributes.
//! Nothing that is open or mounted there notices. When their turn comes there is nothing to tell.
//!
//! *How many.* None with the first removal, then one, three, seven, up to [`AHEAD_MAX`]; and from the start again when the kernel
//! asks for one of them, which the notice then has cost a round trip. So a kernel that works in a directory of which others now
//! and then remove something loses about as many names as are removed.
//!
//! *Exact.* Whether a kernel has dropped something is noted with the node (`nodes`), while the guest is *quiet*: none
//! of its requests that [`hands_out`] names or attributes is being served, so that no answer is made from what was
//! there before, and all notices have been taken in. While it is not quiet, it gets all notices.
//!
//! # Ordering
//! A request is counted, then looks at the tree; a change is made, then the count is looked at. Between both is a SeqCst fence: the
//! request sees the change, or the changer sees the request.

use crate::lock_class::AHEAD;
use sluice_fuse::internal::Connection;
use sluice_fuse::internal::abi::flags::{EXPIRE_ONLY, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE};
use sluice_fuse::opcode;
use sluice_sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::FileType;

/// The most names that one notice has besides that of which it tells.
const AHEAD_MAX: u32 = 64;

/// The entries that a guest's kernel has dropped ahead.
pub(crate) struct Ahead {
    /// How many names come with the next notice. *atomic (stands alone: a guess)*
    count: AtomicU32,
    /// The directory of the last ones, and the position of the last. *protected by its mutex*, a leaf
    last: Mutex<(u64, u64)>,
}

impl Default for Ahead {
    fn default() -> Self {
        Ahead { count: AtomicU32::new(0), last: Mutex::with_class(&AHEAD, (0, 0)) }
    }
}

/// How many requests of a guest are being served, and notices are on the way to its kernel.
#[derive(Clone, Default)]
pub(crate) struct Unsettled(Arc<AtomicUsize>);

/// A request or notice that [`Unsettled`] counts.
pub(crate) struct Settling(Unsettled);

/// Whether the answer to such a request tells of names, attributes or listings, or the kernel moves its own names by it.
pub(super) fn hands_out(code: u32) -> bool {
    matches!(
        code,
        opcode::LOOKUP
            | opcode::GETATTR
            | opcode::SETATTR
            | opcode::STATX
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::READDIR
            | opcode::READDIRPLUS
    )
}

impl Unsettled {
    /// Counts a request or notice until the returned value is dropped.
    pub(crate) fn count(&self) -> Settling {
        // SeqCst, and the fence: see Ordering.
        self.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Settling(self.clone())
    }

    /// Whether there is one alone, which the caller has counted.
    pub(crate) fn is_one(&self) -> bool {
        // SeqCst, and the fence: see Ordering.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst) == 1
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ahead {
    /// How many names to take now.
    fn next(&self) -> usize {
        // Relaxed: see the field.
        let count = self.count.load(Ordering::Relaxed);
        self.count.store((2 * count + 1).min(AHEAD_MAX), Ordering::Relaxed);
        count as usize
    }

    /// The kernel has asked for a dropped entry.
    pub(super) fn missed(&self) {
        // Relaxed: see the field.
        self.count.store(0, Ordering::Relaxed);
    }

    /// Adds to `attributes` the notices for names of directory `dir` that the kernel is to drop ahead, and returns those for the
    /// names themselves. `is_quiet`: see [`Nodes::drop_ahead`](sluice_fuse::internal::Nodes::drop_ahead).
    pub(super) fn drop_names(
        &self,
        connection: &Connection,
        dir: u64,
        is_quiet: impl Fn() -> bool,
        attributes: &mut Vec<u8>,
    ) -> Vec<u8> {
        let mut names = Vec::new();
        let nodes = &connection.nodes;
        // A kernel that is not quiet drops nothing now: the count and the position wait for it.
        if !connection.expires_names() || !is_quiet() {
            return names;
        }
        let (count, last) = (self.next(), *self.last.lock());
        let Some(inode) = nodes.get_known(nodes.nodeid(dir)).filter(|_| count > 0) else {
            return names;
        };
        let mut position = if last.0 == dir { last.1 } else { 0 };
        let mut found = Vec::with_capacity(count);
        let mut is_full = false;
        let listed = inode.read_dir(position, false, &mut |entry| {
            is_full = found.len() == count;
            if is_full {
                return false;
            }
            position = entry.position;
            // Entries below a directory would need new lookups, too.
            if entry.file_type() != FileType::Directory {
                found.push((entry.name.to_vec(), entry.ino()));
            }
            true
        });
        if listed.is_err() {
            return names;
        }
        // At the end of the directory the next notice starts again: some names may have been passed over.
        *self.last.lock() = (dir, if is_full { position } else { 0 });
        for (name, ino) in found {
            let has_one_name =
                nodes.get_known(nodes.nodeid(ino)).is_some_and(|inode| inode.stat().nlink == 1);
            let number = nodes.name(dir, &name);
            if has_one_name && nodes.drop_ahead(ino, number, &is_quiet) {
                attributes.extend(connection.inode_message(ino, -1, 0).notification(NOTIFY_INVAL_INODE));
                names.extend(
                    connection.entry_message(dir, &name, EXPIRE_ONLY).notification(NOTIFY_INVAL_ENTRY),
                );
            }
        }
        names
    }
}
