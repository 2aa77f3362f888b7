//! HolderUpgrade: how a holder replaces the server by one of another program, and itself after it.
//!
//! # Theory
//! `sluice upgrade DIR` hands its own program, an open file, to the server, which passes it on. Until the next server is known to be able to
//! serve, the present one does.
//!
//! ```text
//!   holder ── Prepare ──> next server    reads options, key, state and the store's format; says Prepared, and waits
//!          ── Push ─────> server         brings to the store what it has, while it serves; says Pushed
//!          ── Leave ────> server         begins with no request, brings the rest to the store, closes it; says Left, ends
//!          ── Resume ───> next server    opens the store, takes the mount; says Serves
//!          executes the new program in its own place
//! ```
//!
//! Up to `Leave` nothing is lost if either of the two ends, hangs or says no: the next server is killed. A server that cannot leave says `Stays`. If
//! the next server ends before it serves, or takes too long, the holder starts one of the program that it had.
//!
//! The holder becomes the new program by execve(2), which keeps its number, its children and what it has open: its knowledge goes along as a
//! message in a socket that is the standard input of the new program.

use crate::held_process::{HeldProcess, command_of};
use crate::holder_link::{HolderLink, HolderMessage, PROTOCOL, Succession};
use crate::holder_state::{MountHolder, Upgrade, UpgradeStage};
use rustix::process::Signal;
use sluice_console::failure::in_words;
use sluice_fuse::HeldMount;
use sluice_sync::time::{Duration, Instant};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitStatus;

/// How long the next server may take until it is prepared.
const PREPARE_MAX: Duration = Duration::from_secs(10);
/// How long the server may take to push, in which it serves.
const PUSH_MAX: Duration = Duration::from_secs(60);
/// How long it may take to leave: longer than it takes to find out that it cannot.
const LEAVE_MAX: Duration = Duration::from_secs(30);
/// How long the next server may take to open the store.
const TAKE_MAX: Duration = Duration::from_secs(60);
/// How long a client may take to read one line.
const ANSWER_MAX: Duration = Duration::from_secs(1);

impl MountHolder<'_> {
    /// A client wants the server to be replaced by one of `program`.
    pub(crate) fn begin_upgrade(&mut self, program: OwnedFd, client: UnixStream, server: &HeldProcess) {
        if self.upgrade.is_some() {
            return refuse(client, "another upgrade of this mount is under way: wait for its end");
        }
        let started = HeldProcess::start(Some(&program), &self.asked.arguments, &self.place);
        let successor = match started {
            Ok(successor) => successor,
            Err(error) => return refuse(client, &in_words(&error.to_string())),
        };
        self.say_with_mount(&successor.link, |mount| HolderMessage::Prepare(mount, PROTOCOL.into()));
        // If it has ended, that is noticed elsewhere.
        let _ = server.link.say(&HolderMessage::Push);
        let began = Instant::now();
        self.upgrade = Some(Upgrade {
            program,
            client,
            successor: Some(successor),
            stage: UpgradeStage::Prepares,
            began,
            deadline: began + PREPARE_MAX,
            version: None,
            has_pushed: false,
        });
    }

    /// Says a message with the mount in it. A server that has ended hears nothing, and is reaped elsewhere.
    pub(crate) fn say_with_mount(
        &mut self,
        link: &HolderLink,
        word: impl FnOnce(HeldMount) -> HolderMessage,
    ) {
        let Some(mount) = self.mount.take() else { return };
        let word = word(mount);
        let _ = link.say(&word);
        if let HolderMessage::Resume(mount, _) | HolderMessage::Prepare(mount, _) = word {
            self.mount = Some(mount);
        }
    }

    /// The server has pushed.
    pub(crate) fn note_push(&mut self, server: &HeldProcess) {
        self.upgrade.iter_mut().for_each(|upgrade| upgrade.has_pushed = true);
        self.let_leave(server);
    }

    /// Hears what the next server says.
    pub(crate) fn hear_successor(&mut self, server: &HeldProcess) {
        let Some(upgrade) = &mut self.upgrade else { return };
        let Some(successor) = &mut upgrade.successor else { return };
        match successor.hear() {
            Some(HolderMessage::Prepared(version)) => {
                upgrade.version = Some(version);
                upgrade.deadline = upgrade.began + PUSH_MAX;
                self.let_leave(server);
            }
            Some(HolderMessage::Fails(why)) => self.give_upgrade_up(&why),
            // How it ended tells its status.
            _ => {}
        }
    }

    /// Has the server leave, if the next one is prepared.
    fn let_leave(&mut self, server: &HeldProcess) {
        if let Some(upgrade) = &mut self.upgrade
            && upgrade.stage == UpgradeStage::Prepares
            && upgrade.has_pushed
            && upgrade.version.is_some()
        {
            upgrade.stage = UpgradeStage::Leaves;
            upgrade.deadline = Instant::now() + LEAVE_MAX;
            let _ = server.link.say(&HolderMessage::Leave);
        }
    }

    /// A child has ended: the next server before its time?
    pub(crate) fn reap_successor(&mut self) {
        self.killed.retain(|process| process.ended().is_ok_and(|ended| ended.is_none()));
        let successor = self.upgrade.as_ref().and_then(Upgrade::successor);
        if let Some(successor) = successor
            && let Ok(Some(status)) = successor.ended()
        {
            let why = successor.end_in_words(status);
            self.upgrade.iter_mut().for_each(|upgrade| upgrade.successor = None);
            self.give_upgrade_up(&format!("the new program cannot serve: {why}"));
        }
    }

    /// The server has ended. True if the server left on purpose and its successor serves the mount from now on.
    pub(crate) fn replace(&mut self, server: &mut HeldProcess) -> bool {
        let Some(upgrade) = &mut self.upgrade else { return false };
        if !server.life.left || upgrade.stage != UpgradeStage::Leaves || self.is_stopping {
            return false;
        }
        let Some(successor) = upgrade.successor.take() else { return false };
        let version = upgrade.version.as_deref().unwrap_or_default();
        self.restarts.count += 1;
        self.restarts.cause = Some(format!("upgraded from {} to {version}", env!("CARGO_PKG_VERSION")));
        upgrade.stage = UpgradeStage::TakesOver;
        upgrade.deadline = Instant::now() + TAKE_MAX;
        *server = successor;
        let restarts = self.restarts.clone();
        self.say_with_mount(&server.link, |mount| HolderMessage::Resume(mount, restarts));
        true
    }

    /// The time for this stage of the upgrade is over.
    pub(crate) fn upgrade_is_late(&mut self, server: &HeldProcess) {
        let Some(upgrade) = &self.upgrade else { return };
        if upgrade.stage == UpgradeStage::TakesOver {
            server.signal(Signal::KILL);
        }
        let why = late(upgrade.stage, upgrade.version.is_some());
        self.give_upgrade_up(why);
    }

    /// The server has ended: so has an upgrade that is under way.
    pub(crate) fn end_upgrade(&mut self, server: &HeldProcess, status: ExitStatus) {
        if self.upgrade.is_some() {
            let why = server.end_in_words(status);
            self.give_upgrade_up(&format!("the server ended meanwhile: {why}"));
        }
    }

    /// No upgrade is under way from here on: the client is told `why`, and the next server is killed.
    pub(crate) fn give_upgrade_up(&mut self, why: &str) {
        let Some(upgrade) = self.upgrade.take() else { return };
        if let Some(successor) = upgrade.successor {
            successor.signal(Signal::KILL);
            self.killed.push(successor);
        }
        refuse(upgrade.client, why);
    }

    /// A server serves. If it is that of a new program, the holder becomes that, too, and returns only if it cannot.
    pub(crate) fn conclude_upgrade(&mut self, server: &HeldProcess) {
        let is_new = |upgrade: &mut Upgrade| upgrade.stage == UpgradeStage::TakesOver;
        let Some(Upgrade { program, client, .. }) = self.upgrade.take_if(is_new) else { return };
        let cause = self.restarts.cause.clone().unwrap_or_default();
        // From here on servers are of the new program.
        self.program = Some(program);
        let failed = client.try_clone().and_then(|client| self.become_program(server, client));
        if let Err(error) = failed {
            self.begin_log();
            log::warn!("{}: the holder is still of the old program: {error}", self.asked.dir.display());
            answer(client, &format!("ok\n{cause}\n"));
        }
    }

    /// Executes the program of the servers in the place of this one.
    ///
    /// # Errors
    /// Always: it does not return if it could.
    fn become_program(&self, server: &HeldProcess, client: UnixStream) -> io::Result<()> {
        let Some(mount) = &self.mount else { return Err(io::ErrorKind::NotConnected.into()) };
        let mount = HeldMount {
            state: mount.state.clone(),
            device: mount.device.try_clone()?,
            changes: mount.changes.try_clone()?,
        };
        let succession = Succession {
            mount,
            restarts: self.restarts.clone(),
            place: self.place.clone(),
            server: server.number(),
            link: server.link.socket()?,
            client,
        };
        let (link, theirs) = HolderLink::pair()?;
        link.say(&HolderMessage::Succeed(Box::new(succession)))?;
        drop(link);
        let keeps =
            |word: &std::ffi::OsString| if word == "--held" { "--keeps".into() } else { word.clone() };
        let mut command = command_of(self.program.as_ref());
        command.args(self.asked.arguments.iter().map(keeps)).stdin(theirs).current_dir(Path::new("/"));
        Err(command.exec())
    }
}

/// The reason for which an upgrade takes too long at this stage. The next server `is_prepared` or not.
fn late(stage: UpgradeStage, is_prepared: bool) -> &'static str {
    match stage {
        UpgradeStage::Prepares if !is_prepared => "the new program was not ready within 10 s",
        UpgradeStage::Prepares => "the store's disk takes too long: try again",
        UpgradeStage::Leaves => "the server does not leave: see whether it hangs (sluice list)",
        UpgradeStage::TakesOver => "the new program did not serve within 60 s",
    }
}

/// Tells a client why there was no upgrade.
fn refuse(client: UnixStream, why: &str) {
    answer(client, &format!("not upgraded, and the mount goes on as before: {why}\n"));
}

/// Answers a client, which may have gone.
pub(crate) fn answer(mut client: UnixStream, text: &str) {
    let _ = client.set_write_timeout(Some(ANSWER_MAX)).and_then(|()| client.write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_that_is_late_says_who_keeps_it_waiting() {
        let told = [
            late(UpgradeStage::Prepares, false),
            late(UpgradeStage::Prepares, true),
            late(UpgradeStage::Leaves, true),
            late(UpgradeStage::TakesOver, true),
        ];
        assert_eq!(told[0], "the new program was not ready within 10 s");
        assert_eq!(told[1], "the store's disk takes too long: try again");
        assert_eq!(told[2], "the server does not leave: see whether it hangs (sluice list)");
        assert_eq!(told[3], "the new program did not serve within 60 s");
    }
}
