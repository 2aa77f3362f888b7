//! Late answers: those to requests of a ring that another thread has decided, on their way to the thread of the ring.
//!
//! Only that thread may use its ring. It waits inside the kernel, which completes a command of the ring when the descriptor
//! of the answers can be read.

use super::Channel;
use crate::lock_class::LATE;
use rustix::event::{EventfdFlags, eventfd};
use sluice_sync::Mutex;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The answers that one ring has not taken yet.
pub(crate) struct LateAnswers {
    /// Can be read while there is one. *immutable*
    wake: OwnedFd,
    messages: Mutex<Vec<Vec<u8>>>,
}

impl LateAnswers {
    /// # Errors
    /// The operating system's.
    pub(crate) fn new() -> io::Result<LateAnswers> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(LateAnswers { wake, messages: Mutex::with_class(&LATE, Vec::new()) })
    }

    /// Takes the queued answers. An answer that comes later makes the descriptor readable again.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        // The read fails if the counter is 0. Before the messages, as `send` comes after them.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        mem::take(&mut *self.messages.lock())
    }
}

impl AsFd for LateAnswers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Channel for LateAnswers {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        self.messages.lock().push(message.to_vec());
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(answers: &LateAnswers) -> bool {
        let mut fds = [PollFd::new(answers, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("it does not wait") == 1
    }

    #[test]
    fn it_is_readable_while_there_are_answers() {
        let answers = LateAnswers::new().expect("a descriptor");
        assert!(!is_readable(&answers) && answers.take().is_empty());
        for message in [b"one", b"two"] {
            answers.send(message).expect("there is room");
        }
        assert!(is_readable(&answers));
        assert_eq!(answers.take(), [b"one", b"two"]);
        assert!(!is_readable(&answers));
        answers.send(b"three").expect("there is room");
        assert!(is_readable(&answers));
    }
}
