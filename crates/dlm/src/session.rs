//! Session: the messages of two nodes to each other, each once and in order, whatever the packets suffer.
//!
//! Packets are numbered from 1. A packet out of order is dropped, and all unacknowledged packets are sent again: with
//! TCP, which keeps order, only over a new connection. A session begins with the second of its nodes and ends with the
//! first of them: nodes never have the number of another that was before, so a session never begins anew.

use crate::Message;
use std::collections::VecDeque;

/// A message on the network, with its number and an acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The packet's number, or 0 without a message.
    pub number: u64,
    /// The number up to which all packets of the other side have arrived.
    pub acknowledged: u64,
    /// The message.
    pub message: Option<Message>,
}

/// A node's side of a session.
#[derive(Debug, Default)]
pub struct Session {
    /// The number of the last packet.
    sent: u64,
    /// The number of the last packet of the other side that was taken.
    taken: u64,
    /// The acknowledgement that was sent last.
    told: u64,
    /// Unacknowledged messages, the last of them with the number `sent`.
    pending: VecDeque<Message>,
}

impl Session {
    /// The packet for a new message.
    pub fn push(&mut self, message: Message) -> Packet {
        self.sent += 1;
        self.pending.push_back(message.clone());
        self.told = self.taken;
        Packet { number: self.sent, acknowledged: self.taken, message: Some(message) }
    }

    /// Takes in a packet. Returns its message, if that is the next; an error if it acknowledges what was never sent.
    pub fn take(&mut self, packet: Packet) -> Result<Option<Message>, Invalid> {
        let oldest = self.sent - self.pending.len() as u64;
        if packet.acknowledged > self.sent {
            return Err(Invalid);
        }
        let done = packet.acknowledged.saturating_sub(oldest);
        self.pending.drain(..usize::try_from(done).unwrap_or(0));
        if packet.number != self.taken + 1 || packet.message.is_none() {
            return Ok(None);
        }
        self.taken += 1;
        Ok(packet.message)
    }

    /// All unacknowledged messages, to be sent again.
    pub fn again(&mut self) -> Vec<Packet> {
        self.told = self.taken;
        let first = self.sent - self.pending.len() as u64 + 1;
        let packet = |(number, message): (u64, &Message)| Packet {
            number,
            acknowledged: self.taken,
            message: Some(message.clone()),
        };
        (first..).zip(&self.pending).map(packet).collect()
    }

    /// An acknowledgement alone, if `unsaid` packets or more have not been acknowledged.
    pub fn acknowledgement(&mut self, unsaid: u64) -> Option<Packet> {
        if self.taken - self.told < unsaid.max(1) {
            return None;
        }
        self.told = self.taken;
        Some(Packet { number: 0, acknowledged: self.taken, message: None })
    }

    /// How many messages were not acknowledged.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}

/// A packet that no honest peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(epoch: u64) -> Message {
        Message::Registered { shard: 0, epoch }
    }

    #[test]
    fn packets_that_are_lost_repeated_and_reordered_bring_each_message_once_and_in_order() {
        let (mut a, mut b) = (Session::default(), Session::default());
        let sent: Vec<_> = (0..5).map(|n| a.push(message(n))).collect();
        let mut taken = Vec::new();
        for at in [1, 0, 0, 2, 4] {
            taken.extend(b.take(sent[at].clone()).expect("valid"));
        }
        let ack = b.acknowledgement(1).expect("one was taken");
        assert_eq!(a.take(ack), Ok(None));
        assert_eq!(a.pending(), 4);
        for packet in a.again() {
            taken.extend(b.take(packet).expect("valid"));
        }
        assert_eq!(taken, (0..5).map(message).collect::<Vec<_>>());
        assert_eq!(b.acknowledgement(5), None);
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_is_refused() {
        let mut a = Session::default();
        a.push(message(1));
        assert_eq!(a.take(Packet { number: 0, acknowledged: 2, message: None }), Err(Invalid));
    }
}
