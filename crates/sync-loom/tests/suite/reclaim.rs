//! Models of reclaim: an object does not go under a pin, goes once, and its bytes are counted once.

use crate::model::explore;
use loom::sync::Arc;
use loom::thread;
use sluice_sync_loom::atomic::{AtomicUsize, Ordering};
use sluice_sync_loom::face::{Mutant, seed_mutant};
use sluice_sync_loom::reclaim::{Reclaim, Reclaimer, Usage};

const CHARGE: u64 = 8;

struct Object {
    usage: Usage,
    /// How often it was let go or removed.
    ends: AtomicUsize,
}

impl Reclaim for Object {
    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn key(&self) -> u64 {
        0
    }

    fn charge(&self) -> u64 {
        CHARGE
    }
}

type Cache = Reclaimer<Arc<Object>>;

fn enter(cache: &Cache) -> Arc<Object> {
    let object = Arc::new(Object { usage: Usage::new(), ends: AtomicUsize::new(0) });
    cache.enter(object.clone(), end);
    object
}

fn end(object: &Arc<Object>) {
    assert_eq!(object.ends.fetch_add(1, Ordering::Relaxed), 0, "let go twice");
}

/// There is room for one object. One thread takes a pin of it while another brings in a second one.
fn an_object_is_used_while_it_is_to_go() {
    explore(3, || {
        let cache = Arc::new(Cache::new(CHARGE));
        let object = enter(&cache);
        object.usage.unpin();
        let user = {
            let object = object.clone();
            thread::spawn(move || {
                object.usage.touch();
                if object.usage.pin() {
                    assert_eq!(object.ends.load(Ordering::Relaxed), 0, "let go under a pin");
                    object.usage.unpin();
                }
            })
        };
        let second = enter(&cache);
        user.join().expect("the user ends");
        let gone = object.ends.load(Ordering::Relaxed) == 1;
        assert_eq!((gone, object.usage.pin()), (object.usage.is_gone(), !gone), "let go, and yet not gone");
        assert_eq!(cache.charged(), if gone { CHARGE } else { 2 * CHARGE });
        assert!(!second.usage.is_gone(), "its maker has pinned it");
    });
}

#[test]
fn an_object_does_not_go_under_a_pin() {
    seed_mutant(None);
    an_object_is_used_while_it_is_to_go();
}

#[test]
#[should_panic(expected = "let go")]
fn letting_go_in_two_steps_is_found() {
    seed_mutant(Some(Mutant::LeaveInTwoSteps));
    an_object_is_used_while_it_is_to_go();
}

#[test]
fn an_object_that_is_removed_while_others_enter_ends_once_and_is_counted_once() {
    seed_mutant(None);
    explore(2, || {
        let cache = Arc::new(Cache::new(CHARGE));
        let object = enter(&cache);
        object.usage.unpin();
        let remover = {
            let (cache, object) = (cache.clone(), object.clone());
            thread::spawn(move || {
                if object.usage.pin() {
                    assert!(cache.remove(&object), "nobody else has it");
                    end(&object);
                }
            })
        };
        let others = [enter(&cache), enter(&cache)];
        remover.join().expect("the remover ends");
        let left = usize::from(object.ends.load(Ordering::Relaxed) == 0) + others.len();
        assert_eq!(cache.charged(), left as u64 * CHARGE);
    });
}
