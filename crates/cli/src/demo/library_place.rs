//! Library place: the same operations in process, without a mount.

use super::inputs::{Inputs, NEEDLE};
use super::{DemoPlace, DemoStep, StepResult, byte_lock, timed};
use memchr::memmem::Finder;
use sluice_console::failure::{Failure, Result};
use sluice_console::table::grouped;
use sluice_vfs::{FileType, Fs};
use std::fs::File;
use std::io::BufReader;

pub(super) struct LibraryPlace {
    fs: Fs,
}

impl LibraryPlace {
    pub(super) fn new() -> LibraryPlace {
        LibraryPlace { fs: Fs::new() }
    }

    fn search(&self) -> Result<usize> {
        let needle = Finder::new(NEEDLE);
        let mut found = 0;
        for entry in self.fs.walk("/tree") {
            let entry = entry?;
            if entry.stat.file_type() == FileType::Regular {
                let contents = self.fs.read(&entry.path)?;
                found += usize::from(needle.find(&contents).is_some());
            }
        }
        Ok(found)
    }
}

impl DemoPlace for LibraryPlace {
    fn name(&self) -> String {
        "in process".into()
    }

    fn perform(&mut self, step: DemoStep, inputs: &Inputs) -> Result<StepResult> {
        let fs = &self.fs;
        let (time, told) = match step {
            DemoStep::Unpack => {
                fs.create_dir("/tree")?;
                let archive = BufReader::with_capacity(1 << 20, File::open(&inputs.archive)?);
                let (time, _) = timed(|| Ok(sluice_trees::import_tar(fs, archive, "/tree")?))?;
                (time, "Unpacked the sources".to_owned())
            }
            DemoStep::List => {
                let (time, names) =
                    timed(|| fs.walk("/tree").try_fold(0, |names, entry| Ok(entry.map(|_| names + 1)?)))?;
                (time, format!("Listed {} names", grouped(f64::from(names))))
            }
            DemoStep::Search => {
                let (time, files) = timed(|| self.search())?;
                (time, format!("Searched: {NEEDLE} is in {} files", grouped(files as f64)))
            }
            DemoStep::Compile | DemoStep::Sqlite => return Ok(StepResult::NotHere),
            DemoStep::Locks => {
                fs.write("/locked", vec![0; 200])?;
                let (time, ()) = timed(|| byte_lock::contend_in_process(fs))?;
                (time, byte_lock::told())
            }
            DemoStep::Delete => {
                let (time, ()) = timed(|| Ok(fs.remove_dir_all("/tree")?))?;
                if fs.exists("/tree") {
                    return Err(Failure::Failed("the tree is still there".into()));
                }
                (time, "Deleted the tree".to_owned())
            }
        };
        Ok(StepResult::Yes { time, told })
    }
}
