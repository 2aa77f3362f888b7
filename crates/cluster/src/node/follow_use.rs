//! Follow use: to which node the owner of a workspace hands it over, because that node makes most of the requests there.
//!
//! # Theory
//! The owner counts the requests that come from each node, and those of its own kernel. A node that makes [`SHARE`] percent of them, and
//! at least [`LEAST`], in each of [`SECONDS`] seconds running gets the workspace. A new owner keeps it for [`STAY`] at least: so nodes that
//! use a workspace in turns, each for a short time, do not spend that time with hand-overs.

use super::Inner;
use crate::owner::Owner;
use sluice_membership::NodeId;
use sluice_sync::Arc;
use sluice_sync::thread::Builder;
use sluice_sync::time::{Duration, Instant};
use std::collections::BTreeMap;

/// The percentage of the requests that a node makes to get the workspace.
const SHARE: u64 = 75;
/// The requests that a node makes in a second to get the workspace. Fewer are not worth the hand-over.
const LEAST: u64 = 50;
/// For so many seconds running.
const SECONDS: u32 = 5;
/// How long a node keeps a workspace at least.
const STAY: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);

/// The use of a workspace since this node has it.
#[derive(Default)]
pub(super) struct WorkspaceUse {
    epoch: u64,
    begin: Option<Instant>,
    looked: Option<Instant>,
    /// The requests of each node at the last look.
    counts: BTreeMap<NodeId, u64>,
    /// The node with most of the requests, and for how many seconds.
    leader: Option<(NodeId, u32)>,
}

impl WorkspaceUse {
    /// Whether it is time for the next [`look`](Self::look) of the owner in `epoch`.
    fn is_due(&mut self, epoch: u64, now: Instant) -> bool {
        if self.epoch != epoch {
            *self = WorkspaceUse { epoch, begin: Some(now), ..WorkspaceUse::default() };
        }
        self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= SECOND)
    }

    /// Notes how many requests each node has made by `now`, and returns the node that is to have the workspace, if it is another.
    fn look(&mut self, counts: BTreeMap<NodeId, u64>, own: NodeId, now: Instant) -> Option<NodeId> {
        let is_first = self.looked.replace(now).is_none();
        let last = std::mem::replace(&mut self.counts, counts);
        let since = |node: &NodeId, count: u64| count.saturating_sub(last.get(node).copied().unwrap_or(0));
        let made: Vec<_> = self.counts.iter().map(|(node, count)| (*node, since(node, *count))).collect();
        let all: u64 = made.iter().map(|(_, count)| count).sum();
        let most = made.into_iter().max_by_key(|(_, count)| *count);
        let leader = most.filter(|(node, count)| {
            !is_first && *node != own && *count >= LEAST && *count * 100 >= all * SHARE
        });
        self.leader = leader.map(|(node, _)| {
            let before = self.leader.filter(|(other, _)| *other == node).map_or(0, |(_, seconds)| seconds);
            (node, before + 1)
        });
        let has_stayed = self.begin.is_some_and(|begin| now.saturating_duration_since(begin) >= STAY);
        self.leader.filter(|(_, seconds)| has_stayed && *seconds >= SECONDS).map(|(node, _)| node)
    }
}

impl Inner {
    /// Looks at the use of the workspace that this node owns, once in a second, and hands it over where that is due.
    pub(super) fn follow_use(self: &Arc<Self>, owner: &Owner, used: &mut WorkspaceUse) {
        let now = Instant::now();
        if self.relay.workspace() == 0 || !used.is_due(owner.epoch, now) {
            return;
        }
        let own = self.id();
        let mut counts = owner.requests_by_node();
        *counts.entry(own).or_default() += self.relay.counts().requests;
        let Some(to) = used.look(counts, own, now) else { return };
        // A hand-over that fails is not tried again at once.
        *used = WorkspaceUse { epoch: owner.epoch, begin: Some(now), ..WorkspaceUse::default() };
        let (this, workspace) = (self.clone(), self.relay.workspace());
        let hand_over = move || match this.hand_over(to) {
            Ok(()) => log::info!("workspace {workspace}: node {} uses it most and owns it now", to.0),
            Err(error) => {
                log::info!("workspace {workspace}: node {} uses it most and cannot own it: {error}", to.0);
            }
        };
        if let Err(error) = Builder::new().name("cluster-follow".into()).spawn(hand_over) {
            log::warn!("workspace {workspace} stays with this node: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);
    const THIRD: NodeId = NodeId(3);

    /// The second in which the workspace goes to another node, and to which, where each makes so many requests in a second.
    fn goes(requests: impl Fn(u32) -> [u64; 3]) -> Option<(u32, NodeId)> {
        let (mut used, begin, mut counts) = (WorkspaceUse::default(), Instant::now(), [0; 3]);
        (0..60).find_map(|second| {
            let now = begin + second * SECOND;
            assert!(used.is_due(7, now), "once in a second");
            requests(second).into_iter().zip(&mut counts).for_each(|(more, count)| *count += more);
            let made = [OWN, OTHER, THIRD].into_iter().zip(counts).collect();
            let to = used.look(made, OWN, now);
            assert!(!used.is_due(7, now + SECOND / 2));
            to.map(|to| (second, to))
        })
    }

    #[test]
    fn a_workspace_goes_to_the_node_that_makes_most_requests_for_some_seconds() {
        let stay = u32::try_from(STAY.as_secs()).expect("small");
        assert_eq!(goes(|_| [10, 200, 10]), Some((stay, OTHER)), "not before its minimum stay");
        let late = |second| if second < 30 { [100, 100, 100] } else { [0, 0, 400] };
        assert_eq!(goes(late), Some((30 + SECONDS - 1, THIRD)));
    }

    #[test]
    fn a_workspace_stays_where_nobody_makes_most_requests_or_only_for_a_moment() {
        assert_eq!(goes(|_| [500, 100, 100]), None, "the owner makes most");
        assert_eq!(goes(|_| [100, 250, 0]), None, "71 percent are too few");
        assert_eq!(goes(|_| [0, LEAST - 1, 0]), None, "too few to be worth it");
        assert_eq!(goes(|second| if second % SECONDS == 0 { [300, 0, 0] } else { [0, 300, 0] }), None);
        assert_eq!(goes(|second| if second / 3 % 2 == 0 { [0, 0, 300] } else { [0, 300, 0] }), None);
    }

    #[test]
    fn a_new_owner_begins_to_count_anew() {
        let (mut used, now) = (WorkspaceUse::default(), Instant::now());
        assert!(used.is_due(7, now));
        used.look([(OTHER, 1000)].into(), OWN, now);
        assert!(used.is_due(8, now), "another epoch");
        assert_eq!((used.begin, used.counts.len()), (Some(now), 0));
    }
}
