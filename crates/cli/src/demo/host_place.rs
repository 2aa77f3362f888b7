//! Host place: a directory of a mounted file system, ours or the host's, worked on by the usual programs.

use super::inputs::Inputs;
use super::{DemoPlace, DemoStep, StepResult, byte_lock, crate_build, timed};
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::private_dir::PrivateDir;
use sluice_console::table::grouped;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(super) struct HostPlace {
    name: String,
    program: PathBuf,
    dir: PrivateDir,
}

impl HostPlace {
    /// The mount at `point`.
    pub(super) fn mount(point: &Path, program: &Path) -> Result<HostPlace> {
        Ok(HostPlace { name: "mount".into(), program: program.into(), dir: PrivateDir::below(point)? })
    }

    /// A directory below `parent` on a file system of the host, of kind `kind`.
    pub(super) fn host(kind: &str, parent: &Path, program: &Path) -> Result<HostPlace> {
        let dir = PrivateDir::below(parent)?;
        Ok(HostPlace { name: kind.into(), program: program.into(), dir })
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }
}

impl DemoPlace for HostPlace {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn perform(&mut self, step: DemoStep, inputs: &Inputs) -> Result<StepResult> {
        let tree = self.tree();
        let (time, told) = match step {
            DemoStep::Unpack => {
                std::fs::create_dir(&tree)?;
                let mut tar = Command::new("tar");
                tar.arg("-xf").arg(&inputs.archive).arg("-C").arg(&tree);
                let (time, _) = timed(|| run(&mut tar))?;
                (time, "Unpacked the sources".to_owned())
            }
            DemoStep::List => {
                let (time, found) = timed(|| run(Command::new("find").arg(&tree)))?;
                let names = found.stdout.iter().filter(|&&byte| byte == b'\n').count();
                (time, format!("Listed {} names", grouped(names as f64)))
            }
            DemoStep::Search => {
                let mut grep = Command::new("grep");
                grep.args(["-r", "-l", "-F", "-a", super::inputs::NEEDLE]).arg(&tree).env("LC_ALL", "C");
                let (time, found) = timed(|| run(&mut grep))?;
                let files = found.stdout.iter().filter(|&&byte| byte == b'\n').count();
                (time, format!("Searched: {} is in {} files", super::inputs::NEEDLE, grouped(files as f64)))
            }
            DemoStep::Compile => {
                if let Some(why) = &inputs.no_build {
                    return Ok(StepResult::Skipped(why.clone()));
                }
                let dir = self.dir.path().join("small");
                crate_build::generate(&dir)?;
                let (time, ()) = timed(|| crate_build::build_and_run(&dir))?;
                (time, "Compiled a small crate with cargo, and ran it".to_owned())
            }
            DemoStep::Sqlite => {
                if let Some(why) = &inputs.no_sqlite {
                    return Ok(StepResult::Skipped(why.clone()));
                }
                timed(|| super::sqlite::load(self.dir.path()))?
            }
            DemoStep::Locks => {
                let file = self.dir.path().join("locked");
                let (time, ()) = timed(|| byte_lock::contend(&self.program, &file))?;
                (time, byte_lock::told())
            }
            DemoStep::Delete => {
                let (time, _) = timed(|| run(Command::new("rm").arg("-rf").arg(&tree)))?;
                if tree.exists() {
                    return Err(Failure::Failed("the tree is still there".into()));
                }
                (time, "Deleted the tree".to_owned())
            }
        };
        Ok(StepResult::Yes { time, told })
    }
}

/// Runs a program to its end and gives what it printed.
fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().context(|| name.clone())?;
    // grep's way to say that it found nothing.
    let nothing_found = name == "grep" && output.status.code() == Some(1);
    if output.status.success() || nothing_found {
        return Ok(output);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(Failure::Failed(format!("{name}: {}", complaint.lines().next().unwrap_or("failed without a word"))))
}
