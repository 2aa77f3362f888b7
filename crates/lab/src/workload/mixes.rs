//! Mixes: what a mail server and a compiler do to a file system, many kinds of call in one operation.
//!
//! # Sources
//! The mail server follows filebench's *varmail* (delete, create and sync, read and append and sync, read), of which each task
//! has mails of its own in the one spool of all. The build is what `strace` shows of a C compiler and `make`: headers
//! looked for where they are not, a source read, an object written under a name that is not final, and renamed.

use super::place::check_absent;
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Open, Target, read_file, write_new_file};
use sluice_console::failure::Result;
use sluice_vfs::Errno;

/// Mails of a task.
const MAILS: usize = 64;
const MAIL: [u8; 16 * 1024] = [b'm'; 16 * 1024];
const REPLY: [u8; 4 * 1024] = [b'r'; 4 * 1024];

pub(super) fn mail(seat: &Seat) -> Box<dyn Task> {
    let paths = (0..MAILS).map(|number| format!("{}/mail-{}-{number}", seat.shared, seat.index));
    Box::new(Mail { paths: paths.collect(), steps: 0 })
}

struct Mail {
    paths: Vec<String>,
    steps: usize,
}

impl Mail {
    fn deliver(calls: &mut dyn Calls, path: &str, how: Open, text: &[u8]) -> CallResult<()> {
        let file = calls.open(path, how)?;
        let written = calls.write(file, text).and_then(|count| {
            calls.fsync(file)?;
            if count == text.len() { Ok(()) } else { Err(Errno::EIO) }
        });
        calls.close(file)?;
        written
    }
}

impl Task for Mail {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.paths.iter().try_for_each(|path| Mail::deliver(calls, path, Open::New(0o600), &MAIL))
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let path = |ahead: usize| &self.paths[(self.steps + ahead) % MAILS];
        calls.unlink(path(0))?;
        Mail::deliver(calls, path(0), Open::New(0o600), &MAIL)?;
        read_file(calls, path(MAILS / 3))?;
        Mail::deliver(calls, path(MAILS / 3), Open::Append, &REPLY)?;
        read_file(calls, path(2 * MAILS / 3))?;
        self.steps += 1;
        Ok(true)
    }

    /// A mail and its replies, in that order: none, or one since it came.
    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        for path in &self.paths {
            let text = read_file(calls, path)?;
            let replies = text.strip_prefix(&MAIL[..]);
            if !replies.is_some_and(|replies| replies.is_empty() || replies == REPLY) {
                return wrong(format!("{path} holds {} bytes that are no mail with its reply", text.len()));
            }
        }
        Ok(())
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.paths.iter().try_for_each(|path| calls.unlink(path))
    }
}

/// Sources of a task, headers that each includes, and directories in which a header is looked for in vain.
const SOURCES: usize = 32;
const HEADERS: usize = 8;
const WRONG_DIRECTORIES: usize = 3;
const SOURCE: [u8; 8 * 1024] = [b's'; 8 * 1024];
const OBJECT: [u8; 12 * 1024] = [b'o'; 12 * 1024];

pub(super) fn build(seat: &Seat) -> Box<dyn Task> {
    Box::new(Build { dir: seat.dir.clone(), include: format!("{}/include", seat.shared), steps: 0 })
}

struct Build {
    dir: String,
    include: String, // of all tasks
    steps: usize,
}

impl Build {
    fn path(&self, number: usize, kind: &str) -> String {
        format!("{}/unit-{number}.{kind}", self.dir)
    }

    fn header(&self, number: usize) -> String {
        format!("{}/header-{number}.h", self.include)
    }
}

impl Task for Build {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        super::place::make_dir(calls, &self.include)?;
        for number in 0..HEADERS {
            // The task that comes first makes it.
            let file = calls.open(&self.header(number), Open::Create(0o600))?;
            calls.pwrite(file, &SOURCE, 0)?;
            calls.close(file)?;
        }
        (0..SOURCES).try_for_each(|number| write_new_file(calls, &self.path(number, "c"), 0o600, &SOURCE))
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let unit = self.steps % SOURCES;
        read_file(calls, &self.path(unit, "c"))?;
        for number in 0..HEADERS {
            for place in 0..WRONG_DIRECTORIES {
                match calls.stat(&format!("{}/wrong-{place}/header-{number}.h", self.dir)) {
                    Err(Errno::ENOENT) => {}
                    found => return found.and(Err(Errno::EEXIST)),
                }
            }
            read_file(calls, &self.header(number))?;
        }
        let (unfinished, object) = (self.path(unit, "o.tmp"), self.path(unit, "o"));
        write_new_file(calls, &unfinished, 0o600, &OBJECT)?;
        calls.rename(&unfinished, &object)?;
        self.steps += 1;
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        for unit in 0..self.steps.min(SOURCES) {
            check_absent(calls, &self.path(unit, "o.tmp"))?;
            let object = self.path(unit, "o");
            if read_file(calls, &object)? != OBJECT {
                return wrong(format!("{object} is not what was compiled"));
            }
        }
        Ok(())
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        for unit in 0..SOURCES {
            calls.unlink(&self.path(unit, "c"))?;
            if unit < self.steps {
                calls.unlink(&self.path(unit, "o"))?;
            }
        }
        Ok(())
    }
}
