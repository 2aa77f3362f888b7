//! Quota: has the server of a mount limit what a directory holds, and says how much of that is in use.

use crate::args::QuotaArgs;
use crate::ram_options::scaled;
use crate::store::bytes;
use crate::watch::no_server;
use serde_json::json;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_fuse::control::{self, QuotaOrder};
use sluice_vfs::QuotaUse;

pub(crate) fn quota(args: &QuotaArgs) -> Result<()> {
    let order = args.size.as_deref().map_or(Ok(QuotaOrder::Ask), order_of)?;
    let answer = control::quota(&args.dir, order).context(|| args.dir.display().to_string())?;
    let found = answer.ok_or_else(|| no_server(&args.dir))?;
    let text = if args.json { told_as_json(found) } else { told(args, found) };
    Output::plain().give(text.as_bytes())
}

fn order_of(text: &str) -> Result<QuotaOrder> {
    if text == "none" {
        return Ok(QuotaOrder::Remove);
    }
    let limit = scaled(text).filter(|limit| *limit >= 4096);
    let wrong = || {
        Failure::Usage(format!(
            "{text}: give 4096 bytes or more, such as 10G, or `none` to take the quota away"
        ))
    };
    limit.map(QuotaOrder::Set).ok_or_else(wrong)
}

fn told_as_json(found: Option<(QuotaUse, bool)>) -> String {
    let quota = found.map(|(quota, _)| quota);
    let fields = json!({
        "limit_bytes": quota.map(|quota| quota.limit),
        "used_bytes": quota.map(|quota| quota.used),
        "ino": quota.map(|quota| quota.dir),
        "own": found.is_some_and(|(_, is_own)| is_own),
    });
    format!("{fields}\n")
}

fn told(args: &QuotaArgs, found: Option<(QuotaUse, bool)>) -> String {
    let dir = args.dir.display();
    match found {
        None => format!("{dir}: no quota\n"),
        Some((QuotaUse { limit, used, .. }, is_own)) => {
            let whose = if is_own { "" } else { " (the quota of a directory above)" };
            format!("{dir}: {} of {} used{whose}\n", bytes(used), bytes(limit))
        }
    }
}
