//! The command line with compressed stores: room that is saved, bytes that stay right, damage that is found.

use crate::encryption::sh;
use crate::harness::{Scratch, can_mount, crash, sluice, umount, until};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A scratch directory with a compressed store in `s`, a directory `m`, and the files `lines` of 50 MB and `noise` of 4 MB in `host`.
fn stage() -> Scratch {
    let scratch = Scratch::new();
    let made = "
        mkdir m n host; sluice mkfs --compress s
        (seq -f 'line %.0f of many lines that are much alike' 1500000 || true) | head -c 50000000 > host/lines
        head -c 4000000 /dev/urandom > host/noise";
    sh(&scratch.0, made).well();
    scratch
}

fn info(dir: &Path, store: &str) -> Value {
    let said = sh(dir, &format!("sluice info --json {store}")).well();
    serde_json::from_str(&said).expect("JSON")
}

#[test]
fn a_compressed_store_takes_less_and_its_bytes_stay_right_through_changes_clones_snapshots_and_a_kill() {
    let test =
        "a_compressed_store_takes_less_and_its_bytes_stay_right_through_changes_clones_snapshots_and_a_kill";
    if !can_mount(test) {
        return;
    }
    let scratch = stage();
    let (dir, mount) = (&scratch.0, scratch.0.join("m"));
    sh(dir, "sluice mount s m; cp host/lines host/noise m; sync -f m; sluice umount m").well();
    let taken = |store: &str| -> u64 {
        sh(
            dir,
            &format!("cat {store}/segment-* > /dev/null; du -cB1 {store}/segment-* | tail -n 1 | cut -f 1"),
        )
        .well()
        .trim()
        .parse()
        .expect("a number")
    };
    let about = info(dir, "s");
    assert_eq!((&about["compressed"], &about["version"]), (&true.into(), &12.into()));
    let data = about["data_bytes"].as_u64().expect("a number");
    assert!((4_000_000..4_000_000 + 20_000_000).contains(&data), "{about}");
    assert!(taken("s") < 4_000_000 + 25_000_000, "{}", taken("s"));
    let text = sh(dir, "sluice info s").well();
    assert!(text.contains("version  12, compressed\n"), "{text}");
    // The same changes of the same files, here and on the host.
    let changes = "
        cd $1; cp --reflink=auto lines copy
        dd if=noise of=lines bs=1k seek=777 count=600 conv=notrunc status=none
        dd if=lines of=noise bs=10k seek=30 count=50 conv=notrunc status=none
        cat noise >> lines; truncate -s 3000000 noise; truncate -s 90000000 sparse
        dd if=copy of=sparse bs=1M seek=40 count=3 conv=notrunc status=none";
    let both = format!("cat > change <<'END'\n{changes}\nEND\nbash -eu change host; bash -eu change m");
    sh(dir, &format!("sluice mount s $PWD/m; cmp host/lines m/lines; cmp host/noise m/noise; {both}")).well();
    let equal = "diff -r host m --exclude=.snapshots; test $(stat -c %b m/sparse) -lt 10000";
    sh(dir, &format!("{equal}; sluice snapshot create m one; {equal}; cp -r host before")).well();
    sh(dir, "(yes 'other words' || true) | head -c 3000000 > m/lines; rm m/noise; sync m/lines m").well();
    crash(&mount);
    until("the dead server lets go of the store", || info(dir, "s")["in_use"] == false);
    sh(dir, "sluice umount --lazy m; sluice fsck s > told; sluice mount s m; sluice scrub m > /dev/null")
        .well();
    sh(dir, "diff -r before m/.snapshots/one; test $(stat -c %s m/lines) = 3000000; test ! -e m/noise")
        .well();
    sh(dir, "sluice snapshot restore m one; diff -r before m --exclude=.snapshots").well();
    // To a store that is not compressed, and back to one that is.
    let sent = "
        sluice send m/.snapshots/one > stream; sluice mkfs t; sluice receive t < stream
        sluice mount t n; diff -r before n/.snapshots/one; sluice umount n
        sluice mkfs --compress u; sluice receive u < stream
        sluice mount u n; diff -r before n/.snapshots/one; sluice umount n
        sluice umount m; sluice fsck s > /dev/null; sluice fsck t > /dev/null; sluice fsck u > /dev/null";
    sh(dir, sent).well();
    let (plain, compressed) = (info(dir, "t"), info(dir, "u"));
    assert_eq!(plain["compressed"], false);
    let of = |info: &Value| info["data_bytes"].as_u64().expect("a number");
    assert!(of(&plain) > of(&compressed) * 3 / 2, "{plain} {compressed}");
}

#[test]
fn each_flipped_byte_of_a_compressed_file_is_an_error_that_fsck_and_scrub_name() {
    let test = "each_flipped_byte_of_a_compressed_file_is_an_error_that_fsck_and_scrub_name";
    if !can_mount(test) {
        return;
    }
    for key in ["", "--encrypt --key-file k"] {
        let scratch = Scratch::new();
        let dir = &scratch.0;
        let (option, flag) = if key.is_empty() { ("", "") } else { ("-o key_file=k", "--key-file k") };
        let made = format!(
            "head -c 32 /dev/urandom > k; mkdir m; sluice mkfs --compress {key} s
            (seq -f 'the number %.0f' 100000 || true) | head -c 65536 > right; sluice mount {option} s m; cp right m/file; sync -f m; sluice umount m"
        );
        sh(dir, &made).well();
        let mut segment =
            std::fs::read_dir(dir.join("s")).expect("a store").flatten().map(|entry| entry.path());
        let data = |path: &std::path::PathBuf| {
            path.to_string_lossy().contains("segment-")
                && std::fs::read(path).expect("a file").iter().any(|byte| *byte != 0)
        };
        let segment = segment.find(data).expect("data are in a segment");
        let bytes = std::fs::read(&segment).expect("a file");
        let used = bytes.iter().rposition(|byte| *byte != 0).expect("data") + 1;
        assert!(used < 50_000, "{used} bytes");
        let file = std::fs::OpenOptions::new().write(true).open(&segment).expect("ours");
        for at in (0..used).step_by(used / 6) {
            file.write_at(&[bytes[at] ^ 4], at as u64).expect("ours");
            let said = sh(dir, &format!("sluice fsck {flag} s"));
            assert!(said.status == Some(4) && said.stdout.contains("/file"), "byte {at}: {said:?}");
            let said = sh(
                dir,
                &format!(
                    "sluice mount {option} s m; cat m/file > /dev/null && exit 9
                    sluice scrub m && exit 8; sluice umount m"
                ),
            );
            assert!(said.status == Some(0) && said.stdout.contains("/file"), "byte {at}: {said:?}");
            file.write_at(&[bytes[at]], at as u64).expect("ours");
        }
        sh(dir, &format!("sluice fsck {flag} s > /dev/null; sluice mount {option} s m; cmp right m/file"))
            .well();
        umount(&dir.join("m"));
    }
}

#[test]
fn a_compressed_store_in_an_object_store_takes_less_and_is_whole_after_a_kill() {
    let test = "a_compressed_store_in_an_object_store_takes_less_and_is_whole_after_a_kill";
    if !can_mount(test) {
        return;
    }
    let scratch = stage();
    let dir = &scratch.0;
    let script = "
        sluice mkfs --compress file://$PWD/t; sluice mount file://$PWD/t $PWD/m
        head -c 20000000 host/lines > m/lines; cp host/noise m; sync m/lines m/noise m";
    sh(dir, script).well();
    crash(&dir.join("m"));
    let size = "sluice umount --lazy m; du -sB1 t/data | cut -f 1";
    let size: u64 = sh(dir, size).well().trim().parse().expect("a number");
    assert!((4_000_000..12_000_000).contains(&size), "{size}");
    let script = "
        sluice mount -o takeover file://$PWD/t m; head -c 20000000 host/lines | cmp - m/lines
        cmp host/noise m/noise; sluice umount m; sluice fsck file://$PWD/t > /dev/null; sluice info file://$PWD/t";
    let said = sh(dir, script).well();
    assert!(said.contains("version  12, compressed\n"), "{said}");
}

#[test]
fn a_store_is_made_once_and_of_one_kind() {
    let scratch = Scratch::new();
    sh(&scratch.0, "sluice mkfs --compress s").well();
    let said = sh(&scratch.0, "sluice mkfs --compress s").complaint(1);
    assert!(said.contains("there is a sluicefs store here already"), "{said}");
    sh(&scratch.0, "sluice mkfs file://$PWD/t").well();
    let said = sh(&scratch.0, "sluice mkfs --compress file://$PWD/t").complaint(1);
    assert!(said.contains("there is a sluicefs store here already"), "{said}");
    assert!(sluice(["mkfs", "--help"]).well().contains("--compress"));
}
