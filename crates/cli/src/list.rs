//! List: every mount of sluicefs on this machine, and how its server is.

use serde::Serialize;
use sluice_console::failure::{Context, Result};
use sluice_console::output::Output;
use sluice_console::table::{Table, grouped};
use sluice_fuse::control::{self, ListedMount, ServerAnswer};
use sluice_sync::time::Duration;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

/// How long all servers together may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The source of a mount without a store.
const NO_STORE: &[u8] = b"sluicefs";

/// A mount, as `--json` shows it. A field is null if it is not known.
#[derive(Default, Serialize)]
struct MountRow {
    directory: String,
    pid: Option<u32>,
    store: Option<String>,
    version: Option<String>,
    /// `serves`, `read-only`, `waits`, `ended`, `silent` or `refused`.
    state: &'static str,
    /// More about the state.
    why: Option<String>,
    uptime_seconds: Option<u64>,
    used_bytes: Option<u64>,
    transport: Option<String>,
    /// The role of a node of a cluster.
    role: Option<String>,
    /// The process that keeps the mount when its server dies, and how often that happened.
    holder: Option<u32>,
    restarts: Option<u64>,
}

pub(crate) fn list(json: bool) -> Result<()> {
    let mounts = control::mounts(PATIENCE).context(|| "/proc/self/mountinfo")?;
    let rows: Vec<MountRow> = mounts.iter().map(row).collect();
    // All its values can be written as JSON.
    let text = if json { serde_json::to_string(&rows).unwrap_or_default() + "\n" } else { table(&rows) };
    Output::plain().give(text.as_bytes())
}

fn row(mount: &ListedMount) -> MountRow {
    let store = mount.source.as_bytes() != NO_STORE;
    let place = MountRow {
        directory: mount.directory.display().to_string(),
        store: store.then(|| mount.source.display().to_string()),
        ..MountRow::default()
    };
    let troubled = |state, why: &str, place| MountRow { state, why: Some(why.into()), ..place };
    match &mount.server {
        ServerAnswer::Nobody => troubled("ended", "calls there fail: sluice umount removes the mount", place),
        ServerAnswer::Silent => {
            let seen = control::silent_server(&mount.directory);
            let seen = seen.map_or_else(String::new, |seen| format!(" ({seen})"));
            troubled("silent", &format!("no answer within 2 s{seen}"), place)
        }
        ServerAnswer::Waits(why) => troubled("waits", why, place),
        ServerAnswer::Refused(why) => troubled("refused", why, place),
        ServerAnswer::Serves(pid, stat) => {
            let known = stat.file_system.as_ref();
            let used = |known: &control::FileSystemStat| {
                known.blocks.saturating_sub(known.blocks_free).saturating_mul(known.block_size)
            };
            let failure = known.and_then(|known| known.failure.clone());
            MountRow {
                pid: Some(*pid),
                version: Some(stat.version.clone()).filter(|version| !version.is_empty()),
                state: if failure.is_some() { "read-only" } else { "serves" },
                why: failure,
                uptime_seconds: Some(stat.uptime_seconds),
                used_bytes: known.map(|known| if known.blocks == 0 { known.file_bytes } else { used(known) }),
                transport: Some(stat.transport.clone()),
                holder: stat.holder,
                restarts: stat.restarts,
                role: stat.cluster.get("role").and_then(|role| role.as_str()).map(str::to_owned),
                ..place
            }
        }
    }
}

fn table(rows: &[MountRow]) -> String {
    if rows.is_empty() {
        return "no sluicefs is mounted here; `sluice mount DIR` mounts one\n".into();
    }
    let mut table = Table::with_left_columns(3);
    table.line(["DIRECTORY", "STORE", "STATE", "PID", "HOLDER", "UP", "BYTES"]);
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    for row in rows {
        table.line([
            row.directory.clone(),
            or_none(row.store.clone()),
            row.role.as_ref().map_or_else(|| row.state.into(), |role| format!("{} ({role})", row.state)),
            or_none(row.pid.map(|pid| pid.to_string())),
            or_none(row.holder.map(|holder| holder.to_string())),
            or_none(row.uptime_seconds.map(span)),
            or_none(row.used_bytes.map(|bytes| grouped(bytes as f64))),
        ]);
    }
    let mut text = table.render();
    for (row, why) in rows.iter().filter_map(|row| Some((row, row.why.as_ref()?))) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}: {}: {why}", row.directory, row.state);
    }
    text
}

/// Seconds, in the two largest units that there are.
fn span(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (0, hours, minutes, _) => format!("{hours}h {minutes}m"),
        (days, hours, ..) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_time_has_its_two_largest_units() {
        let spans = [0, 59, 61, 3600, 90_061].map(span);
        assert_eq!(spans, ["0s", "59s", "1m 1s", "1h 0m", "1d 1h"]);
    }
}
