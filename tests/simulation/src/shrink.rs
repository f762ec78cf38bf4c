//! Makes a failing seed smaller, and tells it as a story.

use std::time::{Duration, Instant};

use crate::drive::{self, Ended};
use crate::judge::Rule;
use crate::plan::{Plan, Shape, Without};

/// How long it tries.
const PATIENCE: Duration = Duration::from_secs(60);

/// Leaves parts of a failing seed out, as long as it breaks the same rule, and tells what is left.
pub fn shrink(seed: u64, shape: Shape) {
    let whole = drive::run(seed, shape, &Without::default(), false);
    let Some(rule) = whole.verdict.violations.first().map(|violation| violation.rule) else {
        println!("seed {seed} broke a rule and does not do so again: something is not decided by the seed");
        return;
    };
    let began = Instant::now();
    let mut without = Without::default();
    for kind in ['x', 'p', 'f', 't', 'c'] {
        let mut size = usize::MAX;
        loop {
            let parts: Vec<String> = Plan::parts(seed, shape, &without);
            let parts: Vec<&String> = parts.iter().filter(|part| part.starts_with(kind)).collect();
            size = size.min(parts.len() / 2).max(1);
            for group in parts.chunks(size) {
                let mut less = without.clone();
                less.0.extend(group.iter().map(|part| (*part).clone()));
                if began.elapsed() < PATIENCE && breaks(seed, shape, &less, rule) {
                    without = less;
                }
            }
            if size == 1 {
                break;
            }
            size /= 2;
        }
    }
    println!("\nseed {seed} breaks {rule:?}; the smallest that does so:\n");
    tell(&drive::run(seed, shape, &without, true));
    let shape = shape
        .argument()
        .map(|argument| format!("{argument} "))
        .unwrap_or_default();
    println!("\nagain: ./tests/simulate --seed {seed} {shape}--without {without}");
}

fn breaks(seed: u64, shape: Shape, without: &Without, rule: Rule) -> bool {
    let ended = drive::run(seed, shape, without, false);
    ended.verdict.violations.iter().any(|violation| violation.rule == rule)
}

/// Prints what happened up to the first violation and a little beyond, the commands of clients left out where they are many.
pub fn tell(ended: &Ended) {
    let at = ended.story.iter().position(|line| line.contains("VIOLATION"));
    let end = at.map_or(ended.story.len(), |at| (at + 10).min(ended.story.len()));
    let shown: Vec<&String> = ended.story[..end].iter().collect();
    let is_long = shown.len() > 400;
    let shown = shown.into_iter().filter(|line| !is_long || !line.contains(" client "));
    let shown: Vec<&String> = shown.collect();
    let from = shown.len().saturating_sub(200);
    if from > 0 {
        println!("({from} lines before)");
    }
    for line in &shown[from..] {
        let short: String = line.chars().take(320).collect();
        println!("{short}");
    }
}
