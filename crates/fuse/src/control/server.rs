//! The answering side.

use super::order::{about, about_up_to, read_line};
use super::socket_file::SocketFile;
use super::stat::{self, hot};
use super::{
    LOCKS_IN_KERNEL, OK, PATIENCE, abstract_name, connect, ending, faults, is_trusted, pid_namespace, quota,
    scrub, transfer, upgrade,
};
use crate::connection::Connection;
use crate::lock_class::SERVING;
use crate::mount::is_mounted_here;
use crate::transport::dev_fuse::DevFuse;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SocketAddrUnix;
use sluice_sync::thread::{Builder, JoinHandle, sleep};
use sluice_sync::time::{Duration, Instant};
use sluice_sync::{Arc, Mutex};
use sluice_vfs::{
    Cred, Errno, FileInUse, Holder, NAME_MAX, PATH_MAX, SNAPSHOTS, SnapshotInfo, StoreContent, Superblock,
    TreeSize,
};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// So many of the hottest files are told of.
const HOT_MAX: usize = 1000;
/// Device numbers are used again at once, so the name may belong to a server that is just ending: on a busy machine not
/// within a second.
const BIND_TRIES: u32 = 300;
const BIND_AFTER: Duration = Duration::from_millis(10);

/// The thread that answers. Dropping it frees the names.
pub struct Server {
    shared: Arc<ControlShared>,
    thread: Option<JoinHandle<()>>,
    _file: Option<SocketFile>,
}

/// The state that the thread and its owner share.
struct ControlShared {
    /// *immutable*
    device: (u32, u32),
    /// On the abstract name, and on the socket file. *immutable*
    listeners: Vec<UnixListener>,
    serving: Mutex<Serving>,
}

#[derive(Default)]
struct Serving {
    stopped: bool,
    /// The client that is being answered, so that it can be cut off.
    client: Option<UnixStream>,
}

/// The function that answers a question, which came by the stream: only the question has been read. It says false when a thread of its own
/// goes on with the stream.
pub type Respond = Box<dyn Fn(&[u8], &mut UnixStream) -> io::Result<bool> + Send>;
/// Whether the mount is still there, in whichever namespace.
pub type IsThere = Box<dyn Fn() -> bool + Send>;

impl Server {
    /// Starts to answer questions about the mount `device`. `None` if the name is taken or no thread can be
    /// started, said on standard error: the mount works without.
    pub(crate) fn start(
        device: (u32, u32),
        connection: &Arc<Connection>,
        transport: &Arc<DevFuse>,
    ) -> Option<Server> {
        let connection = Arc::downgrade(connection);
        let transport = Arc::downgrade(transport);
        Self::start_with(
            device,
            Box::new(move || transport.upgrade().is_some_and(|transport| transport.is_connected())),
            Box::new(move |question, stream| {
                connection
                    .upgrade()
                    .map_or(Ok(true), |connection| respond(&connection, question, stream, &|| ()))
            }),
        )
    }

    /// Starts the control socket of mount `device`, which is there while `is_there`, and whose questions `with` answers.
    pub fn start_with(device: (u32, u32), is_there: IsThere, with: Respond) -> Option<Server> {
        Self::try_start(device, is_there, with)
            .inspect_err(|error| {
                let (major, minor) = device;
                log::error!(
                    "no control socket for mount {major}:{minor}, nobody can ask about its locks: {error}"
                );
            })
            .ok()
    }

    fn try_start(device: (u32, u32), is_there: IsThere, with: Respond) -> io::Result<Server> {
        let (mut listeners, mut file) = (Vec::new(), None);
        match SocketFile::bind(device) {
            Ok((listener, bound)) => {
                listeners.push(listener);
                file = Some(bound);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => log::info!("no socket file: {error}"),
            Err(error) => {
                log::warn!("no socket file, so that other network namespaces find no server: {error}");
            }
        }
        match bind(device) {
            Ok(listener) => listeners.push(listener),
            Err(error) if file.is_none() => return Err(error),
            Err(error) => log::warn!("no abstract name, only a socket file: {error}"),
        }
        Self::begin(device, listeners, file, (is_there, with))
    }

    /// As [`start_with`](Self::start_with), on the socket file alone.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn on_file(device: (u32, u32), is_there: IsThere, with: Respond) -> io::Result<Server> {
        let (listener, file) = SocketFile::bind(device)?;
        Self::begin(device, vec![listener], Some(file), (is_there, with))
    }

    fn begin(
        device: (u32, u32),
        listeners: Vec<UnixListener>,
        file: Option<SocketFile>,
        (is_there, with): (IsThere, Respond),
    ) -> io::Result<Server> {
        let serving = Mutex::with_class(&SERVING, Serving::default());
        let shared = Arc::new(ControlShared { device, listeners, serving });
        let inner = shared.clone();
        let thread =
            Builder::new().name("sluice-control".into()).spawn(move || inner.serve(&is_there, &with))?;
        Ok(Server { shared, thread: Some(thread), _file: file })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for listener in &self.shared.listeners {
            // Wakes the thread. It was listening, so this cannot fail.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        let client = {
            let mut serving = self.shared.serving.lock();
            serving.stopped = true;
            serving.client.take()
        };
        if let Some(client) = client {
            // It may have gone by itself.
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            // The thread waits for nothing any more. A panic in it was printed already.
            let _ = thread.join();
        }
    }
}

impl ControlShared {
    fn serve(&self, is_there: &IsThere, with: &Respond) {
        let mut refused = VecDeque::new();
        loop {
            let mut waiting: Vec<_> =
                self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
            match poll(&mut waiting, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) if self.serving.lock().stopped => return,
                Err(_) => {
                    sleep(ACCEPT_AGAIN);
                    continue;
                }
            }
            let is_ready = |at: usize| !waiting[at].revents().is_empty();
            for (_, listener) in self.listeners.iter().enumerate().filter(|(at, _)| is_ready(*at)) {
                match listener.accept() {
                    // An error with one client affects only that client.
                    Ok((stream, _)) => drop(self.serve_one(stream, is_there, with, &mut refused)),
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(_) if self.serving.lock().stopped => return,
                    // Out of descriptors or memory: there may be some again later.
                    Err(_) => sleep(ACCEPT_AGAIN),
                }
            }
        }
    }

    fn serve_one(
        &self,
        stream: UnixStream,
        is_there: &IsThere,
        with: &Respond,
        refused: &mut VecDeque<UnixStream>,
    ) -> io::Result<()> {
        {
            let mut serving = self.serving.lock();
            if serving.stopped {
                return Ok(());
            }
            serving.client = Some(stream.try_clone()?);
        }
        let outcome = answer(stream, (self.device, is_there), with, refused);
        self.serving.lock().client = None;
        outcome
    }
}

/// The answer of a server whose mount is gone: the client means a newer mount, which has the device number now.
const GONE: &[u8] =
    b"the server of a mount that is gone has this mount's control socket: ask again when that has ended\n";
/// How long the rest of a refused order is read.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);
/// So many clients who may not ask keep their connection after they were told so. The server waits for no stranger: strangers may be a crowd.
const REFUSED_MAX: usize = 8;
/// The pause after a client could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

fn bind(device: (u32, u32)) -> io::Result<UnixListener> {
    let name = abstract_name(device);
    let address = SocketAddr::from_abstract_name(&name)?;
    for _ in 1..BIND_TRIES {
        match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if is_of_another_user(&name)? {
                    let text = format!("another user listens on the abstract socket name {name}");
                    return Err(io::Error::new(ErrorKind::AddrInUse, text));
                }
                sleep(BIND_AFTER);
            }
            decided => return decided,
        }
    }
    UnixListener::bind_addr(&address)
}

/// Whether an untrusted user listens on the abstract name. A server that is just ending accepts nobody, or is trusted.
fn is_of_another_user(name: &str) -> io::Result<bool> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    connect(&address, BIND_AFTER).map_or(Ok(false), |stream| Ok(!is_trusted(&stream)?))
}

fn answer(
    mut stream: UnixStream,
    (device, is_there): ((u32, u32), &IsThere),
    with: &Respond,
    refused: &mut VecDeque<UnixStream>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if !is_trusted(&stream)? {
        stream.write_all(b"only root and the user who serves the mount may ask\n")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        // Closed later, for the reason that `drain` has.
        refused.push_back(stream);
        refused.drain(..refused.len().saturating_sub(REFUSED_MAX));
        return Ok(());
    }
    let question = read_line(&mut stream)?;
    match question.as_slice() {
        // A newer mount may have the device number of a mount that is gone.
        b"mounted" => {
            let is_mounted = is_there() && is_mounted_here(device);
            stream.write_all(format!("{OK}{is_mounted}").as_bytes())?;
        }
        _ if !is_there() => stream.write_all(GONE)?,
        b"namespace" => stream.write_all(format!("{OK}{}", pid_namespace()).as_bytes())?,
        b"server" => stream.write_all(format!("{OK}{}", std::process::id()).as_bytes())?,
        b"end" if ending::keep(&stream)? => return Ok(()),
        question if with(question, &mut stream)? => {}
        _ => return Ok(()),
    }
    drain(stream)
}

/// Reads the rest of an order that was refused: closing a socket with unread bytes resets it, and the client loses the answer.
fn drain(mut stream: UnixStream) -> io::Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    let end = Instant::now() + DRAIN_PATIENCE;
    let mut rest = [0; 4096];
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut rest)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Answers a question about `connection`; see [`Respond`]. `changed` is called between an order that changes files and its answer.
pub fn respond(
    connection: &Connection,
    question: &[u8],
    stream: &mut UnixStream,
    changed: &dyn Fn(),
) -> io::Result<bool> {
    if transfer::begin(question, stream, connection)? {
        return Ok(false);
    }
    if question == b"upgrade" {
        return upgrade::obey(stream, connection);
    }
    let text = match question {
        b"locks" if connection.serves_locks() => format!("{OK}{}", connection.lock_table()),
        b"hot" if connection.serves_locks() => {
            format!(
                "{OK}{}",
                hot(&connection.superblock, HOT_MAX)
                    .map(|file| stat::to_json(&file) + "\n")
                    .collect::<String>()
            )
        }
        b"locks" | b"hot" => LOCKS_IN_KERNEL.into(),
        b"stat" => format!("{OK}{}\n", stat::of_connection(connection)),
        b"content" => content(&connection.superblock),
        b"files" => format!("{OK}{}", files(&connection.superblock)),
        b"snapshots" => {
            let answer = match connection.superblock.list_snapshots() {
                Ok(listed) => OK.bytes().chain(listed.iter().flat_map(snapshot_line)).collect::<Vec<u8>>(),
                Err(errno) => error_line(question, errno).into_bytes(),
            };
            return stream.write_all(&answer).map(|()| true);
        }
        b"quota" => return quota::obey(stream, connection).map(|()| true),
        b"scrub" => return scrub::obey(stream, &connection.superblock).map(|()| true),
        order if faults::obey(order, stream, connection)? => return Ok(true),
        _ => match obey(question, stream, connection)?.inspect(|_| changed()) {
            Some(Ok(())) => OK.into(),
            Some(Err(errno)) => error_line(question, errno),
            None => {
                "unknown question: ask locks, hot, stat, content, files, namespace, server or snapshots\n"
                    .into()
            }
        },
    };
    stream.write_all(text.as_bytes()).map(|()| true)
}

/// A snapshot in an answer: its name and three numbers, each with a zero behind it. The first number is missing if unknown.
fn snapshot_line(listed: &SnapshotInfo) -> Vec<u8> {
    let SnapshotInfo { name, created, size: TreeSize { shared_bytes, private_bytes } } = listed;
    let created = created.map_or_else(String::new, |created| created.sec.to_string());
    [name, &b"\0"[..], format!("{created}\0{shared_bytes}\0{private_bytes}\0").as_bytes()].concat()
}

/// The answer to `question` that failed with `errno`.
fn error_line(question: &[u8], errno: Errno) -> String {
    match (question, errno) {
        (b"snapshots" | b"take-snapshot" | b"drop-snapshot" | b"restore-snapshot", Errno::EACCES) => format!(
            "{errno}: {SNAPSHOTS} must belong to the owner of the mount's root, and nobody else may write to it: \
             move it away, or chown it and chmod go-w\n"
        ),
        (b"snapshots" | b"take-snapshot" | b"drop-snapshot", Errno::ENOTDIR) => {
            format!("{errno}: {SNAPSHOTS} in the root of the mount is none: move it away\n")
        }
        (b"drop-snapshot", Errno::ENOENT) => {
            format!("{errno}: there is no such snapshot (see `sluice snapshot list`)\n")
        }
        (b"clone" | b"take-snapshot" | b"drop-snapshot" | b"restore-snapshot", Errno::EROFS) => {
            format!("{errno}: the mount is read-only\n")
        }
        (b"restore-snapshot", _) => format!("{errno}{}\n", cure_of_restore(errno)),
        _ => format!("{errno}\n"),
    }
}

fn cure_of_restore(errno: Errno) -> &'static str {
    match errno {
        Errno::EBUSY => {
            ": a directory that would go has a quota, or something is mounted there: take the quota away (`sluice quota DIR none`), or unmount that"
        }
        Errno::ENOENT | Errno::ENOTDIR => {
            ": there is no such snapshot (see `sluice snapshot list`), it has no such path, or the tree has no directory for it: then restore a directory above"
        }
        Errno::EINVAL => ": give a path from the root of the mount, without `..`",
        _ => "",
    }
}

/// Does what `order` says, as the superuser: the client is root or serves the mount. `None` if that is no order.
fn obey(
    order: &[u8],
    stream: &mut UnixStream,
    connection: &Connection,
) -> io::Result<Option<Result<(), Errno>>> {
    let superblock = &connection.superblock;
    // Changes below a read-only mount of a store would stay in memory, and end with it.
    let check_writable = || if connection.options.read_only { Err(Errno::EROFS) } else { Ok(()) };
    Ok(Some(match order {
        b"clone" => about(stream)?.and_then(|([ino, dir], name)| {
            check_writable()?;
            let inode = |ino| connection.nodes.get(connection.nodes.nodeid(ino)).ok_or(Errno::ENOENT);
            inode(ino)?.clone_tree(&Cred::root(), &inode(dir)?, &name)
        }),
        b"take-snapshot" => about(stream)?.and_then(|([], name)| {
            check_writable()?;
            superblock.take_snapshot(&name)
        }),
        b"drop-snapshot" => about(stream)?.and_then(|([], name)| {
            check_writable()?;
            superblock.drop_snapshot(&name)
        }),
        b"restore-snapshot" => about_up_to(stream, (NAME_MAX + PATH_MAX) as u64)?.and_then(|([], text)| {
            check_writable()?;
            // The name ends at the first slash.
            let end = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
            superblock.restore_snapshot(&text[..end], &text[end..])
        }),
        _ => return Ok(None),
    }))
}

/// A line for each descriptor of this process, as a user of the library: see [`library_files`](super::library_files).
fn files(superblock: &Superblock) -> String {
    let open = superblock.open_files();
    let paths = superblock.paths(open.iter().map(|file| file.ino));
    let mut lines = String::new();
    for FileInUse { ino, file_type, flags, position, holders, .. } in open {
        let (mode, flags) = (file_type.mode_bits(), flags.bits());
        // A name may be of several lines, an answer not.
        let path =
            paths.get(&ino).map_or("(deleted)".into(), |path| path.to_string_lossy().replace('\n', "\\n"));
        for Holder { pid, uid, fd, .. } in holders {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{pid} {uid} {fd} {ino} {mode:o} {flags:o} {position} {path}");
        }
    }
    lines
}

/// The answer to what is in the store, for [`content_of_device`](super::content_of_device).
fn content(superblock: &Superblock) -> String {
    match superblock.content() {
        Some(Ok((StoreContent { log_used, batches, data_bytes }, shared))) => {
            format!("{OK}{log_used} {batches} {data_bytes} {shared}\n")
        }
        Some(Err(error)) => format!("{error}\n"),
        None => "there is no store\n".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::thread;

    #[test]
    fn another_users_socket_names_do_not_keep_a_server_from_answering() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // No mount has this number.
        let device = (0, 1_000_000 + std::process::id());
        let name = abstract_name(device);
        let squatted = SocketAddr::from_abstract_name(&name).expect("it is short");
        let squatter = thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).expect("root may");
            UnixListener::bind_addr(&squatted)
        });
        let squatter = squatter.join().expect("no panic").expect("it is free");
        let refused = bind(device).expect_err("it is taken").to_string();
        assert!(refused.contains("another user listens on the abstract socket name"), "{refused}");
        // A client is not led there, ...
        let asked = crate::control::stat_of_device(device).expect_err("another user listens");
        assert_eq!(asked.kind(), ErrorKind::PermissionDenied);
        assert_eq!(asked.to_string(), "the control socket of this mount belongs to another user");
        // ... nor waits until the squatter accepts those whom it let in.
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("it is short");
        let mut crowd = Vec::new();
        let full = loop {
            match connect(&address, BIND_AFTER) {
                Ok(stream) => crowd.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.to_string(), "the control socket of this mount accepts nobody");
        // The server answers by its file.
        if let Some(_server) = Server::start_with(
            device,
            Box::new(|| true),
            Box::new(|_, stream| stream.write_all(b"ok\n").map(|()| true)),
        ) {
            let mut stream = UnixStream::connect(format!("/run/sluicefs/{}:{}", device.0, device.1))
                .expect("the file is there");
            stream.write_all(b"stat\n").expect("it listens");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it answers");
            assert_eq!(answer, OK);
        } else {
            assert!(!std::path::Path::new("/run").is_dir(), "there is a place for the file");
        }
        drop((squatter, crowd));
    }

    #[test]
    fn a_snapshot_directory_that_is_not_used_is_named_with_a_cure() {
        for order in [&b"take-snapshot"[..], b"drop-snapshot", b"restore-snapshot", b"snapshots"] {
            let line = error_line(order, Errno::EACCES);
            assert!(
                line.contains(" must belong to the owner of the mount's root, and nobody else"),
                "{line}"
            );
        }
        assert_eq!(error_line(b"clone", Errno::EACCES), "permission denied (EACCES)\n");
        let line = error_line(b"take-snapshot", Errno::ENOTDIR);
        assert!(line.contains(".snapshots in the root of the mount is none: move it away"), "{line}");
        let line = error_line(b"drop-snapshot", Errno::ENOENT);
        assert!(line.contains("there is no such snapshot (see `sluice snapshot list`)"), "{line}");
    }

    #[test]
    fn a_restore_that_is_refused_says_what_to_do() {
        for (errno, wanted) in [
            (Errno::EBUSY, "take the quota away (`sluice quota DIR none`), or unmount that"),
            (Errno::ENOENT, "see `sluice snapshot list`"),
            (Errno::EINVAL, "without `..`"),
        ] {
            let line = error_line(b"restore-snapshot", errno);
            assert!(line.starts_with(&errno.to_string()) && line.contains(wanted), "{line}");
        }
        assert_eq!(error_line(b"restore-snapshot", Errno::ENOSPC), format!("{}\n", Errno::ENOSPC));
    }

    #[test]
    fn strangers_are_refused_and_those_who_may_ask_are_answered_while_they_stay() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let device = (0, 2_000_000 + std::process::id());
        let server = Server::start_with(
            device,
            Box::new(|| true),
            Box::new(|_, stream| stream.write_all(b"ok\n").map(|()| true)),
        );
        let strangers = thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).expect("root may");
            let address = SocketAddr::from_abstract_name(abstract_name(device)).expect("it is short");
            let crowd = (0..50).map(|_| UnixStream::connect_addr(&address).expect("it listens"));
            crowd.collect::<Vec<_>>()
        });
        for mut stranger in strangers.join().expect("no panic") {
            let mut answer = String::new();
            // It closes nothing, and asks nothing.
            stranger.read_to_string(&mut answer).expect("an answer");
            assert_eq!(answer, "only root and the user who serves the mount may ask\n");
            assert!(crate::control::stat_of_device(device).expect("it answers").is_some());
        }
        drop(server.expect("nobody else has the name"));
    }

    #[test]
    fn a_mount_that_is_gone_is_not_mounted_though_another_has_its_number() {
        let mounts = crate::mountinfo::read().expect("the table of mounts");
        let device = mounts.first().expect("a root directory").device;
        for is_there in [true, false] {
            let server = Server::start_with(device, Box::new(move || is_there), Box::new(|_, _| Ok(true)));
            let (asked, _) = UnixStream::pair().expect("descriptors");
            // A pair is of one process.
            assert_eq!(super::super::client::is_mounted(device, &asked), is_there);
            drop(server.expect("nobody else has the name"));
        }
    }

    #[test]
    fn a_server_whose_mount_is_gone_answers_no_question_about_the_mount_that_has_its_number_now() {
        let device = (0, 3_000_000 + std::process::id());
        ending::will_tell_end();
        for is_there in [true, false] {
            let with = |_: &[u8], stream: &mut UnixStream| stream.write_all(b"ok\n").map(|()| true);
            let server = Server::start_with(device, Box::new(move || is_there), Box::new(with));
            // `umount` would wait for the end of that server, and for what it holds.
            for question in [&b"end\n"[..], b"server\n", b"namespace\n"] {
                let stream = super::super::client::ask_and_keep(device, question).expect("it answers");
                let mut answer = [0; OK.len()];
                stream.expect("it listens").read_exact(&mut answer).expect("it answers");
                assert_eq!(answer == OK.as_bytes(), is_there, "{question:?}");
            }
            let stat = crate::control::stat_of_device(device).map_err(|error| error.to_string());
            let gone = "the server of a mount that is gone has this mount's control socket: ask again when that has ended";
            assert_eq!(stat, if is_there { Ok(Some(Vec::new())) } else { Err(gone.into()) });
            drop(server.expect("nobody else has the name"));
        }
    }
}
