//! Fsck finds each way in which the records of a file system can contradict each other, and mends it without losing what is left.

use super::crash_tests::shared;
use super::keys::Key;
use super::owners;
use super::record::{self, InodeRecord, QuotaRecord};
use crate::superblock::ROOT_INO;
use crate::{Errno, FileType, Fs, Options, StoreOptions, Superblock};
use sluice_store::disk::Disk;
use sluice_store::disk::crash::CrashDisk;
use sluice_store::{Gravity, Report, Store, Transaction};
use sluice_sync::face::{HOSTS_SHARE, cpu};
use sluice_sync::random::Random;

fn options() -> Options {
    let store = StoreOptions::default().log_size(1 << 20).segment_size(1 << 20).background(false);
    Options { store, ..Options::default() }
}

fn open(disk: &CrashDisk) -> Fs {
    Fs::with_superblock(Superblock::open_on(shared(disk), options()).expect("a file system"))
}

fn check(disk: &CrashDisk) -> Report {
    Superblock::check_store(shared(disk), &mut |_| ()).expect("it can be looked at")
}

/// `/dir/below/file` of 200,000 bytes, `/dir/twice` and `/twice`, and `/link`.
fn tree() -> (CrashDisk, impl Fn(&str) -> u64) {
    let disk = CrashDisk::new();
    let superblock = Superblock::create_on(shared(&disk), options()).expect("an empty disk");
    let fs = Fs::with_superblock(superblock);
    fs.create_dir_all("/dir/below").expect("room");
    fs.write("/dir/below/file", vec![7; 200_000]).expect("room");
    fs.write("/dir/twice", "twice").expect("room");
    fs.hard_link("/dir/twice", "/twice").expect("room");
    fs.symlink("twice", "/link").expect("room");
    let numbers: Vec<(String, u64)> = ["/dir", "/dir/below", "/dir/below/file", "/twice", "/link"]
        .map(|path| (path.to_owned(), fs.symlink_metadata(path).expect("made just now").ino))
        .into();
    drop(fs);
    let number = move |path: &str| numbers.iter().find(|(known, _)| known == path).expect("one of them").1;
    (disk, number)
}

/// Changes records behind the file system's back.
fn tamper(disk: &CrashDisk, with: impl FnOnce(&mut Transaction<'_>)) {
    let store = Store::open(shared(disk), options().store).expect("a store");
    let mut change = store.begin(10_000).expect("room");
    with(&mut change);
    drop(change);
}

/// The record with this key.
fn value_of(disk: &CrashDisk, key: &[u8]) -> Vec<u8> {
    let store = Store::open(shared(disk), options().store).expect("a store");
    store.get(key).expect("whole").expect("it is there")
}

/// Asserts that fsck finds `what` with `gravity` and mends it, and that the rest is clean.
fn found_and_mended(disk: &CrashDisk, gravity: Gravity, what: &str) -> Fs {
    let report = check(disk);
    let said = report.findings.iter().any(|one| one.gravity == gravity && one.text.contains(what));
    assert!(said, "nothing about {what:?}: {report:?}");
    Superblock::repair_store(shared(disk)).expect("it can be mended");
    let report = check(disk);
    assert_eq!(report.found, 0, "{what:?} is left: {report:?}");
    let fs = open(disk);
    let consistent = fs.check();
    assert!(consistent.is_clean(), "{what:?}: {consistent}");
    fs
}

#[test]
fn a_whole_tree_passes_and_so_does_one_that_was_used_again() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, _) = tree();
    assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
    let fs = open(&disk);
    fs.remove_file("/dir/twice").expect("it is there");
    fs.rename("/dir/below", "/moved").expect("it is there");
    fs.write("/moved/file", "short").expect("room");
    fs.sync().expect("the disk works");
    assert_eq!(check(&disk).found, 0, "while it is used: {:?}", check(&disk));
    drop(fs);
    assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
}

#[test]
fn a_file_without_a_name_goes_to_lost_and_found_with_its_contents() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, number) = tree();
    let (dir, file) = (number("/dir/below"), number("/dir/below/file"));
    tamper(&disk, |change| change.remove(&Key::name(dir, b"file"), 1));
    let fs = found_and_mended(&disk, Gravity::Damage, "has no name");
    assert!(fs.read(format!("/lost+found/#{file}")).expect("it was found") == vec![7; 200_000]);
    // A second one finds the directory there.
    drop(fs);
    tamper(&disk, |change| change.remove(&Key::name(number("/dir"), b"below"), 1));
    let fs = found_and_mended(&disk, Gravity::Damage, "has no name");
    assert!(
        fs.metadata(format!("/lost+found/#{dir}")).expect("found too").file_type() == FileType::Directory
    );
    assert_eq!(fs.read_to_string("/twice").expect("untouched"), "twice");
}

#[test]
fn names_that_lead_nowhere_are_removed_and_wrong_counts_corrected() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, number) = tree();
    let twice = number("/twice");
    tamper(&disk, |change| {
        change.put(&Key::name(ROOT_INO, b"stray"), 1, &record::name_value(900, FileType::Regular))
    });
    let fs = found_and_mended(&disk, Gravity::Damage, "\"stray\"");
    assert!(fs.metadata("/stray").is_err());
    drop(fs);
    let value = value_of(&disk, &Key::inode(twice));
    let mut record = InodeRecord::decode(&value).expect("an inode");
    (record.nlink, record.pages) = (7, 9);
    tamper(&disk, |change| change.put(&Key::inode(twice), 1, &record.encode()));
    let fs = found_and_mended(&disk, Gravity::Count, "has 2 names, and says 7");
    assert_eq!(fs.metadata("/twice").expect("it is there").nlink, 2);
    drop(fs);
    tamper(&disk, |change| change.put(&Key::chunk(900, 0), 1, &[0, 1, 0, 5]));
    found_and_mended(&disk, Gravity::Damage, "inode 900");
}

#[test]
fn a_circle_of_directories_and_a_second_name_are_taken_apart() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, number) = tree();
    let (dir, below) = (number("/dir"), number("/dir/below"));
    tamper(&disk, |change| {
        change.remove(&Key::name(ROOT_INO, b"dir"), 1);
        change.put(&Key::name(below, b"up"), 1, &record::name_value(dir, FileType::Directory));
    });
    let fs = found_and_mended(&disk, Gravity::Damage, "below itself");
    let kept = [format!("/lost+found/#{dir}/below/file"), format!("/lost+found/#{below}/file")];
    assert!(kept.iter().any(|path| fs.read(path).is_ok_and(|bytes| bytes == vec![7; 200_000])));
    drop(fs);
    tamper(&disk, |change| {
        change.put(&Key::name(ROOT_INO, b"zwei"), 1, &record::name_value(below, FileType::Directory));
    });
    found_and_mended(&disk, Gravity::Damage, "another name already");
}

#[test]
fn an_extent_belongs_to_one_chunk_and_what_names_none_is_removed() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, number) = tree();
    let (file, twice) = (number("/dir/below/file"), number("/twice"));
    let value = value_of(&disk, &Key::chunk(file, 1));
    // The first of two has it, whichever was the right one.
    let mut part = value.clone();
    part[11] += 1;
    tamper(&disk, |change| change.put(&Key::chunk(twice, 5), 1, &part));
    let fs = found_and_mended(&disk, Gravity::Damage, "two records name block");
    assert!(fs.read("/dir/below/file").expect("the first") == vec![7; 200_000]);
    assert_eq!(fs.read_to_string("/twice").expect("the rest of it"), "twice");
    drop(fs);
    let mut nowhere = value;
    nowhere[7..11].copy_from_slice(&9_000_000_u32.to_le_bytes());
    tamper(&disk, |change| change.put(&Key::chunk(file, 2), 1, &nowhere));
    let fs = found_and_mended(&disk, Gravity::Damage, "which is none");
    let left = fs.read("/dir/below/file").expect("the rest of it");
    assert!(left[..131_072] == [7; 131_072] && left[131_072..196_608] == [0; 65_536]);
    drop(fs);
    tamper(&disk, |change| change.remove(&Key::chunk(file, 0), 1));
    found_and_mended(&disk, Gravity::Count, "blocks of `segment-00000000`, the tree says");
}

#[test]
fn owners_of_extents_are_counted_anew() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, number) = tree();
    let file = number("/dir/below/file");
    let fs = open(&disk);
    fs.clone_tree("/dir/below", "/clone").expect("room");
    drop(fs);
    assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
    let value = value_of(&disk, &Key::chunk(file, 1));
    let extent = owners::named(&Key::chunk(file, 1), &value).expect("it names one");
    let (count, unowned) = (Key::owners(extent.place()), Key::unowned(extent.place()));
    let whole = |fs: Fs| {
        assert!(fs.read("/clone/file").expect("a copy") == vec![7; 200_000]);
        assert!(fs.read("/dir/below/file").expect("the original") == vec![7; 200_000]);
    };
    // Too few would free what is named.
    tamper(&disk, |change| change.remove(&count, 1));
    whole(found_and_mended(&disk, Gravity::Count, "2 records name the extent"));
    tamper(&disk, |change| change.put(&count, 1, &owners::encode(9, extent.allocated())));
    whole(found_and_mended(&disk, Gravity::Count, "and should be 9"));
    tamper(&disk, |change| change.put(&Key::owners(1 << 40), 1, &owners::encode(2, 4096)));
    whole(found_and_mended(&disk, Gravity::Count, "no record names the extent"));
    let mut encoded = Vec::new();
    extent.encode(&mut encoded);
    tamper(&disk, |change| change.put(&unowned, 1, &encoded));
    whole(found_and_mended(&disk, Gravity::Count, "is said to have no owner, and has 2"));
    tamper(&disk, |change| change.put(&count, 1, &[1; 3]));
    whole(found_and_mended(&disk, Gravity::Damage, "how many records name the extent"));
    // A file that is lost takes its part of the counts along.
    tamper(&disk, |change| change.remove(&Key::inode(file), 1));
    let fs = found_and_mended(&disk, Gravity::Damage, "which is not there");
    assert!(fs.read("/clone/file").expect("a copy") == vec![7; 200_000]);
}

#[test]
fn a_flipped_bit_of_contents_is_found_and_read_as_an_error() {
    if !HOSTS_SHARE {
        return;
    }
    // Each CPU has a segment: all contents are in the first one.
    cpu::pin(cpu::allowed()[0]).expect("an allowed CPU");
    let (disk, _) = tree();
    let segment = disk.open("segment-00000000").expect("it has contents");
    segment.write_at(&[8], 140_000).expect("memory");
    let once = check(&disk);
    assert!(once.found == 1 && !once.findings[0].text.contains("other"), "{once:?}");
    segment.write_at(&[8], 70_000).expect("memory");
    let report = check(&disk);
    let said = |one: &sluice_store::Finding| {
        one.text.starts_with("contents of \"/dir/below/file\" (inode ")
            && one.text.contains("from byte 65536: block")
            && one.text.ends_with(", and at another place")
    };
    assert!(report.findings.iter().all(said), "{report:?}");
    assert_eq!((report.found, report.lost_data, report.whole), (1, 1, true));
    let fs = open(&disk);
    assert_eq!(fs.read("/dir/below/file"), Err(Errno::EIO));
    assert_eq!(fs.read_to_string("/twice").expect("whole"), "twice");
}

#[test]
fn a_record_of_contents_that_is_gone_is_damage_and_no_hole() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, number) = tree();
    let file = number("/dir/below/file");
    tamper(&disk, |change| change.remove(&Key::chunk(file, 1), 1));
    assert_eq!(open(&disk).read("/dir/below/file"), Err(Errno::EIO));
    let fs = found_and_mended(&disk, Gravity::Damage, "16 pages of \"/dir/below/file\" (inode ");
    assert_eq!(fs.read("/dir/below/file").expect("the loss is accepted")[65_536], 0);
}

#[test]
fn each_record_that_cannot_be_is_named_with_its_reason_and_mended() {
    if !HOSTS_SHARE {
        return;
    }
    let (tree, number) = tree();
    let files = tree.files();
    let (dir, file, twice) = (number("/dir"), number("/dir/below/file"), number("/twice"));
    let value = value_of(&tree, &Key::inode(twice));
    let changed = |change: fn(&mut InodeRecord<'_>)| {
        let mut record = InodeRecord::decode(&value).expect("an inode");
        change(&mut record);
        record.encode()
    };
    let (named, bad) = (record::name_value(twice, FileType::Regular), vec![9]);
    let [common, scrub, unknown] = [Key::common().to_vec(), Key::scrub().to_vec(), b"?abc".to_vec()];
    let cases = [
        (common.clone(), bad.clone(), "the bound of inode numbers: it cannot be read"),
        (common, record::common(1, None).to_vec(), "inode numbers should be below Some(1)"),
        (scrub, bad.clone(), "the state of the scrub: it cannot be read"),
        (unknown, bad.clone(), "the record with key [3f, 61, 62, 63]: it is of no known kind"),
        (Key::cut_off(file).to_vec(), bad.clone(), ": it cannot be read"),
        (Key::chunk(file, 7).to_vec(), bad.clone(), "from byte 458752: they cannot be read"),
        (
            Key::unowned(1 << 41).to_vec(),
            bad.clone(),
            "the extent without an owner at 20000000000: it cannot be read",
        ),
        (Key::request(5, 1).to_vec(), bad.clone(), "an executed request of mount 5: it cannot be read"),
        (Key::orphan(twice).to_vec(), Vec::new(), "has 2 names and counts as deleted"),
        (Key::orphan(twice)[..5].to_vec(), Vec::new(), "deleted file 0: it is of no known kind"),
        (Key::inode(900).to_vec(), bad.clone(), "inode 900: it cannot be read"),
        (Key::inode(twice).to_vec(), changed(|record| record.pages = 0), "has 1 pages, and says 0"),
        (
            Key::inode(twice).to_vec(),
            changed(|record| record.pages = 3),
            "are gone: a repair leaves zeros there",
        ),
        (Key::name(dir, b"a/b").to_vec(), named.to_vec(), ": it is no name"),
        (Key::name(dir, b"new").to_vec(), bad, "name \"new\" in directory \"/dir\""),
        (Key::name(900, b"new").to_vec(), named.to_vec(), "there is no such directory"),
        (
            Key::name(dir, b"new").to_vec(),
            record::name_value(900, FileType::Regular).to_vec(),
            "the inode to which it leads is not there",
        ),
        (
            Key::name(dir, b"new").to_vec(),
            record::name_value(twice, FileType::Fifo).to_vec(),
            "it leads to an inode of another type",
        ),
    ];
    let mut wrong = Vec::new();
    for (key, value, reason) in cases {
        let disk = CrashDisk::with(files.clone());
        tamper(&disk, |change| change.put(&key, 1, &value));
        let texts: Vec<String> = check(&disk).findings.into_iter().map(|one| one.text).collect();
        let is_named = texts.iter().any(|text| text.contains(reason));
        let is_mended = Superblock::repair_store(shared(&disk)).is_ok() && check(&disk).found == 0;
        if !is_named || !is_mended {
            wrong.push((reason, texts, check(&disk)));
            continue;
        }
        assert!(open(&disk).read("/dir/below/file").expect("it is whole") == vec![7; 200_000], "{reason}");
    }
    assert!(wrong.is_empty(), "not named, or left: {wrong:#?}");
}

#[test]
fn a_store_whose_file_system_cannot_be_opened_says_why() {
    if !HOSTS_SHARE {
        return;
    }
    let (tree, number) = tree();
    let files = tree.files();
    let cases = [
        (Key::common(), "the file system has no end of its inode numbers (input or output error)"),
        (Key::unowned(1 << 41), "the file system has extents without an owner that cannot be read"),
        (
            Key::cut_off(number("/dir/below/file")),
            "the file system has contents cut off that cannot be removed",
        ),
        (Key::inode(ROOT_INO), "the file system has no root directory"),
    ];
    for (key, reason) in cases {
        let disk = CrashDisk::with(files.clone());
        tamper(&disk, |change| change.put(&key, 1, &[9]));
        let refused = Superblock::open_on(shared(&disk), options()).err().map(|error| error.to_string());
        assert!(refused.as_deref().is_some_and(|text| text.contains(reason)), "{reason}: {refused:?}");
    }
}

#[test]
fn whatever_records_hold_a_check_ends_and_a_repair_leaves_what_passes() {
    if !HOSTS_SHARE {
        return;
    }
    let mut random = Random::new(5);
    for round in 0..60 {
        let (disk, _) = tree();
        tamper(&disk, |change| {
            for version in 1..6 {
                let mut key = vec![random.pick(b"cdefinox?")];
                key.extend(random.below(8_u64).to_be_bytes());
                key.extend([0; 8].iter().take(random.below(9)));
                let value: Vec<u8> = (0..random.below(90))
                    .map(|_| if random.chance(50) { 0 } else { random.bits() as u8 })
                    .collect();
                match random.below(4) {
                    0 => change.remove(&key, version),
                    _ => change.put(&key, version, &value),
                }
            }
        });
        let found = check(&disk).found;
        if Superblock::repair_store(shared(&disk)).is_ok() {
            let report = check(&disk);
            let root_is_gone = report.findings.iter().any(|one| one.text.contains("no root directory"));
            let is_beyond = report.findings.iter().any(|one| one.text.contains("is no regular file"));
            assert!(report.found == 0 || root_is_gone || is_beyond, "round {round}, of {found}: {report:?}");
        }
    }
}

#[test]
fn lost_changes_of_a_damaged_log_are_told_by_path() {
    const HEADER_MAGIC: [u8; 4] = 0x4c43_6c73_u32.to_le_bytes();
    if !HOSTS_SHARE {
        return;
    }
    let disk = CrashDisk::new();
    let superblock = Superblock::create_on(shared(&disk), options()).expect("an empty disk");
    let fs = Fs::with_superblock(superblock);
    fs.create_dir("/dir").expect("room");
    fs.write("/dir/old", "old").expect("room");
    fs.sync().expect("the disk works");
    let sound = disk.files()["log"].len();
    let batches = |bytes: &[u8]| {
        (0..sound).step_by(4096).filter(|&at| bytes[at..at + 4] == HEADER_MAGIC).collect::<Vec<usize>>()
    };
    let before = batches(&disk.files()["log"]).len();
    fs.write("/unlucky", "in the damaged batch").expect("room");
    fs.sync().expect("the disk works");
    fs.create_dir("/dir/below").expect("room");
    fs.write("/dir/below/file", vec![7; 9000]).expect("room");
    fs.remove_file("/dir/old").expect("it is there");
    fs.sync().expect("the disk works");
    let mut files = disk.files();
    drop(fs);
    let log = files.get_mut("log").expect("a store has a log");
    let damaged = batches(log)[before];
    log[damaged + 70] ^= 4;

    let report = check(&CrashDisk::with(files));
    let lines: Vec<&str> = report.findings.iter().map(|one| one.text.as_str()).collect();
    for wanted in [
        "lost with it: changes of \"/dir/below\" (inode ",
        "lost with it: changes of \"/dir/below/file\" (inode ",
        "lost with it: removal of the name \"old\" from \"/dir\" (inode ",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(wanted)), "no {wanted:?} in {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.ends_with("): name, attributes, contents")), "{lines:#?}");
}

#[test]
fn inodes_that_count_for_a_wrong_quota_are_found_and_mended() {
    if !HOSTS_SHARE {
        return;
    }
    let counts = "counts for another quota than its directory";
    for (path, number) in
        [("/dir/below/file", 0), ("/dir/below", 0), ("/dir", 0), ("/dir/below", 9), ("/link", 1)]
    {
        let (disk, number_of) = tree();
        let fs = open(&disk);
        fs.remove_file("/twice").expect("it is there");
        fs.set_quota("/dir", Some(1 << 20)).expect("it has none");
        let used = fs.quota("/dir");
        drop(fs);
        assert_eq!(check(&disk).found, 0, "{:?}", check(&disk));
        let key = Key::inode(number_of(path));
        let value = value_of(&disk, &key);
        let record = InodeRecord { quota: number, ..InodeRecord::decode(&value).expect("a record") };
        tamper(&disk, |change| change.put(&key, 1, &record.encode()));
        let fs = found_and_mended(&disk, Gravity::Count, counts);
        assert_eq!(fs.quota("/dir"), used, "{path} with {number}");
    }
}

#[test]
fn a_quota_that_counts_wrong_is_found_and_counts_anew() {
    if !HOSTS_SHARE {
        return;
    }
    let (disk, _) = tree();
    let fs = open(&disk);
    fs.set_quota("/dir/below", Some(1 << 20)).expect("it has none");
    let used = fs.quota("/dir/below");
    drop(fs);
    let value = value_of(&disk, &Key::quota(1));
    let record = QuotaRecord { used: 7, ..QuotaRecord::decode(&value).expect("a record") };
    tamper(&disk, |change| change.put(&Key::quota(1), 1, &record.encode()));
    let fs = found_and_mended(&disk, Gravity::Count, "counts 7 bytes, and should count 200704");
    assert_eq!(fs.quota("/dir/below"), used);
}
