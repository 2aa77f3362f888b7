//! A node that reaches neither the membership nor the store, for longer than its lease: it stops, another takes over, and it comes
//! back or leaves.

use crate::faults::{Node as Way, Plan};
use crate::harness::{can_mount, eventually, fresh_dir};
use object_store::memory::InMemory;
use sluice_bucket::Claim;
use sluice_cluster::{Cluster, Config, Node, Rendezvous, Role};
use sluice_fuse::MountOptions;
use sluice_membership::{Membership, NodeId, ShardId, View};
use sluice_vfs::{Options, Superblock};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Long enough that a slow machine ends no lease of a node that is not cut off.
const TTL: Duration = Duration::from_secs(8);
/// Nothing is measured by it.
const HANG: Duration = Duration::from_secs(120);

/// A node's way to the membership, which may be cut. The known view stays known.
struct Reached {
    membership: Arc<dyn Membership>,
    is_cut: AtomicBool,
    known: std::sync::Mutex<View>,
}

impl Reached {
    fn reach(&self) -> io::Result<&dyn Membership> {
        match self.is_cut.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(&*self.membership),
        }
    }
}

impl Membership for Reached {
    fn ttl(&self) -> Duration {
        self.membership.ttl()
    }
    fn shards(&self) -> u16 {
        self.membership.shards()
    }
    fn join(&self, address: &str) -> io::Result<NodeId> {
        self.reach()?.join(address)
    }
    fn renew(&self, node: NodeId) -> io::Result<bool> {
        self.reach()?.renew(node)
    }
    fn claim(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        self.reach()?.claim(node, shard, epoch)
    }
    fn resign(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        self.reach()?.resign(node, shard, epoch)
    }
    fn fenced(&self, dead: NodeId) -> io::Result<bool> {
        self.reach()?.fenced(dead)
    }
    fn leave(&self, node: NodeId) -> io::Result<()> {
        self.reach()?.leave(node)
    }
    fn view(&self, revision: u64, wait: Duration) -> io::Result<View> {
        if let Ok(membership) = self.reach() {
            *self.known.lock().expect("not poisoned") = membership.view(revision, wait)?;
        }
        Ok(self.known.lock().expect("not poisoned").clone())
    }
}

/// A node with its ways to the others.
struct Member {
    node: Node,
    dir: PathBuf,
    membership: Arc<Reached>,
    objects: Arc<Way>,
    /// Its store does not open while this is held.
    gate: Arc<std::sync::Mutex<()>>,
    /// It is opened, and this says that it was not.
    fails_once: Arc<AtomicBool>,
    /// The superblock that was opened last.
    opened: Arc<std::sync::Mutex<std::sync::Weak<Superblock>>>,
}

impl Member {
    fn join(cluster: &Cluster, shared: &Path, objects: &Arc<InMemory>) -> Member {
        let member = Member::start(cluster, shared, objects);
        assert!(member.node.await_server(HANG), "{:?}", member.node.status());
        member
    }

    fn start(cluster: &Cluster, shared: &Path, objects: &Arc<InMemory>) -> Member {
        let objects = Way::new(objects, Plan::default(), 1);
        let membership = cluster.membership().expect("it is there");
        let known = std::sync::Mutex::new(View::default());
        let membership = Arc::new(Reached { membership, is_cut: AtomicBool::new(false), known });
        let (bucket, of, dir) = (objects.bucket(), cluster.clone(), fresh_dir());
        let gate = Arc::new(std::sync::Mutex::new(()));
        let opened = Arc::new(std::sync::Mutex::new(std::sync::Weak::new()));
        let fails_once = Arc::new(AtomicBool::new(false));
        let (passed, fails, last) = (gate.clone(), fails_once.clone(), opened.clone());
        let open = move |epoch| {
            drop(passed.lock().expect("not poisoned"));
            let store = bucket.open(Claim::Epoch(of.store_epoch(epoch)), sluice_store::Options::default());
            let superblock = store.and_then(|store| Superblock::open_in(store, Options::default()));
            let superblock = superblock.map_err(io::Error::other)?;
            if fails.swap(false, Ordering::SeqCst) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            *last.lock().expect("not poisoned") = Arc::downgrade(&superblock);
            Ok(superblock)
        };
        let node = Node::start(Config {
            cluster: cluster.name().to_string(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            identity: cluster.identity(shared).expect("issued"),
            membership: membership.clone(),
            open: Arc::new(open),
            dir: dir.clone(),
            options: MountOptions::parse("locks=sluice,transport=classic").expect("valid"),
            workspaces: None,
        });
        Member { node: node.expect("started"), dir, membership, objects, gate, fails_once, opened }
    }

    fn cut_off(&self) {
        self.objects.cut_off();
        self.membership.is_cut.store(true, Ordering::SeqCst);
    }

    fn reach_again(&self) {
        self.objects.reach_again();
        self.membership.is_cut.store(false, Ordering::SeqCst);
    }

    fn role(&self) -> Role {
        self.node.status().role
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn leave(self) -> io::Result<()> {
        eventually("nothing uses the mount any more", || self.node.unmount().is_ok());
        let left = self.node.leave();
        fs::remove_dir(self.dir).expect("it is empty");
        left
    }
}

/// A node that lost changes with its store may not end as if all were well.
fn assert_tells_of_loss(left: io::Result<()>) {
    let why = left.expect_err("changes were lost").to_string();
    assert_eq!(why, "changes were lost when this node lost the store");
}

/// A cluster and its empty store.
struct Made {
    cluster: Cluster,
    shared: PathBuf,
    objects: Arc<InMemory>,
}

impl Made {
    fn new() -> Made {
        let (shared, objects) = (fresh_dir(), Arc::new(InMemory::new()));
        let place = Rendezvous::Directory(shared.clone());
        let cluster = Cluster::init(&place, &shared, TTL).expect("made");
        let made = Way::new(&objects, Plan::default(), 1).bucket().create(sluice_store::Options::default());
        let made = made.and_then(|store| Superblock::create_in(store, Options::default())).expect("made");
        made.close().expect("closed");
        Made { cluster, shared, objects }
    }

    fn join(&self) -> Member {
        Member::join(&self.cluster, &self.shared, &self.objects)
    }

    /// All have left.
    fn end(self) {
        fs::remove_dir_all(self.shared).expect("removed");
    }
}

/// An owner and a guest.
fn two() -> Option<(Member, Member, Made)> {
    can_mount().then(|| {
        let made = Made::new();
        let [one, other] = [(); 2].map(|()| made.join());
        // A lease of seconds may run out here by itself.
        let is_first = one.role() == Role::Owner;
        let (owner, guest) = if is_first { (one, other) } else { (other, one) };
        (owner, guest, made)
    })
}

#[test]
fn an_owner_that_is_cut_off_from_all_gives_way_by_itself_and_comes_back_as_a_guest() {
    let Some((owner, guest, made)) = two() else { return };
    fs::write(owner.path("kept"), "before").expect("written");
    File::open(owner.path("kept")).and_then(|file| file.sync_all()).expect("durable");
    // Before: it could wait for a server.
    let mut late = File::create(owner.path("late")).expect("made");
    owner.cut_off();
    // It waits in the store of an owner that is none any more.
    let late = std::thread::spawn(move || late.write_all(b"late").and_then(|()| late.sync_all()));
    eventually("it waits for the store", || owner.objects.unheard() > 0 || owner.role() == Role::Waiting);
    eventually("the other is owner", || guest.role() == Role::Owner);
    fs::write(guest.path("meanwhile"), "by the other").expect("another serves");
    assert_eq!(fs::read_to_string(guest.path("kept")).expect("it was durable"), "before");
    eventually("it knows that it is none", || owner.role() == Role::Waiting);
    owner.reach_again();
    eventually("it is served again", || owner.role() != Role::Waiting);
    assert_eq!(fs::read_to_string(owner.path("meanwhile")).expect("it is served"), "by the other");
    assert_eq!(fs::read_to_string(owner.path("kept")).expect("it is served"), "before");
    let late = late.join().expect("no panic");
    match &late {
        Ok(()) => assert_eq!(fs::read_to_string(guest.path("late")).expect("it is durable"), "late"),
        Err(error) => assert!([5, 116].contains(&error.raw_os_error().unwrap_or(0)), "{error}"),
    }
    fs::write(owner.path("after"), "both").expect("written");
    assert_eq!(fs::read_to_string(guest.path("after")).expect("read"), "both");
    let left = owner.leave();
    if late.is_err() {
        assert_tells_of_loss(left);
    }
    guest.leave().expect("everything is durable");
    made.end();
}

#[test]
fn an_owner_that_is_cut_off_from_all_ends_when_it_is_told_to() {
    let Some((owner, guest, made)) = two() else { return };
    fs::write(owner.path("unsynced"), "maybe").expect("written");
    owner.cut_off();
    // Changes that are not durable can be brought nowhere.
    owner.leave().expect_err("not all is durable");
    fs::write(guest.path("f"), "on").expect("another serves");
    guest.leave().expect("everything is durable");
    made.end();
}

#[test]
fn a_node_whose_store_opens_too_late_is_a_guest_of_the_owner_that_there_is_by_then() {
    let Some((first, late, made)) = two() else { return };
    let gate = late.gate.clone();
    let shut = gate.lock().expect("not poisoned");
    first.leave().expect("everything is durable");
    let claimed = || {
        let view = late.membership.view(0, Duration::ZERO).expect("reached");
        view.living_owner(0).is_some_and(|owner| owner.node.0 == late.node.status().node)
    };
    eventually("it is to be the owner", claimed);
    late.membership.is_cut.store(true, Ordering::SeqCst);
    let owner = made.join();
    assert_eq!(owner.role(), Role::Owner);
    fs::write(owner.path("f"), "by the owner").expect("it serves");
    late.reach_again();
    eventually("it is a guest, and does not wait for its store", || late.role() == Role::Guest);
    drop(shut);
    assert_eq!(fs::read_to_string(late.path("f")).expect("it is served"), "by the owner");
    fs::write(late.path("f"), "by the guest").expect("it is served");
    assert_eq!(fs::read_to_string(owner.path("f")).expect("it serves"), "by the guest");
    late.leave().expect("nothing is left to do");
    owner.leave().expect("everything is durable");
    made.end();
}

#[test]
fn a_node_leaves_though_its_store_does_not_open_and_one_whose_store_has_failed_has_it_opened_anew() {
    if !can_mount() {
        return;
    }
    let made = Made::new();
    let node = made.join();
    // As if a push had failed.
    fs::write(node.path("f"), "durable").expect("written");
    File::open(node.path("f")).and_then(|file| file.sync_all()).expect("durable");
    node.fails_once.store(true, Ordering::SeqCst);
    node.opened.lock().expect("not poisoned").upgrade().expect("it is the owner").abandon();
    eventually("it is the owner again", || fs::write(node.path("g"), "anew").is_ok());
    assert_eq!(fs::read_to_string(node.path("f")).expect("it was durable"), "durable");
    let gate = node.gate.clone();
    let shut = gate.lock().expect("not poisoned");
    node.opened.lock().expect("not poisoned").upgrade().expect("it is the owner").abandon();
    eventually("it has no server", || node.role() == Role::Waiting);
    assert_tells_of_loss(node.leave());
    drop(shut);
    made.end();
}

#[test]
fn an_owner_whose_store_refuses_every_write_says_what_is_lost_and_the_other_node_goes_on() {
    let Some((owner, guest, made)) = two() else { return };
    let mut kept = File::create(guest.path("kept")).expect("made");
    kept.write_all(b"before").and_then(|()| kept.sync_all()).expect("durable");
    kept.write_all(b", lost").expect("written");
    owner.objects.fill(true);
    assert_eq!(kept.sync_all().map_err(|error| error.raw_os_error()), Err(Some(5)), "never false success");
    // Its own program waits until there is a server again.
    fs::write(owner.path("f"), "by the other's store").expect("another serves");
    eventually("the other owns", || guest.role() == Role::Owner);
    assert_eq!(fs::read_to_string(guest.path("kept")).expect("it was durable"), "before");
    assert_eq!(fs::read_to_string(guest.path("f")).expect("it is there"), "by the other's store");
    // The program may see two errors, of the store's failure and of the takeover; then no more.
    let _ = kept.sync_all();
    kept.write_all(b", again").and_then(|()| kept.sync_all()).expect("it is durable");
    owner.objects.fill(false);
    drop(kept);
    // No program of its own lost anything.
    owner.leave().expect("nothing is left to do");
    guest.leave().expect("everything is durable");
    made.end();
}

#[test]
fn a_slow_store_costs_time_and_no_takeover() {
    let Some((owner, guest, made)) = two() else { return };
    let epoch = owner.node.status().epoch;
    owner.objects.slow_down(400);
    for round in 0..4 {
        for member in [&owner, &guest] {
            let mut file =
                File::options().append(true).create(true).open(member.path("log")).expect("opened");
            file.write_all(b"line\n").and_then(|()| file.sync_all()).expect("durable");
        }
        let text = fs::read_to_string(guest.path("log")).expect("read");
        assert_eq!(text.lines().count(), 2 * (round + 1));
    }
    assert_eq!((owner.role(), owner.node.status().epoch), (Role::Owner, epoch));
    owner.objects.slow_down(0);
    guest.leave().expect("nothing is left to do");
    owner.leave().expect("everything is durable");
    made.end();
}
