//! Check: the invariants of a whole file system, looked at from outside.
//!
//! Run it when nothing else changes the file system: it reads the tree name by name, not at one instant.

use crate::{FileType, InodeRef, Superblock};
use std::collections::HashMap;
use std::fmt;

/// The result of [`Superblock::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// The violated invariants, in the order found.
    pub findings: Vec<Finding>,
    /// Inodes that have a name, the root included.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names in all directories.
    pub names: u64,
}

/// One violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The link count does not agree with the names that lead to the inode.
    LinkCount {
        /// The inode.
        ino: u64,
        /// The count in its attributes.
        counted: u32,
        /// The count of names in the tree.
        found: u32,
    },
    /// A directory has more than one name.
    SecondName {
        /// The directory.
        ino: u64,
    },
    /// A directory's ".." leads elsewhere than to the directory that holds its name.
    Parent {
        /// The directory.
        ino: u64,
        /// Where ".." leads.
        leads_to: u64,
        /// Which directory holds its name.
        named_in: u64,
    },
    /// A directory that counts as removed still has a name.
    DeadButNamed {
        /// The directory.
        ino: u64,
    },
    /// A name and the index by which it is looked up disagree.
    LostName {
        /// The directory.
        dir: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// The names of a directory cannot be read from the store.
    Unreadable {
        /// The directory.
        dir: u64,
    },
    /// Two entries of a directory have one name.
    DoubleName {
        /// The directory.
        dir: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// The space that files take and that which the file system counts differ.
    Space {
        /// The space that the file system counts, in bytes.
        counted: u64,
        /// The space of its named files.
        found: u64,
    },
    /// An inode does not belong to the quota of a directory that has a name of it.
    Membership {
        /// The inode.
        ino: u64,
        /// The directory.
        dir: u64,
    },
    /// A quota counts other bytes than its named files take.
    Quota {
        /// The directory that has the quota.
        dir: u64,
        /// The space that the quota counts, in bytes.
        counted: u64,
        /// The space of its named files.
        found: u64,
    },
    /// Inodes are in memory that no name leads to, although nobody should hold one.
    Leaked {
        /// How many.
        inodes: u64,
    },
}

impl CheckReport {
    /// True when every invariant holds.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CheckReport { findings, inodes, directories, names } = self;
        write!(f, "{inodes} inodes, {directories} directories, {names} names: ")?;
        match findings.len() {
            0 => write!(f, "clean"),
            n => {
                write!(f, "{n} findings")?;
                findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::LinkCount { ino, counted, found } => {
                write!(f, "inode {ino}: link count {counted}, but the tree has {found}")
            }
            Finding::SecondName { ino } => write!(f, "directory {ino}: has more than one name"),
            Finding::Parent { ino, leads_to, named_in } => {
                write!(f, "directory {ino}: \"..\" leads to {leads_to}, its name is in {named_in}")
            }
            Finding::DeadButNamed { ino } => write!(f, "directory {ino}: removed, but has a name"),
            Finding::LostName { dir, name } => {
                write!(f, "directory {dir}: {:?} is listed but not found", String::from_utf8_lossy(name))
            }
            Finding::Unreadable { dir } => write!(f, "directory {dir}: its names cannot be read"),
            Finding::DoubleName { dir, name } => {
                write!(f, "directory {dir}: {:?} is listed twice", String::from_utf8_lossy(name))
            }
            Finding::Space { counted, found } => write!(f, "{counted} bytes counted, files take {found}"),
            Finding::Membership { ino, dir } => {
                write!(f, "inode {ino}: is not in the quota of directory {dir}, which has a name of it")
            }
            Finding::Quota { dir, counted, found } => {
                write!(f, "quota of directory {dir}: {counted} bytes counted, files take {found}")
            }
            Finding::Leaked { inodes } => write!(f, "{inodes} inodes in memory that no name leads to"),
        }
    }
}

/// An inode that the walk met.
struct Met {
    inode: InodeRef,
    names: u32,
    subdirectories: u32,
}

impl Superblock {
    /// Walks the whole tree and checks names, link counts, parents and storage. Files that are open without
    /// a name count neither as leaked nor as found; see [`Superblock::check_idle`].
    pub fn check(&self) -> CheckReport {
        let mut report = CheckReport::default();
        let mut met: HashMap<u64, Met> = HashMap::new();
        met.insert(self.root().ino(), Met { inode: self.root().clone(), names: 1, subdirectories: 0 });
        let mut directories = vec![self.root().clone()];
        while let Some(dir) = directories.pop() {
            report.directories += 1;
            check_directory(&dir, &mut met, &mut directories, &mut report);
        }
        report.inodes = met.len() as u64;
        for quota in self.root().shared.quotas.all() {
            let top = met.get(&quota.dir()).map(|met| met.inode.quota_number());
            if top.is_some_and(|number| number != quota.number()) {
                report.findings.push(Finding::Membership { ino: quota.dir(), dir: quota.dir() });
            }
        }
        for Met { inode, names, subdirectories } in met.values() {
            let found = if inode.is_dir() { 2 + subdirectories } else { *names };
            let counted = inode.stat().nlink;
            if counted != found {
                report.findings.push(Finding::LinkCount { ino: inode.ino(), counted, found });
            }
            if inode.is_dir() && *names > 1 {
                report.findings.push(Finding::SecondName { ino: inode.ino() });
            }
        }
        report
    }

    /// Checks a file system that nobody uses: beyond [`check`](Self::check), every inode in memory must have a name, and all
    /// space counted must belong to a named file.
    pub fn check_idle(&self) -> CheckReport {
        let mut report = self.check();
        let leaked = self.live_inodes().saturating_sub(report.inodes);
        if leaked != 0 {
            report.findings.push(Finding::Leaked { inodes: leaked });
        }
        let counted = self.bytes_used();
        let (found, in_quotas) = self.space_of_named_files();
        if counted != found {
            report.findings.push(Finding::Space { counted, found });
        }
        for quota in self.root().shared.quotas.all() {
            let (dir, counted) = (quota.dir(), quota.used());
            let found = in_quotas.get(&quota.number()).copied().unwrap_or(0);
            if counted != found {
                report.findings.push(Finding::Quota { dir, counted, found });
            }
        }
        report
    }

    /// The bytes of all named files, and of those of each quota.
    fn space_of_named_files(&self) -> (u64, HashMap<u32, u64>) {
        let mut seen = std::collections::HashSet::new();
        let mut directories = vec![self.root().clone()];
        let (mut bytes, mut in_quotas) = (self.root().bytes_charged(), HashMap::new());
        while let Some(dir) = directories.pop() {
            for (_, inode) in dir.list_names(|_| true).unwrap_or_default() {
                if seen.insert(inode.ino()) {
                    bytes += inode.bytes_charged();
                    *in_quotas.entry(inode.quota_below()).or_default() += inode.charged_to_quota();
                    if inode.is_dir() {
                        directories.push(inode);
                    }
                }
            }
        }
        (bytes, in_quotas)
    }
}

fn check_directory(
    dir: &InodeRef,
    met: &mut HashMap<u64, Met>,
    directories: &mut Vec<InodeRef>,
    report: &mut CheckReport,
) {
    let Ok(inner) = dir.as_dir() else { return };
    let Ok(names) = dir.list_names(|_| true) else {
        report.findings.push(Finding::Unreadable { dir: dir.ino() });
        return;
    };
    if inner.names.is_dead() {
        report.findings.push(Finding::DeadButNamed { ino: dir.ino() });
    }
    let mut seen = std::collections::HashSet::new();
    let mut subdirectories = 0;
    for (name, inode) in &names {
        report.names += 1;
        if !seen.insert(name) {
            report.findings.push(Finding::DoubleName { dir: dir.ino(), name: name.to_vec() });
        }
        if !dir.look_up(name).is_ok_and(|found| found.is_same(inode)) {
            report.findings.push(Finding::LostName { dir: dir.ino(), name: name.to_vec() });
        }
        let known =
            met.entry(inode.ino()).or_insert(Met { inode: inode.clone(), names: 0, subdirectories: 0 });
        known.names += 1;
        let is_top = inode.quota().is_some_and(|quota| quota.dir == inode.ino());
        if inode.quota_below() != dir.quota_below() && !is_top {
            report.findings.push(Finding::Membership { ino: inode.ino(), dir: dir.ino() });
        }
        if inode.file_type() == FileType::Directory {
            subdirectories += 1;
            let leads_to = inode.parent().map_or(0, |parent| parent.ino());
            if leads_to != dir.ino() {
                let (ino, named_in) = (inode.ino(), dir.ino());
                report.findings.push(Finding::Parent { ino, leads_to, named_in });
            }
            if known.names == 1 {
                directories.push(inode.clone());
            }
        }
    }
    if let Some(this) = met.get_mut(&dir.ino()) {
        this.subdirectories = subdirectories;
    }
}
