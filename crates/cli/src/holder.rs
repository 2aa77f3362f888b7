//! Holder: the process that keeps a mount when its server dies, and starts the next server.
//!
//! # Theory
//! `sluice mount STORE DIR` leaves two processes behind. The holder keeps `/dev/fuse`, and memory in which the server notes the changes that
//! it answers; it does nothing else. The server is its child: when that ends without having said that it does so as it should, and the mount
//! is still there, the next one gets both, opens the store and goes on. Meanwhile programs wait in their calls.
//!
//! ```text
//!   sluice mount ──> holder ──> server ──> mounts, and gives the mount to the holder
//!                      │          x  killed
//!                      └──────> server ──> opens the store, takes the mount, answers what was not answered
//! ```
//!
//! A signal that ends a mount is handed on to the server. A server that cannot begin is tried again, a few times and at longer intervals; then the
//! holder ends, and with it the mount (`ENOTCONN`). While the disk of the store is full the holder goes on trying, as somebody may make room; it
//! says so once in the log, and to clients that ask ([`Unserved`]).
//!
//! A server that is to be replaced by one of another program hands the mount over instead (`holder_upgrade.rs`).
//!
//! A server that hangs is ended, if a watchdog is wanted (`watchdog.rs`).
//!
//! # Cost
//! One thread, which sleeps in poll(2) until the server ends, says something, or a signal comes.

use crate::announce;
use crate::failures::MEANWHILE;
use crate::footing::{Footing, HOLDABLE, can_be_held};
use crate::held_process::HeldProcess;
use crate::holder_link::{HolderLink, HolderMessage, Succession};
use crate::holder_state::{Holding, MountHolder, Upgrade};
use crate::holder_upgrade::answer;
use crate::nowhere::{leave_the_pipes, nowhere};
use crate::ram_options::MountList;
use crate::system_log;
use crate::watchdog::{WatchStep, Watchdog, threads_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use sluice_console::failure::{Failure, Result, in_words};
use sluice_fuse::control::Unserved;
use sluice_fuse::{HeldMount, Restarts, Users, unmount_at};
use sluice_sync::time::{Duration, Instant};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How long the holder waits before it starts a server again: after one that has served, then after the first, the second ... that could
/// not go on. After the last of these it gives up.
const WAITS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];
/// How long it waits after one that could not go on for want of room on the disk of the store. It does not give up then.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// So many servers that a signal ended before they served count as one that could not go on: somebody kills them, or memory is short.
const KILLED: usize = 4;
/// The first Linux that has what a mount needs to outlive its server.
const KERNEL_MIN: (u32, u32) = (6, 16);

/// Whether a mount with these options is to have a holder; `in_background`: if nothing is said.
///
/// # Errors
/// It is to have one, and cannot.
pub(crate) fn is_wanted(list: &MountList, place: Footing, in_background: bool) -> Result<bool> {
    if list.watchdog.is_some() && list.holder == Some(false) {
        let text = "mount option watchdog: only with a holder: leave holder=off out";
        return Err(Failure::Usage(text.into()));
    }
    let wanted = list.holder.or(list.watchdog.map(|_| true));
    match (wanted, obstacle(list, place, kernel())) {
        (Some(true), Some(why)) => {
            let name = if list.holder.is_some() { "holder=on" } else { "watchdog" };
            Err(Failure::Usage(format!("mount option {name}: {why}")))
        }
        (Some(wanted), _) => Ok(wanted),
        (None, obstacle) => Ok(in_background && obstacle.is_none()),
    }
}

/// Why a mount on a `kernel` can have no holder, if so.
fn obstacle(list: &MountList, place: Footing, kernel: Option<(u32, u32)>) -> Option<&'static str> {
    match () {
        () if !can_be_held(place, &list.mount) => Some(HOLDABLE),
        () if list.ram.store.volatile => {
            Some("not with volatile: such a store is whole only when it is closed")
        }
        () if list.is_tracked => Some("not with track, which is in the memory of the server"),
        () if kernel.is_some_and(|kernel| kernel < KERNEL_MIN) => {
            Some("this kernel cannot give a mount to another server: Linux 6.16 or newer can")
        }
        () => None,
    }
}

/// The version of the kernel.
fn kernel() -> Option<(u32, u32)> {
    let system = rustix::system::uname();
    let mut numbers = system.release().to_str().ok()?.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The events that a holder waits for.
struct Events {
    stops: bool,
    ends: bool,
    says: bool,
    successor_says: bool,
    /// A request waits that nobody has read.
    asks: bool,
}

/// Keeps a mount for as long as it lasts. Returns the exit status of its last server.
///
/// # Errors
/// No server can be started, or none gets so far that it serves.
pub(crate) fn hold(asked: &Holding<'_>) -> Result<u8> {
    let mut holder = MountHolder::new(asked)?;
    let server = holder.start()?;
    holder.keep(server)
}

/// Keeps a mount, as [`hold`] does, in the program that a holder has executed in its own place. Standard input tells what it must
/// know.
///
/// # Errors
/// Errors of [`hold`].
pub(crate) fn keep_on(asked: &Holding<'_>) -> Result<u8> {
    let mut holder = MountHolder::new(asked)?;
    let link = HolderLink::of_stdin(&nowhere()?)?;
    let Some(HolderMessage::Succeed(succession)) = link.hear()? else {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    };
    let Succession { mount, restarts, place, server, link, client } = *succession;
    answer(client, &format!("ok\n{}\n", restarts.cause.as_deref().unwrap_or_default()));
    (holder.mount, holder.restarts, holder.place, holder.has_left) = (Some(mount), restarts, place, true);
    let server = HeldProcess::known(server, link).ok_or(io::ErrorKind::InvalidData);
    holder.keep(server.map_err(io::Error::from)?)
}

impl<'a> MountHolder<'a> {
    fn new(asked: &'a Holding<'a>) -> Result<MountHolder<'a>> {
        Ok(MountHolder {
            asked,
            program: None,
            place: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            mount: None,
            restarts: Restarts::default(),
            stops: told_of(&[SIGTERM, SIGINT, SIGHUP])?,
            ends: told_of(&[SIGCHLD])?,
            is_stopping: false,
            has_left: false,
            upgrade: None,
            killed: Vec::new(),
            watchdog: asked.watchdog.map(Watchdog::new),
            logs: false,
            waiting: None,
        })
    }

    /// Keeps the mount that `server` serves, with one server after the other.
    fn keep(mut self, mut server: HeldProcess) -> Result<u8> {
        let mut failures = 0;
        loop {
            let status = self.await_end(&mut server)?;
            let Some(mount) = self.mount.as_ref().filter(|_| !server.life.is_over) else {
                return end_like(status);
            };
            if !mount.is_connected() {
                return Ok(0);
            }
            let count = match status.signal() {
                _ if server.life.lacks_room => 0,
                Some(_) => 1,
                None => KILLED,
            };
            failures = if server.life.served { 0 } else { failures + count };
            // Attempts on a full disk may be thousands, and replace nobody.
            self.restarts.count += u64::from(!server.life.lacks_room);
            let why = server.end_in_words(status);
            let wait = if server.life.lacks_room {
                self.wait_for_room(&why);
                Some(ROOM_WAIT)
            } else {
                WAITS.get(failures / KILLED).copied()
            };
            self.restarts.cause = Some(why.clone());
            match wait {
                Some(wait) if !self.is_stopping => self.wait_for_stop(wait)?,
                Some(_) => {}
                None => {
                    let dir = self.asked.dir.display();
                    let text =
                        format!("{dir}: no server can go on with the mount, and calls there fail now: {why}");
                    if self.asked.detach {
                        self.begin_log();
                        log::error!("{text}");
                    }
                    return Err(Failure::Failed(text));
                }
            }
            if !self.mount.as_ref().is_some_and(HeldMount::is_connected) {
                return Ok(0);
            }
            if self.is_stopping {
                // Without a server nobody else does. Programs that use the mount find it dead.
                let _ = unmount_at(self.asked.dir, Users::LetFinish);
                return Ok(0);
            }
            server = self.start()?;
        }
    }

    /// Says once, until a server serves again, that the mount waits because the disk is full: `why`.
    fn wait_for_room(&mut self, why: &str) {
        if self.waiting.is_some() {
            return;
        }
        self.begin_log();
        let why = in_words(why).replace(MEANWHILE, "");
        let line = format!(
            "{why}; tried again every {} s, until `sluice umount` ends the mount",
            ROOM_WAIT.as_secs()
        );
        log::error!("{}: calls wait: {line}", self.asked.dir.display());
        // A client that finds nobody to ask is told that there is no server.
        self.waiting = Some(self.mount.as_ref().and_then(|mount| Unserved::answer(mount, &line).ok()));
    }

    /// Starts a server.
    fn start(&mut self) -> Result<HeldProcess> {
        let server = HeldProcess::start(self.program.as_ref(), &self.asked.arguments, &self.place)?;
        let restarts = self.restarts.clone();
        match self.mount {
            // A server that has ended already is waited for later.
            None => drop(server.link.say(&HolderMessage::Mount)),
            Some(_) => self.say_with_mount(&server.link, |mount| HolderMessage::Resume(mount, restarts)),
        }
        Ok(server)
    }

    /// Waits until the server has ended. An upgrade replaces the process in `server`.
    fn await_end(&mut self, server: &mut HeldProcess) -> Result<ExitStatus> {
        // The server may have ended before this program was executed.
        let mut events = Events { stops: false, ends: true, says: false, successor_says: false, asks: false };
        self.watchdog.iter_mut().for_each(Watchdog::rest);
        loop {
            if events.says {
                self.hear(server);
            }
            if events.successor_says {
                self.hear_successor(server);
            }
            if events.stops {
                drain(&self.stops);
                self.is_stopping = true;
                self.give_upgrade_up("the mount was told to end");
                server.signal(Signal::TERM);
            }
            if events.ends {
                drain(&self.ends);
                self.reap_successor();
                if let Some(status) = server.ended()? {
                    while server.hears {
                        self.hear(server);
                    }
                    if !self.replace(server) {
                        self.end_upgrade(server, status);
                        return Ok(status);
                    }
                }
            }
            if self.upgrade.as_ref().is_some_and(|upgrade| upgrade.left().is_zero()) {
                self.upgrade_is_late(server);
            }
            self.watch(server, events.asks);
            events = self.await_events(server)?;
        }
    }

    /// Looks whether the server hangs, if it is time for that.
    fn watch(&mut self, server: &mut HeldProcess, asks: bool) {
        let (Some(dog), now) = (&mut self.watchdog, Instant::now()) else { return };
        if self.upgrade.is_some() || !server.life.served {
            return dog.rest();
        }
        if asks {
            dog.request_came(now);
        }
        if dog.next().is_none_or(|next| now < next) {
            return;
        }
        match dog.look(now) {
            // A server that does not hear it is replaced soon.
            WatchStep::Ask => drop(server.link.say(&HolderMessage::Look)),
            WatchStep::Replace => {
                let seconds = dog.seconds();
                dog.rest();
                self.begin_log();
                let (dir, pid) = (self.asked.dir.display(), server.number());
                log::error!(
                    "{dir}: the server, process {pid}, has answered nothing for {seconds} s and is replaced"
                );
                threads_of(pid).iter().for_each(|line| log::error!("{dir}: {line}"));
                server.life.failure =
                    Some(format!("the watchdog ended a server that had answered nothing for {seconds} s"));
                server.signal(Signal::KILL);
            }
        }
    }

    pub(crate) fn begin_log(&mut self) {
        if !std::mem::replace(&mut self.logs, true) {
            // Without a log nobody is told.
            let _ = system_log::begin(self.asked.level, self.asked.detach);
        }
    }

    /// Waits for something to do.
    fn await_events(&self, server: &HeldProcess) -> Result<Events> {
        let successor = self.upgrade.as_ref().and_then(Upgrade::successor);
        let mut ready = vec![PollFd::new(&self.stops, PollFlags::IN), PollFd::new(&self.ends, PollFlags::IN)];
        let is_idle = |dog: &&Watchdog| dog.is_idle() && server.life.served && self.upgrade.is_none();
        let dog = self.watchdog.as_ref().filter(is_idle);
        let device = dog.and(self.mount.as_ref()).map(|mount| &mount.device);
        let (server, successor) = (server.listening(), successor.and_then(HeldProcess::listening));
        ready.extend(server.map(|link| PollFd::new(link, PollFlags::IN)));
        ready.extend(successor.map(|link| PollFd::new(link, PollFlags::IN)));
        ready.extend(device.map(|device| PollFd::new(device, PollFlags::IN)));
        let next = self.watchdog.as_ref().and_then(Watchdog::next);
        let look = next.map(|next| next.saturating_duration_since(Instant::now()));
        let limit = self.upgrade.as_ref().map(Upgrade::left).into_iter().chain(look).min();
        let limit = limit.map(Timespec::try_from);
        let limit = limit.transpose().map_err(io::Error::other)?;
        match poll(&mut ready, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let mut ready = ready.iter().map(|source| !source.revents().is_empty());
        let mut next = |is_there: bool| is_there && ready.next().unwrap_or(false);
        Ok(Events {
            stops: next(true),
            ends: next(true),
            says: next(server.is_some()),
            successor_says: next(successor.is_some()),
            asks: next(device.is_some()),
        })
    }

    /// Takes what the server says.
    fn hear(&mut self, server: &mut HeldProcess) {
        match server.hear() {
            Some(HolderMessage::Hold(mount)) => self.mount = Some(mount),
            Some(HolderMessage::Serves) => {
                server.life.served = true;
                if self.waiting.take().is_some() {
                    log::info!("{}: served again", self.asked.dir.display());
                }
                self.leave();
                self.conclude_upgrade(server);
            }
            Some(HolderMessage::Ends) => server.life.is_over = true,
            Some(HolderMessage::Left) => server.life.left = true,
            Some(HolderMessage::Fails(why)) => server.life.failure = Some(why),
            Some(HolderMessage::LacksRoom) => server.life.lacks_room = true,
            Some(HolderMessage::Upgrade(program, client)) => self.begin_upgrade(program, client, server),
            Some(HolderMessage::Pushed) => self.note_push(server),
            Some(HolderMessage::Stays(why)) => self.give_upgrade_up(&why),
            Some(HolderMessage::Answered(number, serving)) => {
                let is_busy = serving > 0 || self.mount.as_ref().is_some_and(has_requests);
                self.watchdog.iter_mut().for_each(|dog| dog.heard(number, is_busy, Instant::now()));
            }
            // No server says that.
            Some(_) => server.hears = false,
            None => {}
        }
    }

    /// Leaves the terminal as a daemon does, once the mount is there, and tells the process that waits for that.
    fn leave(&mut self) {
        if self.asked.detach && !std::mem::replace(&mut self.has_left, true) {
            // A failure here leaves a terminal or a directory in use, and no mount in danger.
            let _ = rustix::process::setsid();
            let _ = std::env::set_current_dir("/");
            // Not before: a terminal that closes then must end no mount. Its reader may have gone.
            let _ = announce();
            let _ = leave_the_pipes();
        }
    }

    /// Waits, but no longer than until a signal comes or the mount is gone.
    fn wait_for_stop(&mut self, wait: Duration) -> Result<()> {
        let Some(mount) = &self.mount else { return Ok(()) };
        let mut ready =
            [PollFd::new(&self.stops, PollFlags::IN), PollFd::new(&mount.device, PollFlags::empty())];
        let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
        let _ = poll(&mut ready, Some(&wait));
        self.is_stopping |= !ready[0].revents().is_empty();
        Ok(())
    }
}

/// A stream that is readable when one of `signals` has come.
fn told_of(signals: &[i32]) -> Result<UnixStream> {
    let (told, tells) = UnixStream::pair()?;
    told.set_nonblocking(true)?;
    for &signal in signals {
        pipe::register(signal, tells.try_clone()?)?;
    }
    Ok(told)
}

/// Reads all that there is.
fn drain(mut stream: &UnixStream) {
    while stream.read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
}

/// Whether the kernel has a request that nobody has read.
fn has_requests(mount: &HeldMount) -> bool {
    let device = mount.device.as_fd();
    let mut device = [PollFd::new(&device, PollFlags::IN)];
    // Without a wait it cannot fail.
    let _ = poll(&mut device, Some(&Timespec::default()));
    device[0].revents().contains(PollFlags::IN)
}

/// Ends as the server did.
fn end_like(status: ExitStatus) -> Result<u8> {
    if let Some(signal) = status.signal() {
        // It returns only for a signal that ends nobody.
        emulate_default_handler(signal)?;
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram_options::parse_for;

    #[test]
    fn a_mount_has_a_holder_where_it_can_be_kept() {
        let why = |list: &str, kernel| {
            let list = parse_for(true, list).expect("valid");
            obstacle(&list, Footing::Directory, Some(kernel)).unwrap_or_default()
        };
        assert_eq!(why("ro", KERNEL_MIN), "");
        assert!(why("ro", (6, 15)).contains("this kernel cannot give a mount to another server"));
        assert!(why("volatile", KERNEL_MIN).contains("not with volatile"));
        assert!(kernel().is_some_and(|kernel| kernel > (2, 6)));
    }
}
