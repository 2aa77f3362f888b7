//! Wire: packets as bytes. Lengths are checked before use, and no content reaches a panic.
//!
//! A frame is its length (4 bytes, little-endian, at most [`FRAME_MAX`]) and a packet: number, acknowledgement, and a message or
//! none. Numbers are little-endian; what may be absent has a byte before it that says so.

use crate::message::{Answer, Body, Message, Next, Token, Value};
use crate::probe::{LINKS_MAX, PATH_MAX, Probe, ProbeStep, RequestBefore, WaitId};
use crate::session::{Invalid, Packet};
use crate::{Key, Mode, NAME_MAX, Name, Range, VALUE_MAX};
use sluice_membership::NodeId;

/// The longest frame, without its length: a grant with the longest name and value is shorter.
pub const FRAME_MAX: usize = 4096;

/// Appends the frame of `packet` to `out`.
pub fn encode(packet: &Packet, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend([0; 4]);
    number(out, packet.number);
    number(out, packet.acknowledged);
    match &packet.message {
        None => out.push(0),
        Some(Message::Registered { shard, epoch }) => {
            out.push(1);
            out.extend(shard.to_le_bytes());
            number(out, *epoch);
        }
        Some(Message::Lock { epoch, key, body }) => {
            out.push(2);
            number(out, *epoch);
            out.extend(key.shard().to_le_bytes());
            bytes(out, key.name.bytes());
            range(out, key.range);
            encode_body(body, out);
        }
    }
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

fn encode_body(body: &Body, out: &mut Vec<u8>) {
    match body {
        Body::Request { serial, mode, holds, is_try, converts, turn } => {
            out.push(0);
            number(out, *serial);
            out.push(*mode as u8);
            option(out, holds.as_ref(), |out, holds| token(out, *holds));
            out.extend([u8::from(*is_try), u8::from(*converts)]);
            number(out, *turn);
        }
        Body::Cancel { serial } => {
            out.push(1);
            number(out, *serial);
        }
        Body::Release { token: of, to, value: with, answer } => {
            out.push(2);
            token(out, *of);
            option(out, to.as_ref(), |out, to| out.push(*to as u8));
            option(out, with.as_ref(), value);
            option(out, answer.as_ref(), |out, answer| {
                token(out, answer.token);
                out.push(u8::from(answer.is_handed));
            });
        }
        Body::Busy { token: of } => {
            out.push(3);
            token(out, *of);
        }
        Body::Grant { serial, token: of, mode, value: with } => {
            out.push(4);
            number(out, *serial);
            token(out, *of);
            out.push(*mode as u8);
            option(out, with.as_ref(), value);
        }
        Body::Denied { serial } => {
            out.push(5);
            number(out, *serial);
        }
        Body::Revoke { token: of, serial, knows, wanted, is_try, next } => {
            out.push(6);
            token(out, *of);
            number(out, *serial);
            number(out, *knows);
            out.extend([*wanted as u8, u8::from(*is_try)]);
            option(out, next.as_ref(), |out, next| {
                number(out, next.node.0);
                range(out, next.range);
                out.push(next.mode as u8);
                token(out, next.token);
                number(out, next.serial);
            });
        }
        Body::Held { mode, token: of, value: with } => {
            out.push(7);
            out.push(*mode as u8);
            token(out, *of);
            option(out, with.as_ref(), value);
        }
        Body::Blocked { serial, probe: with } => {
            out.push(8);
            number(out, *serial);
            probe(out, with);
        }
        Body::Blocks { wanted, probe: with } => {
            out.extend([9, *wanted as u8]);
            probe(out, with);
        }
        Body::Behind { through, grant, wanted, probe: with } => {
            out.extend([10, u8::try_from(through.len()).unwrap_or(u8::MAX)]);
            for link in through {
                number(out, link.node.0);
                range(out, link.range);
                number(out, link.serial);
                number(out, link.turn);
            }
            number(out, grant.0.0);
            range(out, grant.1);
            out.push(*wanted as u8);
            probe(out, with);
        }
    }
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend(bytes);
}

fn range(out: &mut Vec<u8>, range: Range) {
    number(out, range.start());
    number(out, range.end());
}

fn token(out: &mut Vec<u8>, token: Token) {
    number(out, token.epoch);
    number(out, token.number);
}

fn value(out: &mut Vec<u8>, value: &Value) {
    token(out, value.version.0);
    number(out, value.version.1);
    out.push(u8::from(value.is_certain));
    bytes(out, &value.bytes);
}

fn wait(out: &mut Vec<u8>, wait: WaitId) {
    number(out, wait.number);
    number(out, wait.node.0);
}

fn probe(out: &mut Vec<u8>, probe: &Probe) {
    wait(out, probe.first);
    number(out, probe.round);
    option(out, probe.proved.as_ref(), |out, proved| out.extend(proved.to_le_bytes()));
    wait(out, probe.wait);
    number(out, probe.way);
    out.extend(u16::try_from(probe.path.len()).unwrap_or(u16::MAX).to_le_bytes());
    for step in &probe.path {
        wait(out, step.wait);
        number(out, step.way);
        number(out, step.hold);
    }
}

fn option<T>(out: &mut Vec<u8>, what: Option<&T>, write: impl FnOnce(&mut Vec<u8>, &T)) {
    out.push(u8::from(what.is_some()));
    if let Some(what) = what {
        write(out, what);
    }
}

/// The packet of a frame without its length.
///
/// # Errors
/// If the frame is invalid.
pub fn decode(frame: &[u8]) -> Result<Packet, Invalid> {
    let mut from = Reader(frame);
    let (number, acknowledged) = (from.number()?, from.number()?);
    let message = match from.byte()? {
        0 => None,
        1 => Some(Message::Registered { shard: from.short()?, epoch: from.number()? }),
        2 => {
            let (epoch, shard) = (from.number()?, from.short()?);
            let name = Name::in_shard(shard, from.bytes(NAME_MAX)?).ok_or(Invalid)?;
            let key = Key { name, range: from.range()? };
            Some(Message::Lock { epoch, key, body: from.body()? })
        }
        _ => return Err(Invalid),
    };
    if from.0.is_empty() { Ok(Packet { number, acknowledged, message }) } else { Err(Invalid) }
}

/// The bytes left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Invalid> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Invalid)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Invalid> {
        self.take(N)?.try_into().map_err(|_| Invalid)
    }

    fn byte(&mut self) -> Result<u8, Invalid> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Result<u16, Invalid> {
        self.array().map(u16::from_le_bytes)
    }

    fn number(&mut self) -> Result<u64, Invalid> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, Invalid> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Invalid),
        }
    }

    fn bytes(&mut self, max: usize) -> Result<&'a [u8], Invalid> {
        let length = usize::from(self.short()?);
        if length > max { Err(Invalid) } else { self.take(length) }
    }

    fn mode(&mut self) -> Result<Mode, Invalid> {
        Mode::from_number(self.byte()?).ok_or(Invalid)
    }

    fn token(&mut self) -> Result<Token, Invalid> {
        Ok(Token { epoch: self.number()?, number: self.number()? })
    }

    fn range(&mut self) -> Result<Range, Invalid> {
        Range::new(self.number()?, self.number()?).ok_or(Invalid)
    }

    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Invalid> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    fn value(&mut self) -> Result<Value, Invalid> {
        let version = (self.token()?, self.number()?);
        Ok(Value { version, is_certain: self.flag()?, bytes: self.bytes(VALUE_MAX)?.into() })
    }

    fn next(&mut self) -> Result<Next, Invalid> {
        Ok(Next {
            node: NodeId(self.number()?),
            range: self.range()?,
            mode: self.mode()?,
            token: self.token()?,
            serial: self.number()?,
        })
    }

    fn wait(&mut self) -> Result<WaitId, Invalid> {
        Ok(WaitId { number: self.number()?, node: NodeId(self.number()?) })
    }

    fn probe(&mut self) -> Result<Probe, Invalid> {
        let (first, round) = (self.wait()?, self.number()?);
        let (proved, wait, way) = (self.option(Self::short)?, self.wait()?, self.number()?);
        let length = usize::from(self.short()?);
        if length > PATH_MAX {
            return Err(Invalid);
        }
        let step = |_| Ok(ProbeStep { wait: self.wait()?, way: self.number()?, hold: self.number()? });
        let path = (0..length).map(step).collect::<Result<_, _>>()?;
        Ok(Probe { first, round, proved, wait, way, path })
    }

    fn links(&mut self) -> Result<Vec<RequestBefore>, Invalid> {
        let length = usize::from(self.byte()?);
        if length > LINKS_MAX {
            return Err(Invalid);
        }
        let link = |_| {
            let (node, range) = (NodeId(self.number()?), self.range()?);
            Ok(RequestBefore { node, range, serial: self.number()?, turn: self.number()? })
        };
        (0..length).map(link).collect()
    }

    fn body(&mut self) -> Result<Body, Invalid> {
        Ok(match self.byte()? {
            0 => Body::Request {
                serial: self.number()?,
                mode: self.mode()?,
                holds: self.option(Self::token)?,
                is_try: self.flag()?,
                converts: self.flag()?,
                turn: self.number()?,
            },
            1 => Body::Cancel { serial: self.number()? },
            2 => Body::Release {
                token: self.token()?,
                to: self.option(Self::mode)?,
                value: self.option(Self::value)?,
                answer: self.option(|from| Ok(Answer { token: from.token()?, is_handed: from.flag()? }))?,
            },
            3 => Body::Busy { token: self.token()? },
            4 => Body::Grant {
                serial: self.number()?,
                token: self.token()?,
                mode: self.mode()?,
                value: self.option(Self::value)?,
            },
            5 => Body::Denied { serial: self.number()? },
            6 => Body::Revoke {
                token: self.token()?,
                serial: self.number()?,
                knows: self.number()?,
                wanted: self.mode()?,
                is_try: self.flag()?,
                next: self.option(Self::next)?,
            },
            7 => Body::Held { mode: self.mode()?, token: self.token()?, value: self.option(Self::value)? },
            8 => Body::Blocked { serial: self.number()?, probe: self.probe()? },
            9 => Body::Blocks { wanted: self.mode()?, probe: self.probe()? },
            10 => Body::Behind {
                through: self.links()?,
                grant: (NodeId(self.number()?), self.range()?),
                wanted: self.mode()?,
                probe: self.probe()?,
            },
            _ => return Err(Invalid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::random::Random;

    fn packets() -> Vec<Packet> {
        let token = Token { epoch: 7, number: 9 };
        let value = Value { version: (token, 3), is_certain: true, bytes: vec![5; VALUE_MAX].into() };
        let next = Next { node: NodeId(3), range: Range::WHOLE, mode: Mode::Ex, token, serial: 4 };
        let answer = Some(Answer { token, is_handed: true });
        let wait = WaitId { number: 1, node: NodeId(2) };
        let path = vec![ProbeStep { wait, way: 3, hold: 4 }; PATH_MAX];
        let probe = Probe { first: wait, round: 5, proved: Some(6), wait, way: 7, path };
        let link = RequestBefore { node: NodeId(1), range: Range::WHOLE, serial: 2, turn: 3 };
        let bodies = [
            Body::Request {
                serial: 1,
                mode: Mode::Pw,
                holds: Some(token),
                is_try: true,
                converts: false,
                turn: 2,
            },
            Body::Cancel { serial: 2 },
            Body::Release { token, to: Some(Mode::Pr), value: Some(value.clone()), answer },
            Body::Busy { token },
            Body::Grant { serial: 3, token, mode: Mode::Cr, value: Some(value.clone()) },
            Body::Denied { serial: 4 },
            Body::Revoke { token, serial: 1, knows: 2, wanted: Mode::Nl, is_try: false, next: Some(next) },
            Body::Held { mode: Mode::Cw, token, value: Some(value) },
            Body::Blocked { serial: 6, probe: probe.clone() },
            Body::Blocks { wanted: Mode::Pr, probe: probe.clone() },
            Body::Behind {
                through: vec![link; LINKS_MAX],
                grant: (NodeId(8), Range::WHOLE),
                wanted: Mode::Ex,
                probe,
            },
        ];
        let key = Key::whole(Name::in_shard(5, &[b'x'; NAME_MAX]).expect("short enough"));
        let lock = |body| Message::Lock { epoch: 7, key: key.clone(), body };
        let messages = bodies.into_iter().map(lock).chain([Message::Registered { shard: 1, epoch: 2 }]);
        let messages = messages.map(Some).chain([None]);
        messages.map(|message| Packet { number: 11, acknowledged: 10, message }).collect()
    }

    #[test]
    fn what_is_written_is_read_again_and_fits_a_frame() {
        for packet in packets() {
            let mut frame = Vec::new();
            encode(&packet, &mut frame);
            assert!(frame.len() - 4 <= FRAME_MAX, "{}", frame.len());
            assert_eq!(decode(&frame[4..]), Ok(packet));
        }
    }

    #[test]
    fn damaged_frames_are_refused_or_read_as_another_packet_and_never_panic() {
        let mut random = Random::new(1);
        for packet in packets() {
            let mut frame = Vec::new();
            encode(&packet, &mut frame);
            for cut in 4..frame.len() {
                assert_eq!(decode(&frame[4..cut]), Err(Invalid), "cut at {cut}");
            }
            for _ in 0..2_000 {
                let mut damaged = frame[4..].to_vec();
                for _ in 0..=random.below(4) {
                    let at = random.below(damaged.len());
                    damaged[at] = random.below(u8::MAX);
                }
                let _ = decode(&damaged);
            }
        }
        for _ in 0..20_000 {
            let noise: Vec<_> = (0..random.below(120)).map(|_| random.below(u8::MAX)).collect();
            let _ = decode(&noise);
        }
    }
}
