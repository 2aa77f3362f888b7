//! Mount files: which files of a mount are open and by whom, as a table, as JSON, or one of them to tell why it is busy.
//!
//! # Theory
//! Two know of open files. The kernel has those of programs, whether it tells the server when it opens one or not: they are
//! in `/proc`, of the processes that may be looked at. The server has those of its own process, which uses the file system
//! as a library.

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use serde::Serialize;
use sluice_console::failure::{Context, Failure, Result};
use sluice_console::table::Table;
use std::cell::LazyCell;
use std::fs::{read_dir, read_link, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A descriptor of a process, or another way in which it uses a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct MountFile {
    /// Where the file is; in the server's own process from the root of the file system on. A file without a name is
    /// `(deleted)`.
    pub(crate) path: String,
    /// The process; of the server's own those of the library.
    pub(crate) pid: i64,
    /// Its name; null in the server's own process.
    pub(crate) command: Option<String>,
    /// Its user.
    pub(crate) uid: u32,
    /// The number of the descriptor; or `cwd`, `root`, `exe`: the working directory, the root, the program.
    pub(crate) held_as: String,
    /// The file's inode number.
    pub(crate) inode: u64,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `block` or `character`.
    pub(crate) kind: String,
    /// The flags of the descriptor, as `open` takes them.
    pub(crate) flags: Option<u32>,
    /// Where the next read or write goes, in bytes.
    pub(crate) position: Option<u64>,
}

/// The files of the mount that holds `dir` which programs have open, of those programs that may be looked at.
///
/// # Errors
/// When `dir` or `/proc` cannot be read.
pub(crate) fn of_programs(dir: &Path) -> Result<Vec<MountFile>> {
    of_programs_on(dir.metadata().context(|| dir.display().to_string())?.dev())
}

/// Files that programs have open on the mount with this device number, which may be out of the tree already.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn of_programs_on(device: u64) -> Result<Vec<MountFile>> {
    let mut files = Vec::new();
    for process in read_dir("/proc").context(|| "/proc")?.flatten() {
        if let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) {
            files.extend(of_program(device, pid, &process.path()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The files of process `pid`, whose directory in `/proc` is `at`. Empty if the process has ended or may not be
/// inspected.
fn of_program(device: u64, pid: i64, at: &Path) -> Vec<MountFile> {
    let Ok(uid) = at.metadata().map(|of_process| of_process.uid()) else { return Vec::new() };
    let descriptors = read_dir(at.join("fd")).into_iter().flatten().flatten();
    let descriptors = descriptors.map(|link| link.file_name().to_string_lossy().into_owned());
    // Most have nothing open here, and some have thousands of files.
    let command = LazyCell::new(|| crate::mount_locks::command_of(pid));
    let held = ["cwd", "root", "exe"].map(str::to_owned).into_iter().chain(descriptors);
    let file = |held_as: String| {
        let is_descriptor = held_as.parse::<u32>().is_ok();
        let link = if is_descriptor { at.join("fd").join(&held_as) } else { at.join(&held_as) };
        // The kernel's cached attributes suffice: the server of another mount may be dead.
        let stat = statx(CWD, &link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO).ok()?;
        if makedev(stat.stx_dev_major, stat.stx_dev_minor) != device {
            return None;
        }
        let info = if is_descriptor {
            read_to_string(at.join("fdinfo").join(&held_as)).ok()?
        } else {
            String::new()
        };
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some(MountFile {
            path: read_link(&link).ok()?.to_string_lossy().into_owned(),
            pid,
            command: command.clone(),
            uid,
            held_as,
            inode: stat.stx_ino,
            kind: kind(u32::from(stat.stx_mode)).to_owned(),
            flags: field("flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok()),
            position: field("pos:").and_then(|position| position.parse().ok()),
        })
    };
    held.filter_map(file).collect()
}

/// The type in a mode, in a word.
fn kind(mode: u32) -> &'static str {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::BlockDevice => "block",
        FileType::CharacterDevice => "character",
        FileType::Unknown => "unknown",
    }
}

/// The files that the server's own process has open, from its answer: a line each of process, user, descriptor, inode,
/// mode, flags (these two octal), position and path.
///
/// # Errors
/// When the answer is of another version's form.
pub(crate) fn of_server(answer: &[u8]) -> Result<Vec<MountFile>> {
    let answer = String::from_utf8_lossy(answer);
    let line = |line: &str| parse(line).ok_or_else(|| Failure::Failed(format!("{OTHER_FORM}: {line}")));
    answer.lines().map(line).collect()
}

const OTHER_FORM: &str = "the mount's server answers in another form; is it of another version?";

fn parse(line: &str) -> Option<MountFile> {
    let mut words = line.splitn(8, ' ');
    let mut word = || words.next();
    Some(MountFile {
        pid: word()?.parse().ok()?,
        command: None,
        uid: word()?.parse().ok()?,
        held_as: word()?.to_owned(),
        inode: word()?.parse().ok()?,
        kind: kind(u32::from_str_radix(word()?, 8).ok()?).to_owned(),
        flags: Some(u32::from_str_radix(word()?, 8).ok()?),
        position: Some(word()?.parse().ok()?),
        path: word()?.to_owned(),
    })
}

impl MountFile {
    /// The access mode of the descriptor, in a word.
    fn access(&self) -> &'static str {
        const PATH: u32 = 0o10_000_000;
        match self.flags {
            None => "-",
            Some(flags) if flags & PATH != 0 => "path",
            Some(flags) => ["read", "write", "both", "-"][(flags & 3) as usize],
        }
    }

    /// Which process uses which file how, for a message.
    pub(crate) fn in_words(&self) -> String {
        let (user, path) = (self.user(), &self.path);
        match self.held_as.as_str() {
            "cwd" => format!("{user} works in {path}"),
            "root" => format!("{user} has {path} for its root"),
            "exe" => format!("{user} runs {path}"),
            _ => format!("{user} has {path} open"),
        }
    }

    /// Which process uses the file.
    pub(crate) fn user(&self) -> String {
        format!("{} (process {})", self.command.as_deref().unwrap_or("the server"), self.pid)
    }
}

/// For a person.
pub(crate) fn table(files: &[MountFile]) -> String {
    let mut table = Table::with_left_columns(1);
    table.line(["COMMAND", "PID", "UID", "HELD AS", "ACCESS", "POSITION", "TYPE", "INODE", "PATH"]);
    for file in files {
        table.line([
            file.command.clone().unwrap_or_else(|| "(server)".to_owned()),
            file.pid.to_string(),
            file.uid.to_string(),
            file.held_as.clone(),
            file.access().to_owned(),
            file.position.map_or_else(|| "-".to_owned(), |position| position.to_string()),
            file.kind.clone(),
            file.inode.to_string(),
            file.path.clone(),
        ]);
    }
    table.render()
}

/// The object `stat`, the JSON of a mount's statistics, with a further field, `files`.
///
/// # Errors
/// When `stat` is not a JSON object.
pub(crate) fn json(stat: &[u8], files: &[MountFile]) -> Result<String> {
    let stat = String::from_utf8_lossy(stat);
    let open = stat.trim_end().strip_suffix('}').ok_or_else(|| Failure::Failed(OTHER_FORM.to_owned()))?;
    Ok(format!("{open},\"files\":{}}}\n", serde_json::to_string(files).expect("plain data")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_its_own_file_open() {
        let program = std::env::current_exe().unwrap();
        let open = std::fs::File::open(&program).unwrap();
        let inode = open.metadata().unwrap().ino();
        let files = of_programs(&program).unwrap();
        let ours = |file: &&MountFile| file.pid == i64::from(std::process::id()) && file.inode == inode;
        let held: Vec<_> =
            files.iter().filter(ours).map(|file| (file.access(), file.kind.as_str())).collect();
        assert!(held.contains(&("read", "file")) && held.contains(&("-", "file")), "{held:?}");
        let program = files.iter().find(|file| ours(file) && file.held_as == "exe").unwrap();
        assert!(program.in_words().contains(" runs /"), "{}", program.in_words());
    }

    #[test]
    fn what_a_server_has_open_reads_as_a_table_and_as_json() {
        let files = of_server(b"5 1000 3 12 100644 2002 9 /a name\n5 1000 4 1 40755 10200000 0 /\n").unwrap();
        let text = table(&files);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["(server)", "5", "1000", "3", "both", "9", "file", "12", "/a", "name"]);
        assert!(text.lines().nth(2).unwrap().contains("path"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&json(b"{\"open_files\":2}\n", &files).unwrap()).unwrap();
        assert_eq!((&json["open_files"], &json["files"][0]["path"]), (&2.into(), &"/a name".into()));
        assert!(of_server(b"nonsense\n").is_err());
    }
}
