//! HolderLink: what a holder and a server say to each other, with the descriptors that go along.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use sluice_fuse::{HeldMount, Restarts};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The version of these messages: a holder and a server that have another one do not go together.
pub(crate) const PROTOCOL: &str = "sluice holder protocol 1";
/// The longest message.
const MESSAGE_MAX: usize = 64 << 10;
/// The most descriptors in a message.
const DESCRIPTORS: usize = 4;

/// A message.
#[derive(Debug)]
pub(crate) enum HolderMessage {
    /// To a server: it is to mount.
    Mount,
    /// To a server: the order to take over this mount.
    Resume(HeldMount, Restarts),
    /// To a server: it may get this order soon. From a holder that speaks this protocol.
    Prepare(HeldMount, String),
    /// To a server: it will be replaced, and brings to the store what it can while it serves.
    Push,
    /// To a server: the next one is prepared, so that it is to leave.
    Leave,
    /// To a server: it is to say how many requests it has answered.
    Look,
    /// From a server: so many, and so many it serves now.
    Answered(u64, u64),
    /// From a server: this is to be kept.
    Hold(HeldMount),
    /// From a server: it can take over the mount. It is of this version.
    Prepared(String),
    /// From a server: it serves.
    Serves,
    /// From a server: somebody, who waits for the answer, wants it to be replaced by one of this program.
    Upgrade(OwnedFd, UnixStream),
    /// From a server: it has pushed.
    Pushed,
    /// From a server: it serves on, for this reason.
    Stays(String),
    /// From a server: everything is in the store, and the process ends.
    Left,
    /// From a server: it ends as it should.
    Ends,
    /// From a server: it cannot go on, for this reason.
    Fails(String),
    /// From a server, after it: what it lacks is room on the disk of the store. A holder of an earlier version hears nothing behind it.
    LacksRoom,
    /// From a holder to the program that is executed in its place.
    Succeed(Box<Succession>),
}

/// The knowledge of a holder, for the program that is executed in its place.
#[derive(Debug)]
pub(crate) struct Succession {
    pub(crate) mount: HeldMount,
    pub(crate) restarts: Restarts,
    /// The working directory at the start.
    pub(crate) place: PathBuf,
    /// The server's process, and the socket to it.
    pub(crate) server: u32,
    pub(crate) link: OwnedFd,
    /// The client that waits for the end of the upgrade.
    pub(crate) client: UnixStream,
}

/// One end of the socket between a holder and a server.
#[derive(Debug)]
pub(crate) struct HolderLink(OwnedFd);

impl HolderLink {
    /// The holder's end, and the server's.
    pub(crate) fn pair() -> io::Result<(HolderLink, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((HolderLink(ours), theirs))
    }

    /// The end that is standard input until then.
    pub(crate) fn of_stdin(nowhere: &OwnedFd) -> io::Result<HolderLink> {
        let link = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        rustix::stdio::dup2_stdin(nowhere)?;
        Ok(HolderLink(link))
    }

    pub(crate) fn of(socket: OwnedFd) -> HolderLink {
        HolderLink(socket)
    }

    /// The same socket once more.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    pub(crate) fn say(&self, word: &HolderMessage) -> io::Result<()> {
        let cut = |text: &str| text.as_bytes()[..text.len().min(MESSAGE_MAX / 2)].to_vec();
        match word {
            HolderMessage::Mount => self.send(b'm', &[], &[]),
            HolderMessage::Resume(mount, restarts) => {
                self.send(b'r', &[&told(restarts), &mount.state], &of_mount(mount))
            }
            HolderMessage::Prepare(mount, protocol) => {
                let parts = [&framed(protocol.as_bytes()), &mount.state[..]];
                self.send(b'p', &parts, &of_mount(mount))
            }
            HolderMessage::Push => self.send(b'u', &[], &[]),
            HolderMessage::Leave => self.send(b'l', &[], &[]),
            HolderMessage::Look => self.send(b'q', &[], &[]),
            HolderMessage::Answered(number, serving) => {
                self.send(b'a', &[&number.to_le_bytes(), &serving.to_le_bytes()], &[])
            }
            HolderMessage::Hold(mount) => self.send(b'h', &[&mount.state], &of_mount(mount)),
            HolderMessage::Prepared(version) => self.send(b'P', &[&cut(version)], &[]),
            HolderMessage::Serves => self.send(b's', &[], &[]),
            HolderMessage::Upgrade(program, client) => {
                self.send(b'U', &[], &[program.as_fd(), client.as_fd()])
            }
            HolderMessage::Pushed => self.send(b'd', &[], &[]),
            HolderMessage::Stays(why) => self.send(b'S', &[&cut(why)], &[]),
            HolderMessage::Left => self.send(b'L', &[], &[]),
            HolderMessage::Ends => self.send(b'e', &[], &[]),
            HolderMessage::Fails(why) => self.send(b'f', &[&cut(why)], &[]),
            HolderMessage::LacksRoom => self.send(b'n', &[], &[]),
            HolderMessage::Succeed(succession) => {
                let Succession { mount, restarts, place, server, link, client } = &**succession;
                let place = framed(place.as_os_str().as_bytes());
                let parts = [&server.to_le_bytes()[..], &place, &told(restarts), &mount.state];
                let [device, changes] = of_mount(mount);
                self.send(b'X', &parts, &[device, changes, link.as_fd(), client.as_fd()])
            }
        }
    }

    fn send(&self, kind: u8, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = [&[kind], parts.concat().as_slice()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            // There is room for so many.
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message; none if the other end is closed.
    ///
    /// # Errors
    /// The system's; `InvalidData` for a message of another version.
    pub(crate) fn hear(&self) -> io::Result<Option<HolderMessage>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut message = vec![0; MESSAGE_MAX];
        let received = loop {
            let mut buffer = [IoSliceMut::new(&mut message)];
            match recvmsg(&self.0, &mut buffer, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                received => break received?,
            }
        };
        let descriptors = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
        let Some((kind, rest)) = message[..received.bytes].split_first() else { return Ok(None) };
        let word = understood(*kind, rest, descriptors);
        word.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl AsFd for HolderLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Decodes a message of this `kind`. None for noise.
fn understood(kind: u8, rest: &[u8], descriptors: Vec<OwnedFd>) -> Option<HolderMessage> {
    let mut descriptors = descriptors.into_iter();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut held = |state: &[u8]| {
        let (device, changes) = descriptors.next().zip(descriptors.next())?;
        Some(HeldMount { state: state.to_vec(), device, changes })
    };
    Some(match kind {
        b'm' => HolderMessage::Mount,
        b'r' => {
            let (restarts, state) = resumed(rest)?;
            HolderMessage::Resume(held(state)?, restarts)
        }
        b'p' => {
            let (protocol, state) = unframed(rest)?;
            HolderMessage::Prepare(held(state)?, text(protocol))
        }
        b'u' => HolderMessage::Push,
        b'l' => HolderMessage::Leave,
        b'q' => HolderMessage::Look,
        b'a' => {
            let (number, serving) = rest.split_first_chunk()?;
            let serving = u64::from_le_bytes(serving.try_into().ok()?);
            HolderMessage::Answered(u64::from_le_bytes(*number), serving)
        }
        b'h' => HolderMessage::Hold(held(rest)?),
        b'P' => HolderMessage::Prepared(text(rest)),
        b's' => HolderMessage::Serves,
        b'U' => HolderMessage::Upgrade(descriptors.next()?, descriptors.next()?.into()),
        b'd' => HolderMessage::Pushed,
        b'S' => HolderMessage::Stays(text(rest)),
        b'L' => HolderMessage::Left,
        b'e' => HolderMessage::Ends,
        b'f' => HolderMessage::Fails(text(rest)),
        b'n' => HolderMessage::LacksRoom,
        b'X' => {
            let (server, rest) = rest.split_first_chunk()?;
            let (place, rest) = unframed(rest)?;
            let (restarts, state) = resumed(rest)?;
            let (mount, place) = (held(state)?, OsString::from_vec(place.to_vec()).into());
            let (link, client) = (descriptors.next()?, descriptors.next()?.into());
            let server = u32::from_le_bytes(*server);
            HolderMessage::Succeed(Box::new(Succession { mount, restarts, place, server, link, client }))
        }
        _ => return None,
    })
}

fn of_mount(mount: &HeldMount) -> [BorrowedFd<'_>; 2] {
    [mount.device.as_fd(), mount.changes.as_fd()]
}

/// `bytes` behind their length.
fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// The bytes that stand behind their length, and the rest.
fn unframed(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = message.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

fn told(restarts: &Restarts) -> Vec<u8> {
    let cause = restarts.cause.as_deref().unwrap_or_default().as_bytes();
    [&restarts.count.to_le_bytes()[..], &framed(cause)].concat()
}

/// The restarts in a message, and the rest of it.
fn resumed(message: &[u8]) -> Option<(Restarts, &[u8])> {
    let (count, rest) = message.split_first_chunk()?;
    let (cause, state) = unframed(rest)?;
    let cause = String::from_utf8_lossy(cause).into_owned();
    Some((Restarts { count: u64::from_le_bytes(*count), cause: Some(cause) }, state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_mount_and_what_happened_to_it_arrive_and_noise_is_refused() {
        let (ours, theirs) = HolderLink::pair().expect("a socket");
        let theirs = HolderLink(theirs);
        let null = || OwnedFd::from(File::open("/dev/null").expect("it is there"));
        let mount = || HeldMount { state: vec![7; 100], device: null(), changes: null() };
        let restarts = Restarts { count: 3, cause: Some("signal 9".into()) };
        let succession = Succession {
            mount: mount(),
            restarts: restarts.clone(),
            place: "/a/b".into(),
            server: 77,
            link: null(),
            client: null().into(),
        };
        for word in [
            HolderMessage::Mount,
            HolderMessage::Resume(mount(), restarts.clone()),
            HolderMessage::Prepare(mount(), PROTOCOL.into()),
            HolderMessage::Push,
            HolderMessage::Leave,
            HolderMessage::Look,
            HolderMessage::Answered(7, 2),
            HolderMessage::Hold(mount()),
            HolderMessage::Prepared("9.9.9".into()),
            HolderMessage::Serves,
            HolderMessage::Upgrade(null(), null().into()),
            HolderMessage::Pushed,
            HolderMessage::Stays("a call hangs".into()),
            HolderMessage::Left,
            HolderMessage::Ends,
            HolderMessage::Fails("no disk".into()),
            HolderMessage::LacksRoom,
            HolderMessage::Succeed(Box::new(succession)),
        ] {
            ours.say(&word).expect("sent");
            let heard = theirs.hear().expect("heard").expect("a word");
            match (&word, heard) {
                (HolderMessage::Resume(said, _), HolderMessage::Resume(heard, told)) => {
                    assert_eq!((&said.state, &restarts), (&heard.state, &told));
                }
                (HolderMessage::Prepare(said, _), HolderMessage::Prepare(heard, protocol)) => {
                    assert_eq!((&said.state, PROTOCOL), (&heard.state, protocol.as_str()));
                }
                (HolderMessage::Hold(said), HolderMessage::Hold(heard)) => {
                    assert_eq!(said.state, heard.state)
                }
                (HolderMessage::Upgrade(..), HolderMessage::Upgrade(..)) => {}
                (HolderMessage::Succeed(said), HolderMessage::Succeed(heard)) => {
                    assert_eq!((&said.place, said.server), (&heard.place, heard.server));
                    assert_eq!((&said.mount.state, &restarts), (&heard.mount.state, &heard.restarts));
                }
                (said, heard) => assert_eq!(format!("{said:?}"), format!("{heard:?}")),
            }
        }
        // Without its descriptors; cut short; of no kind.
        for noise in [
            b"h123".as_slice(),
            b"r",
            &[b"r".as_slice(), &[255; 20]].concat(),
            b"p",
            b"U",
            b"a1234567",
            b"X",
            &[b"X".as_slice(), &[0; 40]].concat(),
            b"?",
        ] {
            ours.send(noise[0], &[&noise[1..]], &[]).expect("sent");
            assert!(theirs.hear().is_err(), "{noise:?}");
        }
        drop(ours);
        assert!(theirs.hear().expect("an end").is_none());
    }
}
