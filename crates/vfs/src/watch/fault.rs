//! Fault: rules that make chosen calls fail, or do less, or take long.

use super::names::Slot;
use super::{State, hook};
use crate::{Errno, Inode, Superblock};
use bitflags::bitflags;
use sluice_sync::thread;
use sluice_sync::time::Duration;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

bitflags! {
    /// Calls that a [`Fault`] may strike, each with all its variants.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Calls: u16 {
        /// `open` of a file that is there.
        const OPEN = 1;
        /// Whatever makes a file, a directory, a symbolic link or a node.
        const CREATE = 1 << 1;
        /// Reading contents.
        const READ = 1 << 2;
        /// Writing contents, copies of ranges included.
        const WRITE = 1 << 3;
        /// Changing the size.
        const TRUNCATE = 1 << 4;
        /// `fallocate`.
        const FALLOCATE = 1 << 5;
        /// `fsync`, `fdatasync`, `syncfs`, and what `O_SYNC` does.
        const FSYNC = 1 << 6;
        /// `unlink` and `rmdir`.
        const REMOVE = 1 << 7;
        /// `rename`.
        const RENAME = 1 << 8;
        /// `link`.
        const LINK = 1 << 9;
        /// Changing mode, owner or times.
        const SETATTR = 1 << 10;
    }
}

/// The effect on a call that is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It fails with this error, and does nothing.
    Fail(Errno),
    /// A read or write does at most so many bytes, and at least one. Other calls are not changed.
    Short(usize),
    /// It takes so much longer.
    Delay(Duration),
}

/// A rule: which calls are struck, and what happens to them. As text it is `CALLS:EFFECT[:path=GLOB][:nth=N][:times=N]`:
///
/// ```
/// use sluice_vfs::{Calls, Effect, Errno, Fault};
///
/// let fault: Fault = "write,fsync:EIO:path=/db/*.log:nth=3:times=1".parse()?;
/// assert_eq!(fault.calls, Calls::WRITE | Calls::FSYNC);
/// assert_eq!(fault.effect, Effect::Fail(Errno::EIO));
/// assert_eq!((fault.nth, fault.times), (3, Some(1)));
/// assert_eq!("read:short=100".parse::<Fault>()?.to_string(), "read:short=100");
/// assert_eq!("fsync:delay=20ms".parse::<Fault>()?.to_string(), "fsync:delay=20ms");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The calls.
    pub calls: Calls,
    /// Only of files with a path like this, from the root of the file system on: `?` is one character but `/`, `*` any
    /// number of them, `**` any number of any. For a file with several names one match is enough; a rename matches with
    /// either name. None for all.
    pub path: Option<String>,
    /// The first matching call that is struck, from 1 on.
    pub nth: u64,
    /// How many are struck from then on. None for all.
    pub times: Option<u64>,
    /// The effect on the call.
    pub effect: Effect,
}

/// Tells a rule from others of its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(pub u64);

/// A rule, and what it has met.
pub(super) struct Rule {
    id: FaultId,
    fault: Fault,
    /// Calls that it fits.
    met: u64,
}

impl Fault {
    /// Strikes all of `calls` with `effect`.
    pub fn new(calls: Calls, effect: Effect) -> Fault {
        Fault { calls, path: None, nth: 1, times: None, effect }
    }

    /// This rule, for files whose path is like `glob`.
    #[must_use]
    pub fn on(self, glob: impl Into<String>) -> Fault {
        Fault { path: Some(glob.into()), ..self }
    }

    /// This rule, from the `nth` call on.
    #[must_use]
    pub fn starting_at(self, nth: u64) -> Fault {
        Fault { nth, ..self }
    }

    /// This rule, for so many calls.
    #[must_use]
    pub fn times(self, times: u64) -> Fault {
        Fault { times: Some(times), ..self }
    }

    fn fits(&self, call: Calls, paths: &[impl AsRef<Path>]) -> bool {
        let like = |glob: &String| paths.iter().any(|path| is_like(glob, path.as_ref()));
        self.calls.intersects(call) && self.path.as_ref().is_none_or(like)
    }
}

/// Whether `path` is like `glob`.
fn is_like(glob: &str, path: &Path) -> bool {
    matches(glob.as_bytes(), path.as_os_str().as_bytes())
}

/// Whether `text` is like `glob`: part by part of the glob, up to which bytes of the text it may have come.
fn matches(mut glob: &[u8], text: &[u8]) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    while let Some((first, rest)) = glob.split_first() {
        let is_deep = glob.starts_with(b"**");
        if *first == b'*' {
            for (at, byte) in text.iter().enumerate() {
                reached[at + 1] |= reached[at] && (is_deep || *byte != b'/');
            }
        } else {
            let takes = |byte: &u8| byte == first || *first == b'?' && *byte != b'/';
            for (at, byte) in text.iter().enumerate().rev() {
                reached[at + 1] = reached[at] && takes(byte);
            }
            reached[0] = false;
        }
        glob = if is_deep { &glob[2..] } else { rest };
    }
    reached[text.len()]
}

/// The names of errors that a rule may say.
const ERRORS: &[Errno] = &[
    Errno::EIO,
    Errno::ENOSPC,
    Errno::EDQUOT,
    Errno::EROFS,
    Errno::EACCES,
    Errno::EPERM,
    Errno::EINTR,
    Errno::EAGAIN,
    Errno::ENOMEM,
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::EFBIG,
    Errno::EBUSY,
    Errno::ENOENT,
    Errno::EEXIST,
    Errno::ESTALE,
    Errno::ETIMEDOUT,
];

impl FromStr for Effect {
    type Err = String;

    fn from_str(text: &str) -> Result<Effect, String> {
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| format!("{text}: give a number"));
        if let Some(bytes) = text.strip_prefix("short=") {
            return Ok(Effect::Short(number(bytes)? as usize));
        }
        if let Some(time) = text.strip_prefix("delay=") {
            let digits = time.strip_suffix("ms").unwrap_or(time);
            return Ok(Effect::Delay(Duration::from_millis(number(digits)?)));
        }
        let errno = ERRORS.iter().find(|errno| errno.name() == text);
        errno.map(|errno| Effect::Fail(*errno)).ok_or_else(|| {
            let known: Vec<_> = ERRORS.iter().map(|errno| errno.name()).collect();
            format!("{text}: say short=BYTES, delay=MILLISECONDS or one of {}", known.join(", "))
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    /// # Errors
    /// The mistake in the text, for a person.
    fn from_str(text: &str) -> Result<Fault, String> {
        let mut parts = text.split(':');
        let (Some(names), Some(effect)) = (parts.next(), parts.next()) else {
            return Err(format!("{text}: a rule is CALLS:EFFECT, such as write:ENOSPC"));
        };
        let mut calls = Calls::empty();
        for name in names.split(',') {
            calls |= match name {
                "all" => Calls::all(),
                name => Calls::from_name(&name.to_uppercase()).ok_or_else(|| {
                    let known: Vec<_> =
                        Calls::all().iter_names().map(|(name, _)| name.to_lowercase()).collect();
                    format!("{name}: no such call; there are all, {}", known.join(", "))
                })?,
            };
        }
        let mut fault = Fault::new(calls, effect.parse()?);
        for part in parts {
            let number = |digits: &str| digits.parse::<u64>().ok().filter(|number| *number > 0);
            match part.split_once('=') {
                Some(("path", glob)) => fault = fault.on(glob),
                Some(("nth", digits)) => {
                    fault =
                        fault.starting_at(number(digits).ok_or(format!("{part}: give a number from 1 on"))?);
                }
                Some(("times", digits)) => {
                    fault = fault.times(number(digits).ok_or(format!("{part}: give a number from 1 on"))?);
                }
                _ => return Err(format!("{part}: say path=GLOB, nth=N or times=N")),
            }
        }
        Ok(fault)
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Fail(errno) => f.write_str(errno.name()),
            Effect::Short(bytes) => write!(f, "short={bytes}"),
            Effect::Delay(time) => write!(f, "delay={}ms", time.as_millis()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { calls, path, nth, times, effect } = self;
        let names: Vec<_> = calls.iter_names().map(|(name, _)| name.to_lowercase()).collect();
        let names = if calls.is_all() { "all".into() } else { names.join(",") };
        write!(f, "{names}:{effect}")?;
        if let Some(path) = path {
            write!(f, ":path={path}")?;
        }
        if *nth > 1 {
            write!(f, ":nth={nth}")?;
        }
        times.iter().try_for_each(|times| write!(f, ":times={times}"))
    }
}

impl State {
    /// The effects on `call` of the file `ino`, or of the names `slots`: each rule counts the call.
    fn strike(&mut self, call: Calls, ino: u64, slots: &[Slot]) -> Vec<Effect> {
        let Some(names) = &self.names else { return Vec::new() };
        let paths: Vec<_> = match slots {
            [] => names.paths(ino),
            slots => slots.iter().filter_map(|slot| names.path(slot)).collect(),
        };
        let mut effects = Vec::new();
        for rule in &mut self.rules {
            if rule.fault.fits(call, &paths) {
                rule.met += 1;
                let last =
                    rule.fault.times.map_or(u64::MAX, |times| rule.fault.nth.saturating_add(times - 1));
                if (rule.fault.nth..=last).contains(&rule.met) {
                    effects.push(rule.fault.effect);
                }
            }
        }
        effects
    }
}

impl Inode {
    /// Applies injected faults to `call` on this file. Called in no read section or
    /// [`Section`](crate::durable::Section), and with nothing locked but cursors: how many bytes it may do.
    ///
    /// # Errors
    /// Errors that rules say.
    #[inline]
    pub(crate) fn meet_faults(&self, call: Calls) -> Result<usize, Errno> {
        if self.shared.has_hook(hook::FAULTS) { self.meet_faults_now(call, &[]) } else { Ok(usize::MAX) }
    }

    /// Applies injected faults to a call on `names`, each in a directory.
    ///
    /// # Errors
    /// Errors of [`meet_faults`](Self::meet_faults).
    #[inline]
    pub(crate) fn meet_faults_of(&self, call: Calls, names: &[(&Inode, &[u8])]) -> Result<(), Errno> {
        if self.shared.has_hook(hook::FAULTS) { self.meet_faults_now(call, names).map(drop) } else { Ok(()) }
    }

    #[cold]
    fn meet_faults_now(&self, call: Calls, names: &[(&Inode, &[u8])]) -> Result<usize, Errno> {
        let Some(watch) = self.shared.watch() else { return Ok(usize::MAX) };
        let slots: Vec<Slot> = names.iter().map(|(dir, name)| (dir.ino(), Box::from(*name))).collect();
        let effects = watch.lock().strike(call, self.ino(), &slots);
        let mut most = usize::MAX;
        for effect in effects {
            match effect {
                Effect::Delay(time) => thread::sleep(time),
                Effect::Fail(errno) => return Err(errno),
                Effect::Short(bytes) => most = most.min(bytes.max(1)),
            }
        }
        Ok(most)
    }
}

impl Superblock {
    /// Makes calls fail from now on as `fault` says, from wherever they come: programs in process, and those of a
    /// mount. A call that has already begun is not affected.
    ///
    /// Calls meet rules in the order in which these were injected: times of all delays add up, the first error counts.
    ///
    /// # Errors
    /// The store's, when the names of a durable file system cannot be loaded.
    pub fn inject(&self, fault: Fault) -> Result<FaultId, Errno> {
        let shared = &self.root().shared;
        let mut state = shared.watch_names(self)?;
        state.last_rule += 1;
        let id = FaultId(state.last_rule);
        state.rules.push(Rule { id, fault, met: 0 });
        shared.set_hook(hook::FAULTS, true);
        Ok(id)
    }

    /// The rules that are injected, and how many calls each has met: those that it struck, and those before the n-th.
    pub fn faults(&self) -> Vec<(FaultId, Fault, u64)> {
        let Some(watch) = self.root().shared.watch() else { return Vec::new() };
        watch.lock().rules.iter().map(|rule| (rule.id, rule.fault.clone(), rule.met)).collect()
    }

    /// Takes a rule away. False if there is none such.
    pub fn clear_fault(&self, id: FaultId) -> bool {
        self.retain_faults(|rule| rule.id != id)
    }

    /// Takes all rules away.
    pub fn clear_faults(&self) {
        self.retain_faults(|_| false);
    }

    fn retain_faults(&self, keep: impl Fn(&Rule) -> bool) -> bool {
        let shared = &self.root().shared;
        let Some(watch) = shared.watch() else { return false };
        let mut state = watch.lock();
        let before = state.rules.len();
        state.rules.retain(keep);
        if state.rules.is_empty() {
            shared.set_hook(hook::FAULTS, false);
        }
        state.rules.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stops_at_a_slash_and_two_do_not() {
        let like = |glob: &str, path: &str| is_like(glob, Path::new(path));
        for (glob, path) in [
            ("/db/*.log", "/db/a.log"),
            ("/db/*", "/db/"),
            ("**", "/a/b"),
            ("**/*.log", "/a/b/c.log"),
            ("/a/**/z", "/a/b/c/z"),
            ("/?b*c", "/abxxc"),
            ("/a*b*c", "/aXbXbXc"),
            ("/**b/*c", "/ab/b/xc"),
            ("/", "/"),
        ] {
            assert!(like(glob, path), "{glob} {path}");
        }
        for (glob, path) in [
            ("/db/*.log", "/db/a/b.log"),
            ("/db/*.log", "/db/a.logs"),
            ("*", "/"),
            ("/a?b", "/a/b"),
            ("/a**c", "/ab"),
            ("", "/"),
        ] {
            assert!(!like(glob, path), "{glob} {path}");
        }
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_refused_with_what_would() {
        for (text, says) in [
            ("write", "CALLS:EFFECT"),
            ("wrote:EIO", "wrote: no such call; there are all, "),
            ("write:EWHAT", "EWHAT: say short=BYTES, delay=MILLISECONDS or one of "),
            ("write:EIO:nth=0", "from 1"),
            ("write:EIO:now", "path=GLOB"),
            ("write:short=x", "number"),
        ] {
            let said = text.parse::<Fault>().expect_err(text);
            assert!(said.contains(says), "{said}");
        }
        let whole = "write,fsync:EIO:path=/db/*:nth=2:times=3";
        assert_eq!(whole.parse::<Fault>().expect("it is one").to_string(), whole);
    }
}
