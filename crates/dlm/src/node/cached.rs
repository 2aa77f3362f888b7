//! Cached: what becomes of a lock on this node between the callers here and its master: granted, asked for, revoked.
//!
//! # Theory
//! A grant stays cached when it is unlocked. When the master revokes it, the node goes on using it for
//! [`Options::hold`](super::Options::hold) as long as it does use it, then *drains* it: nobody gets it any more, and when those that
//! are in the way have unlocked, what is left of it goes back, or straight to the next holder.
//!
//! A request is taken back silently: a grant is taken only for the request that is waited for now, and any other one is
//! declined by a `Release`, or by the next request, which does not name it (Q3 in `queue.rs`). A request to replace a
//! cached grant is not taken back: the master may have replaced the grant already.

use super::{After, Effects, Node, Shard};
use crate::error::LockError;
use crate::local::{KnownHolder, Local, More, Request, Revoke, Slow, Waiter};
use crate::message::{Answer, Body, Message, Token, Value};
use crate::{Key, Mode};
use sluice_membership::NodeId;
use sluice_sync::atomic::Ordering;

/// A lock on its node looks so often in a minimum hold whether it is still used.
const LOOKS: u64 = 4;

impl<E: Effects> Node<E> {
    /// A cached lock that nobody has used lately makes room for others.
    pub(super) fn let_go(&self, gone: &Local) {
        self.under(gone.key.shard(), 0, |node, shard| {
            let slow = &mut *gone.slow.lock();
            gone.word.set_cached(None);
            let more = slow.take_more();
            let (revoke, early) = more.map_or((None, None), |more| (more.revoke, more.early));
            node.give_back(shard, gone, slow, None, revoke.and_then(|revoke| revoke.answer(false)));
            if let Some(early) = early {
                node.decline(shard, &gone.key, early.token, early.answer(false));
            }
        });
        self.locals.remove(&gone.key);
    }

    /// Does what has become possible.
    pub(super) fn advance(&self, shard: &mut Shard, local: &Local, slow: &mut Slow, now: u64) {
        self.pump(shard, local, slow, now);
        if self.drain(shard, local, slow) {
            self.pump(shard, local, slow, now);
        }
    }

    /// Grants what can be granted here, and asks the master for the rest.
    fn pump(&self, shard: &mut Shard, local: &Local, slow: &mut Slow, now: u64) {
        // Not when the lease is over: an unlock that comes late makes room for nobody.
        while self.is_member(now)
            && let Some(first) = self.next_granted(local, slow)
        {
            self.decide(shard, &first.wait, Ok(()));
            self.note(slow, first);
        }
        let token = slow.token();
        let Some(more) = slow.more_mut() else {
            local.word.set_shut(false);
            return;
        };
        let cached = local.word.cached();
        let converts = more.waiters.iter().take_while(|waiter| waiter.holds.is_some()).count();
        // A conversion whose mode may be given out here may wait for the lock that one behind it converts.
        let is_here = |mode| cached.is_some_and(|cached| cached.covers(mode)) && more.allows(mode);
        let mut firsts = more.waiters.iter().take(converts.max(1));
        if let Some(first) = firsts.find(|first| !is_here(first.mode)) {
            let converts = first.holds.is_some();
            let is_asked = more.request.is_some_and(|request| request.converts || !converts);
            if !is_asked {
                // Joins the held mode, even if it is being converted: the held lock is in use until the grant has come.
                let mode = local.word.held().map_or(first.mode, |held| held.join(first.mode));
                let request = match more.request {
                    // The same request, since it may have been granted.
                    Some(request) => {
                        let mode = request.mode.join(mode);
                        let turn = self.next_serial();
                        Request { mode, converts, turn, voids: turn, is_try: false, asked_at: now, ..request }
                    }
                    None => {
                        let serial = self.next_serial();
                        Request {
                            serial,
                            mode,
                            first: mode,
                            is_try: first.is_try,
                            converts,
                            turn: serial,
                            voids: if converts { serial } else { 0 },
                            asked_at: now,
                        }
                    }
                };
                if let Some(old) = more.request.replace(request) {
                    self.ask_no_more(shard, &local.key, more, &old);
                }
                if converts {
                    // The master takes it back too.
                    more.revoke = None;
                    more.is_draining = false;
                }
                self.statistics.requests.add();
                shard.timers.insert((now + self.options.retry, local.key.clone()));
                self.ask(shard, local, token, request);
            }
        }
        local.word.set_shut(!more.waiters.is_empty() || more.is_draining || more.request.is_some());
    }

    /// Grants a lock to a local waiter: to the first, or to a conversion that delays earlier waiters.
    fn next_granted(&self, local: &Local, slow: &mut Slow) -> Option<Waiter> {
        let more = slow.more_mut()?;
        let converts = more.waiters.iter().take_while(|waiter| waiter.holds.is_some()).count();
        let at = (0..more.waiters.len().min(converts.max(1))).find(|&at| {
            let waiter = &more.waiters[at];
            (waiter.holds.is_some() || !more.is_draining)
                && more.allows(waiter.mode)
                && local.word.take_shut(waiter.mode, waiter.holds)
        })?;
        more.waiters.remove(at)
    }

    /// Removes the timer that would send a request again.
    pub(super) fn ask_no_more(&self, shard: &mut Shard, key: &Key, more: &More, request: &Request) {
        let due = request.asked_at.saturating_add(self.options.retry);
        // A search for deadlocks may be due at the same time.
        if more.waiters.iter().all(|waiter| waiter.look_at != due) {
            shard.timers.remove(&(due, key.clone()));
        }
    }

    pub(super) fn ask(&self, shard: &mut Shard, local: &Local, holds: Option<Token>, request: Request) {
        let Request { serial, mode, is_try, converts, turn, .. } = request;
        self.to_master(shard, &local.key, Body::Request { serial, mode, holds, is_try, converts, turn });
    }

    /// Answers the master's request for the lock, if nobody is in the way any more.
    fn drain(&self, shard: &mut Shard, local: &Local, slow: &mut Slow) -> bool {
        let Some(more) = slow.more_mut().filter(|more| more.is_draining) else { return false };
        let Some(revoke) = more.revoke.take_if(|revoke| !local.word.is_held_against(revoke.wanted)) else {
            return false;
        };
        more.is_draining = false;
        if revoke.epoch != shard.epoch || slow.token() != Some(revoke.token) {
            return true;
        }
        let left = local.word.cached().map(|cached| cached.yielding_to(revoke.wanted));
        let left = left.filter(|left| *left != Mode::Nl || local.word.held().is_some());
        local.word.set_cached(left);
        let answer = revoke.answer(true);
        if let Some(next) = revoke.next {
            let key = Key { name: local.key.name.clone(), range: next.range };
            let value = slow.value().cloned();
            let body = Body::Grant { serial: next.serial, token: next.token, mode: next.mode, value };
            self.statistics.handed.add();
            self.send(shard, next.node, Message::Lock { epoch: shard.epoch, key, body });
        }
        self.give_back(shard, local, slow, left, answer);
        true
    }

    /// Tells the master what is left of the cached grant.
    pub(super) fn give_back(
        &self,
        shard: &mut Shard,
        local: &Local,
        slow: &mut Slow,
        to: Option<Mode>,
        answer: Option<Answer>,
    ) {
        let Some(token) = slow.token() else { return };
        let value = slow.value().filter(|_| slow.is_dirty()).cloned();
        slow.set_dirty(false);
        if to.is_none() {
            slow.set_token(None);
            slow.set_value(None);
        }
        self.to_master(shard, &local.key, Body::Release { token, to, value, answer });
    }

    /// Says to the master that a grant is not taken.
    pub(super) fn decline(&self, shard: &mut Shard, key: &Key, token: Token, answer: Option<Answer>) {
        self.to_master(shard, key, Body::Release { token, to: None, value: None, answer });
    }

    /// Gives the master a grant back that has come, perhaps from its last holder: the master hears of the value first from here.
    fn send_back(&self, shard: &mut Shard, key: &Key, token: Token, value: Option<Value>) {
        self.to_master(shard, key, Body::Release { token, to: None, value, answer: None });
    }

    /// A message of the master, or of a holder, about a lock of this node.
    pub(super) fn client(&self, shard: &mut Shard, now: u64, from: NodeId, key: &Key, body: Body) {
        let local = self.locals.get(key, &self.locals.read()).cloned();
        let Some(local) = local else {
            match body {
                Body::Grant { token, value, .. } => self.send_back(shard, key, token, value),
                Body::Revoke { token, next, .. } => {
                    let answer = next.map(|next| Answer { token: next.token, is_handed: false });
                    self.decline(shard, key, token, answer);
                }
                _ => {}
            }
            return;
        };
        let slow = &mut *local.slow.lock();
        let asked = slow.request();
        match body {
            Body::Behind { through, grant, wanted, probe } => {
                self.behind(shard, &local, slow, through, (grant, wanted, probe));
            }
            Body::Blocks { wanted, probe } => self.blocks(shard, slow, wanted, &probe),
            Body::Grant { token, .. } if slow.token() == Some(token) => {}
            Body::Grant { serial, token, mode, value } => match asked {
                Some(request) if request.serial == serial => {
                    slow.learn_value(value, shard.owner != Some(from));
                    self.accept(shard, now, &local, slow, (token, mode));
                }
                // The request that is under way tells that it is not taken.
                Some(_) => {}
                None => self.send_back(shard, key, token, value),
            },
            // A try that has become a waiting request was sent again as such.
            Body::Denied { serial } if asked.is_some_and(|asked| asked.serial == serial && asked.is_try) => {
                let more = slow.say();
                if let Some(request) = more.request.take() {
                    self.ask_no_more(shard, key, more, &request);
                }
                if let Some(refused) = more.pop_first_if(|first| first.is_try) {
                    self.decide(shard, &refused.wait, Err(LockError::Busy));
                }
                self.advance(shard, &local, slow, now);
            }
            Body::Revoke { token, serial, knows, wanted, is_try, next } => {
                let number = self.next_serial();
                let revoke = Revoke { number, epoch: shard.epoch, token, wanted, is_try, next };
                if slow.token() == Some(token) {
                    self.revoked(shard, now, &local, slow, (revoke, knows));
                } else if asked.is_some_and(|request| request.serial == serial) {
                    // The revocation has overtaken its grant, which comes from another node.
                    slow.say().early = Some(revoke);
                } else {
                    self.decline(shard, key, token, revoke.answer(false));
                }
            }
            _ => {}
        }
        slow.tidy();
    }

    fn accept(
        &self,
        shard: &mut Shard,
        now: u64,
        local: &Local,
        slow: &mut Slow,
        (token, mode): (Token, Mode),
    ) {
        self.statistics.grants.add();
        slow.set_token(Some(token));
        slow.granted_at = now;
        local.word.set_cached(Some(mode));
        let more = slow.say();
        // The earlier request asked for the grant that this one replaces.
        if let Some(request) = more.request.take() {
            self.ask_no_more(shard, &local.key, more, &request);
        }
        more.revoke = None;
        more.is_draining = false;
        let early = more.early.take().filter(|early| early.token == token);
        self.advance(shard, local, slow, now);
        if let Some(revoke) = early {
            self.revoked(shard, now, local, slow, (revoke, 0));
        }
    }

    /// The master wants the lock; it knows of this node's request as of the turn `knows`.
    fn revoked(
        &self,
        shard: &mut Shard,
        now: u64,
        local: &Local,
        slow: &mut Slow,
        (revoke, knows): (Revoke, u64),
    ) {
        self.statistics.revokes.add();
        let wanted = revoke.wanted;
        if slow.request().is_some_and(|request| knows < request.voids) {
            // Sent before the master knew of the conversion, by which it takes this back.
            return;
        }
        if revoke.is_try && local.word.is_held_against(wanted) {
            let token = revoke.token;
            self.to_master(shard, &local.key, Body::Busy { token });
            return;
        }
        let asked = slow.request();
        // A party is told by its probes, which are exact.
        let stands = |waiter: &Waiter| {
            waiter.party.is_none() && asked.is_some_and(|asked| asked.stands_against(waiter, wanted))
        };
        let waiters = &mut slow.say().waiters;
        if let Some(refused) = waiters.iter().position(stands).and_then(|at| waiters.remove(at)) {
            // Another conversion comes first, and each conflicts with the other's held mode.
            self.decide(shard, &refused.wait, Err(LockError::Deadlock));
            self.convert_no_more(shard, local, slow);
        }
        let is_used = !revoke.is_try && local.word.was_used();
        slow.say().revoke = Some(revoke);
        if is_used && now < slow.granted_at + self.options.hold {
            let look = now + self.options.hold / LOOKS;
            shard.timers.insert((look, local.key.clone()));
        } else {
            self.begin_to_drain(shard, local, slow, now);
        }
    }

    /// A conversion request without local waiters stays as a plain request: so it gives way to other conversions. This
    /// excludes a try: its answer is under way, and a refusal would be mistaken for the answer to the current request,
    /// which may be granted.
    pub(super) fn convert_no_more(&self, shard: &mut Shard, local: &Local, slow: &mut Slow) {
        if let Some(request) =
            slow.say().request.as_mut().filter(|request| request.converts && !request.is_try)
        {
            request.converts = false;
            request.turn = self.next_serial();
            let request = *request;
            self.ask(shard, local, slow.token(), request);
        }
    }

    fn begin_to_drain(&self, shard: &mut Shard, local: &Local, slow: &mut Slow, now: u64) {
        let more = slow.say();
        let Some(revoke) = &more.revoke else { return };
        more.is_draining = true;
        local.word.set_shut(true);
        if local.word.is_held_against(revoke.wanted) {
            let in_the_way = more.known.iter().filter(|known| !known.mode.compatible(revoke.wanted));
            let notices = in_the_way.filter_map(|known| known.notice.clone());
            shard.after.extend(notices.map(|notice| After::Notice(notice, revoke.wanted)));
        }
        self.advance(shard, local, slow, now);
    }

    /// Time has passed for a lock: is it still used, was it never answered?
    pub(super) fn look_again(&self, shard: &mut Shard, now: u64, key: &Key) {
        let Some(local) = self.locals.get(key, &self.locals.read()).cloned() else { return };
        let slow = &mut *local.slow.lock();
        if let Some(more) = slow.more_mut()
            && let Some(request) = &mut more.request
            // A try has its answer under way, and a second answer would be mistaken for the answer to the next request.
            && !request.is_try
            && now >= request.asked_at + self.options.retry
        {
            request.asked_at = now;
            let request = *request;
            shard.timers.insert((now + self.options.retry, key.clone()));
            self.ask(shard, &local, slow.token(), request);
        }
        if slow.more().is_some_and(|more| more.revoke.is_some() && !more.is_draining) {
            if local.word.was_used() && now < slow.granted_at + self.options.hold {
                shard.timers.insert((now + self.options.hold / LOOKS, key.clone()));
            } else {
                self.begin_to_drain(shard, &local, slow, now);
            }
        }
        self.look_for_deadlocks(shard, now, &local, slow);
        slow.tidy();
    }

    /// Remembers what is to be known of a holder.
    pub(super) fn note(&self, slow: &mut Slow, granted: Waiter) {
        let Waiter { known: number, mode, notice, party, .. } = granted;
        if number == 0 {
            return;
        }
        let known = &mut slow.say().known;
        let old = known.iter().position(|other| other.number == number).map(|at| known.remove(at));
        let (old_notice, old_party) = old.map_or((None, None), |old| (old.notice, old.party));
        let (notice, party) = (notice.or(old_notice), party.or(old_party));
        known.push(KnownHolder { number, hold: self.next_serial(), mode, notice, party });
    }

    pub(super) fn to_master(&self, shard: &mut Shard, key: &Key, body: Body) {
        // Without a master nothing is lost: the next one is told what this node has and wants.
        if let Some(owner) = shard.owner {
            self.send(shard, owner, Message::Lock { epoch: shard.epoch, key: key.clone(), body });
        }
    }

    pub(super) fn next_serial(&self) -> u64 {
        // Relaxed: only that it is unique.
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }
}
