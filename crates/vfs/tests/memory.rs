//! Memory: what files took goes back to the system when they are gone and nobody works.

use sluice_sync::memory::resident_bytes;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::Fs;

/// After this long something is taken never to happen. Nothing is measured by it.
const HANG: Duration = Duration::from_secs(60);

/// The contents of one round's files: so much, or so many, that memory which stays for other reasons does not count.
const LARGE_BYTES: usize = 256 << 20;
const SMALL_FILES: usize = 250_000;

fn resident() -> u64 {
    resident_bytes().expect("proc is mounted")
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never happened: {what}; {} bytes are resident", resident());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc is mounted");
    // A thread may end meanwhile.
    tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
}

fn nobody_drains() -> bool {
    !threads().iter().any(|name| name.trim_end() == "sluice-drain")
}

/// Lets `make` make files and `remove` remove them: nine tenths of what they took come back, and the thread that saw to it ends.
fn comes_back(what: &str, make: impl FnOnce(), remove: impl FnOnce()) {
    eventually("nobody drains before", nobody_drains);
    let before = resident();
    make();
    let grown = resident() - before;
    remove();
    let is_back = || resident() < before + grown / 10;
    eventually(&format!("{what}: of {grown} bytes beyond {before} less than a tenth are left"), is_back);
    eventually("nobody drains after", nobody_drains);
}

// One test, since the memory is that of the whole process.
#[test]
fn the_memory_of_what_is_removed_goes_back_to_the_system_and_nobody_is_left_waiting() {
    if cfg!(not(target_env = "gnu")) {
        return;
    }
    let fs = Fs::new();
    let page = vec![7; 1 << 20];
    comes_back(
        "one large file",
        || (0..LARGE_BYTES / page.len()).for_each(|_| fs.append("/large", &page).expect("there is room")),
        || fs.remove_file("/large").expect("it is there"),
    );
    comes_back(
        "one large file, cut",
        || (0..LARGE_BYTES / page.len()).for_each(|_| fs.append("/cut", &page).expect("there is room")),
        || fs.write("/cut", "").expect("it is there"),
    );
    comes_back(
        "large files of a thread that works no more",
        || {
            for file in 0..LARGE_BYTES / page.len() {
                fs.write(format!("/large{file}"), &page).expect("there is room");
            }
        },
        || {
            thread::scope(|scope| {
                scope.spawn(|| {
                    for file in 0..LARGE_BYTES / page.len() {
                        fs.remove_file(format!("/large{file}")).expect("it is there");
                    }
                });
            });
        },
    );
    comes_back(
        "small files",
        || {
            fs.create_dir("/small").expect("a fresh name");
            (0..SMALL_FILES).for_each(|file| fs.write(format!("/small/{file}"), "ten bytes.").expect("room"));
        },
        || fs.remove_dir_all("/small").expect("it is there"),
    );
    fs.create_dir("/stays").expect("a fresh name");
    fs.write("/stays/file", "").expect("there is room");
    comes_back(
        "names of a directory that stays",
        || {
            let link = |name| fs.hard_link("/stays/file", format!("/stays/{name}"));
            (0..SMALL_FILES).for_each(|name| link(name).expect("a fresh name"));
        },
        || {
            (0..SMALL_FILES).for_each(|name| {
                fs.remove_file(format!("/stays/{name}")).expect("it is there");
            });
            assert_eq!(fs.read_dir("/stays").expect("it is there").count(), 1);
        },
    );
    let other = std::cell::RefCell::new(Some(Fs::new()));
    comes_back(
        "a file system",
        || {
            let other = other.borrow();
            let other = other.as_ref().expect("it is not dropped yet");
            (0..SMALL_FILES).for_each(|file| other.write(format!("/{file}"), "ten bytes.").expect("room"));
        },
        || drop(other.take()),
    );
    assert!(fs.check().is_clean());
}
