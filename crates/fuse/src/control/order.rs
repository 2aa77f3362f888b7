//! Orders: what a client sends on a connection to the control socket.

use sluice_vfs::{Errno, NAME_MAX};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;

/// The longest question.
const QUESTION_MAX: usize = 64;

/// Up to the first newline. Longer lines are cut off, and then known to nobody.
pub fn read_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < QUESTION_MAX && stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(line)
}

/// The object of an order: `N` numbers and a name, or another text.
pub(super) type About<const N: usize> = ([u64; N], Vec<u8>);

/// Reads what an order is about.
pub(super) fn about<const N: usize>(stream: &mut UnixStream) -> io::Result<Result<About<N>, Errno>> {
    about_up_to(stream, NAME_MAX as u64 + 1)
}

/// Reads the object of an order, whose text has up to `most` bytes; see [`about`].
pub(super) fn about_up_to<const N: usize>(
    stream: &mut UnixStream,
    most: u64,
) -> io::Result<Result<About<N>, Errno>> {
    let line = String::from_utf8(read_line(stream)?).unwrap_or_default();
    let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
    let Some((&len, numbers)) = numbers.split_last() else { return Ok(Err(Errno::EINVAL)) };
    let Ok(numbers) = numbers.try_into() else { return Ok(Err(Errno::EINVAL)) };
    let mut name = vec![0; len.min(most) as usize];
    stream.read_exact(&mut name)?;
    Ok(Ok((numbers, name)))
}
