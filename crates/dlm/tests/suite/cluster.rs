//! Nodes with threads over TCP on this machine: the way through the kernel, deaths, broken connections, strangers.

use sluice_dlm::{Config, Dlm, LockError, Mode, Want, ask_status, ask_status_at};
use sluice_membership::{ClusterCa, InMemory, Membership, NodeId, View, now};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// No test waits for longer.
const LIMIT: Duration = Duration::from_secs(120);

/// The lease where no death is awaited: none ends while the machine is slow.
const LONG: Duration = Duration::from_secs(60);

fn membership(ttl: Duration) -> Arc<dyn Membership> {
    Arc::new(InMemory::new(8, ttl))
}

fn join(ca: &ClusterCa, membership: &Arc<dyn Membership>) -> Dlm {
    Dlm::join_now(Config::local("test", ca.issue().expect("issued"), membership.clone())).expect("joined")
}

fn deadline() -> Option<Instant> {
    Some(Instant::now() + LIMIT)
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A future, for a thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn three_nodes_count_together() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(LONG));
    let nodes: Vec<_> = (0..3).map(|_| join(&ca, &membership)).collect();
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for dlm in &nodes {
            for _ in 0..2 {
                scope.spawn(|| {
                    let key = dlm.key("counter").expect("short");
                    for _ in 0..200 {
                        let guard = dlm.lock_wait(&key, &Want::new(Mode::Ex), deadline()).expect("a member");
                        let before = total.load(Ordering::Relaxed);
                        std::hint::black_box(&guard);
                        total.store(before + 1, Ordering::Relaxed);
                    }
                });
            }
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), 1_200);
}

#[test]
fn a_lock_is_awaited_and_its_value_goes_with_it() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(LONG));
    let config = |ca: &ClusterCa| Config::local("test", ca.issue().expect("issued"), membership.clone());
    let a = block_on(Dlm::join(config(&ca))).expect("joined");
    let b = block_on(Dlm::join(config(&ca))).expect("joined");
    let guard = block_on(a.lock("name", Mode::Ex)).expect("free");
    guard.set_value(b"7").expect("it writes");
    let waiting = b.lock("name", Mode::Pr);
    assert_eq!(
        block_on(b.lock_key(&b.key("name").expect("short"), Want::now(Mode::Pr))).map(|_| ()),
        Err(LockError::Busy)
    );
    drop(guard);
    let guard = block_on(waiting).expect("unlocked");
    assert_eq!(guard.value().map(|value| value.bytes.to_vec()), Some(b"7".to_vec()));
    assert!(guard.is_valid());
}

#[test]
fn of_two_nodes_parties_that_wait_for_each_other_one_is_told() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(LONG));
    let nodes = [join(&ca, &membership), join(&ca, &membership)];
    let wants: Vec<_> = nodes.iter().map(|dlm| Want::new(Mode::Ex).of(dlm.party())).collect();
    let lock = |node: usize, name| {
        let dlm = &nodes[node];
        dlm.lock_wait(&dlm.key(name).expect("short"), &wants[node], deadline())
    };
    let mut held = vec![Some(lock(0, "a").expect("free")), Some(lock(1, "b").expect("free"))];
    let outcomes = std::thread::scope(|scope| {
        let waits = [("b", held.remove(0)), ("a", held.remove(0))].into_iter().enumerate();
        let waits = waits.map(|(node, (name, mut held))| {
            scope.spawn(move || {
                let outcome = lock(node, name).map(|_| ());
                held.take();
                outcome
            })
        });
        let waits: Vec<_> = waits.collect();
        waits.into_iter().map(|wait| wait.join().expect("no panic")).collect::<Vec<_>>()
    });
    let told = |outcome: &&Result<(), LockError>| **outcome == Err(LockError::Deadlock);
    assert_eq!(outcomes.iter().filter(told).count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
}

#[test]
fn a_dead_nodes_locks_are_free_when_its_lease_is_over_and_it_is_fenced() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(Duration::from_secs(15)));
    let fenced = Arc::new(Mutex::new(Vec::new()));
    let with_fence = || {
        let fenced = fenced.clone();
        let mut config = Config::local("test", ca.issue().expect("issued"), membership.clone());
        config.fence = Some(Arc::new(move |node| {
            fenced.lock().expect("no panic").push(node);
            Ok(())
        }));
        Dlm::join_now(config).expect("joined")
    };
    let nodes: Vec<_> = (0..3).map(|_| with_fence()).collect();
    let [dead, a, b] = nodes.try_into().expect("three");
    let names: Vec<_> = (0..20).map(|n| format!("name-{n}")).collect();
    let guards: Vec<_> =
        names.iter().map(|name| block_on(dead.lock(name, Mode::Ex)).expect("free")).collect();
    let keys: Vec<_> = names.iter().map(|name| a.key(name).expect("short")).collect();
    let id = dead.id();
    guards.into_iter().for_each(std::mem::forget);
    dead.crash();
    for (n, key) in keys.iter().enumerate() {
        let node = if n % 2 == 0 { &a } else { &b };
        let guard = node.lock_wait(key, &Want::new(Mode::Ex), deadline()).expect("free at last");
        assert!(fenced.lock().expect("no panic").contains(&id), "before it is fenced");
        drop(guard);
    }
}

/// A membership that tells of each member an address that leads to it by way of a proxy that breaks connections.
struct Proxied {
    inner: InMemory,
    proxies: Mutex<Vec<(String, SocketAddr)>>,
    cuts: Arc<AtomicU64>,
}

impl Proxied {
    fn start(&self, to: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (to, cuts) = (to.to_string(), self.cuts.clone());
        std::thread::spawn(move || {
            for call in listener.incoming().flatten() {
                let Ok(other) = TcpStream::connect(&to) else { continue };
                let pump = |from: TcpStream, into: TcpStream, cuts: Arc<AtomicU64>| {
                    std::thread::spawn(move || {
                        let (mut bytes, mut sum) = ([0; 1024], 0);
                        // A connection lives for some kilobytes.
                        while let Ok(count) = (&from).read(&mut bytes)
                            && count > 0
                            && (&into).write_all(&bytes[..count]).is_ok()
                            && sum < 6_000
                        {
                            sum += count;
                        }
                        cuts.fetch_add(1, Ordering::Relaxed);
                        let _ = from.shutdown(std::net::Shutdown::Both);
                        let _ = into.shutdown(std::net::Shutdown::Both);
                    });
                };
                let (a, b) = (call.try_clone().expect("open"), other.try_clone().expect("open"));
                pump(call, other, cuts.clone());
                pump(b, a, cuts.clone());
            }
        });
        address
    }
}

impl Membership for Proxied {
    fn ttl(&self) -> Duration {
        self.inner.ttl()
    }
    fn shards(&self) -> u16 {
        self.inner.shards()
    }
    fn join(&self, address: &str) -> io::Result<NodeId> {
        let proxy = self.start(address);
        self.proxies.lock().expect("no panic").push((address.to_string(), proxy));
        self.inner.join(address)
    }
    fn renew(&self, node: NodeId) -> io::Result<bool> {
        self.inner.renew(node)
    }
    fn claim(&self, node: NodeId, shard: u16, epoch: u64) -> io::Result<bool> {
        self.inner.claim(node, shard, epoch)
    }
    fn resign(&self, node: NodeId, shard: u16, epoch: u64) -> io::Result<bool> {
        self.inner.resign(node, shard, epoch)
    }
    fn fenced(&self, dead: NodeId) -> io::Result<bool> {
        self.inner.fenced(dead)
    }
    fn leave(&self, node: NodeId) -> io::Result<()> {
        self.inner.leave(node)
    }
    fn view(&self, revision: u64, wait: Duration) -> io::Result<View> {
        let mut view = self.inner.view(revision, wait)?;
        for (address, proxy) in self.proxies.lock().expect("no panic").iter() {
            for member in view.members.values_mut().filter(|member| member.address == *address) {
                member.address = proxy.to_string();
            }
        }
        Ok(view)
    }
}

#[test]
fn broken_connections_lose_and_repeat_nothing() {
    let ca = ClusterCa::new().expect("made");
    let cuts = Arc::new(AtomicU64::new(0));
    let inner = InMemory::new(8, LONG);
    let membership: Arc<dyn Membership> =
        Arc::new(Proxied { inner, proxies: Mutex::new(Vec::new()), cuts: cuts.clone() });
    let (a, b) = (join(&ca, &membership), join(&ca, &membership));
    let names: Vec<_> = (0..120).map(|n| format!("name-{n}")).collect();
    for name in &names {
        for dlm in [&a, &b] {
            let key = dlm.key(name).expect("short");
            drop(dlm.lock_wait(&key, &Want::new(Mode::Ex), deadline()).expect("in the end"));
        }
    }
    assert!(cuts.load(Ordering::Relaxed) > 1, "connections were broken");
}

#[test]
fn strangers_are_refused_and_do_no_harm() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(LONG));
    let (a, b) = (join(&ca, &membership), join(&ca, &membership));
    let works = |name: &str| {
        drop(b.lock_wait(&b.key(name).expect("short"), &Want::new(Mode::Ex), deadline()).unwrap())
    };
    works("before");
    // Noise, and a handshake that is cut off: the connection is closed, or ignored.
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[22, 3, 1, 2, 0, 1], &[]] {
        let mut stream = TcpStream::connect(a.address()).expect("it listens");
        let _ = stream.write_all(noise);
        drop(stream);
    }
    // Nodes of another authority, and of another cluster under the same one, that claim to be members: their memberships are
    // the same, so they know where to call and by what number.
    let other_ca = ClusterCa::new().expect("made");
    let stranger = join(&other_ca, &membership);
    let identity = ca.issue().expect("issued");
    let foreigner = Dlm::join_now(Config::local("other", identity, membership.clone())).expect("joined");
    for node in [&stranger, &foreigner] {
        let key = node.key("secret").expect("short");
        let soon = Some(Instant::now() + Duration::from_millis(300));
        // It is master of some shards perhaps, but no message of it arrives.
        let _ = node.lock_wait(&key, &Want::new(Mode::Ex), soon);
        assert_eq!(node.node().statistics().received.get(), 0, "nobody talks to it");
    }
    drop((stranger, foreigner));
    until("the others go on without them", || {
        let view = membership.view(0, Duration::ZERO).expect("reached");
        view.members.len() == 2
            && view.owners.iter().all(|owner| owner.is_some_and(|owner| view.is_alive(owner.node)))
    });
    works("after");
}

#[test]
fn a_node_that_leaves_gives_its_locks_up_at_once() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(4 * LIMIT));
    let (a, b) = (join(&ca, &membership), join(&ca, &membership));
    let names: Vec<_> = (0..10).map(|n| format!("name-{n}")).collect();
    names.iter().for_each(|name| drop(block_on(a.lock(name, Mode::Ex)).expect("free")));
    drop(a);
    // Long before the lease ends, or this fails.
    for name in &names {
        drop(b.lock_wait(&b.key(name).expect("short"), &Want::new(Mode::Ex), deadline()).expect("free"));
    }
}

#[test]
fn a_node_tells_who_holds_and_who_waits() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(LONG));
    let socket = std::env::temp_dir().join(format!("sluice-dlm-status-{}", std::process::id()));
    let mut config = Config::local("test", ca.issue().expect("issued"), membership.clone());
    config.status = Some(socket.clone());
    let a = Dlm::join_now(config).expect("joined");
    let key = a.key("busy").expect("short");
    let guard = a.lock_wait(&key, &Want::new(Mode::Ex), deadline()).expect("free");
    let text = ask_status(&socket, false).expect("it answers");
    let granted = format!("1: GRANTED EX node {} {key} token ", a.id());
    assert!(text.starts_with(&granted) && text.contains("\nCACHED EX "), "{text}");
    let waiting = a.lock_key(&key, Want::new(Mode::Pr));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| drop(waiting.wait()));
        until("it waits", || ask_status(&socket, false).is_ok_and(|text| text.contains("->PR")));
        let json: serde_json::Value =
            serde_json::from_str(&ask_status(&socket, true).expect("it answers")).expect("JSON");
        assert_eq!(json["locks"][0]["holders"]["EX"], 1);
        assert_eq!(json["locks"][0]["waiters"][0], "PR");
        drop(guard);
        other.join().expect("no panic");
    });
    drop(a);
    assert!(!socket.exists());
}

#[test]
fn a_node_is_asked_over_the_network_by_those_of_its_cluster() {
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(LONG));
    let dlm = join(&ca, &membership);
    let guard =
        dlm.lock_wait(&dlm.key("busy").expect("short"), &Want::new(Mode::Ex), deadline()).expect("free");
    guard.set_value(b"mine\n").expect("under a lock that writes");
    let ask = |cluster, ca: &ClusterCa| {
        ask_status_at(&dlm.address().to_string(), cluster, &ca.issue().expect("issued"))
    };
    let told: serde_json::Value = serde_json::from_str(&ask("test", &ca).expect("it answers")).expect("JSON");
    assert_eq!(
        (&told["locks"][0]["value"], &told["resources"][0]["name"]),
        (&"mine\\n".into(), &"busy".into())
    );
    let token = guard.token().and_then(|token| token.as_number()).expect("small");
    assert_eq!(told["resources"][0]["grants"][0]["lock_token"], token);
    assert!(ask("other", &ca).is_err() && ask("test", &ClusterCa::new().expect("made")).is_err());
}

#[test]
fn the_locks_of_the_dead_stay_taken_for_the_time_of_grace() {
    let (ttl, grace) = (Duration::from_secs(2), Duration::from_secs(1));
    let (ca, membership) = (ClusterCa::new().expect("made"), membership(ttl));
    let join = || {
        let config = Config::local("test", ca.issue().expect("issued"), membership.clone());
        Dlm::join_now(Config { grace, ..config }).expect("joined")
    };
    let a = join();
    // It is not a member any more if the machine has been slow.
    if let Ok(guard) = a.lock_wait(&a.key("a").expect("short"), &Want::new(Mode::Ex), deadline()) {
        std::mem::forget(guard);
    }
    let until = a.valid_until();
    a.crash();
    let b = join();
    match b.lock_wait(&b.key("a").expect("short"), &Want::new(Mode::Ex), deadline()) {
        Ok(guard) => {
            assert!(!guard.is_valid() || now() > until + u64::try_from(grace.as_nanos()).expect("small"))
        }
        Err(error) => assert_eq!(error, LockError::NotMember, "the machine is slow"),
    }
}
