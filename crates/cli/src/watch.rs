//! Watch: the file locks of a mount (`locks`), and what it has counted, once (`stat`) or every second (`top`).

use crate::args::Watched;
use crate::in_time::in_time;
use crate::metrics;
use crate::screens::{self, Screens};
use crate::{mount_files, mount_locks, mount_stat};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::output::Output;
use sluice_fuse::control;
use sluice_sync::time::Instant;
use std::io;
use std::path::Path;

pub(crate) fn locks(dir: &Path, table: bool, json: bool, hot: bool) -> Result<()> {
    let text = in_time(dir, move |dir| locks_of(dir, hot))?;
    if hot {
        return Output::plain().give(mount_locks::hot_files(&text)?.as_bytes());
    }
    if !table && !json {
        return Output::plain().give(&text);
    }
    let locks = mount_locks::parse(&text, mount_locks::command_of);
    let text = if json { mount_locks::json(&locks) } else { mount_locks::table(&locks) };
    Output::plain().give(text.as_bytes())
}

/// The locks of the mount that holds `dir`, or the statistics of its files' locks if it is these that are wanted.
fn locks_of(dir: &Path, hot: bool) -> Result<Vec<u8>> {
    say_if_elsewhere(dir);
    let place = || dir.display().to_string();
    if hot {
        let answer = control::hot_locks(dir).context(place)?;
        return answer.ok_or_else(|| match sluice_fuse::is_within(dir) {
            Ok(false) => no_server(dir),
            _ => {
                let text = "the kernel serves the locks here and counts nothing: mount with -o locks=sluice";
                Failure::Failed(format!("{}: {text}", place()))
            }
        });
    }
    if !sluice_fuse::is_within(dir).context(place)? {
        return Err(no_server(dir));
    }
    control::all_locks(dir).context(place)
}

pub(crate) fn stat(dir: &Path, json: bool, files: bool, explain: bool) -> Result<()> {
    let ask = move |dir: &Path| {
        say_if_elsewhere(dir);
        let answer = ask(dir)?;
        let asked = if files { control::library_files(dir) } else { Ok(None) };
        Ok((answer, asked.context(|| dir.display().to_string())?))
    };
    let (answer, in_server) = in_time(dir, ask)?;
    if files {
        let mut files = mount_files::of_programs(dir)?;
        files.extend(mount_files::of_server(&in_server.unwrap_or_default())?);
        let text = if json { mount_files::json(&answer, &files)? } else { mount_files::table(&files) };
        return Output::plain().give(text.as_bytes());
    }
    if json {
        return Output::plain().give(&answer);
    }
    let stat = mount_stat::parse(&answer)?;
    let text = if explain { metrics::explained(&stat) } else { mount_stat::text(&stat) };
    Output::plain().give(text.as_bytes())
}

pub(crate) fn top(dir: &Path, watched: &Watched) -> Result<()> {
    let ask = || in_time(dir, ask);
    in_time(dir, |dir| {
        say_if_elsewhere(dir);
        Ok(())
    })?;
    let mut screens = Screens::begin(watched)?;
    let (mut before, mut then) = (mount_stat::parse(&ask()?)?, Instant::now());
    let title = dir.display().to_string();
    while screens.wait() {
        let now = mount_stat::parse(&ask()?)?;
        let seconds = then.elapsed().as_secs_f64();
        let line = || {
            let mut fields = screens::fields(&now, Some(&before), seconds);
            fields.insert("directory".into(), title.clone().into());
            fields.into()
        };
        screens.show(&title, || mount_stat::screen(&now, &before, seconds), line)?;
        (before, then) = (now, Instant::now());
    }
    Ok(())
}

/// One line on standard error if the numbers of processes that will be told are not those of this process's namespace.
fn say_if_elsewhere(dir: &Path) {
    // A server that does not answer is told of by what is asked next.
    if control::is_elsewhere(dir).unwrap_or(false) {
        let text = "the server is in another pid namespace: the process numbers it tells are those there";
        eprintln!("sluice: {}: {text}", dir.display());
    }
}

fn ask(dir: &Path) -> Result<Vec<u8>> {
    let answer = control::stat(dir).context(|| dir.display().to_string())?;
    answer.ok_or_else(|| no_server(dir))
}

/// That no server answers for `path`, and why.
pub(crate) fn no_server(path: &Path) -> Failure {
    // For a dead mount the kernel may answer from its cache.
    let dead = rustix::fs::statfs(path).map_err(io::Error::from).err().filter(sluice_fuse::is_dead);
    if let Some(error) = dead {
        return Failure::from(error).in_context(path.display());
    }
    let text = match sluice_fuse::is_within(path) {
        Ok(true) => "no server of this mount answers in this network namespace: ask where it was mounted",
        _ => "not in a sluicefs mount: `sluice mount` makes one",
    };
    Failure::Failed(format!("{}: {text}", path.display()))
}
