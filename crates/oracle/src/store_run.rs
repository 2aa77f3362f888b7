//! Store run: runs steps in process on a file system that survives; in the end it is closed and opened again, and must show the
//! same tree.

use crate::compare::Subject;
use crate::executor::Executor;
use crate::lib_exec::{LibRun, options};
use crate::op::ProcessOp;
use crate::tree::{SnapshotNode, snapshot};
use crate::view::{Outcome, Value};
use sluice_store::disk::Disk;
use sluice_store::disk::crash::CrashDisk;
use sluice_sync::Arc;
use sluice_vfs::{Options, StoreOptions, Superblock};

/// Starts durable file systems, on disks in memory.
#[derive(Clone, Copy, Debug)]
pub struct OnStore {
    /// Only the tester works on it: see the `host` module.
    pub confined: bool,
}

/// One run on a durable file system.
struct StoreRun {
    run: LibRun,
    disk: CrashDisk,
    confined: bool,
}

impl Subject for OnStore {
    fn start(&mut self) -> Result<Box<dyn Executor>, String> {
        let disk = CrashDisk::new();
        let superblock = Superblock::create_on(shared(&disk), small(self.confined));
        let superblock = superblock.map_err(|error| error.to_string())?;
        let run = LibRun::on(superblock, self.confined);
        Ok(Box::new(StoreRun { run, disk, confined: self.confined }))
    }
}

/// As in memory, with a store that goes round its log quickly.
fn small(confined: bool) -> Options {
    let store = StoreOptions::default().log_size(256 << 10).cache(1 << 20).background(false);
    options(confined).store(store)
}

fn shared(disk: &CrashDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// The tree, without what a store does not keep: access times, and storage that was reserved and never written.
fn lasting(run: &mut LibRun) -> Vec<SnapshotNode> {
    let mut nodes = snapshot(run);
    for (_, outcome) in nodes.iter_mut().flat_map(|node| &mut node.facts) {
        if let Ok(Value::Stat(stat)) = outcome {
            stat.blocks = None;
            stat.atime = stat.ctime.clone();
        }
    }
    nodes
}

impl Executor for StoreRun {
    fn run(&mut self, step: &ProcessOp) -> Outcome {
        self.run.run(step)
    }

    fn processes(&self) -> usize {
        self.run.processes()
    }

    fn finish(&mut self) -> Result<(), String> {
        self.run.finish()?;
        let superblock = self.run.fs().superblock().clone();
        let before = lasting(&mut LibRun::on(superblock.clone(), self.confined));
        superblock.close().map_err(|error| format!("it cannot be closed: {error}"))?;
        let disk = CrashDisk::with(self.disk.files());
        let opened = Superblock::open_on(shared(&disk), small(self.confined));
        let mut again = LibRun::on(opened.map_err(|error| error.to_string())?, self.confined);
        let after = lasting(&mut again);
        let differs = before.iter().zip(&after).find(|(before, after)| before != after);
        if let Some((before, after)) = differs {
            return Err(format!("opened again, it shows\n  {after}\ninstead of\n  {before}"));
        }
        if before.len() != after.len() {
            return Err(format!("opened again, it has {} names instead of {}", after.len(), before.len()));
        }
        again.finish()
    }
}
