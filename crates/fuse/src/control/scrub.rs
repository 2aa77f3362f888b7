//! Scrub of the store of a mount: both sides of the order `scrub`.
//!
//! The order has two numbers: how many bytes to read, and 1 to begin anew. The answer is a line of five numbers: the times in seconds
//! since 1970 at which the scrub began and ended (0: not yet), bytes that were read, bytes that the store has, and how many findings
//! there are. Each finding follows: its inode, its first byte or `-`, a path from the root of the mount or nothing, and the fault, each with a zero
//! byte behind it.

use super::OK;
use super::client::order_at;
use super::order::about_up_to;
use sluice_vfs::{Errno, ScrubFinding, ScrubState, Superblock, Timestamp};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The most bytes that one order reads: other questions wait meanwhile.
const SCRUB_STEP_MAX: u64 = 4 << 20;

/// Reads and answers.
pub(super) fn obey(stream: &mut UnixStream, superblock: &Superblock) -> io::Result<()> {
    let state = match about_up_to(stream, 0)? {
        Ok(([bytes, anew], _)) => superblock.scrub(bytes.min(SCRUB_STEP_MAX), anew != 0),
        Err(errno) => Err(errno),
    };
    match state {
        Ok(state) => stream.write_all(&encode(&state)),
        Err(Errno::EOPNOTSUPP) => {
            stream.write_all(b"this mount is in memory: only a store has data to check\n")
        }
        Err(errno) => stream.write_all(format!("{errno}\n").as_bytes()),
    }
}

fn encode(state: &ScrubState) -> Vec<u8> {
    let seconds = |time: Option<Timestamp>| time.map_or(0, |time| time.sec);
    let ScrubState { started, finished, last_end: _, bytes, of, damaged, findings } = state;
    let (started, finished) = (seconds(*started), seconds(*finished));
    let mut answer = format!("{OK}{started} {finished} {bytes} {of} {damaged}\n").into_bytes();
    for ScrubFinding { ino, path, offset, reason } in findings {
        let offset = offset.map_or("-".into(), |offset| offset.to_string());
        let path = path.as_ref().map_or(&[][..], |path| path.as_os_str().as_bytes());
        answer.extend([ino.to_string().as_bytes(), offset.as_bytes(), path, reason.as_bytes()].join(&0));
        answer.push(0);
    }
    answer
}

/// The state in an answer without its first line. None: it is none.
fn decode(answer: &[u8]) -> Option<ScrubState> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    let numbers: Vec<i64> =
        str::from_utf8(&answer[..end]).ok()?.split(' ').map_while(|number| number.parse().ok()).collect();
    let [started, finished, bytes, of, damaged] = numbers[..] else { return None };
    let time = |sec| (sec != 0).then_some(Timestamp { sec, nsec: 0 });
    let fields: Vec<&[u8]> = answer[end + 1..].split(|byte| *byte == 0).collect();
    let finding = |fields: &[&[u8]]| {
        let [ino, offset, path, reason] = fields else { return None };
        let number = |bytes: &[u8]| str::from_utf8(bytes).ok()?.parse().ok();
        let path = (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path)));
        let reason = String::from_utf8_lossy(reason).into_owned();
        Some(ScrubFinding { ino: number(ino)?, path, offset: number(offset), reason })
    };
    Some(ScrubState {
        started: time(started),
        finished: time(finished),
        last_end: time(finished),
        bytes: bytes.cast_unsigned(),
        of: of.cast_unsigned(),
        damaged: damaged.cast_unsigned(),
        // Behind the last zero byte is nothing.
        findings: fields.chunks_exact(4).map(finding).collect::<Option<_>>()?,
    })
}

fn state_in(answer: &[u8]) -> io::Result<ScrubState> {
    decode(answer).ok_or_else(|| io::Error::other("the server of the mount said what is no state of a scrub"))
}

/// Has the server of the mount that holds `dir` read up to `bytes` more of its store and compare them with their checksums; see
/// [`Superblock::scrub`]. `None` if no server answers.
///
/// # Errors
/// When `dir` cannot be reached; when the mount has no store, or its disk fails.
pub fn scrub(dir: &Path, bytes: u64, anew: bool) -> io::Result<Option<ScrubState>> {
    let Some(answer) = order_at(dir, &format!("scrub\n{bytes} {} 0\n", u8::from(anew)))? else {
        return Ok(None);
    };
    state_in(&answer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_the_same_behind_its_answer() {
        let finding = |path: Option<&str>, offset| ScrubFinding {
            ino: 7,
            path: path.map(PathBuf::from),
            offset,
            reason: "block 3 of `segment-0000` is damaged".into(),
        };
        let state = ScrubState {
            started: Some(Timestamp { sec: 1_700_000_000, nsec: 0 }),
            finished: None,
            last_end: None,
            bytes: 12,
            of: 1 << 40,
            damaged: 2,
            findings: vec![finding(Some("/a b\nc"), Some(65_536)), finding(None, None)],
        };
        for state in [state, ScrubState::default()] {
            assert_eq!(decode(encode(&state).strip_prefix(OK.as_bytes()).expect("ok")), Some(state));
        }
        for wrong in [&b"1 2 3"[..], b"1 2 3 4 5", b"1 2 3 4 5\nx\0-\0\0why\0"] {
            let error = state_in(wrong).expect_err("it is none").to_string();
            assert_eq!(error, "the server of the mount said what is no state of a scrub");
        }
    }
}
