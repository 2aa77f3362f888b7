//! HolderLink: what a holder and a server say to each other, with the descriptors that go along.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use sluice_fuse::{HeldMount, Restarts};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest message.
const MESSAGE_MAX: usize = 64 << 10;
/// Descriptors of a mount: its device, and the memory of its changes.
const DESCRIPTORS: usize = 2;

/// A message.
#[derive(Debug)]
pub(crate) enum HolderMessage {
    /// To a server: it is to mount.
    Mount,
    /// To a server: the order to take over this mount.
    Resume(HeldMount, Restarts),
    /// From a server: this is to be kept.
    Hold(HeldMount),
    /// From a server: it serves.
    Serves,
    /// From a server: it ends as it should.
    Ends,
    /// From a server: it cannot go on, for this reason.
    Fails(String),
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

    /// The server's end, which is standard input until then.
    pub(crate) fn of_server(nowhere: &OwnedFd) -> io::Result<HolderLink> {
        let link = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        rustix::stdio::dup2_stdin(nowhere)?;
        Ok(HolderLink(link))
    }

    pub(crate) fn say(&self, word: &HolderMessage) -> io::Result<()> {
        match word {
            HolderMessage::Mount => self.send(b'm', &[], None),
            HolderMessage::Resume(mount, restarts) => {
                let cause = restarts.cause.as_deref().unwrap_or_default().as_bytes();
                let numbers = [restarts.count, cause.len() as u64].map(u64::to_le_bytes).concat();
                self.send(b'r', &[&numbers, cause, &mount.state], Some(mount))
            }
            HolderMessage::Hold(mount) => self.send(b'h', &[&mount.state], Some(mount)),
            HolderMessage::Serves => self.send(b's', &[], None),
            HolderMessage::Ends => self.send(b'e', &[], None),
            HolderMessage::Fails(why) => {
                self.send(b'f', &[&why.as_bytes()[..why.len().min(MESSAGE_MAX / 2)]], None)
            }
        }
    }

    fn send(&self, kind: u8, parts: &[&[u8]], mount: Option<&HeldMount>) -> io::Result<()> {
        let message = [&[kind], parts.concat().as_slice()].concat();
        let descriptors: Vec<BorrowedFd<'_>> =
            mount.iter().flat_map(|mount| [mount.device.as_fd(), mount.changes.as_fd()]).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            // There is room for so many.
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
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
        let mut descriptors = descriptors.flatten();
        let mut held = |state: &[u8]| {
            let mount = descriptors.next().zip(descriptors.next());
            mount.map(|(device, changes)| HeldMount { state: state.to_vec(), device, changes })
        };
        let Some((kind, rest)) = message[..received.bytes].split_first() else { return Ok(None) };
        let word = match kind {
            b'm' => Some(HolderMessage::Mount),
            b'r' => resumed(rest)
                .and_then(|(restarts, state)| Some(HolderMessage::Resume(held(state)?, restarts))),
            b'h' => held(rest).map(HolderMessage::Hold),
            b's' => Some(HolderMessage::Serves),
            b'e' => Some(HolderMessage::Ends),
            b'f' => Some(HolderMessage::Fails(String::from_utf8_lossy(rest).into_owned())),
            _ => None,
        };
        word.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl AsFd for HolderLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The restarts in a message, and the rest of it.
fn resumed(message: &[u8]) -> Option<(Restarts, &[u8])> {
    let (count, rest) = message.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (cause, state) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
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
        for word in [
            HolderMessage::Mount,
            HolderMessage::Resume(mount(), restarts.clone()),
            HolderMessage::Hold(mount()),
            HolderMessage::Serves,
            HolderMessage::Ends,
            HolderMessage::Fails("no disk".into()),
        ] {
            ours.say(&word).expect("sent");
            let heard = theirs.hear().expect("heard").expect("a word");
            match (&word, heard) {
                (HolderMessage::Resume(said, _), HolderMessage::Resume(heard, told)) => {
                    assert_eq!((&said.state, &restarts), (&heard.state, &told));
                }
                (HolderMessage::Hold(said), HolderMessage::Hold(heard)) => {
                    assert_eq!(said.state, heard.state)
                }
                (HolderMessage::Fails(said), HolderMessage::Fails(heard)) => assert_eq!(*said, heard),
                (said, heard) => assert_eq!(format!("{said:?}"), format!("{heard:?}")),
            }
        }
        // Without its descriptors; cut short; of no kind.
        for noise in [b"h123".as_slice(), b"r", &[b"r".as_slice(), &[255; 20]].concat(), b"?"] {
            ours.send(noise[0], &[&noise[1..]], None).expect("sent");
            assert!(theirs.hear().is_err(), "{noise:?}");
        }
        drop(ours);
        assert!(theirs.hear().expect("an end").is_none());
    }
}
