//! Streams: snapshots that are sent, received, exported, and compared.

use crate::args::KeyFiles;
use crate::bucket;
use crate::failures::failure;
use crate::key_source::key_for;
use crate::ram_options;
use crate::storage::Storage;
use crate::watch::no_server;
use serde_json::json;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::{self, Output};
use sluice_fuse::control;
use sluice_trees::{ChangeKind, NameChange};
use sluice_vfs::{FileType, SNAPSHOTS};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// How the changes between two trees are printed.
pub(crate) enum ChangeForm {
    Text,
    /// An object on each line.
    Json,
    /// The names alone, with a NUL behind each.
    Names,
}

/// Prints how the tree `new` differs from `old`: both directories of one mount. Without `new`, `old` is a snapshot, and compared with what
/// is there now.
pub(crate) fn diff(old: &Path, new: Option<&Path>, form: &ChangeForm) -> Result<()> {
    let new = match new {
        Some(new) => new.to_owned(),
        None => PathBuf::from(of_snapshot(old)?.0),
    };
    // The kernel may have collected newer bytes.
    if let Ok(dir) = std::fs::File::open(&new) {
        rustix::fs::syncfs(&dir).map_err(io::Error::from).context(|| new.display().to_string())?;
    }
    let what = || format!("compare {} with {}", old.display(), new.display());
    let mut output = Output::plain();
    let told = control::changes(old, &new, &mut |change| output.write_all(&printed(change, form)));
    told.context(what)?.ok_or_else(|| no_server(&new))?;
    output.flush().context(|| "cannot write to standard output")
}

fn printed(change: &NameChange, form: &ChangeForm) -> Vec<u8> {
    let NameChange { kind, path, file_type, old_size, size, from } = change;
    let kind = match kind {
        ChangeKind::Created => "created",
        ChangeKind::Removed => "removed",
        ChangeKind::Modified => "modified",
        ChangeKind::Attributes => "attributes",
    };
    let path = String::from_utf8_lossy(path);
    match form {
        ChangeForm::Names => [&change.path[..], &[0]].concat(),
        ChangeForm::Json => {
            let file_type = match file_type {
                FileType::Regular => "file",
                FileType::Directory => "directory",
                FileType::Symlink => "symlink",
                FileType::Fifo => "fifo",
                FileType::Socket => "socket",
                FileType::CharDevice | FileType::BlockDevice => "device",
            };
            let from = from.as_deref().map(String::from_utf8_lossy);
            let fields = json!({
                "change": kind, "path": path, "type": file_type, "old_size": old_size, "size": size, "from": from
            });
            format!("{fields}\n").into_bytes()
        }
        ChangeForm::Text => {
            let sizes = match (old_size, size) {
                (Some(old), Some(new)) if old != new => format!("{old} -> {new}"),
                (old, new) => new.or(*old).unwrap_or(0).to_string(),
            };
            // A name may be of several lines.
            let escape =
                |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
            let path: String = path.chars().map(escape).collect();
            format!("{kind}\t{sizes}\t{path}\n").into_bytes()
        }
    }
}

/// Writes a snapshot to standard output, or its changes since the snapshot `since` of the same mount; of these the rest that `resume` says.
pub(crate) fn send(snapshot: &Path, since: Option<&OsStr>, resume: Option<&str>) -> Result<()> {
    if let Some(token) = resume.filter(|token| !sluice_trees::is_resume_token(token)) {
        let text = format!("--resume {token}: no token of `sluice receive`: give the one that it printed");
        return Err(Failure::Usage(text));
    }
    let (dir, name) = of_snapshot(snapshot)?;
    let out = &mut bytes_out("sluice send SNAPSHOT > FILE")?;
    let sent = control::send(Path::new(&dir), &name, since, resume, out);
    sent.context(|| snapshot.display().to_string())?.ok_or_else(|| no_server(snapshot))
}

/// Writes a snapshot to standard output as a tar archive.
pub(crate) fn export(snapshot: &Path) -> Result<()> {
    let (dir, name) = of_snapshot(snapshot)?;
    let sent = control::export(Path::new(&dir), &name, &mut bytes_out("sluice export SNAPSHOT > FILE")?);
    sent.context(|| snapshot.display().to_string())?.ok_or_else(|| no_server(snapshot))
}

/// Makes a snapshot of the stream on standard input in `place`: a mount, or a store that is not mounted.
pub(crate) fn receive(place: &Path, key: &KeyFiles) -> Result<()> {
    let named = || place.display().to_string();
    let mut stream = io::stdin().lock();
    bucket::refuse_misspelt(place)?;
    if sluice_fuse::source_at(place).is_some() {
        return control::receive(place, &mut stream).context(named)?.ok_or_else(|| no_server(place));
    }
    let mut options = ram_options::parse_for_store("")?;
    options.ram.store.key = key_for(place, key.source(), "Passphrase")?;
    let storage = Storage::with(options.objects);
    let waits = |other: &sluice_store::StoreError| {
        eprintln!("sluice: {}: waits until it is known who lives: {other}", place.display());
    };
    let superblock = storage.open(place, options.ram, false, &waits).map_err(failure(place))?;
    let received = sluice_trees::receive(&superblock, &mut stream);
    // A failed attempt has removed its tree, which is put down, too.
    let synced = superblock.sync();
    superblock.settle();
    let _ = superblock.close();
    received.context(named)?;
    synced.map_err(io::Error::from).context(named)
}

/// The mount of the snapshot at `path`, and its name.
///
/// # Errors
/// It is none.
fn of_snapshot(path: &Path) -> Result<(OsString, OsString)> {
    let whole = path.canonicalize().context(|| path.display().to_string())?;
    let parent = whole.parent().filter(|parent| parent.file_name() == Some(OsStr::new(SNAPSHOTS)));
    match (parent.and_then(Path::parent), whole.file_name()) {
        (Some(dir), Some(name)) => Ok((dir.into(), name.into())),
        _ => {
            let text = format!("{}: give a snapshot: DIR/{SNAPSHOTS}/NAME", path.display());
            Err(Failure::Usage(text))
        }
    }
}

/// Standard output for bytes that are no text. Its reader must take all of them.
fn bytes_out(right: &str) -> Result<impl Write + use<>> {
    if io::stdout().is_terminal() {
        return Err(Failure::Usage(format!("standard output is a terminal: {right}")));
    }
    Ok(BytesOut(output::locked().map_err(to_standard_output)?))
}

struct BytesOut(io::StdoutLock<'static>);

impl Write for BytesOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(to_standard_output)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(to_standard_output)
    }
}

fn to_standard_output(error: io::Error) -> io::Error {
    match error.kind() {
        // It is tried again.
        io::ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}
