//! TLS: how nodes know each other: a certificate authority for each cluster, and connections that both ends authenticate.
//!
//! A process with a certificate of the cluster's authority is a node of it; others get no further than the handshake. Only TLS 1.3,
//! without early data: so what was recorded of one connection says nothing on another.

use crate::lock_class::{TLS, WRITING};
use crate::words::of_tls;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::{fmt, fs};

/// The name in all certificates: what matters is the authority that has signed them.
const NAME: &str = "node.sluice-dlm";
/// The longest a whole handshake may take, and then each read of a hello.
const PATIENCE: Duration = Duration::from_secs(5);

/// The authority of a cluster.
pub struct ClusterCa {
    /// Its certificate, and while authorities are replaced those of the others that the nodes believe.
    certificates: Vec<CertificateDer<'static>>,
    issuer: Issuer<'static, KeyPair>,
}

/// A node's credentials: its certificate, its key, and the authorities that it trusts: several while one replaces another.
pub struct Identity {
    authorities: Vec<CertificateDer<'static>>,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl ClusterCa {
    /// A new one. Make all identities of a cluster with one.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new() -> io::Result<ClusterCa> {
        let params = ClusterCa::params()?;
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?.der().clone();
        Ok(ClusterCa { certificates: vec![certificate], issuer: Issuer::new(params, key) })
    }

    /// Reads `ca.pem` and `ca.key` of a directory.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn load(dir: &Path) -> io::Result<ClusterCa> {
        let certificates = authorities(dir)?;
        let key = PrivateKeyDer::from_pem_file(dir.join("ca.key")).map_err(of_pem(dir, "ca.key"))?;
        let key = KeyPair::try_from(&key).map_err(|_| damaged(dir, "ca.key"))?;
        let is_of_key = |root: &TrustAnchor<'_>| root.subject_public_key_info.ends_with(key.public_key_raw());
        if !believed(&certificates)?.roots.iter().any(is_of_key) {
            let text =
                format!("{}: ca.key is of no authority in ca.pem: add its certificate there", dir.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(ClusterCa { certificates, issuer: Issuer::new(ClusterCa::params()?, key) })
    }

    /// Writes them. The key is readable by its owner alone: with it identities are made.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        save_text(&dir.join("ca.pem"), &bundle(&self.certificates), 0o644)?;
        save_key(&dir.join("ca.key"), &self.issuer.key().serialize_der())
    }

    /// The parameters of the authority's certificate, the same each time.
    fn params() -> io::Result<CertificateParams> {
        let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(params)
    }

    /// An identity for a node.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn issue(&self) -> io::Result<Identity> {
        let params = CertificateParams::new(vec![NAME.to_string()]).map_err(io::Error::other)?;
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?.der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(io::Error::other)?;
        Ok(Identity { authorities: self.certificates.clone(), certificate, key })
    }
}

impl Identity {
    /// Reads `ca.pem`, `node.pem` and `node.key` of a directory.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn load(dir: &Path) -> io::Result<Identity> {
        let key = PrivateKeyDer::from_pem_file(dir.join("node.key")).map_err(of_pem(dir, "node.key"))?;
        let certificate =
            CertificateDer::from_pem_file(dir.join("node.pem")).map_err(of_pem(dir, "node.pem"))?;
        Ok(Identity { authorities: authorities(dir)?, certificate, key })
    }

    /// Writes them. The key is readable by its owner alone.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        save_text(&dir.join("ca.pem"), &bundle(&self.authorities), 0o644)?;
        save_text(&dir.join("node.pem"), &pem("CERTIFICATE", &self.certificate), 0o644)?;
        save_key(&dir.join("node.key"), self.key.secret_der())
    }

    /// Whether it believes one of the authorities whose certificates are in `pem`.
    pub fn believes_one_of(&self, pem: &str) -> bool {
        let mut named = CertificateDer::pem_slice_iter(pem.as_bytes()).flatten();
        named.any(|authority| self.authorities.contains(&authority))
    }

    /// The two configurations: to be called, and to call.
    ///
    /// # Errors
    /// If the identity is invalid.
    pub fn configurations(&self) -> io::Result<(Arc<ServerConfig>, Arc<ClientConfig>)> {
        let provider = Arc::new(default_provider());
        let roots = Arc::new(believed(&self.authorities)?);
        let versions = &[&rustls::version::TLS13];
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier.build().map_err(io::Error::other)?)
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(|error| io::Error::other(of_tls(&error)))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .with_webpki_verifier(verifier.build().map_err(io::Error::other)?)
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(|error| io::Error::other(of_tls(&error)))?;
        Ok((Arc::new(server), Arc::new(client)))
    }
}

/// The error of a connection whose other side is wrong.
fn of_other_side(error: &rustls::Error) -> io::Error {
    io::Error::other(format!("the node at the other end: {}", of_tls(error)))
}

/// Writes a key that its owner alone may read.
fn save_key(path: &Path, der: &[u8]) -> io::Result<()> {
    save_text(path, &pem("PRIVATE KEY", der), 0o600)
}

/// Writes a file that has this mode, whatever the umask allows.
fn save_text(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::File::options().write(true).create(true).truncate(true).mode(mode).open(path)?;
    // Also of a file that was there.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())
}

/// The certificates in `ca.pem` of `dir`.
///
/// # Errors
/// The system's; `InvalidData` for a file without a certificate, or with one that is damaged.
fn authorities(dir: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(dir.join("ca.pem")).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(of_pem(dir, "ca.pem"))?;
    match believed(&found) {
        Ok(roots) if !roots.is_empty() => Ok(found),
        _ => Err(damaged(dir, "ca.pem")),
    }
}

/// Who believes these `authorities`.
fn believed(authorities: &[CertificateDer<'static>]) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    authorities.iter().try_for_each(|one| roots.add(one.clone())).map_err(io::Error::other)?;
    Ok(roots)
}

fn bundle(certificates: &[CertificateDer<'static>]) -> String {
    certificates.iter().map(|one| pem("CERTIFICATE", one)).collect()
}

/// The error for an unreadable file `name` of `dir`.
fn of_pem(dir: &Path, name: &str) -> impl FnOnce(rustls::pki_types::pem::Error) -> io::Error {
    move |error| match error {
        rustls::pki_types::pem::Error::Io(error) => error,
        _ => damaged(dir, name),
    }
}

fn damaged(dir: &Path, name: &str) -> io::Error {
    let text = format!("{} holds no certificate or key: bring it here again", dir.join(name).display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn pem(label: &str, der: &[u8]) -> String {
    // A line has 64 digits.
    let lines: Vec<String> = der.chunks(48).map(|bytes| BASE64.encode(bytes)).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A connection. One thread reads, and any write.
pub struct Secure {
    tcp: TcpStream,
    /// *protected by its mutex, which is held across no I/O*
    channel: Mutex<TlsChannel>,
    /// Encrypted bytes that are not written yet. Held by a thread that writes, so that records keep their order.
    writing: Mutex<Vec<u8>>,
}

/// A connection's two directions.
struct TlsChannel {
    connection: Connection,
    /// Decrypted bytes that nobody has asked for yet: rustls takes nothing in while it has a record's worth of them.
    ahead: VecDeque<u8>,
}

/// The turn to write to a connection.
pub(crate) struct WriteTurn<'a> {
    secure: &'a Secure,
    records: MutexGuard<'a, Vec<u8>>,
}

impl Secure {
    /// Answers a call.
    ///
    /// # Errors
    /// The connection's, or if the other side does not belong to the cluster.
    pub fn accept(tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Secure> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Secure::new(tcp, connection.into())
    }

    /// Calls.
    ///
    /// # Errors
    /// The connection's, or if the other side does not belong to the cluster.
    pub fn call(tcp: TcpStream, config: Arc<ClientConfig>) -> io::Result<Secure> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Secure::new(tcp, connection.into())
    }

    fn new(tcp: TcpStream, mut connection: Connection) -> io::Result<Secure> {
        tcp.set_nodelay(true)?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        connection.set_buffer_limit(None);
        let end = Instant::now() + PATIENCE;
        while connection.is_handshaking() {
            while connection.wants_write() {
                connection.write_tls(&mut &tcp)?;
            }
            if !connection.is_handshaking() {
                break;
            }
            // A slow trickle of bytes does not extend the time limit.
            let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
            tcp.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
            if connection.read_tls(&mut &tcp)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = connection.process_new_packets() {
                // The alert tells the other side why.
                let _ = connection.write_tls(&mut &tcp);
                return Err(of_other_side(&error));
            }
        }
        while connection.wants_write() {
            connection.write_tls(&mut &tcp)?;
        }
        tcp.set_read_timeout(Some(PATIENCE))?;
        let channel = Mutex::with_class(&TLS, TlsChannel { connection, ahead: VecDeque::new() });
        Ok(Secure { tcp, channel, writing: Mutex::with_class(&WRITING, Vec::new()) })
    }

    /// Lifts the time limit on silence of the other side.
    ///
    /// # Errors
    /// The connection's.
    pub fn settled(&self) -> io::Result<()> {
        self.tcp.set_read_timeout(None)
    }

    /// Fills `bytes`. For one thread.
    ///
    /// # Errors
    /// The connection's.
    pub fn read_exact(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = self.channel.lock().take(bytes)?;
        while filled < bytes.len() {
            let mut raw = [0; 16 << 10];
            let count = (&self.tcp).read(&mut raw)?;
            let mut rest = &raw[..count];
            if rest.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut channel = self.channel.lock();
            while !rest.is_empty() {
                channel.connection.read_tls(&mut rest)?;
                let state =
                    channel.connection.process_new_packets().map_err(|error| of_other_side(&error))?;
                let moved = channel.decrypted(&mut bytes[filled..])?;
                filled += moved;
                if !rest.is_empty() {
                    let mut more = vec![0; state.plaintext_bytes_to_read() - moved];
                    channel.decrypted(&mut more)?;
                    channel.ahead.extend(more);
                }
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The connection's.
    pub fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.turn().write_all(bytes)
    }

    /// The turn to write, when those before have ended.
    pub(crate) fn turn(&self) -> WriteTurn<'_> {
        WriteTurn { secure: self, records: self.writing.lock() }
    }

    /// The turn to write, if no thread has it.
    pub(crate) fn try_turn(&self) -> Option<WriteTurn<'_>> {
        self.writing.try_lock().map(|records| WriteTurn { secure: self, records })
    }

    /// Ends it for both sides, also for a thread that reads.
    pub fn close(&self) {
        // It may be closed already.
        let _ = self.tcp.shutdown(Shutdown::Both);
    }
}

impl TlsChannel {
    /// Moves what has come already to `bytes`: how much.
    fn take(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() && !self.ahead.is_empty() {
            filled += self.ahead.read(&mut bytes[filled..])?;
        }
        Ok(filled + self.decrypted(&mut bytes[filled..])?)
    }

    /// Moves bytes that rustls has decrypted to `bytes`: how many.
    fn decrypted(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.connection.reader().read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl WriteTurn<'_> {
    /// Writes all of `bytes`, after what was left.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.encrypt(bytes)?;
        let written = (&self.secure.tcp).write_all(&self.records);
        self.records.clear();
        written
    }

    /// Writes the remaining bytes and then `bytes`, as far as possible without blocking. False if some is left: the
    /// next thread that has the turn writes it first.
    pub(crate) fn write_at_once(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.encrypt(bytes)?;
        while !self.records.is_empty() {
            match send(&self.secure.tcp, &self.records, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.records.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()> {
        let connection = &mut self.secure.channel.lock().connection;
        connection.writer().write_all(bytes)?;
        while connection.wants_write() {
            connection.write_tls(&mut *self.records)?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClusterCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterCa(..)")
    }
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secure(..)")
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_was_saved_makes_identities_that_the_others_believe() {
        let dir = std::env::temp_dir().join(format!("sluice-membership-ca-{}", std::process::id()));
        let ca = ClusterCa::new().expect("made");
        ca.save(&dir).expect("written");
        let (server, _) = ca.issue().and_then(|one| one.configurations()).expect("issued");
        let again = ClusterCa::load(&dir).and_then(|ca| ca.issue()).expect("issued");
        let (_, client) = again.configurations().expect("whole");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("bound");
        let calling = sluice_sync::thread::spawn(move || {
            Secure::call(TcpStream::connect(address)?, client)?.write_all(b"x")
        });
        let accepted = Secure::accept(listener.accept().expect("called").0, server).expect("believed");
        let mut byte = [0];
        accepted.read_exact(&mut byte).expect("written");
        assert_eq!(&byte, b"x");
        calling.join().expect("no panic").expect("believed");
        fs::remove_dir_all(dir).expect("removed");
    }

    /// Whether a node with one of the identities lets in one with the other.
    fn lets_in(one: &Identity, other: &Identity) -> bool {
        let (server, client) =
            (one.configurations().expect("whole").0, other.configurations().expect("whole").1);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("bound");
        let calling =
            sluice_sync::thread::spawn(move || Secure::call(TcpStream::connect(address)?, client).map(drop));
        let accepted = Secure::accept(listener.accept().expect("called").0, server);
        let called = calling.join().expect("no panic");
        let told = |error: &io::Error| error.to_string().starts_with("the node at the other end: it");
        let has_words =
            [&accepted.as_ref().err(), &called.as_ref().err()].iter().any(|error| error.is_some_and(told));
        assert!(accepted.is_ok() && called.is_ok() || has_words, "{accepted:?} {called:?}");
        accepted.is_ok() && called.is_ok()
    }

    #[test]
    fn an_authority_replaces_another_while_both_are_believed() {
        let dir = std::env::temp_dir().join(format!("sluice-membership-rotation-{}", std::process::id()));
        let (old, new) = (ClusterCa::new().expect("made"), ClusterCa::new().expect("made"));
        let (before, after) = (old.issue().expect("issued"), new.issue().expect("issued"));
        assert!(!lets_in(&before, &after) && !lets_in(&after, &before));
        // As an administrator does it: one file behind the other, and then the key.
        old.save(&dir).expect("written");
        let both = bundle(&old.certificates) + &bundle(&new.certificates);
        fs::write(dir.join("ca.pem"), &both).expect("written");
        let of_old = ClusterCa::load(&dir).and_then(|ca| ca.issue()).expect("issued");
        save_key(&dir.join("ca.key"), &new.issuer.key().serialize_der()).expect("written");
        let of_new = ClusterCa::load(&dir).and_then(|ca| ca.issue()).expect("issued");
        of_new.save(&dir).expect("written");
        let of_new = Identity::load(&dir).expect("read");
        assert_eq!(of_new.authorities.len(), 2);
        for (one, other) in [(&before, &of_old), (&of_old, &of_new), (&of_new, &after)] {
            assert!(lets_in(one, other) && lets_in(other, one));
        }
        // The old one is removed: its certificates are worth nothing.
        assert!(!lets_in(&after, &of_old) && !lets_in(&of_old, &after));
        assert!(of_old.believes_one_of(&bundle(&new.certificates)) && after.believes_one_of(&both));
        assert!(!after.believes_one_of(&bundle(&old.certificates)));
        fs::write(dir.join("ca.pem"), bundle(&old.certificates)).expect("written");
        let refused = ClusterCa::load(&dir).expect_err("nobody would believe what it issues").to_string();
        assert!(refused.contains("ca.key is of no authority in ca.pem"), "{refused}");
        fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn a_handshake_of_a_byte_now_and_then_ends() {
        let (server, _) = ClusterCa::new().and_then(|ca| ca.issue()?.configurations()).expect("made");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let mut tcp = TcpStream::connect(listener.local_addr().expect("bound")).expect("listens");
        let accepting = sluice_sync::thread::spawn(move || {
            Secure::accept(listener.accept().expect("called").0, server).map(drop)
        });
        // The head of a ClientHello of 16 KiB, which never comes as a whole.
        tcp.write_all(b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03").expect("accepted");
        while tcp.write_all(b"\0").is_ok() {
            sluice_sync::thread::sleep(PATIENCE / 50);
        }
        assert!(accepting.join().expect("no panic").is_err());
    }

    #[test]
    fn an_identity_is_the_same_after_it_was_saved() {
        let dir = std::env::temp_dir().join(format!("sluice-membership-identity-{}", std::process::id()));
        let identity = ClusterCa::new().and_then(|ca| ca.issue()).expect("made");
        identity.save(&dir).expect("written");
        let again = Identity::load(&dir).expect("read");
        assert_eq!(again.authorities, identity.authorities);
        assert_eq!(again.certificate, identity.certificate);
        assert_eq!(again.key.secret_der(), identity.key.secret_der());
        fs::remove_dir_all(dir).expect("removed");
    }
}
