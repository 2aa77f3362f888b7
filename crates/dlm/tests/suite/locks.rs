//! Locks of a few nodes whose messages arrive at once: what each kind of request does, and what it costs in messages.

use crate::support::nodes::{Cluster, MS, key, options};
use sluice_dlm::{Key, LockError, Mode, Options, Range, Submitted, Want};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn a_lock_costs_two_messages_once_and_then_none() {
    let cluster = Cluster::new(2, &options());
    let ticket = cluster.ask(1, &key("a"), &Want::new(Mode::Ex));
    assert_eq!(cluster.deliver(), 2);
    let held = cluster.end(1, ticket).expect("free");
    cluster.unlock(1, held);
    for mode in Mode::ALL {
        let held = cluster.nodes[1].lock_cached(0, &key("a"), mode).expect("cached");
        cluster.unlock(1, held);
    }
    assert_eq!(cluster.deliver(), 0);
    // On the master itself it costs none.
    let held = cluster.lock(0, &key("b"), Mode::Ex);
    cluster.unlock(0, held);
    assert_eq!(cluster.nodes[0].statistics().sent.get(), 1);
}

#[test]
fn a_lock_goes_from_its_holder_straight_to_the_next() {
    let mut cluster = Cluster::new(3, &options());
    let held = cluster.lock(1, &key("a"), Mode::Ex);
    let ticket = cluster.ask(2, &key("a"), &Want::new(Mode::Ex));
    assert_eq!(cluster.deliver(), 2, "a request to the master, and its to the holder");
    cluster.pass(10 * MS);
    cluster.unlock(1, held);
    assert_eq!(cluster.deliver(), 2, "the grant, and word to the master");
    let held = cluster.end(2, ticket).expect("granted");
    assert!(cluster.nodes[1].lock_cached(cluster.now, &key("a"), Mode::Cr).is_none());
    cluster.unlock(2, held);
}

/// Messages of local work among so many nodes, and of 30 locks of one resource that three of them take in turn.
fn messages_among(nodes: usize) -> (usize, usize) {
    let mut cluster = Cluster::new(nodes, &options());
    let own: Vec<Key> = (0..nodes).map(|node| key(&format!("own-{node}"))).collect();
    for (node, key) in own.iter().enumerate() {
        let held = cluster.lock(node, key, Mode::Ex);
        cluster.unlock(node, held);
    }
    cluster.deliver();
    for _ in 0..10 {
        for (node, key) in own.iter().enumerate() {
            let held = cluster.nodes[node].lock_cached(cluster.now, key, Mode::Ex).expect("cached");
            cluster.unlock(node, held);
        }
        cluster.pass(MS);
    }
    let local = cluster.deliver();
    let mut shared = 0;
    for round in 0..30 {
        let node = nodes - 1 - round % 3;
        let ticket = cluster.ask(node, &key("shared"), &Want::new(Mode::Ex));
        while ticket.outcome().is_none() {
            shared += cluster.deliver();
            cluster.pass(MS);
        }
        let held = cluster.end(node, ticket).expect("granted");
        cluster.unlock(node, held);
    }
    (local, shared + cluster.deliver())
}

#[test]
fn local_work_costs_no_message_and_shared_work_as_many_among_64_nodes_as_among_four() {
    let (few, many) = (messages_among(4), messages_among(64));
    assert_eq!((few.0, many.0), (0, 0), "local work");
    assert_eq!(few.1, many.1, "shared work");
    assert!(many.1 <= 4 * 30, "{} messages: a request, a revocation, a grant, a word to the master", many.1);
}

/// Two nodes want one lock all the time, a step of 10 microseconds each: how often they get it, for how many messages.
fn contend_for(steps: usize, hold: u64) -> (usize, usize) {
    let mut cluster = Cluster::new(2, &Options { hold, ..options() });
    let (key, mut tickets) = (key("a"), [None, None]);
    let (mut locks, mut messages) = (0, 0);
    for _ in 0..steps {
        for (node, waits) in tickets.iter_mut().enumerate() {
            let submitted = match waits.take() {
                Some(ticket) => Submitted::Waiting(ticket),
                None => cluster.nodes[node].lock(cluster.now, &key, &Want::new(Mode::Ex)).expect("a member"),
            };
            let held = match submitted {
                Submitted::Granted(held) => Some(held),
                Submitted::Waiting(ticket) if ticket.outcome().is_some() => {
                    Some(cluster.end(node, ticket).expect("granted"))
                }
                Submitted::Waiting(ticket) => {
                    *waits = Some(ticket);
                    None
                }
            };
            if let Some(held) = held {
                locks += 1;
                cluster.unlock(node, held);
            }
            messages += cluster.deliver();
        }
        cluster.pass(MS / 100);
    }
    (locks, messages)
}

#[test]
fn with_a_minimum_hold_two_nodes_that_contend_get_ten_times_as_many_locks_for_a_message() {
    let ((held, held_messages), (passed, passed_messages)) =
        (contend_for(20_000, 4 * MS), contend_for(20_000, 0));
    assert!(
        passed_messages > 10_000 && held_messages > 50,
        "{passed_messages}, {held_messages}: they contend"
    );
    assert!(
        held * passed_messages >= 10 * passed * held_messages,
        "{held} locks for {held_messages} messages, and without a hold {passed} for {passed_messages}"
    );
}

#[test]
fn modes_exclude_each_other_between_nodes_as_on_one() {
    for held_mode in Mode::ALL {
        for wanted in Mode::ALL {
            let cluster = Cluster::new(2, &options());
            let held = cluster.lock(0, &key("a"), held_mode);
            let ticket = cluster.ask(1, &key("a"), &Want::now(wanted));
            cluster.deliver();
            let outcome = cluster.end(1, ticket);
            assert_eq!(
                outcome.is_ok(),
                held_mode.compatible(wanted),
                "{held_mode:?} {wanted:?}: {outcome:?}"
            );
            if let Ok(other) = outcome {
                cluster.unlock(1, other);
            }
            cluster.unlock(0, held);
        }
    }
}

#[test]
fn a_try_gets_a_lock_that_is_only_cached_elsewhere() {
    let cluster = Cluster::new(2, &options());
    let held = cluster.lock(0, &key("a"), Mode::Ex);
    cluster.unlock(0, held);
    let ticket = cluster.ask(1, &key("a"), &Want::now(Mode::Ex));
    cluster.deliver();
    let held = cluster.end(1, ticket).expect("not in use");
    assert_eq!(
        cluster.nodes[1].lock(0, &key("a"), &Want::now(Mode::Pr)).map(|_| ()),
        Err(LockError::Busy),
        "in use on the same node"
    );
    cluster.unlock(1, held);
}

#[test]
fn a_stream_of_readers_does_not_starve_a_writer() {
    let mut cluster = Cluster::new(3, &options());
    let mut readers = VecDeque::from([cluster.lock(1, &key("a"), Mode::Pr)]);
    let writer = cluster.ask(2, &key("a"), &Want::new(Mode::Ex));
    let mut waiting = Vec::new();
    for _ in 0..20 {
        cluster.deliver();
        cluster.pass(MS);
        // There is always a reader, as long as readers get in.
        match cluster.nodes[1].lock(cluster.now, &key("a"), &Want::new(Mode::Pr)).expect("a member") {
            Submitted::Granted(held) => readers.push_back(held),
            Submitted::Waiting(ticket) => waiting.push(ticket),
        }
        if let Some(reader) = readers.pop_front() {
            cluster.unlock(1, reader);
        }
    }
    cluster.deliver();
    assert_eq!(writer.outcome(), Some(Ok(())), "the minimum hold is over");
    let held = cluster.end(2, writer).expect("granted");
    cluster.pass(10 * MS);
    cluster.unlock(2, held);
    cluster.deliver();
    for ticket in waiting {
        let held = cluster.end(1, ticket).expect("the writer is done");
        cluster.unlock(1, held);
    }
}

#[test]
fn a_lock_in_use_stays_for_the_minimum_hold_and_an_idle_one_goes_at_once() {
    let mut cluster = Cluster::new(2, &options());
    let held = cluster.lock(0, &key("a"), Mode::Ex);
    cluster.unlock(0, held);
    let ticket = cluster.ask(1, &key("a"), &Want::new(Mode::Ex));
    for _ in 0..3 {
        cluster.deliver();
        assert_eq!(ticket.outcome(), None);
        let held = cluster.nodes[0].lock_cached(cluster.now, &key("a"), Mode::Ex).expect("kept");
        cluster.unlock(0, held);
        cluster.pass(MS);
    }
    // No more used: the next look ends it, before the hold does.
    cluster.pass(MS);
    cluster.deliver();
    let held = cluster.end(1, ticket).expect("granted");
    cluster.unlock(1, held);
}

#[test]
fn a_holder_hears_of_a_node_that_waits_for_it() {
    let mut cluster = Cluster::new(2, &options());
    let called = Arc::new(AtomicU32::new(0));
    let wanted = called.clone();
    let notice = move |mode| {
        assert_eq!(mode, Mode::Pr);
        wanted.fetch_add(1, Ordering::Relaxed);
    };
    let want = Want { notice: Some(Arc::new(notice)), ..Want::new(Mode::Ex) };
    let ticket = cluster.ask(0, &key("a"), &want);
    let held = cluster.end(0, ticket).expect("free");
    let ticket = cluster.ask(1, &key("a"), &Want::new(Mode::Pr));
    cluster.deliver();
    cluster.pass(10 * MS);
    assert_eq!(called.load(Ordering::Relaxed), 1);
    // It makes room without unlocking.
    let Ok(Submitted::Granted(held)) = cluster.nodes[0].convert(cluster.now, held, &Want::new(Mode::Pr))
    else {
        panic!("weaker is granted at once");
    };
    cluster.deliver();
    let other = cluster.end(1, ticket).expect("compatible");
    cluster.unlock(0, held);
    cluster.unlock(1, other);
}

#[test]
fn a_value_goes_with_the_lock() {
    let mut cluster = Cluster::new(3, &options());
    let held = cluster.lock(0, &key("a"), Mode::Ex);
    cluster.nodes[0].set_value(&held, b"size 7").expect("it writes");
    cluster.unlock(0, held);
    cluster.pass(10 * MS);
    for node in [1, 2] {
        let held = cluster.lock(node, &key("a"), Mode::Pr);
        let value = cluster.nodes[node].value(&held).expect("there is one");
        assert_eq!((&*value.bytes, value.is_certain), (&b"size 7"[..], true));
        assert_eq!(cluster.nodes[node].set_value(&held, b"x"), Err(LockError::ReadOnly));
        cluster.unlock(node, held);
    }
}

#[test]
fn a_value_that_was_changed_goes_to_the_master_after_a_conversion() {
    let cluster = Cluster::new(3, &options());
    let keeper = cluster.lock(2, &key("a"), Mode::Nl);
    let held = cluster.lock(1, &key("a"), Mode::Pw);
    cluster.nodes[1].set_value(&held, b"new").expect("it writes");
    let Ok(Submitted::Waiting(ticket)) = cluster.nodes[1].convert(cluster.now, held, &Mode::Ex.into()) else {
        panic!("only the weaker lock is cached");
    };
    cluster.deliver();
    let held = cluster.end(1, ticket).expect("nobody is in the way");
    cluster.unlock(1, held);
    // The lock goes back to the master, and not to the next holder.
    let held = cluster.lock(2, &key("a"), Want::now(Mode::Ex));
    let value = cluster.nodes[2].value(&held).expect("there is one");
    assert_eq!((&*value.bytes, value.is_certain), (&b"new"[..], true));
    cluster.unlock(2, held);
    cluster.unlock(2, keeper);
}

#[test]
fn nobody_reads_a_value_before_its_master_has_heard_of_it() {
    let mut cluster = Cluster::new(3, &options());
    let held = cluster.lock(1, &key("a"), Mode::Ex);
    cluster.nodes[1].set_value(&held, b"new").expect("it writes");
    cluster.unlock(1, held);
    cluster.pass(10 * MS);
    let next = cluster.ask(2, &key("a"), &Want::new(Mode::Pr));
    cluster.deliver_from(2);
    let reader = cluster.ask(0, &key("a"), &Want::new(Mode::Pr));
    cluster.deliver_from(0);
    // The holder's message to the master is late.
    let late = cluster.nodes[1].effects().0.lock().unwrap().pop_back();
    cluster.deliver();
    let held = cluster.end(2, next).expect("handed over");
    cluster.unlock(2, held);
    // This tells the master that the lock was handed over, and not with what value.
    let writer = cluster.ask(2, &key("a"), &Want::new(Mode::Pw));
    cluster.deliver();
    assert_eq!(reader.outcome(), None);
    cluster.nodes[0].message(cluster.now, cluster.nodes[1].id(), late.expect("a release").1);
    cluster.deliver();
    let held = cluster.end(0, reader).expect("nobody is in the way");
    let value = cluster.nodes[0].value(&held).expect("there is one");
    assert_eq!((&*value.bytes, value.is_certain), (&b"new"[..], true));
    cluster.unlock(0, held);
    cluster.pass(10 * MS);
    cluster.deliver();
    let held = cluster.end(2, writer).expect("nobody is in the way");
    cluster.unlock(2, held);
}

#[test]
fn a_value_is_uncertain_after_the_death_of_a_node_that_may_have_changed_it() {
    let mut cluster = Cluster::new(3, &options());
    let keeper = cluster.lock(2, &key("a"), Mode::Nl);
    let held = cluster.lock(0, &key("a"), Mode::Ex);
    cluster.nodes[0].set_value(&held, b"old").expect("it writes");
    cluster.unlock(0, held);
    cluster.pass(10 * MS);
    let held = cluster.lock(1, &key("a"), Mode::Ex);
    cluster.nodes[1].set_value(&held, b"new").expect("it writes");
    let dead = cluster.nodes.remove(1);
    cluster.registry.leave(dead.id());
    cluster.show();
    let held = cluster.lock(0, &key("a"), Mode::Pr);
    let value = cluster.nodes[0].value(&held).expect("there is one");
    assert_eq!((&*value.bytes, value.is_certain), (&b"old"[..], false));
    cluster.unlock(0, held);
    cluster.unlock(1, keeper);
}

#[test]
fn ranges_exclude_each_other_only_where_they_overlap() {
    let cluster = Cluster::new(2, &options());
    let range = |start, end| Key { range: Range::new(start, end).expect("not empty"), ..key("a") };
    let held = cluster.lock(0, &range(0, 9), Mode::Ex);
    let other = cluster.lock(1, &range(10, 19), Mode::Ex);
    let refused = cluster.ask(1, &range(9, 12), &Want::now(Mode::Pr));
    cluster.deliver();
    assert_eq!(cluster.end(1, refused).map(|_| ()), Err(LockError::Busy));
    cluster.unlock(0, held);
    cluster.unlock(1, other);
}

#[test]
fn a_request_that_is_withdrawn_leaves_nothing_behind() {
    let mut cluster = Cluster::new(2, &options());
    let held = cluster.lock(0, &key("a"), Mode::Ex);
    let ticket = cluster.ask(1, &key("a"), &Want::new(Mode::Ex));
    cluster.deliver();
    assert_eq!(cluster.end(1, ticket).map(|_| ()), Err(LockError::Cancelled));
    cluster.pass(10 * MS);
    cluster.unlock(0, held);
    cluster.deliver();
    let status = cluster.nodes[0].status();
    assert!(status.resources.iter().all(|resource| resource.waiters.is_empty()), "{status:?}");
    let held = cluster.lock(0, &key("a"), Mode::Ex);
    cluster.unlock(0, held);
}

#[test]
fn of_two_conversions_that_wait_for_each_other_one_is_refused() {
    let mut cluster = Cluster::new(2, &options());
    let (a, b) = (cluster.lock(0, &key("a"), Mode::Pr), cluster.lock(1, &key("a"), Mode::Pr));
    let convert = |cluster: &Cluster, node: usize, held| match cluster.nodes[node].convert(
        cluster.now,
        held,
        &Want::new(Mode::Ex),
    ) {
        Ok(Submitted::Waiting(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    let first = convert(&cluster, 0, a);
    let second = convert(&cluster, 1, b);
    cluster.deliver();
    cluster.pass(10 * MS);
    cluster.deliver();
    let outcomes = [first.outcome(), second.outcome()];
    assert_eq!(outcomes, [None, Some(Err(LockError::Deadlock))]);
    // It still has what it had; unlocking that lets the other go on.
    let (_, held) = cluster.nodes[1].finish(cluster.now, second);
    cluster.unlock(1, held.expect("kept"));
    cluster.pass(10 * MS);
    cluster.deliver();
    let held = cluster.end(0, first).expect("granted");
    assert_eq!(held.mode(), Mode::Ex);
    cluster.unlock(0, held);
}

#[test]
fn a_conversion_that_another_one_waits_for_is_asked_for() {
    let cluster = Cluster::new(2, &options());
    let (null, reader) = (cluster.lock(1, &key("a"), Mode::Nl), cluster.lock(1, &key("a"), Mode::Pr));
    let convert = |held, mode: Mode| match cluster.nodes[1].convert(cluster.now, held, &mode.into()) {
        Ok(Submitted::Waiting(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    // The node gets what the first one needs, and the reader is in its way.
    let (first, second) = (convert(null, Mode::Pw), convert(reader, Mode::Ex));
    cluster.deliver();
    assert_eq!((first.outcome(), second.outcome()), (None, Some(Ok(()))));
    let held = cluster.end(1, second).expect("granted");
    cluster.unlock(1, held);
    let held = cluster.end(1, first).expect("nobody is in the way");
    cluster.unlock(1, held);
}

#[test]
fn cached_locks_are_given_up_one_by_one_when_memory_is_short() {
    let cluster = Cluster::new(2, &Options { memory: 100_000, ..options() });
    let lock_all = |names: std::ops::Range<u32>| {
        for n in names {
            let held = cluster.lock(1, &key(&format!("{n}")), Mode::Ex);
            cluster.unlock(1, held);
            cluster.deliver();
        }
    };
    lock_all(0..1_000);
    let (locks, resources) = (cluster.nodes[1].locks(), cluster.nodes[0].resources());
    assert!((50..500).contains(&locks), "{locks}");
    assert_eq!(locks, resources, "the master forgets what nobody has");
}

#[test]
fn a_node_without_a_lease_gives_out_nothing() {
    let mut cluster = Cluster::new(2, &options());
    let held = cluster.lock(1, &key("a"), Mode::Ex);
    let waiting = cluster.ask(1, &key("a"), &Want::new(Mode::Pr));
    cluster.now = 2_000_000 * MS;
    assert!(cluster.nodes[1].lock_cached(cluster.now, &key("a"), Mode::Ex).is_none());
    assert_eq!(
        cluster.nodes[1].lock(cluster.now, &key("b"), &Want::new(Mode::Pr)).err(),
        Some(LockError::NotMember)
    );
    cluster.pass(MS);
    assert_eq!(waiting.outcome(), Some(Err(LockError::NotMember)));
    let _ = cluster.nodes[1].finish(cluster.now, waiting);
    cluster.unlock(1, held);
}

#[test]
fn an_unlock_after_the_end_of_the_lease_gives_the_lock_to_nobody() {
    let mut cluster = Cluster::new(2, &options());
    let held = cluster.lock(1, &key("a"), Mode::Ex);
    let waiting = cluster.ask(1, &key("a"), &Want::new(Mode::Ex));
    cluster.now = 2_000_000 * MS;
    cluster.unlock(1, held);
    assert_eq!(waiting.outcome(), None);
    cluster.pass(MS);
    assert_eq!(waiting.outcome(), Some(Err(LockError::NotMember)));
    let _ = cluster.nodes[1].finish(cluster.now, waiting);
}

#[test]
fn a_node_that_has_left_is_not_told_of_as_waiting() {
    let mut cluster = Cluster::new(3, &options());
    let held = cluster.lock(1, &key("a"), Mode::Ex);
    let _ticket = cluster.ask(2, &key("a"), &Want::new(Mode::Ex));
    cluster.deliver();
    let waiting = |cluster: &Cluster| cluster.nodes[0].status().resources[0].waiters.len();
    assert_eq!(waiting(&cluster), 1);
    let gone = cluster.nodes.remove(2);
    cluster.registry.leave(gone.id());
    cluster.show();
    assert_eq!(waiting(&cluster), 0);
    cluster.unlock(1, held);
}
