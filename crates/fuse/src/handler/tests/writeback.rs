//! Answers while the kernel collects writes.

use super::*;
use crate::abi::{AttrOut, Fattr, flags};
use sluice_vfs::{InodeRef, Stat};
use zerocopy::FromZeros;

const SECOND: u64 = 1_000_000_000;

impl Looked {
    fn collecting(writeback: bool) -> Looked {
        connection_with(MountOptions { writeback, dedicated: true, ..MountOptions::default() })
    }

    /// The error of the answer to a message about the file, and the answer behind its header.
    fn ask(&self, opcode: u32, parts: &[&[u8]]) -> (i32, Vec<u8>) {
        self.recorder.0.lock().clear();
        self.connection.serve(&message(opcode, self.nodes[Looked::FILE], parts), &mut Reply::new());
        let reply = self.recorder.0.lock().pop().expect("it is answered");
        let error = i32::from_ne_bytes(reply[4..8].try_into().expect("four bytes"));
        (error, reply[size_of::<abi::OutHeader>()..].to_vec())
    }

    fn file(&self) -> InodeRef {
        self.connection.nodes.get(self.nodes[Looked::FILE]).expect("it was looked up")
    }

    fn set_times(&self, valid: Fattr, time: u64) {
        let arg = abi::SetattrIn {
            valid: valid.bits(),
            mtime: time,
            mtimensec: 5,
            ctime: time + 1,
            ctimensec: 6,
            ..abi::SetattrIn::new_zeroed()
        };
        assert_eq!(self.ask(opcode::SETATTR, &[arg.as_bytes()]).0, 0);
    }

    fn write(&self, offset: u64, write_flags: u32) {
        let arg = abi::WriteIn { offset, size: 3, write_flags, ..abi::WriteIn::new_zeroed() };
        assert_eq!(self.ask(opcode::WRITE, &[arg.as_bytes(), b"new"]).0, 0);
    }
}

fn times(stat: &Stat) -> [(i64, u32); 2] {
    [stat.mtime, stat.ctime].map(|time| (time.sec, time.nsec))
}

#[test]
fn times_are_those_that_the_kernel_says_whatever_it_writes_back_before_or_after() {
    let looked = Looked::collecting(true);
    looked.set_times(Fattr::MTIME | Fattr::CTIME, SECOND);
    let said = [(SECOND as i64, 5), (SECOND as i64 + 1, 6)];
    assert_eq!(times(&looked.file().stat()), said);
    looked.write(5000, flags::WRITE_CACHE);
    assert_eq!((times(&looked.file().stat()), looked.file().stat().size), (said, 5003));
    // Past the cache, as O_DIRECT goes.
    looked.write(0, 0);
    assert_ne!(times(&looked.file().stat()), said);
}

#[test]
fn where_the_kernel_collects_nothing_it_says_no_ctime_and_each_write_is_one_of_now() {
    let looked = Looked::collecting(false);
    looked.set_times(Fattr::MTIME | Fattr::CTIME, SECOND);
    assert_eq!(times(&looked.file().stat())[0], (SECOND as i64, 5));
    assert_ne!(times(&looked.file().stat())[1], (SECOND as i64 + 1, 6));
    looked.write(0, flags::WRITE_CACHE);
    assert_ne!(times(&looked.file().stat())[0], (SECOND as i64, 5));
    // A store through a mapping makes no file longer: the end was cut since.
    looked.write(5000, flags::WRITE_CACHE);
    assert_eq!(looked.file().stat().size, 8);
}

#[test]
fn what_is_not_written_back_yet_is_no_hole() {
    const ENOSYS: i32 = -38;
    let seek = abi::LseekIn { whence: 3, ..abi::LseekIn::new_zeroed() };
    for (writeback, expected) in [(true, ENOSYS), (false, 0)] {
        let looked = Looked::collecting(writeback);
        assert_eq!(looked.ask(opcode::LSEEK, &[seek.as_bytes()]).0, expected);
    }
}

#[test]
fn an_empty_file_has_a_block_while_its_first_bytes_may_sit_in_the_kernel() {
    for (writeback, expected) in [(true, 1), (false, 0)] {
        let looked = Looked::collecting(writeback);
        looked.file().truncate(&sluice_vfs::Cred::root(), 0).expect("it is a file");
        let arg = [0; 16];
        let (error, body) = looked.ask(opcode::GETATTR, &[&arg]);
        let blocks = std::mem::offset_of!(AttrOut, attr) + std::mem::offset_of!(abi::Attr, blocks);
        let blocks = u64::from_ne_bytes(body[blocks..blocks + 8].try_into().expect("eight bytes"));
        assert_eq!((error, blocks), (0, expected), "writeback {writeback}");
    }
}
