//! Dlm: the cost of a lock between two nodes of the lock manager, beside a lock in etcd and a bare TCP round trip.
//!
//! Both nodes stand in this process and talk over the loopback with TLS. All variants run in turn, so that a slow minute of
//! the computer hits them all; the etcd variant is left out where no etcd is installed.

use super::curves::Curves;
use super::verdict::Verdict;
use super::{ExperimentSession, Findings};
use crate::row::Row;
use crate::timed_run::{Outcome, latencies};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::Histogram;
use sluice_console::failure::{Failure, Result};
use sluice_console::private_dir::PrivateDir;
use sluice_console::servers::{ServerProcess, tools};
use sluice_dlm::{Config, Dlm, Key, Mode, Want};
use sluice_membership::{ClusterCa, InMemory, Membership};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, cpu, thread};
use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

const WORKLOAD: &str = "dlm-lock";
const RUNS: usize = 5;
/// Every variant, with its tasks and the operations of each run.
const VARIANTS: [(&str, usize, usize); 6] = [
    ("cached", 1, 100_000),
    ("remote", 1, 400),
    ("contended", 2, 0),
    ("contended-no-hold", 2, 0),
    ("etcd", 1, 100),
    ("tcp", 1, 1_000),
];
/// The length of a contended run.
const FIGHT: Duration = Duration::from_millis(300);
/// The minimum hold of a contended lock.
const HOLD: Duration = Duration::from_millis(5);

pub(super) fn steps() -> usize {
    RUNS * VARIANTS.len()
}

pub(super) fn run(session: &mut ExperimentSession<'_>) -> Result<Findings> {
    // Before there are nodes and servers of ours.
    session.met.look(&cpu::allowed());
    let dir = PrivateDir::below(&std::env::temp_dir())?;
    let etcd =
        ServerProcess::etcd(&tools()?, dir.path(), IpAddr::V4(Ipv4Addr::LOCALHOST), 1)?.unwrap_or_default();
    let mut bench = LockBench::new(etcd.first().map(|server| EtcdLock::new(&server.url)))?;
    let mut outcomes = VARIANTS.map(|_| Vec::new());
    for round in 0..RUNS {
        for ((variant, _, ops), outcomes) in VARIANTS.iter().zip(&mut outcomes) {
            let what = format!("{WORKLOAD} natively, {variant}, run {}", round + 1);
            outcomes.extend(session.step(&what, || bench.run(variant, *ops))??);
        }
    }
    let mut rows = Vec::new();
    for ((variant, tasks, _), outcomes) in
        VARIANTS.iter().zip(&outcomes).filter(|(_, outcomes)| !outcomes.is_empty())
    {
        let mut row = Row::new(&session.origin, WORKLOAD, "lib".to_owned(), *tasks, *tasks);
        row.variant = Some((*variant).to_owned());
        row.unpinned = true;
        row.set_outcomes(outcomes);
        session.row(&row)?;
        rows.push(row);
    }
    let mut tables = Curves(&rows).tables();
    if etcd.is_empty() {
        tables.push_str(
            "The variant etcd was left out: no etcd is installed (apt-get install etcd-server).\n\n",
        );
    }
    Ok(Findings { tables, verdicts: verdicts(&rows) })
}

fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let median = |variant: &str| {
        let row = rows.iter().find(|row| row.variant.as_deref() == Some(variant));
        row.and_then(|row| row.p50_ns.map(|time| time as f64).or(row.mean_ns))
    };
    let over = |variant: &str, other: &str| Some(median(variant)? / median(other)?);
    let mut verdicts = Vec::new();
    if let Some(share) = over("cached", "tcp") {
        let seen = format!("natively: lock and unlock take {share:.4} of a TCP round trip");
        verdicts.push(Verdict::new("a cached lock costs no message", seen, share < 0.1));
    }
    if let Some(trips) = over("remote", "tcp") {
        let seen = format!("natively: {trips:.1} TCP round trips (wanted: 3 at most)");
        verdicts.push(Verdict::new("a first lock costs one request and one answer", seen, trips <= 3.0));
    }
    if let Some(times) = over("etcd", "remote") {
        let seen =
            format!("natively: lock and unlock in etcd take {times:.0} times a lock from another node");
        verdicts.push(Verdict::new(
            "a lock manager answers sooner than a store that agrees on a log",
            seen,
            times > 1.0,
        ));
    }
    verdicts
}

/// Two pairs of nodes and the connections beside them.
struct LockBench {
    /// Nodes with a minimum hold.
    holding: [Dlm; 2],
    /// Nodes without one.
    passing: [Dlm; 2],
    etcd: Option<EtcdLock>,
    ping: PingPong,
    /// Names that were used.
    names: usize,
}

impl LockBench {
    fn new(etcd: Option<EtcdLock>) -> Result<LockBench> {
        let ca = ClusterCa::new().map_err(failed)?;
        let nodes = |hold| -> Result<[Dlm; 2]> {
            let membership: Arc<dyn Membership> = Arc::new(InMemory::new(64, Duration::from_secs(10)));
            let join = || {
                let identity = ca.issue().map_err(failed)?;
                let config = Config::local("lab", identity, membership.clone());
                Dlm::join_now(Config { hold, ..config }).map_err(failed)
            };
            Ok([join()?, join()?])
        };
        let (holding, passing) = (nodes(HOLD)?, nodes(Duration::ZERO)?);
        for [node, _] in [&holding, &passing] {
            // The first lock of all waits until every shard has a master.
            lock(node, &node.key("contended").map_err(failed)?)?;
        }
        Ok(LockBench { holding, passing, etcd, ping: PingPong::new()?, names: 0 })
    }

    /// One run of a variant; nothing for etcd without a server.
    fn run(&mut self, variant: &str, ops: usize) -> Result<Option<Outcome>> {
        match variant {
            "cached" => self.cached(ops).map(Some),
            "remote" => self.remote(ops).map(Some),
            "contended" => contend(&self.holding).map(Some),
            "contended-no-hold" => contend(&self.passing).map(Some),
            "etcd" => self.etcd.as_mut().map(|etcd| timed(ops, || etcd.lock_and_unlock())).transpose(),
            _ => timed(ops, || self.ping.round_trip()).map(Some),
        }
    }

    /// One node locks and unlocks a lock that it has. The clock is read at the ends only: it costs a third of an operation.
    fn cached(&self, ops: usize) -> Result<Outcome> {
        let node = &self.holding[0];
        let key = node.key("cached").map_err(failed)?;
        lock(node, &key)?;
        let begin = Instant::now();
        for _ in 0..ops {
            if node.lock_cached(&key, Mode::Ex).is_none() {
                lock(node, &key)?;
            }
        }
        Ok(Outcome::new(ops as u64, ops as f64 / begin.elapsed().as_secs_f64()))
    }

    /// First locks of names whose master is the other node.
    fn remote(&mut self, ops: usize) -> Result<Outcome> {
        let mut sample = LatencySample::new();
        while sample.latency.len() < ops as u64 {
            let node = &self.holding[self.names % 2];
            let key = node.key(format!("new-{}", self.names)).map_err(failed)?;
            self.names += 1;
            let sent = node.node().statistics().sent.get();
            let begin = Instant::now();
            lock(node, &key)?;
            let time = begin.elapsed();
            if node.node().statistics().sent.get() != sent {
                sample.add(time);
            }
        }
        Ok(sample.outcome())
    }
}

fn failed(error: impl Display) -> Failure {
    Failure::Failed(format!("the lock manager: {error}"))
}

fn lock(node: &Dlm, key: &Key) -> Result<()> {
    node.lock_wait(key, &Want::new(Mode::Ex), None).map(drop).map_err(failed)
}

/// Both nodes lock and unlock one key.
fn contend(nodes: &[Dlm; 2]) -> Result<Outcome> {
    let key = nodes[0].key("contended").map_err(failed)?;
    let begin = Instant::now();
    let fight = |node: &Dlm| {
        let mut ops = 0;
        while begin.elapsed() < FIGHT {
            lock(node, &key)?;
            ops += 1;
        }
        Ok(ops)
    };
    let counts = thread::scope(|scope| {
        let threads = nodes.each_ref().map(|node| scope.spawn(|| fight(node)));
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err(failed("a thread panicked"))))
    });
    let ops: u64 = counts.into_iter().sum::<Result<u64>>()?;
    Ok(Outcome::new(ops, ops as f64 / begin.elapsed().as_secs_f64()))
}

/// Latencies and their sum.
struct LatencySample {
    latency: Histogram<u64>,
    spent: Duration,
}

impl LatencySample {
    fn new() -> LatencySample {
        LatencySample { latency: latencies(), spent: Duration::ZERO }
    }

    fn add(&mut self, time: Duration) {
        self.spent += time;
        self.latency.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn outcome(self) -> Outcome {
        let ops = self.latency.len();
        Outcome { latency_ns: self.latency, ..Outcome::new(ops, ops as f64 / self.spent.as_secs_f64()) }
    }
}

fn timed(ops: usize, mut operation: impl FnMut() -> Result<()>) -> Result<Outcome> {
    let mut sample = LatencySample::new();
    for _ in 0..ops {
        let begin = Instant::now();
        operation()?;
        sample.add(begin.elapsed());
    }
    Ok(sample.outcome())
}

/// A TCP connection to a thread that sends back what it gets.
struct PingPong(TcpStream);

impl PingPong {
    fn new() -> Result<PingPong> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let ping = TcpStream::connect(listener.local_addr()?)?;
        let (mut pong, _) = listener.accept()?;
        ping.set_nodelay(true)?;
        pong.set_nodelay(true)?;
        thread::spawn(move || {
            let mut bytes = [0; 128];
            while pong.read_exact(&mut bytes).is_ok() && pong.write_all(&bytes).is_ok() {}
        });
        Ok(PingPong(ping))
    }

    fn round_trip(&mut self) -> Result<()> {
        let mut bytes = [0; 128];
        self.0.write_all(&bytes)?;
        Ok(self.0.read_exact(&mut bytes)?)
    }
}

/// A lock as etcd's users take it: a key that is created if it is absent, and deleted.
struct EtcdLock {
    agent: ureq::Agent,
    url: String,
    key: String,
}

impl EtcdLock {
    fn new(url: &str) -> EtcdLock {
        let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(10)));
        EtcdLock { agent: config.build().into(), url: url.to_owned(), key: STANDARD.encode("lab/lock") }
    }

    fn call(&self, call: &str, body: &serde_json::Value) -> Result<String> {
        let answer = self.agent.post(format!("{}/v3/kv/{call}", self.url)).send(body.to_string());
        let text = answer.and_then(|mut answer| answer.body_mut().read_to_string());
        text.map_err(|error| Failure::Failed(format!("etcd at {}: {error}", self.url)))
    }

    fn lock_and_unlock(&mut self) -> Result<()> {
        let key = &self.key;
        let locked = self.call(
            "txn",
            &serde_json::json!({
                "compare": [{ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
                "success": [{ "request_put": { "key": key, "value": key } }],
            }),
        )?;
        if !locked.contains("\"succeeded\":true") {
            return Err(Failure::Failed(format!("etcd at {}: the lock is held by another", self.url)));
        }
        self.call("deleterange", &serde_json::json!({ "key": key })).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_that_needs_no_server_locks() {
        let mut bench = LockBench::new(None).unwrap();
        for (variant, _, _) in VARIANTS {
            let outcome = bench.run(variant, 3).unwrap();
            assert_eq!(outcome.is_none(), variant == "etcd", "{variant}");
            assert!(outcome.is_none_or(|outcome| outcome.ops > 0), "{variant}");
        }
    }

    #[test]
    fn verdicts_are_given_only_for_variants_that_ran() {
        assert!(verdicts(&[]).is_empty());
    }
}
