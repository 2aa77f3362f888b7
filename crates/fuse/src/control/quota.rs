//! Quotas of directories of a mount: both sides of the order `quota`.
//!
//! The order has two numbers: the inode, which the client has open until it is answered, and what to do: 0 to ask, 1 to take the quota
//! away, and else the limit in bytes. The answer is nothing where there is no quota, or a line of three numbers: the limit, the bytes in use and the inode of the directory
//! that has the quota.

use super::OK;
use super::client::order_of;
use super::order::about_up_to;
use crate::connection::Connection;
use crate::workspace;
use rustix::fs::{Mode, OFlags};
use sluice_vfs::{Errno, QuotaUse};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// An order about the quota of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaOrder {
    /// Say what it is.
    Ask,
    /// Take it away.
    Remove,
    /// Let it be so many bytes.
    Set(u64),
}

const ASK: u64 = 0;
const REMOVE: u64 = 1;

/// Reads and answers.
pub(super) fn obey(stream: &mut UnixStream, connection: &Connection) -> io::Result<()> {
    let answer = about_up_to(stream, 0)?.and_then(|([ino, what], _)| {
        let inode = connection.nodes.get(connection.nodes.nodeid(ino)).ok_or(Errno::ENOENT)?;
        match what {
            ASK => {}
            _ if connection.options.read_only => return Err(Errno::EROFS),
            REMOVE => inode.set_quota(None)?,
            limit => inode.set_quota(Some(limit))?,
        }
        connection.superblock.settle();
        Ok(inode.quota())
    });
    let text = match answer {
        Ok(Some(QuotaUse { limit, used, dir })) => format!("{OK}{limit} {used} {dir}\n"),
        Ok(None) => OK.into(),
        Err(errno) => format!("{}\n", why(errno)),
    };
    stream.write_all(text.as_bytes())
}

/// The reason why a quota is refused, and a cure.
fn why(errno: Errno) -> String {
    let what = match errno {
        Errno::EBUSY => "a directory above or below has a quota: quotas do not nest, so take that away first",
        Errno::EXDEV => {
            "a file below has another name outside of the directory: `find DIR -links +1` shows such files"
        }
        Errno::EINVAL => {
            "the root of a mount has none: its limit is the mount option size=; and a quota is 4096 bytes at least"
        }
        Errno::ENODATA => "it has no quota",
        Errno::EROFS => "nothing changes there: it is in a snapshot, or the mount is read-only",
        Errno::EOPNOTSUPP => {
            "the object store was made by an earlier program, which would not count: `sluice mkfs` a new one, and `sluice send` a snapshot to it"
        }
        errno => return errno.to_string(),
    };
    what.to_owned()
}

/// The quota in an answer without its first line.
fn decode(answer: &[u8]) -> io::Result<Option<QuotaUse>> {
    if answer.is_empty() {
        return Ok(None);
    }
    let numbers = String::from_utf8_lossy(answer);
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
    match numbers[..] {
        [limit, used, dir] => Ok(Some(QuotaUse { limit, used, dir })),
        _ => Err(io::Error::other("the server of the mount said what is no quota")),
    }
}

/// Has the server of the mount that `dir` is in carry out `order`; see [`InodeRef::set_quota`](sluice_vfs::InodeRef::set_quota). Says what
/// quota the directory counts for then, and whether that is its own. `None` if no server answers.
///
/// # Errors
/// When `dir` cannot be reached, or is no directory; why the order cannot be carried out.
pub fn quota(dir: &Path, order: QuotaOrder) -> io::Result<Option<Option<(QuotaUse, bool)>>> {
    // While it is open, the server knows it by its number.
    let pinned = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())?;
    let stat = rustix::fs::fstat(&pinned)?;
    let what = match order {
        QuotaOrder::Ask => ASK,
        QuotaOrder::Remove => REMOVE,
        // As few bytes as these two mean are refused as any few are.
        QuotaOrder::Set(limit) => limit.max(REMOVE + 1),
    };
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let (number, node) = workspace::split(stat.st_ino);
    let order = format!("{}quota\n{node} {what} 0\n", workspace::named(number));
    let Some(answer) = order_of(device, &order)? else {
        return Ok(None);
    };
    Ok(Some(decode(&answer)?.map(|quota| (quota, quota.dir == node))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_a_quota_or_none() {
        let quota = QuotaUse { limit: 1 << 20, used: 4096, dir: 7 };
        assert_eq!(decode(b"1048576 4096 7\n").expect("a quota"), Some(quota));
        assert_eq!(decode(b"").expect("none"), None);
        let error = decode(b"1 2\n").expect_err("it is neither").to_string();
        assert_eq!(error, "the server of the mount said what is no quota");
    }
}
