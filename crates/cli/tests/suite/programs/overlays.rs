//! Overlays: overlayfs with its upper layer, or both layers, on the mount does what it does with them on tmpfs.

use super::stage::{LOCK_MODES, Stage, skip};
use std::os::unix::fs::MetadataExt;

/// Works in an overlay of `$LOWER` and an upper layer in `$UP`, and prints what is then in the overlay, in the upper layer, in the
/// overlay when the kernel has dropped its caches, and once it is mounted anew.
const WORK: &str = r#"
trap 'cd /; umount $HOST/merged' EXIT
rm -rf $LOWER $HOST/merged $UP/upper $UP/work
mkdir $LOWER $HOST/merged $UP/upper $UP/work
(cd $LOWER; mkdir -p emptied replaced/below moved/below keeps; echo one >changed; echo two >removed; echo three >renamed
 echo four >linked; ln linked linked-too; ln -s changed symlink; echo five >replaced/below/f; echo six >moved/below/f
 echo seven >emptied/a; echo eight >emptied/b; head -c 3000000 /dev/zero | tr '\0' x >large; mkfifo fifo
 setfattr -n user.lower -v value changed; for n in $(seq 200); do echo $n >keeps/$n; done)
overlay() {
 # A mount namespace that another test has just made may keep the last overlay for a moment.
 for try in $(seq 200); do
  mount -t overlay overlay -o lowerdir=$LOWER,upperdir=$UP/upper,workdir=$UP/work,$OPTIONS $HOST/merged && return
  sleep 0.1
 done
 return 1
}
overlay
cd $HOST/merged
echo more >>changed; chmod 600 changed; setfattr -n user.upper -v value changed
rm removed; mv renamed new-name; echo again >>linked; cat linked-too
rm -r replaced; mkdir replaced; echo fresh >replaced/f
mv moved moved-away 2>/dev/null || { cp -a moved moved-away; rm -r moved; }
echo more >>moved-away/below/f; rm emptied/*; printf y | dd of=large bs=1 seek=1000000 conv=notrunc status=none
chown 12:34 fifo symlink -h; for n in $(seq 1 2 200); do rm keeps/$n; done; mv keeps/2 keeps/1; mkdir keeps/3
ln changed linked-here; mkdir made; mv made made-again; rmdir made-again; echo x >removed; rm removed
echo a >one; echo b >two; mv one two; touch -d @1000000000 changed
list() { find . -mindepth 1 -printf '%p %y %m %U:%G %n %l\n' | sort; find . -type f ! -name large | sort | xargs cat; cksum large; ls emptied; }
list; getfattr -d -m user changed; stat -c %Y changed
cd $UP/upper
find . -printf '%p %y %m %U:%G\n' | sort; find . | sort | xargs getfattr -h -m overlay
cd $HOST/merged; sync; echo 2 >/proc/sys/vm/drop_caches || :; list; echo late >>linked-too; cat linked
cd /; umount $HOST/merged; echo 2 >/proc/sys/vm/drop_caches || :; overlay; cd $HOST/merged; list
"#;

/// Unmounts what the test has mounted beside the stage, whatever happens. Not in a mount namespace of its own: that would keep
/// the mounts of all other tests for as long.
struct Beside<'s>(&'s Stage);

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.0.outcome("umount -l $HOST/merged $HOST/tmpfs 2>/dev/null");
    }
}

#[test]
fn an_overlay_with_its_upper_layer_here_is_as_one_on_tmpfs() {
    let test = "an_overlay_with_its_upper_layer_here_is_as_one_on_tmpfs";
    for locks in LOCK_MODES {
        let Some(stage) = Stage::new(test, locks, &["getfattr", "find"]) else { return };
        if stage.host().metadata().expect("the test made it").uid() != 0 {
            return skip(test, "mounts an overlay (cure: run the tests as root)");
        }
        let _beside = Beside(&stage);
        let probed = stage.outcome(
            "mkdir $HOST/lower $HOST/merged $HOST/tmpfs; mount -t tmpfs tmpfs $HOST/tmpfs; mkdir $HOST/tmpfs/u $HOST/tmpfs/w
             mount -t overlay overlay -o lowerdir=$HOST/lower,upperdir=$HOST/tmpfs/u,workdir=$HOST/tmpfs/w $HOST/merged
             umount $HOST/merged",
        );
        if !probed.status.success() {
            let said = String::from_utf8_lossy(&probed.stderr).trim_end().to_owned();
            return skip(test, &format!("no overlay can be mounted here (cure: modprobe overlay): {said}"));
        }
        std::fs::write(stage.host().join("work"), WORK).expect("a file on the host");
        for options in
            ["redirect_dir=on", "redirect_dir=off", "redirect_dir=on,metacopy=on,index=on", "userxattr"]
        {
            for both in [false, true] {
                let run = |up: &str| {
                    let lower = if both { format!("{up}/lower") } else { "$HOST/lower".to_owned() };
                    stage.sh(&format!("LOWER={lower} UP={up} OPTIONS={options} sh -eu $HOST/work"))
                };
                let (ours, theirs) = (run("$MNT"), run("$HOST/tmpfs"));
                assert!(theirs.contains("./removed c"), "the upper layer has a whiteout: {theirs}");
                assert_eq!(ours, theirs, "with {options}, both layers here: {both}");
            }
        }
    }
}
