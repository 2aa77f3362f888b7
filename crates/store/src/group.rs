//! Group: callers of [`Store::sync`](crate::Store::sync) that share one push.
//!
//! # Theory
//! A caller joins the group that gathers. One member *leads*: it closes the group, so that later callers gather anew, and pushes
//! for all; the others sleep until their push has ended, and are woken for nothing else.
//! ```text
//!   in flight   [ leader . . . ]        writes and flushes
//!   gathering   [ . . . ]               sleep; the first that may lead does
//! ```
//! A group goes when no push is in flight, or when it has half as many members as there have been callers lately: so one thread
//! waits for nobody, two flush side by side, and sixteen make two groups of eight. Without that the first that comes back would
//! push alone, as often as there may be pushes in flight.
//!
//! # Cost
//! A member that does not lead: one sleep.

use crate::log::IN_FLIGHT;
use sluice_sync::{Arc, Condvar, LockClass, Mutex};

static GROUP: LockClass = LockClass::new("store.group");

/// The event that ends a member's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberWait {
    Gathers,
    /// One of the members is to lead; the first that wakes does.
    Wanted,
    /// The push has ended: whether it succeeded.
    Ended(bool),
}

/// Some callers, and the push that they wait for.
pub(crate) struct Group {
    turn: Mutex<MemberWait>,
    changed: Condvar,
}

/// The outcome of a member's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberEnd {
    /// The member must lead.
    Lead,
    /// The push has ended: whether it succeeded.
    Ended(bool),
}

impl Default for Group {
    fn default() -> Self {
        Group { turn: Mutex::with_class(&GROUP, MemberWait::Gathers), changed: Condvar::new() }
    }
}

impl Group {
    /// Sleeps until the push has ended, or this member is called to lead.
    pub(crate) fn wait(&self) -> MemberEnd {
        let mut turn = self.turn.lock();
        loop {
            match *turn {
                MemberWait::Gathers => turn = self.changed.wait(turn),
                MemberWait::Wanted => {
                    *turn = MemberWait::Gathers;
                    return MemberEnd::Lead;
                }
                MemberWait::Ended(done) => return MemberEnd::Ended(done),
            }
        }
    }

    /// Calls one of those that wait to lead.
    pub(crate) fn call_leader(&self) {
        *self.turn.lock() = MemberWait::Wanted;
        self.changed.notify_one();
    }

    /// The push has ended: wakes all members.
    pub(crate) fn end(&self, done: bool) {
        *self.turn.lock() = MemberWait::Ended(done);
        self.changed.notify_all();
    }
}

/// The callers that wait for each push. *Protected by the store's state.*
#[derive(Default)]
pub(crate) struct Callers {
    gathering: Arc<Group>,
    /// Members of it.
    gathered: usize,
    /// One of them is called to lead.
    is_led: bool,
    /// Pushes under way.
    pub(crate) in_flight: usize,
    /// Callers that wait for these.
    waiting: usize,
    /// How many callers there have been lately, in sixteenths.
    crowd: usize,
}

impl Callers {
    /// Counts a caller that gathers. Returns the group of the caller, and whether the caller may push for that group now.
    pub(crate) fn join(&mut self) -> (Arc<Group>, bool) {
        self.gathered += 1;
        let leads = self.call();
        (self.gathering.clone(), leads)
    }

    /// Whether a gathering caller may push now; if so, that caller [closes](Self::close) the group.
    fn call(&mut self) -> bool {
        let is_due = self.in_flight == 0 || self.is_crowded();
        let may_lead = self.gathered > 0 && !self.is_led && is_due && self.in_flight < IN_FLIGHT;
        self.is_led |= may_lead;
        may_lead
    }

    /// Whether half as many have gathered as there have been callers lately.
    pub(crate) fn is_crowded(&self) -> bool {
        self.gathered * 2 >= self.crowd.div_ceil(16)
    }

    /// The group that gathered is to be pushed for: how many members it has. Later callers gather anew.
    pub(crate) fn close(&mut self) -> usize {
        self.gathering = Arc::default();
        self.is_led = false;
        let members = std::mem::take(&mut self.gathered);
        self.in_flight += 1;
        self.waiting += members;
        self.crowd = (self.waiting * 16).max(self.crowd - self.crowd / 16);
        members
    }

    /// Ends a push for `members` callers; returns the gathering group if one of its callers may lead now.
    pub(crate) fn end(&mut self, members: usize) -> Option<Arc<Group>> {
        self.in_flight -= 1;
        self.waiting -= members;
        self.call().then(|| self.gathering.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Pushes that so many callers need for `calls` calls, when each comes back before another push ends.
    fn pushes(callers: usize, calls: usize) -> usize {
        let (mut state, mut flights) = (Callers::default(), VecDeque::new());
        let (mut idle, mut done, mut pushes) = (callers, 0, 0);
        while done < calls {
            let leads = if idle > 0 {
                idle -= 1;
                state.join().1
            } else {
                let members = flights.pop_front().expect("somebody is in flight, or all would wait for ever");
                idle += members;
                done += members;
                state.end(members).is_some()
            };
            if leads {
                flights.push_back(state.close());
                pushes += 1;
            }
            assert!(flights.len() <= IN_FLIGHT);
        }
        pushes
    }

    #[test]
    fn many_callers_share_a_push_and_few_do_not_wait_for_each_other() {
        assert_eq!(pushes(1, 1_000), 1_000);
        assert!((999..=1_001).contains(&pushes(2, 1_000)), "two flush side by side");
        assert!(pushes(4, 1_000) < 600);
        assert!(pushes(16, 16_000) < 2_100, "eight share one");
        assert!(pushes(1_000, 1_000_000) < 2_500);
    }
}
