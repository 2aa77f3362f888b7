//! Overdue: requests that have had no answer for long, and notices that a kernel has not taken in, are told to people, once each.

use super::{Relay, State};
use sluice_fuse::internal::abi::InHeader;
use sluice_fuse::opcode;
use sluice_sync::time::{Duration, Instant};
use zerocopy::FromBytes;

/// So long a request waits, or a notice, before it is told of.
const OVERDUE: Duration = Duration::from_secs(60);
/// So many are told of at a time.
const TOLD_MAX: usize = 8;

/// Whether a request of this kind may wait for a program.
fn waits_for_a_program(code: u32) -> bool {
    code == opcode::SETLKW
}

impl State {
    /// A line for each overdue request that was not reported yet.
    fn overdue(&mut self, now: Instant) -> Vec<String> {
        let waits_for = match &self.server {
            None => "there is no server",
            Some(_) => "its server has not answered",
        };
        let is_due = |request: &&mut super::InFlight| {
            !request.is_told
                && !request.is_behind
                && !waits_for_a_program(request.opcode)
                && now.saturating_duration_since(request.arrival) >= OVERDUE
        };
        let due = self.in_flight.values_mut().filter(is_due).take(TOLD_MAX);
        let line = |request: &mut super::InFlight| {
            request.is_told = true;
            let nodeid = InHeader::read_from_prefix(&request.message).map_or(0, |(header, _)| header.nodeid);
            let name = opcode::name(request.opcode);
            format!("{name} of file {nodeid} has waited for {} s: {waits_for}", OVERDUE.as_secs())
        };
        due.map(line).collect()
    }
}

impl Relay {
    /// Tells of what waits too long. The caller calls this at intervals.
    pub fn tell_of_overdue(&self) {
        let now = Instant::now();
        let mut lines = self.0.state.lock().overdue(now);
        let (notices, oldest) = self.0.announcer.in_the_kernel(now);
        if oldest >= OVERDUE && !lines.is_empty() {
            lines.push(format!(
                "the kernel has not taken in {notices} notices, one for {} s",
                oldest.as_secs()
            ));
        }
        lines.iter().for_each(|line| log::warn!("{line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::InFlight;
    use super::*;

    #[test]
    fn a_request_that_waits_too_long_is_told_of_once_and_a_lock_is_not() {
        let mut state = State::default();
        let arrival = Instant::now();
        for (unique, code) in [(2, opcode::WRITE), (4, opcode::SETLKW)] {
            let message = crate::relay::tests::message(code, 7, &[]);
            let request = InFlight {
                order: unique,
                is_behind: false,
                is_told: false,
                message,
                slot: None,
                changes: 0,
                opcode: code,
                arrival,
                void: 0,
                number_in_dir: 0,
                xattr_changes: 0,
                is_old: false,
            };
            state.in_flight.insert(unique, request);
        }
        assert!(state.overdue(arrival + OVERDUE / 2).is_empty());
        assert_eq!(
            state.overdue(arrival + OVERDUE),
            ["WRITE of file 7 has waited for 60 s: there is no server"]
        );
        assert!(state.overdue(arrival + 2 * OVERDUE).is_empty());
    }
}
