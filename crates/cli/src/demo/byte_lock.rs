//! Byte lock: two processes want the same bytes of a file.
//!
//! The processes are our own program, started with one of its hidden commands; they and the tour talk in lines
//! over pipes.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::mounted::Mounted;
use sluice_console::table::grouped;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// How often each process takes the lock when they contend.
const ROUNDS: u32 = 1000;
/// The bytes in dispute.
pub(super) const FIRST: i64 = 100;
pub(super) const LEN: i64 = 100;
/// Nothing here takes longer unless something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// The text of the contention step.
pub(super) fn told() -> String {
    format!("Two processes took a byte-range lock in turns, {} times each", grouped(f64::from(ROUNDS)))
}

fn set_lock(file: &File, kind: libc::c_int) -> Result<()> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: FIRST,
        l_len: LEN,
        l_pid: 0,
    };
    loop {
        match fcntl(file, FcntlArg::F_SETLKW(&lock)) {
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Failure::Failed(format!("lock: {errno}"))),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .context(|| path.display().to_string())
}

/// The hidden command that takes the lock, says `locked` on its standard output, and keeps it until its standard
/// input ends.
///
/// # Errors
/// Errors of opening and locking.
pub(crate) fn hold_until_told(path: &Path) -> Result<()> {
    let file = open(path)?;
    set_lock(&file, libc::F_WRLCK)?;
    println!("locked");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    set_lock(&file, libc::F_UNLCK)
}

/// The hidden command that says `ready`, waits for a line on its standard input, and then takes the lock and gives
/// it back again and again. While it has it, nobody else may: it checks that with a counter in the file.
///
/// # Errors
/// Errors of opening and locking; a counter that another process has changed.
pub(crate) fn lock_rounds(path: &Path, rounds: u32) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = open(path)?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    for _ in 0..rounds {
        set_lock(&file, libc::F_WRLCK)?;
        let mut counter = [0; 8];
        file.read_at(&mut counter, FIRST as u64)?;
        let next = u64::from_ne_bytes(counter) + 1;
        file.write_at(&next.to_ne_bytes(), FIRST as u64)?;
        set_lock(&file, libc::F_UNLCK)?;
    }
    Ok(())
}

/// A child process of ours that runs one of the hidden commands.
struct Party {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Party {
    fn start(program: &Path, arguments: &[&OsStr]) -> Result<Party> {
        let mut child = Command::new(program)
            .arg("child")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context(|| program.display().to_string())?;
        let said = child.stdout.take().ok_or_else(|| Failure::Failed("no pipe to a child".into()))?;
        Ok(Party { child, said: BufReader::new(said) })
    }

    fn hears(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        if line.trim_end() == word {
            Ok(())
        } else {
            Err(Failure::Failed(format!("a process did not get to \"{word}\"")))
        }
    }

    fn go(&mut self) -> Result<()> {
        if let Some(stdin) = &mut self.child.stdin {
            stdin.write_all(b"go\n")?;
        }
        Ok(())
    }

    /// Lets it end and waits for that.
    fn finish(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("a locking process ended with {status}")))
        }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // After finish() the process is gone and both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two processes take the lock in turns; nobody may be let in while the other has it.
pub(super) fn contend(program: &Path, file: &Path) -> Result<()> {
    std::fs::write(file, vec![0; (FIRST + LEN) as usize])?;
    let rounds = ROUNDS.to_string();
    let arguments = ["lock-rounds".as_ref(), file.as_os_str(), rounds.as_ref()];
    let mut parties = [Party::start(program, &arguments)?, Party::start(program, &arguments)?];
    for party in &mut parties {
        party.hears("ready")?;
    }
    for party in &mut parties {
        party.go()?;
    }
    for party in parties {
        party.finish()?;
    }
    let contents = std::fs::read(file)?;
    let counter = contents.get(FIRST as usize..FIRST as usize + 8).and_then(|bytes| bytes.try_into().ok());
    match counter.map(u64::from_ne_bytes) {
        Some(count) if count == 2 * u64::from(ROUNDS) => Ok(()),
        other => Err(Failure::Failed(format!(
            "of {} turns {other:?} were counted: two held the lock at once",
            2 * ROUNDS
        ))),
    }
}

/// On a mount whose locks we serve: one process holds the lock, a second waits, and `sluice locks` lists both.
pub(super) fn show_waiter_on_mount(program: &Path) -> Result<Vec<String>> {
    let mount = Mounted::start(program, &["-o".as_ref(), "locks=sluice".as_ref()])?;
    let file = mount.path().join("file");
    let arguments = ["hold-lock".as_ref(), file.as_os_str()];
    let mut holder = Party::start(program, &arguments)?;
    holder.hears("locked")?;
    let mut waiter = Party::start(program, &arguments)?;
    let lines = await_waiter(|| {
        let output =
            Command::new(program).arg("locks").arg(mount.path()).output().context(|| "sluice locks")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })?;
    holder.finish()?;
    waiter.hears("locked")?;
    waiter.finish()?;
    mount.unmount()?;
    Ok(lines)
}

/// Asks `list` until it shows a waiter.
pub(super) fn await_waiter(list: impl Fn() -> Result<String>) -> Result<Vec<String>> {
    let start = Instant::now();
    loop {
        let text = list()?;
        if text.contains("->") {
            return Ok(text.lines().map(str::to_owned).collect());
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::Failed(format!("no waiter shows in the list of locks: {text:?}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

pub(super) use in_process::{contend_in_process, show_waiter_in_process};

/// The contention of two users of the library.
mod in_process {
    use super::{FIRST, LEN, ROUNDS, await_waiter};
    use sluice_console::failure::{Failure, Result};
    use sluice_locks::{Cancel, proc_locks};
    use sluice_sync::thread;
    use sluice_vfs::{Cred, Fd, FileLock, Fs, LockType, OpenFlags, Process};

    fn range(kind: LockType) -> FileLock {
        FileLock::range(kind, FIRST, LEN)
    }

    fn open(fs: &Fs) -> Result<(Process, Fd)> {
        let process = fs.process(Cred::root());
        let file = process.open("/locked", OpenFlags::RDWR | OpenFlags::CREAT, 0o600)?;
        Ok((process, file))
    }

    fn rounds(fs: &Fs) -> Result<()> {
        let (process, file) = open(fs)?;
        for _ in 0..ROUNDS {
            process.fcntl_setlkw(file, &range(LockType::Write), &Cancel::new())?;
            let mut counter = [0; 8];
            process.pread(file, &mut counter, FIRST)?;
            let next = u64::from_ne_bytes(counter) + 1;
            process.pwrite(file, &next.to_ne_bytes(), FIRST)?;
            process.fcntl_setlk(file, &range(LockType::Unlock))?;
        }
        process.close(file)?;
        Ok(())
    }

    /// Two processes of the library take the lock in turns.
    pub(in super::super) fn contend_in_process(fs: &Fs) -> Result<()> {
        thread::scope(|scope| {
            let parties = [scope.spawn(|| rounds(fs)), scope.spawn(|| rounds(fs))];
            parties.into_iter().try_for_each(|party| {
                party.join().unwrap_or_else(|_| Err(Failure::Failed("a locking thread panicked".into())))
            })
        })?;
        let contents = fs.read("/locked")?;
        let counter =
            contents.get(FIRST as usize..FIRST as usize + 8).and_then(|bytes| bytes.try_into().ok());
        match counter.map(u64::from_ne_bytes) {
            Some(count) if count == 2 * u64::from(ROUNDS) => Ok(()),
            other => Err(Failure::Failed(format!("of {} turns {other:?} were counted", 2 * ROUNDS))),
        }
    }

    /// One holds the lock, another waits, the list shows both.
    pub(in super::super) fn show_waiter_in_process() -> Result<Vec<String>> {
        let fs = Fs::new();
        let (holder, file) = open(&fs)?;
        holder.fcntl_setlk(file, &range(LockType::Write))?;
        thread::scope(|scope| {
            let waiter = scope.spawn(|| -> Result<()> {
                let (process, file) = open(&fs)?;
                process.fcntl_setlkw(file, &range(LockType::Write), &Cancel::new())?;
                process.close(file)?;
                Ok(())
            });
            let lines = await_waiter(|| Ok(proc_locks(&fs.superblock().lock_domain().list())));
            // Whatever came of it: let the waiter go on, or the scope would never end.
            holder.fcntl_setlk(file, &range(LockType::Unlock))?;
            waiter.join().unwrap_or_else(|_| Err(Failure::Failed("the waiting thread panicked".into())))?;
            lines
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_users_of_the_library_one_holds_and_one_waits() {
        let lines = show_waiter_in_process().unwrap();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(!lines[0].contains("->") && lines[1].contains("->"), "{lines:?}");
        assert!(lines.iter().all(|line| line.ends_with(" 100 199")), "{lines:?}");
    }

    #[test]
    fn a_process_that_does_not_answer_fails_the_step() {
        let dir = sluice_console::private_dir::PrivateDir::below(&std::env::temp_dir()).unwrap();
        assert!(contend(Path::new("false"), &dir.path().join("file")).is_err());
    }
}
