//! Two nodes in one process, over TCP on this machine: what a cached lock costs, the first lock from another node, and a hand-over.
//!
//! `cargo run --release -p sluice-dlm --example locks`

use sluice_dlm::{ClusterCa, Config, Dlm, InMemory, Key, Membership, Mode, Want};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ca = ClusterCa::new()?;
    let nodes = |hold| -> Result<[Dlm; 2], Box<dyn std::error::Error>> {
        let membership: Arc<dyn Membership> = Arc::new(InMemory::new(64, Duration::from_secs(10)));
        let join =
            || Dlm::join_now(Config { hold, ..Config::local("example", ca.issue()?, membership.clone()) });
        Ok([join()?, join()?])
    };
    let [a, b] = nodes(Duration::from_millis(5))?;
    // The first lock of all waits until the shards have masters.
    let key = a.key("a file")?;
    drop(a.lock_wait(&key, &Want::new(Mode::Ex), None)?);

    println!("cached lock and unlock      {:>9.3} us", cached(&a, &key));
    println!("TCP round trip of 128 B     {:>9.1} us", ping_pong()?);
    std::thread::sleep(Duration::from_millis(500));
    let (remote, own) = first(&a, &b)?;
    println!("first lock, remote master   {remote:>9.1} us");
    println!("first lock, own master      {own:>9.1} us");
    println!("idle lock of another node   {:>9.1} us", idle(&a, &b)?);
    println!("two nodes fight, hold 5 ms  {:>9.0} locks/s", fight(&a, &b, &key));
    let [c, d] = nodes(Duration::ZERO)?;
    drop(c.lock_wait(&key, &Want::new(Mode::Ex), None)?);
    println!("two nodes fight, no hold    {:>9.0} locks/s", fight(&c, &d, &key));
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

/// The median.
fn middle(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn ping_pong() -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut ping = TcpStream::connect(listener.local_addr()?)?;
    let (mut pong, _) = listener.accept()?;
    ping.set_nodelay(true)?;
    pong.set_nodelay(true)?;
    std::thread::spawn(move || {
        let mut bytes = [0; 128];
        while pong.read_exact(&mut bytes).is_ok() && pong.write_all(&bytes).is_ok() {}
    });
    let mut bytes = [0; 128];
    let mut times = Vec::new();
    for _ in 0..5_000 {
        let begun = Instant::now();
        ping.write_all(&bytes)?;
        ping.read_exact(&mut bytes)?;
        times.push(begun.elapsed());
    }
    Ok(middle(times))
}

/// New names, locked by either node: those whose master is the other one, and the rest.
fn first(a: &Dlm, b: &Dlm) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let (mut remote, mut own) = (Vec::new(), Vec::new());
    for n in 0..4_000 {
        let dlm = if n % 2 == 0 { a } else { b };
        let key = dlm.key(format!("new-{n}"))?;
        let sent = dlm.node().statistics().sent.get();
        let begun = Instant::now();
        drop(dlm.lock_wait(&key, &Want::new(Mode::Ex), None)?);
        let time = begun.elapsed();
        if dlm.node().statistics().sent.get() == sent { own.push(time) } else { remote.push(time) }
    }
    Ok((middle(remote), middle(own)))
}

/// Names that the other node has locked and unlocked.
fn idle(a: &Dlm, b: &Dlm) -> Result<f64, Box<dyn std::error::Error>> {
    let mut times = Vec::new();
    std::thread::sleep(Duration::from_millis(20));
    for n in (0..4_000).step_by(2) {
        let key = a.key(format!("new-{n}"))?;
        let begun = Instant::now();
        // A try: the holder does not keep a lock that it does not use.
        drop(b.lock_wait(&key, &Want::now(Mode::Ex), None)?);
        times.push(begun.elapsed());
    }
    Ok(middle(times))
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
