//! Finds the word that was probably meant, and writes code as a person would.

use quote::ToTokens;

/// The nearest of `candidates`, if it is near enough to be what was meant.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = fold(word);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (word.len().max(candidate.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `` `a`, `b`, `c` ``
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words
        .into_iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Tokens as a person would write them.
pub(crate) fn written(tokens: impl ToTokens) -> String {
    let mut written = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        (" ,", ","),
        (" :: ", "::"),
        ("& ", "&"),
        (":: ", "::"),
        (" . ", "."),
        (" (", "("),
    ] {
        written = written.replace(from, to);
    }
    written
}

/// `itemId`, `item_id` and `ITEM_ID` are one word.
pub(crate) fn fold(word: &str) -> String {
    word.chars()
        .filter(|c| *c != '_')
        .flat_map(char::to_lowercase)
        .collect()
}

/// How many letters must be put in, taken out, replaced or swapped with their neighbour to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, right) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(left != right))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *left == b[j - 1] && a[i - 1] == *right {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_a_far_one_is_not() {
        let names = ["key", "lease", "wait", "at_least", "max_renewals"];
        assert_eq!(nearest("leese", names), Some("lease"));
        assert_eq!(nearest("waitt", names), Some("wait"));
        assert_eq!(nearest("maxRenewals", names), Some("max_renewals"));
        assert_eq!(nearest("kye", names), Some("key"));
        assert_eq!(nearest("colour", names), None);
    }
}
