//! Word: the text form of one argument of an operation, so that a failing sequence is a file that people can
//! read, edit and replay.

use bitflags::parser;
use sluice_vfs::{AtFlags, FallocateMode, FileType, OpenFlags, RenameFlags, Whence, XattrFlags};

/// A value with a text form that holds no blank.
pub trait Word: Sized {
    /// The text.
    fn to_word(&self) -> String;
    /// The value that the text stands for.
    ///
    /// # Errors
    /// One line that says what was expected.
    fn from_word(word: &str) -> Result<Self, String>;
}

fn bad<T>(what: &str, word: &str) -> Result<T, String> {
    Err(format!("{what} expected, not `{word}`"))
}

/// Stands for the working directory where a descriptor is expected.
pub const CWD: i32 = -100;

/// A descriptor number, or [`CWD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fd(pub i32);

impl Word for Fd {
    fn to_word(&self) -> String {
        if self.0 == CWD { "cwd".into() } else { self.0.to_string() }
    }
    fn from_word(word: &str) -> Result<Self, String> {
        if word == "cwd" {
            return Ok(Fd(CWD));
        }
        word.parse().map(Fd).or_else(|_| bad("a descriptor or `cwd`", word))
    }
}

/// Permission bits, written in octal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(pub u32);

impl Word for Mode {
    fn to_word(&self) -> String {
        format!("0o{:o}", self.0)
    }
    fn from_word(word: &str) -> Result<Self, String> {
        let digits = word.strip_prefix("0o").unwrap_or(word);
        u32::from_str_radix(digits, 8).map(Mode).or_else(|_| bad("an octal mode", word))
    }
}

macro_rules! number_words {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn to_word(&self) -> String {
                self.to_string()
            }
            fn from_word(word: &str) -> Result<Self, String> {
                word.parse().or_else(|_| bad("a number", word))
            }
        }
    )*};
}
number_words!(i32 u32 i64 u64 usize);

impl<T: Word> Word for Option<T> {
    fn to_word(&self) -> String {
        self.as_ref().map_or("none".into(), T::to_word)
    }
    fn from_word(word: &str) -> Result<Self, String> {
        if word == "none" { Ok(None) } else { T::from_word(word).map(Some) }
    }
}

/// A path, a name or a value: bytes, in double quotes. `\xHH` is a byte, `\r{N}C` is N times the byte C.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes(pub Vec<u8>);

/// Runs of at least this many equal bytes are written as a repetition.
const LONG_RUN: usize = 16;

impl Word for Bytes {
    fn to_word(&self) -> String {
        let mut text = String::from("\"");
        for run in self.0.chunk_by(|a, b| a == b) {
            let byte = match run[0] {
                b @ (b'"' | b'\\' | 0..=b' ' | 0x7f..) => format!("\\x{b:02x}"),
                b => char::from(b).to_string(),
            };
            if run.len() >= LONG_RUN {
                text += &format!("\\r{{{}}}{byte}", run.len());
            } else {
                text += &byte.repeat(run.len());
            }
        }
        text + "\""
    }

    fn from_word(word: &str) -> Result<Self, String> {
        let wrong = || bad("bytes in double quotes", word);
        let Some(mut rest) = word.strip_prefix('"').and_then(|w| w.strip_suffix('"')) else { return wrong() };
        let mut bytes = Vec::new();
        let mut count = 1;
        while let Some(first) = rest.chars().next() {
            if let Some(run) = rest.strip_prefix("\\r{") {
                let Some((digits, after)) = run.split_once('}') else { return wrong() };
                count = digits.parse().or_else(|_| wrong().map(|_: Bytes| 0))?;
                rest = after;
                continue;
            }
            let byte = if let Some(escape) = rest.strip_prefix("\\x") {
                let Some(digits) = escape.get(..2) else { return wrong() };
                rest = &escape[2..];
                u8::from_str_radix(digits, 16).or_else(|_| wrong().map(|_: Bytes| 0))?
            } else if first.is_ascii() && first != '\\' {
                rest = &rest[1..];
                first as u8
            } else {
                return wrong();
            };
            bytes.extend(std::iter::repeat_n(byte, count));
            count = 1;
        }
        Ok(Bytes(bytes))
    }
}

/// Contents to write: so many bytes that follow from a seed. Written `LEN*SEED`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Number of bytes.
    pub len: usize,
    /// Tells one content from another. Never yields a zero byte, so that data is not mistaken for a hole.
    pub seed: u8,
}

impl Data {
    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        (0..self.len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(self.seed) | 1).collect()
    }
}

impl Word for Data {
    fn to_word(&self) -> String {
        format!("{}*{}", self.len, self.seed)
    }
    fn from_word(word: &str) -> Result<Self, String> {
        let parts = word.split_once('*').and_then(|(l, s)| Some((l.parse().ok()?, s.parse().ok()?)));
        match parts {
            Some((len, seed)) => Ok(Data { len, seed }),
            None => bad("contents `LEN*SEED`", word),
        }
    }
}

/// A list of words between commas; `-` when it is empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List<T>(pub Vec<T>);

impl<T: Word> Word for List<T> {
    fn to_word(&self) -> String {
        if self.0.is_empty() {
            return "-".into();
        }
        self.0.iter().map(T::to_word).collect::<Vec<_>>().join(",")
    }
    fn from_word(word: &str) -> Result<Self, String> {
        if word == "-" {
            return Ok(List(Vec::new()));
        }
        word.split(',').map(T::from_word).collect::<Result<_, _>>().map(List)
    }
}

/// A time for `utimens`: `now`, `omit` or `SEC/NSEC`. The nanoseconds may be out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeArg {
    /// The wall clock.
    Now,
    /// Leave the time.
    Omit,
    /// This time: seconds and nanoseconds.
    At(i64, u32),
}

impl Word for TimeArg {
    fn to_word(&self) -> String {
        match self {
            TimeArg::Now => "now".into(),
            TimeArg::Omit => "omit".into(),
            TimeArg::At(sec, nsec) => format!("{sec}/{nsec}"),
        }
    }
    fn from_word(word: &str) -> Result<Self, String> {
        let parts = word.split_once('/').and_then(|(s, n)| Some((s.parse().ok()?, n.parse().ok()?)));
        match (word, parts) {
            ("now", _) => Ok(TimeArg::Now),
            ("omit", _) => Ok(TimeArg::Omit),
            (_, Some((sec, nsec))) => Ok(TimeArg::At(sec, nsec)),
            _ => bad("`now`, `omit` or `SEC/NSEC`", word),
        }
    }
}

macro_rules! flag_words {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn to_word(&self) -> String {
                let mut text = String::new();
                // Writing to a String cannot fail.
                let _ = parser::to_writer(self, &mut text);
                if text.is_empty() { "-".into() } else { text.replace(' ', "") }
            }
            fn from_word(word: &str) -> Result<Self, String> {
                if word == "-" {
                    return Ok(<$type>::empty());
                }
                parser::from_str(word).or_else(|_| bad("flags `A|B|0x40` or `-`", word))
            }
        }
    )*};
}
flag_words!(OpenFlags AtFlags FallocateMode RenameFlags XattrFlags);

/// An enum whose variants are written as the words listed, with the numbers that the host calls them.
macro_rules! named_words {
    ($($type:ty { $($value:path = $word:literal),* $(,)? })*) => {$(
        impl Word for $type {
            fn to_word(&self) -> String {
                match self { $($value => $word),* }.into()
            }
            fn from_word(word: &str) -> Result<Self, String> {
                match word { $($word => Ok($value),)* _ => bad(concat!("one of", $(" ", $word),*), word) }
            }
        }
    )*};
}

/// The kind of a lock request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// A shared lock.
    Read,
    /// An exclusive lock.
    Write,
    /// No lock.
    Unlock,
}

/// Whose locks a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOwner {
    /// The process: POSIX record locks.
    Posix,
    /// The open file description: OFD locks.
    Ofd,
}

named_words! {
    Whence {
        Whence::Set = "set", Whence::Cur = "cur", Whence::End = "end", Whence::Data = "data",
        Whence::Hole = "hole",
    }
    FileType {
        FileType::Regular = "regular", FileType::Directory = "directory", FileType::Symlink = "symlink",
        FileType::Fifo = "fifo", FileType::Socket = "socket", FileType::CharDevice = "char",
        FileType::BlockDevice = "block",
    }
    LockKind { LockKind::Read = "read", LockKind::Write = "write", LockKind::Unlock = "unlock" }
    LockOwner { LockOwner::Posix = "posix", LockOwner::Ofd = "ofd" }
}

/// Whose extended attributes a call is about: `file:"a"`, `link:"a"` or `fd:3`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The file that a path leads to.
    File(Bytes),
    /// The same, a symbolic link itself included.
    Link(Bytes),
    /// The open file of a descriptor.
    Fd(Fd),
}

impl Word for Target {
    fn to_word(&self) -> String {
        match self {
            Target::File(path) => format!("file:{}", path.to_word()),
            Target::Link(path) => format!("link:{}", path.to_word()),
            Target::Fd(fd) => format!("fd:{}", fd.to_word()),
        }
    }
    fn from_word(word: &str) -> Result<Self, String> {
        match word.split_once(':') {
            Some(("file", path)) => Bytes::from_word(path).map(Target::File),
            Some(("link", path)) => Bytes::from_word(path).map(Target::Link),
            Some(("fd", fd)) => Fd::from_word(fd).map(Target::Fd),
            _ => bad("`file:PATH`, `link:PATH` or `fd:N`", word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_their_text_form() {
        for bytes in [&b""[..], b"a/b", b"\"\\ \xff\n", &[b'x'; 300], b"{}\\r{3}", &[b'\\'; 40]] {
            let word = Bytes(bytes.to_vec()).to_word();
            assert!(!word.contains(' '), "{word}");
            assert_eq!(Bytes::from_word(&word), Ok(Bytes(bytes.to_vec())), "{word}");
        }
    }

    #[test]
    fn flags_survive_their_text_form_with_bits_that_have_no_name() {
        for bits in [0, 0o1102, 0o20_200_001, 0o10_000_000, 3, 0x8000_0000] {
            let flags = OpenFlags::from_bits_retain(bits);
            assert_eq!(OpenFlags::from_word(&flags.to_word()), Ok(flags), "{}", flags.to_word());
        }
    }

    #[test]
    fn wrong_words_are_refused_with_what_was_expected() {
        assert!(Fd::from_word("x").is_err_and(|e| e.contains("descriptor")));
        assert!(Bytes::from_word("\"\\xz1\"").is_err());
        assert!(Whence::from_word("middle").is_err_and(|e| e.contains("hole")));
        assert!(Data::from_word("12").is_err());
    }
}
