//! Measure: what all measurements here do with their figures.

/// The middle one of `values`, which are not empty.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
