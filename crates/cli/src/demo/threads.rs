//! Threads: how much two threads do beside one, each on a directory of its own, in process and on a directory of the host;
//! and the same calls on a simulated machine, if `sluice-lab` is there.

use serde_json::Value;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::private_dir::PrivateDir;
use sluice_console::program::companion;
use sluice_console::table::{Table, grouped};
use sluice_sync::thread;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::{Cred, Fs, OpenFlags};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Length of a run.
const SPAN: Duration = Duration::from_millis(150);
/// Runs for each place and number of threads, in turn; the fastest counts, which neighbours disturbed least.
const RUNS: usize = 3;
/// The simulated machine, and how many of its CPUs work.
const SIMULATED: (&str, [u64; 3]) = ("sim:power7-64", [1, 8, 64]);

/// Creates a file in a thread's own directory, writes to it, looks at it and removes it.
type OneFile<'a> = &'a (dyn Fn(usize) -> Result<()> + Sync);

/// Files a second of `threads` threads at once.
fn rate(one_file: OneFile<'_>, threads: usize) -> Result<f64> {
    let worker = move |number: usize| -> Result<f64> {
        one_file(number)?;
        let (began, mut files) = (Instant::now(), 0_u32);
        while began.elapsed() < SPAN {
            one_file(number)?;
            files += 1;
        }
        Ok(f64::from(files) / began.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|number| scope.spawn(move || worker(number))).collect();
        let rates = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(Failure::Failed("a thread panicked".into()))));
        rates.sum()
    })
}

/// The rates of one thread and of two, in each of the `places`: as lines of a table.
fn compare(places: &[(&str, OneFile<'_>)]) -> Result<String> {
    let mut table = Table::with_left_columns(1);
    table.line(["", "1 thread", "2 threads", "ratio"]);
    let mut best = vec![[0.0_f64; 2]; places.len()];
    for _ in 0..RUNS {
        for (best, (_, one_file)) in best.iter_mut().zip(places) {
            for (best, threads) in best.iter_mut().zip([1, 2]) {
                *best = best.max(rate(*one_file, threads)?);
            }
        }
    }
    for ([one, two], (name, _)) in best.into_iter().zip(places) {
        table.line([(*name).to_owned(), grouped(one), grouped(two), format!("{:.2}", two / one)]);
    }
    Ok(table.render())
}

/// The table, with a column for the directory `tmpfs` of a tmpfs if there is one.
pub(super) fn one_against_two(tmpfs: Option<&Path>) -> Result<String> {
    let own = Fs::new();
    let processes = [own.process(Cred::root()), own.process(Cred::root())];
    for number in 0..processes.len() {
        own.create_dir(format!("/{number}"))?;
    }
    let in_process = |number: usize| -> Result<()> {
        let (process, path) = (&processes[number], format!("/{number}/file"));
        let file = process.open(&path, OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::EXCL, 0o600)?;
        process.pwrite(file, b"contents", 0)?;
        process.close(file)?;
        process.stat(&path)?;
        Ok(process.unlink(&path)?)
    };
    let dir = tmpfs.map(PrivateDir::below).transpose()?;
    let root = dir.as_ref().map(PrivateDir::path);
    for number in 0..processes.len() {
        root.map_or(Ok(()), |root| fs::create_dir(root.join(number.to_string())))?;
    }
    let on_tmpfs = |number: usize| -> Result<()> {
        let path = root.unwrap_or(Path::new("/")).join(format!("{number}/file"));
        File::create_new(&path)?.write_all(b"contents")?;
        fs::metadata(&path)?;
        Ok(fs::remove_file(&path)?)
    };
    let places: [(&str, OneFile<'_>); 2] = [("in process", &in_process), ("tmpfs", &on_tmpfs)];
    compare(if root.is_some() { &places } else { &places[..1] })
}

/// One line with rates on a simulated machine; none without `sluice-lab`.
pub(super) fn on_simulated_cpus() -> Result<Option<String>> {
    let Some(lab) = companion("sluice-lab") else { return Ok(None) };
    let (machine, cpus) = SIMULATED;
    let list = cpus.map(|number| number.to_string()).join(",");
    let arguments = ["--on", machine, "--cpus", &list, "--ops", "20", "--runs", "1", "--json", "-"];
    let output = Command::new(lab)
        .args(["bench", "open-close"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context(|| "sluice-lab")?;
    let rows = String::from_utf8_lossy(&output.stdout);
    let rate = |row: &str| serde_json::from_str::<Value>(row).ok()?.get("ops_per_s")?.as_f64();
    let rates: Option<Vec<f64>> = rows.lines().map(rate).collect();
    match rates.as_deref() {
        Some(&[one, some, all]) => Ok(Some(format!(
            "open and close on {} / {} / {} simulated CPUs ({machine}): 1 / {:.1} / {:.1} times as many a second",
            cpus[0],
            cpus[1],
            cpus[2],
            some / one,
            all / one
        ))),
        _ => Err(Failure::Failed(format!(
            "sluice-lab: {}",
            String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("no rates")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_place() {
        let text = one_against_two(Some(&std::env::temp_dir())).unwrap();
        let names: Vec<_> = text.lines().map(|line| line.split("  ").next().unwrap()).collect();
        assert_eq!(names, ["", "in process", "tmpfs"], "{text}");
        assert_eq!(one_against_two(None).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_call_that_fails_ends_the_comparison() {
        let failing = |_| Err(Failure::Failed("no".into()));
        assert_eq!(compare(&[("here", &failing)]), Err(Failure::Failed("no".into())));
    }
}
