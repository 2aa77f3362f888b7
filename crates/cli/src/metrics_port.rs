//! MetricsPort: answers HTTP requests with the counts of a mount (`-o metrics=ADDRESS`).
//!
//! # Theory
//! Each client has a thread, and a limited time to ask and to read. So many are served at once; one more takes the place of the client that has
//! been there the longest, whose connection ends. A collector needs milliseconds, so clients that are slow, or say nothing, keep none from
//! an answer. While the server of the mount does not answer, threads stay until they know that; beyond their bound a client is refused (503).

use crate::metrics::{self, MountPlace};
use crate::mount_stat;
use sluice_console::failure::{Context, Result};
use sluice_fuse::control;
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Mutex, thread};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// How long a client may take to ask, and how long to read.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest head of a request that is read.
const HEAD_MAX: u64 = 8192;
/// So many clients have a connection at once, ...
const CLIENTS_MAX: usize = 32;
/// ... and so many threads there are at most.
const THREADS_MAX: usize = 64;
/// The pause between attempts to take the address.
const BIND_AGAIN: Duration = Duration::from_secs(1);
/// The pause after a client could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);
/// The answer while there are no counts.
const UNAVAILABLE: &str = "503 Service Unavailable";

/// Answers every HTTP request at `address` with the counts of the mount `device`, until the process ends.
///
/// # Errors
/// The address cannot be used.
pub(crate) fn serve_metrics(address: SocketAddr, device: (u32, u32), place: MountPlace) -> Result<()> {
    let listener = TcpListener::bind(address).context(|| format!("mount option metrics={address}"))?;
    let port = MetricsPort::new(device, place, PATIENCE);
    thread::spawn(move || port.answer_all(&listener));
    Ok(())
}

/// As [`serve_metrics`], as soon as no other process has the address.
pub(crate) fn serve_metrics_later(address: SocketAddr, device: (u32, u32), place: MountPlace) {
    thread::spawn(move || {
        let mut is_told = false;
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) if !std::mem::replace(&mut is_told, true) => {
                    log::warn!("mount option metrics={address}: {error}: tried again until it works");
                }
                Err(_) => thread::sleep(BIND_AGAIN),
            }
        };
        MetricsPort::new(device, place, PATIENCE).answer_all(&listener);
    });
}

/// The counts of one mount, for clients.
struct MetricsPort {
    device: (u32, u32),
    place: MountPlace,
    /// For each of the two parts of a client's time.
    patience: Duration,
    /// *Protected by its mutex.*
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    /// Clients with a connection, the latest at the end, by number.
    connected: VecDeque<(u64, TcpStream)>,
    threads: usize,
    /// The number of the next one.
    next: u64,
}

impl MetricsPort {
    fn new(device: (u32, u32), place: MountPlace, patience: Duration) -> Arc<MetricsPort> {
        Arc::new(MetricsPort { device, place, patience, clients: Mutex::new(Clients::default()) })
    }

    fn answer_all(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            match client.and_then(|stream| self.clone().admit(stream)) {
                Ok(()) => {}
                // Out of descriptors, threads or memory: there may be some again later.
                Err(_) => thread::sleep(ACCEPT_AGAIN),
            }
        }
    }

    /// Serves a client on a thread of its own, or refuses it.
    fn admit(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let second = stream.try_clone()?;
        let number = {
            let mut clients = self.clients.lock();
            if clients.threads >= THREADS_MAX {
                drop(clients);
                stream.set_nonblocking(true)?;
                // A client that goes away is its own loss.
                let _ = (&stream).write(head_of(UNAVAILABLE, 0).as_bytes());
                return Ok(());
            }
            clients.threads += 1;
            clients.next += 1;
            let number = clients.next;
            clients.connected.push_back((number, second));
            if clients.connected.len() > CLIENTS_MAX
                && let Some((_, oldest)) = clients.connected.pop_front()
            {
                // Its thread goes on with an error. The client may have gone.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            number
        };
        let port = self.clone();
        let serve = move || {
            // As above.
            let _ = port.answer(&stream);
            port.leave(number);
        };
        let began = thread::Builder::new().name("sluice-metrics".into()).spawn(serve);
        began.map(drop).inspect_err(|_| self.leave(number))
    }

    /// The client with this number has been served, or never will be.
    fn leave(&self, number: u64) {
        let mut clients = self.clients.lock();
        clients.threads -= 1;
        clients.connected.retain(|(other, _)| *other != number);
    }

    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        // The whole head must be read, or closing would reset the connection before the answer is.
        let mut asking = Timed { stream, end: Instant::now() + self.patience };
        let mut head = BufReader::new((&mut asking).take(HEAD_MAX));
        let mut line = Vec::new();
        while head.read_until(b'\n', &mut line)? > 0 && !line.trim_ascii_end().is_empty() {
            line.clear();
        }
        let stat = control::stat_of_device(self.device)?.and_then(|json| mount_stat::parse(&json).ok());
        let (status, body) = match stat {
            Some(stat) => ("200 OK", metrics::prometheus(&stat, &self.place)),
            None => (UNAVAILABLE, String::new()),
        };
        let mut reading = Timed { stream, end: Instant::now() + self.patience };
        reading.write_all((head_of(status, body.len()) + &body).as_bytes())
    }
}

/// The head of an answer whose body has so many bytes.
fn head_of(status: &str, length: usize) -> String {
    let kind = "text/plain; version=0.0.4";
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

/// A connection that works until `end`, however little comes or goes at a time.
struct Timed<'s> {
    stream: &'s TcpStream,
    end: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        left.map(Some).ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No mount has this number.
    const DEVICE: (u32, u32) = (0, 4_000_000);

    /// A port whose clients have as much time as they like, and its address.
    fn port() -> (Arc<MetricsPort>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let place = MountPlace { directory: "/srv".into(), store: "ram".into() };
        let port = MetricsPort::new(DEVICE, place, Duration::from_secs(3600));
        let serves = port.clone();
        thread::spawn(move || serves.answer_all(&listener));
        (port, address)
    }

    fn asked(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn clients_that_say_nothing_keep_no_other_from_an_answer_and_are_bounded() {
        let (port, address) = port();
        let mut silent = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET").unwrap();
            silent.push(stream);
            assert!(asked(address).starts_with("HTTP/1.1 503 "), "there is no such mount");
        }
        assert!(port.clients.lock().connected.len() <= CLIENTS_MAX + 1);
        // The first one was cut off, the last one was not.
        assert_eq!(silent[0].read(&mut [0]).unwrap_or(0), 0);
        silent[99].set_nonblocking(true).unwrap();
        assert_eq!(silent[99].read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_client_is_refused_at_once_when_all_threads_are_taken() {
        let (port, address) = port();
        port.clients.lock().threads = THREADS_MAX;
        let mut stream = TcpStream::connect(address).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
    }

    #[test]
    fn a_client_has_a_time_for_all_it_sends_and_reads_however_slowly() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut over = Timed { stream: &stream, end: Instant::now() };
        assert_eq!(over.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(over.write(&[0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
