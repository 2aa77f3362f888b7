//! Copies: trees copied within a mount, by its server (`clone`, `snapshot`).

use crate::args::Snapshot;
use crate::store::bytes;
use crate::watch::no_server;
use serde_json::{Value, json};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_console::table::Table;
use sluice_fuse::control;
use sluice_vfs::{SnapshotInfo, SnapshotSchedule, TreeSize, UtcTime};
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// Has the server of the mount that both are in copy `from` to `to`.
pub(crate) fn clone_tree(from: &Path, to: &Path) -> Result<()> {
    let what = || format!("clone {} to {}", from.display(), to.display());
    answered(from, control::clone_tree(from, to), what)
}

pub(crate) fn snapshot(action: &Snapshot) -> Result<()> {
    match action {
        Snapshot::Create { dir, name } => {
            if SnapshotSchedule::is_name(checked(name)?.as_encoded_bytes()) {
                let name = name.display();
                let text = "such names are of snapshots that the clock takes and deletes (-o snapshots=): give another";
                return Err(Failure::Usage(format!("{name}: {text}")));
            }
            answered(dir, control::take_snapshot(dir, name), || format!("take snapshot {}", name.display()))
        }
        Snapshot::Restore { dir, name, path } => {
            let path = path.as_deref().unwrap_or(Path::new(""));
            let what = || match path.as_os_str().is_empty() {
                true => format!("restore snapshot {}", name.display()),
                false => format!("restore {} of snapshot {}", path.display(), name.display()),
            };
            answered(dir, control::restore_snapshot(dir, checked(name)?, path), what)
        }
        Snapshot::Delete { dir, name } => {
            let dropped = control::drop_snapshot(dir, checked(name)?);
            answered(dir, dropped, || format!("delete snapshot {}", name.display()))
        }
        Snapshot::List { dir, json } => {
            let listed = answered(dir, control::snapshots(dir), || dir.display().to_string())?;
            let text = if *json { as_json(&listed) } else { as_table(&listed) };
            Output::plain().give(text.as_bytes())
        }
    }
}

/// The name of a snapshot.
fn checked(name: &OsStr) -> Result<&OsStr> {
    let bytes = name.as_encoded_bytes();
    if bytes.contains(&b'/') || [&b""[..], b".", b".."].contains(&bytes) {
        return Err(Failure::Usage(format!("{}: give a name without `/`", name.display())));
    }
    Ok(name)
}

fn created(snapshot: &SnapshotInfo) -> Option<String> {
    snapshot.created.map(|time| UtcTime::from(time).to_string())
}

fn as_json(listed: &[SnapshotInfo]) -> String {
    let object = |snapshot: &SnapshotInfo| {
        json!({
            "name": String::from_utf8_lossy(&snapshot.name),
            "created": created(snapshot),
            "shared_bytes": snapshot.size.shared_bytes,
            "private_bytes": snapshot.size.private_bytes,
        })
    };
    format!("{}\n", Value::from_iter(listed.iter().map(object)))
}

fn as_table(listed: &[SnapshotInfo]) -> String {
    if listed.is_empty() {
        return String::new();
    }
    let mut table = Table::with_left_columns(2);
    table.line(["NAME", "CREATED", "SHARED", "PRIVATE"]);
    for snapshot in listed {
        // A name may be of several lines.
        let name = String::from_utf8_lossy(&snapshot.name).replace('\n', "\\n");
        let TreeSize { shared_bytes, private_bytes } = snapshot.size;
        let created = created(snapshot).unwrap_or_else(|| "?".into());
        table.line([name, created, bytes(shared_bytes), bytes(private_bytes)]);
    }
    table.render()
}

/// The answer of the server for the mount that holds `path`; `what` names the request.
fn answered<T>(path: &Path, answer: io::Result<Option<T>>, what: impl FnOnce() -> String) -> Result<T> {
    answer.context(what)?.ok_or_else(|| no_server(path))
}
