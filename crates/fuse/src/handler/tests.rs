//! The handler against messages that no kernel would send, and against cut-off ones that one would.

mod hostile;
mod locks;
mod writeback;

use crate::abi::{self, opcode};
use crate::connection::Connection;
use crate::reply::Reply;
use crate::request::tests::message;
use crate::transport::Channel;
use crate::{LockMode, MountOptions};
use sluice_sync::{Arc, Mutex, mpsc};
use sluice_vfs::{Fs, OpenFlags, Options, Superblock};
use std::io;
use zerocopy::IntoBytes;

/// The device number of the mount.
const DEV: u64 = 99;

/// Keeps what was sent.
#[derive(Default)]
struct Recorder(Mutex<Vec<Vec<u8>>>);

impl Channel for Recorder {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        self.0.lock().push(message.to_vec());
        Ok(())
    }
}

/// A small tree behind a connection that has seen INIT and a lookup of each name.
struct Looked {
    recorder: Arc<Recorder>,
    connection: Connection,
    /// The nodes of `/`, `/a`, `/a/b`, `/a/f` and `/a/l`: each CPU numbers its files from a range of its own, so
    /// only the answers tell them.
    nodes: [u64; 5],
}

impl Looked {
    const ROOT: usize = 0;
    const DIR: usize = 1;
    const FILE: usize = 3;
}

fn connection(locks: LockMode) -> Looked {
    connection_with(MountOptions { locks, ..MountOptions::default() })
}

fn connection_with(options: MountOptions) -> Looked {
    let superblock = Superblock::new(Options::default().size_limit(4 << 20));
    let fs = Fs::with_superblock(superblock.clone());
    fs.create_dir_all("/a/b").expect("the tree is empty");
    fs.write("/a/f", "contents").expect("the name is free");
    fs.symlink("f", "/a/l").expect("the name is free");
    let recorder = Arc::new(Recorder::default());
    let connection = Connection::new(superblock, options, DEV, recorder.clone(), mpsc::channel().0);
    let init = abi::InitIn {
        major: 7,
        minor: 45,
        max_readahead: 0,
        flags: u32::MAX,
        flags2: u32::MAX,
        unused: [0; 11],
    };
    connection.serve(&message(opcode::INIT, 0, &[init.as_bytes()]), &mut Reply::new());
    let mut nodes = [1; 5];
    let names =
        [(Looked::ROOT, &b"a\0"[..]), (Looked::DIR, b"b\0"), (Looked::DIR, b"f\0"), (Looked::DIR, b"l\0")];
    for (known, (dir, name)) in names.into_iter().enumerate() {
        recorder.0.lock().clear();
        connection.serve(&message(opcode::LOOKUP, nodes[dir], &[name]), &mut Reply::new());
        let reply = recorder.0.lock().pop().expect("a lookup is answered");
        nodes[known + 1] = u64::from_ne_bytes(reply[16..24].try_into().expect("eight bytes"));
    }
    Looked { recorder, connection, nodes }
}

#[test]
fn a_cut_off_request_is_refused() {
    let Looked { recorder, connection, .. } = connection(LockMode::Kernel);
    let arg = abi::MkdirIn { mode: 0o755, umask: 0 };
    let whole = message(opcode::MKDIR, 1, &[arg.as_bytes(), b"new\0"]);
    for len in 40..whole.len() {
        let mut cut = whole[..len].to_vec();
        cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        connection.serve(&cut, &mut Reply::new());
        let reply = recorder.0.lock().pop().expect("the header was whole");
        assert_eq!(reply[4..8], (-22_i32).to_ne_bytes());
    }
    connection.serve(&whole, &mut Reply::new());
    let reply = recorder.0.lock().pop().expect("it is answered");
    assert_eq!((reply.len(), &reply[4..8]), (16 + 128, &[0; 4][..]));
}

#[test]
fn a_kernel_that_is_too_old_is_refused() {
    let recorder = Arc::new(Recorder::default());
    let superblock = Superblock::new(Options::default());
    let connection =
        Connection::new(superblock, MountOptions::default(), DEV, recorder.clone(), mpsc::channel().0);
    let init =
        abi::InitIn { major: 7, minor: 31, max_readahead: 0, flags: u32::MAX, flags2: 0, unused: [0; 11] };
    connection.serve(&message(opcode::INIT, 0, &[init.as_bytes()]), &mut Reply::new());
    assert!(connection.negotiated.get().is_none());
    assert_eq!(recorder.0.lock()[0][4..8], (-95_i32).to_ne_bytes());
}

#[test]
fn a_file_that_somebody_else_has_made_is_opened_for_its_owner_and_exists_for_a_caller_that_wants_a_new_one() {
    let Looked { recorder, connection, nodes } = connection(LockMode::Sluice);
    // As when it was made after the kernel had looked. For another than its owner the kernel is to look again.
    let (owner, uid) = (0, std::mem::offset_of!(abi::InHeader, uid));
    for (flags, user, errno) in [
        (OpenFlags::CREAT | OpenFlags::RDWR, owner, 0_i32),
        (OpenFlags::CREAT | OpenFlags::RDWR, 7, -116),
        (OpenFlags::CREAT | OpenFlags::EXCL, owner, -17),
    ] {
        let arg = abi::CreateIn { flags: flags.bits(), mode: 0o644, umask: 0, open_flags: 0 };
        let mut create = message(opcode::CREATE, nodes[Looked::DIR], &[arg.as_bytes(), b"f\0"]);
        create[uid..uid + 4].copy_from_slice(&u32::to_ne_bytes(user));
        connection.serve(&create, &mut Reply::new());
        let reply = recorder.0.lock().pop().expect("it is answered");
        assert_eq!(reply[4..8], errno.to_ne_bytes(), "{flags:?}");
    }
}
