//! Ring: one queue of a mount over io_uring, used by one thread.
//!
//! # Theory
//! Each entry is registered once, as a command that the kernel completes when it has put a request into the entry. The
//! answer is a second kind of command, which also asks for the next request; it completes with that. So a turn is one
//! system call: it hands in the answers, and waits for requests.
//!
//! The ring is the calling thread's own (SINGLE_ISSUER), and the kernel does the thread's part of the work, which is to copy
//! requests into entries, only inside that call (DEFER_TASKRUN).
//!
//! An entry may be *kept* for an answer that another thread finds. A further command completes when such answers are
//! queued.
//!
//! # Invariants
//! - I1 The kernel writes to the memory of an entry only inside [`Ring::turn`] and [`Ring::open`], on the calling thread.
//! - I2 Each entry has at most one command under way, and none while it is kept.
//! - I3 One entry is not kept. When it is answered the kernel gives it the next request of the queue, so all of them come.

#![allow(unsafe_code, reason = "the kernel is given addresses; each block argues below")]

use super::entry::RingEntry;
use super::late::LateAnswers;
use crate::abi::{OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand};
use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;
use sluice_sync::Arc;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use zerocopy::{FromBytes, IntoBytes};

/// A memory area of a command, at this offset of a submission: `len` in the kernel's `struct io_uring_sqe`.
const SQE_LEN: usize = 24;
/// How many pieces of memory an entry has.
const SEGMENTS: u32 = 2;

/// The command that completes when there are late answers, in place of the number of an entry.
const LATE: u64 = u64::MAX;

/// Flags of `io_uring_enter`: waits for completions; the wait is no wait for a disk (Linux 6.15).
const GET_EVENTS: u32 = 1;
const NO_IOWAIT: u32 = 1 << 7;

/// Whether an entry waits for a late answer to its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    Yes,
    No,
}

/// A queue with its entries.
pub(super) struct Ring {
    /// Declared before `entries`, so it is dropped first, and the kernel no longer uses the entries.
    ring: Uring,
    entries: Vec<RingEntry>,
    /// The numbers of the entries that are kept.
    kept: Vec<usize>,
    /// *immutable*
    late: Arc<LateAnswers>,
    /// The number of the queue. *immutable*
    queue: u16,
    /// Entries that the kernel has or will have again.
    live: usize,
    /// Flags of each wait. *immutable*
    wait_flags: u32,
    /// Completed commands: the number of the entry, and the result.
    completed: Vec<(u64, i32)>,
}

impl Ring {
    /// Opens queue `queue` of the mount behind `device`, with `entries`.
    ///
    /// # Errors
    /// When this system allows no such ring, or the kernel does not take the entries.
    pub(super) fn open(device: BorrowedFd<'_>, queue: u16, entries: Vec<RingEntry>) -> io::Result<Ring> {
        let ring = Uring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build((entries.len() + 1).next_power_of_two() as u32)?;
        // Otherwise each command and each call would count a use of a file that threads share.
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        ring.submitter().register_ring_fd()?;
        let live = entries.len();
        let mut opened = Ring {
            ring,
            live,
            entries,
            kept: Vec::new(),
            late: Arc::new(LateAnswers::new()?),
            queue,
            wait_flags: GET_EVENTS,
            completed: Vec::new(),
        };
        opened.register()?;
        opened.watch_late();
        opened.wait_flags = opened.idle_wait_flags();
        Ok(opened)
    }

    /// Where answers to requests go whose entries are kept.
    pub(super) fn late(&self) -> Arc<LateAnswers> {
        self.late.clone()
    }

    /// The flags with which an idle mount does not look like one that waits for a disk, which `top` and
    /// `/proc/pressure/io` would show for all of its time; where the kernel knows them.
    fn idle_wait_flags(&self) -> u32 {
        let flags = GET_EVENTS | NO_IOWAIT;
        // SAFETY: hands in nothing and names no memory. A kernel that does not know a flag refuses the call.
        match unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None) } {
            Ok(_) => flags,
            Err(_) => GET_EVENTS,
        }
    }

    /// Hands in what was pushed, and waits for a completion.
    fn submit_and_wait(&mut self) -> io::Result<usize> {
        let pushed = self.ring.submission().len() as u32;
        // SAFETY: each command that is handed in was pushed by `push`, whose caller vouched for it; the call itself names
        // no memory.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(pushed, 1, self.wait_flags, None) }
    }

    fn register(&mut self) -> io::Result<()> {
        for (number, entry) in self.entries.iter_mut().enumerate() {
            // Read by the kernel before `submit` returns.
            let mut segments = entry.segments().map(IoSliceMut::new);
            let mut command = command(RING_REGISTER, self.queue, 0)
                .addr(Some(segments.as_mut_ptr() as u64))
                .build()
                .user_data(number as u64);
            // SAFETY: `command` is the kernel's `struct io_uring_sqe` (128 bytes, `repr(C)`), which has a `u32` at
            // byte 24, aligned as such; we hold it alone.
            unsafe { (&raw mut command).cast::<u8>().add(SQE_LEN).cast::<u32>().write(SEGMENTS) };
            // SAFETY: the entry's memory is valid until it is dropped, which is after the ring (order of fields), and
            // the kernel writes to it only while nothing borrows it (I1). An `IoSliceMut` is an `iovec`.
            unsafe { push(&mut self.ring, &command) };
            self.ring.submit()?;
        }
        self.collect();
        // Requests may have come already; they stay in `completed` for the first turn.
        let failed = self.completed.iter().find(|(_, result)| *result < 0);
        failed.map_or(Ok(()), |(_, result)| Err(io::Error::from_raw_os_error(-result)))
    }

    /// Waits for requests and has each served by `serve`, which leaves the answer in the entry, or keeps the entry if it is
    /// told that it may. False: the mount is gone.
    ///
    /// # Errors
    /// Errors that no retry would cure; the queue is then unusable.
    pub(super) fn turn(&mut self, mut serve: impl FnMut(&mut RingEntry, bool) -> Kept) -> io::Result<bool> {
        if self.completed.is_empty() {
            match self.submit_and_wait() {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => return Ok(true),
                Err(error) => return Err(error),
            }
            self.collect();
        }
        let mut completed = std::mem::take(&mut self.completed);
        for (number, result) in completed.drain(..) {
            if number == LATE {
                self.answer_late();
                self.watch_late();
                continue;
            }
            let may_keep = self.kept.len() + 1 < self.entries.len();
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            match (self.entries.get_mut(number), result.wrapping_neg()) {
                (Some(entry), 0) => match serve(entry, may_keep) {
                    Kept::Yes => self.kept.push(number),
                    Kept::No => self.commit(number),
                },
                (Some(_), errno) if is_end(errno) => self.live -= 1,
                (Some(_), errno) => return Err(io::Error::from_raw_os_error(errno)),
                (None, _) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        // Its memory is used again.
        self.completed = completed;
        Ok(self.live > 0)
    }

    /// Prepares to hand in the answer in entry `number`.
    fn commit(&mut self, number: usize) {
        let id = self.entries[number].commit_id();
        let command = command(RING_COMMIT_AND_FETCH, self.queue, id).build().user_data(number as u64);
        // SAFETY: the entry's memory, which the kernel knows since `register`, is valid as argued there; this command names
        // no address.
        unsafe { push(&mut self.ring, &command) };
    }

    /// Puts the late answers that there are into the entries that wait for them.
    #[cold]
    fn answer_late(&mut self) {
        for message in self.late.take() {
            let unique = OutHeader::read_from_prefix(&message).map_or(0, |(header, _)| header.unique);
            let kept = self.kept.iter().position(|&number| self.entries[number].unique() == unique);
            if let Some(at) = kept {
                let number = self.kept.swap_remove(at);
                self.entries[number].answer(&message);
                self.commit(number);
            }
        }
    }

    /// Prepares to be told when there are late answers.
    fn watch_late(&mut self) {
        let descriptor = Fd(self.late.as_fd().as_raw_fd());
        let command = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build().user_data(LATE);
        // SAFETY: names no memory.
        unsafe { push(&mut self.ring, &command.into()) };
    }

    fn collect(&mut self) {
        self.completed.extend(self.ring.completion().map(|done| (done.user_data(), done.result())));
    }
}

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

/// # Safety
/// The buffers that `command` names must be valid until it completes.
unsafe fn push(ring: &mut Uring, command: &squeue::Entry128) {
    // SAFETY: the caller's.
    let pushed = unsafe { ring.submission().push(command) };
    pushed.expect("there is room for a command of each entry and one more, and none has two (I2)");
}

/// Errors with which commands end when the mount does.
fn is_end(errno: i32) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV].iter().any(|end| end.raw_os_error() == errno)
}

fn command(kind: u32, queue: u16, commit_id: u64) -> opcode::UringCmd80 {
    let mut area = [0; 80];
    let command = RingCommand { flags: 0, commit_id, queue, padding: [0; 3] };
    area[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
    // The device is the one file that is registered.
    opcode::UringCmd80::new(Fixed(0), kind).cmd(area)
}
