//! Same page: programs of two and three nodes that write one page, append to one file and lock it, all at once. None hangs.
//!
//! `SLUICE_LOAD_SECONDS=1800 cargo test -p sluice-cluster --test same_page` goes on for so long; then 99 of 100 writes must take less
//! than 100 ms. Without it times are not looked at.

mod harness;

use harness::Cluster;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(60);
const PROGRAMS: usize = 8;

/// A program's writes until `end`, or so many. Returns how long each took, in microseconds.
fn write_often(end: Option<Instant>, count: usize, mut write: impl FnMut(usize)) -> Vec<u32> {
    let is_on = |written: usize| end.map_or(written < count, |end| Instant::now() < end);
    let mut took = Vec::new();
    while is_on(took.len()) {
        let begun = Instant::now();
        write(took.len());
        took.push(begun.elapsed().as_micros() as u32);
    }
    took
}

fn load(nodes: usize) {
    let Some(mut cluster) = Cluster::new() else { return };
    let seconds = std::env::var("SLUICE_LOAD_SECONDS").ok().and_then(|text| text.parse().ok());
    let nodes: Vec<_> = (0..nodes).map(|_| cluster.join()).collect();
    for name in ["page", "log", "counter"] {
        fs::write(cluster.path(nodes[0], name), [0; 8]).expect("made");
    }
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (ended, ends) = mpsc::channel();
    for (&node, program) in nodes.iter().flat_map(|node| (0..PROGRAMS).map(move |program| (node, program))) {
        let (page, log, counter) =
            (cluster.path(node, "page"), cluster.path(node, "log"), cluster.path(node, "counter"));
        let ended = ended.clone();
        thread::spawn(move || {
            let took = match program % 4 {
                0 | 1 => {
                    let file = File::options().write(true).open(page).expect("it is there");
                    let at = 200 * (node * PROGRAMS + program) as u64 % 4000;
                    write_often(end, 200, |_| file.write_all_at(&[b'x'; 90], at).expect("written"))
                }
                2 => {
                    let mut file = File::options().append(true).open(log).expect("it is there");
                    write_often(end, 200, |_| file.write_all(b"a line of sixteen").expect("written"))
                }
                _ => {
                    let file = File::options().read(true).write(true).open(counter).expect("it is there");
                    write_often(end, 100, |_| {
                        flock(&file, FlockOperation::LockExclusive).expect("granted");
                        let mut bytes = [0; 8];
                        file.read_exact_at(&mut bytes, 0).expect("read");
                        let next = u64::from_le_bytes(bytes) + 1;
                        file.write_all_at(&next.to_le_bytes(), 0).expect("written");
                        flock(&file, FlockOperation::Unlock).expect("unlocked");
                    })
                }
            };
            // Nobody listens after a failure.
            let _ = ended.send((program % 4, took));
        });
    }
    let patience = HANG + Duration::from_secs(seconds.unwrap_or(0));
    let (mut appended, mut counted, mut writes) = (0, 0, Vec::new());
    for _ in 0..PROGRAMS * nodes.len() {
        let (kind, took) = ends.recv_timeout(patience).expect("no program hangs");
        match kind {
            2 => appended += took.len(),
            3 => counted += took.len(),
            _ => {}
        }
        // A lock is waited for as long as others have it.
        writes.extend(if kind == 3 { Vec::new() } else { took });
    }
    for &node in &nodes {
        assert_eq!(
            fs::metadata(cluster.path(node, "log")).expect("it is there").len(),
            8 + 17 * appended as u64
        );
        let count = fs::read(cluster.path(node, "counter")).expect("read").try_into().expect("8 bytes");
        assert_eq!(u64::from_le_bytes(count), counted as u64);
    }
    writes.sort_unstable();
    let part = |of: usize| writes[(writes.len() - 1) * of / 1000];
    println!(
        "{} nodes, {} writes: median {} us, p99 {} us, most {} us",
        nodes.len(),
        writes.len(),
        part(500),
        part(990),
        part(1000)
    );
    assert!(seconds.is_none() || part(990) < 100_000, "99 of 100 writes take less than 100 ms");
    cluster.finish();
}

#[test]
fn programs_of_two_nodes_wait_for_each_other_and_not_for_ever() {
    load(2);
}

#[test]
fn programs_of_three_nodes_wait_for_each_other_and_not_for_ever() {
    load(3);
}
