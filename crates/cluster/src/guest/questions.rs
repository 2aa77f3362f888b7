//! Questions: what a guest knows that other processes ask about its mount, and their orders.

use super::Guest;
use super::hold::Telling;
use sluice_fuse::StorageStat;
use sluice_fuse::control::FileSystemStat;
use sluice_fuse::internal::{Serving, control};
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::io;
use std::os::unix::net::UnixStream;

/// How often an order looks whether all guests have been told.
const LOOK: Duration = Duration::from_millis(1);

impl Guest {
    /// Answers a question of another process about this mount, or obeys its order: then all guests have been told of the changes. False: see
    /// [`control::Respond`].
    pub(crate) fn respond(&self, question: &[u8], stream: &mut UnixStream) -> io::Result<bool> {
        let _serving = Serving::begin();
        let answered = control::respond(&self.connection, question, stream, &|| self.await_told());
        // The changes of an order whose client has gone.
        self.holds.forget();
        answered
    }

    /// Waits until all guests have been told of the changes of this thread.
    fn await_told(&self) {
        let announcements = self.holds.announcements();
        let guest = self.coherence.delegate.number;
        let connection = &self.connection;
        self.holds.settle(&Telling { connection, guest, request: &[], head: (0, 0), answer: None }, None);
        while announcements.iter().any(|announcement| announcement.strong_count() > 0) {
            thread::sleep(LOOK);
        }
    }

    /// The facts of the file system and of the `storage` below it.
    pub(crate) fn stat_of_file_system(&self, storage: Option<&StorageStat>) -> FileSystemStat {
        control::of_file_system(&self.connection.superblock, storage)
    }
}
