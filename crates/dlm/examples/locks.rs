//! Two nodes in one process, over TCP on this machine: what a cached lock costs, the first lock from another node, and a hand-over.
//! A TCP round trip is taken before each of these, so that a ratio holds on a busy machine too.
//!
//! `cargo run --release -p sluice-dlm --example locks`

use sluice_dlm::{ClusterCa, Config, Dlm, InMemory, Key, Membership, Mode, Secure, Want};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ca = ClusterCa::new()?;
    let nodes = |hold| -> Result<[Dlm; 2], Box<dyn std::error::Error>> {
        let membership: Arc<dyn Membership> = Arc::new(InMemory::new(64, Duration::from_secs(10)));
        let join =
            || Dlm::join_now(Config { hold, ..Config::local("example", ca.issue()?, membership.clone()) });
        Ok([join()?, join()?])
    };
    println!("TLS round trip of 128 B     {}", secure(&ca, &mut Ping::new()?)?);
    let [a, b] = nodes(Duration::from_millis(5))?;
    // The first lock of all waits until the shards have masters.
    let key = a.key("a file")?;
    drop(a.lock_wait(&key, &Want::new(Mode::Ex), None)?);

    println!("cached lock and unlock      {:>9.3} us", cached(&a, &key));
    let mut ping = Ping::new()?;
    std::thread::sleep(Duration::from_millis(500));
    let [remote, own] = first(&a, &b, &mut ping)?;
    println!("first lock, remote master   {remote}");
    println!("first lock, own master      {own}");
    println!("idle lock of another node   {}", idle(&a, &b, &mut ping)?);
    println!("two nodes fight, hold 5 ms  {:>9.0} locks/s", fight(&a, &b, &key));
    let [c, d] = nodes(Duration::ZERO)?;
    drop(c.lock_wait(&key, &Want::new(Mode::Ex), None)?);
    println!("two nodes fight, no hold    {:>9.0} locks/s", fight(&c, &d, &key));
    println!("hand-over to a waiting node {}", hand_over(&c, &d, &mut ping)?);
    memory(&a)?;
    Ok(())
}

fn cached(dlm: &Dlm, key: &Key) -> f64 {
    let begun = Instant::now();
    let count = 1_000_000;
    for _ in 0..count {
        drop(dlm.lock_cached(key, Mode::Ex));
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

/// What was measured, each time after a TCP round trip.
#[derive(Default)]
struct Pairs {
    round_trips: Vec<Duration>,
    times: Vec<Duration>,
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let middle = |times: &[Duration]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        let (time, round_trip) = (middle(&self.times), middle(&self.round_trips));
        write!(f, "{time:>9.1} us, {:.2} TCP round trips of {round_trip:.1} us", time / round_trip)
    }
}

/// Two threads with a TCP connection.
struct Ping(TcpStream);

impl Ping {
    fn new() -> io::Result<Ping> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let ping = TcpStream::connect(listener.local_addr()?)?;
        let (mut pong, _) = listener.accept()?;
        ping.set_nodelay(true)?;
        pong.set_nodelay(true)?;
        std::thread::spawn(move || {
            let mut bytes = [0; 128];
            while pong.read_exact(&mut bytes).is_ok() && pong.write_all(&bytes).is_ok() {}
        });
        Ok(Ping(ping))
    }

    /// A round trip of 128 bytes.
    fn round_trip(&mut self) -> io::Result<Duration> {
        let mut bytes = [0; 128];
        let begun = Instant::now();
        self.0.write_all(&bytes)?;
        self.0.read_exact(&mut bytes)?;
        Ok(begun.elapsed())
    }
}

/// A round trip over a connection as the nodes have them.
fn secure(ca: &ClusterCa, ping: &mut Ping) -> Result<Pairs, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let tcp = TcpStream::connect(listener.local_addr()?)?;
    let (answering, calling) = ca.issue()?.configurations()?;
    let (accepted, _) = listener.accept()?;
    std::thread::spawn(move || -> io::Result<()> {
        let pong = Secure::accept(accepted, answering)?;
        let mut bytes = [0; 128];
        loop {
            pong.read_exact(&mut bytes)?;
            pong.write_all(&bytes)?;
        }
    });
    let connection = Secure::call(tcp, calling)?;
    let mut pairs = Pairs::default();
    for _ in 0..5_000 {
        pairs.round_trips.push(ping.round_trip()?);
        let mut bytes = [0; 128];
        let begun = Instant::now();
        connection.write_all(&bytes)?;
        connection.read_exact(&mut bytes)?;
        pairs.times.push(begun.elapsed());
    }
    Ok(pairs)
}

/// New names, locked by either node: those whose master is the other one, and the rest.
fn first(a: &Dlm, b: &Dlm, ping: &mut Ping) -> Result<[Pairs; 2], Box<dyn std::error::Error>> {
    let mut pairs = [Pairs::default(), Pairs::default()];
    for n in 0..4_000 {
        let dlm = if n % 2 == 0 { a } else { b };
        let key = dlm.key(format!("new-{n}"))?;
        let round_trip = ping.round_trip()?;
        let sent = dlm.node().statistics().sent.get();
        let begun = Instant::now();
        drop(dlm.lock_wait(&key, &Want::new(Mode::Ex), None)?);
        let time = begun.elapsed();
        let is_own = dlm.node().statistics().sent.get() == sent;
        let of_it = &mut pairs[usize::from(is_own)];
        of_it.round_trips.push(round_trip);
        of_it.times.push(time);
    }
    Ok(pairs)
}

/// Names that the other node has locked and unlocked.
fn idle(a: &Dlm, b: &Dlm, ping: &mut Ping) -> Result<Pairs, Box<dyn std::error::Error>> {
    let mut pairs = Pairs::default();
    std::thread::sleep(Duration::from_millis(20));
    for n in (0..4_000).step_by(2) {
        let key = a.key(format!("new-{n}"))?;
        pairs.round_trips.push(ping.round_trip()?);
        let begun = Instant::now();
        // A try: the holder does not keep a lock that it does not use.
        drop(b.lock_wait(&key, &Want::now(Mode::Ex), None)?);
        pairs.times.push(begun.elapsed());
    }
    Ok(pairs)
}

/// From the unlock of one node until the other one, which waits, has the lock.
fn hand_over(a: &Dlm, b: &Dlm, ping: &mut Ping) -> Result<Pairs, Box<dyn std::error::Error>> {
    let mut pairs = Pairs::default();
    for n in 0..500 {
        let key = a.key(format!("passed-{n}"))?;
        let guard = a.lock_wait(&key, &Want::new(Mode::Ex), None)?;
        let got = std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| b.lock_wait(&key, &Want::new(Mode::Ex), None).map(|_| Instant::now()));
            // Until the request has come here.
            std::thread::sleep(Duration::from_millis(2));
            pairs.round_trips.push(ping.round_trip()?);
            let begun = Instant::now();
            drop(guard);
            let got = waiting.join().map_err(|_| "a thread panicked")??;
            Ok::<_, Box<dyn std::error::Error>>(got - begun)
        })?;
        pairs.times.push(got);
    }
    Ok(pairs)
}

/// Both nodes lock and unlock the same key for a second.
fn fight(a: &Dlm, b: &Dlm, key: &Key) -> f64 {
    let work = |dlm: &Dlm| {
        let begun = Instant::now();
        let mut count = 0_u32;
        while begun.elapsed() < Duration::from_secs(1) {
            drop(dlm.lock_wait(key, &Want::new(Mode::Ex), None));
            count += 1;
        }
        count
    };
    std::thread::scope(|scope| {
        let (x, y) = (scope.spawn(|| work(a)), scope.spawn(|| work(b)));
        f64::from(x.join().unwrap_or(0) + y.join().unwrap_or(0))
    })
}

/// Bytes of this process for each lock that is cached here, with what its master has of it, half of which are here too.
fn memory(dlm: &Dlm) -> Result<(), Box<dyn std::error::Error>> {
    let resident = || -> Option<u64> {
        let text = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    let count = 200_000_u64;
    let before = resident();
    for n in 0..count {
        let key = dlm.key(format!("memory-{n}"))?;
        drop(dlm.lock_wait(&key, &Want::new(Mode::Ex), None)?);
    }
    if let (Some(before), Some(after)) = (before, resident()) {
        println!("memory of lock and resource {:>9} bytes", (after - before) / count);
    }
    Ok(())
}
