//! Executor: runs steps on behalf of several users.

use crate::op::ProcessOp;
use crate::sys;
use crate::view::Outcome;
use sluice_vfs::Caps;

/// A file system with its processes, ready for one sequence.
pub trait Executor {
    /// Runs one step.
    fn run(&mut self, step: &ProcessOp) -> Outcome;
    /// Number of processes, the inspector included, which is the last one.
    fn processes(&self) -> usize;
    /// Ends the run: what is left must be in order.
    ///  # Errors The disorder that was found.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
    /// The inspector: a process of the superuser (of the tester, when confined) that no generated step uses.
    fn inspector(&self) -> usize {
        self.processes() - 1
    }
}

/// The user that a process runs as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// The capabilities in effect for the tester: a confined superuser, as in a container, does not have all.
pub fn tester_caps() -> Caps {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    Caps::from_bits_truncate(bits.unwrap_or(0))
}

/// The groups and users that the generator uses, so that they overlap.
pub const GROUPS: [u32; 3] = [1000, 1001, 2000];

/// The users of a run's processes, the inspector last. A confined run has only the tester himself.
pub fn process_users(confined: bool) -> Vec<User> {
    let user = |uid, gid, groups: &[u32]| User { uid, gid, groups: groups.to_vec() };
    if confined {
        let (uid, gid, groups) = sys::current_user().unwrap_or((0, 0, Vec::new()));
        let me = User { uid, gid, groups };
        return vec![me.clone(), me];
    }
    vec![
        user(0, 0, &[]),
        user(1000, 1000, &[2000]),
        user(1001, 1001, &[1000, 2000]),
        user(1002, 2000, &[]),
        user(0, 0, &[]),
    ]
}
