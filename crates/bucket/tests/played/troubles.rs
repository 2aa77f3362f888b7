//! Object stores that are slow, refuse, lose answers or hang, from any request of ten workloads on, for seconds to minutes: nothing that
//! was synchronised is lost, no call succeeds falsely or hangs, and requests are few.
//!
//! The clock is played: minutes pass when nothing else is to be done. `SLUICE_TROUBLE_ROUNDS` says how many troubles there are,
//! `SLUICE_TROUBLE_SEED` which.

use crate::troubled::work::{Call, Tree, tree, workloads};
use crate::troubled::{KINDS, Trouble, Troubled, play};
use object_store::memory::InMemory;
use sluice_bucket::{Bucket, Claim};
use sluice_sync::random::Random;
use sluice_vfs::{Fs, Options, Superblock};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// No call may take longer. A store waits a minute for an object store that does not answer, and for one that refuses about as long.
const CALL_MAX: Duration = Duration::from_secs(200);

fn options() -> Options {
    let mut options = Options::default();
    options.store.background = false;
    options.store.log_size = 8 << 20;
    options.store.segment_size = 16 << 20;
    options
}

fn now() -> Instant {
    let _inside = play().enter();
    Instant::now()
}

fn pass(time: Duration) {
    sluice_bucket::wait_for(async move { tokio::time::sleep(time).await });
}

fn open(bucket: &Bucket, epoch: u64) -> Result<Fs, String> {
    let store = bucket.open(Claim::Epoch(epoch), options().store).map_err(|error| error.to_string())?;
    let opened = Superblock::open_in(store, options()).map_err(|error| error.to_string())?;
    Ok(Fs::with_superblock(opened))
}

/// A file system in objects, and the trees that it may have.
struct Run {
    /// Since the last sync that succeeded: each tree that a later one may make durable.
    may: Vec<Tree>,
    longest: Duration,
}

impl Run {
    /// Does `work`, which may not take too long.
    fn timed<T>(&mut self, what: &dyn std::fmt::Debug, work: impl FnOnce() -> T) -> T {
        let began = now();
        let done = work();
        let took = now() - began;
        self.longest = self.longest.max(took);
        assert!(took <= CALL_MAX, "{what:?} took {took:?}");
        done
    }

    /// Makes `call` and notes what it made. Whether it succeeded.
    fn call(&mut self, fs: &Fs, call: &Call) -> bool {
        let mut tree = self.may.last().expect("one at least").clone();
        call.model(&mut tree);
        let done = self.timed(call, || call.run(fs));
        match done {
            Ok(()) if call.is_sync() => self.may = vec![tree],
            _ => self.may.push(tree),
        }
        done.is_ok()
    }

    /// The tree of `fs` must be one that may be, which is the only one from then on.
    fn check(&mut self, fs: &Fs, when: &str) {
        let found =
            self.timed(&"a look at all", || tree(fs)).unwrap_or_else(|error| panic!("{when}: {error}"));
        let is_right = self.may.contains(&found);
        assert!(is_right, "{when}: another tree: {}", difference(&found, &self.may));
        self.may = vec![found];
    }
}

fn difference(found: &Tree, may: &[Tree]) -> String {
    let shown = |tree: &Tree| -> Vec<String> {
        tree.iter()
            .map(|(path, bytes)| {
                format!("{path}:{:?}", bytes.as_ref().map(|bytes| (bytes.len(), bytes.first().copied())))
            })
            .collect()
    };
    format!("{:?}, and of {} the last one is {:?}", shown(found), may.len(), may.last().map(shown))
}

/// Objects of an empty file system.
fn made() -> Arc<InMemory> {
    let objects = Arc::new(InMemory::new());
    let bucket = Troubled::new(&objects, None).bucket();
    let fs = Fs::create_in(bucket.create(options().store).expect("memory"), options()).expect("memory");
    fs.superblock().close().expect("memory");
    objects
}

/// Runs `calls` while the object store is in `trouble`: requests that were made, and the longest call.
fn run(empty: &InMemory, calls: &[Call], trouble: Option<Trouble>, is_taken_over: bool) -> (u64, Duration) {
    let objects = Arc::new(empty.fork());
    let node = Troubled::new(&objects, trouble);
    let mut run = Run { may: vec![Tree::new()], longest: Duration::ZERO };
    let bucket = node.bucket();
    let fs = run.timed(&"open", || open(&bucket, 10));
    if let Ok(fs) = &fs {
        let is_whole = calls.iter().all(|call| run.call(fs, call));
        assert!(is_whole || trouble.is_some());
        // A read returns the right bytes or an error.
        if let (Ok(found), true) = (run.timed(&"a look at all", || tree(fs)), is_whole) {
            assert!(Some(&found) == run.may.last(), "the owner sees {}", difference(&found, &run.may));
        }
    }
    let mut next = None;
    if is_taken_over {
        let newer = open(&Troubled::new(&objects, None).bucket(), 20).expect("a newer owner opens the store");
        run.check(&newer, "after a takeover");
        assert!(
            run.call(&newer, &Call::Write("/of-the-next".into(), 9_000, 5)) && run.call(&newer, &Call::Sync)
        );
        next = Some(newer);
    }
    if let Some(left) = node.is_left(now()) {
        pass(left + Duration::from_millis(1));
    }
    if let (Ok(fs), Some(newer)) = (&fs, &next) {
        let late = Call::Write("/late".into(), 70_000, 6);
        let pushed = run.timed(&late, || late.run(fs)).and_then(|()| run.timed(&"sync", || fs.sync()));
        assert!(pushed.is_err(), "the store was taken over, and a sync succeeds");
        run.check(newer, "after the former owner is back");
        assert!(
            run.call(newer, &Call::Append("/of-the-next".into(), 90_000, 5)) && run.call(newer, &Call::Sync)
        );
    } else if let Ok(fs) = &fs {
        // Trouble is over: what a sync says now is true, too.
        let _ = run.call(fs, &Call::Sync);
    }
    for fs in [fs.ok(), next].into_iter().flatten() {
        let _ = run.timed(&"close", || fs.superblock().close());
        drop(fs);
    }
    // Requests that were late are executed by now.
    pass(Duration::from_secs(1));
    let last = Troubled::new(&objects, None).bucket();
    let fs = open(&last, 30).expect("the last owner opens the store");
    run.check(&fs, "when it is opened again");
    let closed = fs.superblock().close();
    assert!(closed.is_ok(), "the last owner closes: {:?}", fs.superblock().failure());
    let report = Superblock::check_shown(|look| last.check(look, &mut |_| ())).expect("it can be looked at");
    assert!(report.found == 0, "{report:?}");
    (node.requests(), run.longest)
}

#[test]
fn an_object_store_in_trouble_at_any_request_loses_nothing_and_hangs_nobody() {
    let number = |name: &str, usual| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (rounds, seed) = (number("SLUICE_TROUBLE_ROUNDS", 200_u64), number("SLUICE_TROUBLE_SEED", 44_u64));
    let only: Option<u64> = std::env::var("SLUICE_TROUBLE_ROUND").ok().and_then(|n| n.parse().ok());
    play();
    let empty = made();
    let workloads = workloads();
    let whole: Vec<u64> = workloads.iter().map(|(_, calls)| run(&empty, calls, None, false).0).collect();
    println!("requests without trouble: {whole:?}");
    let mut longest = [(Duration::ZERO, 0); KINDS.len()];
    for round in (0..rounds).filter(|round| only.is_none_or(|only| only == *round)) {
        let mut random = Random::new(seed + round);
        let at = round as usize % workloads.len();
        let (name, calls) = &workloads[at];
        let kind = random.below(KINDS.len());
        let lasts = random.pick(&[2, 15, 50, 100, 400]);
        let from = random.below(whole[at]);
        let is_taken_over = random.chance(50);
        let trouble = Trouble { kind: KINDS[kind], from, lasts: Duration::from_secs(lasts) };
        let what = format!("round {round}, seed {seed}: {name}, {trouble:?}, taken over: {is_taken_over}");
        let done =
            std::panic::catch_unwind(AssertUnwindSafe(|| run(&empty, calls, Some(trouble), is_taken_over)));
        let Ok((requests, took)) = done else { panic!("{what}") };
        // Each second some requests are made again.
        let most = 2 * whole[at] + 40 + 12 * lasts;
        assert!(requests <= most, "{what}: {requests} requests, and {} without trouble", whole[at]);
        longest[kind] = longest[kind].max((took, requests));
    }
    for (kind, (took, requests)) in KINDS.iter().zip(longest) {
        println!("{kind:?}: the longest call took {took:?} ({requests} requests)");
    }
}
