//! Commute: do calls that commute share a written cache line? The file system on the simulated machine.
//!
//! # Theory
//! The one rule of this project is that operations which commute write no shared line. [`cases`] asks a small
//! [`model`] which pairs of calls commute in which small states; [`run`] lets each pair go on two simulated CPUs and
//! looks for lines that one wrote and the other touched; [`report`] says what was found. That the answers and the
//! final state are the model's too is checked on the way.

mod call;
mod cases;
mod model;
mod run;
mod stage;
mod world;

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static HEAP: sluice_machine::Heap = sluice_machine::Heap;

    #[test]
    fn each_state_is_what_the_model_says() {
        for state in cases::State::ALL {
            assert_eq!(run::check_state(state), Vec::<String>::new(), "{state:?}");
        }
    }

    #[test]
    fn probe() {
        let machine = run::machine();
        let all = cases::all(None);
        println!("{} cases", all.len());
        let step: usize = std::env::var("STEP").map_or(101, |step| step.parse().unwrap());
        let (mut count, mut free) = (0, 0);
        let mut lines = std::collections::BTreeMap::new();
        for case in all.iter().step_by(step) {
            let finding = run::run(&machine, case);
            count += 1;
            free += usize::from(finding.conflicts.is_empty());
            if !finding.differences.is_empty() {
                println!("{:?} {} | {}: {:?}", case.state, case.calls[0], case.calls[1], finding.differences);
            }
            for line in finding.conflicts {
                *lines.entry(line).or_insert(0) += 1;
            }
        }
        println!("{free} of {count} free");
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (line, count) in lines.iter().take(60) {
            println!("{count:6} {} {}", line.owner, line.field);
        }
    }
}
