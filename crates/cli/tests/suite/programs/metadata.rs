//! Metadata: what `cp -a`, `rsync` and `touch` keep beside the contents.

use super::files::data_parts;
use super::stage::Stage;
use std::os::unix::fs::MetadataExt;

/// Makes `original` below the current directory: all types of files, special bits, odd times, attributes, holes.
const MAKE: &str = r#"
    mkdir original; cd original
    echo plain >plain; ln plain second-name; ln -s plain symlink; ln -s /no/such dangling; mkfifo fifo
    mkdir -p sub/dir; echo x >sub/dir/x; ln plain sub/third-name
    for mode in 0000 0444 0600 0711 0777 2755 4755 6711; do echo $mode >m$mode; chmod $mode m$mode; done
    mkdir sticky setgid; chmod 1777 sticky; chmod 2775 setgid
    truncate -s 1M holes; printf in | dd of=holes bs=1 seek=500000 conv=notrunc status=none; truncate -s 3M holes
    setfattr -n user.colour -v green plain; setfattr -n user.empty plain; setfattr -n user.binary -v 0x00ff0a sub
    setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\0' v)" sub/dir/x
    if command -v setfacl >/dev/null; then
        setfacl -m u:12345:rwx,g:54321:r-x plain; setfacl -m d:u:12345:r-x,u:12345:--x sub
    fi
    # Not this second: rsync leaves a time alone that differs from the original's by less.
    find . -exec touch -h -d '2020-02-02 02:02:02.202020202 UTC' {} +
    touch -d '1999-12-31 23:59:59.123456789 UTC' plain; touch -h -d '2001-02-03 04:05:06.000000007 UTC' symlink
    touch -d '2106-02-07 06:28:17 UTC' m0600; touch -d '1969-07-20 20:17:40.5 UTC' m0444
    touch -d '2010-10-10 10:10:10.101010101 UTC' sub/dir sub fifo sticky
"#;

/// Prints all that is known of `copy`. Modes, owners, links, sizes, times, targets, attributes, access control lists.
const DESCRIBE: &str = r#"
    find . -exec stat -c '%n %F %A %u:%g links %h' {} + | sort
    find . ! -type d -exec stat -c '%n %s modified %y' {} + | sort; find . -type d -exec stat -c '%n %y' {} + | sort
    find . -type l -exec readlink {} \; | sort; find . -samefile plain | sort
    find . | sort | while read -r name; do getfattr -h -d -m '^user[.]' -e hex "$name"; done
    if command -v getfacl >/dev/null; then find . ! -type l | sort | while read -r name; do getfacl -n "$name"; done; fi
"#;

#[test]
fn cp_keeps_modes_links_times_attributes_holes_and_access_control_lists() {
    let name = "cp_keeps_modes_links_times_attributes_holes_and_access_control_lists";
    let Some(stage) = Stage::new(name, "", &["getfattr", "find"]) else { return };
    let Some(other) = Stage::new(name, "", &["rsync"]) else { return };
    if std::process::Command::new("setfacl").arg("--version").output().is_err() {
        super::stage::skip(name, "needs setfacl for its part about ACLs (cure: apt-get install acl)");
    }
    stage.sh(MAKE);
    let original = stage.sh(&format!("cd original; {DESCRIBE}"));
    for expected in
        ["23:59:59.123456789", "04:05:06.000000007", "links 3", "user.colour=", "drwxrwxrwt", "-rwsr-xr-x"]
    {
        assert!(original.contains(expected), "{expected} is missing in\n{original}");
    }
    let there = other.mount().display();
    // m0000 cannot be read by an ordinary user, not even its owner.
    stage.sh("if [ $(id -u) != 0 ]; then chmod 400 original/m0000; fi");
    let original = stage.sh(&format!("cd original; {DESCRIBE}"));
    for copied in [
        "cp -a original copy; cd copy",
        "cp -a --reflink=never --sparse=always original never; cd never",
        &format!("cp -a original {there}/copy; cd {there}/copy"),
        &format!("rsync -aHAXS original/ {there}/rsync; cd {there}/rsync"),
        &format!("mv copy {there}/moved; cd {there}/moved"),
    ] {
        let copy = stage.sh(&format!("{copied}; {DESCRIBE}"));
        assert!(copy == original, "{copied}\noriginal:\n{original}\ncopy:\n{copy}");
    }
    let holes = data_parts(&stage.mount().join("original/holes"));
    assert_eq!(holes, [(122 * 4096, 123 * 4096)]);
    for copy in [stage.mount().join("never"), other.mount().join("copy"), other.mount().join("moved")] {
        assert_eq!(data_parts(&copy.join("holes")), holes, "{}", copy.display());
    }
}

#[test]
fn times_are_taken_over_to_the_nanosecond_and_follow_what_happens() {
    let name = "times_are_taken_over_to_the_nanosecond_and_follow_what_happens";
    let Some(stage) = Stage::new(name, "", &[]) else { return };
    stage.sh("echo a >a; sleep 0.02; echo b >b; test b -nt a; touch -r a b; ! test b -nt a; ! test a -nt b");
    let metadata = |name: &str| stage.mount().join(name).metadata().unwrap();
    let (a, b) = (metadata("a"), metadata("b"));
    assert_eq!((a.mtime(), a.mtime_nsec(), a.atime_nsec()), (b.mtime(), b.mtime_nsec(), b.atime_nsec()));
    assert!(
        (b.ctime(), b.ctime_nsec()) > (b.mtime(), b.mtime_nsec()),
        "the change of the time is itself a change"
    );
    let script = "
        old() { touch -d @1000000000.000000001 \"$@\"; }; age() { stat -c '%Y' \"$1\"; }
        mkdir d; old d a; echo x >>a; test $(age a) -gt 1000000000; test $(age d) = 1000000000
        old d a; touch d/new; test $(age d) -gt 1000000000; old d; rm d/new; test $(age d) -gt 1000000000
        old d a; mv a d/a; test $(age d) -gt 1000000000; test $(age d/a) = 1000000000
        chmod 600 d/a; test $(age d/a) = 1000000000; test $(stat -c %Z d/a) -gt 1000000000
        old d/a; truncate -s 0 d/a; test $(age d/a) -gt 1000000000
        touch -a -d @5 d/a; test $(stat -c %X d/a) = 5; echo x >d/a; touch -m -d @7 d/a; test $(stat -c '%X %Y' d/a | tr ' ' -) = 5-7";
    stage.sh(script);
    // A file that is open and written keeps the order of its writes.
    stage.sh("exec 3>w; echo 1 >&3; touch -d @9 w; test $(stat -c %Y w) = 9; echo 2 >&3; test $(stat -c %Y w) -gt 9");
}
