//! Schedules: owners that lock, unlock, give up, are killed and deadlock, in random orders on simulated CPUs.

mod history;

use history::{Ask, BYTES, History, Place};
use sluice_locks_sim::{Cancel, DomainOptions, FileLocks, Kind, LockDomain, LockError, LockFuture};
use sluice_locks_sim::{Owner, Range, RangeRequest, Submitted, Ticket};
use sluice_machine::{Cpu, Machine};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const FILES: usize = 2;
const CPUS: usize = 4;
const STEPS: usize = 8;
/// Owners from here on are processes that a server answers for: no thread of theirs sleeps.
const CLIENTS: u64 = 1_000;
/// How long waits last that nobody else might end.
const PATIENCE: Duration = Duration::from_micros(5);
const LIMIT: usize = 14;
const WHOLE: Range = Range::WHOLE;

/// Files, and what was done to them.
struct Files {
    domain: sluice_sync::Arc<LockDomain>,
    locks: Vec<FileLocks>,
    history: Mutex<History>,
}

impl Files {
    fn new(options: DomainOptions) -> Arc<Files> {
        let domain = LockDomain::new(options);
        let locks = (0..FILES as u64).map(|ino| FileLocks::new(&domain, 0, ino)).collect();
        Arc::new(Files { domain, locks, history: Mutex::default() })
    }

    fn begin(&self, owner: Owner, place: Place, range: Range, ask: Ask) -> usize {
        self.history.lock().expect("sound").begin(owner, place, range, ask)
    }

    fn end(&self, call: usize, outcome: Result<(), LockError>) {
        self.history.lock().expect("sound").end(call, outcome);
    }

    /// Makes a call, and notes it.
    fn call(
        &self,
        owner: Owner,
        place: Place,
        range: Range,
        ask: Ask,
        body: impl FnOnce(&FileLocks) -> Result<(), LockError>,
    ) -> Result<(), LockError> {
        let call = self.begin(owner, place, range, ask);
        let outcome = body(&self.locks[place.file]);
        self.end(call, outcome);
        outcome
    }

    /// Closes all files of `owner`.
    fn release(&self, owner: Owner) {
        for file in 0..FILES {
            let close = |file: &FileLocks| {
                file.release_owner(owner);
                Ok(())
            };
            let _ = self.call(owner, Place { file, is_flock: false }, WHOLE, Ask::Unlock, close);
            if let Owner::Description(description) = owner {
                let close = |file: &FileLocks| {
                    file.release_flock(description);
                    Ok(())
                };
                let _ = self.call(owner, Place { file, is_flock: true }, WHOLE, Ask::Unlock, close);
            }
        }
    }
}

/// A client's request that waits.
struct Parked {
    owner: Owner,
    file: usize,
    call: usize,
    ticket: Ticket,
}

/// The state that the CPUs share.
struct World {
    files: Arc<Files>,
    /// By CPU: what ends its wait.
    tokens: Vec<RefCell<Rc<Cancel>>>,
    /// By CPU: its process was killed.
    killed: Vec<Cell<bool>>,
    parked: RefCell<Vec<Parked>>,
    clients: Cell<u64>,
}

/// A request by a process or description of this CPU or of a client.
fn any_request(cpu: &Cpu, owner: Owner) -> RangeRequest {
    let start = cpu.random(BYTES);
    let range = Range::new(start, start + cpu.random(BYTES - start)).expect("a range");
    RangeRequest { owner, pid: 1, kind: any_kind(cpu), range }
}

fn any_kind(cpu: &Cpu) -> Kind {
    if cpu.random(2) == 0 { Kind::Shared } else { Kind::Exclusive }
}

impl World {
    fn new(options: DomainOptions) -> World {
        World {
            files: Files::new(options),
            tokens: (0..CPUS).map(|_| RefCell::new(Rc::new(Cancel::never()))).collect(),
            killed: (0..CPUS).map(|_| Cell::new(false)).collect(),
            parked: RefCell::default(),
            clients: Cell::new(CLIENTS),
        }
    }

    /// A process, and a description that only its CPU uses, do what chance says until they end or are killed.
    fn live(&self, cpu: &Cpu) {
        let id = cpu.id() as u64;
        let (process, description) = (Owner::Process(id), Owner::Description(id));
        // While the description holds something the process must not wait for ever: nobody finds such a deadlock.
        let mut holds_more = false;
        for _ in 0..STEPS {
            cpu.work(cpu.random(400));
            let token = Rc::new(if holds_more { Cancel::with_timeout(PATIENCE) } else { Cancel::new() });
            self.tokens[cpu.id()].replace(token.clone());
            if self.killed[cpu.id()].get() {
                break;
            }
            let other = cpu.random(CPUS as u64) as usize;
            match cpu.random(16) {
                0..=3 => drop(self.wait(any_request(cpu, process), cpu, &token)),
                4..=5 => drop(self.wait_as_task(any_request(cpu, process), cpu)),
                6 => drop(self.attempt(any_request(cpu, process), cpu)),
                7 => self.unlock(any_request(cpu, process), cpu),
                8 => self.files.release(process),
                9..=10 => holds_more |= self.lock_more(description, cpu),
                11 => {
                    self.files.release(description);
                    holds_more = false;
                }
                12..=13 => self.serve(cpu),
                14 => self.interrupt(other),
                _ if cpu.random(4) == 0 => {
                    self.killed[other].set(true);
                    self.interrupt(other);
                }
                _ => self.kill_client(cpu),
            }
        }
        self.files.release(process);
        self.files.release(description);
    }

    fn interrupt(&self, cpu: usize) {
        let token = self.tokens[cpu].borrow().clone();
        token.cancel();
    }

    fn any_place(&self, cpu: &Cpu, is_flock: bool) -> Place {
        Place { file: cpu.random(FILES as u64) as usize, is_flock }
    }

    fn attempt(&self, request: RangeRequest, cpu: &Cpu) -> Result<(), LockError> {
        let place = self.any_place(cpu, false);
        let ask = Ask::Lock(request.kind);
        self.files.call(request.owner, place, request.range, ask, |file| file.set_range(&request))
    }

    fn wait(&self, request: RangeRequest, cpu: &Cpu, token: &Cancel) -> Result<(), LockError> {
        let (place, ask) = (self.any_place(cpu, false), Ask::Lock(request.kind));
        let wait = |file: &FileLocks| file.set_range_wait(&request, token);
        self.files.call(request.owner, place, request.range, ask, wait)
    }

    /// Waits as a future does, which is dropped at any time.
    fn wait_as_task(&self, request: RangeRequest, cpu: &Cpu) -> Result<(), LockError> {
        let (place, ask) = (self.any_place(cpu, false), Ask::Lock(request.kind));
        let body = |file: &FileLocks| poll_for_a_while(pin!(file.lock_range(request)), cpu);
        self.files.call(request.owner, place, request.range, ask, body)
    }

    /// A lock for a description, by one of the calls that do not wait for ever. True if it has got it.
    fn lock_more(&self, owner: Owner, cpu: &Cpu) -> bool {
        let token = Cancel::with_timeout(PATIENCE);
        let Owner::Description(description) = owner else { return false };
        let (place, kind) = (self.any_place(cpu, true), any_kind(cpu));
        let outcome = match cpu.random(6) {
            0 => self.attempt(any_request(cpu, owner), cpu),
            1 => self.wait(any_request(cpu, owner), cpu, &token),
            2 => self.wait_as_task(any_request(cpu, owner), cpu),
            way => self.files.call(owner, place, WHOLE, Ask::Lock(kind), |file| match way {
                3 => file.set_flock(description, 1, kind),
                4 => file.set_flock_wait(description, 1, kind, &token),
                _ => poll_for_a_while(pin!(file.lock_flock(description, 1, kind)), cpu),
            }),
        };
        outcome.is_ok()
    }

    fn unlock(&self, request: RangeRequest, cpu: &Cpu) {
        let place = self.any_place(cpu, false);
        let unlock = |file: &FileLocks| file.unlock_range(request.owner, request.range);
        let _ = self.files.call(request.owner, place, request.range, Ask::Unlock, unlock);
    }

    /// Has a client lock something and then wait for more, while none sleeps. Decided, it gives all up.
    fn serve(&self, cpu: &Cpu) {
        let owner = Owner::Process(self.clients.get());
        self.clients.set(self.clients.get() + 1);
        let _ = self.attempt(any_request(cpu, owner), cpu);
        let (request, place) = (any_request(cpu, owner), self.any_place(cpu, false));
        let call = self.files.begin(owner, place, request.range, Ask::Lock(request.kind));
        let files = self.files.clone();
        let done = move |outcome| {
            files.end(call, outcome);
            files.release(owner);
        };
        match self.files.locks[place.file].submit_range(&request, Box::new(done)) {
            Ok(Submitted::Waiting(ticket)) => {
                self.parked.borrow_mut().push(Parked { owner, file: place.file, call, ticket });
            }
            decided => {
                self.files.end(call, decided.map(drop));
                self.files.release(owner);
            }
        }
    }

    /// Ends a client, wherever it is.
    fn kill_client(&self, cpu: &Cpu) {
        let chance = cpu.random(u64::MAX) as usize;
        let parked = self.parked.borrow().len();
        if parked == 0 {
            return;
        }
        let victim = self.parked.borrow_mut().swap_remove(chance % parked);
        if self.files.locks[victim.file].cancel(&victim.ticket) {
            self.files.end(victim.call, Err(LockError::Interrupted));
            self.files.release(victim.owner);
        }
    }
}

fn poll_for_a_while(mut future: Pin<&mut LockFuture<&FileLocks>>, cpu: &Cpu) -> Result<(), LockError> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..=cpu.random(4) {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome;
        }
        cpu.work(cpu.random(2_000));
    }
    Err(LockError::Interrupted)
}

/// `SLUICE_STEPS` schedules, or as many as take a moment.
fn schedules() -> u64 {
    std::env::var("SLUICE_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(4_000)
}

#[test]
fn whatever_the_schedule_locks_exclude_refusals_have_reasons_and_nothing_is_left() {
    let outcomes = [
        Ok(()),
        Err(LockError::WouldBlock),
        Err(LockError::Deadlock),
        Err(LockError::Interrupted),
        Err(LockError::TimedOut),
        Err(LockError::NoLocks),
    ];
    let mut counts = [0; 6];
    for seed in 0..schedules() {
        let machine = Machine::named("opteron-32").seed(seed).cycles_max(20_000_000);
        let bypass_max = (seed % 2 == 0).then_some(1);
        let max_locks = (seed % 4 > 1).then_some(LIMIT as u64);
        let options = DomainOptions { bypass_max, max_locks, ..Default::default() };
        let world = machine.prepare(CPUS, || World::new(options));
        // A task that waits for ever makes the machine stand still, and that is an error.
        machine.try_run(CPUS, |cpu| world.live(&cpu)).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));

        println!("seed {seed}");
        let files = &world.files;
        let history = files.history.lock().expect("sound");
        history.check(bypass_max.is_some());
        for (count, outcome) in counts.iter_mut().zip(outcomes) {
            *count += history.count(outcome);
        }
        assert!(files.domain.list().is_empty() && files.locks.iter().all(|file| !file.has_locks()));
        if max_locks.is_some() {
            assert_eq!(locks_that_fit(&files.locks[0]), LIMIT, "some are still counted");
        }
    }
    println!("{outcomes:?}\n{counts:?}");
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
}

/// How many locks can be had until there are too many.
fn locks_that_fit(file: &FileLocks) -> usize {
    let lock = |byte: u64| {
        let range = Range::new(byte, byte).expect("a range");
        file.set_range(&RangeRequest { owner: Owner::Process(byte), pid: 1, kind: Kind::Exclusive, range })
    };
    (0..=LIMIT as u64).take_while(|&byte| lock(byte).is_ok()).count()
}
