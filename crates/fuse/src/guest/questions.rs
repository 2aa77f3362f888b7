//! Questions: what a guest knows that other processes ask about its mount.

use super::Guest;
use crate::control;
use std::io;
use std::os::unix::net::UnixStream;

impl Guest {
    /// Answers a question of another process about this mount.
    pub(crate) fn respond(&self, question: &[u8], stream: &mut UnixStream) -> io::Result<()> {
        control::respond(&self.connection, question, stream)
    }

    /// The facts of the file system, as fields of JSON without braces.
    pub(crate) fn stat_of_file_system(&self) -> String {
        control::of_file_system(&self.connection.superblock)
    }
}
