//! Scrub: has the server of a mount read its store step by step, at a pace, and names the damaged files.

use crate::args::Scrub;
use crate::ram_options::scaled;
use crate::store::{bytes, show};
use crate::watch::no_server;
use indicatif::ProgressBar;
use serde_json::json;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::interrupt::Interrupt;
use sluice_console::output::Output;
use sluice_fuse::control;
use sluice_store::Progress;
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::{ScrubFinding, ScrubState};
use std::fmt::Write as _;

/// Bytes of one step, where no rate asks for less.
const STEP: u64 = 1 << 20;
/// Exit status: the store has damage.
const DAMAGED: u8 = 1;

pub(crate) fn scrub(args: &Scrub) -> Result<u8> {
    let rate = args.rate.as_deref().map(rate_of).transpose()?;
    let state = if args.status { step(args, 0, false)? } else { whole(args, rate)? };
    let text = if args.json { told_as_json(&state) } else { told(args, &state) };
    Output::plain().give(text.as_bytes())?;
    Ok(if state.damaged > 0 { DAMAGED } else { 0 })
}

fn rate_of(text: &str) -> Result<u64> {
    let rate = scaled(text).filter(|rate| *rate > 0);
    rate.ok_or_else(|| Failure::Usage(format!("--rate {text}: give bytes a second, such as 50M")))
}

/// One step of the scrub; with 0 bytes only its state.
fn step(args: &Scrub, bytes: u64, anew: bool) -> Result<ScrubState> {
    let state = control::scrub(&args.dir, bytes, anew).context(|| args.dir.display().to_string())?;
    state.ok_or_else(|| no_server(&args.dir))
}

/// Steps until the scrub ends.
fn whole(args: &Scrub, rate: Option<u64>) -> Result<ScrubState> {
    let interrupt = Interrupt::on_signals()?;
    let bar = ProgressBar::new(0);
    let bytes = rate.map_or(STEP, |rate| rate.min(STEP));
    let (begun, mut first, mut anew) = (Instant::now(), None, args.restart);
    loop {
        if interrupt.is_raised() {
            bar.finish_and_clear();
            eprintln!("sluice: {}: the scrub stopped: `sluice scrub` goes on there", args.dir.display());
            return Err(Failure::Interrupted);
        }
        let then = Instant::now();
        let state = step(args, bytes, anew)?;
        anew = false;
        show(&bar, Progress { part: "scrub", done: state.bytes, of: state.of });
        if state.finished.is_some() {
            bar.finish_and_clear();
            return Ok(state);
        }
        let first = *first.get_or_insert(state.bytes.saturating_sub(bytes));
        let pause = match rate {
            Some(rate) => {
                let due = Duration::from_secs_f64(state.bytes.saturating_sub(first) as f64 / rate as f64);
                due.saturating_sub(begun.elapsed())
            }
            None => then.elapsed(),
        };
        pause_for(pause, &interrupt);
    }
}

/// Waits, and looks for a signal meanwhile.
fn pause_for(pause: Duration, interrupt: &Interrupt) {
    const LOOK: Duration = Duration::from_millis(100);
    let end = Instant::now() + pause;
    while !interrupt.is_raised() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK));
    }
}

fn status_of(state: &ScrubState) -> &'static str {
    match (state.started, state.finished) {
        (None, _) => "never",
        (_, None) => "unfinished",
        _ if state.damaged > 0 => "damaged",
        _ => "clean",
    }
}

fn told_as_json(state: &ScrubState) -> String {
    let findings = state.findings.iter().map(|ScrubFinding { ino, path, offset, reason }| {
        let path = path.as_ref().map(|path| path.to_string_lossy());
        json!({"path": path, "ino": ino, "offset": offset, "reason": reason})
    });
    let fields = json!({
        "status": status_of(state),
        "started": state.started.map(|time| time.sec),
        "finished": state.finished.map(|time| time.sec),
        "bytes": state.bytes,
        "total_bytes": state.of,
        "damaged": state.damaged,
        "findings": findings.collect::<Vec<_>>(),
    });
    format!("{fields}\n")
}

fn told(args: &Scrub, state: &ScrubState) -> String {
    let mut text = String::new();
    for ScrubFinding { ino, path, offset, reason } in &state.findings {
        let path = path.as_ref().map_or_else(|| format!("inode {ino}"), |path| format!("{path:?}"));
        let place = offset.map_or_else(String::new, |offset| format!(" from byte {offset}"));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "damage: {path}{place}: {reason}");
    }
    let more = state.damaged - (state.findings.len() as u64).min(state.damaged);
    if more > 0 {
        let _ = writeln!(
            text,
            "and {more} more: `sluice scrub --restart` names them if they were found before the last mount"
        );
    }
    let dir = args.dir.display();
    let _ = match status_of(state) {
        "never" => writeln!(text, "{dir}: its store was never scrubbed: `sluice scrub` does it"),
        "unfinished" => writeln!(
            text,
            "{dir}: unfinished: {} of {} read, {} damaged; `sluice scrub` goes on there",
            bytes(state.bytes),
            bytes(state.of),
            state.damaged
        ),
        status => writeln!(text, "{dir}: {status}: {} read, {} damaged", bytes(state.bytes), state.damaged),
    };
    if state.damaged > 0 {
        text += "no repair brings damaged contents back: restore or delete the files that are named\n";
    }
    text
}
