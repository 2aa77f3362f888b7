//! Receive: a snapshot, made of a stream.

use super::apply::ReceivedTree;
use super::digest::digest;
use super::frame::{FrameReader, StreamOrder, wrong};
use super::send::shown;
use sluice_vfs::{Errno, Superblock};
use std::io::{self, ErrorKind, Read};

/// Makes the snapshot that `input`, a stream of [`send`](super::send()), has, and returns its name. The file system has the snapshot when this returns, durably over
/// a store; after an error it is as before. A stream that was cut off is received from its beginning again. The rest of the file system does not change.
///
/// # Errors
/// One line. `InvalidData`, `UnexpectedEof`: the stream is damaged, cut off, or none. `AlreadyExists`: there is a snapshot of that name.
/// `NotFound`: the older snapshot is not here, or not the same; that of the store, or of a full file system.
pub fn receive(superblock: &Superblock, input: impl Read) -> io::Result<Vec<u8>> {
    let mut stream = FrameReader::new(input)?;
    let StreamOrder::Begin { name, base } = stream.next()? else {
        return Err(wrong("the stream has no beginning: send it again"));
    };
    let (name, base) = (name.to_vec(), base.map(|(base, sum)| (base.to_vec(), sum)));
    match superblock.snapshot_top(&name) {
        Err(Errno::ENOENT) => {}
        Ok(_) | Err(Errno::ENOTDIR) => {
            let text = format!("snapshot {} is there already: delete it, or receive elsewhere", shown(&name));
            return Err(io::Error::new(ErrorKind::AlreadyExists, text));
        }
        Err(errno) => return Err(errno.into()),
    }
    if let Some((base, sum)) = &base {
        let refuse =
            |why: &str| io::Error::new(ErrorKind::NotFound, format!("snapshot {} {why}", shown(base)));
        let top = superblock.snapshot_top(base).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR => {
                refuse("is not here, and the stream goes on from it: receive that first")
            }
            errno => errno.into(),
        })?;
        if digest(&top)? != *sum {
            return Err(refuse(
                "here is not the one that the stream goes on from: receive a whole stream (send without --since)",
            ));
        }
    }
    let new =
        superblock.begin_snapshot(base.as_ref().map(|(base, _)| &**base)).map_err(|errno| match errno {
            Errno::EEXIST => {
                let text = "`.receiving` in the root of the file system is in the way: rename it";
                io::Error::new(ErrorKind::AlreadyExists, text)
            }
            Errno::EBUSY => io::Error::new(
                ErrorKind::ResourceBusy,
                "another stream is being received here: wait for its end",
            ),
            errno => io::Error::from(errno),
        })?;
    let mut tree = ReceivedTree::new(&new);
    let sum = loop {
        match stream.next()? {
            StreamOrder::End(sum) => break sum,
            order => tree.obey(&order).map_err(|errno| unfit(&order, errno))?,
        }
    };
    stream.end()?;
    if digest(new.top())? != sum {
        return Err(wrong("the tree that the stream makes is not the one that was sent: send it again"));
    }
    new.keep(&name).map_err(io::Error::from)?;
    Ok(name)
}

/// The error for an order that failed.
fn unfit(order: &StreamOrder<'_>, errno: Errno) -> io::Error {
    match errno {
        // A fault of the disk, not of the stream.
        Errno::ENOSPC | Errno::EDQUOT | Errno::EIO | Errno::EROFS | Errno::EFBIG => errno.into(),
        errno => {
            let name = match order {
                StreamOrder::Down(name) | StreamOrder::Take(name) | StreamOrder::Remove(name) => shown(name),
                StreamOrder::Make { name, .. } | StreamOrder::Link { name, .. } => shown(name),
                _ => "an order".into(),
            };
            wrong(format!("the stream does not fit together: {name}: {errno}"))
        }
    }
}
