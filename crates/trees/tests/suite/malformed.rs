//! Archives that are not as they should be.

use sluice_sync::random::{Random, fresh_seed};
use sluice_vfs::{Cred, Fs};
use std::io::ErrorKind;
use tar::{EntryType, Header};

/// A member whose names are put into the header as they are, without the checks of the `tar` crate.
fn member(kind: EntryType, path: &str, link: &str, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_size(data.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// An archive is unpacked beside what it tries to reach; what it could reach is still as it was afterwards.
fn refused(members: &[Vec<u8>]) -> std::io::Error {
    let fs = Fs::new();
    fs.write("/secret", "untouched").unwrap();
    fs.create_dir("/outside").unwrap();
    fs.create_dir("/to").unwrap();
    let before = fs.metadata("/outside").unwrap();
    let result = sluice_trees::import_tar(&fs, &members.concat()[..], "/to");
    assert_eq!(fs.read("/secret").unwrap(), b"untouched");
    assert_eq!(fs.metadata("/secret").unwrap().nlink, 1);
    assert_eq!(fs.metadata("/outside").unwrap(), before);
    assert_eq!(fs.read_dir("/").unwrap().count(), 3);
    assert!(fs.check().is_clean());
    result.unwrap_err()
}

#[test]
fn members_that_lead_outside_are_refused() {
    use EntryType::{Directory, Link, Regular, Symlink};
    let file = |path| vec![member(Regular, path, "", b"evil")];
    let link = |target| member(Symlink, "link", target, b"");
    let cases = [
        file("/secret"),
        file("../secret"),
        file("a/../../secret"),
        file("./../secret"),
        file(""),
        file("."),
        vec![member(Directory, "/outside", "", b"")],
        vec![member(Directory, "..", "", b"")],
        vec![link("/outside"), member(Regular, "link/file", "", b"evil")],
        vec![link("/outside"), member(Directory, "link", "", b"")],
        vec![link("/outside"), member(Directory, "link/dir", "", b"")],
        vec![link("../outside"), member(Symlink, "link/again", "x", b"")],
        vec![member(Link, "hard", "/secret", b"")],
        vec![member(Link, "hard", "../secret", b"")],
        vec![member(Link, "hard", "missing", b"")],
        vec![member(Link, "hard", "", b"")],
        vec![link("/"), member(Link, "hard", "link/secret", b"")],
        vec![member(Directory, "dir", "", b""), member(Link, "hard", "dir", b"")],
        vec![member(Directory, "dir", "", b""), member(Regular, "dir", "", b"evil")],
        vec![member(Regular, "file", "", b""), member(Regular, "file/below", "", b"evil")],
        vec![member(Symlink, "empty", "", b"")],
        vec![member(EntryType::new(b'!'), "odd", "", b"")],
        vec![
            member(EntryType::XHeader, "x", "", b"19 path=../secret\n\n"),
            member(Regular, "a", "", b"evil"),
        ],
        vec![member(EntryType::XHeader, "x", "", b"18 path=../secret\n"), member(Regular, "a", "", b"evil")],
        vec![member(EntryType::GNULongName, "L", "", b"../secret\0"), member(Regular, "a", "", b"evil")],
    ];
    for members in &cases {
        let error = refused(members);
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn a_file_replaces_a_symbolic_link_and_is_not_written_through_it() {
    let archive = [
        member(EntryType::Symlink, "name", "/secret", b""),
        member(EntryType::Regular, "name", "", b"own"),
        vec![0; 1024],
    ];
    let fs = Fs::new();
    fs.write("/secret", "untouched").unwrap();
    sluice_trees::import_tar(&fs, &archive.concat()[..], "/to").unwrap();
    assert_eq!(fs.read("/secret").unwrap(), b"untouched");
    assert_eq!(fs.read("/to/name").unwrap(), b"own");
}

#[test]
fn a_hard_link_to_itself_keeps_the_file() {
    let archive =
        [member(EntryType::Regular, "name", "", b"own"), member(EntryType::Link, "./name", "name", b"")];
    let fs = Fs::new();
    sluice_trees::import_tar(&fs, &archive.concat()[..], "/").unwrap();
    assert_eq!(fs.read("/name").unwrap(), b"own");
}

#[test]
fn hostile_sizes_cost_no_memory_and_are_refused() {
    let huge = |kind: EntryType, size: u64| {
        let mut bytes = member(kind, "name", "", b"");
        let mut header = Header::from_byte_slice(&bytes[..512]).clone();
        header.set_size(size);
        header.set_cksum();
        bytes[..512].copy_from_slice(header.as_bytes());
        bytes
    };
    for size in [1, 513, 1 << 30, 1 << 45, i64::MAX as u64, u64::MAX / 2 + 1, u64::MAX] {
        for kind in [EntryType::Regular, EntryType::XHeader, EntryType::GNULongName, EntryType::XGlobalHeader]
        {
            refused(&[huge(kind, size)]);
        }
    }
    let record = |text: &[u8]| member(EntryType::XHeader, "x", "", text);
    let map = |lines: &str| {
        let mut data = lines.as_bytes().to_vec();
        data.resize(data.len().next_multiple_of(512), 0);
        member(EntryType::Regular, "a", "", &data)
    };
    let sparse = b"22 GNU.sparse.major=1\n26 GNU.sparse.realsize=100\n";
    for lines in
        ["18446744073709551615\n", "9999999999\n", "1\n0\n101\n", "2\n50\n1\n0\n1\n", "x\n", "", "1\n0\n1\n"]
    {
        refused(&[record(sparse), map(lines)]);
    }
    refused(&[record(b"18 size=99999999\n\n"), member(EntryType::Regular, "a", "", b"")]);
    refused(&[record(b"99999999999 a=b\n"), member(EntryType::Regular, "a", "", b"")]);
}

/// A record of an extended header, behind its length.
fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let mut len = rest.len();
    while len.to_string().len() + rest.len() != len {
        len = len.to_string().len() + rest.len();
    }
    format!("{len}{rest}").into_bytes()
}

#[test]
fn each_malformed_archive_is_refused_with_its_reason() {
    use EntryType::{Char, Regular, XGlobalHeader, XHeader};
    let plain = || member(Regular, "a", "", b"");
    let with = |records: &[(&str, &str)], next: Vec<u8>| {
        let records: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        vec![member(XHeader, "x", "", &records), next]
    };
    let sparse = [("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "100")];
    let map = |lines: &str| {
        let mut data = lines.as_bytes().to_vec();
        data.resize(data.len().next_multiple_of(512), 0);
        with(&sparse, member(Regular, "a", "", &data))
    };
    // The field at `at` of a header says `value`, and the checksum is right.
    let field = |kind: EntryType, at: usize, value: &[u8]| {
        let mut bytes = member(kind, "a", "", b"");
        bytes[at..at + value.len()].copy_from_slice(value);
        let mut header = Header::from_byte_slice(&bytes[..512]).clone();
        header.set_cksum();
        bytes[..512].copy_from_slice(header.as_bytes());
        vec![bytes]
    };
    let (mode, size, checksum, major) = (100, 124, 148, 329);
    let mut flipped = plain();
    flipped[checksum] ^= 1;
    let globals = record("comment", &"x".repeat(1 << 20));
    let cases = [
        ("member \"a\" is of the unknown type '!'", vec![member(EntryType::new(b'!'), "a", "", b"")]),
        ("the checksum of a header is wrong", vec![flipped]),
        ("a member is larger than any file", with(&[("size", "18446744073709551615")], plain())),
        ("an extended header is larger than 256 MiB", field(XHeader, size, b"07777777777")),
        ("global records are larger than 1 MiB", vec![member(XGlobalHeader, "g", "", &globals), plain()]),
        (
            "an extended header holds something that is no record",
            vec![member(XHeader, "x", "", b"5 a=b\n"), plain()],
        ),
        ("a sparse file has no size", with(&sparse[..1], plain())),
        ("a sparse member without a GNU header", vec![member(EntryType::new(b'S'), "a", "", b"")]),
        ("the map of a sparse file is cut off", map("")),
        ("the map of a sparse file is too long", map("18446744073709551615\n")),
        ("the map of a sparse file is out of order", map("2\n50\n1\n0\n1\n")),
        ("the map of a sparse file leads past its end", map("1\n0\n101\n")),
        ("the map of a sparse file does not fit its contents", map("1\n0\n1\n")),
        (
            "the map of a sparse file has an odd number of entries",
            with(&[sparse[1], ("GNU.sparse.map", "1,2,3")], plain()),
        ),
        ("a time is no decimal number", with(&[("mtime", "soon")], plain())),
        ("a device has no proper number", field(Char, major, b"zzzzzzz\0")),
        ("an owner's or group's number is too large", with(&[("uid", "4294967296")], plain())),
        ("a record that should be a number is none", with(&[("gid", "staff")], plain())),
        ("a number in a header is negative", field(Regular, mode, b"\xff\xff\xff\xff\xff\xff\xff\xff")),
        (
            "a number in a header is too large",
            field(Regular, size, b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        ),
        ("a number in a header is not octal", field(Regular, mode, b"0000999\0")),
    ];
    let cut = refused(&[plain()[..100].to_vec()]).to_string();
    assert!(cut.contains("the tar archive is cut off"), "{cut}");
    for (reason, archive) in cases {
        let line = refused(&archive).to_string();
        assert!(line.contains("not a proper tar archive: ") && line.contains(reason), "{reason}: {line}");
    }
}

fn seed() -> u64 {
    match std::env::var("SLUICE_SEED") {
        Ok(seed) => seed.parse().expect("SLUICE_SEED must be a number"),
        Err(_) => fresh_seed(),
    }
}

/// Noise, and real archives with bytes changed and checksums put right, so that they get past the first look.
#[test]
fn random_archives_never_panic_nor_break_the_tree() {
    let seed = seed();
    eprintln!("SLUICE_SEED={seed} repeats this");
    let mut random = Random::new(seed);
    let source = Fs::new();
    source.create_dir("/dir").unwrap();
    source.write("/dir/file", vec![1; 3000]).unwrap();
    let p = source.process(Cred::root());
    p.setxattr("/dir/file", b"user.a", b"b\nc", sluice_vfs::XattrFlags::empty()).unwrap();
    p.truncate("/dir/file", 100_000).unwrap();
    p.link("/dir/file", "/second").unwrap();
    p.symlink("dir", "/link").unwrap();
    let mut archive = Vec::new();
    sluice_trees::export_tar(&source, "/", &mut archive).unwrap();
    let mut accepted = 0;
    for round in 0..3000 {
        let bytes = if round % 8 == 0 {
            (0..random.below(4000)).map(|_| random.bits() as u8).collect()
        } else {
            damaged(&archive, &mut random)
        };
        let fs = Fs::new();
        fs.write("/secret", "untouched").unwrap();
        accepted += usize::from(sluice_trees::import_tar(&fs, &bytes[..], "/to").is_ok());
        assert_eq!(fs.read("/secret").unwrap(), b"untouched");
        let report = fs.check();
        assert!(report.is_clean(), "{report}");
    }
    assert!(accepted > 0, "no damage was slight enough: the test looks at headers only");
}

fn damaged(archive: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = archive.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        bytes[at] = match random.below(3) {
            0 => random.bits() as u8,
            1 => b'0' + random.below(10),
            _ => random.pick(b"xgLKS12345/.\n="),
        };
        let block = at / 512 * 512;
        let is_header = bytes[block + 257..block + 262] == *b"ustar";
        if is_header {
            let mut header = Header::from_byte_slice(&bytes[block..block + 512]).clone();
            header.set_cksum();
            bytes[block..block + 512].copy_from_slice(header.as_bytes());
        }
    }
    if random.below(4) == 0 {
        bytes.truncate(random.below(bytes.len()));
    }
    bytes
}

#[test]
fn an_archive_that_is_cut_off_is_an_error() {
    let whole = member(EntryType::Regular, "a", "", &[1; 1000]);
    for len in [1, 511, 512, 1000, 1535] {
        let error = sluice_trees::import_tar(&Fs::new(), &whole[..len], "/").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}: {error}");
    }
}
