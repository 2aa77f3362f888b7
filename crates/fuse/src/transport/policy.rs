//! Policy: which transport a mount gets, and whether its threads are scheduled behind its clients.
//!
//! # Theory
//! Over io_uring each CPU has a queue and a thread that stays there, so that a request is answered where it was made. The
//! answer wakes the client. If the scheduler finds another CPU idle it moves the client there, away from its data and from
//! the queue that it used; it does not while the CPU that it left runs nothing but a thread of class SCHED_IDLE. So such
//! threads keep their clients, and answer in half the time.
//!
//! But a thread of that class gets 3 parts of a CPU where each other one gets 1,024. Where both share what the scheduler
//! shares out, a busy neighbour makes a round trip a hundred times slower. With `sched_autogroup_enabled` each session has
//! its own share, so a server in a session of its own competes with nobody in it. That holds in the root group of the CPU
//! controller only: below it, autogroups are ignored.

use super::schedule;
use crate::{LockMode, MountError, MountOptions, Transport};
use std::fs;

const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";
/// The number of the cgroup namespace that the machine starts with. In another namespace, `/` may be any group.
const FIRST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// Whether the kernel takes FUSE requests over io_uring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InKernel {
    On,
    /// It could, and is told not to.
    Off,
    /// It cannot.
    Absent,
}

impl InKernel {
    /// Reads the setting of this kernel.
    pub(crate) fn look() -> InKernel {
        match fs::read_to_string(ENABLED) {
            Ok(text) if text.starts_with('Y') => InKernel::On,
            Ok(_) => InKernel::Off,
            Err(_) => InKernel::Absent,
        }
    }
}

/// The transport that a mount with `options` gets: never [`Transport::Auto`]. `waits`: its calls may wait for a disk, and in a queue
/// of io_uring would hold up all that are made on the same CPU.
///
/// # Errors
/// [`MountError::Transport`] where `transport=uring` was asked for and cannot be.
pub(crate) fn choose(options: &MountOptions, waits: bool, kernel: InKernel) -> Result<Transport, MountError> {
    let obstacle = match (options.locks, options.dedicated, kernel) {
        _ if options.threads.is_some() => {
            "each of its queues has a thread: leave threads=N out, or give transport=classic"
        }
        (LockMode::Sluice, _, _) => {
            "not together with locks=sluice, whose waiting requests would hold the ring: leave one of the two out"
        }
        (_, false, _) => {
            "only in a process that does nothing else and says so with `dedicated`: a process that uses its own mount could not be ended"
        }
        (_, _, InKernel::Off) => {
            "the kernel has it switched off: as root, `echo Y > /sys/module/fuse/parameters/enable_uring`; for good, boot with fuse.enable_uring=1"
        }
        (_, _, InKernel::Absent) => "this kernel has no io_uring for FUSE: Linux 6.14 or newer may have it",
        (LockMode::Kernel, true, InKernel::On) => "",
    };
    match options.transport {
        Transport::Auto if waits => Ok(Transport::Classic),
        Transport::Auto | Transport::Uring if obstacle.is_empty() => Ok(Transport::Uring),
        Transport::Uring => Err(MountError::Transport(obstacle.into())),
        Transport::Auto | Transport::Classic => Ok(Transport::Classic),
    }
}

/// Conditions under which threads may be scheduled behind all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scheduling {
    /// The process has made a session of its own and is alone in it.
    pub(crate) own_session: bool,
    /// Each session has its own share of the CPUs.
    pub(crate) autogroup: bool,
    /// The CPU controller has not put the process into a group below the root.
    pub(crate) root_group: bool,
}

impl Scheduling {
    /// Where the calling process is, which says that it is alone in its session if `own_session`.
    pub(crate) fn here(own_session: bool) -> Scheduling {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/cgroup");
        let first = namespace.is_ok_and(|name| name.as_os_str() == FIRST_CGROUP_NAMESPACE);
        Scheduling {
            own_session: own_session && leads_session(&read("/proc/self/stat")),
            autogroup: read("/proc/sys/kernel/sched_autogroup_enabled").trim() == "1",
            root_group: first
                && is_in_root_group(
                    &read("/proc/self/cgroup"),
                    &read("/sys/fs/cgroup/cgroup.subtree_control"),
                ),
        }
    }

    /// True where a thread of class SCHED_IDLE competes with none but its own kind for its session's share.
    pub(crate) fn may_give_way(self) -> bool {
        let Scheduling { own_session, autogroup, root_group } = self;
        own_session && autogroup && root_group
    }
}

/// Schedules the calling thread, which serves a mount with this [`MountOptions::own_session`], behind its clients where that is good.
pub fn give_way(own_session: bool) {
    if Scheduling::here(own_session).may_give_way() {
        // If it cannot be, its clients bounce between CPUs; they are served all the same.
        let _ = schedule::behind_all_others();
    }
}

/// True if the process whose `/proc/PID/stat` is `stat` leads its session. The system call fails if the session belongs
/// to another pid namespace; this text has 0 there.
fn leads_session(stat: &str) -> bool {
    let process = stat.split(' ').next();
    // The name may hold anything, brackets too. State, parent, group, session.
    let session = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(3));
    process.is_some() && process == session
}

/// True if the CPU controller has a process, whose groups are `groups` as `/proc/PID/cgroup` lists them, in its root group.
/// `unified` is what the root of the unified hierarchy, if there is one, controls below itself.
fn is_in_root_group(groups: &str, unified: &str) -> bool {
    // Each line is `hierarchy:controllers:path`; the unified hierarchy names no controllers.
    groups.lines().all(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let controls = if controllers.is_empty() {
            unified.split_whitespace().collect()
        } else {
            controllers.split(',').collect::<Vec<_>>()
        };
        path == "/" || !controls.contains(&"cpu")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(transport: Transport, locks: LockMode, dedicated: bool) -> MountOptions {
        MountOptions { transport, locks, dedicated, ..MountOptions::default() }
    }

    #[test]
    fn the_ring_is_taken_where_nothing_speaks_against_it() {
        let chosen =
            |transport, kernel| choose(&options(transport, LockMode::Kernel, true), false, kernel).ok();
        assert_eq!(chosen(Transport::Auto, InKernel::On), Some(Transport::Uring));
        assert_eq!(chosen(Transport::Uring, InKernel::On), Some(Transport::Uring));
        assert_eq!(chosen(Transport::Classic, InKernel::On), Some(Transport::Classic));
        assert_eq!(chosen(Transport::Auto, InKernel::Off), Some(Transport::Classic));
        assert_eq!(chosen(Transport::Auto, InKernel::Absent), Some(Transport::Classic));
    }

    #[test]
    fn a_mount_whose_calls_wait_gets_a_ring_only_where_it_asks_for_one() {
        let chosen = |transport| choose(&options(transport, LockMode::Kernel, true), true, InKernel::On).ok();
        assert_eq!(chosen(Transport::Auto), Some(Transport::Classic));
        assert_eq!(chosen(Transport::Uring), Some(Transport::Uring));
    }

    #[test]
    fn a_ring_that_cannot_be_is_refused_with_a_cure_or_left_out_silently() {
        let cases = [
            (LockMode::Sluice, true, InKernel::On, "locks=sluice"),
            (LockMode::Kernel, false, InKernel::On, "`dedicated`"),
            (LockMode::Kernel, true, InKernel::Off, "echo Y"),
            (LockMode::Kernel, true, InKernel::Absent, "6.14"),
        ];
        for (locks, dedicated, kernel, cure) in cases {
            let line = choose(&options(Transport::Uring, locks, dedicated), false, kernel)
                .expect_err(cure)
                .to_string();
            assert!(line.contains(cure) && !line.contains('\n'), "{line}");
            let auto =
                choose(&options(Transport::Auto, locks, dedicated), false, kernel).expect("never refused");
            assert_eq!(auto, Transport::Classic, "{cure}");
        }
    }

    #[test]
    fn threads_give_way_in_a_session_with_a_share_of_its_own_and_nowhere_else() {
        let best = Scheduling { own_session: true, autogroup: true, root_group: true };
        assert!(best.may_give_way());
        for worse in [
            Scheduling { own_session: false, ..best },
            Scheduling { autogroup: false, ..best },
            Scheduling { root_group: false, ..best },
        ] {
            assert!(!worse.may_give_way(), "{worse:?}");
        }
        // A test shares its session with the programs that the mount would serve: it is an application.
        assert!(!Scheduling::here(false).may_give_way());
    }

    #[test]
    fn a_session_is_led_by_the_process_of_its_number() {
        assert!(leads_session("77 (a) b) S 1 77 77 0 -1"));
        for other in ["77 (a) S 1 77 76 0 -1", "77 (a) S 0 77 0 0 -1", "77 (a)", "", "0"] {
            assert!(!leads_session(other), "{other}");
        }
    }

    #[test]
    fn only_a_group_of_the_cpu_controller_counts() {
        let cases = [
            ("0::/\n", "cpu io", true),
            ("0::/system.slice/x.service\n", "cpu io", false),
            // Nothing below the root controls CPUs.
            ("0::/system.slice/x.service\n", "memory pids", true),
            ("4:memory:/a\n3:cpuset:/b\n1:cpu:/\n0::/\n", "", true),
            ("4:cpu,cpuacct:/docker/1\n0::/\n", "", false),
            ("2:cpuacct:/docker/1\n0::/\n", "", true),
            ("", "", true),
        ];
        for (groups, unified, expected) in cases {
            assert_eq!(is_in_root_group(groups, unified), expected, "{groups}");
        }
    }
}
