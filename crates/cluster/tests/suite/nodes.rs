//! Nodes of one process, over TLS on this machine: coherence, takeover by hand-over, strangers.

use crate::harness::{Cluster, eventually};
use rustix::fs::FlockOperation;
use sluice_cluster::{Frame, Role, encode};
use sluice_fuse::control;
use sluice_membership::{ClusterCa, Hello, NodeId, Secure};
use sluice_sync::random::Random;
use sluice_vfs::{Options, SnapshotPeriod, SnapshotSchedule, Superblock, Timestamp};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn what_one_node_writes_the_other_reads_and_warm_reads_send_no_message() {
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b) = (cluster.join(), cluster.join());
    assert_eq!((cluster.role(a), cluster.role(b)), (Role::Owner, Role::Guest));
    fs::create_dir(cluster.path(b, "d")).expect("made");
    for round in 0..20_u32 {
        let name = format!("d/f{round}");
        fs::write(cluster.path(a, &name), name.as_bytes()).expect("written");
        assert_eq!(fs::read(cluster.path(b, &name)).expect("it is there"), name.as_bytes());
    }
    let look = || {
        for entry in fs::read_dir(cluster.path(b, "d")).expect("it is there") {
            let entry = entry.expect("read");
            assert!(entry.metadata().expect("it is there").len() >= 4);
        }
    };
    look();
    look();
    let before = cluster.node(b).status().counts.requests;
    look();
    assert_eq!(cluster.node(b).status().counts.requests - before, 0, "served by the kernel's caches");
    cluster.finish();
}

#[test]
fn a_node_that_cannot_open_the_store_says_why_until_it_can() {
    let Some(mut cluster) = Cluster::new() else { return };
    let (store, works) = (cluster.store(), Arc::new(AtomicBool::new(false)));
    let open = {
        let works = works.clone();
        move |_| match works.load(Ordering::SeqCst) {
            true => Superblock::open(&store, Options::default()).map_err(io::Error::other),
            false => Err(io::Error::other("the medium is on fire")),
        }
    };
    let node = cluster.start(Arc::new(open));
    let failure = || cluster.node(node).status().failure;
    eventually("it says why", || failure().is_some_and(|why| why.contains("on fire")));
    assert_eq!(cluster.role(node), Role::Waiting);
    works.store(true, Ordering::SeqCst);
    eventually("it serves", || cluster.role(node) == Role::Owner);
    assert_eq!(cluster.node(node).status().failure, None);
    cluster.finish();
}

#[test]
fn an_order_to_a_guest_names_the_owner_and_the_owner_takes_it() {
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b) = (cluster.join(), cluster.join());
    fs::create_dir(cluster.path(b, "d")).expect("made");
    File::create_new(cluster.path(b, "f"))
        .and_then(|mut file| file.write_all(b"text").and(file.sync_all()))
        .expect("made");
    let clone = |node, to: &str| control::clone_tree(&cluster.path(node, "d"), &cluster.path(node, to));
    let refused = clone(b, "copy").expect_err("it is a guest").to_string();
    assert!(refused.contains("owner's mount"), "{refused}");
    let taken = control::take_snapshot(&cluster.path(b, ""), "s".as_ref());
    assert!(taken.expect_err("it is a guest").to_string().contains("owner's mount"));
    for round in 0..20 {
        let copy = format!("copy{round}");
        assert!(!cluster.path(b, &copy).exists());
        clone(a, &copy).expect("it is the owner");
        assert!(cluster.path(b, &copy).is_dir(), "the clone of round {round} is told of before it returns");
    }
    for round in 0..20 {
        let (dir, name) = (cluster.path(a, ""), format!("s{round}"));
        control::take_snapshot(&dir, name.as_ref()).expect("it is the owner");
        let there = cluster.path(b, &format!(".snapshots/{name}/d"));
        assert!(there.is_dir(), "the snapshot of round {round}");
        for node in [a, b] {
            let path = |below: &str| cluster.path(node, &format!(".snapshots/{name}/{below}"));
            let opened = File::options().write(true).open(path("f")).map(drop);
            let refused = [
                opened,
                fs::write(path("new"), "x"),
                fs::create_dir(path("d/new")),
                fs::remove_file(path("f")),
                fs::rename(path("d"), path("e")),
                fs::hard_link(path("f"), cluster.path(node, "link")),
                fs::set_permissions(path("d"), fs::Permissions::from_mode(0o777)),
            ];
            for (call, refused) in refused.into_iter().enumerate() {
                let kind = refused.expect_err("it does not change").kind();
                assert_eq!(kind, io::ErrorKind::ReadOnlyFilesystem, "call {call}");
            }
            assert_eq!(fs::read(path("f")).expect("it is there"), b"text");
        }
        control::drop_snapshot(&dir, name.as_ref()).expect("it is the owner");
        assert!(!there.exists(), "snapshot {round} is gone");
    }
    cluster.finish();
}

#[test]
fn the_owner_alone_takes_snapshots_by_the_clock_and_the_next_owner_goes_on() {
    let Some(mut cluster) = Cluster::new() else { return };
    let schedule = SnapshotSchedule::default().keep(SnapshotPeriod::Monthly, 3);
    // Each node has the schedule, and opens the store when it is the owner.
    let opened: Arc<Mutex<Vec<Arc<Superblock>>>> = Arc::default();
    let mut join = || {
        let (store, opened) = (cluster.store(), opened.clone());
        let options = Options::default().snapshots(schedule.clone());
        let node = cluster.start(Arc::new(move |_| {
            let superblock = Superblock::open(&store, options.clone()).map_err(io::Error::other)?;
            opened.lock().expect("no panic").push(superblock.clone());
            Ok(superblock)
        }));
        eventually("it serves", || [Role::Owner, Role::Guest].contains(&cluster.role(node)));
        node
    };
    let (a, b) = (join(), join());
    let owner = || {
        let mut opened = opened.lock().expect("no panic");
        assert_eq!(opened.len(), 1, "one node has the store open");
        opened.pop().expect("it is there")
    };
    // As its thread does, which has done it or finds it done.
    let keep = |superblock: &Superblock, days: i64| {
        let Timestamp { sec, nsec } = Timestamp::now();
        let then = Timestamp { sec: sec + days * 24 * 3600, nsec };
        superblock.keep_snapshots(&schedule, then).expect("there is room");
        superblock.snapshots().expect("readable")
    };
    let first = owner();
    fs::write(cluster.path(b, "f"), "one").expect("written");
    let before = keep(&first, 0);
    drop(first);
    cluster.leave(a);
    eventually("the other is owner", || cluster.role(b) == Role::Owner);
    let second = owner();
    // A month may have begun meanwhile.
    let after = keep(&second, 0);
    assert!(after.starts_with(&before) && after.len() <= before.len() + 1, "{before:?}, {after:?}");
    fs::write(cluster.path(b, "f"), "two").expect("written");
    File::open(cluster.path(b, "f")).and_then(|file| file.sync_all()).expect("durable");
    let later = keep(&second, 40);
    assert_eq!(later.len(), after.len() + 1);
    assert_eq!(keep(&second, 80), later, "nothing has changed");
    let taken = String::from_utf8(later.last().expect("it is there").clone()).expect("text");
    assert_eq!(fs::read_to_string(cluster.path(b, &format!(".snapshots/{taken}/f"))).expect("read"), "two");
    drop(second);
    cluster.finish();
}

#[test]
fn when_the_owner_leaves_open_files_and_locks_of_the_others_go_on() {
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b) = (cluster.join(), cluster.join());
    let mut kept =
        File::options().read(true).append(true).create(true).open(cluster.path(b, "kept")).expect("made");
    kept.write_all(b"one\n").expect("written");
    rustix::fs::flock(&kept, FlockOperation::LockExclusive).expect("free");
    let unnamed = File::create_new(cluster.path(b, "unnamed")).expect("made");
    unnamed.write_all_at(b"still here", 0).expect("written");
    unnamed.sync_all().expect("durable");
    fs::remove_file(cluster.path(a, "unnamed")).expect("removed");
    cluster.leave(a);
    eventually("the other is owner", || cluster.role(b) == Role::Owner);
    kept.write_all(b"two\n").expect("written");
    assert_eq!(fs::read_to_string(cluster.path(b, "kept")).expect("read"), "one\ntwo\n");
    let mut bytes = [0; 10];
    unnamed.read_exact_at(&mut bytes, 0).expect("it is open");
    assert_eq!(&bytes, b"still here");
    assert_eq!(unnamed.metadata().expect("it is open").nlink(), 0);
    let c = cluster.join();
    assert_eq!(cluster.role(c), Role::Guest);
    let other = File::open(cluster.path(c, "kept")).expect("it is there");
    let refused = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    drop(kept);
    eventually("the lock is free", || {
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    drop((other, unnamed));
    cluster.finish();
}

#[test]
fn a_node_locks_without_a_message_what_no_other_has_open_and_others_see_its_locks() {
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b) = (cluster.join(), cluster.join());
    let mine = File::create(cluster.path(b, "f")).expect("made");
    let decided = |cluster: &Cluster, node| cluster.node(node).relay().counts().locks_decided;
    for _ in 0..50 {
        rustix::fs::flock(&mine, FlockOperation::LockExclusive).expect("free");
        rustix::fs::flock(&mine, FlockOperation::Unlock).expect("unlocked");
    }
    assert!(decided(&cluster, b) >= 90, "all but the first, and the next ones if it lost its connection");
    rustix::fs::flock(&mine, FlockOperation::LockExclusive).expect("free");
    let yours = File::open(cluster.path(a, "f")).expect("it is there");
    let refused = rustix::fs::flock(&yours, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    rustix::fs::flock(&mine, FlockOperation::Unlock).expect("unlocked");
    rustix::fs::flock(&yours, FlockOperation::NonBlockingLockExclusive).expect("free");
    rustix::fs::flock(&yours, FlockOperation::Unlock).expect("unlocked");
    drop(yours);
    // The next owner gets from the node what it granted by itself.
    let other = File::create(cluster.path(b, "g")).expect("made");
    for operation in [FlockOperation::LockExclusive, FlockOperation::Unlock, FlockOperation::LockExclusive] {
        rustix::fs::flock(&other, operation).expect("free");
    }
    cluster.leave(a);
    eventually("the other is owner", || cluster.role(b) == Role::Owner);
    let c = cluster.join();
    let yours = File::open(cluster.path(c, "g")).expect("it is there");
    let refused = rustix::fs::flock(&yours, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    drop((mine, other));
    eventually("the lock is free", || {
        rustix::fs::flock(&yours, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    drop(yours);
    cluster.finish();
}

#[test]
fn a_node_asks_little_of_directories_that_it_made_and_sees_what_others_do_there_also_after_a_takeover() {
    const FILES: u64 = 50;
    const TRIES: usize = 5;
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b) = (cluster.join(), cluster.join());
    let unpack = |cluster: &Cluster, name: &str| {
        let awaited = || cluster.node(b).relay().counts().awaited;
        let (before, dir) = (awaited(), cluster.path(b, name));
        fs::create_dir(&dir).expect("made");
        (0..FILES).for_each(|file| fs::write(dir.join(format!("f{file}")), "some").expect("written"));
        awaited() - before
    };
    // CREATE: WRITE goes behind. A node that has lost its connection asks for more.
    let names: Vec<_> = (0..TRIES).map(|number| format!("d{number}")).collect();
    assert!(names.iter().any(|name| unpack(&cluster, name) <= FILES + 10));
    for name in &names {
        fs::create_dir_all(cluster.path(b, name)).expect("made");
        assert!(!cluster.path(b, name).join("theirs").exists());
    }
    fs::write(cluster.path(a, "d0/theirs"), "theirs").expect("written");
    assert_eq!(fs::read(cluster.path(b, "d0/theirs")).expect("it is there"), b"theirs");
    cluster.leave(a);
    eventually("the other is owner", || cluster.role(b) == Role::Owner);
    let c = cluster.join();
    fs::write(cluster.path(c, "d1/theirs"), "theirs").expect("written");
    assert_eq!(fs::read(cluster.path(b, "d1/theirs")).expect("it is there"), b"theirs");
    fs::create_dir(cluster.path(c, "d1/sub")).expect("made");
    assert_eq!(fs::metadata(cluster.path(b, "d1")).expect("it is there").nlink(), 3);
    cluster.finish();
}

#[test]
fn strangers_and_garbage_are_refused_and_harm_nothing() {
    let Some(mut cluster) = Cluster::new() else { return };
    let a = cluster.join();
    let address = cluster.address(a);
    // No TLS, and TLS of another cluster.
    let mut tcp = TcpStream::connect(&address).expect("it listens");
    tcp.write_all(&[0x5a; 4096]).expect("sent");
    let _ = tcp.read(&mut [0; 16]);
    let stranger =
        ClusterCa::new().and_then(|ca| ca.issue()).and_then(|one| one.configurations()).expect("made");
    let called = Secure::call(TcpStream::connect(&address).expect("it listens"), stranger.1);
    assert!(called.is_err());
    // A node of the cluster that says what no node says.
    let known = cluster.identity().configurations().expect("issued");
    for noise in [vec![0xff; 200], b"slucdlm1".to_vec(), [b"slucfsc5".as_slice(), &[0; 80]].concat()] {
        let tcp = TcpStream::connect(&address).expect("it listens");
        let secure = Secure::call(tcp, known.1.clone()).expect("one of them");
        secure.write_all(&noise).expect("sent");
        assert!(secure.read_exact(&mut [0; 8]).is_err(), "it is cut off");
    }
    fs::write(cluster.path(a, "f"), "fine").expect("it still works");
    cluster.finish();
}

#[test]
fn strangers_that_speak_slowly_wrongly_or_of_huge_lengths_keep_no_node_out() {
    let Some(mut cluster) = Cluster::new() else { return };
    let a = cluster.join();
    let address = cluster.address(a);
    let mut random = Random::new(5);
    let noise: Vec<u8> = (0..20_000).map(|_| random.bits() as u8).collect();
    // The head of a ClientHello of 16 KiB, and of one that is cut off; a record of an impossible length.
    let said: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abc",
        b"\x17\x03\x03\xff\xff",
        &[0xff; 9],
        &noise,
        b"",
    ];
    // Twice as many as are listened to at once.
    let calls: Vec<_> = (0..128)
        .map(|call| {
            let mut tcp = TcpStream::connect(&address).expect("it listens");
            // It may have hung up already.
            let _ = tcp.write_all(said[call % said.len()]);
            tcp
        })
        .collect();
    let b = cluster.join();
    fs::write(cluster.path(b, "f"), "fine").expect("written");
    assert_eq!(fs::read(cluster.path(a, "f")).expect("it is there"), b"fine");
    drop(calls);
    cluster.finish();
}

#[test]
fn a_node_that_breaks_the_protocol_harms_no_other() {
    let Some(mut cluster) = Cluster::new() else { return };
    let (a, b, c) = (cluster.join(), cluster.join(), cluster.join());
    let (address, owner) = (cluster.address(a), NodeId(cluster.node(a).status().node));
    let (_, calling) = cluster.identity().configurations().expect("issued");
    // It speaks in the name of a node that is there.
    let from = NodeId(cluster.node(c).status().node);
    let call = || {
        let tcp = TcpStream::connect(&address).expect("it listens");
        let secure = Secure::call(tcp, calling.clone()).expect("one of them");
        let name = cluster.name().to_string();
        let hello = Hello { protocol: *b"slucfsc5", cluster: name, from, to: owner };
        hello.say(&secure).and_then(|()| Hello::hear(&secure)).expect("it answers");
        secure
    };
    let mut random = Random::new(7);
    // Nobody whose notices would be waited for knows this directory.
    fs::create_dir(cluster.path(b, "w")).expect("made");
    let holdings = |random: &mut Random| -> Vec<u8> {
        let mut bytes = [0_u64; 5].map(u64::to_le_bytes).concat();
        if random.below(2) == 0 {
            let at = random.below(bytes.len());
            bytes[at] = random.bits() as u8;
        }
        bytes
    };
    for round in 0..120_u64 {
        let secure = call();
        let mut said = Vec::new();
        if round % 8 != 0 {
            let holdings = holdings(&mut random);
            encode(&Frame::Attach { mount: 1_000_000 + round, epoch: random.below(3), holdings }, &mut said);
        }
        for _ in 0..random.below(20) {
            let mut bytes: Vec<u8> = (0..random.below(120)).map(|_| random.below(9)).collect();
            let frame = match random.below(6) {
                0 => Frame::Noticed(random.bits()),
                1 => Frame::Ping(random.bits()),
                2 => Frame::Attach { mount: random.bits(), epoch: 0, holdings: bytes },
                3 => Frame::Answer(bytes),
                _ => {
                    // A request of some opcode about a node with a small number.
                    bytes.splice(
                        0..0,
                        [
                            &[0; 4][..],
                            &random.below(55_u32).to_le_bytes(),
                            &[2; 8],
                            &random.below(4_u64).to_le_bytes(),
                            &[0; 16],
                        ]
                        .concat(),
                    );
                    Frame::Request(bytes)
                }
            };
            encode(&frame, &mut said);
        }
        match random.below(5) {
            0 => said.extend(u32::MAX.to_le_bytes()),
            1 => said.extend([0xff, 0xff, 0x3f, 0, 2]),
            2 => said.extend((0..64).map(|_| random.bits() as u8)),
            3 => encode(&Frame::Detach, &mut said),
            _ => {}
        }
        // It may have hung up already.
        let _ = secure.write_all(&said);
        if round % 16 == 0 {
            let name = format!("w/f{round}");
            fs::write(cluster.path(b, &name), &name).expect("written");
            assert_eq!(fs::read(cluster.path(a, &name)).expect("it is there"), name.as_bytes());
            assert_eq!(fs::read(cluster.path(c, &name)).expect("it is there"), name.as_bytes());
        }
        secure.close();
    }
    cluster.finish();
}
