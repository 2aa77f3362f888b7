//! Status: a socket where a node tells what it knows.

use super::serve::STATUS;
use super::{Dlm, Inner};
use crate::status_text;
use sluice_membership::{Hello, Identity, NodeId, Secure, now};
use sluice_sync::Arc;
use sluice_sync::time::Duration;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// How long a caller may take, while others wait behind it.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer of a node that is asked over the network.
const ANSWER_MAX: usize = 64 << 20;
/// How long the answer may take: a busy machine may keep a node from its CPU for seconds.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

impl Dlm {
    /// Who holds, who waits, since when, and which resources go to and fro: as text in the manner of `/proc/locks`.
    pub fn status_text(&self) -> String {
        self.inner.status(false)
    }

    /// The holders, waiters and resources of [`status_text`](Self::status_text) as JSON, and the counters.
    pub fn status_json(&self) -> String {
        self.inner.status(true)
    }
}

/// Asks the node whose [`Config::status`](super::Config::status) is `socket`.
///
/// # Errors
/// If no server answers there.
pub fn ask_status(socket: &Path, json: bool) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    stream.write_all(&[u8::from(json)])?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Asks the node at `address`, of the cluster with this name, for its status as JSON.
///
/// # Errors
/// If the node cannot be reached, or belongs to another cluster.
pub fn ask_status_at(address: &str, cluster: &str, identity: &Identity) -> io::Result<String> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let connection =
        Secure::call(TcpStream::connect_timeout(&address, PATIENCE)?, identity.configurations()?.1)?;
    let (from, to) = (NodeId(0), NodeId(0));
    Hello { protocol: STATUS, cluster: cluster.to_string(), from, to }.say(&connection)?;
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > ANSWER_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    connection.read_exact(&mut text)?;
    String::from_utf8(text).map_err(io::Error::other)
}

impl Inner {
    /// Answers [`ask_status_at`].
    pub(super) fn answer_question(&self, connection: &Secure) -> io::Result<()> {
        let text = self.status(true);
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        connection.write_all(&length.to_le_bytes())?;
        connection.write_all(text.as_bytes())
    }

    fn status(&self, is_json: bool) -> String {
        let status = self.node.status();
        if is_json {
            status_text::json(&status, self.node.statistics(), now())
        } else {
            status_text::text(&status, now())
        }
    }

    /// Answers questions, until the end.
    pub(super) fn tell_status(self: Arc<Self>, listener: &UnixListener) {
        while !self.is_over() {
            let answered = listener.accept().and_then(|(mut stream, _)| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                let mut is_json = [0];
                stream.read_exact(&mut is_json)?;
                stream.write_all(self.status(is_json != [0]).as_bytes())
            });
            if answered.is_err() {
                // A client that is gone, or no descriptors.
                self.pause(Duration::from_millis(20));
            }
        }
    }
}
