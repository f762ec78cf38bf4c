//! The parts that `format!` would insert into a string.

/// A string, split at each `{argument:specification}`.
pub(crate) struct Format<'a> {
    /// The text around the insertions. Braces that insert nothing, such as those of a hash tag,
    /// belong to it.
    pub(crate) plain: Vec<&'a str>,
    inserts: Vec<(&'a str, &'a str)>,
}

impl<'a> Format<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let (mut plain, mut inserts) = (Vec::new(), Vec::new());
        let (mut rest, mut read) = (text, 0);
        while let Some(found) = rest[read..].find('{') {
            let open = read + found;
            let behind = &rest[open + 1..];
            if behind.starts_with('{') {
                read = open + 2;
            } else if let Some((inside, tail)) = behind.split_once('}')
                && let Some(insert) = insert(inside)
            {
                plain.push(&rest[..open]);
                inserts.push(insert);
                (rest, read) = (tail, 0);
            } else {
                read = open + 1;
            }
        }
        plain.push(rest);
        Self { plain, inserts }
    }

    /// Returns `true` if `name` is inserted, or is the width or precision of an insertion.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.inserts.iter().any(|(argument, specification)| {
            // A count ends with a `$`. A flag can stand right before it.
            let mut counts = specification.split('$').rev().skip(1);
            let count = |text: &str| {
                let word = text.rsplit(|c| !is_of_a_name(c)).next().unwrap_or_default();
                word.trim_start_matches('0') == name
            };
            argument.trim() == name || counts.any(count)
        })
    }
}

/// Returns the argument and the specification, if `format!` can read `inside` as such. A template's
/// `<…>` is neither.
fn insert(inside: &str) -> Option<(&str, &str)> {
    let (argument, specification) = inside.split_once(':').unwrap_or((inside, ""));
    let is_template = specification.contains('<') && specification.contains('>');
    (argument.trim().chars().all(is_of_a_name) && !is_template).then_some((argument, specification))
}

/// Returns `true` if `c` can occur in a name, such as `r#type`, or in a number.
fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_mentions_what_it_inserts_and_what_says_how() {
        for (text, expected) in [
            ("a:{id}", true),
            ("{ id }", true),
            ("{{{id:?}}}", true),
            ("{:id$}", true),
            ("{a:<id$}", true),
            ("{a:>0id$.b$}", true),
            ("{a:b$.id$}", true),
            ("{{id}}", false),
            ("{a:id}", false),
            ("{an_id}", false),
            ("{a:an_id$}", false),
            ("{a:.1$}", false),
            ("{ id", false),
        ] {
            assert_eq!(Format::of(text).mentions("id"), expected, "{text}");
        }
    }

    #[test]
    fn what_inserts_nothing_is_plain() {
        for (text, expected) in [
            ("{a:<4}{b:>4}", vec!["", "", ""]),
            ("<{a}>", vec!["<", ">"]),
            ("{<a>}:{{<b>}}", vec!["{<a>}:{{<b>}}"]),
            ("{a:<b>}", vec!["{a:<b>}"]),
            ("{", vec!["{"]),
        ] {
            assert_eq!(Format::of(text).plain, expected, "{text}");
        }
    }
}
