//! Finds the word that was probably meant, and formats code as a person would write it.

use quote::ToTokens;

/// Returns the nearest of `candidates`, if it is near enough to be the intended word.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = fold(word);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (word.len().max(candidate.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns `true` if `word` is `candidate` with one slip in it. What starts with a capital is a name of its own.
pub(crate) fn is_misspelt(word: &str, candidate: &str) -> bool {
    word.starts_with(char::is_lowercase) && strsim::osa_distance(word, candidate) == 1
}

/// Joins the words to `` `a`, `b`, `c` ``.
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words
        .into_iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats tokens as a person would write them.
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

/// Folds a word, so that `itemId`, `item_id` and `ITEM_ID` are equal.
pub(crate) fn fold(word: &str) -> String {
    word.chars()
        .filter(|c| *c != '_')
        .flat_map(char::to_lowercase)
        .collect()
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
