//! Flight: the way of a call of [`Store::sync`](crate::Store::sync), and the push that one caller makes for its group.

use crate::StoreError;
use crate::group::{Group, MemberEnd};
use crate::store::Core;
use sluice_sync::thread;

/// So often a leader lets other threads of its CPU run, if few members have joined.
const YIELDS: usize = 4;

impl Core {
    /// Makes durable what all transactions wrote that ended before.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let (group, mut leads) = {
            let mut state = self.state.lock();
            state.check()?;
            state.callers.join()
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
        // Members of the last push that wait for a CPU join, where it is CPUs that are short; else this returns at once.
        for _ in 0..YIELDS {
            if self.state.lock().callers.is_crowded() {
                break;
            }
            thread::yield_now();
        }
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
    use sluice_sync::Arc;
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
        assert!(
            store.failure().is_some_and(|why| why.ends_with(": a change ended by a panic, and is not whole"))
        );
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
}
