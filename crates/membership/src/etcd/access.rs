//! Access: which etcd is asked, and how a client shows that it may ask.

use std::io;
use std::path::PathBuf;
use std::{env, fmt, fs};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// How the members of an etcd cluster are reached.
///
/// ```
/// use sluice_membership::EtcdAccess;
/// let access = EtcdAccess::from_environment(&["http://10.0.0.1:2379".into(), "http://10.0.0.2:2379".into()]);
/// assert_eq!(access.endpoints.len(), 2);
/// ```
#[derive(Clone, Default)]
pub struct EtcdAccess {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `HOST:PORT` each.
    pub endpoints: Vec<String>,
    /// Name and password, where etcd asks for them.
    pub user: Option<(String, String)>,
    /// A file with the certificates, as PEM, of the authorities that signed those of an etcd that is reached by https.
    pub ca: Option<PathBuf>,
    /// Files with a certificate and its key, as PEM, where etcd asks for them.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl EtcdAccess {
    /// These members, with what the environment says, in the words of etcd's own `etcdctl`: `ETCDCTL_USER` (`NAME:PASSWORD`, or the
    /// name alone and `ETCDCTL_PASSWORD`), `ETCDCTL_CACERT`, `ETCDCTL_CERT` and `ETCDCTL_KEY`.
    pub fn from_environment(endpoints: &[String]) -> EtcdAccess {
        let text = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let path = |name| text(name).map(PathBuf::from);
        let user = text("ETCDCTL_USER").map(|user| match (text("ETCDCTL_PASSWORD"), user.split_once(':')) {
            (None, Some((name, password))) => (name.to_owned(), password.to_owned()),
            (password, _) => (user, password.unwrap_or_default()),
        });
        EtcdAccess {
            endpoints: endpoints.to_vec(),
            user,
            ca: path("ETCDCTL_CACERT"),
            certificate: path("ETCDCTL_CERT").zip(path("ETCDCTL_KEY")),
        }
    }

    /// `SCHEME://HOST:PORT` of each member.
    pub(super) fn urls(&self) -> io::Result<Vec<String>> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let url = |one: &String| match one.split_once("://") {
            None => Ok(format!("http://{one}")),
            Some(("http" | "https", _)) => Ok(one.trim_end_matches('/').to_owned()),
            Some(_) => {
                Err(invalid(format!("{one}: an etcd is reached by http://HOST:PORT or https://HOST:PORT")))
            }
        };
        let urls: Vec<String> = self.endpoints.iter().map(url).collect::<io::Result<_>>()?;
        match urls.iter().find(|url| url.starts_with("https:")) {
            _ if urls.is_empty() => Err(invalid("no etcd is named".into())),
            Some(url) if self.ca.is_none() => Err(invalid(format!(
                "{url}: which authority signed its certificate? ETCDCTL_CACERT=FILE in the environment says it"
            ))),
            _ => Ok(urls),
        }
    }

    /// The settings for a connection by https.
    pub(super) fn tls(&self) -> io::Result<TlsConfig> {
        let mut config = TlsConfig::builder().unversioned_rustls_crypto_provider(sluice_sync::Arc::new(
            rustls::crypto::ring::default_provider(),
        ));
        if let Some(path) = &self.ca {
            config = config.root_certs(RootCerts::from(certificates(path)?));
        }
        if let Some((certificate, key)) = &self.certificate {
            let key = PrivateKey::from_pem(&read(key)?).map_err(|_| of(key, &"there is no key in it"))?;
            config = config.client_cert(Some(ClientCert::new_with_certs(&certificates(certificate)?, key)));
        }
        Ok(config.build())
    }
}

impl fmt::Debug for EtcdAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the password.
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdAccess")
            .field("endpoints", &self.endpoints)
            .field("user", &user)
            .finish_non_exhaustive()
    }
}

fn read(path: &PathBuf) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|error| of(path, &error))
}

fn certificates(path: &PathBuf) -> io::Result<Vec<Certificate<'static>>> {
    let bytes = read(path)?;
    let found = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err(of(path, &"there is no certificate in it")) } else { Ok(found) }
}

fn of(path: &std::path::Path, what: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_address_or_a_certificate_there_is_no_connection() {
        let access = EtcdAccess::from_environment(&[]);
        assert_eq!(access.urls().expect_err("there is none").to_string(), "no etcd is named");
        let access = EtcdAccess { ca: Some("/dev/null".into()), ..access };
        let why = access.tls().expect_err("it is empty").to_string();
        assert_eq!(why, "/dev/null: there is no certificate in it");
        let certificate = Some(("/dev/null".into(), "/dev/null".into()));
        let access = EtcdAccess { ca: None, certificate, ..access };
        assert_eq!(access.tls().expect_err("it is empty").to_string(), "/dev/null: there is no key in it");
    }
}
