//! World: nodes of one cluster, whole, each with a kernel that is played; what befalls them; and the record of what they did.

#[path = "robbery.rs"]
mod robbery;
#[path = "same_page.rs"]
mod same_page;

use crate::fields;
use crate::history::call::{Answer, Call, DIRS, Outcome, Path, Seen, Slot, Tree};
use crate::history::model::Id;
use crate::history::order::{Event, History, What};
use crate::seeds::Mutant;
use crate::seeds::kernel::Kernel;
use crate::seeds::members::{Way, Weather};
use crate::seeds::program::Programs;
use object_store::memory::InMemory;
use sluice_bucket::{Bucket, Claim};
use sluice_cluster::Relay;
use sluice_cluster::{Cluster, Config, LOST_CHANGES, Node, Rendezvous, Role};
use sluice_fuse::{MountOptions, opcode};
use sluice_membership::Membership;
use sluice_sync::random::Random;
use sluice_vfs::{Cred, Errno, InodeRef, NewInode, NewKind, Options, Superblock};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A node that is to live may be late by that much on a busy machine. If it is not, another death is no fault of the product.
const TTL: Duration = Duration::from_millis(1200);
/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(120);

/// The cluster's name and keys, the same for all worlds of this process.
fn cluster() -> &'static (Cluster, PathBuf) {
    static CLUSTER: OnceLock<(Cluster, PathBuf)> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        // Each process has its own: files of other processes do not matter.
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("seeds-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
        let made = Cluster::init(&Rendezvous::Directory(dir.clone()), &dir, TTL).expect("made");
        (made, dir)
    })
}

/// The history, and a clock that counts events.
#[derive(Default)]
pub(crate) struct Record {
    clock: AtomicU64,
    history: Mutex<History>,
    openings: AtomicU64,
}

impl Record {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn begin(&self, what: What) -> Id {
        let mut history = self.history();
        let begun = self.now();
        history.events.push(Event { what, begun, ended: None });
        history.events.len() - 1
    }

    fn end(&self, id: Id, outcome: Outcome) {
        let mut history = self.history();
        if outcome.is_some() {
            history.events[id].ended = Some(self.now());
        }
        if let What::Call { outcome: of, .. } = &mut history.events[id].what {
            *of = outcome;
        }
    }

    fn shake(&self, node: usize) {
        let at = self.now();
        self.history().shaken.push((node, at));
    }
}

/// A machine of the cluster.
struct Machine {
    /// No other in the history has this number.
    number: usize,
    node: Option<Node>,
    kernel: Arc<Kernel>,
    calls: mpsc::Sender<(Id, Call)>,
    /// The files that its programs have open, by the last call that was answered. None while a call has no answer.
    idle: Arc<Mutex<Option<BTreeMap<Slot, bool>>>>,
    way: Arc<Way>,
    objects: Arc<crate::faults::Node>,
    joined: u64,
}

impl Machine {
    fn open(&self) -> Option<BTreeMap<Slot, bool>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A cluster.
pub(crate) struct World {
    record: Arc<Record>,
    objects: Arc<InMemory>,
    membership: Arc<dyn Membership>,
    machines: Vec<Machine>,
    next: usize,
    serial: u64,
    failing: u64,
    mutant: Option<Mutant>,
    seed: u64,
    /// How often each fault was made.
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

/// A fault of a node, until it is healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    Leave,
    /// From all.
    CutOff,
    CutStore,
    CutMembers,
    CutLinks,
    BreakLinks,
    LoseAnswers,
    Delay,
}

const FAULTS: [Fault; 9] = [
    Fault::Kill,
    Fault::Leave,
    Fault::CutOff,
    Fault::CutStore,
    Fault::CutMembers,
    Fault::CutLinks,
    Fault::BreakLinks,
    Fault::LoseAnswers,
    Fault::Delay,
];

impl World {
    /// A cluster of so many nodes. In a thousand writes to the object store `failing` fail.
    pub(crate) fn new(seed: u64, nodes: usize, failing: u64, mutant: Option<Mutant>) -> World {
        let objects = Arc::new(InMemory::new());
        let bucket = Bucket::over(objects.clone());
        let store = bucket.create(sluice_store::Options::default()).expect("memory");
        let superblock = Superblock::create_in(store, Options::default()).expect("memory");
        for dir in DIRS {
            let new = NewInode { kind: NewKind::Directory, mode: 0o755, umask: 0 };
            superblock.root().create(&Cred::root(), dir.as_bytes(), &new).expect("memory");
        }
        superblock.close().expect("memory");
        drop(superblock);
        let mut world = World {
            record: Arc::default(),
            objects,
            membership: Arc::new(sluice_membership::InMemory::new(1, TTL)),
            machines: Vec::new(),
            next: 0,
            serial: 0,
            failing,
            mutant,
            seed,
            faults: BTreeMap::new(),
        };
        (0..nodes).for_each(|_| world.join());
        world.renew_dirs();
        world
    }

    /// The last node makes the directories anew, before anything is recorded: only it knows them until another looks.
    fn renew_dirs(&self) {
        let maker = self.machines.last().expect("there are nodes");
        assert!(maker.node.as_ref().is_some_and(|node| node.await_server(HANG)), "it has no server");
        let kernel = &maker.kernel;
        let root = kernel.lock(1);
        for dir in DIRS {
            let name = [dir.as_bytes(), &[0]].concat();
            kernel.ask(opcode::RMDIR, 1, &name).map(drop).expect("it is empty");
            let body = [fields!(0o755_u32, 0o22_u32), name].concat();
            let made = kernel.ask(opcode::MKDIR, 1, &body).map_err(drop).expect("the name is free");
            kernel.learn(&root, dir, &made);
        }
        // Writes to the objects may fail.
        while kernel.ask(opcode::FSYNCDIR, 1, &fields!(0_u64, 0_u32, 0_u32)).is_err() {}
    }

    /// One more node.
    fn join(&mut self) {
        let (cluster, keys) = cluster();
        let number = self.next;
        self.next += 1;
        let plan = crate::faults::Plan { failing: self.failing, ..crate::faults::Plan::default() };
        let objects = crate::faults::Node::new(&self.objects, plan, self.seed ^ number as u64);
        let is_careless = self.mutant == Some(Mutant::LateAnswers);
        let way = Way::new(self.membership.clone(), is_careless);
        let options = MountOptions::parse("locks=sluice,transport=classic,threads=2,max_write=65536");
        let options = options.expect("valid");
        let (record, bucket, mutant) = (self.record.clone(), objects.bucket(), self.mutant);
        let open = move |epoch| {
            let begun = record.now();
            let options = sluice_store::Options::default().age(Duration::from_millis(100));
            let store = bucket.open(Claim::Epoch(cluster.store_epoch(epoch)), options);
            let opened = store.and_then(|store| Superblock::open_in(store, Options::default()));
            let superblock = opened.map_err(io::Error::other)?;
            let tree = tree_of(&superblock).map_err(io::Error::from)?;
            if let Some(Mutant::ExecutedTwice | Mutant::LocksGoOn) = mutant {
                let (of, mut stood) = (Arc::downgrade(&superblock), BTreeSet::new());
                std::thread::spawn(move || {
                    while let Some(superblock) = of.upgrade() {
                        if mutant == Some(Mutant::ExecutedTwice) {
                            let _ = superblock.forget_requests(&superblock.requesting_mounts());
                        } else {
                            stood.extend(superblock.standing_mounts());
                            for mount in &stood {
                                let _ = superblock.stand(*mount);
                            }
                        }
                        drop(superblock);
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
            }
            if record.openings.fetch_add(1, Ordering::SeqCst) > 0 {
                record.history().events.push(Event {
                    what: What::Takeover(number, tree),
                    begun,
                    ended: None,
                });
            }
            Ok(superblock)
        };
        let config = Config {
            cluster: cluster.name().to_string(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            identity: cluster.identity(keys).expect("issued"),
            membership: way.clone(),
            open: Arc::new(open),
            dir: PathBuf::new(),
            options,
            workspaces: None,
        };
        let kernel = Kernel::new(number as u64, self.mutant);
        let relay = Relay::over_kernel(kernel.clone(), &config.options).expect("threads start");
        let node = Node::start_over(config, relay).expect("started");
        let (calls, asked) = mpsc::channel();
        let idle = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let (record, of, mut programs) = (self.record.clone(), idle.clone(), Programs::new(kernel.clone()));
        std::thread::spawn(move || {
            while let Ok((id, call)) = asked.recv() {
                let outcome = programs.call(&call);
                let is_dead = outcome.is_none();
                record.end(id, outcome);
                if is_dead {
                    return;
                }
                *of.lock().unwrap_or_else(PoisonError::into_inner) = Some(programs.open());
            }
        });
        self.machines.push(Machine {
            number,
            node: Some(node),
            kernel,
            calls,
            idle,
            way,
            objects,
            joined: 1,
        });
    }

    /// Does one step that the seed says.
    pub(crate) fn step(&mut self, step: u64) {
        let mut random = Random::new(self.seed.wrapping_mul(0x1_0000).wrapping_add(step));
        if random.chance(12) {
            self.fault(&mut random);
        }
        let calls = if random.chance(65) { 1 } else { self.machines.len() as u64 };
        let first = random.below(self.machines.len() as u64);
        for turn in 0..calls {
            let at = ((first + turn) % self.machines.len() as u64) as usize;
            self.serial += 1;
            if let Some(open) = self.machines[at].open() {
                let call = Call::draw(&mut random, &open, self.serial << 8 | self.machines[at].number as u64);
                self.call(at, call);
            }
        }
        // A node that is cut off is waited for by others: not for long.
        let patience = Duration::from_millis(if self.is_calm() { 2_000 } else { 40 });
        self.await_calls(patience);
        self.notice_rejoins();
    }

    fn call(&mut self, at: usize, call: Call) -> Id {
        let machine = &self.machines[at];
        *machine.idle.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let what = What::Call { node: machine.number, call: call.clone(), outcome: None };
        let id = self.record.begin(what);
        // A machine that is dead takes none.
        let _ = machine.calls.send((id, call));
        id
    }

    /// True if all are answered.
    fn await_calls(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while self.machines.iter().any(|machine| machine.open().is_none()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(Duration::from_micros(200)));
        }
        true
    }

    fn is_calm(&self) -> bool {
        self.machines
            .iter()
            .all(|machine| machine.node.as_ref().is_some_and(|node| node.status().role != Role::Waiting))
    }

    /// A node whose lease was over has joined again.
    fn notice_rejoins(&mut self) {
        for machine in &mut self.machines {
            if machine.way.joined() > machine.joined {
                machine.joined = machine.way.joined();
                self.record.shake(machine.number);
            }
        }
    }

    fn fault(&mut self, random: &mut Random) {
        let at = random.below(self.machines.len());
        let fault = random.pick(&FAULTS);
        let long = random.pick(&[5, 60, 400, 1500]);
        *self.faults.entry(fault.name()).or_default() += 1;
        let now = self.record.now();
        self.record.history().disturbed.push(now);
        let number = self.machines[at].number;
        // Calls that are under way when it happens, of every node that is free.
        for of in 0..self.machines.len() {
            self.serial += 1;
            if random.chance(60)
                && let Some(open) = self.machines[of].open()
            {
                let call = Call::draw(random, &open, self.serial << 8 | self.machines[of].number as u64);
                self.call(of, call);
            }
        }
        std::thread::sleep(Duration::from_micros(random.pick(&[0, 50, 300, 2000])));
        let pause = || std::thread::sleep(Duration::from_millis(long));
        match fault {
            Fault::Kill => {
                let machine = self.machines.remove(at);
                self.record.shake(number);
                self.kill(machine);
                self.join();
            }
            Fault::Leave => {
                self.await_calls(HANG);
                let machine = self.machines.remove(at);
                self.leave(machine).expect("nothing is cut off");
                self.join();
            }
            Fault::CutOff | Fault::CutStore | Fault::CutMembers | Fault::CutLinks => {
                // All others, too, if it is the owner.
                if long > 1000 && matches!(fault, Fault::CutOff | Fault::CutLinks) {
                    self.rob(random, at, fault == Fault::CutOff);
                    return;
                }
                self.machines.iter().for_each(|machine| self.record.shake(machine.number));
                self.cut(at, fault, true);
                self.work(random, long);
                self.cut(at, fault, false);
            }
            Fault::BreakLinks => self.roads(at, |road| road.cut()),
            Fault::LoseAnswers | Fault::Delay => {
                let weather = if fault == Fault::Delay { Weather::Slow } else { Weather::OneWay };
                if long > 100 {
                    self.machines.iter().for_each(|machine| self.record.shake(machine.number));
                }
                self.roads(at, |road| road.set(weather));
                pause();
                self.roads(at, |road| road.set(Weather::Fine));
            }
        }
    }

    /// Calls of all that can make some, for so many milliseconds.
    fn work(&mut self, random: &mut Random, milliseconds: u64) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        let mut left = 6;
        while Instant::now() < end {
            for at in 0..self.machines.len() {
                self.serial += 1;
                if left > 0
                    && let Some(open) = self.machines[at].open()
                {
                    left -= 1;
                    let call = Call::draw(random, &open, self.serial << 8 | self.machines[at].number as u64);
                    self.call(at, call);
                }
            }
            std::thread::sleep(Duration::from_millis(5).min(Duration::from_millis(milliseconds)));
        }
    }

    fn cut(&mut self, at: usize, fault: Fault, is_cut: bool) {
        let all = fault == Fault::CutOff;
        if all || fault == Fault::CutStore {
            if is_cut { self.machines[at].objects.cut_off() } else { self.machines[at].objects.reach_again() }
        }
        if all || fault == Fault::CutMembers {
            self.machines[at].way.cut(is_cut);
        }
        if all || fault == Fault::CutLinks {
            let weather = if is_cut { Weather::Closed } else { Weather::Fine };
            self.roads(at, |road| road.set(weather));
        }
    }

    /// The roads from a node and to it.
    fn roads(&self, at: usize, each: impl Fn(&crate::seeds::members::Road)) {
        for road in self.machines[at].way.roads() {
            each(&road);
        }
        let Some(node) = &self.machines[at].node else { return };
        let address = node.address().to_string();
        let others = self.machines.iter().flat_map(|machine| machine.way.roads());
        others.filter(|road| road.to == address).for_each(|road| each(&road));
    }

    /// The machine is gone from one instant to the next. Its rest in this process ends apart.
    fn kill(&mut self, mut machine: Machine) {
        let death = self.record.now();
        machine.kernel.die();
        machine.way.cut(true);
        machine.objects.cut_off();
        machine.way.roads().iter().for_each(|road| road.end());
        if let Some(node) = machine.node.take() {
            let address = node.address().to_string();
            let others = self.machines.iter().flat_map(|machine| machine.way.roads());
            others.filter(|road| road.to == address).for_each(|road| road.end());
            std::thread::spawn(move || drop(node));
        }
        let mut history = self.record.history();
        history.events.push(Event { what: What::Death(machine.number), begun: death, ended: None });
    }

    fn leave(&mut self, mut machine: Machine) -> io::Result<()> {
        let death = self.record.now();
        machine.kernel.die();
        // A node whose store failed has lost what its programs were told of then.
        let left = match machine.node.take().map_or(Ok(()), Node::leave) {
            Err(error) if error.to_string() == LOST_CHANGES => Ok(()),
            left => left,
        };
        machine.way.roads().iter().for_each(|road| road.end());
        let mut history = self.record.history();
        history.events.push(Event { what: What::Death(machine.number), begun: death, ended: None });
        left
    }

    /// Waits until all is answered, and compares what is left.
    ///
    /// # Errors
    /// The property that was broken.
    pub(crate) fn finish(mut self) -> Result<(History, BTreeMap<&'static str, u64>), String> {
        let faults = std::mem::take(&mut self.faults);
        let record = self.record.clone();
        let finished = self.end();
        let history = record.history().clone();
        match finished {
            Ok(()) => Ok((history, faults)),
            Err(what) => Err(format!("{what}\n{faults:?}\n{history}")),
        }
    }

    fn end(mut self) -> Result<(), String> {
        // A store fails when one write fails often enough, and a node whose store has failed cannot leave without loss.
        self.machines.iter().for_each(|machine| machine.objects.heal());
        if !self.await_calls(HANG) {
            return Err(format!("calls are never answered: {}", self.unanswered().join("\n")));
        }
        for at in 0..self.machines.len() {
            self.call(at, Call::Look);
            if !self.await_calls(HANG) {
                return Err(format!("a look is never answered: {}", self.unanswered().join("\n")));
            }
        }
        self.notice_rejoins();
        let seen = {
            let history = self.record.history();
            let looks = history.events.iter().filter_map(|event| match &event.what {
                What::Call { call: Call::Look, outcome: Some(outcome), .. } => Some(outcome.clone()),
                _ => None,
            });
            looks.collect::<Vec<_>>()
        };
        if seen.windows(2).any(|two| two[0] != two[1]) {
            return Err(format!("the nodes see different trees: {seen:?}"));
        }
        while let Some(machine) = self.machines.pop() {
            let number = machine.number;
            self.leave(machine).map_err(|error| format!("node {number} cannot leave: {error}"))?;
        }
        let tree = self.checked()?;
        if seen.first() != Some(&Ok(Answer::Tree(tree.clone()))) {
            return Err(format!("the nodes saw {seen:?}, and the store has {tree:?}"));
        }
        Ok(())
    }

    /// The tree in the store, which is sound.
    fn checked(&self) -> Result<Tree, String> {
        let bucket = Bucket::over(self.objects.clone());
        let store = bucket.open(Claim::Epoch(u64::MAX), sluice_store::Options::default());
        let opened = store.and_then(|store| Superblock::open_in(store, Options::default()));
        let superblock = opened.map_err(|error| format!("the store cannot be opened: {error}"))?;
        let report = superblock.check();
        if !report.is_clean() {
            return Err(format!("the tree is not sound: {report}"));
        }
        let tree = tree_of(&superblock).map_err(|errno| format!("the tree cannot be read: {errno}"))?;
        superblock.close().map_err(|errno| format!("the store cannot be closed: {errno}"))?;
        Ok(tree)
    }

    fn unanswered(&self) -> Vec<String> {
        let history = self.record.history();
        let events = history.events.iter().filter(|event| event.ended.is_none());
        let mut lines: Vec<_> = events.map(|event| format!("{event:?}")).collect();
        for machine in &self.machines {
            let status = machine.node.as_ref().map(Node::status);
            lines.push(format!("node {}: {status:?}", machine.number));
        }
        lines
    }
}

impl Drop for World {
    /// After a failure.
    fn drop(&mut self) {
        let machines = std::mem::take(&mut self.machines);
        machines.into_iter().for_each(|machine| self.kill(machine));
    }
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "killed",
            Fault::Leave => "left",
            Fault::CutOff => "cut off from all",
            Fault::CutStore => "cut off from the store",
            Fault::CutMembers => "cut off from the membership",
            Fault::CutLinks => "cut off from the nodes",
            Fault::BreakLinks => "connections broken",
            Fault::LoseAnswers => "answers lost",
            Fault::Delay => "messages delayed",
        }
    }
}

/// The tree of a file system.
fn tree_of(superblock: &Superblock) -> Result<Tree, Errno> {
    let mut tree = Tree::new();
    for path in Path::all() {
        let dir = superblock.root().lookup(&Cred::root(), path.dir().as_bytes())?;
        match dir.lookup(&Cred::root(), path.name().as_bytes()) {
            Err(Errno::ENOENT) => {}
            found => drop(tree.insert(path, seen_of(&found?)?)),
        }
    }
    Ok(tree)
}

fn seen_of(inode: &InodeRef) -> Result<Seen, Errno> {
    if inode.is_dir() {
        return Ok(Seen::Dir);
    }
    let stat = inode.stat();
    let mut bytes = vec![0; 4096];
    let len = inode.read_at(0, &mut bytes, false)?;
    bytes.truncate(len);
    Ok(Seen::File(bytes, stat.nlink))
}
