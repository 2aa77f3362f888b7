//! Registry: every workload under the name that its field gave it.
//!
//! # Sources
//! *FxMark* (Min et al., "Understanding Manycore Scalability of File Systems", ATC 2016): names of four letters, for
//! data or metadata, read or write, the operation, and how much is shared (low, medium, high); its loads with direct I/O are
//! those ending in `-direct`. *will-it-scale*:
//! `open1` and the like; where its counts differ from ours, the entry says so. *lockperf*: the names ending in 01 and 02. *`fs_mark`*: here in two halves.

use super::batch::{self, Half};
use super::block_io::{self, Blocks, Direction, MANY, Pattern, Position};
use super::length::{self, LengthChange};
use super::place::FilePlace;
use super::{Seat, Shape, Task, Workload};
use super::{
    creat_unlink, descriptor, file_lock, lease, mixes, open_close, readdir, rename, stat, stream, tree,
};
use crate::target::BLOCK;
use stream::Stream;

type Make = fn(Seat) -> Box<dyn Task>;

const fn steady(name: &'static str, about: &'static str, task: Make) -> Workload {
    Workload { name, about, shape: Shape::Steady, tasks: None, tree: false, task }
}

const fn passes(name: &'static str, about: &'static str, task: Make) -> Workload {
    Workload { name, about, shape: Shape::Passes, tasks: None, tree: false, task }
}

const fn on_the_tree(workload: Workload) -> Workload {
    Workload { tree: true, ..workload }
}

const fn with_tasks(tasks: usize, workload: Workload) -> Workload {
    Workload { tasks: Some(tasks), ..workload }
}

/// A test of lockperf.
const fn of_128(name: &'static str, about: &'static str, task: Make) -> Workload {
    with_tasks(128, steady(name, about, task))
}

/// Former names of workloads, with the name of today.
pub(super) const FORMER_NAMES: &[(&str, &str)] = &[("creat-fsync", "create-fsync")];

/// Every workload.
pub static WORKLOADS: &[Workload] = &[
    steady("open-close", "open and close a file of one's own", |s| open_close::flat(&s, FilePlace::Own)),
    steady("open-close-same", "open and close one file of all", |s| open_close::flat(&s, FilePlace::Same)),
    steady("creat-unlink", "create, close and unlink a file in a directory of one's own", |s| {
        creat_unlink::task(&s, FilePlace::Own, 0)
    }),
    steady(
        "creat4k-unlink",
        "create, write 4 KiB, close and unlink a file in a directory of one's own",
        |s| creat_unlink::task(&s, FilePlace::Own, BLOCK),
    ),
    steady(
        "creat-unlink-same",
        "create, close and unlink a file of one's own in one directory of all",
        |s| creat_unlink::task(&s, FilePlace::Beside, 0),
    ),
    steady("stat", "stat a file of one's own", |s| stat::task(&s, FilePlace::Own)),
    steady("stat-same", "stat one file of all", |s| stat::task(&s, FilePlace::Same)),
    steady("rename-same", "rename a file of one's own within one directory of all", |s| {
        rename::within(&s, FilePlace::Beside)
    }),
    steady(
        "readdir",
        "list a directory of 1,000 names of one's own (the whole list is one operation)",
        |s| readdir::list(&s, FilePlace::Own),
    ),
    steady("readdir-unlink", "list one directory of all, unlink and create a name in it, in turn", |s| {
        readdir::beside_unlink(&s)
    }),
    steady("read4k", "read 4 KiB, in turn through a file of 1 MiB of one's own", |s| {
        pread(&s, FilePlace::Own, MANY, Blocks::Private)
    }),
    steady("write4k", "overwrite 4 KiB, in turn through a file of 1 MiB of one's own", |s| {
        pwrite(&s, FilePlace::Own, MANY, Blocks::Private)
    }),
    steady("write4k-same", "overwrite 4 KiB, in turn through 1 MiB of one's own in one file of all", |s| {
        pwrite(&s, FilePlace::Same, MANY, Blocks::Private)
    }),
    steady("stream-read", "read 128 KiB, in turn through a file of 16 MiB of one's own", |s| {
        stream::task(&s, Stream::Read)
    }),
    steady(
        "stream-write",
        "write 128 KiB at the end of a file of one's own, cut to nothing at 16 MiB",
        |s| stream::task(&s, Stream::Write),
    ),
    steady("append-fsync", "append 4 KiB to a file of one's own, then fsync", |s| {
        length::task(&s, LengthChange::AppendSync)
    }),
    passes("create-fsync", "create empty files in a directory of one's own, each with an fsync", |s| {
        batch::in_one_directory(&s, FilePlace::Own, Half::CreateSync)
    }),
    steady(
        "overwrite-fsync",
        "overwrite 4 KiB, in turn through a file of 1 MiB of one's own, then fsync",
        |s| {
            let pattern = Pattern::new(
                FilePlace::Own,
                Direction::OverwriteSync,
                Position::Given,
                MANY,
                Blocks::Private,
            );
            block_io::task(&s, pattern)
        },
    ),
    of_128("posix01", "lock, waiting, and unlock one file of all with fcntl (POSIX)", |s| {
        file_lock::posix(&s, FilePlace::Same)
    }),
    of_128("posix02", "lock and unlock a file of one's own with fcntl (POSIX)", |s| {
        file_lock::posix(&s, FilePlace::Own)
    }),
    of_128("flock01", "lock, waiting, and unlock one file of all with flock", |s| {
        file_lock::flock(&s, FilePlace::Same)
    }),
    of_128("flock02", "lock and unlock a file of one's own with flock", |s| {
        file_lock::flock(&s, FilePlace::Own)
    }),
    of_128("ofd02", "lock and unlock a file of one's own with fcntl (OFD)", |s| {
        file_lock::ofd(&s, FilePlace::Own)
    }),
    of_128("lease01", "take and give up a shared lease on one file of all", |s| {
        lease::task(&s, FilePlace::Same)
    }),
    of_128("lease02", "take and give up a shared lease on a file of one's own", |s| {
        lease::task(&s, FilePlace::Own)
    }),
    passes("fsmark", "create empty files in 20 directories of one's own (populate)", |s| {
        batch::in_many_directories(&s, Half::Create)
    }),
    passes("fsmark-reclaim", "unlink the files that fsmark makes (reclaim)", |s| {
        batch::in_many_directories(&s, Half::Unlink)
    }),
    on_the_tree(passes(
        "untar",
        "unpack a source tree (one file, directory or link is one operation)",
        tree::untar,
    )),
    on_the_tree(passes(
        "rmtree",
        "remove a source tree (one file, directory or link is one operation)",
        tree::rmtree,
    )),
    on_the_tree(passes(
        "find",
        "list and stat a source tree of one's own (one file, directory or link is one operation)",
        tree::find,
    )),
    on_the_tree(passes(
        "clone-tree",
        "copy a source tree of one's own, sharing contents where possible (one file, directory or link is one operation)",
        tree::clone,
    )),
    steady("mail", "a mail server: unlink, create, read, append and fsync in one spool of all", |s| {
        mixes::mail(&s)
    }),
    steady(
        "build",
        "a compiler: headers of all looked for and read, a source of one's own, an object renamed",
        |s| mixes::build(&s),
    ),
    // FxMark.
    passes("MWCL", "create empty files in a directory of one's own", |s| {
        batch::in_one_directory(&s, FilePlace::Own, Half::Create)
    }),
    passes("MWCM", "create empty files in one directory of all", |s| {
        batch::in_one_directory(&s, FilePlace::Beside, Half::Create)
    }),
    passes("MWUL", "unlink empty files in a directory of one's own", |s| {
        batch::in_one_directory(&s, FilePlace::Own, Half::Unlink)
    }),
    passes("MWUM", "unlink empty files in one directory of all", |s| {
        batch::in_one_directory(&s, FilePlace::Beside, Half::Unlink)
    }),
    steady("MWRL", "rename a file within a directory of one's own", |s| rename::within(&s, FilePlace::Own)),
    steady("MWRM", "rename a file from a directory of one's own into one of all, and back", |s| {
        rename::across(&s)
    }),
    steady("MRPL", "open and close a file of one's own, five directories deep", |s| {
        open_close::deep(&s, FilePlace::Own)
    }),
    steady("MRPM", "open and close files of all, five directories deep, in random order", |s| {
        open_close::deep_many(&s)
    }),
    steady("MRPH", "open and close one file of all, five directories deep", |s| {
        open_close::deep(&s, FilePlace::Same)
    }),
    steady("MRDL", "list a directory of one's own (1,000 names, one operation)", |s| {
        readdir::list(&s, FilePlace::Own)
    }),
    steady("MRDM", "list one directory of all (1,000 names, one operation)", |s| {
        readdir::list(&s, FilePlace::Same)
    }),
    steady("DRBL", "read the same block of a file of one's own", |s| {
        pread(&s, FilePlace::Own, 1, Blocks::Private)
    }),
    steady("DRBM", "read a block of one's own in one file of all", |s| {
        pread(&s, FilePlace::Same, 1, Blocks::Private)
    }),
    steady("DRBH", "read the same block of one file of all", |s| {
        pread(&s, FilePlace::Same, 1, Blocks::Common)
    }),
    steady("DWOL", "overwrite the same block of a file of one's own", |s| {
        pwrite(&s, FilePlace::Own, 1, Blocks::Private)
    }),
    steady("DWOM", "overwrite a block of one's own in one file of all", |s| {
        pwrite(&s, FilePlace::Same, 1, Blocks::Private)
    }),
    steady("DWAL", "append 4 KiB to a file of one's own", |s| length::task(&s, LengthChange::Append)),
    passes("DWTL", "truncate a file of one's own by 4 KiB", |s| length::task(&s, LengthChange::Truncate)),
    steady("DWSL", "overwrite a block of a file of one's own, then fsync", |s| {
        io(&s, FilePlace::Own, Direction::OverwriteSync, Position::Given, 1, Blocks::Private)
    }),
    steady("DRBL-direct", "DRBL past the page cache (O_DIRECT)", |s| {
        direct(&s, Pattern::new(FilePlace::Own, Direction::Read, Position::Given, 1, Blocks::Private))
    }),
    steady("DRBM-direct", "DRBM past the page cache (O_DIRECT)", |s| {
        direct(&s, Pattern::new(FilePlace::Same, Direction::Read, Position::Given, 1, Blocks::Private))
    }),
    steady("DRBH-direct", "DRBH past the page cache (O_DIRECT)", |s| {
        direct(&s, Pattern::new(FilePlace::Same, Direction::Read, Position::Given, 1, Blocks::Common))
    }),
    steady("DWOL-direct", "DWOL past the page cache (O_DIRECT)", |s| {
        direct(&s, Pattern::new(FilePlace::Own, Direction::Overwrite, Position::Given, 1, Blocks::Private))
    }),
    steady("DWOM-direct", "DWOM past the page cache (O_DIRECT)", |s| {
        direct(&s, Pattern::new(FilePlace::Same, Direction::Overwrite, Position::Given, 1, Blocks::Private))
    }),
    steady("DWSL-direct", "DWSL past the page cache (O_DIRECT)", |s| {
        direct(
            &s,
            Pattern::new(FilePlace::Own, Direction::OverwriteSync, Position::Given, 1, Blocks::Private),
        )
    }),
    // will-it-scale.
    steady("open1", "open and close a file of one's own in one directory of all", |s| {
        open_close::flat(&s, FilePlace::Beside)
    }),
    steady("open2", "open and close a file of one's own in a directory of one's own", |s| {
        open_close::flat(&s, FilePlace::Own)
    }),
    steady("open3", "open and close one file of all", |s| open_close::flat(&s, FilePlace::Same)),
    steady("unlink1", "create, close and unlink in one directory of all", |s| {
        creat_unlink::task(&s, FilePlace::Beside, 0)
    }),
    steady("unlink2", "create, close and unlink in a directory of one's own", |s| {
        creat_unlink::task(&s, FilePlace::Own, 0)
    }),
    steady(
        "lock1",
        "lock and unlock a byte of a file of one's own with fcntl (the original counts two)",
        |s| file_lock::posix_byte(&s, FilePlace::Own),
    ),
    steady("lock2", "lock and unlock a byte of one file of all with fcntl (the original counts two)", |s| {
        file_lock::posix_byte(&s, FilePlace::Same)
    }),
    steady("lseek1", "lseek in a file of one's own", |s| descriptor::lseek(&s, FilePlace::Own)),
    steady("lseek2", "lseek in one file of all, opened by each", |s| descriptor::lseek(&s, FilePlace::Same)),
    steady("dup1", "duplicate and close a descriptor", |s| descriptor::dup(&s)),
    steady("fallocate1", "reserve 8 KiB more of a file of one's own, up to 1 MiB", |s| {
        length::task(&s, LengthChange::Allocate)
    }),
    steady("read1", "read 4 KiB on, through 1 MiB of one's own", |s| {
        io(&s, FilePlace::Own, Direction::Read, Position::Followed, MANY, Blocks::Private)
    }),
    steady("read2", "read 4 KiB on, through one file of all of 1 MiB, opened by each", |s| {
        io(&s, FilePlace::Same, Direction::Read, Position::Followed, MANY, Blocks::Common)
    }),
    steady("read3", "read1 past the page cache (O_DIRECT)", |s| {
        direct(&s, Pattern::new(FilePlace::Own, Direction::Read, Position::Followed, MANY, Blocks::Private))
    }),
    steady("read4", "read2 past the page cache (O_DIRECT)", |s| {
        direct(&s, Pattern::new(FilePlace::Same, Direction::Read, Position::Followed, MANY, Blocks::Common))
    }),
    steady("readseek1", "lseek and read in a file of one's own", |s| {
        io(&s, FilePlace::Own, Direction::Read, Position::Sought, 1, Blocks::Private)
    }),
    steady("readseek2", "lseek and read the same block of one file of all", |s| {
        io(&s, FilePlace::Same, Direction::Read, Position::Sought, 1, Blocks::Common)
    }),
    steady("readseek3", "lseek and read a block of one's own in one file of all", |s| {
        io(&s, FilePlace::Same, Direction::Read, Position::Sought, 1, Blocks::Private)
    }),
    steady("pread1", "pread in a file of one's own", |s| pread(&s, FilePlace::Own, 1, Blocks::Private)),
    steady("pread2", "pread the same block of one file of all", |s| {
        pread(&s, FilePlace::Same, 1, Blocks::Common)
    }),
    steady("pread3", "pread a block of one's own in one file of all", |s| {
        pread(&s, FilePlace::Same, 1, Blocks::Private)
    }),
    steady("write1", "write 4 KiB on, through 1 MiB of one's own", |s| {
        io(&s, FilePlace::Own, Direction::Overwrite, Position::Followed, MANY, Blocks::Private)
    }),
    steady("writeseek1", "lseek and write in a file of one's own", |s| {
        io(&s, FilePlace::Own, Direction::Overwrite, Position::Sought, 1, Blocks::Private)
    }),
    steady("writeseek2", "lseek and write the same block of one file of all", |s| {
        io(&s, FilePlace::Same, Direction::Overwrite, Position::Sought, 1, Blocks::Common)
    }),
    steady("writeseek3", "lseek and write a block of one's own in one file of all", |s| {
        io(&s, FilePlace::Same, Direction::Overwrite, Position::Sought, 1, Blocks::Private)
    }),
    steady("pwrite1", "pwrite in a file of one's own", |s| pwrite(&s, FilePlace::Own, 1, Blocks::Private)),
    steady("pwrite2", "pwrite the same block of one file of all", |s| {
        pwrite(&s, FilePlace::Same, 1, Blocks::Common)
    }),
    steady("pwrite3", "pwrite a block of one's own in one file of all", |s| {
        pwrite(&s, FilePlace::Same, 1, Blocks::Private)
    }),
    Workload {
        name: "footprint",
        about: "memory for each of 1,000,000 files in one directory, empty, of 10 and of 100 bytes, in process (target lib only)",
        shape: Shape::Footprint,
        tasks: Some(1),
        tree: false,
        task: |s| creat_unlink::task(&s, FilePlace::Own, 0),
    },
];

fn pread(seat: &Seat, place: FilePlace, count: usize, blocks: Blocks) -> Box<dyn Task> {
    io(seat, place, Direction::Read, Position::Given, count, blocks)
}

fn pwrite(seat: &Seat, place: FilePlace, count: usize, blocks: Blocks) -> Box<dyn Task> {
    io(seat, place, Direction::Overwrite, Position::Given, count, blocks)
}

fn io(
    seat: &Seat,
    place: FilePlace,
    direction: Direction,
    position: Position,
    count: usize,
    blocks: Blocks,
) -> Box<dyn Task> {
    block_io::task(seat, Pattern::new(place, direction, position, count, blocks))
}

fn direct(seat: &Seat, pattern: Pattern) -> Box<dyn Task> {
    block_io::task(seat, Pattern { direct: true, ..pattern })
}
