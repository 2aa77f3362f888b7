//! Local: what a node knows of a lock that it has cached, holds or waits for.

use crate::lock_class::LOCAL;
use crate::message::{Answer, Next, Token, Value};
use crate::probe::LockParty;
use crate::wait::Wait;
use crate::word::LockWord;
use crate::{Key, Mode};
use sluice_sync::reclaim::{Reclaim, Usage};
use sluice_sync::{Arc, SmallMutex};
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Called with the mode that a held lock is in the way of. It may call the node.
pub type Notice = Arc<dyn Fn(Mode) + Send + Sync>;

/// About what a cached lock costs: itself, its entry in the table, its place in the queues of the reclaimer.
pub(crate) const LOCAL_BYTES: u64 = 208;

/// A lock on this node.
pub(crate) struct Local {
    /// *immutable*
    pub(crate) key: Key,
    /// The modes that may be given out without asking the master. *atomic*
    pub(crate) word: LockWord,
    /// One pin for each holder and each waiter. *atomic*
    pub(crate) usage: Usage,
    /// *protected by the shard's mutex; by its own for listings*
    pub(crate) slow: SmallMutex<Slow>,
}

/// The state exchanged between nodes.
pub(crate) struct Slow {
    /// The cached grant; number 0, which no grant has, if none is cached.
    token: Token,
    /// When it came, in nanoseconds.
    pub(crate) granted_at: u64,
    /// *boxed: most locks have none*
    extra: Option<Box<LocalExtra>>,
}

/// The state that most locks lack.
#[derive(Default)]
struct LocalExtra {
    value: Option<Value>,
    /// Whether the value was changed here.
    is_dirty: bool,
    more: Option<Box<More>>,
}

/// The state of a lock with waiters.
#[derive(Default)]
pub(crate) struct More {
    /// The requests that wait on this node, in order; conversions first.
    pub(crate) waiters: VecDeque<Waiter>,
    /// The pending request to the master.
    pub(crate) request: Option<Request>,
    /// The master's pending revoke.
    pub(crate) revoke: Option<Revoke>,
    /// The master's revocation of a grant that has not arrived yet.
    pub(crate) early: Option<Revoke>,
    /// Nobody gets the lock any more before the revoke is answered.
    pub(crate) is_draining: bool,
    /// The holders of whom more is known than the mode.
    pub(crate) known: Vec<KnownHolder>,
}

/// A holder that wants to be told of requests that wait for it, or that belongs to a party.
pub(crate) struct KnownHolder {
    /// Its number as long as it is held.
    pub(crate) number: u64,
    /// The number of this hold in this mode.
    pub(crate) hold: u64,
    pub(crate) mode: Mode,
    pub(crate) notice: Option<Notice>,
    pub(crate) party: Option<LockParty>,
}

/// A request on this node.
pub(crate) struct Waiter {
    pub(crate) wait: Arc<Wait>,
    pub(crate) mode: Mode,
    /// The lock that is converted.
    pub(crate) holds: Option<Mode>,
    pub(crate) is_try: bool,
    /// Its number as a request, never used again.
    pub(crate) number: u64,
    /// The number as a holder that is known, or 0.
    pub(crate) known: u64,
    /// The holder's notice, if it is new.
    pub(crate) notice: Option<Notice>,
    pub(crate) party: Option<LockParty>,
    /// When it began to wait, and when to look next whether it is in a circle, in nanoseconds.
    pub(crate) began_at: u64,
    pub(crate) look_at: u64,
}

/// A request of this node to the master.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) serial: u64,
    pub(crate) mode: Mode,
    /// The mode that was asked for first. The master may have granted it, in place of the cached grant: so meanwhile
    /// only modes that it covers are given out.
    pub(crate) first: Mode,
    pub(crate) is_try: bool,
    pub(crate) converts: bool,
    /// The number of the last change of that.
    pub(crate) turn: u64,
    /// The turn of the last conversion, by which the master takes back what it asked for before.
    pub(crate) voids: u64,
    /// When it was sent last, in nanoseconds.
    pub(crate) asked_at: u64,
}

/// A request of the master to this node.
#[derive(Debug)]
pub(crate) struct Revoke {
    /// Its number on this node.
    pub(crate) number: u64,
    /// In what epoch of the shard.
    pub(crate) epoch: u64,
    pub(crate) token: Token,
    pub(crate) wanted: Mode,
    pub(crate) is_try: bool,
    pub(crate) next: Option<Next>,
}

impl More {
    /// Whether the cached grant may give out `mode`.
    pub(crate) fn allows(&self, mode: Mode) -> bool {
        self.request.is_none_or(|request| request.first.covers(mode))
    }

    /// Takes the first that waits, if it is `wanted`.
    pub(crate) fn pop_first_if(&mut self, wanted: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        if self.waiters.front().is_some_and(wanted) { self.waiters.pop_front() } else { None }
    }
}

impl Waiter {
    /// Whether the party that it belongs to wants to be told of a deadlock at `now`.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.party.is_some() && self.look_at <= now
    }

    /// Whether it converts a lock that is in the way of `other`.
    pub(crate) fn excludes(&self, other: &Waiter) -> bool {
        self.holds.is_some_and(|held| !held.compatible(other.mode))
    }
}

impl Request {
    /// Whether the request is for a conversion that conflicts with `wanted`, both in the held mode and in the new mode.
    pub(crate) fn stands_against(&self, waiter: &Waiter, wanted: Mode) -> bool {
        let is_held = waiter.holds.is_some_and(|held| !held.compatible(wanted));
        self.converts && is_held && !self.mode.compatible(wanted)
    }
}

impl Revoke {
    /// The answer to it, if it wants one.
    pub(crate) fn answer(&self, is_handed: bool) -> Option<Answer> {
        self.next.as_ref().map(|next| Answer { token: next.token, is_handed })
    }
}

impl Local {
    pub(crate) fn new(key: Key) -> Local {
        Local {
            key,
            word: LockWord::default(),
            usage: Usage::new(),
            slow: SmallMutex::with_class(&LOCAL, Slow::new()),
        }
    }
}

impl Slow {
    fn new() -> Slow {
        Slow { token: Token { epoch: 0, number: 0 }, granted_at: 0, extra: None }
    }

    /// The grant that is cached.
    pub(crate) fn token(&self) -> Option<Token> {
        (self.token.number != 0).then_some(self.token)
    }

    pub(crate) fn set_token(&mut self, token: Option<Token>) {
        self.token = token.unwrap_or(Token { epoch: 0, number: 0 });
    }

    pub(crate) fn value(&self) -> Option<&Value> {
        self.extra.as_ref().and_then(|extra| extra.value.as_ref())
    }

    pub(crate) fn set_value(&mut self, value: Option<Value>) {
        if value.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().value = value;
        }
    }

    /// Whether the value was changed here.
    pub(crate) fn is_dirty(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.is_dirty)
    }

    pub(crate) fn set_dirty(&mut self, is_dirty: bool) {
        if is_dirty || self.extra.is_some() {
            self.extra.get_or_insert_default().is_dirty = is_dirty;
        }
    }

    /// Takes the value that came with a grant, unless the value here is newer: the master does not know that one yet, and is still to be
    /// told.
    pub(crate) fn learn_value(&mut self, value: Option<Value>, is_from_holder: bool) {
        let takes_doubts = !self.is_dirty();
        let is_newer = |value: &Value| {
            let doubts = !value.is_certain && takes_doubts;
            self.value().is_none_or(|old| old.version < value.version || doubts)
        };
        if let Some(value) = value.filter(is_newer) {
            self.set_value(Some(value));
            // A value from another holder is new to the master, which may hear of the next release first.
            self.set_dirty(is_from_holder);
        }
    }

    /// The state of waiters and requests, if any.
    pub(crate) fn more(&self) -> Option<&More> {
        self.extra.as_ref().and_then(|extra| extra.more.as_deref())
    }

    pub(crate) fn more_mut(&mut self) -> Option<&mut More> {
        self.extra.as_mut().and_then(|extra| extra.more.as_deref_mut())
    }

    /// The state of waiters and requests, made if need be.
    pub(crate) fn say(&mut self) -> &mut More {
        self.extra.get_or_insert_default().more.get_or_insert_default()
    }

    pub(crate) fn take_more(&mut self) -> Option<Box<More>> {
        self.extra.as_mut().and_then(|extra| extra.more.take())
    }

    pub(crate) fn request(&self) -> Option<Request> {
        self.more().and_then(|more| more.request)
    }

    /// Whether the cached grant may give out `mode`.
    pub(crate) fn allows(&self, mode: Mode) -> bool {
        self.more().is_none_or(|more| more.allows(mode))
    }

    /// Frees empty state.
    pub(crate) fn tidy(&mut self) {
        let Some(extra) = &mut self.extra else { return };
        extra.more.take_if(|more| {
            more.waiters.is_empty()
                && more.request.is_none()
                && more.revoke.is_none()
                && more.known.is_empty()
        });
        self.extra.take_if(|extra| extra.more.is_none() && extra.value.is_none());
    }
}

impl Reclaim for Local {
    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn key(&self) -> u64 {
        use std::hash::BuildHasher;
        foldhash::fast::FixedState::default().hash_one(&self.key)
    }

    fn charge(&self) -> u64 {
        LOCAL_BYTES + self.key.name.heap_bytes() as u64
    }
}

/// A lock, by its key: so that the table need not have the key twice.
pub(crate) struct ByKey(pub(crate) Arc<Local>);

impl Borrow<Key> for ByKey {
    fn borrow(&self) -> &Key {
        &self.0.key
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}
