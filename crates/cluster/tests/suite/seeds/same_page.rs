//! Same page: programs of all nodes write one page of a file, many at once.

use super::{HANG, World};
use crate::fields;
use crate::history::call::DIRS;
use crate::seeds::kernel::Kernel;
use crate::seeds::program::opened;
use sluice_fuse::opcode;
use std::sync::{Arc, mpsc};

const O_WRONLY: u32 = 1;

/// The node of file `number`, which is made if it is not there.
fn find(kernel: &Kernel, number: usize) -> u64 {
    let name = format!("page-{number}");
    let nodeid = kernel.walk(DIRS[0]).expect("a directory");
    let dir = kernel.lock(nodeid);
    if let Some(found) = kernel.find(&dir, &name).expect("an answer") {
        return found;
    }
    let made = [fields!(0o100_644_u32, 0_u32, 0o22_u32, 0_u32), [name.as_bytes(), &[0]].concat()].concat();
    let answer = kernel.ask(opcode::MKNOD, nodeid, &made).map_err(drop).expect("it is made");
    kernel.learn(&dir, &name, &answer).expect("a node")
}

impl World {
    /// Each of so many `programs` of each node writes one of `files` so often. True if all end.
    pub(crate) fn write_same_pages(&self, files: usize, programs: usize, writes: u64) -> bool {
        let (ended, ends) = mpsc::channel();
        for machine in &self.machines {
            let nodes: Vec<_> = (0..files).map(|file| find(&machine.kernel, file)).collect();
            for program in 0..programs {
                let (kernel, nodeid) = (Arc::clone(&machine.kernel), nodes[program % files]);
                let ended = ended.clone();
                std::thread::spawn(move || {
                    let answer = kernel.ask(opcode::OPEN, nodeid, &fields!(O_WRONLY, 0_u32));
                    let (fh, is_direct) = opened(answer.map_err(drop).expect("open").body(), 0);
                    for write in 0..writes {
                        let at = (8 * program as u64, &write.to_le_bytes());
                        kernel.write(nodeid, fh, O_WRONLY, at, is_direct).expect("written");
                    }
                    // Nobody listens after a failure.
                    let _ = ended.send(());
                });
            }
        }
        (0..programs * self.machines.len()).all(|_| ends.recv_timeout(HANG).is_ok())
    }
}
