//! The Debian packages: made of the programs under test, installed in a root of their own, used and removed.

use crate::harness::{SLUICE, Scratch, can_mount, skipped};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// In a mount namespace of its own, with an overlay over the root for what is installed. `$1` is a directory with the packages.
const INSTALLS: &str = r#"
set -eu
cd "$1"
mkdir rw root
mount -t tmpfs tmpfs rw
mkdir rw/up rw/work
mount -t overlay -o lowerdir=/,upperdir=rw/up,workdir=rw/work overlay root
mount --rbind /dev root/dev
mount --rbind /sys root/sys
mount -t proc proc root/proc
mkdir root/packages
cp *.deb root/packages
chroot root sh -c 'dpkg --install /packages/*.deb' >&2
chroot root sh -euc '
    mkdir -p /packages/mnt
    sluice mkfs /packages/store
    sluice mount /packages/store /packages/mnt
    echo kept >/packages/mnt/file
    sync /packages/mnt/file
    sluice umount /packages/mnt
    mount -t fuse.sluice /packages/store /packages/mnt
    cat /packages/mnt/file
    umount /packages/mnt
    sluice --version
    sluice bench --seconds 0.1 --runs 1 stat >/dev/null
    test -f /usr/share/man/man1/sluice-mount.1.gz
    ldconfig -p | grep -q libsluice.so.0
'
chroot root dpkg --purge libsluice-dev libsluice0 sluicefs >&2
rm -r root/packages
find rw/up -path rw/up/run -prune -o -name '*sluice*' -not -type c -print
"#;

#[test]
fn debian_packages_are_installed_used_and_removed_without_a_trace() {
    let test = "debian_packages_are_installed_used_and_removed_without_a_trace";
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return skipped(test, "no dpkg-deb: this is no Debian");
    }
    if !can_mount(test) {
        return;
    }
    let scratch = Scratch::new();
    let (built, made) = (scratch.dir("built"), scratch.dir("made"));
    let program = Path::new(SLUICE);
    let target = program.parent().expect("a directory");
    let library = ["deps/libsluice.so", "libsluice.so"].map(|name| target.join(name));
    let library = library.into_iter().find(|path| path.exists()).expect("built with the workspace");
    symlink(program, built.join("sluice")).expect("room");
    symlink(env!("CARGO_BIN_EXE_sluice-lab"), built.join("sluice-lab")).expect("room");
    symlink(library, built.join("libsluice.so")).expect("room");
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/deb/build");
    let ran = Command::new(build).args([&built, &made]).arg("none").env_remove("MAKEFLAGS").output();
    let ran = ran.expect("it starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(fs::read_dir(&made).expect("listed").count(), 3);
    let mut installing = Command::new("unshare");
    installing.args(["--mount", "sh", "-c", INSTALLS, "sh"]).arg(&made);
    let ran = installing.env_remove(sluice_sync::lock_debug::RECORD).output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    let told = String::from_utf8_lossy(&ran.stdout).into_owned();
    let version = concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(told, format!("kept\n{version}"), "and no file that is left: {said}");
}
