//! Receive: a snapshot, made of a stream.

use super::apply::ReceivedTree;
use super::arrived::Arrived;
use super::digest::digest;
use super::frame::{DIGEST, FrameReader, StreamOrder, wrong};
use super::resume::ResumePoint;
use super::send::shown;
use sluice_vfs::{Errno, NewSnapshot, Superblock};
use std::io::{self, ErrorKind, Read};

/// After so many bytes of contents the receiver notes how far it is.
const NOTED_AFTER: usize = 1 << 20;

/// Makes the snapshot that `input`, a stream of [`send`](super::send()), has, and returns its name. The file system has the snapshot when this returns, durably over
/// a store; after an error it has the snapshots that it had. The rest of the file system does not change.
///
/// The part of a stream before a cut or damage stays, until another stream is received, over a store also that of a receiver that died. The error has a token,
/// with which [`send`](super::send()) writes the rest. An empty stream changes nothing, and its error has that token again.
///
/// # Errors
/// One line. `InvalidData`, `UnexpectedEof`: the stream is damaged, cut off, or none. `AlreadyExists`: there is a snapshot of that name.
/// `NotFound`: the older snapshot is not here, or not the same; that of the store, or of a full file system.
pub fn receive(superblock: &Superblock, input: impl Read) -> io::Result<Vec<u8>> {
    let mut stream = FrameReader::new(input).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => with_token_of_part(superblock, error),
        _ => error,
    })?;
    let received = match stream.next()? {
        StreamOrder::Begin { name, base } => {
            let (name, base) = (name.to_vec(), base.map(|(base, sum)| (base.to_vec(), sum)));
            let new = begin(superblock, &name, base)?;
            finish(new, stream, name, None)
        }
        StreamOrder::GoOn(point) => {
            let (new, arrived) = resume(superblock, point)?;
            stream.go_on(point);
            finish(new, stream, arrived.name.clone(), Some(arrived))
        }
        _ => Err(wrong("the stream has no beginning: send it again")),
    }?;
    // The snapshot is durable. Once its tree is gone, too, no later process takes the stream for one that was cut off.
    let _ = superblock.sync();
    Ok(received)
}

/// Checks that there is no snapshot `name`.
fn check_free(superblock: &Superblock, name: &[u8]) -> io::Result<()> {
    match superblock.snapshot_top(name) {
        Err(Errno::ENOENT) => Ok(()),
        Ok(_) | Err(Errno::ENOTDIR) => {
            let text = format!("snapshot {} is there already: delete it, or receive elsewhere", shown(name));
            Err(io::Error::new(ErrorKind::AlreadyExists, text))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Begins the tree of the snapshot `name`, empty or like the snapshot `base` with a digest.
fn begin<'s>(
    superblock: &'s Superblock,
    name: &[u8],
    base: Option<(Vec<u8>, [u8; DIGEST])>,
) -> io::Result<NewSnapshot<'s>> {
    check_free(superblock, name)?;
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
    superblock.begin_snapshot(base.as_ref().map(|(base, _)| &**base)).map_err(|errno| match errno {
        Errno::EEXIST => {
            let text = "`.receiving` in the root of the file system is in the way: rename it";
            io::Error::new(ErrorKind::AlreadyExists, text)
        }
        errno => taken(errno),
    })
}

fn taken(errno: Errno) -> io::Error {
    match errno {
        Errno::EBUSY => {
            io::Error::new(ErrorKind::ResourceBusy, "another stream is being received here: wait for its end")
        }
        errno => errno.into(),
    }
}

/// Takes up the part of a stream that is here, if that goes on at `point`.
fn resume(superblock: &Superblock, point: ResumePoint) -> io::Result<(NewSnapshot<'_>, Arrived)> {
    let nothing = || {
        let text = "no part of a stream is here that could go on: send without --resume";
        io::Error::new(ErrorKind::NotFound, text)
    };
    let (new, note) = superblock.resume_snapshot().map_err(taken)?.ok_or_else(nothing)?;
    let arrived = Arrived::decode(&note).ok_or_else(nothing)?;
    let fits = match arrived.point == point {
        true => check_free(superblock, &arrived.name),
        false => {
            let text = format!("the stream goes on elsewhere: send it with `--resume {}`", arrived.point);
            Err(wrong(text))
        }
    };
    match fits {
        Ok(()) => Ok((new, arrived)),
        Err(error) => {
            new.leave(&note)?;
            Err(error)
        }
    }
}

/// The `error` of an empty stream, with the token of the part that is here.
fn with_token_of_part(superblock: &Superblock, error: io::Error) -> io::Error {
    let Ok(Some((new, note))) = superblock.resume_snapshot() else { return error };
    let Some(arrived) = Arrived::decode(&note) else { return error };
    match new.leave(&note) {
        Ok(()) => with_token(&error, arrived.point),
        Err(errno) => errno.into(),
    }
}

fn with_token(error: &io::Error, point: ResumePoint) -> io::Error {
    io::Error::new(error.kind(), format!("{error}, or only what is missing: `sluice send --resume {point}`"))
}

/// Does what the rest of the stream says to `new`, the tree of the snapshot `name`.
fn finish(
    new: NewSnapshot<'_>,
    mut stream: FrameReader<impl Read>,
    name: Vec<u8>,
    arrived: Option<Arrived>,
) -> io::Result<Vec<u8>> {
    let mut tree = ReceivedTree::new(&new);
    if let Some(arrived) = &arrived {
        tree.stand(arrived)?;
    }
    let mut identity = arrived.map(|arrived| arrived.point.identity);
    let mut unnoted = 0;
    let ended = loop {
        let before = identity.map(|identity| stream.point(identity));
        match stream.next() {
            Ok(StreamOrder::End(sum)) => break Ok(sum),
            Ok(StreamOrder::Identity(found)) if identity.is_none() => identity = Some(found),
            Ok(order) => {
                if let Some(before) = before.filter(|_| order.changes_names()) {
                    unnoted = 0;
                    new.note(&tree.arrived_before_names(&name, before).encode()?)?;
                }
                tree.obey(&order).map_err(|errno| unfit(&order, errno))?;
                if let StreamOrder::Contents { bytes, .. } = &order {
                    unnoted += bytes.len();
                }
                if let Some(identity) = identity.filter(|_| unnoted >= NOTED_AFTER) {
                    unnoted = 0;
                    new.note(&tree.arrived(&name, stream.point(identity)).encode()?)?;
                }
            }
            Err(error) => break Err(error),
        }
    };
    let sum = match (ended, identity) {
        (Ok(sum), _) => sum,
        (Err(error), None) => return Err(error),
        (Err(error), Some(identity)) => {
            let point = stream.point(identity);
            let note = tree.arrived(&name, point).encode()?;
            new.leave(&note)?;
            return Err(with_token(&error, point));
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

#[cfg(test)]
#[path = "doubt_tests.rs"]
mod doubt_tests;
