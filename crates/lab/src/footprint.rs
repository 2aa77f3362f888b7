//! Footprint: how much memory a file takes: a million empty ones in one directory, in process, and a million with a few bytes.
//!
//! The figure is the growth of this process's resident memory, allocator and page rounding included, so it is
//! taken in a fresh process in which nothing else has happened.

use sluice_console::failure::{Context, Failure, Result};
use sluice_sync::memory;
use sluice_sync::time::{Duration, Instant};
use sluice_vfs::{Cred, Fs, OpenFlags};
use std::path::Path;
use std::process::{Command, Stdio};

/// How many files `sluice bench footprint` creates.
pub const FILES: u64 = 1_000_000;
/// How many bytes are written to each file: in each run to all the same number.
pub const CONTENTS: [usize; 3] = [0, 10, 100];
/// The hidden command of `sluice` that measures in a fresh process.
pub const COMMAND: [&str; 2] = ["child", "footprint"];

/// The measured memory of files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Files created.
    pub files: u64,
    /// Growth of resident memory.
    pub bytes: u64,
    /// Time that creating them took.
    pub time: Duration,
}

impl Footprint {
    /// Memory per file.
    pub fn bytes_per_file(&self) -> f64 {
        self.bytes as f64 / self.files.max(1) as f64
    }

    /// Files created per second.
    pub fn creates_per_s(&self) -> f64 {
        self.files as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// The name of the result for files of `bytes` bytes.
pub fn name(bytes: usize) -> String {
    if bytes == 0 { "footprint".into() } else { format!("footprint-{bytes}") }
}

/// The subject of the result of this name.
pub fn subject(name: &str) -> String {
    name.strip_prefix("footprint-").map_or("empty files".into(), |bytes| format!("files of {bytes} bytes"))
}

/// Creates `files` files of `bytes` bytes in one directory of a new file system and measures. Call it in a fresh process.
///
/// # Errors
/// Errors of creating the files, or when the system does not tell its memory.
pub fn measure(files: u64, bytes: usize) -> Result<Footprint> {
    measure_in(&Fs::new(), files, bytes)
}

/// Measures in `fs`, which is new; else like [`measure`].
fn measure_in(fs: &Fs, files: u64, bytes: usize) -> Result<Footprint> {
    let process = fs.process(Cred::root());
    process.mkdir("/d", 0o755)?;
    let flags = OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::WRONLY;
    let contents = vec![b'x'; bytes];
    let before = resident_bytes()?;
    let start = Instant::now();
    for number in 0..files {
        let file = process.open(format!("/d/file-{number:07}"), flags, 0o644)?;
        if bytes > 0 {
            process.write(file, &contents)?;
        }
        process.close(file)?;
    }
    let time = start.elapsed();
    let after = resident_bytes()?;
    Ok(Footprint { files, bytes: after.saturating_sub(before), time })
}

/// Measures [`FILES`] files of `bytes` bytes in a process of its own, which `program` starts.
///
/// # Errors
/// When it cannot be started or fails.
pub fn in_child(program: &Path, bytes: usize) -> Result<Footprint> {
    let output = Command::new(program)
        .args(COMMAND)
        .arg(bytes.to_string())
        .stdin(Stdio::null())
        .output()
        .context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Failure::Failed(format!(
            "the measuring process failed: {}",
            complaint.lines().next().unwrap_or("no output")
        ))
    })
}

/// The line that the measuring process prints for its parent.
pub fn to_line(footprint: &Footprint) -> String {
    format!("{} {} {}", footprint.files, footprint.bytes, footprint.time.as_nanos())
}

fn parse(line: &str) -> Option<Footprint> {
    let numbers: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let &[files, bytes, time_ns] = numbers.as_slice() else { return None };
    Some(Footprint { files, bytes, time: Duration::from_nanos(time_ns) })
}

fn resident_bytes() -> Result<u64> {
    memory::resident_bytes()
        .ok_or_else(|| Failure::Failed("/proc/self/statm does not tell the resident memory".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_take_memory() {
        // They stay, or the next would take what they gave back.
        let file_systems: [Fs; 5 * CONTENTS.len()] = std::array::from_fn(|_| Fs::new());
        for (bytes, file_systems) in CONTENTS.into_iter().zip(file_systems.chunks(5)) {
            let takes_memory = |fs| {
                let footprint = measure_in(fs, 20_000, bytes).unwrap();
                assert_eq!(footprint.files, 20_000);
                // An inode holds at least its times and its name: far more than nothing, far less than a page.
                (40.0..4000.0).contains(&footprint.bytes_per_file())
            };
            // More than once: other tests of this process take memory and give it back meanwhile.
            assert!(file_systems.iter().any(takes_memory), "files of {bytes} bytes");
        }
    }

    #[test]
    fn the_name_of_a_result_tells_what_was_in_the_files() {
        let subjects = CONTENTS.map(|bytes| subject(&name(bytes)));
        assert_eq!(subjects, ["empty files", "files of 10 bytes", "files of 100 bytes"]);
    }

    #[test]
    fn a_measurement_survives_the_way_to_the_parent() {
        let footprint = Footprint { files: 5, bytes: 1000, time: Duration::from_nanos(77) };
        assert_eq!(parse(&to_line(&footprint)), Some(footprint));
        assert_eq!(parse("error: no"), None);
    }
}
