//! Etcd: the membership of several machines, kept by an etcd cluster that they share.
//!
//! # Theory
//! ```text
//!   sluice/CLUSTER/charter       what the one that founded the cluster says of it, for those that join
//!   sluice/CLUSTER/settings      shards and length of leases, which all members must say
//!   sluice/CLUSTER/joined/NAME   a member's address; the revision that made it is the node's number
//!   sluice/CLUSTER/alive/NAME    the same, for as long as the member's lease: etcd removes it
//!   sluice/CLUSTER/shard/N       number and name of the master; the revision of its last change is the epoch
//! ```
//! A member is dead when `joined` exists without `alive`; it is forgotten when it is fenced. A shard is claimed in one
//! transaction of etcd: if its revision is still the one that the claimant saw, the claimant is alive, and the master
//! before it is not. Revisions are etcd's own, one for each change of anything it keeps, so they grow and never come
//! twice.
//!
//! A thread watches the keys, and reads all of them once more after each change. A watch lasts for a lease at most: a connection
//! that has died silently is not waited for.
//!
//! # Then
//! The guarantees of [`Membership`]; etcd may prolong leases, when its own leader changes, and never shortens a lease.
//!
//! # Lock order
//! `membership.registry`: what was read last, and a user's token; a leaf, never held across a call.

mod access;
mod gateway;

use crate::lock_class::REGISTRY;
use crate::membership::Membership;
use crate::view::{Member, NodeId, Owner, ShardId, View};
pub use access::EtcdAccess;
use gateway::{Gateway, bytes, number, text};
use serde_json::{Value, json};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Condvar, Mutex, Weak, thread};
use std::collections::BTreeMap;
use std::io;

/// The shortest lease. etcd elects a leader within 1.5 s, and its clients must find the new one: with less a node would be called
/// dead for a change of etcd's leader.
const TTL_MIN: Duration = Duration::from_secs(4);
/// A call may take such a part of a lease.
const CALL_SHARE: u32 = 4;
/// How long a call may take before there are leases.
const CALL_PATIENCE: Duration = Duration::from_secs(10);

/// A membership in etcd.
pub struct Etcd {
    shared: Arc<EtcdCluster>,
}

struct EtcdCluster {
    gateway: Gateway,
    /// Before all keys. *immutable*
    prefix: String,
    shards: u16,
    ttl: Duration,
    state: Mutex<Learned>,
    changed: Condvar,
}

#[derive(Default)]
struct Learned {
    /// As it was read last.
    view: View,
    /// Nodes that joined here: by what etcd knows them.
    own: BTreeMap<NodeId, LeasedNode>,
}

#[derive(Clone)]
struct LeasedNode {
    name: String,
    lease: u64,
}

/// All keys as of one revision.
struct Keys {
    revision: u64,
    /// By what follows the prefix: value, revisions of the first and the last change.
    found: BTreeMap<String, (String, u64, u64)>,
}

impl Etcd {
    /// The cluster of this name at an etcd. All nodes say the same `shards` and `ttl`, whole seconds.
    ///
    /// # Errors
    /// `InvalidInput` for a lease of less than four seconds, for a cluster that has other shards or leases, and for a name with
    /// other than letters, digits and `-_.`; etcd's.
    pub fn connect(access: &EtcdAccess, cluster: &str, shards: u16, ttl: Duration) -> io::Result<Etcd> {
        Etcd::check_lease(ttl)?;
        let shared = Arc::new(EtcdCluster {
            gateway: Gateway::new(access, ttl / CALL_SHARE)?,
            prefix: prefix(cluster)?,
            shards,
            ttl,
            state: Mutex::with_class(&REGISTRY, Learned::default()),
            changed: Condvar::new(),
        });
        let settings = format!("{shards} {}", ttl.as_secs());
        let key = shared.key("settings");
        shared.transact(&[absent(&key)], &[put(&key, &settings, None)])?;
        let keys = shared.read()?;
        if keys.found.get("settings").is_none_or(|(found, ..)| *found != settings) {
            return Err(invalid("the cluster has other shards or leases; use another name"));
        }
        shared.state.lock().view = keys.view(shards);
        let watched = Arc::downgrade(&shared);
        thread::Builder::new().name("dlm-etcd".into()).spawn(move || watch(&watched))?;
        Ok(Etcd { shared })
    }

    /// Whether leases may be as long as `ttl`.
    ///
    /// # Errors
    /// `InvalidInput` if not.
    pub fn check_lease(ttl: Duration) -> io::Result<()> {
        if ttl < TTL_MIN || ttl.subsec_nanos() > 0 {
            return Err(invalid("a lease in etcd lasts for four seconds or more, whole ones"));
        }
        Ok(())
    }

    /// Founds a cluster whose leases are to last for `ttl`: keeps `charter` for those that join. False if there is a cluster of this
    /// name.
    ///
    /// # Errors
    /// Errors of [`connect`](Self::connect).
    pub fn found(access: &EtcdAccess, cluster: &str, ttl: Duration, charter: &str) -> io::Result<bool> {
        Etcd::check_lease(ttl)?;
        let key = format!("{}charter", prefix(cluster)?);
        let gateway = Gateway::new(access, CALL_PATIENCE)?;
        Ok(gateway.transact(&[absent(&key)], &[put(&key, charter, None)])?.is_some())
    }

    /// The charter that the [founder](Self::found) of the cluster wrote; none if the cluster does not exist.
    ///
    /// # Errors
    /// Errors of [`connect`](Self::connect).
    pub fn charter(access: &EtcdAccess, cluster: &str) -> io::Result<Option<String>> {
        let key = format!("{}charter", prefix(cluster)?);
        let answer = Gateway::new(access, CALL_PATIENCE)?.call("kv/range", &json!({"key": bytes(&key)}))?;
        Ok(answer["kvs"].as_array().and_then(|found| Some(text(found.first()?, "value"))))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Before all keys of a cluster. A `+` is for what belongs to the cluster whose name stands before it.
fn prefix(cluster: &str) -> io::Result<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    if cluster.is_empty() || !cluster.chars().all(is_plain) {
        return Err(invalid("the name of a cluster is of letters, digits and -_."));
    }
    Ok(format!("sluice/{cluster}/"))
}

impl Membership for Etcd {
    fn ttl(&self) -> Duration {
        self.shared.ttl
    }

    fn shards(&self) -> u16 {
        self.shared.shards
    }

    fn join(&self, address: &str) -> io::Result<NodeId> {
        let shared = &*self.shared;
        let mut joined = shared.join(address);
        // A failed attempt that etcd may have executed counts as a member until its lease is over.
        for _ in 1..shared.gateway.members() {
            if joined.is_ok() {
                break;
            }
            joined = shared.join(address);
        }
        let (revision, name, lease) = joined?;
        shared.state.lock().own.insert(NodeId(revision), LeasedNode { name, lease });
        // A view without the node that looks at it would say that it is dead.
        shared.learn()?;
        Ok(NodeId(revision))
    }

    fn renew(&self, node: NodeId) -> io::Result<bool> {
        let Some(own) = self.shared.own(node) else { return Ok(false) };
        let answer = self.shared.gateway.call("lease/keepalive", &json!({"ID": own.lease.to_string()}))?;
        Ok(number(&answer["result"], "TTL") > 0)
    }

    fn claim(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        let shared = &*self.shared;
        let Some(own) = shared.own(node) else { return Ok(false) };
        if shard >= shared.shards {
            return Ok(false);
        }
        let key = shared.key(&format!("shard/{shard}"));
        let mut conditions =
            vec![unchanged(&key, epoch), present(&shared.key(&format!("alive/{}", own.name)))];
        if epoch > 0 {
            // The one whose epoch this was; if it is another's by now the condition on the epoch fails.
            let keys = shared.read()?;
            let Some((master, ..)) = keys.found.get(&format!("shard/{shard}")) else { return Ok(false) };
            let (_, name) = master.split_once(' ').unwrap_or_default();
            conditions.push(absent(&shared.key(&format!("alive/{name}"))));
        }
        let master = format!("{} {}", node.0, own.name);
        Ok(shared.transact(&conditions, &[put(&key, &master, None)])?.is_some())
    }

    fn resign(&self, node: NodeId, shard: ShardId, epoch: u64) -> io::Result<bool> {
        let shared = &*self.shared;
        if shared.own(node).is_none() || epoch == 0 {
            return Ok(false);
        }
        let key = shared.key(&format!("shard/{shard}"));
        Ok(shared.transact(&[unchanged(&key, epoch)], &[delete(&key)])?.is_some())
    }

    fn fenced(&self, dead: NodeId) -> io::Result<bool> {
        let shared = &*self.shared;
        let keys = shared.read()?;
        let Some(name) = keys.name(dead) else { return Ok(false) };
        let (joined, alive) = (shared.key(&format!("joined/{name}")), shared.key(&format!("alive/{name}")));
        Ok(shared.transact(&[present(&joined), absent(&alive)], &[delete(&joined)])?.is_some())
    }

    fn leave(&self, node: NodeId) -> io::Result<()> {
        let shared = &*self.shared;
        let Some(own) = shared.own(node) else { return Ok(()) };
        let view = shared.read()?.view(shared.shards);
        for (shard, owner) in view.owners.iter().enumerate() {
            if let Some(owner) = owner.filter(|owner| owner.node == node) {
                self.resign(node, shard as ShardId, owner.epoch)?;
            }
        }
        let keys = ["joined", "alive"].map(|kind| delete(&shared.key(&format!("{kind}/{}", own.name))));
        shared.transact(&[], &keys)?;
        shared.state.lock().own.remove(&node);
        // The lease has no keys any more.
        let _ = shared.gateway.call("lease/revoke", &json!({"ID": own.lease.to_string()}));
        Ok(())
    }

    fn view(&self, revision: u64, wait: Duration) -> io::Result<View> {
        let end = Instant::now() + wait;
        let mut state = self.shared.state.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if state.view.revision > revision || left.is_zero() {
                return Ok(state.view.clone());
            }
            state = self.shared.changed.wait_timeout(state, left).0;
        }
    }
}

impl EtcdCluster {
    fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// A new member: the revision that made it, its name and its lease.
    fn join(&self, address: &str) -> io::Result<(u64, String, u64)> {
        let seconds = self.ttl.as_secs().to_string();
        let lease = number(&self.gateway.call("lease/grant", &json!({"TTL": seconds}))?, "ID");
        // The lease is etcd's only one of this number, so the name is this member's alone.
        let name = format!("{lease:016x}");
        let (joined, alive) = (self.key(&format!("joined/{name}")), self.key(&format!("alive/{name}")));
        let puts = [put(&joined, address, None), put(&alive, address, Some(lease))];
        let revision = self.transact(&[absent(&joined)], &puts)?;
        let revision = revision.ok_or_else(|| io::Error::other("etcd gave a lease twice"))?;
        Ok((revision, name, lease))
    }

    fn own(&self, node: NodeId) -> Option<LeasedNode> {
        self.state.lock().own.get(&node).cloned()
    }

    /// All keys of the cluster, and what follows the last one, as etcd takes it.
    fn range(&self) -> Value {
        let end = format!("{}0", self.prefix.trim_end_matches('/'));
        json!({"key": bytes(&self.prefix), "range_end": bytes(&end)})
    }

    fn read(&self) -> io::Result<Keys> {
        let answer = self.gateway.call("kv/range", &self.range())?;
        let mut found = BTreeMap::new();
        for one in answer["kvs"].as_array().into_iter().flatten() {
            let key = text(one, "key");
            let Some(key) = key.strip_prefix(&self.prefix) else { continue };
            let revisions = (number(one, "create_revision"), number(one, "mod_revision"));
            found.insert(key.to_owned(), (text(one, "value"), revisions.0, revisions.1));
        }
        Ok(Keys { revision: number(&answer["header"], "revision"), found })
    }

    /// Does `changes` if all `conditions` hold: the revision that did it.
    fn transact(&self, conditions: &[Value], changes: &[Value]) -> io::Result<Option<u64>> {
        self.gateway.transact(conditions, changes)
    }

    /// Reads the current state, and wakes its waiters.
    fn learn(&self) -> io::Result<u64> {
        let view = self.read()?.view(self.shards);
        let mut state = self.state.lock();
        // Two that read at once: the newer one stays.
        if view.revision > state.view.revision {
            state.view = view;
            self.changed.notify_all();
        }
        Ok(state.view.revision)
    }
}

impl Keys {
    fn view(&self, shards: u16) -> View {
        let members = self.found.iter().filter_map(|(key, (address, created, _))| {
            let name = key.strip_prefix("joined/")?;
            let is_alive = self.found.contains_key(&format!("alive/{name}"));
            Some((NodeId(*created), Member { address: address.clone(), is_alive }))
        });
        let owner = |shard: u16| {
            let (master, _, epoch) = self.found.get(&format!("shard/{shard}"))?;
            let node = master.split_once(' ')?.0.parse().ok()?;
            Some(Owner { node: NodeId(node), epoch: *epoch })
        };
        View { revision: self.revision, members: members.collect(), owners: (0..shards).map(owner).collect() }
    }

    /// The name of the member `node`.
    fn name(&self, node: NodeId) -> Option<&str> {
        let mut joined = self.found.iter().filter_map(|(key, of)| Some((key.strip_prefix("joined/")?, of)));
        joined.find(|(_, (_, created, _))| *created == node.0).map(|(name, _)| name)
    }
}

/// The work of the thread that watches, until nobody uses the membership any more.
fn watch(shared: &Weak<EtcdCluster>) {
    /// Between attempts to reach an etcd that does not answer.
    const PAUSE: Duration = Duration::from_millis(100);
    while let Some(shared) = shared.upgrade() {
        let Ok(revision) = shared.learn() else {
            thread::sleep(PAUSE);
            continue;
        };
        let mut create = shared.range();
        create["start_revision"] = json!((revision + 1).to_string());
        let ttl = shared.ttl;
        // A watch that ends, for whatever reason, is begun again after another full read.
        let _ = shared.gateway.stream("watch", &json!({"create_request": create}), ttl, &mut |line| {
            let result = &line["result"];
            let is_over = result["canceled"].as_bool() == Some(true) || line.get("error").is_some();
            let has_events = result["events"].as_array().is_some_and(|events| !events.is_empty());
            !is_over && (!has_events || shared.learn().is_ok())
        });
    }
}

fn compare(key: &str, target: &str, field: &str, result: &str, revision: u64) -> Value {
    json!({"key": bytes(key), "target": target, "result": result, field: revision.to_string()})
}

/// The condition that no such key exists.
fn absent(key: &str) -> Value {
    compare(key, "CREATE", "create_revision", "EQUAL", 0)
}

fn present(key: &str) -> Value {
    compare(key, "CREATE", "create_revision", "GREATER", 0)
}

/// The last change of the key was at this revision; 0: there is no such key.
fn unchanged(key: &str, revision: u64) -> Value {
    compare(key, "MOD", "mod_revision", "EQUAL", revision)
}

fn put(key: &str, value: &str, lease: Option<u64>) -> Value {
    let lease = lease.unwrap_or(0).to_string();
    json!({"request_put": {"key": bytes(key), "value": bytes(value), "lease": lease}})
}

fn delete(key: &str) -> Value {
    json!({"request_delete_range": {"key": bytes(key)}})
}
