//! Workspace: `sluice workspace`: directories of a cluster's mount that have a store and an owner of their own.

use crate::args::WorkspaceAction;
use crate::watch::no_server;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat, Statx, StatxFlags, XattrFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_console::table::Table;
use sluice_fuse::control;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub(crate) fn perform(action: &WorkspaceAction) -> Result<()> {
    // A slash at the end is none of the name.
    match action {
        WorkspaceAction::Create { dir } => create(dir.components().as_path()),
        WorkspaceAction::Auto { off, dir } => set_auto(dir, !off),
        WorkspaceAction::Delete { dir } => delete(dir.components().as_path()),
        WorkspaceAction::Move { dir, node } => move_to(dir.components().as_path(), *node),
        WorkspaceAction::List { json, dir } => list(dir, *json),
    }
}

/// The kernel's knowledge of `path` without asking a workspace, which would open it.
fn glance(path: &Path) -> io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS)?)
}

/// The number of the workspace whose root `dir` is; none if it is another directory.
fn number_of(dir: &Path) -> io::Result<Option<u32>> {
    Ok(control::workspace_with_root(glance(dir)?.stx_ino))
}

fn create(dir: &Path) -> Result<()> {
    let what = || dir.display().to_string();
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    refuse_unless_root(dir)?;
    let old = match number_of(dir) {
        Ok(Some(_)) => return Err(Failure::Failed(format!("{}: is a workspace already", dir.display()))),
        Ok(None) => Some(rustix::fs::lstat(dir).map_err(io::Error::from).context(what)?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).context(what),
    };
    if let Some(stat) = &old {
        refuse_unless_empty(dir, stat)?;
    }
    let root = match &old {
        Some(stat) => [stat.st_mode & 0o7777, stat.st_uid, stat.st_gid],
        None => [0o777 & !umask(), rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()],
    };
    let asked = control::new_workspace(parent, root).context(what)?;
    let number = asked.ok_or_else(|| no_server(parent))?;
    if old.is_some() {
        std::fs::remove_dir(dir).context(what)?;
    }
    let device = u64::from(control::junction_to(number));
    let made = rustix::fs::mknodat(CWD, dir, FileType::CharacterDevice, Mode::RWXU, device);
    if let Err(error) = made {
        if let Some(stat) = &old {
            // The removed directory is made again, with its mode and owner.
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            let made = std::fs::create_dir(dir).and_then(|()| {
                std::os::unix::fs::chown(dir, Some(stat.st_uid), Some(stat.st_gid))?;
                Ok(rustix::fs::chmodat(CWD, dir, mode, AtFlags::empty())?)
            });
            made.context(what)?;
        }
        return Err(io::Error::from(error)).context(what);
    }
    // Its store is durable. Nothing looks at the workspace here: the first node that does is its owner.
    File::open(parent).and_then(|parent| parent.sync_all()).context(what)
}

fn refuse_unless_root(dir: &Path) -> Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("{}: only root makes workspaces", dir.display()))),
    }
}

/// Has each directory that is made in `dir` from now on become a workspace, or an ordinary directory.
fn set_auto(dir: &Path, is_auto: bool) -> Result<()> {
    let what = || dir.display().to_string();
    refuse_unless_root(dir)?;
    if !std::fs::metadata(dir).context(what)?.is_dir() {
        return Err(Failure::Failed(format!("{}: is no directory", dir.display())));
    }
    control::check_workspaces(dir).context(what)?.ok_or_else(|| no_server(dir))?;
    let name = control::MAKES_WORKSPACES;
    let set = match is_auto {
        true => rustix::fs::setxattr(dir, name, b"auto", XattrFlags::empty()),
        false => match rustix::fs::removexattr(dir, name) {
            Err(Errno::NODATA) => Ok(()),
            removed => removed,
        },
    };
    set.map_err(io::Error::from).context(what)
}

fn refuse_unless_empty(dir: &Path, stat: &Stat) -> Result<()> {
    let what = || dir.display().to_string();
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Failure::Failed(format!(
            "{}: is no directory: give a new or an empty one",
            dir.display()
        )));
    }
    if std::fs::read_dir(dir).context(what)?.next().is_some() {
        let text = "is not empty: make the workspace beside it and move the files there (`mv` copies them)";
        return Err(Failure::Failed(format!("{}: {text}", dir.display())));
    }
    Ok(())
}

/// The bits that this process leaves out of new files.
fn umask() -> u32 {
    let bits = rustix::process::umask(Mode::empty());
    rustix::process::umask(bits);
    bits.as_raw_mode()
}

fn delete(dir: &Path) -> Result<()> {
    let what = || dir.display().to_string();
    if number_of(dir).context(what)?.is_none() {
        return Err(Failure::Failed(format!("{}: is no workspace", dir.display())));
    }
    std::fs::remove_dir(dir).map_err(|error| match error.kind() {
        ErrorKind::DirectoryNotEmpty => {
            let text = "is not empty: remove its files, and its snapshots (`sluice snapshot list`), first";
            Failure::Failed(format!("{}: {text}", dir.display()))
        }
        _ => Failure::from(error).in_context(dir.display()),
    })
}

fn move_to(dir: &Path, node: u64) -> Result<()> {
    let what = || dir.display().to_string();
    let number = number_of(dir).context(what)?;
    let number = number.ok_or_else(|| Failure::Failed(format!("{}: is no workspace", dir.display())))?;
    let moved = control::move_workspace(dir, number, node).context(what)?;
    moved.ok_or_else(|| no_server(dir))
}

/// The workspaces at and below `dir`, in the order of their directories.
fn find(dir: &Path) -> io::Result<BTreeMap<PathBuf, u32>> {
    let mut found = BTreeMap::new();
    let device = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor);
    let own = device(&glance(dir)?);
    found.extend(number_of(dir)?.map(|number| (dir.to_owned(), number)));
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        let listed = match std::fs::read_dir(&dir) {
            // Removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            listed => listed?,
        };
        for entry in listed {
            let path = entry?.path();
            let Ok(stat) = glance(&path) else { continue };
            let is_snapshots = path.file_name().is_some_and(|name| name == ".snapshots");
            let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
            if !is_dir || device(&stat) != own || is_snapshots {
                continue;
            }
            match control::workspace_with_root(stat.stx_ino) {
                Some(number) => _ = found.insert(path, number),
                None => pending.push(path),
            }
        }
    }
    Ok(found)
}

fn list(dir: &Path, as_json: bool) -> Result<()> {
    let what = || dir.display().to_string();
    let found = find(dir).context(what)?;
    let stat = control::stat(dir).context(what)?.ok_or_else(|| no_server(dir))?;
    let stat: Value = serde_json::from_slice(&stat).unwrap_or_default();
    let here = |number: u32| {
        let used = stat["cluster"]["workspaces"].as_array().into_iter().flatten();
        used.into_iter().find(|one| one["workspace"] == number).cloned().unwrap_or_default()
    };
    let text = if as_json {
        let row = |(dir, number): (&PathBuf, &u32)| json!({ "directory": dir.display().to_string(), "workspace": number, "role": here(*number)["role"] });
        format!("{}\n", Value::Array(found.iter().map(row).collect()))
    } else {
        let mut table = Table::with_left_columns(0);
        table.line(["workspace", "role", "directory"]);
        for (dir, number) in &found {
            let role = here(*number)["role"].as_str().unwrap_or("-").to_owned();
            table.line([number.to_string(), role, dir.display().to_string()]);
        }
        table.render()
    };
    Output::plain().give(text.as_bytes())
}
