//! Orders by chance, in frames that are right: whatever a stream says, only its own tree can change, and then it is refused.

use super::facts::InodeTimes;
use super::frame::{DIGEST, FrameWriter, StreamOrder};
use super::{receive, send};
use sluice_sync::random::Random;
use sluice_vfs::{FileType, Fs, InodeFlags, Options, Timestamp};

/// A number that is small, or at a limit.
fn number(random: &mut Random) -> u64 {
    match random.below(2) {
        0 => random.below(20_000),
        _ => random.pick(&[0, 1, 4096, 1 << 32, i64::MAX as u64, u64::MAX]),
    }
}

const LONG: &[u8] = &[b'n'; 255];
const NAMES: [&[u8]; 9] = [b"a", b"b", b"c", LONG, b".", b"..", b"", b"a/b", b"\0"];
const KEYS: [&[u8]; 6] =
    [b"user.k", b"trusted.t", b"system.posix_acl_access", b"system.posix_acl_default", b"", b"none"];

fn order(random: &mut Random) -> StreamOrder<'static> {
    let name = random.pick(&NAMES);
    let kinds = [
        FileType::Regular,
        FileType::Directory,
        FileType::Symlink,
        FileType::Fifo,
        FileType::Socket,
        FileType::CharDevice,
    ];
    let bytes = random.pick(&[&[0_u8; 0][..], &[1; 5000], &[2; 70_000], b"../../etc"]);
    match random.below(21) {
        0 | 1 => StreamOrder::Down(name),
        2 => StreamOrder::Up,
        3..=6 => {
            StreamOrder::Make { name, file_type: random.pick(&kinds), rdev: number(random), target: bytes }
        }
        7 => StreamOrder::Take(name),
        8 => StreamOrder::Here,
        9 => StreamOrder::Link {
            name,
            path: random.pick(&[&b"a"[..], b"a/b", b"../a", b"", b"/", b"a//b", b"."]),
        },
        10 => StreamOrder::Remove(name),
        18 | 19 => StreamOrder::Aside { name, number: random.below(3) },
        20 => StreamOrder::Back { name, number: random.below(3) },
        11 => StreamOrder::Size(number(random)),
        12 => StreamOrder::Contents { offset: number(random), bytes },
        13 => StreamOrder::Hole { offset: number(random), len: number(random) },
        14 => StreamOrder::Owner {
            mode: number(random) as u32,
            uid: number(random) as u32,
            gid: number(random) as u32,
        },
        15 => StreamOrder::Xattr { key: random.pick(&KEYS), value: bytes },
        16 => StreamOrder::NoXattr(random.pick(&KEYS)),
        _ => {
            let time = Timestamp { sec: number(random) as i64, nsec: 0 };
            let flags = InodeFlags::from_bits_truncate(random.below(256) as u32);
            StreamOrder::Times(InodeTimes { atime: time, mtime: time, ctime: time, flags })
        }
    }
}

#[test]
fn orders_by_chance_change_nothing_but_their_own_tree() {
    let fs = Options::default().size_limit(64 << 20).build();
    fs.write("/a", "here").expect("room");
    fs.superblock().take_snapshot(b"base").expect("room");
    let mut whole = Vec::new();
    send(fs.superblock(), b"base", None, None, &mut whole).expect("it is there");
    let mut refusals = std::collections::BTreeSet::new();
    for seed in 1..=3000 {
        let mut random = Random::new(seed);
        let mut stream = Vec::new();
        let mut writer = FrameWriter::new(&mut stream).expect("memory");
        writer.put(&StreamOrder::Begin { name: b"new", base: None }).expect("memory");
        for _ in 0..random.below(40) {
            writer.put(&order(&mut random)).expect("memory");
        }
        writer.put(&StreamOrder::End([0; DIGEST])).expect("memory");
        let error = receive(fs.superblock(), &*stream).expect_err("nothing has that digest");
        refusals.insert(error.to_string());
        assert_eq!(fs.superblock().snapshots(), Ok(vec![b"base".to_vec()]));
        assert_eq!(fs.read_to_string("/a"), Ok("here".into()));
        assert_eq!(fs.read_to_string("/.snapshots/base/a"), Ok("here".into()));
    }
    fs.settle();
    assert_eq!(fs.superblock().live_inodes(), 5, "the root, a file, the snapshots, one, its file");
    assert!(fs.check().is_clean(), "{}", fs.check());
    assert!(refusals.len() > 8, "{refusals:?}");
    assert!(refusals.iter().any(|line| line.contains("is not the one that was sent")), "{refusals:?}");
    // The end of it is still a file system that receives.
    let other = Fs::new();
    receive(other.superblock(), &*whole).expect("it is whole");
}

#[test]
fn orders_that_have_no_place_are_refused_with_their_reason() {
    let fs = Fs::new();
    let refusal = |orders: &[StreamOrder<'_>]| {
        let mut stream = Vec::new();
        let mut writer = FrameWriter::new(&mut stream).expect("memory");
        orders.iter().for_each(|order| writer.put(order).expect("memory"));
        receive(fs.superblock(), &*stream).expect_err("nothing has that digest").to_string()
    };
    let (begin, end) = (StreamOrder::Begin { name: b"new", base: None }, StreamOrder::End([0; DIGEST]));
    assert_eq!(refusal(&[StreamOrder::Up]), "the stream has no beginning: send it again");
    let line = refusal(&[begin, StreamOrder::Take(b"none")]);
    assert!(line.starts_with("the stream does not fit together: none: no such file or directory"), "{line}");
    let line = refusal(&[begin, end]);
    assert!(line.contains("the tree that the stream makes is not the one that was sent"), "{line}");
}
