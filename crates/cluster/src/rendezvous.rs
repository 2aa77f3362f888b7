//! Rendezvous: where a cluster is found: in a directory that its nodes share, or at an etcd.

use sluice_membership::EtcdAccess;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::{env, fmt, io};

/// The port where etcd listens.
const ETCD_PORT: &str = ":2379";
/// The cluster of an etcd, if none is named.
const NAME: &str = "default";
/// The longest name of a cluster.
const NAME_MAX: usize = 40;

/// Where a cluster is found.
///
/// ```
/// use sluice_cluster::Rendezvous;
/// let place: Rendezvous = "http://10.0.0.1:2379,http://10.0.0.2:2379/work".parse()?;
/// assert_eq!(place.to_string(), "http://10.0.0.1:2379,http://10.0.0.2:2379/work");
/// let place: Rendezvous = "etcd:10.0.0.1".parse()?;
/// assert_eq!(place.to_string(), "http://10.0.0.1:2379/default");
/// assert!("https://".parse::<Rendezvous>().is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// A directory.
    Directory(PathBuf),
    /// The cluster with a name at an etcd.
    Etcd {
        /// `http://HOST:PORT` or `https://HOST:PORT` of each member of etcd.
        endpoints: Vec<String>,
        /// The prefix of the cluster's keys in etcd.
        name: String,
    },
}

impl Rendezvous {
    /// How its etcd is reached, with what the environment says.
    pub(crate) fn access(endpoints: &[String]) -> EtcdAccess {
        EtcdAccess::from_environment(endpoints)
    }

    /// Where the keys of the cluster are on this machine, if it is not said: in the directory, or in `sluice/NAME` among the
    /// configuration of the machine or of a user that is not root.
    pub fn keys(&self) -> PathBuf {
        let name = match self {
            Rendezvous::Directory(dir) => return dir.clone(),
            Rendezvous::Etcd { name, .. } => name,
        };
        let dir = |name| env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let of_user = || match rustix::process::geteuid().is_root() {
            true => None,
            false => Some(dir("HOME")?.join(".config")),
        };
        let base = dir("XDG_CONFIG_HOME").or_else(of_user).unwrap_or_else(|| "/etc".into());
        base.join("sluice").join(name)
    }

    /// The address of this machine from which it reaches the place, and where others are likely to reach it: the first one that is
    /// not for this machine alone.
    ///
    /// # Errors
    /// If no host of it has an address.
    pub fn own_address(&self) -> io::Result<IpAddr> {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let Rendezvous::Etcd { endpoints, .. } = self else { return Ok(loopback) };
        let mut outcome = Err(io::ErrorKind::NotFound.into());
        for endpoint in endpoints {
            let host = endpoint.split_once("://").map_or(endpoint.as_str(), |(_, host)| host);
            let found =
                host.to_socket_addrs().and_then(|mut all| all.next().ok_or(io::ErrorKind::NotFound.into()));
            // Nothing is sent: the system says which of its addresses it would use.
            let own = found.and_then(|of| {
                let socket = UdpSocket::bind(if of.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
                socket.connect(of)?;
                Ok(socket.local_addr()?.ip())
            });
            match own {
                Ok(own) if !own.is_loopback() => return Ok(own),
                Err(error) if outcome.is_err() => {
                    outcome = Err(io::Error::new(error.kind(), format!("{host}: {error}")));
                }
                own => outcome = own.or(outcome),
            }
        }
        outcome
    }
}

impl FromStr for Rendezvous {
    type Err = io::Error;

    /// `dir:SHARED`; or the members of an etcd with commas between them, and the name of the cluster behind the last.
    fn from_str(text: &str) -> io::Result<Rendezvous> {
        let refused = || {
            let text = format!(
                "{text}: give dir:SHARED, or http://HOST:PORT[,http://HOST:PORT...][/NAME] of an etcd"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        if let Some(dir) = text.strip_prefix("dir:").filter(|dir| !dir.is_empty()) {
            return Ok(Rendezvous::Directory(dir.into()));
        }
        let (text, is_plain) = match text.strip_prefix("etcd:") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let mut endpoints = Vec::new();
        let mut name = NAME;
        let mut parts = text.split(',').peekable();
        while let Some(part) = parts.next() {
            let (scheme, rest) = match part.split_once("://") {
                Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
                None if is_plain => ("http", part),
                _ => return Err(refused()),
            };
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let is_host = !host.is_empty() && !host.starts_with(':') && !host.contains([' ', '@', '?', '#']);
            if !is_host || !path.is_empty() && parts.peek().is_some() {
                return Err(refused());
            }
            if !path.is_empty() {
                name = path;
            }
            // An address of version 6 stands in brackets.
            let has_port = host.rsplit_once(']').map_or(host, |(_, rest)| rest).contains(':');
            endpoints.push(format!("{scheme}://{host}{}", if has_port { "" } else { ETCD_PORT }));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.len() > NAME_MAX || !name.chars().all(is_name) || name.starts_with('.') {
            let text =
                format!("{name}: the name of a cluster is of letters, digits and -_., at most {NAME_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Rendezvous::Etcd { endpoints, name: name.to_owned() })
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rendezvous::Directory(dir) => write!(f, "dir:{}", dir.display()),
            Rendezvous::Etcd { endpoints, name } => write!(f, "{}/{name}", endpoints.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written_and_others_are_refused() {
        for (text, same) in [
            ("dir:/shared", "dir:/shared"),
            ("http://a:1", "http://a:1/default"),
            ("http://a:1/", "http://a:1/default"),
            ("https://a:1,https://b:2/work", "https://a:1,https://b:2/work"),
            ("http://[::1]", "http://[::1]:2379/default"),
            ("http://[::1]:5/x", "http://[::1]:5/x"),
            ("etcd:a:1,b:2/work", "http://a:1,http://b:2/work"),
        ] {
            let place: Rendezvous = text.parse().expect(text);
            assert_eq!(place.to_string(), same);
            assert_eq!(same.parse::<Rendezvous>().expect(same), place);
        }
        for text in [
            "dir:",
            "etcd",
            "",
            "http://",
            "http:///x",
            "http://a:1/x,http://b:2",
            "ftp://a",
            "http://a/x y",
            "http://a/..",
            "http://u:p@a:1",
            "/path",
            "http://a,",
            "http://a/x/y",
        ] {
            assert!(text.parse::<Rendezvous>().is_err(), "{text}");
        }
        let here = "etcd:127.0.0.1:1".parse::<Rendezvous>().and_then(|place| place.own_address());
        assert!(here.expect("it has an address").is_loopback());
        assert!("etcd:no-such-host.invalid".parse::<Rendezvous>().expect("a place").own_address().is_err());
    }
}
