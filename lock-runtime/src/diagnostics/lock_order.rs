//! Detects locks that are taken inside each other in two different orders: calls that do so sooner
//! or later wait for each other. Debug builds report it as soon as both orders have been seen, even
//! if no call had to wait.
//!
//! [lockdep](https://docs.kernel.org/locking/lockdep-design.html) checks the locks of the Linux
//! kernel in the same way. The templates of the keys are compared, so that an order seen with one
//! item counts for all. Locks taken without the attribute have no template and are left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

use crate::hold::call_tree;
use crate::host::{Host, Mutex};

/// The orders that this process has seen: at most one for each pair of templates in the program.
#[derive(Default)]
struct Seen(Mutex<Orders>);

/// For each class of locks, the classes that were taken inside it, with the place where that was
/// first seen.
#[derive(Debug, Default)]
struct Orders(BTreeMap<String, BTreeMap<String, Step>>);

/// One lock taken inside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    outer: Place,
    inner: Place,
}

/// The place where a lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    template: &'static str,
    function: &'static str,
}

impl Place {
    /// Returns one place for each key of a call.
    fn of_each(templates: &[&'static str], function: &'static str) -> impl Iterator<Item = Self> {
        templates.iter().map(move |&template| Self { template, function })
    }

    /// Returns the template without the names of its values, which do not matter for the order.
    fn class(self) -> String {
        let mut class = String::new();
        let mut rest = self.template;
        while let Some((before, after)) = rest.split_once('<') {
            class.push_str(before);
            rest = if let Some(after) = after.strip_prefix('<') {
                class.push_str("<<");
                after
            } else {
                class.push_str("<>");
                after.split_once('>').map_or("", |(_, after)| after)
            };
        }
        class.push_str(rest);
        class
    }
}

/// Records that a call takes locks of these templates inside the locks around it.
pub(crate) fn note(host: &Host, templates: &[&'static str], function: &'static str) {
    if !cfg!(debug_assertions) || templates.is_empty() {
        return;
    }
    let around = call_tree::around();
    let outer = around.iter().filter(|held| !held.has_ended());
    let outer = outer.flat_map(|held| Place::of_each(held.options.site.templates, held.options.site.function));
    let mut circles = Vec::new();
    {
        let seen = host.keep(Seen::default);
        let mut seen = seen.0.lock();
        for outer in outer {
            for inner in Place::of_each(templates, function) {
                circles.extend(seen.add(Step { outer, inner }));
            }
        }
    }
    for circle in circles {
        tracing::warn!("{}", describe(&circle));
    }
}

impl Orders {
    /// Adds an order. If it is new and closes a circle with earlier ones, returns the circle,
    /// beginning with this step.
    fn add(&mut self, step: Step) -> Option<Vec<Step>> {
        let (outer, inner) = (step.outer.class(), step.inner.class());
        let known = self.0.get(&outer).is_some_and(|inside| inside.contains_key(&inner));
        if known || outer == inner {
            return None;
        }
        let circle = self.shortest(&inner, &outer);
        self.0.entry(outer).or_default().insert(inner, step);
        circle.map(|way| std::iter::once(step).chain(way).collect())
    }

    /// Returns the shortest chain of locks taken inside each other that leads from one class to
    /// another.
    fn shortest(&self, from: &str, to: &str) -> Option<Vec<Step>> {
        let mut ways = VecDeque::from([(from, Vec::new())]);
        let mut been = BTreeSet::from([from]);
        while let Some((outer, way)) = ways.pop_front() {
            for (inner, step) in self.0.get(outer).into_iter().flatten() {
                let mut way = way.clone();
                way.push(*step);
                if inner == to {
                    return Some(way);
                }
                if been.insert(inner) {
                    ways.push_back((inner, way));
                }
            }
        }
        None
    }
}

fn describe(circle: &[Step]) -> String {
    let mut text = "locks are taken inside each other in different orders: ".to_owned();
    for (number, Step { outer, inner }) in circle.iter().enumerate() {
        let and = if number == 0 { "" } else { ", and " };
        // Writing into a string does not fail.
        let _ = write!(
            text,
            "{and}`{}` (by {}) inside `{}` (by {})",
            inner.template, inner.function, outer.template, outer.function
        );
    }
    text.push_str(
        "; calls that meet wait for each other until `wait` ends: take them in one order everywhere, or together by `keys = [...]`",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(outer: &'static str, inner: &'static str) -> Step {
        let place = |template, function| Place { template, function };
        Step {
            outer: place(outer, "outer_one"),
            inner: place(inner, "inner_one"),
        }
    }

    #[test]
    fn both_orders_are_told_once_with_both_places() {
        let mut orders = Orders::default();
        assert_eq!(orders.add(step("a", "b")), None);
        assert_eq!(orders.add(step("a", "b")), None);
        let mut other = step("b", "a");
        (other.outer.function, other.inner.function) = ("outer_other", "inner_other");
        let circle = orders.add(other).unwrap_or_default();
        let text = describe(&circle);
        for part in ["outer_one", "inner_one", "outer_other", "inner_other", "keys = "] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!((orders.add(other), orders.add(step("a", "b"))), (None, None));
    }

    #[test]
    fn a_longer_circle_is_told_when_it_closes() {
        let mut orders = Orders::default();
        for (outer, inner) in [("a", "b"), ("b", "c"), ("b", "d"), ("d", "c")] {
            assert_eq!(orders.add(step(outer, inner)), None);
        }
        let circle = orders.add(step("c", "a"));
        assert_eq!(circle, Some(vec![step("c", "a"), step("a", "b"), step("b", "c")]));
    }

    #[test]
    fn one_template_inside_itself_is_no_order() {
        let mut orders = Orders::default();
        assert_eq!(orders.add(step("a:<x>", "a:<y>")), None);
        assert_eq!(orders.add(step("a:<y>", "b")), None);
        assert_eq!(orders.add(step("b", "c")), None);
    }

    #[test]
    fn the_names_of_values_do_not_matter() {
        let class = |template| {
            let function = "";
            Place { template, function }.class()
        };
        assert_eq!(class("order:<id>:<self.line()>!"), "order:<>:<>!");
        assert_eq!(class("order:<order_id>:<n:raw>!"), "order:<>:<>!");
        assert_eq!(class("a<<b>>c<id>"), "a<<b>>c<>");
        assert_ne!(class("order:<id>"), class("order:id"));
    }

    #[test]
    fn each_of_several_keys_counts() {
        let templates: Vec<_> = Place::of_each(&["a:<x>", "b, c"], "f")
            .map(|place| place.template)
            .collect();
        assert_eq!(templates, ["a:<x>", "b, c"]);
        assert_eq!(Place::of_each(&[], "f").count(), 0);
    }
}
