//! Files: what small programs do to the contents of one file: holes, parts, ends.

use super::stage::Stage;
use rustix::fs::{SeekFrom, seek};
use std::fs::{self, File};
use std::path::Path;

/// The parts of a file that hold data, as (start, end).
pub(crate) fn data_parts(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let mut parts = Vec::new();
    let mut end = 0;
    while let Ok(start) = seek(&file, SeekFrom::Data(end)) {
        end = seek(&file, SeekFrom::Hole(start)).unwrap();
        parts.push((start, end));
    }
    parts
}

#[test]
fn copies_are_equal_and_as_sparse_as_was_asked_for() {
    let Some(stage) = Stage::new("copies_are_equal_and_as_sparse_as_was_asked_for", "", &[]) else {
        return;
    };
    stage.sh("head -c 8192 /dev/urandom >f; truncate -s 1M f; head -c 5000 /dev/urandom >>f");
    let parts = |name: &str| data_parts(&stage.mount().join(name));
    let sparse = vec![(0, 8192), (1 << 20, (1 << 20) + 5000)];
    assert_eq!(parts("f"), sparse);
    stage.sh("cp --reflink=never f never; cp --reflink=auto f auto; cp --sparse=always f always; cp --sparse=never f full
              cat f >cat; dd if=f of=dd bs=7777 status=none; cp full $HOST/full; cp --sparse=always $HOST/full again");
    stage.sh("for copy in never auto always full cat dd again; do cmp f $copy; done");
    for copy in ["never", "auto", "always", "again"] {
        assert_eq!(parts(copy), sparse, "{copy}");
    }
    for copy in ["full", "dd"] {
        assert_eq!(parts(copy), [(0, (1 << 20) + 5000)], "{copy}");
    }
    assert_eq!(stage.sh("stat -c %b f full"), "32\n2064\n");
}

#[test]
fn dd_replaces_the_middle_of_a_file_and_nothing_else() {
    let Some(stage) = Stage::new("dd_replaces_the_middle_of_a_file_and_nothing_else", "", &[]) else {
        return;
    };
    stage.sh("head -c 1000000 /dev/zero | tr '\\0' a >f
              printf middle | dd of=f bs=1 seek=500000 conv=notrunc status=none
              printf end | dd of=f bs=1 seek=1000010 conv=notrunc status=none
              dd if=/dev/zero of=f bs=4096 seek=3 count=2 conv=notrunc oflag=append status=none");
    let mut expected = vec![b'a'; 1_000_000];
    expected[500_000..500_006].copy_from_slice(b"middle");
    expected.extend([0; 10]);
    expected.extend(b"end");
    expected.extend([0; 8192]);
    assert!(fs::read(stage.mount().join("f")).unwrap() == expected);
    // Past the page cache, and mixed with it.
    stage.sh("head -c 65536 /dev/urandom >$HOST/r; dd if=$HOST/r of=direct bs=16k oflag=direct status=none; cmp direct $HOST/r
              dd if=direct of=$HOST/back bs=8k iflag=direct status=none; cmp $HOST/back $HOST/r
              printf cached | dd of=direct bs=1 seek=4096 conv=notrunc status=none
              dd if=direct bs=4k skip=1 count=1 iflag=direct status=none | head -c 6 | grep -q cached");
}

#[test]
fn truncate_cuts_and_extends_with_zeros() {
    let Some(stage) = Stage::new("truncate_cuts_and_extends_with_zeros", "", &[]) else { return };
    stage.sh("printf 0123456789 >f; truncate -s 5 f; truncate -s 8 f");
    assert_eq!(fs::read(stage.mount().join("f")).unwrap(), b"01234\0\0\0");
    stage.sh("truncate -s 5G f; truncate -s -1G f; truncate -s %1M f; test \"$(stat -c %s f)\" = 4294967296");
    assert_eq!(stage.sh("stat -c %b f"), "8\n");
    let refused = stage.outcome("truncate -s 8E big");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("too large"), "{refused:?}");
    assert_eq!(stage.sh("truncate -s 0 f; stat -c '%s %b' f"), "0 0\n");
}

#[test]
fn fallocate_reserves_punches_and_zeroes() {
    let name = "fallocate_reserves_punches_and_zeroes";
    let Some(stage) = Stage::new(name, "", &["fallocate"]) else { return };
    let path = stage.mount().join("f");
    let mut expected: Vec<u8> = (0..40_960).map(|i| (i / 4096) as u8 + b'a').collect();
    fs::write(&path, &expected).unwrap();
    let check = |what: &str, expected: &[u8]| assert!(fs::read(&path).unwrap() == expected, "{what}");
    stage.sh("cat f >/dev/null; fallocate -p -o 4096 -l 8192 f");
    expected[4096..12_288].fill(0);
    check("punched", &expected);
    assert_eq!(data_parts(&path), [(0, 4096), (12_288, 40_960)]);
    stage.sh("fallocate -p -o 13000 -l 100 f; fallocate -z -o 20000 -l 5000 f");
    expected[13_000..13_100].fill(0);
    expected[20_000..25_000].fill(0);
    check("zeroed", &expected);
    // FUSE has no way to ask for these. Refused, they must change nothing.
    for refused in ["fallocate -c -o 4096 -l 8192 f", "fallocate -i -o 8192 -l 4096 f"] {
        let outcome = stage.outcome(refused);
        assert!(String::from_utf8_lossy(&outcome.stderr).contains("not supported"), "{refused}: {outcome:?}");
        check(refused, &expected);
    }
    stage.sh("fallocate -l 100000 f");
    expected.resize(100_000, 0);
    check("extended", &expected);
    stage.sh(
        "fallocate -n -o 100000 -l 100000 f; test $(stat -c %s f) = 100000; test $(stat -c %b f) -ge 390",
    );
    check("reserved", &expected);
    stage.sh("fallocate -d f");
    check("dug", &expected);
}

#[test]
fn many_appenders_lose_nothing() {
    let Some(stage) = Stage::new("many_appenders_lose_nothing", "", &[]) else { return };
    stage.sh("add() { n=0; while [ $n -lt 300 ]; do echo \"$1 $n\"; n=$((n+1)); done >>log; }
         for w in 1 2 3 4; do add $w & done; wait
         test $(wc -l <log) = 1200; test $(sort -u log | wc -l) = 1200");
    // An editor's way: write aside, rename over; a reader sees the old or the new file, whole.
    stage.sh("echo 0 0 >f; touch go
         { n=1; while [ $n -lt 300 ]; do echo $n $n >f.new; mv f.new f; n=$((n+1)); done; rm go; } &
         while [ -e go ]; do read -r a b <f; [ \"$a\" = \"$b\" ]; done; wait; test \"$(cat f)\" = '299 299'");
}
