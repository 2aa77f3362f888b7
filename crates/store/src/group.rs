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

use crate::StoreError;
use crate::log::IN_FLIGHT;
use crate::store::Core;
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
struct Group {
    turn: Mutex<MemberWait>,
    changed: Condvar,
}

/// The outcome of a member's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberEnd {
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
    fn wait(&self) -> MemberEnd {
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
    fn call_leader(&self) {
        *self.turn.lock() = MemberWait::Wanted;
        self.changed.notify_one();
    }

    /// The push has ended: wakes all members.
    fn end(&self, done: bool) {
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
    /// Whether a gathering caller may push now; if so, that caller [closes](Self::close) the group.
    fn call(&mut self) -> bool {
        let is_due = self.in_flight == 0 || self.gathered * 2 >= self.crowd.div_ceil(16);
        let may_lead = self.gathered > 0 && !self.is_led && is_due && self.in_flight < IN_FLIGHT;
        self.is_led |= may_lead;
        may_lead
    }

    /// The group that gathered is to be pushed for: how many members it has. Later callers gather anew.
    fn close(&mut self) -> usize {
        self.gathering = Arc::default();
        self.is_led = false;
        let members = std::mem::take(&mut self.gathered);
        self.in_flight += 1;
        self.waiting += members;
        self.crowd = (self.waiting * 16).max(self.crowd - self.crowd / 16);
        members
    }

    /// Ends a push for `members` callers; returns the gathering group if one of its callers may lead now.
    fn end(&mut self, members: usize) -> Option<Arc<Group>> {
        self.in_flight -= 1;
        self.waiting -= members;
        self.call().then(|| self.gathering.clone())
    }
}

impl Core {
    /// Makes durable what all transactions wrote that ended before.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let (group, mut leads) = {
            let mut state = self.state.lock();
            state.check()?;
            let callers = &mut state.callers;
            callers.gathered += 1;
            let leads = callers.call();
            (callers.gathering.clone(), leads)
        };
        while !leads {
            match group.wait() {
                MemberEnd::Lead => leads = true,
                MemberEnd::Ended(true) => return Ok(()),
                MemberEnd::Ended(false) => {
                    self.state.lock().check()?;
                    return Err(StoreError::Failed("a push failed".into()));
                }
            }
        }
        self.lead(&group)
    }

    /// Pushes for `group`, which gathers.
    fn lead(&self, group: &Group) -> Result<(), StoreError> {
        let (members, checked) = {
            let mut state = self.state.lock();
            (state.callers.close(), state.check())
        };
        let mut flight = Flight { core: self, group, members: Some(members), done: None };
        let pushed = checked.and_then(|()| self.push()).inspect_err(|error| self.fail(error));
        // First, so that the disk is not idle while the members wake.
        flight.land();
        let done = pushed.and_then(|formed| self.wait_for(self.state.lock(), formed));
        flight.done = Some(done.is_ok());
        done
    }
}

/// A push under way. Its members are woken when it is dropped, also by a panic: then the state of the written data is
/// unknown.
struct Flight<'f> {
    core: &'f Core,
    group: &'f Group,
    /// As long as it counts as in flight.
    members: Option<usize>,
    /// Whether it succeeded.
    done: Option<bool>,
}

impl Flight<'_> {
    /// Another push may begin.
    fn land(&mut self) {
        let Some(members) = self.members.take() else { return };
        let next = self.core.state.lock().callers.end(members);
        self.core.changed.notify_all();
        next.iter().for_each(|next| next.call_leader());
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.done.is_none() {
            self.core.fail(&StoreError::Failed("a push panicked".into()));
        }
        self.land();
        self.group.end(self.done == Some(true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::crash::CrashDisk;
    use crate::{Added, Options, Source, Store};
    use std::collections::VecDeque;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Has nothing to add, and panics.
    struct Panics;

    impl Source for Panics {
        fn collect(&self, _: &mut Added) {
            panic!("planned");
        }
    }

    #[test]
    fn a_push_that_panics_fails_the_store_and_leaves_nobody_asleep() {
        let options = Options { log_size: 64 << 10, background: false, ..Options::default() };
        let disk = Arc::from(Box::new(CrashDisk::new()) as Box<dyn Disk>);
        let store = Store::create(disk, options).expect("an empty disk");
        store.set_source(Box::new(Panics));
        assert!(catch_unwind(AssertUnwindSafe(|| store.sync())).is_err());
        assert!(matches!(store.sync(), Err(StoreError::Failed(_))));
        assert!(store.failure().is_some_and(|why| why.contains("panicked")));
        assert!(matches!(store.close(), Err(StoreError::Failed(_))));
    }

    #[test]
    fn a_transaction_that_panics_fails_the_store_and_no_part_of_it_is_written() {
        let options = Options { log_size: 64 << 10, background: false, ..Options::default() };
        let disk = CrashDisk::new();
        let shared = || Arc::from(Box::new(disk.clone()) as Box<dyn Disk>);
        let store = Store::create(shared(), options.clone()).expect("an empty disk");
        store.begin(100).expect("room").put(b"whole", 1, b"");
        store.sync().expect("the disk works");
        store.begin(100).expect("room").put(b"not synchronised", 1, b"");
        let panics = || {
            let mut change = store.begin(100).expect("room");
            change.put(b"half", 1, b"");
            panic!("planned");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert!(matches!(store.sync(), Err(StoreError::Failed(_))));
        assert!(matches!(store.begin(100), Err(StoreError::Failed(_))));
        assert!(store.failure().is_some_and(|why| why.contains("panic")));
        drop(store);
        let store = Store::open(shared(), options.clone()).expect("a store");
        let has = |key: &[u8]| store.get(key).expect("memory").is_some();
        assert_eq!((has(b"whole"), has(b"not synchronised"), has(b"half")), (true, false, false));
        // A transaction of a destructor during another panic is complete.
        struct Changes<'s>(&'s Store);
        impl Drop for Changes<'_> {
            fn drop(&mut self) {
                self.0.begin(100).expect("room").put(b"in a destructor", 1, b"");
            }
        }
        let panics = || {
            let _changes = Changes(&store);
            panic!("planned");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        store.sync().expect("the store works");
    }

    /// Pushes that so many callers need for `calls` calls, when each comes back before another push ends.
    fn pushes(callers: usize, calls: usize) -> usize {
        let (mut state, mut flights) = (Callers::default(), VecDeque::new());
        let (mut idle, mut done, mut pushes) = (callers, 0, 0);
        while done < calls {
            let leads = if idle > 0 {
                idle -= 1;
                state.gathered += 1;
                state.call()
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
