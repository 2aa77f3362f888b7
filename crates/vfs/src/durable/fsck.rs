//! Fsck: does the tree of files in a store hold together? The file system's half of `sluice fsck`.
//!
//! # Theory
//! [`Store::check`] shows each record once, in the order of the keys: what is cut off, contents, owners of extents,
//! inodes, names, orphans, attributes. The check keeps some numbers for each inode; a name is then matched with its inode.
//! Invariants:
//! - F1: each name stands in a directory that is there, and leads to an inode that is there, of the type that it says;
//! - F2: a file has as many names as its link count says, a directory but the root one; an orphan has none;
//! - F3: each directory is reached from the root;
//! - F4: contents and attributes belong to an inode, contents to a regular file, and are as many pages as it says; what is cut
//!   off does not count, and belongs to an inode, too;
//! - F5: the directory that an inode says to hold it has a name of it;
//! - F6: all inode numbers are below the recorded bound;
//! - F7: two records name the same bytes of a segment only as the same extent. (The store looks for that, and says which record
//!   must go.) A record says how many files name a shared extent; an extent that is said to have no owner has none;
//! - F8: unwritten pages of a regular file are ranges in order, and no chunk that counts has one of them;
//! - F9: an inode with a name counts for the quota of the directory in which it has that, and a quota's use is what these hold.
//!
//! *Repair* removes names that lead nowhere and records that belong to nobody, puts inodes without a name into `/lost+found`, and
//! corrects counts, as transactions of the store. A file whose inode cannot be read is lost with its contents.
//!
//! # Cost
//! Some sixty bytes of memory for each inode, and the name of each directory.

mod quotas;
mod repair;

use super::chunk::{CHUNK, Chunk};
use super::keys::{self, Key, chunk_of, ino_of, name_of};
use super::lost::LostChanges;
use super::record::{self, InodeRecord, ScrubRecord, readable};
use super::told::ToldPaths;
use super::unwritten::UnwrittenPages;
use super::{owners, requests};
use crate::quota::NO_QUOTA;
use crate::superblock::ROOT_INO;
use crate::{FileType, NAME_MAX, Superblock};
use quotas::CheckedQuotas;
use sluice_store::disk::Disk;
use sluice_store::{Extent, Gravity, Look, Progress, Report, Store, StoreError};
use sluice_sync::Arc;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Where files go that have no name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

impl Superblock {
    /// Looks at the whole file system on `disk`, which is not changed; `progress` is called now and then.
    ///
    /// # Errors
    /// [`StoreError`], when it cannot be looked at. Damage in the tree is a finding, not an error.
    pub fn check_store(
        disk: Arc<dyn Disk>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, StoreError> {
        judged(|tree| Store::check(disk, tree, progress)).map(|(report, _)| report)
    }

    /// Looks at the whole file system in a store whose records `check` shows; see [`check_store`](Self::check_store).
    ///
    /// # Errors
    /// Errors of `check`.
    pub fn check_shown(
        check: impl FnOnce(&mut dyn Look) -> Result<Report, StoreError>,
    ) -> Result<Report, StoreError> {
        judged(check).map(|(report, _)| report)
    }
}

/// The findings of `check`, and the faults of the tree that it showed.
fn judged(
    check: impl FnOnce(&mut dyn Look) -> Result<Report, StoreError>,
) -> Result<(Report, CheckedTree), StoreError> {
    let mut tree = CheckedTree::default();
    let mut report = check(&mut tree)?;
    tree.told.put_into(&mut report);
    Ok((report, tree))
}

/// Something to mend.
#[derive(Debug)]
enum Fix {
    /// This record goes.
    Remove(Vec<u8>),
    /// All that belongs to this inode goes.
    Discard(u64),
    /// The inode's counts are as was found.
    Count(u64),
    /// The inode gets a name in `lost+found`.
    Adopt(u64),
    /// Numbers of inodes are below this.
    Numbers(u64),
    /// The unwritten pages of the inode are those that are left.
    Unwritten(u64),
    /// So many records name the extent at this place, which takes so many bytes.
    Owners(u64, u64, u64),
    /// The inode counts for the quota with this number.
    Quota(u64, u32),
}

/// The facts about an inode.
#[derive(Debug)]
struct Node {
    ino: u64,
    file_type: FileType,
    /// As its record says.
    nlink: u32,
    pages: u64,
    has_xattrs: bool,
    /// Names that lead to it.
    names: u32,
    /// Some attribute is there.
    xattrs: bool,
    /// The directory that it says to hold it.
    holder: Option<u64>,
    /// It does.
    is_held: bool,
    /// The number of its quota.
    quota: u32,
}

/// The facts about the file system.
#[derive(Debug, Default)]
struct CheckedTree {
    /// The bound of inode numbers.
    numbers: Option<u64>,
    /// For each inode with chunks that are cut off: their range.
    cut_off: BTreeMap<u64, Range<u64>>,
    /// For each inode with contents, sorted by number: its number and its pages.
    contents: Vec<(u64, u64)>,
    /// In the order of their numbers.
    nodes: Vec<Node>,
    /// For each directory with a name: its parent and the name.
    places: BTreeMap<u64, (u64, Vec<u8>)>,
    orphans: BTreeSet<u64>,
    /// By place, how many records name an extent, as a record says: those that were not counted yet.
    owners: BTreeMap<u64, u64>,
    /// Places of extents whose records claim no owner.
    unowned: BTreeSet<u64>,
    unwritten: UnwrittenPages,
    quotas: CheckedQuotas,
    /// Inodes with attributes and without a record.
    attributed: BTreeSet<u64>,
    fixes: Vec<Fix>,
    told: ToldPaths,
    lost: LostChanges,
    /// Records that were mended: the version of the next one.
    changes: u64,
}

impl Look for CheckedTree {
    fn see(&mut self, key: &[u8], value: &[u8], report: &mut Report) {
        let is_short = name_of(key).is_empty();
        let seen = match (key.first(), ino_of(key)) {
            (Some(&keys::COMMON), Some(0)) if is_short => {
                let common = record::decode_common(value);
                self.quotas.has_uses = common.is_some_and(|(_, sums)| sums.is_some());
                self.numbers = common.map(|(numbers, _)| numbers);
                readable(self.numbers)
            }
            (Some(&keys::CUT_OFF), Some(ino)) if is_short => match record::decode_cut_off(value) {
                Some(chunks) => {
                    self.cut_off.insert(ino, chunks);
                    Ok(())
                }
                None => Err("it cannot be read"),
            },
            (Some(&keys::DATA), Some(ino)) => self.data(ino, key, value),
            (Some(&keys::OWNERS), Some(place)) if is_short => match owners::decode(value) {
                Some((owners, _)) => {
                    self.owners.insert(place, u64::from(owners));
                    Ok(())
                }
                None => Err("it cannot be read"),
            },
            (Some(&keys::UNOWNED), Some(place)) if is_short => match owners::decode_unowned(value) {
                Some(extent) if extent.place() == place => {
                    self.unowned.insert(place);
                    Ok(())
                }
                _ => Err("it cannot be read"),
            },
            (Some(&keys::INODE), Some(ino)) if is_short => self.inode(ino, value),
            (Some(&keys::NAME), Some(dir)) => self.name(dir, key, value),
            (Some(&keys::ORPHAN), Some(ino)) if is_short => {
                self.orphans.insert(ino);
                Ok(())
            }
            (Some(&keys::QUOTA), Some(_)) if is_short => readable(self.quotas.found.see(key, value)),
            (Some(&keys::REQUEST), Some(_)) => readable(requests::executed_of(key, value)),
            (Some(&keys::SCRUB), Some(0)) if is_short => readable(ScrubRecord::decode(value)),
            (Some(&keys::XATTR), Some(ino)) => {
                match self.node_mut(ino) {
                    Some(node) => node.xattrs = true,
                    None => drop(self.attributed.insert(ino)),
                }
                Ok(())
            }
            _ => Err("it is of no known kind"),
        };
        if let Err(what) = seen {
            report.find(Gravity::Damage, format!("{}: {what}", self.describe(key)));
            self.fixes.push(Fix::Remove(key.to_vec()));
        }
    }

    fn describe(&self, key: &[u8]) -> String {
        let ino = ino_of(key).unwrap_or(0);
        let told = self.told.mark(ino);
        let name = String::from_utf8_lossy(name_of(key));
        match key.first() {
            Some(&keys::COMMON) => "the bound of inode numbers".to_owned(),
            Some(&keys::CUT_OFF) => format!("what is cut off {told}"),
            Some(&keys::DATA) => {
                let start = chunk_of(key).unwrap_or(0).saturating_mul(CHUNK);
                format!("contents of {told} from byte {start}")
            }
            Some(&keys::OWNERS) => format!("how many records name the extent at {ino:x}"),
            Some(&keys::UNOWNED) => format!("the extent without an owner at {ino:x}"),
            Some(&keys::INODE) => told,
            Some(&keys::NAME) => format!("name {name:?} in directory {told}"),
            Some(&keys::ORPHAN) => format!("deleted file {ino}"),
            Some(&keys::QUOTA) => format!("quota {ino}"),
            Some(&keys::REQUEST) => format!("an executed request of mount {ino:x}"),
            Some(&keys::SCRUB) => "the state of the scrub".to_owned(),
            Some(&keys::XATTR) => format!("attribute {name:?} of {told}"),
            _ => format!("the record with key {:02x?}", &key[..key.len().min(9)]),
        }
    }

    fn is_same_file(&self, key: &[u8], other: &[u8]) -> bool {
        let file = |key: &[u8]| ino_of(key).filter(|_| key.first() == Some(&keys::DATA));
        file(key).is_some_and(|ino| file(other) == Some(ino))
    }

    fn extents(&self, key: &[u8], value: &[u8]) -> Vec<Extent> {
        owners::named(key, value).into_iter().collect()
    }

    fn wanted(&self) -> Vec<Range<Vec<u8>>> {
        self.unwritten.wanted()
    }

    fn see_wanted(&mut self, key: &[u8], value: &[u8]) {
        if self.pages_of(key, value).is_some_and(|pages| pages > 0) {
            self.unwritten.see_chunk(key, value);
        }
    }

    fn end(&mut self, report: &mut Report) {
        self.judge(report);
    }

    fn see_lost(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.lost.see(key, value, &mut self.told);
    }

    fn lost(&self) -> Vec<String> {
        self.lost.lines(&self.told)
    }

    fn see_again(&mut self, key: &[u8], value: &[u8]) {
        self.told.see(key, value);
    }

    fn count(&mut self, place: u64, bytes: u64, records: u64, report: &mut Report) {
        let mut owners = records;
        if self.unowned.contains(&place) {
            owners -= 1;
            if owners > 0 {
                let has = format!("the extent at {place:x} is said to have no owner, and has {owners}");
                report.find(Gravity::Count, has);
                self.fixes.push(Fix::Remove(Key::unowned(place).to_vec()));
            }
        }
        let said = self.owners.remove(&place).unwrap_or(1);
        if said != owners.max(1) {
            report.find(
                Gravity::Count,
                format!("{owners} records name the extent at {place:x}, and should be {said}"),
            );
            self.fixes.push(Fix::Owners(place, owners, bytes));
        }
    }

    fn refuse(&mut self, key: &[u8], value: &[u8]) {
        let pages = self.pages_of(key, value).unwrap_or(0);
        let owner = ino_of(key).and_then(|ino| self.contents_mut(ino));
        owner.into_iter().for_each(|sum| *sum = sum.saturating_sub(pages));
        self.fixes.push(Fix::Remove(key.to_vec()));
    }
}

impl CheckedTree {
    fn node(&self, ino: u64) -> Option<&Node> {
        let at = self.nodes.binary_search_by_key(&ino, |node| node.ino).ok()?;
        self.nodes.get(at)
    }

    fn node_mut(&mut self, ino: u64) -> Option<&mut Node> {
        let at = self.nodes.binary_search_by_key(&ino, |node| node.ino).ok()?;
        self.nodes.get_mut(at)
    }

    /// Pages of contents that there are.
    fn pages(&self, ino: u64) -> u64 {
        let found = self.contents.binary_search_by_key(&ino, |(ino, _)| *ino);
        found.map_or(0, |at| self.contents[at].1)
    }

    /// Pages that count of the chunk with this key and value.
    fn pages_of(&self, key: &[u8], value: &[u8]) -> Option<u64> {
        let (at, chunk) = chunk_of(key).zip(Chunk::decode(value))?;
        let is_cut_off =
            ino_of(key).and_then(|ino| self.cut_off.get(&ino)).is_some_and(|chunks| chunks.contains(&at));
        Some(if is_cut_off { 0 } else { chunk.pages() })
    }

    fn contents_mut(&mut self, ino: u64) -> Option<&mut u64> {
        let at = self.contents.binary_search_by_key(&ino, |(ino, _)| *ino).ok()?;
        self.contents.get_mut(at).map(|(_, pages)| pages)
    }

    fn data(&mut self, ino: u64, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let pages = self.pages_of(key, value).ok_or("they cannot be read")?;
        match self.contents.last_mut() {
            Some((last, sum)) if *last == ino => *sum += pages,
            _ => self.contents.push((ino, pages)),
        }
        Ok(())
    }

    fn inode(&mut self, ino: u64, value: &[u8]) -> Result<(), &'static str> {
        let record = InodeRecord::decode_head(value).ok_or("it cannot be read")?;
        let file_type = FileType::from_mode(record.mode).ok_or("it cannot be read")?;
        let node = Node {
            ino,
            file_type,
            nlink: record.nlink,
            pages: record.pages,
            has_xattrs: record.has_xattrs,
            names: 0,
            xattrs: false,
            holder: record.holder,
            is_held: false,
            quota: record.quota,
        };
        if record.quota != NO_QUOTA {
            *self.quotas.uses.entry(record.quota).or_default() += record.charged();
        }
        if ino == ROOT_INO && file_type != FileType::Directory {
            return Err("the root is no directory");
        }
        self.unwritten.see(ino, &record);
        self.nodes.push(node);
        Ok(())
    }

    fn name(&mut self, dir: u64, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let name = name_of(key);
        if name.is_empty() || name.len() > NAME_MAX || name == b"." || name == b".." || name.contains(&b'/') {
            return Err("it is no name");
        }
        let Some(quota) =
            self.node(dir).filter(|node| node.file_type == FileType::Directory).map(|node| node.quota)
        else {
            return Err("there is no such directory");
        };
        let (ino, bits) = record::named_type(value).ok_or("it cannot be read")?;
        let has_place = ino == ROOT_INO || self.places.contains_key(&ino);
        let node = self.node_mut(ino).ok_or("the inode to which it leads is not there")?;
        if node.file_type.mode_bits() != bits {
            return Err("it leads to an inode of another type");
        }
        if node.file_type == FileType::Directory {
            if has_place {
                return Err("the directory has another name already");
            }
            self.places.insert(ino, (dir, name.to_vec()));
        }
        if let Some(node) = self.node_mut(ino) {
            node.names += 1;
            node.is_held |= node.holder == Some(dir);
            if node.quota != quota {
                self.quotas.crossings.push((dir, ino));
            }
        }
        Ok(())
    }

    /// Looks at what only all records together show.
    fn judge(&mut self, report: &mut Report) {
        let mut fixes = Vec::new();
        if self.node(ROOT_INO).is_none() {
            report.find(Gravity::Damage, "there is no root directory");
        }
        let next = self.nodes.last().map_or(0, |node| node.ino).saturating_add(1);
        if self.numbers.is_none_or(|numbers| numbers < next) {
            report.find(Gravity::Count, format!("inode numbers should be below {:?}", self.numbers));
            fixes.push(Fix::Numbers(next));
        }
        for (place, owners) in &self.owners {
            report.find(
                Gravity::Count,
                format!("no record names the extent at {place:x}, and {owners} should"),
            );
            fixes.push(Fix::Owners(*place, 0, 0));
        }
        for node in &self.nodes {
            self.judge_node(node, report, &mut fixes);
        }
        self.judge_places(report, &mut fixes);
        self.judge_quotas(report, &mut fixes);
        self.unwritten.judge(&self.told, report);
        fixes.extend(self.unwritten.wrong().map(Fix::Unwritten));
        let owners = self.contents.iter().map(|(ino, _)| *ino).chain(self.attributed.iter().copied());
        let owners = owners.chain(self.cut_off.keys().copied());
        let owners: BTreeSet<u64> = owners.filter(|ino| self.node(*ino).is_none()).collect();
        for ino in owners.difference(&self.orphans) {
            report
                .find(Gravity::Damage, format!("contents or attributes of inode {ino}, which is not there"));
            fixes.push(Fix::Discard(*ino));
        }
        self.fixes.append(&mut fixes);
    }

    fn judge_node(&self, node: &Node, report: &mut Report, fixes: &mut Vec<Fix>) {
        let Node { ino, names, nlink, .. } = *node;
        // Only what is found is noted.
        let told = || self.told.mark(ino);
        if self.orphans.contains(&ino) {
            if names > 0 {
                report.find(Gravity::Damage, format!("{} has {names} names and counts as deleted", told()));
                fixes.push(Fix::Remove(Key::orphan(ino).to_vec()));
            }
            return;
        }
        let is_dir = node.file_type == FileType::Directory;
        if names == 0 && ino != ROOT_INO {
            report.find(Gravity::Damage, format!("{} has no name", told()));
            fixes.push(Fix::Adopt(ino));
        } else if !is_dir && names != nlink {
            report.find(Gravity::Count, format!("{} has {names} names, and says {nlink}", told()));
            fixes.push(Fix::Count(ino));
        }
        let pages = self.pages(ino);
        if pages > 0 && node.file_type != FileType::Regular {
            report.find(Gravity::Damage, format!("{} has contents and is no regular file", told()));
        } else if pages < node.pages {
            let lost = node.pages - pages;
            report.find(
                Gravity::Damage,
                format!("{lost} pages of {} are gone: a repair leaves zeros there", told()),
            );
            fixes.push(Fix::Count(ino));
        } else if pages > node.pages {
            report.find(Gravity::Count, format!("{} has {pages} pages, and says {}", told(), node.pages));
            fixes.push(Fix::Count(ino));
        }
        if let Some(holder) = node.holder.filter(|_| names > 0 && !node.is_held) {
            report.find(Gravity::Count, format!("{} has no name in inode {holder}, as it says", told()));
            fixes.push(Fix::Count(ino));
        }
        if node.xattrs && !node.has_xattrs {
            report.find(Gravity::Count, format!("{} has attributes, and says that it has none", told()));
            fixes.push(Fix::Count(ino));
        }
    }

    /// Each directory with a name must be reached from the root, or from a directory without a name.
    fn judge_places(&mut self, report: &mut Report, fixes: &mut Vec<Fix>) {
        let mut known = BTreeSet::new();
        let mut circles = Vec::new();
        for start in self.places.keys() {
            let (mut way, mut at) = (BTreeSet::new(), *start);
            while !known.contains(&at) && way.insert(at) {
                match self.places.get(&at) {
                    Some((parent, _)) => at = *parent,
                    None => break,
                }
            }
            // It came back to itself.
            if !known.contains(&at) && self.places.contains_key(&at) {
                circles.push(at);
            }
            known.append(&mut way);
        }
        for ino in circles {
            report.find(Gravity::Damage, format!("directory {ino} is below itself"));
            if let Some((parent, name)) = self.places.remove(&ino) {
                fixes.push(Fix::Remove(Key::name(parent, &name).to_vec()));
                if let Some(node) = self.node_mut(ino) {
                    (node.names, node.is_held) = (0, false);
                }
                fixes.push(Fix::Adopt(ino));
            }
        }
    }
}
