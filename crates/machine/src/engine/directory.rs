//! Directory: which CPUs wait for which line, and what happens when a CPU's turn has come.
//!
//! The queue of a line is linked through the CPUs: each waits for one line at a time. The first is due at the
//! time when its transfer reaches the line, and until then the CPU that has the line may use it. See [`super::line`]
//! for the theory.

use super::line::{Line, LineTransfer, NOBODY};
use super::{Doing, Engine, EngineStep};
use crate::spec::Kind;

/// The access for which a CPU waits at a directory.
#[derive(Clone, Copy)]
pub(crate) struct DirectoryRequest {
    line: u32,
    kind: Kind,
    /// When it was made.
    since: u64,
    /// The transfer, once it is first.
    planned: LineTransfer,
    /// The CPU that comes next, or `NOBODY`.
    next: u16,
}

impl Engine {
    /// The current CPU's transfer of a line that it needs and does not have; none if others go first.
    pub(super) fn transfer(&mut self, line: u32, kind: Kind) -> Option<LineTransfer> {
        let me = self.current;
        if let Some(request) = self.cpus[me].request {
            return Some(request.planned);
        }
        let since = self.cpus[me].clock;
        let planned = self.plan(line, kind, me, since);
        let Line { first, last, .. } = self.lines[line as usize];
        if first == NOBODY && planned.reached == since {
            return Some(planned);
        }
        self.lines[line as usize].last = me as u16;
        self.cpus[me].request = Some(DirectoryRequest { line, kind, since, planned, next: NOBODY });
        if first == NOBODY {
            self.lines[line as usize].first = me as u16;
            self.cpus[me].clock = planned.reached;
            return (self.turn() == EngineStep::Done).then_some(planned);
        }
        self.cpus[me].doing = Doing::Queued;
        if let Some(last) = &mut self.cpus[usize::from(last)].request {
            last.next = me as u16;
        }
        None
    }

    /// The current CPU has got its line: the next CPU in the queue is served. Gives the time when it was asked for.
    pub(super) fn served(&mut self, now: u64) -> u64 {
        let Some(DirectoryRequest { line, since, next, .. }) = self.cpus[self.current].request.take() else {
            return now;
        };
        self.lines[line as usize].first = next;
        let next = usize::from(next);
        if let Some(DirectoryRequest { kind, since, .. }) = self.cpus.get(next).and_then(|cpu| cpu.request) {
            let planned = self.plan(line, kind, next, since);
            let cpu = &mut self.cpus[next];
            cpu.request = cpu.request.map(|request| DirectoryRequest { planned, ..request });
            cpu.clock = planned.reached;
            cpu.doing = Doing::Ready;
            self.enqueue(next);
            self.lower_horizon(planned.reached);
        }
        since
    }

    fn plan(&self, line: u32, kind: Kind, cpu: usize, since: u64) -> LineTransfer {
        self.lines[line as usize].plan(kind, cpu, since, &self.topology, &self.prices)
    }
}
