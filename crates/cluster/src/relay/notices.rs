//! Notices: the messages by which a kernel is told of changes, made and read.

use sluice_fuse::internal::Reply;
use sluice_fuse::internal::abi::flags::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE};
use sluice_fuse::internal::abi::{NotifyInvalInodeOut, OutHeader};
use zerocopy::FromBytes;

/// Each whole message of `bytes`.
pub(super) fn split(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let (message, rest) = bytes.split_at_checked(len.max(size_of::<OutHeader>()))?;
        bytes = rest;
        Some(message)
    })
}

/// A message that has the kernel drop `len` bytes of the file `ino` from `off` on, or its attributes alone if `off` is negative.
pub(super) fn inval_inode(ino: u64, off: i64, len: i64) -> Vec<u8> {
    let mut message = Reply::new();
    message.put(&NotifyInvalInodeOut { ino, off, len });
    message.notification(NOTIFY_INVAL_INODE).to_vec()
}

/// The node and its bytes, if `message` tells the kernel to drop some, or attributes.
pub(super) fn inval_inode_arg(message: &[u8]) -> Option<NotifyInvalInodeOut> {
    let (header, body) = message.split_at_checked(size_of::<OutHeader>())?;
    let code = i32::from_le_bytes(header.get(4..8)?.try_into().ok()?);
    (code == NOTIFY_INVAL_INODE)
        .then(|| NotifyInvalInodeOut::read_from_prefix(body).ok())
        .flatten()
        .map(|(arg, _)| arg)
}

/// The directory, if `message` announces a name.
pub(super) fn inval_entry_dir(message: &[u8]) -> Option<u64> {
    let (out, body) = OutHeader::read_from_prefix(message).ok()?;
    let is_entry = out.error == NOTIFY_INVAL_ENTRY;
    is_entry.then(|| u64::read_from_prefix(body).ok()).flatten().map(|(parent, _)| parent)
}
