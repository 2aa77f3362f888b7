//! Wakes: which threads are woken for a message between nodes.

#[path = "suite/harness/mod.rs"]
mod harness;
#[path = "../../dlm/tests/suite/support/sleeps.rs"]
mod sleeps;

use harness::Cluster;
use sleeps::sleeps;

// One test, since the threads are those of the whole process.
#[test]
fn requests_and_answers_are_written_by_the_threads_that_send_them() {
    const ROUND_TRIPS: u64 = 400;
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.join();
    let guest = cluster.join();
    let look = |n: u64| assert!(!cluster.path(guest, &format!("name-{n}")).exists());
    (0..20).for_each(look);
    let awaited = || cluster.node(guest).relay().counts().awaited;
    let before = (awaited(), sleeps("cluster-write"));
    (20..20 + ROUND_TRIPS).for_each(look);
    let (messages, sleeps) = (2 * (awaited() - before.0), sleeps("cluster-write") - before.1);
    println!("{messages} requests and answers, for which the writer threads were woken {sleeps} times");
    assert!(messages >= 2 * ROUND_TRIPS, "{messages} messages: the kernel knew the names");
    assert!(sleeps * 10 <= messages, "{sleeps} wakes of writer threads for {messages} messages");
    cluster.finish();
}
