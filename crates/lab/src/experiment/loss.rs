//! Loss: what an operation takes longer on many CPUs than on one, and at which places in the source.
//!
//! The places know all that was done, between passes and before the count too, and so they are given as shares.

use crate::row::Row;
use sluice_console::table::grouped;
use sluice_machine::Machine;
use std::collections::BTreeMap;
use std::fmt;

/// How many places are named.
const NAMED_MAX: usize = 4;

/// The time that an operation takes longer. *Simulated*, in cycles.
pub(super) struct Loss<'a> {
    cycles: f64,
    /// Where CPUs wait longer for lines than one alone does, and by how many cycles; the most first.
    places: Vec<(&'a str, f64)>,
}

impl<'a> Loss<'a> {
    /// Between `one`, of one CPU of `machine`, and `many`, of many.
    pub(super) fn between(machine: &str, one: &'a Row, many: &'a Row) -> Loss<'a> {
        let mhz = f64::from(Machine::named(machine).spec().mhz);
        let cycles = |row: &Row| row.mean_ns.unwrap_or_default() * mhz / 1e3;
        let mut more: BTreeMap<&str, f64> = BTreeMap::new();
        for (row, sign) in [(many, 1.0), (one, -1.0)] {
            for place in &row.places {
                *more.entry(&place.name).or_default() += sign * place.wait_cycles_per_op;
            }
        }
        let mut places: Vec<_> = more.into_iter().filter(|&(_, cycles)| cycles >= 1.0).collect();
        places.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        Loss { cycles: cycles(many) - cycles(one), places }
    }
}

impl fmt::Display for Loss<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an operation takes {} cycles more than alone", grouped(self.cycles))?;
        let sum = |places: &[(&str, f64)]| places.iter().map(|(_, cycles)| cycles).sum::<f64>();
        let (named, others) = self.places.split_at(self.places.len().min(NAMED_MAX));
        let all = sum(&self.places);
        for (index, (name, cycles)) in named.iter().enumerate() {
            let what = if index == 0 { "; of what is waited for more" } else { "," };
            write!(f, "{what} {:.0}% at {name}", 100.0 * cycles / all)?;
        }
        match others.len() {
            0 => Ok(()),
            count => write!(f, ", {:.0}% at {count} others", 100.0 * sum(others) / all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot_lines::HotPlace;
    use crate::row::Origin;

    fn row(mean_ns: f64, waits: &[(&str, f64)]) -> Row {
        let place = |&(name, cycles): &(&str, f64)| HotPlace {
            name: name.to_owned(),
            lines: 1,
            misses_per_op: 1.0,
            wait_cycles_per_op: cycles,
        };
        let mut row = Row::new(&Origin::simulated("a machine"), "stat", "sim:uma-2".into(), 1, 1);
        row.mean_ns = Some(mean_ns);
        row.places = waits.iter().map(place).collect();
        row
    }

    #[test]
    fn the_places_that_cost_many_cpus_more_are_named_and_the_rest_is_added_up() {
        let mhz = f64::from(Machine::named("uma-2").spec().mhz);
        let one = row(1e3, &[("same", 50.0), ("less", 90.0), ("b", 10.0)]);
        let many = row(
            1e3 + 400e3 / mhz,
            &[
                ("a", 100.0),
                ("b", 90.0),
                ("c", 80.0),
                ("d", 60.0),
                ("same", 50.0),
                ("e", 50.0),
                ("f", 30.0),
                ("less", 20.0),
            ],
        );
        assert_eq!(
            Loss::between("uma-2", &one, &many).to_string(),
            "an operation takes 400 cycles more than alone; of what is waited for more 25% at a, 20% at b, 20% at c, \
             15% at d, 20% at 2 others"
        );
        assert_eq!(
            Loss::between("uma-2", &one, &one).to_string(),
            "an operation takes 0 cycles more than alone"
        );
    }
}
