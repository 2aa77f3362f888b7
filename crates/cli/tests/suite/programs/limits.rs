//! Limits: `size=`, `nr_inodes=` and the root's owner, as programs see them.

use super::stage::Stage;
use crate::harness::sluice;

#[test]
fn a_full_file_system_says_so_and_works_on_when_there_is_room_again() {
    let name = "a_full_file_system_says_so_and_works_on_when_there_is_room_again";
    let Some(stage) = Stage::new(name, "size=1M", &[]) else { return };
    assert_eq!(
        stage.sh("df -B1 --output=size,used,avail . | tail -n1 | tr -s ' '").trim(),
        "1048576 0 1048576"
    );
    stage.sh("echo precious >kept");
    let full = stage.outcome("dd if=/dev/zero of=big bs=4k count=1000 status=none");
    assert_eq!(full.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&full.stderr).contains("No space left on device"), "{full:?}");
    assert_eq!(stage.sh("df -B1 --output=avail . | tail -n1").trim(), "0");
    assert_eq!(stage.sh("stat -c %s big").trim(), ((1 << 20) - 4096).to_string());
    for fails in ["dd if=kept of=another status=none", "cp kept copy", "fallocate -l 8k reserved"] {
        let outcome = stage.outcome(fails);
        assert!(String::from_utf8_lossy(&outcome.stderr).contains("No space left"), "{fails}: {outcome:?}");
    }
    // Files of a full file system can be read, overwritten, renamed and removed; a hole costs nothing.
    stage.sh("printf P | dd of=kept conv=notrunc status=none; grep -q Precious kept; mv kept moved; truncate -s 1G hole");
    stage.sh("truncate -s 500k big; dd if=/dev/zero of=second bs=4k count=100 status=none; rm big second");
    // Room comes back when the last process that has the file open is done with it.
    stage.sh(
        "head -c 900k /dev/zero >open; exec 3<open; rm open; ! head -c 900k /dev/zero >second 2>/dev/null
              exec 3<&-; head -c 900k /dev/zero >second; rm -f * ",
    );
    assert_eq!(stage.sh("df -B1 --output=avail . | tail -n1").trim(), "1048576");
}

#[test]
fn the_number_of_files_is_limited() {
    let Some(stage) = Stage::new("the_number_of_files_is_limited", "nr_inodes=10", &[]) else { return };
    assert_eq!(stage.sh("df --output=itotal,iused,iavail . | tail -n1 | tr -s ' '").trim(), "10 1 9");
    let full = stage.outcome("for n in 1 2 3 4 5 6 7 8 9; do touch f$n; done; ln f1 link; touch f10");
    assert!(String::from_utf8_lossy(&full.stderr).contains("No space left"), "{full:?}");
    assert_eq!(stage.sh("ls | wc -l").trim(), "10", "nine files and a further name of one");
    assert!(!stage.outcome("mkdir d").status.success());
    stage.sh("rm f1 link; mkdir d; rm -r *");
    assert_eq!(stage.sh("df --output=iused . | tail -n1").trim(), "1");
}

#[test]
fn half_of_the_memory_is_shown_by_default_and_no_limit_as_none() {
    let name = "half_of_the_memory_is_shown_by_default_and_no_limit_as_none";
    let Some(stage) = Stage::new(name, "", &[]) else { return };
    let memory = "awk '/^MemTotal:/ { print $2 }' /proc/meminfo";
    let shown = stage.sh(&format!("echo $((2 * $(df -k --output=size . | tail -n1))) $({memory})"));
    let (shown, memory) = shown.trim().split_once(' ').unwrap();
    let (shown, memory) = (shown.parse::<i64>().unwrap(), memory.parse::<i64>().unwrap());
    assert!((shown - memory).abs() <= 8, "{shown} {memory}");
    stage.sh("head -c 40960 /dev/zero >f; test $(df -k --output=used . | tail -n1) = 40");
    assert_eq!(
        stage.sh("df --output=fstype,source,target . | tail -n1 | tr -s ' ' | cut -d' ' -f2").trim(),
        "sluicefs"
    );
    let ran =
        sluice(["run", "-o", "size=0", "--", "sh", "-c", "echo x >f && stat -f -c %b . && stat -c %s f"]);
    assert_eq!(ran.well(), "0\n2\n");
}

#[test]
fn the_root_directory_is_whose_and_as_open_as_was_asked_for() {
    let name = "the_root_directory_is_whose_and_as_open_as_was_asked_for";
    let Some(stage) = Stage::new(name, "mode=1777,uid=1234,gid=4321,size=64k", &[]) else { return };
    assert_eq!(stage.sh("stat -c '%a %u %g' ."), "1777 1234 4321\n");
    let ran = sluice([
        "run",
        "-o",
        "mode=700",
        "-o",
        "size=3k",
        "--",
        "sh",
        "-c",
        "stat -c '%a %u' .; id -u; df -B1 --output=size . | tail -n1",
    ]);
    let ran = ran.well();
    let words: Vec<_> = ran.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[3]), ("700", words[2], "4096"), "{ran}");
}
