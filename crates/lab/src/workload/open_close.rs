//! Open and close: how fast a file is found and a descriptor made and given back.

use super::place::{FilePlace, Spot, make_dir};
use super::{Seat, Task, wrong};
use crate::target::{CallResult, Calls, Open, Target, read_file, remove_tree};
use sluice_console::failure::Result;
use sluice_sync::random::Random;

/// Directories above a deep file.
const DEPTH: usize = 5;
/// Subdirectories of each directory above the many deep files.
const FAN_OUT: usize = 2;

pub(super) fn flat(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    Box::new(OpenClose { dirs: Vec::new(), files: vec![seat.spot(place)], random: Random::new(1) })
}

/// A file five directories deep, one's own or the one of all.
pub(super) fn deep(seat: &Seat, place: FilePlace) -> Box<dyn Task> {
    let shared = place == FilePlace::Same;
    let mut dir = if shared { &seat.shared } else { &seat.dir }.clone();
    let dirs = std::iter::repeat_with(|| {
        dir.push_str("/d");
        dir.clone()
    });
    let dirs: Vec<String> = dirs.take(DEPTH).collect();
    let file = Spot { path: format!("{dir}/file"), shared };
    Box::new(OpenClose { dirs, files: vec![file], random: Random::new(1) })
}

/// All files of a tree of five levels that is there for all, in a random order of one's own.
pub(super) fn deep_many(seat: &Seat) -> Box<dyn Task> {
    let (mut dirs, mut level) = (Vec::new(), vec![seat.shared.clone()]);
    for _ in 0..DEPTH {
        level = level.iter().flat_map(|dir| (0..FAN_OUT).map(move |n| format!("{dir}/d{n}"))).collect();
        dirs.extend(level.iter().cloned());
    }
    let files = level.iter().map(|dir| Spot { path: format!("{dir}/file"), shared: true }).collect();
    Box::new(OpenClose { dirs, files, random: Random::new(seat.index as u64) })
}

struct OpenClose {
    dirs: Vec<String>, // above the files, outermost first
    files: Vec<Spot>,
    random: Random, // picks a file
}

impl OpenClose {
    fn pick(&mut self) -> &Spot {
        &self.files[self.random.below(self.files.len())]
    }
}

impl Task for OpenClose {
    fn prepare(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.dirs.iter().try_for_each(|dir| make_dir(calls, dir))?;
        self.files.iter().try_for_each(|file| file.make(calls, b"contents", 0))
    }

    fn step(&mut self, calls: &mut dyn Calls) -> CallResult<bool> {
        let file = calls.open(&self.pick().path, Open::ReadWrite)?;
        calls.close(file)?;
        Ok(true)
    }

    fn verify(&mut self, calls: &mut dyn Calls, _: &dyn Target) -> Result<()> {
        for file in &self.files {
            let contents = read_file(calls, &file.path)?;
            if contents != b"contents" {
                return wrong(format!("{} holds {} bytes of something else", file.path, contents.len()));
            }
        }
        Ok(())
    }

    fn tidy(&mut self, calls: &mut dyn Calls) -> CallResult<()> {
        self.files.iter().try_for_each(|file| file.remove(calls))?;
        match self.dirs.first() {
            Some(top) if !self.files[0].shared => remove_tree(calls, top),
            _ => Ok(()),
        }
    }
}
