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
//! holder ends, and with it the mount (`ENOTCONN`).
//!
//! # Cost
//! One thread, which sleeps in poll(2) until the server ends, says something, or a signal comes.

use crate::footing::{Footing, HOLDABLE, can_be_held};
use crate::holder_link::{HolderLink, HolderMessage};
use crate::nowhere::leave_the_pipes;
use crate::ram_options::MountList;
use crate::system_log;
use log::LevelFilter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use sluice_console::failure::{Context, Failure, Result};
use sluice_fuse::{HeldMount, Restarts, Users, unmount_at};
use sluice_sync::time::Duration;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// How long the holder waits before it starts a server again: after one that has served, then after the first, the second ... that could
/// not go on. After the last of these it gives up.
const WAITS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];
/// So many servers that a signal ended before they served count as one that could not go on: somebody kills them, or memory is short.
const KILLED: usize = 4;
/// The first Linux that has what a mount needs to outlive its server.
const KERNEL_MIN: (u32, u32) = (6, 16);

/// What a holder is asked for.
pub(crate) struct Holding<'a> {
    pub(crate) dir: &'a Path,
    /// The arguments of the server.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) detach: bool,
    pub(crate) level: LevelFilter,
}

/// Whether a mount with these options is to have a holder; `in_background`: if nothing is said.
///
/// # Errors
/// It is to have one, and cannot.
pub(crate) fn is_wanted(list: &MountList, place: Footing, in_background: bool) -> Result<bool> {
    match (list.holder, obstacle(list, place, kernel())) {
        (Some(true), Some(why)) => Err(Failure::Usage(format!("mount option holder=on: {why}"))),
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

/// How the life of a server went.
#[derive(Default)]
struct ServerLife {
    /// It has got so far that it serves.
    served: bool,
    /// It ends as it should.
    is_over: bool,
    /// It could not go on, and why.
    failure: Option<String>,
}

struct MountHolder<'a> {
    asked: &'a Holding<'a>,
    /// The working directory at the start: paths in options may be relative to it.
    place: PathBuf,
    mount: Option<HeldMount>,
    restarts: Restarts,
    /// Readable when a signal came that is to end the mount.
    stops: UnixStream,
    /// Readable when a server may have ended.
    ends: UnixStream,
    is_stopping: bool,
    /// Terminal and pipes are left.
    has_left: bool,
}

/// Keeps a mount for as long as it lasts. Returns the exit status of its last server.
///
/// # Errors
/// No server can be started, or none gets so far that it serves.
pub(crate) fn hold(asked: &Holding<'_>) -> Result<u8> {
    let mut holder = MountHolder {
        asked,
        place: std::env::current_dir().unwrap_or_else(|_| "/".into()),
        mount: None,
        restarts: Restarts::default(),
        stops: told_of(&[SIGTERM, SIGINT, SIGHUP])?,
        ends: told_of(&[SIGCHLD])?,
        is_stopping: false,
        has_left: false,
    };
    let mut failures = 0;
    loop {
        let (status, life) = holder.life_of_server()?;
        let Some(mount) = holder.mount.as_ref().filter(|_| !life.is_over) else { return end_like(status) };
        if !is_connected(mount) {
            return Ok(0);
        }
        let count = if status.signal().is_some() { 1 } else { KILLED };
        failures = if life.served { 0 } else { failures + count };
        holder.restarts.count += 1;
        let why = life.failure.unwrap_or_else(|| in_words(status));
        let wait = WAITS.get(failures / KILLED).copied();
        holder.restarts.cause = Some(why.clone());
        match wait {
            Some(wait) if !holder.is_stopping => holder.wait_for_stop(wait)?,
            Some(_) => {}
            None => {
                let dir = holder.asked.dir.display();
                let text =
                    format!("{dir}: no server can go on with the mount, and calls there fail now: {why}");
                if asked.detach && system_log::begin(asked.level, true).is_ok() {
                    log::error!("{text}");
                }
                return Err(Failure::Failed(text));
            }
        }
        if holder.is_stopping {
            // Without a server nobody else does. Programs that use the mount find it dead.
            let _ = unmount_at(asked.dir, Users::LetFinish);
            return Ok(0);
        }
    }
}

impl MountHolder<'_> {
    /// Starts a server, and waits until it has ended.
    fn life_of_server(&mut self) -> Result<(ExitStatus, ServerLife)> {
        let (link, theirs) = HolderLink::pair()?;
        let mut server = self.start(theirs)?;
        let word = match self.mount.take() {
            None => HolderMessage::Mount,
            Some(mount) => HolderMessage::Resume(mount, self.restarts.clone()),
        };
        // A server that has ended already is waited for below.
        let _ = link.say(&word);
        if let HolderMessage::Resume(mount, _) = word {
            self.mount = Some(mount);
        }
        let mut life = ServerLife::default();
        let mut hears = true;
        loop {
            let mut ready = [
                PollFd::new(&self.stops, PollFlags::IN),
                PollFd::new(&self.ends, PollFlags::IN),
                PollFd::new(&link, PollFlags::IN),
            ];
            let sources = if hears { &mut ready[..] } else { &mut ready[..2] };
            match poll(sources, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            let [stops, ends, says] = ready.map(|source| !source.revents().is_empty());
            if says && hears {
                hears = self.hear(&link, &mut life);
            }
            if stops {
                drain(&self.stops);
                self.is_stopping = true;
                // A server that has ended already is reaped below.
                let _ = kill_process(pid_of(&server), Signal::TERM);
            }
            if ends {
                drain(&self.ends);
                if let Some(status) = server.try_wait()? {
                    while hears {
                        hears = self.hear(&link, &mut life);
                    }
                    return Ok((status, life));
                }
            }
        }
    }

    fn start(&self, link: OwnedFd) -> Result<Child> {
        // This very program, also when its file was replaced.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("sluice").args(&self.asked.arguments).stdin(Stdio::from(link));
        let is_there = self.place.is_dir();
        command.current_dir(if is_there { &self.place } else { Path::new("/") });
        command.spawn().context(|| "cannot start the serving process")
    }

    /// Takes what the server says. False: it says no more.
    fn hear(&mut self, link: &HolderLink, life: &mut ServerLife) -> bool {
        match link.hear() {
            Ok(Some(HolderMessage::Hold(mount))) => self.mount = Some(mount),
            Ok(Some(HolderMessage::Serves)) => {
                life.served = true;
                self.leave();
            }
            Ok(Some(HolderMessage::Ends)) => life.is_over = true,
            Ok(Some(HolderMessage::Fails(why))) => life.failure = Some(why),
            Ok(Some(HolderMessage::Mount | HolderMessage::Resume(..)) | None) | Err(_) => return false,
        }
        true
    }

    /// As a daemon does, once the mount is there.
    fn leave(&mut self) {
        if self.asked.detach && !std::mem::replace(&mut self.has_left, true) {
            // A failure here leaves a terminal or a directory in use, and no mount in danger.
            let _ = rustix::process::setsid();
            let _ = std::env::set_current_dir("/");
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

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Whether the kernel still has the mount.
fn is_connected(mount: &HeldMount) -> bool {
    let device = mount.device.as_fd();
    let mut device = [PollFd::new(&device, PollFlags::empty())];
    // Without a wait it cannot fail.
    let _ = poll(&mut device, Some(&Timespec::default()));
    !device[0].revents().contains(PollFlags::ERR)
}

/// How a server ended.
fn in_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal} ended the server"),
        (None, code) => format!("the server ended with status {}", code.unwrap_or(1)),
    }
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

    #[test]
    fn the_end_of_a_server_is_told_in_words() {
        assert_eq!(in_words(ExitStatus::from_raw(9)), "signal 9 ended the server");
        assert_eq!(in_words(ExitStatus::from_raw(101 << 8)), "the server ended with status 101");
    }
}
