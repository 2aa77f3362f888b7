//! Tree: everything that can be seen of a file tree, read through the same calls as the test itself uses.

use crate::executor::Executor;
use crate::op::{Op, ProcessOp};
use crate::view::{Outcome, StatView, Value};
use crate::word::{Bytes, CWD, Fd, Mode, Target};
use sluice_vfs::{AtFlags, FileType, OpenFlags, Whence};
use std::fmt;

/// Questions and their answers.
pub type Facts = Vec<(&'static str, Outcome)>;

/// One name of a tree with the file behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotNode {
    /// The name's path.
    pub path: Vec<u8>,
    /// The outcomes of the calls about the name, in a fixed order.
    pub facts: Facts,
}

impl fmt::Display for SnapshotNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.escape_ascii())?;
        self.facts.iter().try_for_each(|(what, outcome)| write!(f, " {what}={}", short(outcome)))
    }
}

/// An outcome, long contents cut.
pub fn short(outcome: &Outcome) -> String {
    match outcome {
        Ok(Value::Bytes(bytes)) if bytes.len() > 80 => {
            let sum = bytes.iter().fold(0_u32, |sum, &b| sum.rotate_left(5) ^ u32::from(b));
            format!("{} bytes from \"{}\", sum {sum:08x}", bytes.len(), bytes[..16].escape_ascii())
        }
        Ok(Value::Bytes(bytes)) => format!("\"{}\"", bytes.escape_ascii()),
        Ok(value) => format!("{value:?}"),
        Err(errno) => format!("{errno:?}"),
    }
}

/// Contents of a file without comparable holes are read up to this size.
const READ_WHOLE: u64 = 1 << 20;
/// One read.
const CHUNK: usize = 1 << 17;

/// The tree from the root down, in the order of the names.
pub fn snapshot(executor: &mut dyn Executor) -> Vec<SnapshotNode> {
    let mut eye = Eye { process: executor.inspector(), executor };
    let mut nodes = Vec::new();
    let mut open = vec![b".".to_vec()];
    while let Some(path) = open.pop() {
        let (node, names) = eye.look(path.clone());
        open.extend(names.into_iter().rev().map(|name| [&path[..], b"/", &name[..]].concat()));
        nodes.push(node);
    }
    nodes
}

struct Eye<'a> {
    executor: &'a mut dyn Executor,
    process: usize,
}

impl Eye<'_> {
    fn call(&mut self, op: Op) -> Outcome {
        self.executor.run(&ProcessOp { process: self.process, op })
    }

    /// Everything about one name, and the names below it.
    fn look(&mut self, path: Vec<u8>) -> (SnapshotNode, Vec<Vec<u8>>) {
        let bytes = Bytes(path.clone());
        let stat = self.call(Op::Stat { at: Fd(CWD), path: bytes.clone(), flags: AtFlags::SYMLINK_NOFOLLOW });
        let mut facts = vec![("stat", stat.clone())];
        let mut names = Vec::new();
        if let Ok(Value::Stat(stat)) = stat {
            self.look_at_xattrs(&bytes, &mut facts);
            match FileType::from_mode(stat.mode.0) {
                Some(FileType::Symlink) => {
                    facts.push(("target", self.call(Op::Readlink { at: Fd(CWD), path: bytes })));
                }
                Some(FileType::Directory) => names = self.look_into_directory(bytes, &mut facts),
                Some(FileType::Regular) => self.look_into_file(bytes, &stat, &mut facts),
                _ => {}
            }
        }
        (SnapshotNode { path, facts }, names)
    }

    fn look_at_xattrs(&mut self, path: &Bytes, facts: &mut Facts) {
        let list = self.call(Op::ListXattr { of: Target::Link(path.clone()) });
        facts.push(("xattrs", list.clone()));
        let Ok(Value::Names(names)) = list else { return };
        for name in names {
            let of = Target::Link(path.clone());
            facts.push(("value", self.call(Op::GetXattr { of, name: Bytes(name) })));
        }
    }

    /// Opens for reading. Why that fails is a fact.
    fn open(&mut self, path: Bytes, flags: OpenFlags, facts: &mut Facts) -> Option<Fd> {
        let flags = flags | OpenFlags::NOATIME | OpenFlags::NOFOLLOW;
        match self.call(Op::Open { at: Fd(CWD), path, flags, mode: Mode(0) }) {
            Ok(Value::Number(fd)) => Some(Fd(fd as i32)),
            refused => {
                facts.push(("open", refused));
                None
            }
        }
    }

    fn look_into_directory(&mut self, path: Bytes, facts: &mut Facts) -> Vec<Vec<u8>> {
        let Some(fd) = self.open(path, OpenFlags::DIRECTORY, facts) else { return Vec::new() };
        let entries = self.call(Op::Readdir { fd });
        facts.push(("entries", entries.clone()));
        facts.push(("close", self.call(Op::Close { fd })));
        match entries {
            Ok(Value::Entries(entries)) => {
                entries.into_iter().map(|e| e.name).filter(|name| name != b"." && name != b"..").collect()
            }
            _ => Vec::new(),
        }
    }

    /// Contents: what is stored between holes, or the first part when holes cannot be compared.
    fn look_into_file(&mut self, path: Bytes, stat: &StatView, facts: &mut Facts) {
        let Some(fd) = self.open(path, OpenFlags::RDONLY, facts) else { return };
        let size = stat.size.unwrap_or(0);
        let mut at = 0;
        loop {
            let data = self.call(Op::Lseek { fd, offset: at, whence: Whence::Data });
            if data == Ok(Value::Free) {
                let end = size.min(READ_WHOLE);
                self.read(fd, 0, end, facts);
                self.read(fd, size.saturating_sub(CHUNK as u64).max(end), size, facts);
                break;
            }
            facts.push(("data at", data.clone()));
            let Ok(Value::Number(start)) = data else { break };
            let hole = self.call(Op::Lseek { fd, offset: start, whence: Whence::Hole });
            facts.push(("hole at", hole.clone()));
            let Ok(Value::Number(end)) = hole else { break };
            self.read(fd, start as u64, end as u64, facts);
            at = end;
        }
        facts.push(("close", self.call(Op::Close { fd })));
    }

    fn read(&mut self, fd: Fd, from: u64, to: u64, facts: &mut Facts) {
        let mut at = from;
        while at < to {
            let len = CHUNK.min((to - at) as usize);
            facts.push(("contents", self.call(Op::Pread { fd, len, offset: at as i64 })));
            at += len as u64;
        }
    }
}
