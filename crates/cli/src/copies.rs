//! Copies: trees copied within a mount, by its server (`clone`, `snapshot`).

use crate::args::Snapshot;
use crate::watch::no_server;
use sluice_console::failure::{Context, Result};
use sluice_console::output::Output;
use sluice_fuse::control;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Has the server of the mount that both are in copy `from` to `to`.
pub(crate) fn clone_tree(from: &Path, to: &Path) -> Result<()> {
    let what = || format!("clone {} to {}", from.display(), to.display());
    answered(from, control::clone_tree(from, to), what)
}

pub(crate) fn snapshot(action: &Snapshot) -> Result<()> {
    match action {
        Snapshot::Create { dir, name } => {
            answered(dir, control::take_snapshot(dir, name), || format!("take snapshot {}", name.display()))
        }
        Snapshot::Delete { dir, name } => {
            answered(dir, control::drop_snapshot(dir, name), || format!("delete snapshot {}", name.display()))
        }
        Snapshot::List { dir } => {
            let names = answered(dir, control::snapshots(dir), || dir.display().to_string())?;
            let lines: Vec<u8> =
                names.into_iter().flat_map(|name| [name.into_vec(), b"\n".to_vec()].concat()).collect();
            Output::plain().give(&lines)
        }
    }
}

/// The answer of the server for the mount that holds `path`; `what` names the request.
fn answered<T>(path: &Path, answer: io::Result<Option<T>>, what: impl FnOnce() -> String) -> Result<T> {
    answer.context(what)?.ok_or_else(|| no_server(path))
}
