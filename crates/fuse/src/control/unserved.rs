//! Unserved: the answer for a mount that has no server for a while, by the process that keeps the mount.
//!
//! It listens on the socket file alone: the next server replaces that as its own, whereas an abstract name would have to be free.

use super::server::Server;
use crate::HeldMount;
use crate::connected::is_connected;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// How each answer begins.
const UNSERVED: &str = "this mount has no server, and calls there wait: ";

/// Answers each question until it is dropped.
pub struct Unserved {
    _server: Server,
}

impl Unserved {
    /// Answers for the mount `held`, which waits for the reason `why`, a line.
    ///
    /// # Errors
    /// The state of the mount is of another version; there is no place for a socket file; the system's.
    pub fn answer(held: &HeldMount, why: &str) -> io::Result<Unserved> {
        let Some(number) = held.device_number() else { return Err(io::ErrorKind::InvalidData.into()) };
        let device = held.device.try_clone()?;
        let is_there = move || is_connected(device.as_fd());
        let line = format!("{UNSERVED}{why}\n");
        let respond = move |_: &[u8], stream: &mut std::os::unix::net::UnixStream| {
            stream.write_all(line.as_bytes()).map(|()| true)
        };
        let server = Server::on_file(number, Box::new(is_there), Box::new(respond))?;
        Ok(Unserved { _server: server })
    }
}

/// Why a mount waits whose process answered `line`; none if it does not.
pub(super) fn why(line: &str) -> Option<&str> {
    line.strip_prefix(UNSERVED)
}
