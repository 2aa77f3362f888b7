//! Compare: runs a sequence on two file systems and finds the first thing that they do not agree on.

use crate::executor::Executor;
use crate::host::{Host, HostRun, policy};
use crate::op::{Op, ProcessOp};
use crate::tree::{SnapshotNode, short, snapshot};
use crate::view::{Outcome, TimeView, Value};
use sluice_sync::thread;
use sluice_sync::time::Duration;
use sluice_vfs::{AtFlags, Errno, FileType};
use std::collections::BTreeSet;
use std::fmt;

/// Starts fresh runs of the file system under test.
pub trait Subject {
    /// A fresh, empty file system with its processes.
    ///
    /// # Errors
    /// One line that says what failed.
    fn start(&mut self) -> Result<Box<dyn Executor>, String>;

    /// True when the calls go through the kernel's FUSE client, which decides some things by itself: reads from
    /// its cache do not reach the server, so access times lag; directories seek as its generic code does; and
    /// which groups a writer is in, which decides whether set-group-ID stays, is not told to the server.
    fn is_mounted(&self) -> bool {
        false
    }

    /// True when its holes and blocks are as they should be, unless something else is said of a file.
    fn has_holes(&self) -> bool {
        true
    }
}

impl Subject for Host {
    fn start(&mut self) -> Result<Box<dyn Executor>, String> {
        Ok(Box::new(Host::start(self)?))
    }

    fn is_mounted(&self) -> bool {
        self.is_directory()
    }

    fn has_holes(&self) -> bool {
        Host::has_holes(self)
    }
}

/// A call that had another outcome.
#[derive(Clone, Debug)]
pub struct CallDifference {
    /// Index of the step in the sequence.
    pub index: usize,
    /// The step.
    pub step: ProcessOp,
    /// The outcome on the host's tmpfs.
    pub host: Outcome,
    /// The outcome on the subject.
    pub subject: Outcome,
}

/// Where the two disagree.
#[derive(Clone, Debug)]
pub enum Difference {
    /// A call had another outcome.
    Call(Box<CallDifference>),
    /// The final trees differ in this name.
    Tree {
        /// The host's file of that name, if any.
        host: Option<SnapshotNode>,
        /// The subject's file of that name, if any.
        subject: Option<SnapshotNode>,
    },
    /// All is equal, but the subject's own check finds something wrong.
    Disorder(String),
}

impl Difference {
    /// The kind of difference, so that the shrinker does not wander off to another defect.
    pub fn kind(&self) -> String {
        match self {
            Difference::Call(call) => {
                let text = call.step.op.to_string();
                let name = text.split(' ').next().unwrap_or_default().to_string();
                let side = |outcome: &Outcome| match outcome {
                    Ok(_) => "success".to_string(),
                    Err(errno) => format!("{errno:?}"),
                };
                format!("{name}: {} against {}", side(&call.host), side(&call.subject))
            }
            Difference::Tree { .. } => "final tree".to_string(),
            Difference::Disorder(_) => "disorder".to_string(),
        }
    }
}

impl Difference {
    /// True when it is only about whether a time of the clock changed.
    fn is_of_clocks(&self) -> bool {
        let alike = |host: &Outcome, subject: &Outcome| match (host, subject) {
            (Ok(Value::Stat(host)), Ok(Value::Stat(subject))) => {
                host.without_clock() == subject.without_clock()
            }
            _ => host == subject,
        };
        match self {
            Difference::Call(call) => alike(&call.host, &call.subject),
            Difference::Tree { host: Some(host), subject: Some(subject) } => {
                let pairs = host.facts.iter().zip(&subject.facts);
                host.facts.len() == subject.facts.len() && pairs.into_iter().all(|(h, s)| alike(&h.1, &s.1))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Call(call) => {
                writeln!(f, "step {}: {}", call.index, call.step)?;
                writeln!(f, "  tmpfs says   {}", short(&call.host))?;
                write!(f, "  subject says {}", short(&call.subject))
            }
            Difference::Tree { host, subject } => {
                let side = |node: &Option<SnapshotNode>| {
                    node.as_ref().map_or("nothing".into(), SnapshotNode::to_string)
                };
                writeln!(f, "the final trees differ")?;
                writeln!(f, "  tmpfs has   {}", side(host))?;
                write!(f, "  subject has {}", side(subject))
            }
            Difference::Disorder(what) => write!(f, "all is equal, but {what}"),
        }
    }
}

/// Runs `steps` on tmpfs and on the subject, step by step, and compares the outcomes and at last the trees.
///
/// Either clock may stand still between a look at a time and its change, so that it seems not to have
/// changed. A difference that may come from that is looked at again with pauses.
///
/// # Errors
/// One line, when a run could not be started.
pub fn compare(
    steps: &[ProcessOp],
    tmpfs: &mut Host,
    subject: &mut dyn Subject,
) -> Result<Option<Difference>, String> {
    let difference = compare_once(steps, tmpfs, subject, Duration::ZERO)?;
    match &difference {
        Some(found) if found.is_of_clocks() => compare_once(steps, tmpfs, subject, CLOCK_TICK),
        _ => Ok(difference),
    }
}

/// Longer than any clock stands still.
const CLOCK_TICK: Duration = Duration::from_millis(11);

fn compare_once(
    steps: &[ProcessOp],
    tmpfs: &mut Host,
    subject: &mut dyn Subject,
    pause: Duration,
) -> Result<Option<Difference>, String> {
    let mounted = subject.is_mounted();
    let leaves_out_links = mounted && policy("protected_hardlinks");
    let mut host: HostRun = tmpfs.start()?;
    let mut other = subject.start()?;
    let mut privileged = Privileged::default();
    for (index, step) in steps.iter().enumerate() {
        let is_link_of_a_user = privileged.is_link_of_a_user(step) && leaves_out_links;
        if is_link_of_a_user || (mounted && is_up_to_the_client(&step.op)) {
            continue;
        }
        let (mut said, mut answer) = (host.run(step), other.run(step));
        if mounted {
            forget_what_the_client_decides(step, &mut said, &mut answer);
        }
        if said != answer {
            let call = CallDifference { index, step: step.clone(), host: said, subject: answer };
            return Ok(Some(Difference::Call(Box::new(call))));
        }
        if !pause.is_zero() && matches!(said, Ok(Value::Stat(_))) {
            thread::sleep(pause);
        }
    }
    let (mut left, mut right) = (snapshot(&mut host), snapshot(&mut *other));
    if mounted {
        left.iter_mut()
            .chain(&mut right)
            .flat_map(|node| &mut node.facts)
            .for_each(|fact| forget_what_lags(&mut fact.1));
    }
    let difference = first_difference(left, right);
    Ok(difference.or_else(|| other.finish().err().map(Difference::Disorder)))
}

/// The FUSE client sends a change of nothing when it wants set-ID bits cleared, so a `chown` of nothing does that too,
/// for every caller; and it does not say that the removal of an ACL should clear them. With `STATX_DONT_SYNC` it
/// answers from its cache even if the cached attributes are old.
fn is_up_to_the_client(op: &Op) -> bool {
    const ACL: &[u8] = b"system.posix_acl_access";
    const EMPTY_ACL: usize = 4;
    match op {
        Op::Chown { uid: None, gid: None, .. } | Op::Fchown { uid: None, gid: None, .. } => true,
        Op::Stat { flags, .. } | Op::Statx { flags, .. } => flags.contains(AtFlags::STATX_DONT_SYNC),
        Op::RemoveXattr { name, .. } => name.0 == ACL,
        Op::SetXattr { name, value, .. } => name.0 == ACL && value.0.len() <= EMPTY_ACL,
        _ => false,
    }
}

/// Which processes may link everything: at first the first one, then its copies.
struct Privileged(BTreeSet<usize>);

impl Default for Privileged {
    fn default() -> Self {
        Privileged(BTreeSet::from([0]))
    }
}

impl Privileged {
    /// Whether `step`, which comes next, is a link that a user makes. `protected_hardlinks` looks at set-ID bits, in which a mount may differ
    /// ([`Subject::is_mounted`]), and at the mode that the client has cached, though an ACL or a write has changed it since.
    fn is_link_of_a_user(&mut self, step: &ProcessOp) -> bool {
        let is_privileged = self.0.contains(&step.process);
        match step.op {
            Op::Link { .. } => return !is_privileged,
            Op::Fork { child } if is_privileged => drop(self.0.insert(child)),
            Op::Fork { child } if child != step.process => drop(self.0.remove(&child)),
            _ => {}
        }
        false
    }
}

/// See [`Subject::is_mounted`].
fn forget_what_the_client_decides(step: &ProcessOp, host: &mut Outcome, subject: &mut Outcome) {
    forget_what_lags(host);
    forget_what_lags(subject);
    let seeks_directory = |outcome: &Outcome| outcome == &Ok(Value::Free) || outcome == &Err(Errno::EINVAL);
    // The client does not ask the server to change nothing, and the server it is that clears set-ID bits.
    let changes_nothing =
        matches!(step.op, Op::Chown { uid: None, gid: None, .. } | Op::Fchown { uid: None, gid: None, .. });
    if changes_nothing && host == &Err(Errno::EPERM) {
        host.clone_from(subject);
    }
    if matches!(step.op, Op::Lseek { .. }) && (seeks_directory(host) || seeks_directory(subject)) {
        host.clone_from(subject);
    }
}

fn forget_what_lags(outcome: &mut Outcome) {
    const SET_GROUP_ID: u32 = 0o2000;
    // The client answers an OFD question with -1 for a process, whichever owner holds the lock.
    if let Ok(Value::Lock(Some(lock))) = outcome {
        lock.ofd = false;
    }
    if let Ok(Value::Stat(stat)) = outcome {
        stat.atime = TimeView::Clock;
        if FileType::from_mode(stat.mode.0) == Some(FileType::Regular) {
            stat.mode.0 &= !SET_GROUP_ID;
        }
    }
}

fn first_difference(left: Vec<SnapshotNode>, right: Vec<SnapshotNode>) -> Option<Difference> {
    let length = left.len().max(right.len());
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    (0..length).find_map(|_| {
        let (host, subject) = (left.next(), right.next());
        (host != subject).then_some(Difference::Tree { host, subject })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::from_text;

    #[test]
    fn a_link_is_that_of_a_user_also_where_one_has_taken_the_first_process_place() {
        let mut privileged = Privileged::default();
        let mut is_link_of_a_user = |process, op: &str| {
            let steps = from_text(&format!("{process} {op}")).expect("a step");
            privileged.is_link_of_a_user(&steps[0])
        };
        let link = "link cwd \"a\" cwd \"b\" -";
        assert!(!is_link_of_a_user(0, link) && is_link_of_a_user(1, link));
        assert!(!is_link_of_a_user(0, "fork 1") && !is_link_of_a_user(1, link));
        assert!(!is_link_of_a_user(2, "fork 0") && is_link_of_a_user(0, link));
        assert!(!is_link_of_a_user(1, link), "a copy of the first one");
    }
}
