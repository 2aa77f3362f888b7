//! Wakes: which threads are woken for a message between nodes.

#[path = "suite/support/sleeps.rs"]
mod sleeps;

use sleeps::sleeps;
use sluice_dlm::{Config, Dlm, Mode, Want};
use sluice_membership::{ClusterCa, InMemory, Membership};
use std::sync::Arc;
use std::time::{Duration, Instant};

// One test, since the threads are those of the whole process.
#[test]
fn a_message_is_written_by_the_thread_that_sends_it() {
    const LOCKS: u64 = 400;
    let ca = ClusterCa::new().expect("made");
    let membership: Arc<dyn Membership> = Arc::new(InMemory::new(8, Duration::from_secs(60)));
    let join = || {
        let identity = ca.issue().expect("issued");
        Dlm::join_now(Config::local("test", identity, membership.clone())).expect("joined")
    };
    let (a, b) = (join(), join());
    let deadline = || Some(Instant::now() + Duration::from_secs(120));
    let lock = |n: u64| {
        let key = b.key(format!("name-{n}")).expect("short");
        drop(b.lock_wait(&key, &Want::new(Mode::Ex), deadline()).expect("free"));
    };
    // The first lock waits for masters and connections.
    (0..20).for_each(lock);
    let sent = || a.node().statistics().sent.get() + b.node().statistics().sent.get();
    let before = (sent(), sleeps("dlm-write"));
    (20..20 + LOCKS).for_each(lock);
    let (messages, sleeps) = (sent() - before.0, sleeps("dlm-write") - before.1);
    println!("{LOCKS} locks: {messages} messages, for which the writer threads were woken {sleeps} times");
    assert!(messages > LOCKS / 4, "{messages} messages: none of the locks had its master on the other node");
    assert!(sleeps * 10 <= messages, "{sleeps} wakes of writer threads for {messages} messages");
}
