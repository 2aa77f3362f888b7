//! Transfer: streams of bytes between another process and a file system that is mounted: the answering side.
//!
//! `send`, `export` and `changes` are answered with chunks (`chunks.rs`); `receive` is answered with "ok", and followed by chunks. In the end comes
//! "ok\n", or one line that says what went wrong. A transfer takes as long as its client likes, so that a thread of its own serves it
//! while others ask. It ends with the process that serves the mount.

use super::OK;
use super::chunks::{CHUNK_MAX, ChunkReader, ChunkWriter, put_change};
use super::order::{About, about, about_up_to};
use crate::connection::Connection;
use sluice_sync::Arc;
use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::thread::Builder;
use sluice_sync::time::Duration;
use sluice_vfs::{Errno, Fs, InodeRef, NAME_MAX, SNAPSHOTS, Superblock};
use std::ffi::OsStr;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest token with which a stream goes on, in bytes.
const TOKEN_MAX: u64 = 1024;
/// How long a server whose transfer has ended reads what its client still sends, at a time.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// A transfer that a client has ordered.
enum TransferOrder {
    Send { name: Vec<u8>, since: Option<Vec<u8>>, resume: Option<String> },
    Export { name: Vec<u8> },
    Changes { old: InodeRef, new: InodeRef },
    Receive,
}

/// Begins the transfer that is the `order`, in a thread of its own. False for an order of another kind.
///
/// # Errors
/// The client has gone.
pub(super) fn begin(order: &[u8], stream: &mut UnixStream, connection: &Connection) -> io::Result<bool> {
    let transfer = match order {
        b"send" => {
            let asked: Result<About<0>, Errno> = about_up_to(stream, 2 * NAME_MAX as u64 + TOKEN_MAX)?;
            asked.map(|([], names)| {
                let mut parts = names.splitn(3, |byte| *byte == 0).map(<[u8]>::to_vec);
                let name = parts.next().unwrap_or_default();
                let since = parts.next().filter(|since| !since.is_empty());
                let resume = parts.next().map(|token| String::from_utf8_lossy(&token).into_owned());
                TransferOrder::Send { name, since, resume }
            })
        }
        b"export" => about(stream)?.map(|([], name)| TransferOrder::Export { name }),
        b"changes" => about(stream)?.and_then(|([old, new], _)| {
            let inode = |ino| connection.nodes.get(connection.nodes.nodeid(ino)).ok_or(Errno::ENOENT);
            Ok(TransferOrder::Changes { old: inode(old)?, new: inode(new)? })
        }),
        b"receive" => Ok(TransferOrder::Receive),
        _ => return Ok(false),
    };
    let transfer = match transfer {
        Ok(TransferOrder::Receive) if connection.coherence.get().is_some() => {
            Err("a node of a cluster receives nothing: unmount the store on all nodes, and give its address"
                .into())
        }
        Ok(TransferOrder::Receive) if connection.options.read_only => Err("the mount is read-only".into()),
        transfer => transfer.map_err(|errno| errno.to_string()),
    };
    let superblock = connection.superblock.clone();
    let counted = CountedTransfer::begin(&connection.transfers);
    let begun = transfer.and_then(|transfer| {
        let mut stream = stream.try_clone().map_err(|error| error.to_string())?;
        let serve = move || {
            // The client has gone, or waits for what does not come.
            let _ = transfer.serve(&superblock, &mut stream);
            drop(counted);
        };
        let thread = Builder::new().name("sluice-transfer".into()).spawn(serve);
        thread.map(drop).map_err(|error| error.to_string())
    });
    if let Err(line) = begun {
        stream.write_all(format!("{line}\n").as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
    }
    Ok(true)
}

/// A transfer among those that are counted, until it is dropped.
struct CountedTransfer(Arc<AtomicUsize>);

impl CountedTransfer {
    fn begin(count: &Arc<AtomicUsize>) -> CountedTransfer {
        count.fetch_add(1, Ordering::SeqCst);
        CountedTransfer(count.clone())
    }
}

impl Drop for CountedTransfer {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TransferOrder {
    fn serve(self, superblock: &Arc<Superblock>, stream: &mut UnixStream) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        stream.write_all(OK.as_bytes())?;
        let answer = match self {
            TransferOrder::Receive => {
                let mut input = ChunkReader::new(BufReader::with_capacity(CHUNK_MAX, stream.try_clone()?));
                sluice_trees::receive(superblock, &mut input).map(drop)
            }
            transfer => {
                let mut out = ChunkWriter(BufWriter::with_capacity(2 * CHUNK_MAX, stream.try_clone()?));
                let mut chunks = BufWriter::with_capacity(CHUNK_MAX, &mut out);
                let sent = transfer.write(superblock, &mut chunks).and_then(|()| chunks.flush());
                // The rest of a stream that failed stays here.
                drop(chunks.into_parts());
                out.end()?;
                sent
            }
        };
        let line = answer.err().map_or(OK.to_owned(), |error| format!("{}\n", in_one_line(&error)));
        stream.write_all(line.as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        // A socket that is closed with bytes unread loses the answer.
        stream.set_read_timeout(Some(DRAIN_PATIENCE))?;
        io::copy(stream, &mut io::sink()).map(drop)
    }

    fn write(self, superblock: &Arc<Superblock>, out: &mut dyn Write) -> io::Result<()> {
        match self {
            TransferOrder::Send { name, since, resume } => {
                sluice_trees::send(superblock, &name, since.as_deref(), resume.as_deref(), out)
            }
            TransferOrder::Export { name } => {
                superblock.snapshot_top(&name)?;
                let path = Path::new("/").join(SNAPSHOTS).join(OsStr::from_bytes(&name));
                sluice_trees::export_tar(&Fs::with_superblock(superblock.clone()), path, out).map(drop)
            }
            TransferOrder::Changes { old, new } => {
                sluice_trees::changes(&old, &new, &mut |change| put_change(change, out))
            }
            TransferOrder::Receive => Ok(()),
        }
    }
}

fn in_one_line(error: &io::Error) -> String {
    error.to_string().replace('\n', " ")
}
