//! Faults and crashes of a mount, for tests of programs that use it: both sides of the orders.
//!
//! `faults`, `inject`, `clear-fault`, `clear-faults`, `track-crashes`, `unsynced` and `crash-clone` are orders as the others: numbers, and a
//! text. An answer to `crash-clone` is a tar archive. Each acts before it is answered.

use super::OK;
use super::client::order_at;
use super::order::about_up_to;
use crate::connection::Connection;
use sluice_sync::atomic::Ordering;
use sluice_vfs::{Fault, FaultId, Fs};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest rule, in bytes.
const RULE_MAX: u64 = 8192;

/// Does what `order` says and answers. False for an order of another kind.
pub(super) fn obey(order: &[u8], stream: &mut UnixStream, connection: &Connection) -> io::Result<bool> {
    let superblock = &connection.superblock;
    let said = match order {
        b"faults" => {
            let mut lines = String::new();
            for (FaultId(id), fault, met) in superblock.faults() {
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{id} {met} {fault}");
            }
            Ok(lines)
        }
        b"inject" => match about_up_to(stream, RULE_MAX)? {
            Ok(([], rule)) => inject_into(connection, &String::from_utf8_lossy(&rule)),
            Err(errno) => Err(errno.to_string()),
        },
        b"clear-fault" => match about_up_to(stream, 0)? {
            Ok(([id], _)) if superblock.clear_fault(FaultId(id)) => Ok(String::new()),
            Ok(_) => Err("there is no such rule: without an option, `sluice fault DIR` lists them".into()),
            Err(errno) => Err(errno.to_string()),
        },
        b"clear-faults" => {
            superblock.clear_faults();
            Ok(String::new())
        }
        b"track-crashes" => hears_fsync(connection)
            .and_then(|()| superblock.track_crashes().map_err(|errno| errno.to_string()))
            .map(|()| String::new()),
        b"unsynced" => superblock.unsynced().map_err(untracked).map(|unsynced| {
            let line = |one: sluice_vfs::Unsynced| {
                let what = [(one.name, "name"), (one.attributes, "attributes")];
                let what: Vec<_> = what.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect();
                let path = one.path.to_string_lossy().replace('\n', "\\n");
                format!(
                    "{} {} {path}\n",
                    one.bytes,
                    if what.is_empty() { "-".into() } else { what.join(",") }
                )
            };
            unsynced.into_iter().map(line).collect()
        }),
        b"crash-clone" => match about_up_to(stream, 0)? {
            Ok(([seed], _)) => match superblock.crash_clone(seed) {
                Ok(clone) => {
                    stream.write_all(OK.as_bytes())?;
                    sluice_trees::export_tar(&Fs::with_superblock(clone), "/", stream)?;
                    return Ok(true);
                }
                Err(errno) => Err(untracked(errno)),
            },
            Err(errno) => Err(errno.to_string()),
        },
        _ => return Ok(false),
    };
    let text = said.map_or_else(|why| why + "\n", |answer| OK.to_owned() + &answer);
    stream.write_all(text.as_bytes())?;
    Ok(true)
}

fn inject_into(connection: &Connection, rule: &str) -> Result<String, String> {
    let fault: Fault = rule.parse()?;
    if fault.calls == sluice_vfs::Calls::FSYNC {
        hears_fsync(connection)?;
    }
    let FaultId(id) = connection.superblock.inject(fault).map_err(|errno| errno.to_string())?;
    Ok(format!("{id}\n"))
}

/// Whether the kernel hands fsync on.
fn hears_fsync(connection: &Connection) -> Result<(), String> {
    // Relaxed: a flag on its own.
    if connection.declined_fsync.load(Ordering::Relaxed) {
        return Err("the kernel answers fsync here by itself since the first one: mount with -o track".into());
    }
    Ok(())
}

fn untracked(errno: sluice_vfs::Errno) -> String {
    match errno {
        sluice_vfs::Errno::EINVAL => {
            "crashes are not tracked: mount with -o track, or begin with `sluice fault DIR --track`".into()
        }
        errno => errno.to_string(),
    }
}

/// The rules that are injected into the sluicefs mount that holds `dir`: a line each, of its number, how many calls it
/// has met, and itself. `None` if no server answers; the same holds for all functions of this module.
///
/// # Errors
/// When `dir` cannot be reached, or the server does not answer.
pub fn faults(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    order_at(dir, "faults\n")
}

/// Injects `rule`; see [`Superblock::inject`](sluice_vfs::Superblock::inject). It acts when this returns: its number, as a line.
///
/// # Errors
/// Errors of [`faults`]; what is wrong with the rule, as a line.
pub fn inject(dir: &Path, rule: &str) -> io::Result<Option<Vec<u8>>> {
    order_at(dir, &format!("inject\n{}\n{rule}", rule.len()))
}

/// Takes a rule away, or all.
///
/// # Errors
/// Errors of [`faults`]; an unknown rule number.
pub fn clear_faults(dir: &Path, id: Option<u64>) -> io::Result<Option<Vec<u8>>> {
    let order = id.map_or("clear-faults\n".into(), |id| format!("clear-fault\n{id} 0\n"));
    order_at(dir, &order)
}

/// Begins to track what a crash would leave; see [`Superblock::track_crashes`](sluice_vfs::Superblock::track_crashes).
///
/// # Errors
/// Errors of [`faults`]; why it cannot be.
pub fn track_crashes(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    order_at(dir, "track-crashes\n")
}

/// Changes that a crash now may lose: a line for each path, with the bytes, which of `name` and `attributes` may be
/// lost, and the path.
///
/// # Errors
/// Errors of [`faults`]; that crashes are not tracked.
pub fn unsynced(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    order_at(dir, "unsynced\n")
}

/// The tree as a power failure now would leave it, by `seed`, as a tar archive;
/// see [`Superblock::crash_clone`](sluice_vfs::Superblock::crash_clone).
///
/// # Errors
/// Errors of [`unsynced`].
pub fn crash_clone(dir: &Path, seed: u64) -> io::Result<Option<Vec<u8>>> {
    order_at(dir, &format!("crash-clone\n{seed} 0\n"))
}
