//! MountCrew: the programs, one for each directory: started, asked, given up and replaced.

use super::worker::{WorkerOrder, WorkerReply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sluice_coherence::TimedCall;
use sluice_console::failure::{Context, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::program::this_program;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// How often is looked whether a program is late.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The end of a killed program is awaited so often, a millisecond each; one that hangs in a call of a dead mount is left to init.
const WAITS: u32 = 200;
/// The removal of the base directory is tried for this time: other mounts may still have files open.
const REMOVE_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct MountCrew<'i> {
    members: Vec<CrewMember>,
    timeout: Duration,
    interrupt: &'i Interrupt,
}

struct CrewMember {
    dir: PathBuf,
    /// None after the program was given up.
    running: Option<RunningWorker>,
}

struct RunningWorker {
    child: Child,
    orders: ChildStdin,
    replies: ChildStdout,
    /// Bytes of a line that is not complete.
    rest: Vec<u8>,
    /// Lines that nobody has taken.
    ready: VecDeque<WorkerReply>,
}

impl RunningWorker {
    fn start(dir: &Path) -> Result<RunningWorker> {
        let mut command = Command::new(this_program()?);
        command.args(["child", "coherence-worker"]).arg(dir);
        // Ctrl-C in a terminal is for this process, which asks the programs to end.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        // A program that hangs in a call would keep the pipe open for whose end the reader of our messages waits.
        command.stderr(Stdio::null());
        let mut child = command.spawn().context(|| dir.display().to_string())?;
        let (Some(orders), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::from(ErrorKind::BrokenPipe).into());
        };
        rustix::io::ioctl_fionbio(&replies, true).map_err(std::io::Error::from)?;
        Ok(RunningWorker { child, orders, replies, rest: Vec::new(), ready: VecDeque::new() })
    }

    fn order(&mut self, order: &WorkerOrder) -> Result<()> {
        let mut line = serde_json::to_string(order).map_err(std::io::Error::from)?;
        line.push('\n');
        Ok(self.orders.write_all(line.as_bytes())?)
    }

    /// Takes what is in the pipe; false at its end.
    fn drain(&mut self) -> bool {
        let mut buffer = [0; 16384];
        let is_open = loop {
            match self.replies.read(&mut buffer) {
                Ok(0) => break false,
                Ok(read) => self.rest.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
        };
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            // A line that is none of ours ends the program, like a death.
            let Ok(reply) = serde_json::from_slice(&line) else { return false };
            self.ready.push_back(reply);
        }
        is_open
    }

    fn give_up(mut self) {
        let _ = self.child.kill();
        for _ in 0..WAITS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether an order is done with this reply.
fn is_last(reply: &WorkerReply) -> bool {
    !matches!(reply, WorkerReply::Begun(..) | WorkerReply::Ended(..))
}

impl<'i> MountCrew<'i> {
    /// A program on each directory.
    ///
    /// # Errors
    /// One cannot be started.
    pub(super) fn start(
        dirs: &[PathBuf],
        timeout: Duration,
        interrupt: &'i Interrupt,
    ) -> Result<MountCrew<'i>> {
        let start = |dir: &PathBuf| {
            let dir = std::path::absolute(dir).context(|| dir.display().to_string())?;
            Ok(CrewMember { running: Some(RunningWorker::start(&dir)?), dir })
        };
        Ok(MountCrew { members: dirs.iter().map(start).collect::<Result<_>>()?, timeout, interrupt })
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn dir(&self, member: usize) -> &Path {
        &self.members[member].dir
    }

    /// Gives an order to one program.
    ///
    /// # Errors
    /// No program can be started; the user wants to stop.
    pub(super) fn ask_one(&mut self, member: usize, order: &WorkerOrder) -> Result<WorkerReply> {
        let mut replies = self.ask(vec![(member, order)])?;
        Ok(replies.pop().and_then(|mut replies| replies.pop()).unwrap_or_else(|| {
            WorkerReply::Failed(format!("no answer in {} s: does the mount hang?", self.timeout.as_secs()))
        }))
    }

    /// Gives orders to programs, and adds the calls that they have made to `history`.
    ///
    /// # Errors
    /// No program can be started; the user wants to stop.
    pub(super) fn make_calls(
        &mut self,
        orders: Vec<(usize, WorkerOrder)>,
        history: &mut Vec<TimedCall>,
    ) -> Result<()> {
        let replies = self.ask(orders.iter().map(|(member, order)| (*member, order)).collect())?;
        for ((process, _), replies) in orders.iter().zip(replies) {
            let mut begun_call = None;
            for reply in replies {
                match (reply, begun_call.take()) {
                    (WorkerReply::Begun(call, begun), _) => begun_call = Some((call, begun)),
                    (WorkerReply::Ended(begun, ended, result), Some((call, _))) => history.push(TimedCall {
                        process: *process,
                        call,
                        begun,
                        ended: Some(ended),
                        result: Some(result),
                    }),
                    _ => {}
                }
            }
            if let Some((call, begun)) = begun_call {
                history.push(TimedCall { process: *process, call, begun, ended: None, result: None });
            }
        }
        Ok(())
    }

    /// All replies to each order. A program that dies or is late is given up: its last reply is missing.
    fn ask(&mut self, orders: Vec<(usize, &WorkerOrder)>) -> Result<Vec<Vec<WorkerReply>>> {
        let mut replies: Vec<Vec<WorkerReply>> = orders.iter().map(|_| Vec::new()).collect();
        for (member, order) in &orders {
            let CrewMember { dir, running } = &mut self.members[*member];
            let mut worker = match running.take() {
                Some(worker) => worker,
                None => RunningWorker::start(dir)?,
            };
            // A program that does not read any more has ended: that is seen below.
            let _ = worker.order(order);
            *running = Some(worker);
        }
        let begun = Instant::now();
        loop {
            let mut waited_for = Vec::new();
            for ((member, _), replies) in orders.iter().zip(&mut replies) {
                let running = &mut self.members[*member].running;
                let Some(worker) = running.as_mut().filter(|_| !replies.last().is_some_and(is_last)) else {
                    continue;
                };
                let is_open = worker.drain();
                replies.extend(worker.ready.drain(..));
                if replies.last().is_some_and(is_last) {
                    continue;
                }
                if !is_open || begun.elapsed() > self.timeout {
                    running.take().into_iter().for_each(RunningWorker::give_up);
                } else {
                    waited_for.push(*member);
                }
            }
            if waited_for.is_empty() {
                return Ok(replies);
            }
            if let Err(stop) = self.interrupt.check() {
                // The outcome of their calls is not known.
                for member in waited_for {
                    self.members[member].running.take().into_iter().for_each(RunningWorker::give_up);
                }
                return Err(stop);
            }
            let pipes = waited_for.iter().filter_map(|member| self.members[*member].running.as_ref());
            let mut events: Vec<_> =
                pipes.map(|worker| PollFd::new(&worker.replies, PollFlags::IN)).collect();
            match poll(&mut events, Some(&LOOK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
        }
    }

    /// Ends all programs, and removes `base` by new ones, on whatever directory that works; whether it is gone.
    pub(super) fn remove(&mut self, base: &Path) -> bool {
        for member in &mut self.members {
            member.running.take().into_iter().for_each(RunningWorker::give_up);
        }
        let never = Interrupt::new();
        let dirs: Vec<PathBuf> = self.members.iter().map(|member| member.dir.clone()).collect();
        let begun = Instant::now();
        loop {
            for dir in &dirs {
                let order = WorkerOrder::Remove(base.to_owned());
                let Ok(mut one) = MountCrew::start(std::slice::from_ref(dir), REMOVE_WITHIN, &never) else {
                    continue;
                };
                let reply = one.ask_one(0, &order);
                one.members.drain(..).filter_map(|member| member.running).for_each(RunningWorker::give_up);
                if matches!(reply, Ok(WorkerReply::Done)) {
                    return true;
                }
            }
            if begun.elapsed() > REMOVE_WITHIN {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for MountCrew<'_> {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.running.take().into_iter().for_each(RunningWorker::give_up);
        }
    }
}
