//! KeySource: the key of an encrypted store, from a file or from a person.

use crate::bucket::{self, Bucket};
use crate::failures::failure;
use crate::named_store::NamedStore;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use sluice_console::failure::{Context, Failure, Result};
use sluice_store::disk::{Disk, HostDisk};
use sluice_store::{Store, StoreError, StoreKey};
use sluice_sync::Arc;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A key file is no longer, nor is a passphrase.
const KEY_MAX: u64 = 1 << 20;
/// Where a person is asked.
const TERMINAL: &str = "/dev/tty";

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// A file of random bytes.
    File(PathBuf),
    /// The first line of a file.
    Passphrase(PathBuf),
}

impl KeySource {
    /// Whether another process can read it later: a pipe gives it once.
    pub(crate) fn can_be_read_again(&self) -> bool {
        let (KeySource::File(path) | KeySource::Passphrase(path)) = self;
        path.metadata().is_ok_and(|metadata| metadata.is_file())
    }

    /// The source that two options give, of which one at most is there.
    pub(crate) fn of(file: Option<&PathBuf>, passphrase: Option<&PathBuf>) -> Option<KeySource> {
        let passphrase = || passphrase.cloned().map(KeySource::Passphrase);
        file.cloned().map(KeySource::File).or_else(passphrase)
    }

    /// The key there.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn key(&self) -> Result<StoreKey> {
        let (KeySource::File(path) | KeySource::Passphrase(path)) = self;
        let named = || path.display().to_string();
        let file = File::open(path).context(named)?;
        let about = file.metadata().context(named)?;
        if about.is_file() && about.mode() & 0o077 != 0 {
            let path = path.display();
            eprintln!(
                "sluice: warning: {path}: other users may read this key; to end that: chmod 600 {path}"
            );
        }
        let key = match self {
            KeySource::File(_) => {
                let mut bytes = Vec::new();
                file.take(KEY_MAX + 1).read_to_end(&mut bytes).context(named)?;
                if bytes.len() as u64 > KEY_MAX {
                    let text = "a key file has up to 1 MiB";
                    return Err(Failure::Failed(format!("{}: {text}", path.display())));
                }
                StoreKey::file(bytes)
            }
            KeySource::Passphrase(_) => StoreKey::passphrase(line_of(file).context(named)?),
        };
        key.map_err(failure(path))
    }
}

/// The first line of `file`, without its end.
fn line_of(file: impl Read) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(file.take(KEY_MAX)).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(line)
}

/// The key for the store at `store`: that of `source`, or, if the store is encrypted, what a person says who is asked for `what`.
/// None without a terminal.
pub(crate) fn key_for<'s>(
    store: impl Into<NamedStore<'s>>,
    source: Option<KeySource>,
    what: &str,
) -> Result<Option<StoreKey>> {
    if let Some(source) = source {
        return source.key().map(Some);
    }
    // A store may be far away, and out of reach: it is asked only if a person can be.
    if File::open(TERMINAL).is_err() {
        return Ok(None);
    }
    let NamedStore { address, name } = store.into();
    if is_encrypted(address) { asked(name, what) } else { Ok(None) }
}

/// Whether the store at `store` is encrypted. False of one that cannot be read: the caller meets the same error when it opens the store.
fn is_encrypted(store: &Path) -> bool {
    match bucket::at(store) {
        Ok(Some(bucket)) => bucket::is_encrypted(&bucket),
        Ok(None) => HostDisk::unlocked(store)
            .and_then(|disk| Store::info(&disk))
            .is_ok_and(|info| info.key_id.is_some()),
        Err(_) => false,
    }
}

/// The passphrase of a person who is asked for `what` of `store`; none without a terminal.
fn asked(store: &Path, what: &str) -> Result<Option<StoreKey>> {
    let Ok(terminal) = File::options().read(true).write(true).open(TERMINAL) else { return Ok(None) };
    let shown = tcgetattr(&terminal).map_err(std::io::Error::from).context(|| TERMINAL)?;
    let mut hidden = shown.clone();
    // Keys for signals are read as others: a person who ends it here must see again what is typed.
    hidden.local_modes &= !(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
    let set = |modes| tcsetattr(&terminal, OptionalActions::Drain, modes).map_err(std::io::Error::from);
    set(&hidden).context(|| TERMINAL)?;
    // The question comes when nothing that is typed shows any more.
    let mut screen = &terminal;
    let asked = write!(screen, "{what} of {}: ", store.display());
    let line = asked.context(|| TERMINAL).and_then(|()| typed(&terminal));
    let _ = set(&shown);
    let _ = writeln!(screen);
    StoreKey::passphrase(line?).map(Some).map_err(failure(store))
}

/// The line that a person types at `terminal`, whose keys are not interpreted.
///
/// # Errors
/// [`Failure::Interrupted`] after Ctrl-C, and where the terminal ends.
fn typed(mut terminal: impl Read) -> Result<Vec<u8>> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    const BACKSPACE: u8 = 8;
    const KILL: u8 = 21;
    const QUIT: u8 = 28;
    const DELETE: u8 = 127;
    let (mut line, mut key) = (Vec::new(), [0]);
    // Key by key: the next line is for whoever asks next.
    while terminal.read(&mut key).context(|| TERMINAL)? == 1 {
        match key[0] {
            b'\n' | b'\r' => return Ok(line),
            INTERRUPT | END | QUIT => break,
            KILL => line.clear(),
            BACKSPACE | DELETE => {
                // All bytes of the last character go: those of UTF-8 that continue one, and its first byte.
                while line.pop().is_some_and(|last| last & 0xc0 == 0x80) {}
            }
            byte => line.push(byte),
        }
    }
    Err(Failure::Interrupted)
}

/// The key of a new store or slot: that of `source`, or a passphrase that a person types twice.
pub(crate) fn new_key(store: &Path, source: Option<KeySource>) -> Result<StoreKey> {
    if let Some(source) = source {
        return source.key();
    }
    let told = |key: Option<StoreKey>| {
        let text = "there is no terminal to ask for a passphrase: give a key file or a passphrase file";
        key.ok_or_else(|| Failure::Usage(format!("{}: {text}", store.display())))
    };
    let key = told(asked(store, "New passphrase")?)?;
    if told(asked(store, "The same again")?)? != key {
        return Err(Failure::Failed(format!(
            "{}: these are two passphrases: nothing was done",
            store.display()
        )));
    }
    Ok(key)
}

/// The `bucket` at `store`, unlocked with the key of `source`, or, if it `asks`, of a person.
pub(crate) fn bucket_unlocked(
    store: &Path,
    bucket: &Bucket,
    source: Option<KeySource>,
    asks: bool,
) -> Result<Bucket> {
    let key = match source {
        None if !asks => None,
        source => key_for(store, source, "Passphrase")?,
    };
    let unlocked = key.map_or_else(|| Ok(bucket.clone()), |key| bucket::unlocked(bucket, &key));
    unlocked.map_err(failure(store))
}

/// Refuses a `key` that does not open the store at `store`, which somebody may have open, and none for an encrypted one. Other troubles with
/// the store are met, and said, when it is opened.
pub(crate) fn refuse_wrong_key<'s>(store: impl Into<NamedStore<'s>>, key: Option<&StoreKey>) -> Result<()> {
    let NamedStore { address: store, name } = store.into();
    let opens = || match key {
        None if is_encrypted(store) => Err(StoreError::Locked),
        None => Ok(()),
        Some(key) => match bucket::at(store)? {
            Some(bucket) => bucket::unlocked(&bucket, key).map(drop),
            None => Store::unlock(Arc::new(HostDisk::unlocked(store)?), key).map(drop),
        },
    };
    match opens() {
        Err(
            error @ (StoreError::Locked
            | StoreError::WrongKey
            | StoreError::NotEncrypted
            | StoreError::BadKey(_)),
        ) => Err(failure(name)(error)),
        _ => Ok(()),
    }
}

/// The disk with the store at `store`, unlocked with the key of `source`, or of a person, if it is encrypted.
pub(crate) fn unlocked(
    store: &Path,
    disk: Arc<dyn Disk>,
    source: Option<KeySource>,
) -> Result<Arc<dyn Disk>> {
    match key_for(store, source, "Passphrase")? {
        Some(key) => Store::unlock(disk, &key).map_err(failure(store)),
        None => Ok(disk),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_can_be_corrected_and_ended() {
        for (keys, line) in
            [("ab\u{8}c\n", "ac"), ("a\u{e9}\u{7f}b\r", "ab"), ("ab\u{15}c\n", "c"), ("\u{8}\n", "")]
        {
            assert_eq!(typed(keys.as_bytes()), Ok(line.as_bytes().to_vec()), "{keys:?}");
        }
        for keys in ["ab\u{3}\n", "ab\u{4}", "ab", "ab\u{1c}\n"] {
            assert_eq!(typed(keys.as_bytes()), Err(Failure::Interrupted), "{keys:?}");
        }
    }

    #[test]
    fn a_passphrase_is_a_line_without_its_end() {
        for (text, line) in [("a b\nc", "a b"), ("a b", "a b"), ("\n", ""), ("", ""), (" a \r\n", " a \r")] {
            assert_eq!(line_of(text.as_bytes()).expect("memory"), line.as_bytes());
        }
    }
}
