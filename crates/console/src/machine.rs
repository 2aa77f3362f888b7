//! Machine: what the operating system tells about this computer and how busy it is.

use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};
use sluice_sync::time::Duration;
use std::fs;
use std::path::Path;

/// The CPU's model and the number of CPUs, `"Intel(R) Xeon(R) Processor, 2 CPUs"`.
pub fn name() -> String {
    let cpus = sluice_sync::cpu::count();
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_model(&info).unwrap_or(std::env::consts::ARCH);
    format!("{model}, {cpus} CPU{}", if cpus == 1 { "" } else { "s" })
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

/// The kernel, `"Linux 6.18.0"`.
pub fn kernel() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

/// How many tasks of the whole machine are running or ready to run at this moment, the caller included.
/// `None` when the system does not tell.
pub fn running_tasks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("procs_running "))?.trim().parse().ok()
}

/// How often the calling thread has left its CPU since it was started, of itself or not.
pub fn context_switches() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
    u64::try_from(usage.voluntary_context_switches() + usage.involuntary_context_switches()).ok()
}

/// The number by which the kernel knows the calling thread.
pub fn task_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// A clock that is the same in all processes, and goes on whatever happens to the wall clock.
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Where a task's time goes, in nanoseconds since it was started.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TaskTime {
    /// On a CPU.
    pub on_cpu: u64,
    /// Ready to run, while others had the CPU.
    pub for_cpu: u64,
}

impl TaskTime {
    /// That of the calling thread; `None` when the system does not tell.
    pub fn now() -> Option<TaskTime> {
        TaskTime::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    fn parse(schedstat: &str) -> Option<TaskTime> {
        let mut words = schedstat.split_ascii_whitespace().map(str::parse);
        Some(TaskTime { on_cpu: words.next()?.ok()?, for_cpu: words.next()?.ok()? })
    }

    /// The time from `earlier` to `self`.
    pub fn since(self, earlier: TaskTime) -> TaskTime {
        TaskTime {
            on_cpu: self.on_cpu.saturating_sub(earlier.on_cpu),
            for_cpu: self.for_cpu.saturating_sub(earlier.for_cpu),
        }
    }
}

/// The file system that holds `path`, as its type and its options: `"tmpfs rw,nosuid"`.
pub fn file_system(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    mounted_at(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
}

fn mounted_at(mountinfo: &str, path: &Path) -> Option<String> {
    // id parent device root POINT OPTIONS [tags] - TYPE source super-options; of mounts on one point the last counts.
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut words = mount.split_ascii_whitespace().skip(4);
        let (point, options) = (words.next()?, words.next()?);
        let (kind, inner) = (kind.split_ascii_whitespace().next()?, kind.split_ascii_whitespace().nth(2)?);
        path.starts_with(point).then(|| (point.len(), format!("{kind} {options},{inner}")))
    });
    mounts.max_by_key(|(length, _)| *length).map(|(_, text)| text)
}

/// For how much time tasks anywhere on the machine stood still because something was short: what the kernel calls
/// pressure stall information.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Stalled {
    /// Ready to run, without a CPU.
    pub cpu: f64,
    /// Waiting for memory to be freed.
    pub memory: f64,
    /// Waiting for a device.
    pub io: f64,
}

impl Stalled {
    /// Seconds since boot; `None` when the system does not tell.
    pub fn now() -> Option<Stalled> {
        let of =
            |what: &str| stalled_seconds(&fs::read_to_string(Path::new("/proc/pressure").join(what)).ok()?);
        Some(Stalled { cpu: of("cpu")?, memory: of("memory")?, io: of("io")? })
    }

    /// Shares, 0 to 1, of a `length` of time that began with `earlier` and ended with `self`.
    pub fn share_since(self, earlier: Stalled, length: Duration) -> Stalled {
        let share = |now: f64, then: f64| ((now - then) / length.as_secs_f64().max(1e-9)).clamp(0.0, 1.0);
        Stalled {
            cpu: share(self.cpu, earlier.cpu),
            memory: share(self.memory, earlier.memory),
            io: share(self.io, earlier.io),
        }
    }
}

/// From the lines of one resource, `some avg10=0.00 ... total=MICROSECONDS`: when some task, not all, stood still.
fn stalled_seconds(pressure: &str) -> Option<f64> {
    let line = pressure.lines().find(|line| line.starts_with("some "))?;
    let micros: u64 = line.rsplit_once("total=")?.1.trim().parse().ok()?;
    Some(micros as f64 / 1e6)
}

/// Time that some CPUs have spent since boot, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CpuTime {
    /// In programs.
    pub user: u64,
    /// In the kernel, interrupts included.
    pub system: u64,
    /// Idle or waiting for I/O.
    pub idle: u64,
    /// In all.
    pub total: u64,
}

impl CpuTime {
    /// The time that the CPUs numbered `cpus` have spent up to now; `None` when the system does not tell.
    pub fn now(cpus: &[usize]) -> Option<CpuTime> {
        CpuTime::parse(&fs::read_to_string("/proc/stat").ok()?, cpus)
    }

    fn parse(stat: &str, cpus: &[usize]) -> Option<CpuTime> {
        let mut sum = CpuTime::default();
        let mut seen = 0;
        for line in stat.lines() {
            let mut words = line.split_ascii_whitespace();
            let number = words.next().and_then(|word| word.strip_prefix("cpu")).and_then(|n| n.parse().ok());
            if !number.is_some_and(|number: usize| cpus.contains(&number)) {
                continue;
            }
            // user nice system idle iowait irq softirq steal (guest time is part of user time already)
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            sum.user += ticks.first()? + ticks.get(1)?;
            sum.system += ticks.get(2)? + ticks.get(5)? + ticks.get(6)?;
            sum.idle += ticks.get(3)? + ticks.get(4)?;
            sum.total += ticks.iter().sum::<u64>();
            seen += 1;
        }
        (seen > 0).then_some(sum)
    }

    /// The time spent from `earlier` to `self`.
    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            total: self.total.saturating_sub(earlier.total),
        }
    }
}

impl std::ops::Add for CpuTime {
    type Output = CpuTime;
    fn add(self, other: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user + other.user,
            system: self.system + other.system,
            idle: self.idle + other.idle,
            total: self.total + other.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  9 9 9 99 9 0 0 0 0 0\ncpu0 10 0 20 60 10 0 0 0 0 0\n\
                        cpu1 1 1 1 5 1 1 0 0 7 7\ncpu12 1 0 0 0 0 0 0 0 0 0\nintr 5\n";

    #[test]
    fn idle_time_is_summed_over_the_chosen_cpus_only() {
        assert_eq!(CpuTime::parse(STAT, &[0]), Some(CpuTime { user: 10, system: 20, idle: 70, total: 100 }));
        assert_eq!(
            CpuTime::parse(STAT, &[0, 1]),
            Some(CpuTime { user: 12, system: 22, idle: 76, total: 110 })
        );
        assert_eq!(CpuTime::parse(STAT, &[2]), None);
    }

    #[test]
    fn this_machine_has_a_name_a_kernel_and_at_least_one_running_task() {
        assert!(name().contains("CPU"));
        assert!(kernel().starts_with("Linux "));
        assert!(running_tasks().is_none_or(|tasks| tasks >= 1));
    }

    #[test]
    fn the_file_system_of_a_path_is_the_innermost_mount() {
        let info = "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard\n\
                    2 1 0:5 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1g\n";
        let of = |path: &str| mounted_at(info, Path::new(path)).unwrap();
        assert_eq!(of("/dev/shm/x"), "tmpfs rw,nosuid,rw,size=1g");
        assert_eq!(of("/dev/shmx"), "ext4 rw,relatime,rw,discard");
        assert!(context_switches().is_some());
    }

    #[test]
    fn a_task_knows_where_its_time_went() {
        let time = |on_cpu, for_cpu| TaskTime { on_cpu, for_cpu };
        assert_eq!(TaskTime::parse("70 30 2\n"), Some(time(70, 30)));
        assert_eq!(TaskTime::parse(""), None);
        assert_eq!(time(70, 30).since(time(20, 40)), time(50, 0));
        assert!(task_number() > 0);
    }

    #[test]
    fn what_stood_still_is_a_share_of_the_time() {
        let io = "some avg10=1.30 avg60=1.00 avg300=0.75 total=2500000\nfull avg10=0 total=7\n";
        assert_eq!(stalled_seconds(io), Some(2.5));
        assert_eq!(stalled_seconds(""), None);
        let (before, after) =
            (Stalled { io: 2.5, ..Stalled::default() }, Stalled { io: 3.0, cpu: 9.0, memory: 0.0 });
        let share = after.share_since(before, Duration::from_secs(2));
        assert_eq!(share, Stalled { io: 0.25, cpu: 1.0, memory: 0.0 });
        assert!(Stalled::now().is_none_or(|stalled| stalled.cpu >= 0.0));
    }

    #[test]
    fn the_model_is_found_in_cpuinfo() {
        assert_eq!(cpu_model("processor : 0\nmodel name\t: Fast CPU: 9\n"), Some("Fast CPU: 9"));
        assert_eq!(cpu_model("CPU part : 0xd0c\n"), None);
    }
}
