//! Request: one message from the kernel, taken apart without trusting its bytes.
//!
//! # Theory
//! A message is a header, a fixed layout that the opcode names, and for some opcodes names (NUL-terminated)
//! or data behind it. [`Request::parse`] checks every length before it looks, so that the handler meets
//! only complete requests with well-formed names. Bytes after the last field are ignored: newer kernels
//! append fields and extensions.

use crate::abi::{self, opcode};
use sluice_vfs::Errno;
use zerocopy::{FromBytes, IntoBytes};

/// One request, borrowed from the buffer that it was read into.
#[derive(Debug)]
pub struct Request<'a> {
    /// Its header.
    pub header: abi::InHeader,
    /// Its operation.
    pub operation: Operation<'a>,
}

/// The operation of a request.
#[derive(Debug)]
#[allow(missing_docs)] // the kernel's names
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget(abi::ForgetIn),
    BatchForget(Forgets<'a>),
    Access(abi::AccessIn),
    Getattr,
    Setattr(abi::SetattrIn),
    Statx,
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        arg: abi::MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        arg: abi::MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        newdir: u64,
        flags: u32,
        old: &'a [u8],
        new: &'a [u8],
    },
    Link {
        oldnodeid: u64,
        name: &'a [u8],
    },
    Open(abi::OpenIn),
    Opendir,
    Create {
        arg: abi::CreateIn,
        name: &'a [u8],
    },
    Tmpfile(abi::CreateIn),
    Read(abi::ReadIn),
    Write {
        arg: abi::WriteIn,
        data: &'a [u8],
    },
    Readdir(abi::ReadIn),
    Readdirplus(abi::ReadIn),
    Release(abi::ReleaseIn),
    Releasedir,
    Flush(abi::FlushIn),
    Fsync,
    Fsyncdir,
    Syncfs,
    Statfs,
    Setxattr {
        arg: abi::SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Getlk(abi::LkIn),
    Setlk {
        arg: abi::LkIn,
        wait: bool,
    },
    Interrupt(abi::InterruptIn),
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyFileRange {
        arg: abi::CopyFileRangeIn,
        wide_reply: bool,
    },
    Init(abi::InitIn),
    Destroy,
    Ioctl {
        arg: abi::IoctlIn,
        data: &'a [u8],
    },
    /// Known or not, this opcode is never served.
    Unserved,
}

/// The nodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Each node and how many lookups of it to give back.
    pub fn iter(&self) -> impl Iterator<Item = abi::ForgetOne> {
        self.0
            .chunks_exact(size_of::<abi::ForgetOne>())
            .filter_map(|bytes| abi::ForgetOne::read_from_bytes(bytes).ok())
    }
}

/// A message that is not a request. When its header was whole, `unique` says which request to answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The request.
    pub unique: Option<u64>,
    /// Its answer.
    pub errno: Errno,
}

impl<'a> Request<'a> {
    /// Takes `bytes`, one whole message, apart.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let Ok((header, _)) = abi::InHeader::read_from_prefix(bytes) else {
            return Err(Malformed { unique: None, errno: Errno::EIO });
        };
        let malformed = |errno| match header.opcode {
            // These are never answered.
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Malformed { unique: None, errno },
            _ => Malformed { unique: Some(header.unique), errno },
        };
        if header.len as usize != bytes.len() {
            return Err(malformed(Errno::EIO));
        }
        let body = MessageRest(&bytes[size_of::<abi::InHeader>()..]);
        let operation = Operation::parse(header.opcode, body).map_err(malformed)?;
        Ok(Request { header, operation })
    }
}

impl<'a> Operation<'a> {
    fn parse(opcode: u32, mut body: MessageRest<'a>) -> Result<Operation<'a>, Errno> {
        Ok(match opcode {
            opcode::LOOKUP => Operation::Lookup { name: body.name_or_dots()? },
            opcode::FORGET => Operation::Forget(body.fixed()?),
            opcode::BATCH_FORGET => {
                let arg: abi::BatchForgetIn = body.fixed()?;
                let len =
                    (arg.count as usize).checked_mul(size_of::<abi::ForgetOne>()).ok_or(Errno::EINVAL)?;
                Operation::BatchForget(Forgets(body.bytes(len)?))
            }
            opcode::ACCESS => Operation::Access(body.fixed()?),
            opcode::GETATTR => Operation::Getattr,
            opcode::SETATTR => Operation::Setattr(body.fixed()?),
            opcode::STATX => Operation::Statx,
            opcode::READLINK => Operation::Readlink,
            opcode::SYMLINK => Operation::Symlink { name: body.name()?, target: body.string()? },
            opcode::MKNOD => Operation::Mknod { arg: body.fixed()?, name: body.name()? },
            opcode::MKDIR => Operation::Mkdir { arg: body.fixed()?, name: body.name()? },
            opcode::UNLINK => Operation::Unlink { name: body.name()? },
            opcode::RMDIR => Operation::Rmdir { name: body.name()? },
            opcode::RENAME => {
                let arg: abi::RenameIn = body.fixed()?;
                Operation::Rename { newdir: arg.newdir, flags: 0, old: body.name()?, new: body.name()? }
            }
            opcode::RENAME2 => {
                let arg: abi::Rename2In = body.fixed()?;
                Operation::Rename {
                    newdir: arg.newdir,
                    flags: arg.flags,
                    old: body.name()?,
                    new: body.name()?,
                }
            }
            opcode::LINK => {
                let arg: abi::LinkIn = body.fixed()?;
                Operation::Link { oldnodeid: arg.oldnodeid, name: body.name()? }
            }
            opcode::OPEN => Operation::Open(body.fixed()?),
            opcode::OPENDIR => Operation::Opendir,
            opcode::CREATE => Operation::Create { arg: body.fixed()?, name: body.name()? },
            opcode::TMPFILE => Operation::Tmpfile(body.fixed()?),
            opcode::READ => Operation::Read(body.fixed()?),
            opcode::WRITE => {
                let arg: abi::WriteIn = body.fixed()?;
                Operation::Write { arg, data: body.bytes(arg.size as usize)? }
            }
            opcode::READDIR => Operation::Readdir(body.fixed()?),
            opcode::READDIRPLUS => Operation::Readdirplus(body.fixed()?),
            opcode::RELEASE => Operation::Release(body.fixed()?),
            opcode::RELEASEDIR => Operation::Releasedir,
            opcode::FLUSH => Operation::Flush(body.fixed()?),
            opcode::FSYNC => Operation::Fsync,
            opcode::FSYNCDIR => Operation::Fsyncdir,
            opcode::SYNCFS => Operation::Syncfs,
            opcode::STATFS => Operation::Statfs,
            opcode::SETXATTR => {
                let arg: abi::SetxattrIn = body.fixed()?;
                Operation::Setxattr { arg, name: body.string()?, value: body.bytes(arg.size as usize)? }
            }
            opcode::GETXATTR => {
                let arg: abi::GetxattrIn = body.fixed()?;
                Operation::Getxattr { size: arg.size, name: body.string()? }
            }
            opcode::LISTXATTR => {
                let arg: abi::GetxattrIn = body.fixed()?;
                Operation::Listxattr { size: arg.size }
            }
            opcode::REMOVEXATTR => Operation::Removexattr { name: body.string()? },
            opcode::GETLK => Operation::Getlk(body.fixed()?),
            opcode::SETLK => Operation::Setlk { arg: body.fixed()?, wait: false },
            opcode::SETLKW => Operation::Setlk { arg: body.fixed()?, wait: true },
            opcode::INTERRUPT => Operation::Interrupt(body.fixed()?),
            opcode::FALLOCATE => Operation::Fallocate(body.fixed()?),
            opcode::LSEEK => Operation::Lseek(body.fixed()?),
            opcode::COPY_FILE_RANGE => Operation::CopyFileRange { arg: body.fixed()?, wide_reply: false },
            opcode::COPY_FILE_RANGE_64 => Operation::CopyFileRange { arg: body.fixed()?, wide_reply: true },
            opcode::INIT => Operation::Init(body.init()?),
            opcode::DESTROY => Operation::Destroy,
            opcode::IOCTL => {
                let arg: abi::IoctlIn = body.fixed()?;
                Operation::Ioctl { arg, data: body.bytes(arg.in_size as usize)? }
            }
            _ => Operation::Unserved,
        })
    }
}

/// The unread rest of a message.
struct MessageRest<'a>(&'a [u8]);

impl<'a> MessageRest<'a> {
    /// The next fixed layout.
    fn fixed<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::EINVAL)?;
        self.0 = rest;
        Ok(value)
    }

    /// The next `len` bytes.
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::EINVAL)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// The next NUL-terminated string, without its NUL.
    fn string(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
        let string = self.bytes(end)?;
        self.bytes(1)?;
        Ok(string)
    }

    /// The next string, which must be able to name a directory entry.
    fn name(&mut self) -> Result<&'a [u8], Errno> {
        match self.name_or_dots()? {
            b"." | b".." => Err(Errno::EINVAL),
            name => Ok(name),
        }
    }

    /// Reads a name, "." or "..".
    fn name_or_dots(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.string()?;
        if name.is_empty() || name.contains(&b'/') { Err(Errno::EINVAL) } else { Ok(name) }
    }

    /// INIT, which older kernels send without its second half.
    fn init(&mut self) -> Result<abi::InitIn, Errno> {
        const FIRST_VERSION: usize = 16;
        let mut whole = [0; size_of::<abi::InitIn>()];
        let len = self.0.len().min(whole.len());
        if len < FIRST_VERSION {
            return Err(Errno::EINVAL);
        }
        whole[..len].copy_from_slice(&self.0[..len]);
        abi::InitIn::read_from_bytes(&whole).map_err(|_| Errno::EINVAL)
    }
}

/// The bytes of a request: `header`, whose length is set here, and the parts of its body.
pub fn request_bytes(header: abi::InHeader, body: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<abi::InHeader>() + body.iter().map(|part| part.len()).sum::<usize>();
    let header = abi::InHeader { len: u32::try_from(len).unwrap_or(u32::MAX), ..header };
    [&[header.as_bytes()], body].concat().concat()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sluice_sync::random::Random;
    use zerocopy::FromZeros;

    /// A whole message with the given opcode, node and body.
    pub(crate) fn message(opcode: u32, nodeid: u64, body: &[&[u8]]) -> Vec<u8> {
        super::request_bytes(
            abi::InHeader { opcode, unique: 7, nodeid, pid: 1, ..abi::InHeader::new_zeroed() },
            body,
        )
    }

    #[test]
    fn a_rename_has_two_names() {
        let arg = abi::RenameIn { newdir: 5 };
        let bytes = message(opcode::RENAME, 1, &[arg.as_bytes(), b"old\0new\0"]);
        let request = Request::parse(&bytes).expect("this is a whole request");
        match request.operation {
            Operation::Rename { newdir: 5, flags: 0, old: b"old", new: b"new" } => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_that_no_directory_can_hold_are_refused() {
        for name in [&b"\0"[..], b".\0", b"..\0", b"a/b\0", b"no end"] {
            let bytes = message(opcode::UNLINK, 1, &[name]);
            let error = Request::parse(&bytes).expect_err("a bad name");
            assert_eq!(error, Malformed { unique: Some(7), errno: Errno::EINVAL });
            // Which is how the kernel looks for a node by its number.
            let is_looked_up = Request::parse(&message(opcode::LOOKUP, 1, &[name])).is_ok();
            assert_eq!(is_looked_up, name.starts_with(b"."));
        }
    }

    #[test]
    fn a_write_that_claims_more_data_than_it_brings_is_refused() {
        let arg =
            abi::WriteIn { fh: 0, offset: 0, size: 5, write_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
        let whole = message(opcode::WRITE, 2, &[arg.as_bytes(), b"12345"]);
        assert!(Request::parse(&whole).is_ok());
        let short = message(opcode::WRITE, 2, &[arg.as_bytes(), b"1234"]);
        assert!(Request::parse(&short).is_err());
    }

    #[test]
    fn a_message_shorter_than_a_header_cannot_be_answered() {
        assert_eq!(Request::parse(&[0; 39]).expect_err("too short").unique, None);
    }

    #[test]
    fn no_message_makes_the_parser_panic() {
        let mut random = Random::new(0x5eed);
        let mut bytes = vec![0_u8; 256];
        for round in 0..200_000_u64 {
            bytes.resize(random.below(256), 0);
            bytes.iter_mut().for_each(|byte| *byte = random.bits() as u8);
            // Three of four messages have a true length and a known opcode, so that the bodies are reached.
            if round % 4 != 0 && bytes.len() >= 40 {
                let len = bytes.len() as u32;
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
                bytes[4..8].copy_from_slice(&(random.below(opcode::COUNT) as u32).to_ne_bytes());
            }
            if let Ok(Request { operation: Operation::BatchForget(forgets), .. }) = Request::parse(&bytes) {
                assert!(forgets.iter().count() * 16 <= bytes.len());
            }
        }
    }
}

/// A lock request.
#[derive(Clone, Copy)]
pub(crate) struct LockRequest {
    pub(crate) header: abi::InHeader,
    pub(crate) ask: Ask,
    pub(crate) arg: abi::LkIn,
}

/// The kind of a lock request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// GETLK: what is in the way.
    Test,
    /// SETLK: the lock, now or not at all.
    Try,
    /// SETLKW: the lock.
    Wait,
}
