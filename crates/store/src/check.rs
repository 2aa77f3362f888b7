//! Check: does a store hold together? The store's half of `fsck`.
//!
//! # Theory
//! Nothing is changed: the store is recovered in memory, on an [`OverlayDisk`], and then looked at whole:
//! 1. `super`: magic, version, checksum, length;
//! 2. the tree: the checksums of its pages, then of its records;
//! 3. the log: the batches behind the tree's position, and what follows them. A batch that a crash cut off is a
//!    [`Gravity::Note`]; one that can only have been damaged afterwards (`tail.rs`) is damage, and what later batches changed is lost;
//! 4. the segments: each extent that records name lies within one segment, beside no other, and is what was written;
//!    the blocks of all are as many as the table says. The file system states the number of owners of an extent that
//!    several records name.
//!
//! # Cost
//! Each file is read once, an extent's blocks once however many records name them. In memory: what recovery changes, and
//! twelve bytes for each extent. At most [`FINDINGS_MAX`](crate::FINDINGS_MAX) findings are kept.

use crate::disk::{Disk, OverlayDisk};
use crate::engine::{Engine, RedbEngine};
use crate::format::{KEYS, KEYS_COPY, LOG, SUPER, SUPER_SIZE, TREE, TREE_COPY};
use crate::log::Log;
use crate::mutant::Planted;
use crate::open::read_super;
use crate::recovery::{Behind, DamagedLog, recover};
use crate::report::{DamagedFile, Gravity, Progress, Report};
use crate::segments::{SEGMENTS_MAX, Segments, Span, Table, blocks_of, name};
use crate::tail::TailState;
use crate::{Extent, Store, StoreError};
use sluice_sync::Arc;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of the tree that a check keeps in memory.
const CACHE: usize = 16 << 20;
/// Bytes of the log in memory while the log is cut off.
const CUT_MEMORY: u64 = 64 << 20;

/// The file system whose records these are, as far as a check needs it.
pub trait Look {
    /// Takes a record, and tells `report` what is wrong with it. Each is shown once, in the order of the keys.
    fn see(&mut self, key: &[u8], value: &[u8], report: &mut Report);

    /// Keys of records that it has to see once more before the [`end`](Self::end).
    fn wanted(&self) -> Vec<Range<Vec<u8>>> {
        Vec::new()
    }

    /// Takes a record that it [wanted](Self::wanted).
    fn see_wanted(&mut self, _key: &[u8], _value: &[u8]) {}

    /// All records were shown: tells `report` what only all together show.
    fn end(&mut self, _report: &mut Report) {}

    /// Takes each record once more, at the end of a check that found something.
    fn see_again(&mut self, _key: &[u8], _value: &[u8]) {}

    /// Takes a record of the log that cannot be applied, because an earlier batch is damaged. Without a value, the record removes
    /// its key or changes a part of its value.
    fn see_lost(&mut self, _key: &[u8], _value: Option<&[u8]>) {}

    /// For a person, a line for each thing whose changes are [lost](Self::see_lost).
    fn lost(&self) -> Vec<String> {
        Vec::new()
    }

    /// A description of a record for a person.
    fn describe(&self, key: &[u8]) -> String;

    /// Whether both keys are of one file, of which a check tells the first damaged place and the number of the others.
    fn is_same_file(&self, _key: &[u8], _other: &[u8]) -> bool {
        false
    }

    /// The extents that a record names; none if it is damaged.
    fn extents(&self, key: &[u8], value: &[u8]) -> Vec<Extent>;

    /// Takes a record, after all were shown, that names what is none, or a part of what a record shown before names: it must go.
    fn refuse(&mut self, _key: &[u8], _value: &[u8]) {}

    /// Takes, after all were shown, how many `records` name the extent at `place` ([`Extent::place`]), which takes `bytes`. Each
    /// extent is shown once, in the order of their places.
    fn count(&mut self, _place: u64, _bytes: u64, _records: u64, _report: &mut Report) {}
}

impl Store {
    /// Looks at the whole store on `disk`, which is not changed. `look` sees the records as of recovery; `progress` is
    /// called now and then.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`], [`StoreError::NewerFormat`], and the disk's. Damage in the store is a finding, not an
    /// error.
    pub fn check(
        disk: Arc<dyn Disk>,
        look: &mut dyn Look,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, StoreError> {
        let mut report = Report::default();
        let disk: Arc<dyn Disk> = Arc::from(Box::new(OverlayDisk::new(disk)) as Box<dyn Disk>);
        let Some(found) = report.passed(read_super(&*disk))? else { return Ok(report) };
        report.log_size = found.log_size;
        names(&*disk, &mut report)?;
        progress(Progress { part: "tree", done: 0, of: 0 });
        let Some(tree) = opened(&*disk, TREE, &mut report)? else { return Ok(report) };
        let Some(mut engine) = report.passed(RedbEngine::open(tree, disk.cipher(), CACHE))? else {
            return Ok(report);
        };
        if report.passed(engine.check())?.is_none() {
            return Ok(report);
        }
        let Some(log) = opened(&*disk, LOG, &mut report)? else { return Ok(report) };
        let log = Log::new(log, found.log_size, found.uuid, Planted::default());
        let Some(log) = report.passed(log)?.map(|log| log.with(disk.cipher())) else { return Ok(report) };
        let blocks = blocks_of(found.segment_size);
        let behind = Behind::of(&engine, log.size(), blocks);
        let Some(behind) = report.passed(behind)? else { return Ok(report) };
        let tail = walk(&log, &behind, look, &mut report, progress);
        report.passed(tail)?;
        let recovered = recover(&log, &engine, blocks, (u64::MAX, Planted::default()), DamagedLog::CutOff);
        let Some(Behind { table, .. }) = report.passed(recovered)? else { return Ok(report) };
        progress(Progress { part: "records", done: 0, of: 0 });
        let extents = records(&engine, blocks, look, &mut report, progress);
        let Some((extents, mut shared)) = report.passed(extents)? else { return Ok(report) };
        report.whole = true;
        counts(&extents, &table, &mut report);
        let segments = Segments::open(disk, (blocks, 1, false), Table::default(), Planted::default());
        data_of((&engine, &segments, &|_, _| Ok(true)), &mut shared, look, &mut report, progress)?;
        show_again(&engine, look, &mut report);
        Ok(report)
    }

    /// Checks a store [over](Self::over) the engine that `open` opens for the check, and `data` with
    /// segments of this size. The store may be in use: a suspected fault is checked again against the current state,
    /// and counts are compared if nothing has changed.
    ///
    /// # Errors
    /// Errors of [`check`](Self::check), and those of `open`.
    pub fn check_over(
        open: impl Fn() -> Result<Box<dyn Engine>, StoreError>,
        data: Option<(Arc<dyn Disk>, u64)>,
        look: &mut dyn Look,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, StoreError> {
        let mut report = Report::default();
        let blocks = data.as_ref().map_or(0, |(_, segment_size)| blocks_of(*segment_size));
        let Some(engine) = report.passed(open())? else { return Ok(report) };
        let behind = Behind::of(&*engine, u64::MAX, blocks);
        if let Some(Behind { position, table }) = report.passed(behind)? {
            let found = records(&*engine, blocks, look, &mut report, progress);
            if let Some((extents, mut shared)) = report.passed(found)? {
                report.whole = true;
                let is_same = |now: Behind| now.position == position;
                if again(&open, |engine| Behind::of(engine, u64::MAX, blocks)).is_ok_and(is_same) {
                    counts(&extents, &table, &mut report);
                }
                if let Some((disk, _)) = data {
                    let segments =
                        Segments::open(disk, (blocks, 1, false), Table::default(), Planted::default());
                    let stands = |key: &[u8], value: &[u8]| {
                        again(&open, |engine| Ok(engine.get(key)?.as_deref() == Some(value)))
                    };
                    data_of((&*engine, &segments, &stands), &mut shared, look, &mut report, progress)?;
                }
                show_again(&*engine, look, &mut report);
            }
        }
        engine.close();
        Ok(report)
    }

    /// Gives up what the damaged log of the store on `disk` has behind the damage, and finishes a recovery.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn cut_log(disk: &dyn Disk) -> Result<(), StoreError> {
        let (log, engine, blocks) = parts(disk)?;
        recover(&log, &engine, blocks, (CUT_MEMORY, Planted::default()), DamagedLog::CutOff).map(drop)
    }

    /// Mends the counts of the store, after what `look` says the records name. To be called after a check that found no
    /// [`Gravity::Damage`], while nobody changes the store.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn mend_counts(&self, look: &mut dyn Look) -> Result<(), StoreError> {
        let core = &*self.core;
        core.write_out()?;
        let engine = &*core.engine;
        let blocks = core.segments.blocks();
        let mut behind = Behind::of(engine, u64::MAX, blocks)?;
        let mut report = Report::default();
        let (extents, _) = records(engine, blocks, look, &mut report, &mut |_| ())?;
        if report.worst() == Some(Gravity::Damage) {
            return Err(StoreError::Damaged("records name what cannot be".into()));
        }
        let mut table = Table::named(&extents);
        // Extents that were written up to there may still get a record: an end never decreases.
        for (one, former) in table.uses.iter_mut().zip(&behind.table.uses) {
            one.end = one.end.max(former.end);
        }
        behind.table = table;
        engine.apply(&crate::Batch::default(), &behind.encode())?;
        core.segments.applied(behind.table, &[]);
        Ok(())
    }
}

/// The log and the tree of the store on `disk`, and how many blocks its segments have.
fn parts(disk: &dyn Disk) -> Result<(Log, RedbEngine, u32), StoreError> {
    let found = read_super(disk)?;
    let open = |name: &str| disk.open(name).map_err(StoreError::io("open the store"));
    let log = Log::new(open(LOG)?, found.log_size, found.uuid, Planted::default())?.with(disk.cipher());
    let engine = RedbEngine::open(open(TREE)?, disk.cipher(), CACHE)?;
    Ok((log, engine, blocks_of(found.segment_size)))
}

/// Finds foreign files in the store's directory, and a `super` that is too long.
fn names(disk: &dyn Disk, report: &mut Report) -> Result<(), StoreError> {
    let segment = |found: &str| {
        let number = found.strip_prefix("segment-").and_then(|number| u32::from_str_radix(number, 16).ok());
        number.is_some_and(|number| number < SEGMENTS_MAX && name(number) == found)
    };
    let all = disk.names().map_err(StoreError::io("list the store's files"))?;
    for found in all.iter().filter(|found| {
        ![SUPER, LOG, TREE, TREE_COPY, KEYS, KEYS_COPY].contains(&&***found) && !segment(found)
    }) {
        report.find(Gravity::Note, format!("`{found}` is no file of a store"));
    }
    let size = disk.open(SUPER).and_then(|file| file.size()).map_err(StoreError::io("look at `super`"))?;
    if size != SUPER_SIZE as u64 {
        report.find(Gravity::Note, format!("`super` has {size} bytes and not {SUPER_SIZE}"));
    }
    Ok(())
}

/// Opens a file that must be there.
fn opened(
    disk: &dyn Disk,
    name: &'static str,
    report: &mut Report,
) -> Result<Option<Arc<dyn crate::disk::DiskFile>>, StoreError> {
    report.passed(disk.open(name).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => StoreError::Damaged(format!("`{name}` is missing")),
        _ => StoreError::io("open the store")(error),
    }))
}

/// Walks the batches behind the tree's position, and looks at what follows them.
fn walk(
    log: &Log,
    behind: &Behind,
    look: &mut dyn Look,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), StoreError> {
    let mut position = behind.position;
    while let Some((_, next)) = log.read(position)? {
        report.batches += 1;
        report.log_used += log.distance(position, next);
        position = next;
        progress(Progress { part: "log", done: report.log_used, of: log.size() });
    }
    let sequence = position.sequence;
    let tail = log.tail(position)?;
    match tail.state {
        TailState::Nothing => {}
        TailState::CutOff => report.find(
            Gravity::Note,
            format!("the log ends with a part of batch {sequence}: a crash cut it off, or it is damaged"),
        ),
        TailState::Damaged(how) => {
            report.find(Gravity::Damage, format!("the log: {how}"));
            for (_, batch) in log.later_than(sequence)? {
                batch.unmerged().for_each(|(key, value)| look.see_lost(key, value));
            }
            for what in look.lost() {
                report.find(Gravity::Damage, format!("lost with it: {what}"));
            }
        }
    }
    Ok(())
}

/// The extents that several records name; of each, once it was read, what a record says of it, and what was wrong.
type SharedSpans = BTreeMap<Span, Option<(Extent, Option<String>)>>;

/// Shows all records to `look`: the spans that they name, sorted, each once, and which of them several name.
fn records(
    engine: &dyn Engine,
    blocks: u32,
    look: &mut dyn Look,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Vec<Span>, SharedSpans), StoreError> {
    let (mut spans, mut shared) = (Vec::new(), SharedSpans::new());
    each_record(engine, &mut |key, value| {
        report.records += 1;
        look.see(key, value, report);
        spans.extend(look.extents(key, value).iter().map(Extent::span));
        if report.records.is_multiple_of(4096) {
            progress(Progress { part: "records", done: report.records, of: 0 });
        }
    })?;
    spans.sort_unstable();
    for same in spans.chunk_by(|one, next| one == next) {
        look.count(same[0].place(), same[0].bytes(), same.len() as u64, report);
        if same.len() > 1 {
            shared.insert(same[0], None);
        }
    }
    spans.dedup();
    let doubtful = doubtful(&mut spans, blocks, report);
    if !doubtful.is_empty() {
        refuse(engine, look, doubtful)?;
    }
    report.extents = spans.len() as u64;
    report.data_bytes = spans.iter().map(|span| span.bytes()).sum();
    Ok((spans, shared))
}

/// Removes from the sorted `spans` those that lie in no segment, and returns these and all that overlap other spans,
/// each with whether it could be right.
fn doubtful(spans: &mut Vec<Span>, blocks: u32, report: &mut Report) -> BTreeMap<Span, bool> {
    let mut doubtful = BTreeMap::new();
    spans.retain(|span| {
        let sound = span.segment < SEGMENTS_MAX
            && span.block.checked_add(span.blocks).is_some_and(|end| end <= blocks);
        if !sound {
            doubtful.insert(*span, false);
            report.find(
                Gravity::Damage,
                format!("a record names block {} of segment {}, which is none", span.block, span.segment),
            );
        }
        sound
    });
    // The one so far that reaches furthest.
    let mut furthest: Option<Span> = None;
    for span in spans.iter() {
        match furthest {
            Some(before) if before.segment == span.segment && span.block < before.end() => {
                doubtful.extend([(before, true), (*span, true)]);
                report.find(
                    Gravity::Damage,
                    format!("two records name block {} of `{}`", span.block, name(span.segment)),
                );
                if span.end() > before.end() {
                    furthest = Some(*span);
                }
            }
            _ => furthest = Some(*span),
        }
    }
    doubtful
}

/// Refuses the records that name `doubtful` spans; of several that name the same blocks all but the first.
fn refuse(
    engine: &dyn Engine,
    look: &mut dyn Look,
    doubtful: BTreeMap<Span, bool>,
) -> Result<(), StoreError> {
    let mut taken: BTreeSet<Span> = BTreeSet::new();
    each_record(engine, &mut |key, value| {
        for span in look.extents(key, value).iter().map(Extent::span) {
            let Some(could_be_right) = doubtful.get(&span) else { continue };
            // Taken spans do not overlap: only the last span that begins before this span's end can overlap it.
            let end = Span { block: span.end(), blocks: 0, ..span };
            let before = taken.range(..end).next_back();
            let is_taken = before
                .is_some_and(|one| one.segment == span.segment && one.end() > span.block && *one != span);
            if is_taken || !could_be_right {
                look.refuse(key, value);
            } else {
                taken.insert(span);
            }
        }
    })
}

/// Compares what records name with the table.
fn counts(extents: &[Span], table: &Table, report: &mut Report) {
    let named = Table::named(extents);
    for segment in 0..named.uses.len().max(table.uses.len()) {
        let live = |table: &Table| table.uses.get(segment).map_or(0, |one| one.live);
        let end = |table: &Table| table.uses.get(segment).map_or(0, |one| one.end);
        if live(&named) != live(table) || end(&named) > end(table) {
            let (is, says) = (live(&named), live(table));
            report.find(
                Gravity::Count,
                format!("records name {is} blocks of `{}`, the tree says {says}", name(segment as u32)),
            );
        }
    }
}

/// Whether a record still has this value.
type Stands<'s> = dyn Fn(&[u8], &[u8]) -> Result<bool, StoreError> + 's;

/// The result of `ask` on the engine's current state.
fn again<T>(
    open: &impl Fn() -> Result<Box<dyn Engine>, StoreError>,
    ask: impl FnOnce(&dyn Engine) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let engine = open()?;
    let found = ask(&*engine);
    engine.close();
    found
}

/// Reads all data once. A mismatch is a finding if the record that names the extent still stands.
fn data_of(
    (engine, segments, stands): (&dyn Engine, &Segments, &Stands<'_>),
    shared: &mut SharedSpans,
    look: &dyn Look,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), StoreError> {
    let (of, mut done, mut buf) = (report.data_bytes, 0, Vec::new());
    let (mut failed, mut file) = (None, None::<DamagedFile>);
    each_record(engine, &mut |key, value| {
        for extent in look.extents(key, value) {
            // Extents that overlap, which is damage already, must not multiply the work.
            if failed.is_some() || done >= of || extent.span().end() > segments.blocks() {
                return;
            }
            // A shared extent is read once, if its records agree on its checksums.
            let read = shared.get_mut(&extent.span());
            let wrong = match &read {
                Some(Some((read, wrong))) if *read == extent => wrong.clone(),
                _ => match unlike(segments, &extent, &mut buf) {
                    Ok(wrong) => {
                        done += extent.allocated();
                        wrong
                    }
                    Err(error) => {
                        failed = Some(error);
                        return;
                    }
                },
            };
            let wrong = match wrong.map(|what| Ok(stands(key, value)?.then_some(what))).transpose() {
                Ok(wrong) => wrong.flatten(),
                Err(error) => {
                    failed = Some(error);
                    return;
                }
            };
            if let Some(what) = &wrong {
                match &mut file {
                    Some(file) if look.is_same_file(&file.key, key) => file.others += 1,
                    before => {
                        let first = format!("{}: {what}", look.describe(key));
                        let found = before.replace(DamagedFile { key: key.to_vec(), first, others: 0 });
                        found.into_iter().for_each(|file| file.tell(report));
                    }
                }
            }
            if let Some(read) = read {
                *read = Some((extent, wrong));
            }
            progress(Progress { part: "data", done, of });
        }
    })?;
    file.into_iter().for_each(|file| file.tell(report));
    failed.map_or(Ok(()), Err)
}

/// The first mismatch of `extent` with its checksums, if any.
fn unlike(segments: &Segments, extent: &Extent, buf: &mut Vec<u8>) -> Result<Option<String>, StoreError> {
    for start in (0..extent.len()).step_by(1 << 20) {
        buf.resize((extent.len() - start).min(1 << 20) as usize, 0);
        match segments.read(extent, start, buf) {
            Ok(()) => {}
            Err(StoreError::Damaged(what)) => return Ok(Some(what)),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Shows what is wanted, ends the look at records, and shows all once more if something was found. Unreadable records have
/// been reported before.
fn show_again(engine: &dyn Engine, look: &mut dyn Look, report: &mut Report) {
    for keys in look.wanted() {
        let _ = engine.scan(&keys.start, &keys.end, &mut |key, value| {
            look.see_wanted(key, value);
            true
        });
    }
    look.end(report);
    if report.found > 0 {
        let _ = each_record(engine, &mut |key, value| look.see_again(key, value));
    }
}

fn each_record(engine: &dyn Engine, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
    // No key is longer.
    let last = [0xff; crate::KEY_MAX + 1];
    engine.scan(&[], &last, &mut |key, value| {
        visit(key, value);
        true
    })
}
