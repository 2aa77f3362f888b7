//! Same page: programs of two and three nodes that write one page, append to one file, lock it, and map it, all at once. None hangs, and
//! no byte is lost or wrong.
//!
//! `SLUICE_LOAD_SECONDS=1800 cargo test -p sluice-cluster --test suite same_page::` goes on for so long; then 99 of 100 writes must take less
//! than 100 ms. Without it times are not looked at.

use crate::harness::{Cluster, mapper};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// After this long something is taken to hang. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(60);
const PROGRAMS: usize = 8;
/// So many bytes of the page belong to each program.
const SHARE: usize = 160;
/// The length of a line that is appended.
const LINE: usize = 18;
/// How far a mapping program counts without a time.
const COUNT: usize = 400;

/// The work of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// It writes its share of the page.
    Page,
    /// It writes its share of the second page of a file whose first page other programs map.
    Mapped,
    Append,
    /// It counts under a lock.
    Lock,
}

/// The finished work: how often, and how long each write took, in microseconds.
struct Done {
    work: Work,
    number: usize,
    took: Vec<u32>,
}

/// A program's writes until `end`, or so many.
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

/// The last bytes that program `number` writes into its share of a page, after so many writes.
fn share(number: usize, written: usize) -> [u8; SHARE] {
    [(number * 7 + written) as u8; SHARE]
}

/// Where its share is.
fn at(work: Work, number: usize) -> usize {
    number * SHARE + if work == Work::Mapped { 4096 } else { 0 }
}

/// The line of program `number` that follows so many.
fn line(number: usize, written: usize) -> String {
    format!("{number:02} {written:014}\n")
}

fn program(work: Work, number: usize, end: Option<Instant>, path: PathBuf) -> Vec<u32> {
    match work {
        Work::Page | Work::Mapped => {
            let file = File::options().write(true).open(path).expect("it is there");
            let at = at(work, number) as u64;
            write_often(end, 200, |written| {
                file.write_all_at(&share(number, written + 1), at).expect("written");
            })
        }
        Work::Append => {
            let mut file = File::options().append(true).open(path).expect("it is there");
            write_often(end, 200, |written| {
                file.write_all(line(number, written).as_bytes()).expect("written");
            })
        }
        Work::Lock => {
            let file = File::options().read(true).write(true).open(path).expect("it is there");
            write_often(end, 100, |_| {
                flock(&file, FlockOperation::LockExclusive).expect("granted");
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, 0).expect("read");
                let next = u64::from_le_bytes(bytes) + 1;
                file.write_all_at(&next.to_le_bytes(), 0).expect("written");
                flock(&file, FlockOperation::Unlock).expect("unlocked");
            })
        }
    }
}

/// That the lines of each program are there, in their order, and nothing else.
fn check_lines(text: &[u8], done: &[Done]) {
    let mut next = vec![0; done.len()];
    for found in text.chunks(LINE) {
        let found = std::str::from_utf8(found).expect("text");
        let number: usize = found[..2].parse().expect("a number");
        assert_eq!(found, line(number, next[number]));
        next[number] += 1;
    }
    for Done { number, took, .. } in done.iter().filter(|done| done.work == Work::Append) {
        assert_eq!(next[*number], took.len(), "lines of program {number}");
    }
}

fn load(nodes: usize) {
    let Some(mut cluster) = Cluster::new() else { return };
    let seconds = std::env::var("SLUICE_LOAD_SECONDS").ok().and_then(|text| text.parse().ok());
    let nodes: Vec<_> = (0..nodes).map(|_| cluster.join()).collect();
    fs::write(cluster.path(nodes[0], "log"), []).expect("made");
    for name in ["page", "counter", "mapped"] {
        fs::write(cluster.path(nodes[0], name), [0; 2 * 4096]).expect("made");
    }
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (ended, ends) = mpsc::channel();
    for (&node, which) in nodes.iter().flat_map(|node| (0..PROGRAMS).map(move |which| (node, which))) {
        let (work, name) = match which % 4 {
            0 => (Work::Page, "page"),
            1 if which == 1 => (Work::Mapped, "mapped"),
            1 => (Work::Page, "page"),
            2 => (Work::Append, "log"),
            _ => (Work::Lock, "counter"),
        };
        let (path, ended) = (cluster.path(node, name), ended.clone());
        thread::spawn(move || {
            let number = node * PROGRAMS + which;
            let took = program(work, number, end, path);
            // Nobody listens after a failure.
            let _ = ended.send(Done { work, number, took });
        });
    }
    let slot = |node: usize| node;
    let start = |&node: &usize| {
        let (path, slot) = (cluster.path(node, "mapped"), slot(node).to_string());
        let (seconds, count) = (seconds.unwrap_or(0).to_string(), COUNT.to_string());
        Some((node, mapper(&["count", path.to_str().expect("text"), &slot, &seconds, &count])?))
    };
    let mappers: Vec<_> = nodes.iter().filter_map(start).collect();
    let patience = HANG + Duration::from_secs(seconds.unwrap_or(0));
    let mut done: Vec<_> =
        (0..PROGRAMS * nodes.len()).map(|_| ends.recv_timeout(patience).expect("no program hangs")).collect();
    done.sort_by_key(|done| done.number);
    let (told, tells) = mpsc::channel();
    for (node, child) in mappers {
        let told = told.clone();
        thread::spawn(move || {
            // Nobody listens after a failure.
            let _ = told.send((node, child.wait_with_output()));
        });
    }
    drop(told);
    let mut stored = Vec::new();
    while let Ok((node, output)) = tells.recv_timeout(patience) {
        let output = output.expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "the program that maps the file on node {node}: {} {said}",
            output.status
        );
        stored.push((node, said.trim().parse::<u64>().expect("a number")));
    }
    let counted: usize = done.iter().filter(|done| done.work == Work::Lock).map(|done| done.took.len()).sum();
    for &node in &nodes {
        let read = |name| fs::read(cluster.path(node, name)).expect("read");
        let number_at = |bytes: &[u8], slot: usize| {
            u64::from_le_bytes(bytes[slot * 8..slot * 8 + 8].try_into().expect("8 bytes"))
        };
        check_lines(&read("log"), &done);
        assert_eq!(number_at(&read("counter"), 0), counted as u64);
        let (page, mapped) = (read("page"), read("mapped"));
        for Done { work, number, took } in &done {
            let found = match work {
                Work::Page => &page,
                Work::Mapped => &mapped,
                _ => continue,
            };
            assert!(
                found[at(*work, *number)..][..SHARE] == share(*number, took.len()),
                "the share of program {number}"
            );
        }
        for &(of, count) in &stored {
            assert_eq!(
                number_at(&mapped, slot(of)),
                count,
                "what a program of node {of} stored, on node {node}"
            );
        }
    }
    // A lock is waited for as long as others have it.
    let mut writes: Vec<_> =
        done.into_iter().filter(|done| done.work != Work::Lock).flat_map(|done| done.took).collect();
    writes.sort_unstable();
    let part = |of: usize| writes[(writes.len() - 1) * of / 1000];
    println!(
        "{} nodes, {} writes: median {} us, p99 {} us, most {} us; {counted} under a lock, {:?} through mappings",
        nodes.len(),
        writes.len(),
        part(500),
        part(990),
        part(1000),
        stored.iter().map(|(_, count)| *count).collect::<Vec<_>>()
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
