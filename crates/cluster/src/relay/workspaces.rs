//! Workspaces: the file systems in one mount, each with a relay of its own, and which of these gets a request of the kernel.
//!
//! # Theory
//! The node's number in a request says the workspace ([`workspace`]): so the thread that reads the device gives the request to the relay
//! of that workspace, under the number that the file system there knows, and serves it as it does those of the root. A relay that is
//! not there yet is made, and the owner of the mount finds it a server; until then its requests wait.
//!
//! ```text
//!   kernel ── reader ──┬─ relay of the root        ── guest here, or link to the owner of the root
//!                      ├─ relay of workspace 1     ── guest here, or link to the owner of workspace 1
//!                      └─ relay of workspace 2     ── ...
//! ```
//! *Junctions.* The kernel knows a junction as the root of its workspace: each lookup of one counts at the relay that has the junction, and so
//! FORGET of such a root goes there. A signal (INTERRUPT) goes to the relay that has the request under way. A request with nodes of two
//! workspaces is answered with `EXDEV`.

use super::mkdir::MakeStore;
use super::numbers::{Numbers, number_at, put_node, put_number, second_node};
use super::{Device, Relay, Shared};
use crate::lock_class::WORKSPACES;
use sluice_fuse::internal::abi::{BatchForgetIn, ForgetOne, InHeader, OutHeader, ROOT_ID};
use sluice_fuse::internal::workspace;
use sluice_fuse::internal::{Reply, request_bytes};
use sluice_fuse::opcode;
use sluice_sync::atomic::{AtomicU64, Ordering};
use sluice_sync::mpsc::{self, RecvTimeoutError};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Mutex, OnceLock, Weak};
use sluice_vfs::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use zerocopy::{FromBytes, IntoBytes};

/// So many workspaces of a mount have a server, or wait for one.
const RELAYS_MAX: usize = 256;
/// How often the end of a wait for an answer is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Marks the number of a request that this process makes: a kernel counts its own from 1 on.
const OWN: u64 = 1 << 62;

/// Finds a server for the relay of a workspace: for a new one, or for the one that [waits](super::RelayParking::Waits).
pub(crate) type FindServer = Box<dyn Fn(u32, Option<Relay>) + Send + Sync>;

/// The workspaces of one mount.
pub(super) struct Workspaces {
    table: Mutex<RelayTable>,
    /// *set once*, where there may be workspaces
    find_server: OnceLock<FindServer>,
    /// *set once*, likewise
    make_store: OnceLock<MakeStore>,
    /// The relay of the mount's root. *set once*, likewise
    root: OnceLock<Weak<Shared>>,
    /// The last number of a request that this process made. *atomic (stands alone)*
    asked: AtomicU64,
}

#[derive(Default)]
struct RelayTable {
    relays: BTreeMap<u32, Weak<Shared>>,
    /// The workspace to which a junction leads, by its own workspace and inode.
    leads: HashMap<(u32, u64), u32>,
    /// The junction of each workspace.
    places: HashMap<u32, (u32, u64)>,
    /// Workspaces without a store, when that was looked for last.
    absent: BTreeSet<u32>,
    /// The threads that wait for the answers to requests of this process.
    waiting: HashMap<u64, mpsc::Sender<Vec<u8>>>,
}

impl Default for Workspaces {
    fn default() -> Workspaces {
        let table = Mutex::with_class(&WORKSPACES, RelayTable::default());
        Workspaces {
            table,
            find_server: OnceLock::new(),
            make_store: OnceLock::new(),
            root: OnceLock::new(),
            asked: AtomicU64::new(OWN),
        }
    }
}

/// The relay that gets a request.
pub(super) enum Route {
    /// That of the mount's root.
    Root,
    /// Another.
    There(Arc<Shared>),
    /// Several, each a part.
    Parts(Vec<(Arc<Shared>, Vec<u8>)>),
    /// None: this is the answer.
    Answer(Vec<u8>),
}

/// The device of a relay's mount, for the nodes of its file system.
pub(super) struct NumberedDevice {
    pub(super) device: Arc<dyn Device>,
    pub(super) number: u32,
    pub(super) workspaces: Arc<Workspaces>,
}

impl Device for NumberedDevice {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.device.receive(buffer)
    }

    /// Answers are [renumbered](Shared::tell) before.
    fn send(&self, message: &[u8]) -> io::Result<()> {
        match OutHeader::read_from_prefix(message).map_or(0, |(out, _)| out.unique) {
            _ if !self.workspaces.are_possible() => self.device.send(message),
            0 => {
                let notice = self.workspaces.with_numbers(self.number, |numbers| numbers.notice(message));
                self.device.send(&notice)
            }
            unique if unique & OWN != 0 => {
                self.workspaces.take_answer(unique, message);
                Ok(())
            }
            _ => self.device.send(message),
        }
    }

    /// The relay of a workspace has no mount of its own.
    fn is_connected(&self) -> bool {
        self.number == 0 && self.device.is_connected()
    }
}

impl Workspaces {
    fn are_possible(&self) -> bool {
        self.find_server.get().is_some()
    }

    fn with_numbers<R>(&self, number: u32, act: impl FnOnce(&Numbers<'_>) -> R) -> R {
        act(&Numbers {
            number,
            leads: &|node| self.table.lock().leads.get(&(number, node)).copied(),
            learn: &|node, leads| {
                let mut table = self.table.lock();
                table.leads.insert((number, node), leads);
                table.places.insert(leads, (number, node));
            },
        })
    }

    /// The relay of workspace `number`, if it is in use.
    pub(super) fn in_use(&self, number: u32) -> Option<Arc<Shared>> {
        self.table.lock().relays.get(&number).and_then(Weak::upgrade)
    }

    /// The relay of the mount's root, where there may be workspaces.
    pub(super) fn root(&self) -> Option<Arc<Shared>> {
        self.root.get().and_then(Weak::upgrade)
    }

    /// Makes the store of a new workspace whose root has this mode, owner and group, and returns its number.
    ///
    /// # Errors
    /// The store's; `EOPNOTSUPP` where there are no workspaces.
    pub(super) fn make_store(&self, root: [u32; 3]) -> io::Result<u32> {
        let unsupported = || io::Error::from_raw_os_error(Errno::EOPNOTSUPP.raw());
        self.make_store.get().ok_or_else(unsupported)?(root)
    }

    /// The relay of workspace `number` has ended.
    pub(super) fn remove(&self, number: u32) {
        self.table.lock().relays.remove(&number);
    }

    /// The relay of workspace `number` has a request, and waits for a server since nobody used it.
    pub(super) fn wake(&self, number: u32) {
        if let Some(find_server) = self.find_server.get() {
            find_server(number, None);
        }
    }

    fn all_in_use(&self) -> Vec<Arc<Shared>> {
        self.table.lock().relays.values().filter_map(Weak::upgrade).collect()
    }

    /// Whether workspace `number` was found to have no store.
    pub(super) fn is_absent(&self, number: u32) -> bool {
        self.table.lock().absent.contains(&number)
    }

    /// The relay of workspace `number` of the mount of `root`.
    ///
    /// # Errors
    /// `ESTALE` where there are no workspaces; `EMFILE` if too many are in use; `ENOMEM` without threads.
    pub(super) fn relay(&self, root: &Shared, number: u32) -> Result<Arc<Shared>, Errno> {
        let is_number = (1..=workspace::NUMBER_MAX).contains(&number);
        let find_server = self.find_server.get().filter(|_| is_number).ok_or(Errno::ESTALE)?;
        let relay = {
            let mut table = self.table.lock();
            if let Some(relay) = table.relays.get(&number).and_then(Weak::upgrade) {
                return Ok(relay);
            }
            table.relays.retain(|_, relay| relay.strong_count() > 0);
            if table.relays.len() >= RELAYS_MAX {
                return Err(Errno::EMFILE);
            }
            let relay = root.new_relay(number).map_err(|_| Errno::ENOMEM)?;
            table.relays.insert(number, Arc::downgrade(&relay.0));
            table.absent.remove(&number);
            relay
        };
        let shared = relay.0.clone();
        find_server(number, Some(relay));
        Ok(shared)
    }

    /// Hands the answer to the thread that waits for the request `unique` of this process.
    fn take_answer(&self, unique: u64, answer: &[u8]) {
        let waiting = self.table.lock().waiting.remove(&unique);
        if let Some(waiting) = waiting {
            // It may have given up.
            let _ = waiting.send(answer.to_vec());
        }
    }
}

impl Relay {
    /// There may be workspaces from here on: `find_server` is called for each relay that the kernel's requests need, and must not wait;
    /// `make_store` for each directory that is made where directories become workspaces.
    pub(crate) fn have_workspaces(&self, find_server: FindServer, make_store: MakeStore) {
        // A second call has no effect.
        let _ = self.0.workspaces.make_store.set(make_store);
        let _ = self.0.workspaces.root.set(Arc::downgrade(&self.0));
        let _ = self.0.workspaces.find_server.set(find_server);
    }

    /// The relay's workspace has no store: its requests fail. The next request looks again.
    pub(crate) fn end_as_absent(&self) {
        self.0.workspaces.table.lock().absent.insert(self.0.workspace);
        self.0.fail_what_waits(Errno::ENXIO);
    }

    /// The mount has too many workspaces in use: the relay's requests fail. The next request tries again.
    pub(crate) fn end_without_room(&self) {
        self.0.fail_what_waits(Errno::EMFILE);
    }

    /// The workspace whose file system this is; 0 for that of the mount's root.
    pub(crate) fn workspace(&self) -> u32 {
        self.0.workspace
    }

    /// The mount uses workspace `number` from here on.
    ///
    /// # Errors
    /// If too many are in use.
    pub(crate) fn use_workspace(&self, number: u32) -> io::Result<()> {
        self.0
            .workspaces
            .relay(&self.0, number)
            .map(drop)
            .map_err(|errno| io::Error::from_raw_os_error(errno.raw()))
    }
}

impl Shared {
    /// Gives the kernel the answer to a request of this kind.
    pub(super) fn tell(&self, code: u32, answer: &[u8]) {
        let workspaces = &self.workspaces;
        let is_own = OutHeader::read_from_prefix(answer).is_ok_and(|(out, _)| out.unique & OWN != 0);
        let renumbered = (workspaces.are_possible() && !is_own)
            .then(|| workspaces.with_numbers(self.workspace, |numbers| numbers.answer(code, answer)))
            .flatten();
        // An error means that the request was aborted or the mount is gone.
        let _ = self.device.send(renumbered.as_deref().unwrap_or(answer));
    }

    /// The relay for a request that this one, of the mount's root, has read; the request is renumbered for it.
    pub(super) fn route(self: &Arc<Self>, message: &mut [u8]) -> Route {
        let Ok((header, body)) = InHeader::read_from_prefix(message) else { return Route::Root };
        match header.opcode {
            opcode::INTERRUPT => return self.route_interrupt(number_at(body, 0).unwrap_or(0)),
            opcode::BATCH_FORGET => return self.route_forgets(&header, body),
            _ => {}
        }
        let (number, node) = workspace::split(header.nodeid);
        let is_up = header.opcode == opcode::LOOKUP && node == ROOT_ID && body == b"..\0";
        if let Some((at, other)) =
            second_node(header.opcode).and_then(|at| Some((at, number_at(message, at)?)))
        {
            let (other_number, other_node) = workspace::split(other);
            if other_number != number {
                return Route::Answer(Reply::new().failure(header.unique, Errno::EXDEV).to_vec());
            }
            put_number(message, at, other_node);
        }
        if number == 0 {
            return Route::Root;
        }
        if header.opcode == opcode::FORGET {
            let Some((relay, node)) = self.forgetting(number, node) else { return Route::Parts(Vec::new()) };
            put_node(message, node);
            return if relay.workspace == 0 { Route::Root } else { Route::There(relay) };
        }
        // The root's parent is the directory in which its junction is.
        let place = is_up.then(|| self.workspaces.table.lock().places.get(&number).copied()).flatten();
        let (number, node) = place.unwrap_or((number, node));
        put_node(message, node);
        if number == 0 {
            return Route::Root;
        }
        match self.workspaces.relay(self, number) {
            Ok(relay) => Route::There(relay),
            Err(errno) => Route::Answer(Reply::new().failure(header.unique, errno).to_vec()),
        }
    }

    /// A signal came for request `unique`.
    fn route_interrupt(&self, unique: u64) -> Route {
        let has_it = |relay: &Arc<Shared>| relay.state.lock().in_flight.contains_key(&unique);
        self.workspaces.all_in_use().into_iter().find(has_it).map_or(Route::Root, Route::There)
    }

    /// Where it is known what the kernel knows of a node: the relay, and the node there. No relay of an unused workspace is there.
    fn forgetting(self: &Arc<Self>, number: u32, node: u64) -> Option<(Arc<Shared>, u64)> {
        let (number, node) = match node {
            ROOT_ID if number != 0 => *self.workspaces.table.lock().places.get(&number)?,
            node => (number, node),
        };
        let relay = if number == 0 { Some(self.clone()) } else { self.workspaces.in_use(number) };
        relay.map(|relay| (relay, node))
    }

    fn route_forgets(self: &Arc<Self>, header: &InHeader, body: &[u8]) -> Route {
        let Ok((arg, rest)) = BatchForgetIn::read_from_prefix(body) else { return Route::Root };
        let ones = rest.chunks_exact(size_of::<ForgetOne>()).take(arg.count as usize);
        let ones: Vec<_> = ones.filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok()).collect();
        if ones.iter().all(|one| workspace::split(one.nodeid).0 == 0) {
            return Route::Root;
        }
        let mut parts: BTreeMap<u32, (Arc<Shared>, Vec<ForgetOne>)> = BTreeMap::new();
        for one in ones {
            let (number, node) = workspace::split(one.nodeid);
            let Some((relay, nodeid)) = self.forgetting(number, node) else { continue };
            parts
                .entry(relay.workspace)
                .or_insert_with(|| (relay, Vec::new()))
                .1
                .push(ForgetOne { nodeid, ..one });
        }
        let message = |(relay, ones): (Arc<Shared>, Vec<ForgetOne>)| {
            let count = BatchForgetIn { count: u32::try_from(ones.len()).unwrap_or(0), ..arg };
            let body = [count.as_bytes(), ones.as_bytes()].concat();
            (relay, request_bytes(*header, &[&body]))
        };
        Route::Parts(parts.into_values().map(message).collect())
    }

    /// Makes a request of this process to the relay's server, on behalf of the caller of `like`, and waits for the answer.
    ///
    /// # Errors
    /// The server's; `EIO` when the relay has ended.
    pub(super) fn ask(&self, like: &InHeader, code: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        self.ask_until(like, code, node, body, &|| false)
    }

    /// As [`ask`](Self::ask), but does not wait any more once `gives_up` is true.
    ///
    /// # Errors
    /// Errors of [`ask`](Self::ask); `EINTR` without an answer.
    pub(super) fn ask_until(
        &self,
        like: &InHeader,
        code: u32,
        node: u64,
        body: &[u8],
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Errno> {
        // Relaxed: a number.
        let unique = self.workspaces.asked.fetch_add(2, Ordering::Relaxed) + 2;
        let header = InHeader { opcode: code, unique, nodeid: node, padding: 0, total_extlen: 0, ..*like };
        let mut message = request_bytes(header, &[body]);
        let (waiting, answers) = mpsc::channel();
        self.workspaces.table.lock().waiting.insert(unique, waiting);
        if let Some(left) = self.received(&mut message) {
            left.perform(&mut message);
        }
        let answer = loop {
            match answers.recv_timeout(LOOK) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::EIO),
                Err(RecvTimeoutError::Timeout) if gives_up() => {
                    self.workspaces.table.lock().waiting.remove(&unique);
                    return Err(Errno::EINTR);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        let (out, body) = OutHeader::read_from_prefix(&answer).map_err(|_| Errno::EIO)?;
        if out.error == 0 { Ok(body.to_vec()) } else { Err(Errno::from_raw(-out.error)) }
    }

    /// The kernel forgets one lookup of `node`, which it got by a request of this process.
    pub(super) fn forget_asked(&self, like: &InHeader, node: u64) {
        let header = InHeader {
            opcode: opcode::FORGET,
            unique: 0,
            nodeid: node,
            padding: 0,
            total_extlen: 0,
            ..*like
        };
        let mut message = request_bytes(header, &[&1_u64.to_ne_bytes()]);
        if let Some(left) = self.received(&mut message) {
            left.perform(&mut message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::numbers::root_of;
    use super::*;
    use sluice_fuse::MountOptions;
    use zerocopy::FromZeros;

    fn message(code: u32, node: u64, body: &[u8]) -> Vec<u8> {
        super::super::message(code, node, &[body])
    }

    /// A kernel that asks for nothing.
    struct Quiet;

    impl Device for Quiet {
        fn receive(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(None)
        }

        fn send(&self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn is_connected(&self) -> bool {
            false
        }
    }

    /// A mount whose workspaces find no servers.
    fn mount() -> (Relay, Arc<Mutex<Vec<Relay>>>) {
        let relay = Relay::over_kernel(Arc::new(Quiet), &MountOptions::default()).expect("threads");
        let relays = Arc::new(Mutex::new(Vec::new()));
        let kept = relays.clone();
        let no_stores = Box::new(|_| Err(io::ErrorKind::Unsupported.into()));
        relay.have_workspaces(Box::new(move |_, relay| kept.lock().extend(relay)), no_stores);
        (relay, relays)
    }

    fn node_of(message: &[u8]) -> u64 {
        InHeader::read_from_prefix(message).expect("a header").0.nodeid
    }

    #[test]
    fn a_request_goes_to_the_workspace_of_its_node_and_to_none_with_nodes_of_two() {
        let (mount, _relays) = mount();
        let root = &mount.0;
        let mut plain = message(opcode::GETATTR, 5, &[0; 16]);
        assert!(matches!(root.route(&mut plain), Route::Root) && node_of(&plain) == 5);
        let mut inside = message(opcode::GETATTR, workspace::join(3, 5), &[0; 16]);
        let Route::There(there) = root.route(&mut inside) else { panic!("it is of a workspace") };
        assert_eq!((there.workspace, node_of(&inside)), (3, 5));
        for (from, to, is_refused) in [(3, 3, false), (3, 4, true), (0, 3, true), (3, 0, true), (0, 0, false)]
        {
            let body = [workspace::join(to, 7).to_ne_bytes().as_slice(), b"a\0b\0"].concat();
            let mut rename = message(opcode::RENAME, workspace::join(from, 5), &body);
            let routed = root.route(&mut rename);
            let refused = |answer: &[u8]| {
                OutHeader::read_from_prefix(answer).expect("one").0.error == -Errno::EXDEV.raw()
            };
            assert_eq!(
                matches!(&routed, Route::Answer(answer) if refused(answer)),
                is_refused,
                "{from} {to}"
            );
            assert!(is_refused || number_at(&rename, size_of::<InHeader>()) == Some(7));
        }
        // Its request is under way there: a signal goes there, too.
        let (header, _) = InHeader::read_from_prefix(&inside).expect("a header");
        assert!(there.received(&mut inside).is_none(), "it waits for a server");
        let mut signal = message(opcode::INTERRUPT, 0, &header.unique.to_ne_bytes());
        assert!(matches!(root.route(&mut signal), Route::There(relay) if relay.workspace == 3));
        let mut other = message(opcode::INTERRUPT, 0, &(header.unique + 2).to_ne_bytes());
        assert!(matches!(root.route(&mut other), Route::Root));
    }

    #[test]
    fn what_a_kernel_forgets_is_forgotten_where_it_was_looked_up() {
        let (mount, _relays) = mount();
        let root = &mount.0;
        let forget = |node| message(opcode::FORGET, node, &1_u64.to_ne_bytes());
        assert!(
            matches!(root.route(&mut forget(root_of(3))), Route::Parts(parts) if parts.is_empty()),
            "nobody looked"
        );
        root.workspaces.with_numbers(0, |numbers| (numbers.learn)(77, 3));
        let mut of_root = forget(root_of(3));
        assert!(matches!(root.route(&mut of_root), Route::Root) && node_of(&of_root) == 77);
        let there = root.workspaces.relay(root, 3).expect("there is room");
        let ones = [5, root_of(3), workspace::join(3, 9), workspace::join(9, 2)];
        let ones: Vec<_> = ones.iter().flat_map(|node| [*node, 2]).flat_map(u64::to_ne_bytes).collect();
        let body = [[4_u32, 0].map(u32::to_ne_bytes).concat(), ones].concat();
        let Route::Parts(parts) = root.route(&mut message(opcode::BATCH_FORGET, 0, &body)) else {
            panic!("it is of several")
        };
        let nodes = |message: &[u8]| {
            let (count, rest) =
                BatchForgetIn::read_from_prefix(&message[size_of::<InHeader>()..]).expect("one");
            let ones =
                rest.chunks_exact(16).map(|one| number_at(one, 0).expect("a node")).collect::<Vec<_>>();
            assert_eq!(count.count as usize, ones.len());
            ones
        };
        let parts: Vec<_> = parts.iter().map(|(relay, message)| (relay.workspace, nodes(message))).collect();
        assert_eq!(parts, [(0, vec![5, 77]), (there.workspace, vec![9])], "workspace 9 is not in use");
    }

    #[test]
    fn a_mount_uses_so_many_workspaces_and_one_that_ended_makes_room_and_answers_nobody_twice() {
        let (mount, relays) = mount();
        let root = &mount.0;
        for number in 1..=RELAYS_MAX as u32 {
            assert!(root.workspaces.relay(root, number).is_ok());
        }
        let refused = |number| root.workspaces.relay(root, number).err();
        assert_eq!(refused(RELAYS_MAX as u32 + 1), Some(Errno::EMFILE));
        assert_eq!(
            (refused(0), refused(workspace::NUMBER_MAX + 1)),
            (Some(Errno::ESTALE), Some(Errno::ESTALE))
        );
        let first = root.workspaces.in_use(1).expect("it is");
        let relay = relays.lock().remove(0);
        relay.end_as_absent();
        assert!(root.workspaces.is_absent(1));
        let asked = first.ask(&InHeader::new_zeroed(), opcode::GETATTR, ROOT_ID, &[0; 16]);
        assert_eq!(asked, Err(Errno::ENXIO), "also what comes late");
        drop((first, relay));
        assert_eq!(refused(RELAYS_MAX as u32 + 1), None);
    }
}
