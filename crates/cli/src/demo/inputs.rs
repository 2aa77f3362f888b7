//! Inputs: what every place of the tour gets, prepared once: one archive, a crate to build, warm tools.

use super::{crate_build, sqlite};
use sluice_console::corpus::Corpus;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::private_dir::PrivateDir;
use sluice_console::table::grouped;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Entries of the source tree, about.
const ENTRIES: usize = 6000;
/// The text that the search looks for.
pub(super) const NEEDLE: &str = "#[inline]";

/// Prepared inputs. Dropping them removes the archive.
pub(super) struct Inputs {
    /// The sources as one uncompressed archive.
    pub(super) archive: PathBuf,
    /// For a person.
    pub(super) description: String,
    /// Why the compile step is left out, if it is.
    pub(super) no_build: Option<String>,
    /// Why the SQLite step is left out, if it is.
    pub(super) no_sqlite: Option<String>,
    bytes: u64,
    dir: PrivateDir,
}

impl Inputs {
    pub(super) fn prepare() -> Result<Inputs> {
        for tool in ["tar", "find", "grep", "rm"] {
            // Also brings the program into memory, so that the first place does not pay for that.
            let found =
                Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if found.is_err() {
                return Err(Failure::Failed(format!(
                    "the tour needs {tool}: install it, for instance with `apt install tar findutils grep coreutils`"
                )));
            }
        }
        let mut inputs = Inputs::of(&Corpus::load(ENTRIES))?;
        inputs.no_build = crate_build::why_not(inputs.dir.path());
        inputs.no_sqlite = sqlite::why_not();
        Ok(inputs)
    }

    /// Inputs with `corpus` as the sources.
    pub(super) fn of(corpus: &Corpus) -> Result<Inputs> {
        let dir = PrivateDir::below(&std::env::temp_dir())?;
        let archive = dir.path().join("sources.tar");
        let mut file = BufWriter::new(File::create(&archive)?);
        corpus
            .write_tar(&mut file)
            .and_then(|()| Ok(file.flush()?))
            .context(|| archive.display().to_string())?;
        let bytes = corpus.bytes();
        let (files, megabytes) = (grouped(corpus.files() as f64), grouped(bytes as f64 / 1e6));
        let description = format!("{}: {files} files, {megabytes} MB", corpus.origin);
        Ok(Inputs { archive, description, no_build: None, no_sqlite: None, bytes, dir })
    }

    /// Free space that a place should have.
    pub(super) fn bytes_wanted(&self) -> u64 {
        const BUILD_AND_DATABASE: u64 = 64 << 20;
        self.bytes * 3 / 2 + BUILD_AND_DATABASE
    }
}
