//! Grants: what nodes have of one resource. Mostly a resource has one grant, which needs no memory of its own.

use crate::message::Token;
use crate::{Mode, Range};
use sluice_membership::NodeId;
use std::ops::{Deref, DerefMut};
use std::{mem, slice};

/// A node's grant.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) node: NodeId,
    pub(crate) range: Range,
    pub(crate) mode: Mode,
    pub(crate) token: Token,
    /// The request that it answered.
    pub(crate) serial: u64,
    /// The mode for which its node was asked to make room.
    pub(crate) asked: Option<Mode>,
}

/// The grants of a resource, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) enum Grants {
    #[default]
    None,
    One(Grant),
    Many(Vec<Grant>),
}

impl Grants {
    pub(crate) fn push(&mut self, grant: Grant) {
        *self = match mem::take(self) {
            Grants::None => Grants::One(grant),
            Grants::One(first) => Grants::Many(vec![first, grant]),
            Grants::Many(mut all) => {
                all.push(grant);
                Grants::Many(all)
            }
        };
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Grant) -> bool) {
        match self {
            Grants::None => {}
            Grants::One(one) if keep(one) => {}
            Grants::One(_) => *self = Grants::None,
            Grants::Many(all) => {
                all.retain(keep);
                if all.len() < 2 {
                    *self = all.pop().map_or(Grants::None, Grants::One);
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let mut next = 0;
        self.retain(|_| {
            next += 1;
            next != at + 1
        });
    }
}

impl Deref for Grants {
    type Target = [Grant];

    fn deref(&self) -> &[Grant] {
        match self {
            Grants::None => &[],
            Grants::One(one) => slice::from_ref(one),
            Grants::Many(all) => all,
        }
    }
}

impl DerefMut for Grants {
    fn deref_mut(&mut self) -> &mut [Grant] {
        match self {
            Grants::None => &mut [],
            Grants::One(one) => slice::from_mut(one),
            Grants::Many(all) => all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_come_and_go_in_their_order_and_one_alone_takes_no_more_than_itself() {
        assert_eq!(size_of::<Grants>(), size_of::<Grant>());
        let grant = |node| {
            let token = Token { epoch: 1, number: node };
            Grant {
                node: NodeId(node),
                range: Range::WHOLE,
                mode: Mode::Pr,
                token,
                serial: node,
                asked: None,
            }
        };
        let mut grants = Grants::default();
        let nodes = |grants: &Grants| grants.iter().map(|grant| grant.node.0).collect::<Vec<_>>();
        assert!(grants.is_empty());
        (1..=3).for_each(|node| grants.push(grant(node)));
        assert_eq!(nodes(&grants), [1, 2, 3]);
        grants.remove(1);
        assert_eq!(nodes(&grants), [1, 3]);
        grants[1].asked = Some(Mode::Ex);
        grants.remove(0);
        assert!(matches!(&grants, Grants::One(one) if one.asked.is_some()));
        grants.retain(|_| false);
        assert!(matches!(grants, Grants::None));
    }
}
