//! Statistics of the measurements.

use std::time::Duration;

/// The value below which `share` of all are.
pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let at = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

/// The middle one; zero of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match (
        sorted.get(sorted.len() / 2),
        sorted.get(sorted.len().saturating_sub(1) / 2),
    ) {
        (Some(upper), Some(lower)) => f64::midpoint(*upper, *lower),
        _ => 0.0,
    }
}

/// Jain's fairness index: 1 when all have the same, 1/n when one has all.
pub(crate) fn jain(counts: &[f64]) -> f64 {
    let sum: f64 = counts.iter().sum();
    let squares: f64 = counts.iter().map(|count| count * count).sum();
    if squares == 0.0 {
        return 0.0;
    }
    #[allow(clippy::cast_precision_loss)]
    let number = counts.len() as f64;
    sum * sum / (number * squares)
}
