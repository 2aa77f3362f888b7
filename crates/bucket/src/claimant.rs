//! Claimant: a process that has claimed a store, so that another one can tell whether it lives.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use sluice_store::StoreError;
use std::fs;

/// A process, as its claim names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimant {
    boot: String,
    pub(crate) pid: u32,
    pub(crate) nonce: String,
    /// None: an older program made the claim.
    life: Option<Life>,
    pub(crate) is_of_cluster: bool,
}

/// Distinguishes a process from others with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Life {
    space: String,
    started: u64,
    host: String,
}

/// This process's view of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// It lives, in this pid namespace of this machine.
    Here,
    /// It is this process.
    This,
    /// It was a process of this pid namespace, and has ended.
    Dead,
    /// It cannot be seen from here.
    Elsewhere,
}

impl Claimant {
    /// This process.
    ///
    /// # Errors
    /// If the kernel gives no random number.
    pub(crate) fn here(is_of_cluster: bool) -> Result<Claimant, StoreError> {
        let nonce = fs::read_to_string("/proc/sys/kernel/random/uuid");
        let nonce = nonce.map_err(|error| StoreError::Io("make a number of its own", error))?;
        let host = rustix::system::uname().nodename().to_string_lossy().replace('\n', " ");
        let life = Life { space: space(), started: started("self").unwrap_or(0), host };
        let pid = std::process::id();
        Ok(Claimant { boot: boot(), pid, nonce: nonce.trim().into(), life: Some(life), is_of_cluster })
    }

    /// The claim: `state` is `open` or `closed`. So many `pushes` are known to be durable.
    pub(crate) fn encode(&self, state: &str, beat: u64, pushes: u64) -> Vec<u8> {
        let Claimant { boot, pid, nonce, life, is_of_cluster } = self;
        let life = life.as_ref().map_or_else(String::new, |Life { space, started, host }| {
            let kind = if *is_of_cluster { "cluster" } else { "alone" };
            format!("{space}\n{started}\n{host}\n{kind}\n{beat}\n{pushes}\n")
        });
        format!("{state}\n{boot}\n{pid}\n{nonce}\n{life}").into_bytes()
    }

    /// The process that made an open claim, and its beat; none if the claim was closed, or is none.
    pub(crate) fn decode_open(bytes: &[u8]) -> Option<(Claimant, u64)> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.lines();
        if lines.next() != Some("open") {
            return None;
        }
        let boot = lines.next()?.to_owned();
        let pid = lines.next()?.parse().ok()?;
        let nonce = lines.next()?.to_owned();
        let mut life = || {
            let (space, started) = (lines.next()?.to_owned(), lines.next()?.parse().ok()?);
            Some(Life { space, started, host: lines.next()?.to_owned() })
        };
        let life = life();
        let is_of_cluster = lines.next() == Some("cluster");
        let beat = lines.next().and_then(|beat| beat.parse().ok()).unwrap_or(0);
        Some((Claimant { boot, pid, nonce, life, is_of_cluster }, beat))
    }

    /// How many pushes are durable, says the claim `bytes`, which may be closed; 0 if it does not say.
    pub(crate) fn decode_pushes(bytes: &[u8]) -> u64 {
        /// The line that says it.
        const LINE: usize = 9;
        let text = String::from_utf8_lossy(bytes);
        text.lines().nth(LINE).and_then(|pushes| pushes.parse().ok()).unwrap_or(0)
    }

    /// The claimant's state, as seen from here.
    pub(crate) fn sight(&self) -> Sight {
        if self.boot.is_empty() || self.boot != boot() || !numbers_are_ours() {
            return Sight::Elsewhere;
        }
        let Some(life) = &self.life else {
            // An older program says too little to know that it died; one that lives is in the way.
            let lives = self.pid != std::process::id() && crate::process_runs(self.pid);
            return if lives { Sight::Here } else { Sight::Dead };
        };
        if life.space.is_empty() || life.space != space() {
            return Sight::Elsewhere;
        }
        if self.pid == std::process::id() {
            return if Some(life.started) == started("self") { Sight::This } else { Sight::Dead };
        }
        let is_it = match started(&self.pid.to_string()) {
            Some(began) => began == life.started && crate::process_runs(self.pid),
            // A process of somebody else may be hidden.
            None => is_hidden(self.pid),
        };
        if is_it { Sight::Here } else { Sight::Dead }
    }

    /// The error that a process gets which wants the store of this claimant.
    pub(crate) fn in_the_way(&self) -> StoreError {
        let sight = self.sight();
        if self.is_of_cluster {
            let place = self.place(sight);
            return StoreError::Claimed(format!(
                "a cluster, whose owner is {place} (mount it with --cluster, or unmount it there first; -o takeover \
                 takes it from the cluster)"
            ));
        }
        match sight {
            Sight::Elsewhere => StoreError::Claimed(format!(
                "{} (unmount it there first; -o takeover takes the store from it)",
                self.place(sight)
            )),
            _ => StoreError::InUse(Some(self.pid)),
        }
    }

    fn place(&self, sight: Sight) -> String {
        let pid = self.pid;
        match &self.life {
            _ if sight != Sight::Elsewhere => format!("process {pid}"),
            Some(life) if self.boot == boot() => {
                format!("process {pid} of another container of this machine, host name {}", life.host)
            }
            Some(life) => format!("process {pid} of the machine {}", life.host),
            None => format!("process {pid} of another machine"),
        }
    }
}

/// Whether process `pid` of this machine has not ended. A zombie has.
///
/// ```
/// assert!(sluice_bucket::process_runs(std::process::id()));
/// ```
pub fn process_runs(pid: u32) -> bool {
    match stat(&pid.to_string()) {
        Some(stat) => !stat.starts_with(['Z', 'X']),
        None => is_hidden(pid),
    }
}

/// Whether there is a process `pid` that the kernel does not show to this one.
fn is_hidden(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM))
}

/// The fields of a process in `/proc`, from its state on.
fn stat(process: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// When a process began, in ticks since the machine's start.
fn started(process: &str) -> Option<u64> {
    /// The field of that time, counted from the state on.
    const STARTED: usize = 19;
    stat(process)?.split(' ').nth(STARTED)?.parse().ok()
}

/// Which start of which machine it is.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The pid namespace of this process.
fn space() -> String {
    fs::read_link("/proc/self/ns/pid").map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether `/proc` has the numbers that this process knows: a container may see those of its host.
fn numbers_are_ours() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_another_with_its_number() {
        let this = Claimant::here(false).expect("Linux");
        assert_eq!(this.sight(), Sight::This);
        let (read, beat) = Claimant::decode_open(&this.encode("open", 7, 5)).expect("it is open");
        assert_eq!((&read, beat), (&this, 7));
        assert!(Claimant::decode_open(&this.encode("closed", 7, 5)).is_none());
        assert_eq!(
            ["open", "closed"].map(|state| Claimant::decode_pushes(&this.encode(state, 7, 5))),
            [5; 2]
        );
        let with = |change: &dyn Fn(&mut Claimant)| {
            let mut other = this.clone();
            change(&mut other);
            other
        };
        let life =
            |change: &dyn Fn(&mut Life)| with(&|other| change(other.life.as_mut().expect("all is known")));
        // Killed, and begun again with the same number: as number 1 of a container.
        assert_eq!(life(&|life| life.started -= 1).sight(), Sight::Dead);
        assert_eq!(life(&|life| life.space = "pid:[1]".into()).sight(), Sight::Elsewhere);
        assert_eq!(with(&|other| other.boot = "another".into()).sight(), Sight::Elsewhere);
        assert_eq!(with(&|other| other.life = None).sight(), Sight::Dead);
        let parent = std::os::unix::process::parent_id();
        assert_eq!(with(&|other| other.pid = parent).sight(), Sight::Dead);
        let began = started(&parent.to_string()).expect("it runs");
        let mut lives = with(&|other| other.pid = parent);
        lives.life.as_mut().expect("all is known").started = began;
        assert_eq!(lives.sight(), Sight::Here);
        assert!(matches!(lives.in_the_way(), StoreError::InUse(Some(pid)) if pid == parent));
    }

    #[test]
    fn the_claim_of_an_older_program_is_read() {
        let (old, beat) = Claimant::decode_open(b"open\nboot\n77\nnonce\n").expect("it is open");
        assert_eq!((old.pid, old.nonce.as_str(), beat, old.is_of_cluster), (77, "nonce", 0, false));
        assert_eq!(old.encode("open", 3, 5), b"open\nboot\n77\nnonce\n");
        assert_eq!(Claimant::decode_pushes(b"open\nboot\n77\nnonce\n"), 0);
        for none in ["", "open", "open\nboot\nx\nnonce\n", "open\nboot\n7\n", "closed\nboot\n7\nnonce\n"] {
            assert!(Claimant::decode_open(none.as_bytes()).is_none(), "{none:?}");
        }
    }
}
