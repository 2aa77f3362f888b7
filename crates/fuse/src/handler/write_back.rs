//! LSEEK, and what the kernel must write back before it is answered.
//!
//! # Theory
//! The kernel sends LSEEK for `SEEK_DATA` and `SEEK_HOLE` without writing back its dirty pages first. Data that a
//! process stored through a mapping is a hole here until then, and a program that copies by holes would copy zeros. So
//! where the answer shows a hole of which the kernel may have a page (see `nodes`), the kernel is made to write that
//! part back first.
//!
//! That takes WRITEs, which the workers must be free to serve: the request is *parked*, and a thread of its own waits for
//! the kernel and answers, by the channel by which the request came. The kernel holds the inode's lock during LSEEK, but not
//! while it writes pages back.
//!
//! Such WRITEs would change the file's times while a program copies it, and `tar` would report that the file changed.
//! The times move a while later instead, as they would had the kernel written the pages back in its own time.
//!
//! A transport that cannot park one more answers at once that the part of the file that follows is data: right, if not as
//! exact.
//!
//! GETATTR waits for nothing of the kind. A file that seems to be all hole shows one block of 512 bytes while the kernel may
//! have a page of it, so that programs which look at `st_blocks` do not take it for empty.

use crate::abi::{self, InHeader};
use crate::connection::Connection;
use crate::event::Event;
use crate::nodes::Noted;
use crate::reply::{Disposition, Reply, Seek};
use crate::transport::{Channel, Replier};
use sluice_sync::mpsc::RecvTimeoutError;
use sluice_sync::thread::Builder;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Weak, mpsc};
use sluice_vfs::{Errno, FILE_SIZE_MAX, Stat, Whence};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// How long after a seek the times move because of what was written back for it: as long as the kernel by itself waits
/// before it writes a page back.
const TIMES_AFTER: Duration = Duration::from_secs(30);

/// Why a seek is not answered at once.
enum Delay {
    /// The kernel may have newer bytes.
    WriteBack,
    Failed(Errno),
}

impl From<Errno> for Delay {
    fn from(errno: Errno) -> Delay {
        Delay::Failed(errno)
    }
}

/// Starts the thread that answers the seeks that wait.
///
/// # Errors
/// The operating system's.
pub(crate) fn start(connection: &Arc<Connection>) -> io::Result<()> {
    let (sender, seeks) = mpsc::channel();
    let weak = Arc::downgrade(connection);
    Builder::new().name("sluice-seek".into()).spawn(move || run(&weak, &seeks))?;
    // Nobody else sets it.
    let _ = connection.seeks.set(sender);
    Ok(())
}

fn run(connection: &Weak<Connection>, seeks: &mpsc::Receiver<(Seek, Arc<dyn Channel>)>) {
    // When the times of which nodes are to move, the earliest first.
    let mut owing = VecDeque::<(Instant, u64)>::new();
    loop {
        let next = match owing.front() {
            None => seeks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((due, _)) => seeks.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        let Some(connection) = connection.upgrade() else { return };
        match next {
            Ok((seek, channel)) if connection.answer_seek(&seek, &*channel) => {
                owing.push_back((Instant::now() + TIMES_AFTER, seek.header.nodeid))
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                if let Some((_, nodeid)) = owing.pop_front() {
                    connection.pay_times(nodeid);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Connection {
    pub(super) fn lseek(&self, header: &InHeader, arg: &abi::LseekIn, reply: &mut Reply) -> Disposition {
        if self.writes_back() {
            // Dirty pages of the kernel would show as a hole. It takes the whole file for data then.
            return Disposition::Done(Err(Errno::ENOSYS));
        }
        let whence = match arg.whence {
            _ if arg.offset > FILE_SIZE_MAX => return Disposition::Done(Err(Errno::ENXIO)),
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return Disposition::Done(Err(Errno::EINVAL)),
        };
        let seek = Seek { header: *header, offset: arg.offset, whence };
        let found = self.seek(&seek, |_, hole| {
            if self.nodes.has_hole(header.nodeid, &hole) { Err(Delay::WriteBack) } else { Ok(()) }
        });
        match found {
            Ok(offset) => {
                reply.put(&abi::LseekOut { offset });
                Disposition::Done(Ok(()))
            }
            Err(Delay::Failed(errno)) => Disposition::Done(Err(errno)),
            Err(Delay::WriteBack) => Disposition::Seek(seek),
        }
    }

    /// Has `seek` answered, by `channel`, when the kernel has handed its pages down.
    pub(crate) fn seek_later(&self, seek: Seek, channel: Arc<dyn Channel>) {
        let replier = Replier::new(channel.clone(), seek.header.unique);
        if self.seeks.get().is_none_or(|seeks| seeks.send((seek, channel)).is_err()) {
            // Without the thread there is no kernel either.
            replier.answer(Err(Errno::EIO));
        }
    }

    /// Answers `seek` without the kernel's pages: all that follows is said to be data.
    pub fn seek_at_once<'r>(&self, seek: &Seek, reply: &'r mut Reply) -> &'r [u8] {
        reply.clear();
        match self.take_for_data(seek) {
            Ok(offset) => {
                reply.put(&abi::LseekOut { offset });
                reply.success(seek.header.unique)
            }
            Err(errno) => reply.failure(seek.header.unique, errno),
        }
    }

    fn take_for_data(&self, seek: &Seek) -> Result<u64, Errno> {
        let size = self.node(seek.header.nodeid)?.stat().size;
        match seek.whence {
            _ if seek.offset >= size => Err(Errno::ENXIO),
            Whence::Hole => Ok(size),
            _ => Ok(seek.offset),
        }
    }

    /// Answers `seek`, by `channel`, when the kernel has handed its pages down. True if the times of the node are to move later.
    fn answer_seek(&self, seek: &Seek, channel: &dyn Channel) -> bool {
        let nodeid = seek.header.nodeid;
        let mut owes_times = false;
        self.answer(channel, &seek.header, &mut Reply::new(), |reply| {
            self.nodes.set_quiet(nodeid, true);
            let found = self.seek(seek, |ino, hole| {
                self.write_back(ino, Noted::Holes, &hole);
                Ok::<_, Errno>(())
            });
            owes_times = self.nodes.set_quiet(nodeid, false);
            Disposition::Done(found.map(|offset| reply.put(&abi::LseekOut { offset })))
        });
        owes_times
    }

    fn pay_times(&self, nodeid: u64) {
        if let Some(inode) = self.nodes.pay_times(nodeid) {
            self.announce(&Event::Attributes { ino: inode.ino() });
        }
    }

    /// Where `seek` leads, after `fill` was called with the number of the inode and each hole that shows.
    fn seek<E: From<Errno>>(
        &self,
        seek: &Seek,
        fill: impl Fn(u64, Range<u64>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let inode = self.node(seek.header.nodeid)?;
        inode.seek_contents(seek.offset, seek.whence, |hole| fill(inode.ino(), hole))
    }

    /// Notes that the kernel is about to be told that there are holes in `bytes`.
    #[cold]
    pub(super) fn hand_out_hole(&self, nodeid: u64, stat: &Stat, bytes: &Range<u64>) {
        if self.nodes.note_hole(nodeid, bytes) && stat.blocks == 0 {
            // It may believe that the file has no blocks. The notice waits for nothing, as it drops no page.
            self.announce(&Event::Attributes { ino: stat.ino });
        }
    }
}
