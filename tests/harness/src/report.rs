//! An error as a reporter prints it.

use std::error::Error;

/// Returns the text of an error, followed by those of its sources. Panics if one of them repeats what
/// was said before.
#[must_use]
#[track_caller]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        assert!(!said.contains(&text), "`{text}` is said twice: {said}");
        said = format!("{said}: {text}");
        source = error.source();
    }
    said
}
