//! Records: the lines "LENGTH KEY=VALUE" of an extended header.

use sluice_vfs::Timestamp;
use std::borrow::Cow;
use std::fmt::Write;
use std::io;

/// The error for an archive that is not of the format.
pub(super) fn malformed(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a proper tar archive: {reason}"))
}

/// The record at the front of `data`, key and value, and what follows it.
///
/// # Errors
/// `InvalidData` when there is no such record.
pub(super) fn split_record(data: &[u8]) -> io::Result<(&[u8], &[u8], &[u8])> {
    let whole = || {
        let space = data.iter().take(20).position(|byte| *byte == b' ')?;
        let len: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
        let record = data.get(space + 1..len)?;
        let (last, record) = record.split_last()?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        (*last == b'\n').then(|| (&record[..equals], &record[equals + 1..], &data[len..]))
    };
    whole().ok_or_else(|| malformed("an extended header holds something that is no record"))
}

/// Adds a record to `out`.
pub(super) fn push_record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // The length counts its own digits.
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    out.extend_from_slice(len.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// A time as decimal seconds.
pub(super) fn time_text(time: Timestamp) -> String {
    let (sign, sec, nsec) = match time {
        Timestamp { sec, nsec } if sec < 0 && nsec > 0 => {
            ("-", (sec + 1).unsigned_abs(), 1_000_000_000_u32.saturating_sub(nsec))
        }
        Timestamp { sec, nsec } => (if sec < 0 { "-" } else { "" }, sec.unsigned_abs(), nsec),
    };
    let mut text = format!("{sign}{sec}");
    if nsec != 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, ".{nsec:09}");
    }
    text
}

/// Reads decimal seconds; digits below a nanosecond are dropped.
pub(super) fn parse_time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    let nsec: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some(match (negative, nsec) {
        (false, _) => Timestamp { sec: whole, nsec },
        (true, 0) => Timestamp { sec: -whole, nsec: 0 },
        (true, _) => Timestamp { sec: -whole - 1, nsec: 1_000_000_000 - nsec },
    })
}

/// An attribute's name as a key: "=" would end it.
pub(super) fn escape_key(name: &[u8]) -> Cow<'_, [u8]> {
    if !name.iter().any(|byte| matches!(byte, b'=' | b'%')) {
        return Cow::Borrowed(name);
    }
    let mut escaped = Vec::new();
    for byte in name {
        match byte {
            b'=' => escaped.extend_from_slice(b"%3D"),
            b'%' => escaped.extend_from_slice(b"%25"),
            other => escaped.push(*other),
        }
    }
    Cow::Owned(escaped)
}

/// Undoes [`escape_key`], and nothing else.
pub(super) fn unescape_key(mut key: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    while let Some((first, rest)) = key.split_first() {
        let (byte, rest) = match key {
            [b'%', b'3', b'D' | b'd', rest @ ..] => (b'=', rest),
            [b'%', b'2', b'5', rest @ ..] => (b'%', rest),
            _ => (*first, rest),
        };
        name.push(byte);
        key = rest;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length_and_may_hold_anything() {
        for len in (0..200).chain(960..1010).chain(9970..10010) {
            let value = vec![b'\n'; len];
            let mut out = Vec::new();
            push_record(&mut out, b"key", &value);
            push_record(&mut out, b"next", b"a=b");
            let (key, read, rest) = split_record(&out).unwrap();
            assert_eq!((key, read), (&b"key"[..], &value[..]));
            assert_eq!(split_record(rest).unwrap(), (&b"next"[..], &b"a=b"[..], &b""[..]));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let wrong: [&[u8]; 9] = [
            b"",
            b"x",
            b"5 a=b",
            b"7 a=b\n",
            b"0 a=b\n",
            b"1 a=b\n",
            b"6 abc\n",
            b"-6 a=b\n",
            b"99999999999999999999999 a=b\n",
        ];
        for data in wrong {
            assert!(split_record(data).is_err(), "{data:?}");
        }
    }

    #[test]
    fn a_time_survives_its_text() {
        for sec in [i64::MIN + 1, -2, -1, 0, 1, 1_700_000_000, i64::MAX] {
            for nsec in [0, 1, 500_000_000, 999_999_999] {
                let time = Timestamp { sec, nsec };
                assert_eq!(parse_time(time_text(time).as_bytes()), Some(time), "{}", time_text(time));
            }
        }
        assert_eq!(time_text(Timestamp { sec: -1, nsec: 500_000_000 }), "-0.500000000");
        assert_eq!(parse_time(b"1.5"), Some(Timestamp { sec: 1, nsec: 500_000_000 }));
        assert_eq!(parse_time(b"1.0000000019"), Some(Timestamp { sec: 1, nsec: 1 }));
        for wrong in [&b""[..], b"-", b"x", b"1.x", b"+1", b"--1", b"99999999999999999999", b"1.2.3"] {
            assert_eq!(parse_time(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_key_survives_escaping() {
        for name in [&b"user.a"[..], b"user.a=b", b"user.%3D", b"user.100%", b"user.\xff="] {
            let escaped = escape_key(name);
            assert!(!escaped.contains(&b'='));
            assert_eq!(unescape_key(&escaped), name);
        }
    }
}
