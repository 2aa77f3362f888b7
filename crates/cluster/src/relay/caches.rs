//! Caches: what a kernel is told to drop, all of it when its server changes, and what of that must wait for requests under way.

use super::announcer::Announcer;
use super::ledger::pages_of;
use super::notices::{inval_inode, inval_inode_arg, split};
use super::{Shared, State};
use crate::lock_class::DROPPING;
use sluice_fuse::internal::abi::{InHeader, NotifyInvalInodeOut, ROOT_ID};
use sluice_fuse::opcode;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex};
use sluice_vfs::FILE_SIZE_MAX;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// How long the kernel may take to drop what it has cached when the server changes.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
/// Nodes that one announcement tells of then, at first.
const DROP_BATCH: usize = 128;
/// The first delay before a search for the requests that block a notice.
const LOOK_AFTER: Duration = Duration::from_millis(5);

/// By node, the pages that requests under way are about: offsets and lengths in bytes.
pub(super) type Busy = BTreeMap<u64, Vec<(u64, u64)>>;

impl Shared {
    /// Has the kernel drop names, attributes and pages, but for pages that requests under way are about.
    pub(super) fn drop_caches(&self) {
        self.announcer.drop_names();
        let nodes = self.ledger.lock().nodes().into_iter().chain([ROOT_ID]).collect();
        if !drop_nodes(&self.announcer, nodes, || self.busy(|_| true)) {
            log::warn!("the kernel has not dropped all that it had cached within {DROP_PATIENCE:?}");
        }
        // The request already carries the written bytes, but the rest of such a page is old: the page is dropped when the
        // write is answered.
        for (nodeid, ranges) in self.busy(|opcode| opcode == opcode::WRITE) {
            for (offset, len) in ranges {
                let message = inval_inode(nodeid, offset.cast_signed(), len.cast_signed());
                self.announcer.announce(&message, Box::new(|| {}));
            }
        }
    }

    /// The pages that requests of some kind are about.
    pub(super) fn busy(&self, of: impl Fn(u32) -> bool) -> Busy {
        self.state.lock().busy(of)
    }
}

impl State {
    /// The pages that requests of some kind are about.
    pub(super) fn busy(&self, of: impl Fn(u32) -> bool) -> Busy {
        let mut busy = Busy::new();
        for request in self.in_flight.values().filter(|request| !request.is_behind) {
            let Ok((header, _)) = InHeader::read_from_prefix(&request.message) else { continue };
            if let Some((nodeid, offset, len)) =
                pages_of(&header, &request.message).filter(|_| of(header.opcode))
            {
                busy.entry(nodeid).or_default().push((offset, len));
            }
        }
        busy
    }
}

/// Has the kernel drop pages and attributes of `nodes`, but for those that are `busy`: they are locked. False if it has not within
/// [`DROP_PATIENCE`].
///
/// A request that was read since, or is not read yet, may keep pages locked as well. The announcement that waits for
/// them keeps those behind it waiting. So the remaining nodes are announced again, one by one, without the parts that
/// are busy by then.
fn drop_nodes(announcer: &Announcer, nodes: BTreeSet<u64>, busy: impl Fn() -> Busy) -> bool {
    let left = Arc::new((Mutex::with_class(&DROPPING, nodes), Condvar::new()));
    let tell = |nodes: Vec<u64>, messages: Vec<u8>| {
        let left = left.clone();
        let done = move || {
            let mut still = left.0.lock();
            nodes.iter().for_each(|nodeid| _ = still.remove(nodeid));
            drop(still);
            left.1.notify_all();
        };
        announcer.announce_wholly(&messages, Box::new(done));
    };
    let end = Instant::now() + DROP_PATIENCE;
    let (mut at_once, mut look_after) = (DROP_BATCH, LOOK_AFTER);
    loop {
        let nodes = left.0.lock().clone();
        let mut busy = busy();
        let (moving, still): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|nodeid| busy.contains_key(nodeid));
        for batch in still.chunks(at_once) {
            tell(batch.to_vec(), batch.iter().flat_map(|&nodeid| inval_inode(nodeid, 0, 0)).collect());
        }
        for nodeid in moving {
            tell(vec![nodeid], inval_around(nodeid, busy.remove(&nodeid).unwrap_or_default()));
        }
        let look = (Instant::now() + look_after).min(end);
        let mut left_now = left.0.lock();
        while !left_now.is_empty() && Instant::now() < look {
            left_now = left.1.wait_timeout(left_now, look.saturating_duration_since(Instant::now())).0;
        }
        if left_now.is_empty() || Instant::now() >= end {
            return left_now.is_empty();
        }
        (at_once, look_after) = (1, look_after * 2);
    }
}

/// The message that drops the attributes of a node and its pages, except for pages with a byte in these ranges.
fn inval_around(nodeid: u64, mut ranges: Vec<(u64, u64)>) -> Vec<u8> {
    let page = rustix::param::page_size() as u64;
    ranges.sort_unstable();
    let mut messages = inval_inode(nodeid, -1, 0);
    let mut from = 0;
    for (offset, len) in ranges {
        let start = offset - offset % page;
        if start > from {
            messages.extend(inval_inode(nodeid, from.cast_signed(), (start - from).cast_signed()));
        }
        let end = offset.saturating_add(len).min(FILE_SIZE_MAX).next_multiple_of(page);
        from = from.max(end.min(FILE_SIZE_MAX));
    }
    messages.extend(inval_inode(nodeid, from.cast_signed(), 0));
    messages
}

/// As `notifications`, and contents by parts: the page that a WRITE may keep locked, the last of each of `writes`, is told of by itself.
/// The kernel waits for no other.
pub(super) fn apart(notifications: &[u8], writes: &Busy) -> Vec<u8> {
    let page = rustix::param::page_size() as i64;
    let mut messages = Vec::with_capacity(notifications.len());
    for message in split(notifications) {
        let contents = inval_inode_arg(message).filter(|arg| arg.off >= 0);
        let Some((arg, ranges)) = contents.and_then(|arg| Some((arg, writes.get(&arg.ino)?))) else {
            messages.extend_from_slice(message);
            continue;
        };
        let end = if arg.len <= 0 { i64::MAX } else { arg.off.saturating_add(arg.len) };
        let last = |&(offset, len): &(u64, u64)| {
            let last = offset.saturating_add(len).saturating_sub(1).cast_signed();
            last - last % page
        };
        let mut locked: Vec<_> =
            ranges.iter().map(last).filter(|at| at + page > arg.off && *at < end).collect();
        locked.sort_unstable();
        locked.dedup();
        let mut from = arg.off;
        for at in locked {
            if at > from {
                messages.extend(inval_inode(arg.ino, from, at - from));
            }
            messages.extend(inval_inode(arg.ino, at, page));
            from = at + page;
        }
        if from < end {
            messages.extend(inval_inode(arg.ino, from, if arg.len <= 0 { 0 } else { end - from }));
        }
    }
    messages
}

/// Whether a request under way is about a page of which `arg` tells. A notice of attributes alone concerns no page.
pub(super) fn is_about(busy: &Busy, arg: &NotifyInvalInodeOut) -> bool {
    let page = rustix::param::page_size() as u64;
    let (Ok(from), len) = (u64::try_from(arg.off), arg.len.max(0).cast_unsigned()) else { return false };
    let end = if len == 0 { u64::MAX } else { from.saturating_add(len) };
    let up = |at: u64| at.min(FILE_SIZE_MAX).next_multiple_of(page);
    busy.get(&arg.ino).is_some_and(|ranges| {
        ranges.iter().any(|&(offset, len)| {
            offset - offset % page < end && up(offset.saturating_add(len)) > from - from % page
        })
    })
}

/// Whether the kernel keeps the lock of directory `dir` until it has the answer to `request`, and others may have to be told
/// before.
pub(super) fn changes_names_of(request: &[u8], dir: u64) -> bool {
    let Ok((header, body)) = InHeader::read_from_prefix(request) else { return false };
    let into = || u64::read_from_prefix(body).is_ok_and(|(newdir, _)| newdir == dir);
    match header.opcode {
        opcode::RENAME | opcode::RENAME2 => header.nodeid == dir || into(),
        opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK | opcode::CREATE => {
            header.nodeid == dir
        }
        opcode::UNLINK | opcode::RMDIR | opcode::SETXATTR | opcode::SETATTR => header.nodeid == dir,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Device;
    use super::super::ledger::Ledger;
    use super::*;
    use sluice_fuse::internal::abi::OutHeader;
    use std::cell::Cell;
    use std::io;

    fn page() -> i64 {
        rustix::param::page_size() as i64
    }

    /// A kernel of which a program reads the first page of node 2: that stays locked until the test ends.
    #[derive(Default)]
    struct Reading {
        told: Mutex<Vec<NotifyInvalInodeOut>>,
        is_over: Mutex<bool>,
        changed: Condvar,
    }

    impl Device for Reading {
        fn receive(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(None)
        }

        fn send(&self, message: &[u8]) -> io::Result<()> {
            let (_, body) = OutHeader::read_from_prefix(message).expect("a header");
            let Ok((arg, _)) = NotifyInvalInodeOut::read_from_prefix(body) else { return Ok(()) };
            let mut is_over = self.is_over.lock();
            while arg.ino == 2 && (0..page()).contains(&arg.off) && !*is_over {
                is_over = self.changed.wait(is_over);
            }
            drop(is_over);
            self.told.lock().push(arg);
            Ok(())
        }

        fn is_connected(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_page_that_a_write_may_keep_locked_is_told_of_apart() {
        let page = page();
        let told = |arg: (i64, i64), writes: Vec<(u64, u64)>| {
            let messages = apart(&inval_inode(2, arg.0, arg.1), &Busy::from([(2, writes)]));
            let args = split(&messages).map(|message| inval_inode_arg(message).expect("one of an inode"));
            args.map(|arg| (arg.off / page, arg.len / page)).collect::<Vec<_>>()
        };
        let p = page as u64;
        assert_eq!(told((0, 0), vec![]), [(0, 0)]);
        assert_eq!(told((0, 0), vec![(10, 20)]), [(0, 1), (1, 0)]);
        assert_eq!(told((0, 4 * page), vec![(0, 3 * p), (2 * p, 1)]), [(0, 2), (2, 1), (3, 1)]);
        assert_eq!(told((0, 4 * page), vec![(3 * p, 9)]), [(0, 3), (3, 1)]);
        assert_eq!(told((0, page), vec![(p, 9)]), [(0, 1)], "another page");
        assert_eq!(told((-1, 0), vec![(10, 20)]), [(0, 0)], "attributes");
    }

    #[test]
    fn a_notice_is_about_the_pages_that_it_names_and_no_others() {
        let p = page();
        let is_about = |off: i64, len: i64, offset: i64, size: i64| {
            let busy = Busy::from([(2, vec![(offset as u64, size as u64)])]);
            is_about(&busy, &NotifyInvalInodeOut { ino: 2, off, len })
        };
        for (off, len, offset, size, expected) in [
            (0, 0, 5 * p, 9, true),
            (-1, 0, 5 * p, 9, false),
            (5 * p, p, 5 * p, p, true),
            (5 * p, p, 4 * p, p, false),
            (5 * p, p, 4 * p + 9, p, true),
            (5 * p, p, 6 * p, 1, false),
            (5 * p + 9, 1, 5 * p, 3, true),
            (5 * p + 9, 1, 5 * p + 99, 3, true),
            (5 * p, 0, i64::MAX - 1, p, true),
            (5 * p, 0, 4 * p + 9, 1, false),
        ] {
            assert_eq!(is_about(off, len, offset, size), expected, "{off} {len} {offset} {size}");
        }
        assert!(!super::is_about(&Busy::new(), &NotifyInvalInodeOut { ino: 2, off: 0, len: 0 }));
    }

    #[test]
    fn a_page_that_is_locked_keeps_no_other_in_the_kernel() {
        let kernel = Arc::new(Reading::default());
        let announcer = Announcer::new(kernel.clone(), Arc::new(Mutex::new(Ledger::default())));
        announcer.start().expect("threads");
        // The read is heard of only later.
        let is_heard_of = Cell::new(false);
        let busy = || match is_heard_of.replace(true) {
            false => Busy::new(),
            true => Busy::from([(2, vec![(100, 200)])]),
        };
        let dropped = drop_nodes(&announcer, BTreeSet::from([1, 2, 3]), busy);
        let told = kernel.told.lock().clone();
        *kernel.is_over.lock() = true;
        kernel.changed.notify_all();
        announcer.end();
        assert!(dropped, "all but the page that is locked");
        assert!(told.iter().any(|arg| arg.ino == 3 && arg.off == 0), "behind it: {told:?}");
        assert!(told.iter().any(|arg| arg.ino == 2 && arg.off == page()), "the rest of that file: {told:?}");
    }
}
