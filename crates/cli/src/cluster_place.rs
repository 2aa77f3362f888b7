//! Cluster place: where a cluster is, where its members listen, and the keys that they have.

use sluice_cluster::Rendezvous;
use sluice_console::failure::{Failure, Result};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The place that `text` names: a directory may be named by its path alone.
pub(crate) fn place(text: &str) -> Result<Rendezvous> {
    match ["dir:", "etcd:", "http:", "https:"].iter().any(|prefix| text.starts_with(prefix)) {
        true => text.parse().map_err(|error: io::Error| Failure::Usage(error.to_string())),
        // Neither is a directory that anybody means.
        false if text.is_empty() || text.contains("://") => {
            let text = format!(
                "`{text}` is no cluster: give a directory that all nodes share, or http://HOST:PORT/NAME of an etcd"
            );
            Err(Failure::Usage(text))
        }
        false if has_port(text) => {
            let text = format!("`{text}`: for an etcd write http://{text}; for a directory, ./{text}");
            Err(Failure::Usage(text))
        }
        false => Ok(Rendezvous::Directory(text.into())),
    }
}

/// Whether `text` begins with HOST:PORT.
fn has_port(text: &str) -> bool {
    let host = text.split(['/', ',']).next().unwrap_or_default();
    host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// Where a member of the cluster at `place` listens, if `listen` is said.
pub(crate) fn listening(place: &Rendezvous, listen: Option<SocketAddr>) -> Result<SocketAddr> {
    match listen {
        Some(listen) if listen.ip().is_unspecified() => Err(Failure::Usage(format!(
            "--listen {listen}: give the address of this machine where the other nodes reach it"
        ))),
        Some(listen) => Ok(listen),
        None => Ok(SocketAddr::new(place.own_address()?, 0)),
    }
}

/// Says so if others than its owner may read a key in `keys`: it is all that a node needs.
pub(crate) fn warn_of_loose_keys(keys: &Path) {
    for key in ["ca.key", "node.key"].map(|name| keys.join(name)) {
        if key.metadata().is_ok_and(|about| about.mode() & 0o077 != 0) {
            let key = key.display();
            eprintln!(
                "sluice: warning: {key}: other users may read this key, which makes nodes of the cluster; to end that: \
                 chmod 600 {key}"
            );
        }
    }
}
