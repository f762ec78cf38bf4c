//! The permissions that `docs/operations.md` lists for the server's user.

use std::sync::LazyLock;

static PAGE: LazyLock<String> = LazyLock::new(|| {
    // In a table a `|` is written so.
    include_str!("../../../docs/operations.md").replace("\\|", "|")
});

/// One line of a table of permissions.
#[derive(Clone, Debug)]
pub struct Line {
    /// The row of the table, without its first bar.
    pub row: &'static str,
    /// The rules for `ACL SETUSER` in that row.
    pub rules: Vec<&'static str>,
}

/// Returns the lines of the table of permissions. Each needs the first one as well.
#[must_use]
pub fn lines() -> Vec<Line> {
    table("| to | allow |")
}

/// Returns all rules of that table.
#[must_use]
pub fn all() -> Vec<&'static str> {
    lines().into_iter().flat_map(|line| line.rules).collect()
}

/// Returns the rules of the line for this.
#[must_use]
pub fn rules(what: &str) -> Vec<&'static str> {
    let line = lines().into_iter().find(|line| line.row.starts_with(what));
    line.unwrap_or_else(|| panic!("docs/operations.md has no line to {what}"))
        .rules
}

/// Returns the rules of the first line without which a manager connects.
#[must_use]
pub fn dispensable() -> Vec<&'static str> {
    let least = lines().swap_remove(0).rules;
    let without = table("| without | what the calls of the user do |");
    let without = without.into_iter().flat_map(|line| line.rules);
    without.filter(|rule| least.contains(rule)).collect()
}

fn table(head: &str) -> Vec<Line> {
    let (_, table) = PAGE
        .split_once(head)
        .unwrap_or_else(|| panic!("docs/operations.md has no table {head}"));
    let (table, _) = table.split_once("\n\n").unwrap_or((table, ""));
    let rows = table.lines().filter_map(|row| row.strip_prefix("| "));
    let line = |row: &'static str| {
        let rules = row.split('`').rfind(|rules| rules.contains('+'))?;
        let rules = rules.split(' ').collect();
        Some(Line { row, rules })
    };
    rows.filter_map(line).collect()
}
