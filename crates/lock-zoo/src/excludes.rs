//! Excludes: why each spin lock of this crate lets one thread in at a time. The models of `lock-zoo-loom` check it.

use crate::{Cna, Mcs, MutualExclusion, Queued, QueuedMode, Tas, TicketLock};

// SAFETY: an acquisition is an exchange of 0 for 1, and the word is 1 until the owner stores 0 with release.
unsafe impl MutualExclusion for Tas {}
// SAFETY: each number is taken once, and `serving` reaches it by the release store of the owner before. (The
// numbers wrap after 2^32 waiters at once, more than there can be threads.)
unsafe impl MutualExclusion for TicketLock {}
// SAFETY: an acquisition found no tail, or was told to go by the owner in front, which tells one waiter once.
unsafe impl MutualExclusion for Mcs {}
// SAFETY: as for MCS. The order of waiters differs, but each owner passes the lock to one of them, once.
unsafe impl MutualExclusion for Cna {}
// SAFETY: every path ends with one step that sets LOCKED on a word that had it clear: by exchange of 0 (or, for
// the one head of a paravirtual queue, of its own PENDING bit), or in wait_as_pending by the only thread whose
// PENDING bit it is, while all others refuse a word with PENDING.
unsafe impl<M: QueuedMode> MutualExclusion for Queued<M> {}
