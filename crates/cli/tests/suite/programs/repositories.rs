//! Repositories: git works on the mount and finds nothing broken.

use super::stage::Stage;
use std::fmt::Write;

const COMMITS: usize = 300;
const FILES: usize = 240;

/// A history for `git fast-import`: each commit adds or changes a few files.
fn history() -> String {
    let mut stream = String::new();
    for commit in 0..COMMITS {
        let message = format!("change {commit}\n");
        let time = 1_600_000_000 + commit * 60;
        write!(
            stream,
            "commit refs/heads/trunk\ncommitter A U Thor <author@example.org> {time} +0000\ndata {}\n{message}",
            message.len()
        )
        .unwrap();
        for change in 0..4 {
            let file = (commit * 4 + change) % FILES;
            let text: String =
                (0..20 + file % 50).map(|line| format!("line {line} of {file} since {commit}\n")).collect();
            let mode = if file.is_multiple_of(9) { "100755" } else { "100644" };
            let path = format!("dir{}/sub{}/file{file}.c", file % 12, file % 5);
            write!(stream, "M {mode} inline {path}\ndata {}\n{text}\n", text.len()).unwrap();
        }
        if commit == 10 {
            stream.push_str("M 120000 inline link\ndata 4\ndir1\n");
        }
    }
    stream
}

#[test]
fn git_clones_checks_collects_and_sees_a_clean_tree() {
    let name = "git_clones_checks_collects_and_sees_a_clean_tree";
    let Some(stage) = Stage::new(name, "", &["git", "diff"]) else { return };
    std::fs::write(stage.host().join("history"), history()).unwrap();
    let git = |script: &str| {
        stage.sh(&format!(
            "export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a \
             GIT_COMMITTER_EMAIL=a@b; {script}"
        ))
    };
    git("git init -q --bare -b trunk $HOST/origin; git -C $HOST/origin fast-import --quiet <$HOST/history");
    git("git clone -q $HOST/origin work && cd work && git fsck --strict --no-dangling");
    let commits = git("cd work; git rev-list --count HEAD");
    assert_eq!(commits.trim(), COMMITS.to_string());
    assert_eq!(git("cd work; git status --porcelain"), "");
    assert_eq!(git("cd work; git ls-files | wc -l").trim(), (FILES + 1).to_string());

    // Work as people do: branch, change, rename, commit, merge, stash, go back.
    git("cd work; git checkout -q -b topic; git mv dir1 moved; echo new >>moved/sub1/file1.c; echo x >added
         git add -A; git commit -qm topic; git checkout -q trunk; echo y >other; git add other; git commit -qm other
         git merge -q --no-edit topic; echo z >>other; git stash -q; git checkout -q HEAD~50; git checkout -q trunk
         git stash pop -q; git checkout -q other; git worktree add -q ../second topic");
    assert_eq!(git("cd work; git status --porcelain; git -C ../second status --porcelain"), "");

    git(
        "cd work; git gc -q --prune=now && git fsck --strict --no-dangling && git status --porcelain >$HOST/status",
    );
    assert_eq!(std::fs::read_to_string(stage.host().join("status")).unwrap(), "");
    // Loose objects are packed now.
    assert!(git("cd work; git count-objects").starts_with("0 objects"));

    // From the mount to the mount, by hard links; and back to the host.
    git("git clone -q work twin; git -C twin fsck --strict --no-dangling; git -C twin gc -q --aggressive");
    git(
        "diff -r --no-dereference --exclude=.git work twin; git clone -q work $HOST/back; git -C $HOST/back fsck --strict --no-dangling",
    );
    assert_eq!(git("git -C $HOST/back rev-parse HEAD"), git("git -C work rev-parse HEAD"));
}
