//! Statistics: the few numbers that a row of results needs, and whether two rows differ.
//!
//! # Theory
//! Rates of runs are few (5 to 30), skewed, and have outliers, so a row is summed up by its median, and how far that
//! can be trusted is asked of the *bootstrap*: the runs are drawn again and again, with replacement, and the middle
//! 95% (or more) of the medians of those draws is the interval. The generator's seed is fixed: the same runs give the
//! same interval.
//!
//! With five runs a bootstrap interval cannot be wider than the runs themselves, which is too narrow now and then.
//! [`differ`] therefore asks for two things: the 99% interval of the ratio excludes 1, **and** a test of Student's kind on
//! the logarithms of the rates finds the means apart at one in two thousand. So a suite of a hundred rows without a
//! difference shows one in five percent of its runs.
//!
//! Two sides of equally many runs, [`PAIRED_FROM`] or more, are taken as pairs, first with first: measured in turn, both
//! halves of a pair met the same neighbours on the machine, and what they share drops out of the ratio. Pairs that share
//! nothing lose a little power and no truth. Below that, and of unequal numbers, Welch's test takes the sides apart.
//!
//! # Sources
//! Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapter 13; Welch (1947); the expansion of
//! Student's quantile: Abramowitz and Stegun, 26.7.5.

use sluice_sync::random::Random;

/// The median; of an even number of values the mean of the middle two. `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The standard deviation of a sample (divisor n - 1). `None` below two values.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (count - 1.0)).sqrt())
}

/// A range that holds a value with a stated confidence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// True when `value` is outside.
    pub fn excludes(&self, value: f64) -> bool {
        value < self.low || value > self.high
    }
}

const DRAWS: usize = 2000;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The bootstrap interval of the median at `confidence` (0 to 1). `None` below two values.
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    let mut random = Random::new(SEED);
    if values.len() < 2 {
        return None;
    }
    middle((0..DRAWS).filter_map(|_| median(&sample(&mut random, values))).collect(), confidence)
}

/// The ratio of `after` to `before`: the median of the pairs' ratios, or the ratio of the medians. `None` for no
/// values.
pub fn ratio(before: &[f64], after: &[f64]) -> Option<f64> {
    if are_pairs(before, after) {
        return median(&pair_ratios(before, after));
    }
    Some(median(after)? / median(before)?)
}

/// The bootstrap interval of [`ratio`]. `None` with fewer than two runs.
pub fn ratio_interval(before: &[f64], after: &[f64], confidence: f64) -> Option<Interval> {
    if are_pairs(before, after) {
        return median_interval(&pair_ratios(before, after), confidence);
    }
    let mut random = Random::new(SEED);
    if before.len() < 2 || after.len() < 2 {
        return None;
    }
    let ratios = (0..DRAWS)
        .filter_map(|_| Some(median(&sample(&mut random, after))? / median(&sample(&mut random, before))?));
    middle(ratios.filter(|ratio| ratio.is_finite()).collect(), confidence)
}

/// From how many runs on two sides of equally many are taken as pairs.
pub const PAIRED_FROM: usize = 10;

fn pair_ratios(before: &[f64], after: &[f64]) -> Vec<f64> {
    before.iter().zip(after).map(|(before, after)| after / before).collect()
}

fn are_pairs(before: &[f64], after: &[f64]) -> bool {
    before.len() == after.len() && before.len() >= PAIRED_FROM
}

fn middle(mut values: Vec<f64>, confidence: f64) -> Option<Interval> {
    values.sort_by(f64::total_cmp);
    let outside = ((1.0 - confidence) / 2.0 * values.len() as f64) as usize;
    Some(Interval { low: *values.get(outside)?, high: *values.get(values.len().checked_sub(outside + 1)?)? })
}

/// True when the rates differ beyond what chance explains; see the theory above.
pub fn differ(before: &[f64], after: &[f64]) -> bool {
    // The quick test first.
    before.len() > 1
        && after.len() > 1
        && means_apart(before, after)
        && ratio_interval(before, after, 0.99).is_some_and(|interval| interval.excludes(1.0))
}

/// Whether the means of the logarithms are apart, two-sided at 0.0005.
fn means_apart(before: &[f64], after: &[f64]) -> bool {
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
    let (before, after) = (logs(before), logs(after));
    let (difference, variance, freedom) = if are_pairs(&before, &after) {
        let differences: Vec<f64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
        let (mean, variance) = mean_and_variance(&differences);
        (mean, variance, differences.len() as f64 - 1.0)
    } else {
        let ((mean_a, var_a), (mean_b, var_b)) = (mean_and_variance(&before), mean_and_variance(&after));
        let part = |variance: f64, count: usize| variance * variance / (count as f64 - 1.0);
        let variance = var_a + var_b;
        let freedom = variance * variance / (part(var_a, before.len()) + part(var_b, after.len()));
        (mean_b - mean_a, variance, freedom)
    };
    if variance == 0.0 {
        return difference != 0.0; // a simulated machine has no noise
    }
    difference.abs() / variance.sqrt() > student_quantile(freedom)
}

/// The mean of a sample, and the variance of that mean.
fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let variance = standard_deviation(values).map_or(0.0, |sd| sd * sd) / count;
    (values.iter().sum::<f64>() / count, variance)
}

/// Student's quantile at 0.99975 with `freedom` degrees of freedom, expanded from the normal one.
fn student_quantile(freedom: f64) -> f64 {
    const NORMAL: f64 = 3.4808;
    let z = |power| NORMAL.powi(power);
    NORMAL
        + (z(3) + NORMAL) / (4.0 * freedom)
        + (5.0 * z(5) + 16.0 * z(3) + 3.0 * NORMAL) / (96.0 * freedom.powi(2))
        + (3.0 * z(7) + 19.0 * z(5) + 17.0 * z(3) - 15.0 * NORMAL) / (384.0 * freedom.powi(3))
}

/// A sample of the same size as `values`, with replacement.
fn sample(random: &mut Random, values: &[f64]) -> Vec<f64> {
    values.iter().map(|_| random.pick(values)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_order_and_outliers() {
        assert_eq!(median(&[9.0, 1.0, 1000.0]), Some(9.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(
            standard_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).map(|sd| (sd * 1e6).round()),
            Some(2_138_090.0)
        );
        assert_eq!(standard_deviation(&[5.0, 5.0]), Some(0.0));
        assert_eq!(standard_deviation(&[5.0]), None);
    }

    /// `count` rates around `mean`, with a noise of `sd` (a share of the mean) that is nearly normal.
    fn noisy(random: &mut Random, count: usize, mean: f64, sd: f64) -> Vec<f64> {
        let mut uniform = || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        (0..count).map(|_| mean * (sd * normal()).exp()).collect()
    }

    #[test]
    fn the_interval_of_a_median_holds_it_and_shrinks_with_runs() {
        let mut random = Random::new(1);
        let (few, many) = (noisy(&mut random, 5, 100.0, 0.05), noisy(&mut random, 50, 100.0, 0.05));
        let width = |runs: &[f64]| median_interval(runs, 0.95).map(|i| i.high - i.low).unwrap();
        let interval = median_interval(&few, 0.95).unwrap();
        assert!(!interval.excludes(median(&few).unwrap()));
        assert!(width(&many) < width(&few));
        assert_eq!(median_interval(&[1.0], 0.95), None);
    }

    #[test]
    fn pairs_without_a_difference_are_not_told_apart() {
        // 20 repetitions of 50 rows: with few runs and with pairs, quiet and noisy.
        for (runs, sd) in [(5, 0.01), (5, 0.1), (9, 0.03), (15, 0.1)] {
            let found = (0..1000u64).filter(|seed| {
                let mut random = Random::new(seed * 7919 + 1);
                let (a, b) = (noisy(&mut random, runs, 1e6, sd), noisy(&mut random, runs, 1e6, sd));
                differ(&a, &b)
            });
            let found = found.count();
            assert!(found <= 2, "{found} of 1,000 pairs of {runs} runs with a noise of {sd}");
        }
    }

    #[test]
    fn a_difference_of_a_tenth_is_found_in_a_noise_of_a_fiftieth() {
        let found = (0..100u64).filter(|seed| {
            let mut random = Random::new(seed * 31 + 5);
            let (a, b) = (noisy(&mut random, 9, 1e6, 0.02), noisy(&mut random, 9, 0.9e6, 0.02));
            differ(&a, &b)
        });
        assert!(found.count() >= 99);
        assert!(differ(&[5.0, 5.0], &[6.0, 6.0]), "runs without noise");
        assert!(!differ(&[5.0], &[6.0]), "one run says nothing about chance");
    }

    #[test]
    fn noise_that_the_halves_of_a_pair_share_hides_nothing() {
        let found = (0..50u64).filter(|seed| {
            let mut random = Random::new(seed * 17 + 3);
            let neighbours = noisy(&mut random, 15, 1e6, 0.5);
            let mut side = |speed: f64| {
                let own = noisy(&mut random, 15, speed, 0.02);
                neighbours.iter().zip(own).map(|(rate, own)| rate * own).collect::<Vec<f64>>()
            };
            differ(&side(1.0), &side(0.95))
        });
        assert!(found.count() >= 40);
    }

    #[test]
    fn the_quantile_is_that_of_the_tables() {
        for (freedom, quantile) in [(8.0, 5.6), (16.0, 4.4), (1e6, 3.481)] {
            assert!((student_quantile(freedom) / quantile - 1.0).abs() < 0.05, "{freedom}");
        }
    }
}
