//! Tests of the announcer: kernels whose locks are held, and what others wait for then.

use super::*;
use sluice_fuse::internal::abi::flags::NOTIFY_INVAL_INODE;
use sluice_sync::mpsc;

/// A kernel that takes in no notice about a name before it may, and says so of an inode until then that it does not know it.
#[derive(Default)]
struct Slow {
    may: Mutex<bool>,
    changed: Condvar,
    /// Notices that were taken in.
    taken: AtomicU64,
}

impl Device for Slow {
    fn receive(&self, _: &mut [u8]) -> std::io::Result<Option<usize>> {
        Ok(None)
    }

    fn send(&self, message: &[u8]) -> std::io::Result<()> {
        let code = OutHeader::read_from_prefix(message).map_or(0, |(header, _)| header.error);
        let mut may = self.may.lock();
        if code == NOTIFY_INVAL_INODE && !*may {
            return Err(Errno::ENOENT.into());
        }
        while code != NOTIFY_INC_EPOCH && !*may {
            may = self.changed.wait(may);
        }
        // Relaxed, here and below: a count.
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_connected(&self) -> bool {
        true
    }
}

#[test]
fn an_announcement_counts_as_made_though_every_thread_waits_in_the_kernel() {
    let kernel = Arc::new(Slow::default());
    let announcer = Announcer::new(kernel.clone(), Arc::new(Mutex::new(Ledger::default())));
    announcer.start().expect("threads");
    let name = Reply::new().notification(sluice_fuse::internal::abi::flags::NOTIFY_INVAL_ENTRY).to_vec();
    // One after the other, so that all threads of the beginning are in the kernel, and each further one has come and gone.
    for _ in 0..2 * THREADS + 1 {
        let (done, heard) = mpsc::channel();
        announcer.announce(&name, Box::new(move || done.send(()).expect("somebody listens")));
        assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(()), "others wait for it");
        thread::sleep(4 * PATIENCE);
    }
    *kernel.may.lock() = true;
    kernel.changed.notify_all();
    announcer.end();
}
/// A kernel whose pages stay locked, by their first byte, until a test unlocks them.
#[derive(Default)]
struct Pages {
    /// Which are unlocked, who waits for which, and which were dropped.
    state: Mutex<(bool, Vec<i64>, Vec<i64>)>,
    changed: Condvar,
}

impl Device for Pages {
    fn receive(&self, _: &mut [u8]) -> std::io::Result<Option<usize>> {
        Ok(None)
    }

    fn send(&self, message: &[u8]) -> std::io::Result<()> {
        let Some(arg) = inval_inode_arg(message).filter(|arg| arg.off >= 0) else { return Ok(()) };
        let mut state = self.state.lock();
        state.1.push(arg.off);
        self.changed.notify_all();
        while !state.0 {
            state = self.changed.wait(state);
        }
        state.2.push(arg.off);
        Ok(())
    }

    fn is_connected(&self) -> bool {
        true
    }
}

/// Announces `rounds` changes of each of `pages` pages, all of which are locked. Returns how many threads waited in the kernel, and how
/// many announcements it took in.
fn announce_locked_pages(pages: i64, rounds: usize) -> (usize, usize) {
    let kernel = Arc::new(Pages::default());
    let announcer = Announcer::new(kernel.clone(), Arc::new(Mutex::new(Ledger::default())));
    announcer.start().expect("threads");
    let (done, heard) = mpsc::channel();
    for _ in 0..rounds {
        for page in 0..pages {
            let done = done.clone();
            let notice = inval_inode(7, page * 4096, 4096);
            announcer.announce(&notice, Box::new(move || done.send(()).expect("somebody listens")));
        }
        for _ in 0..pages {
            assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(()), "others wait for it");
        }
    }
    // A thread that was begun may not have had a CPU yet.
    let in_kernel = || kernel.state.lock().1.len();
    let begun = Instant::now();
    while in_kernel() < THREADS_MAX.min(pages as usize) && begun.elapsed() < Duration::from_secs(30) {
        thread::sleep(REPEAT_AFTER);
    }
    let waited = in_kernel();
    kernel.state.lock().0 = true;
    kernel.changed.notify_all();
    let begun = Instant::now();
    while !announcer.state.lock().pending.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "they are never made");
        thread::sleep(REPEAT_AFTER);
    }
    announcer.end();
    let taken = kernel.state.lock().2.len();
    (waited, taken)
}

#[test]
fn of_one_page_one_announcement_is_in_the_kernel_and_one_waits_however_many_there_are() {
    assert_eq!(announce_locked_pages(3, 2 * THREADS_MAX), (3, 6));
}

#[test]
fn with_every_thread_in_the_kernel_others_do_not_wait() {
    let pages = 2 * THREADS_MAX;
    assert_eq!(announce_locked_pages(pages as i64, 2), (THREADS_MAX, pages + THREADS_MAX));
}

#[test]
fn a_kernel_that_learns_of_an_inode_late_is_told_all_the_same_and_others_do_not_wait_for_that() {
    let kernel = Arc::new(Slow::default());
    let announcer = Announcer::new(kernel.clone(), Arc::new(Mutex::new(Ledger::default())));
    announcer.start().expect("threads");
    // The root is always known.
    let notice = inval_inode(sluice_fuse::internal::abi::ROOT_ID, -1, 0);
    let (done, heard) = mpsc::channel();
    announcer.announce(&notice, Box::new(move || done.send(()).expect("somebody listens")));
    assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(()), "others wait for it");
    let taken = || kernel.taken.load(Ordering::Relaxed);
    assert_ne!(taken(), 0, "names that were asked for before are believed");
    thread::sleep(4 * REPEATS * REPEAT_AFTER);
    let before = taken();
    *kernel.may.lock() = true;
    let begun = Instant::now();
    while taken() == before {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is never told");
        thread::sleep(REPEAT_AFTER);
    }
    announcer.end();
}

#[test]
fn a_notice_of_a_page_is_cut_short_only_if_a_request_is_about_it_and_its_age_counts_from_the_change() {
    let kernel = Arc::new(Pages::default());
    let announcer = Announcer::new(kernel.clone(), Arc::new(Mutex::new(Ledger::default())));
    let asked = Arc::new(AtomicU64::new(0));
    let is_held = {
        let asked = asked.clone();
        move |notices: &[u8], _: bool| {
            asked.fetch_add(1, Ordering::Relaxed);
            split(notices).filter_map(inval_inode_arg).any(|arg| arg.off == 4096)
        }
    };
    assert!(announcer.is_held.set(Box::new(is_held)).is_ok());
    announcer.start().expect("threads");
    let (done, heard) = mpsc::channel();
    for page in [0, 1] {
        let done = done.clone();
        let notice = inval_inode(7, page * 4096, 4096);
        announcer.announce(&notice, Box::new(move || done.send(page).expect("somebody listens")));
    }
    let begun = Instant::now();
    assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(1), "a request is about it");
    // It is looked at again and again.
    let before = asked.load(Ordering::Relaxed);
    while asked.load(Ordering::Relaxed) < before + 3 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is not looked at");
        thread::sleep(REPEAT_AFTER);
    }
    assert!(heard.try_recv().is_err(), "no request is about it");
    let (notices, oldest) = announcer.in_the_kernel(Instant::now());
    assert!(notices == 2 && oldest >= 3 * PATIENCE, "{notices} {oldest:?}");
    kernel.state.lock().0 = true;
    kernel.changed.notify_all();
    assert_eq!(heard.recv_timeout(Duration::from_secs(30)), Ok(0));
    announcer.end();
}
