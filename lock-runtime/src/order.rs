//! Locks that are taken inside each other in one order here and in the other order there will wait for each other one day.
//! Debug builds tell so as soon as both orders have been seen, whether or not anybody had to wait.
//!
//! The same is done for the locks of the Linux kernel by
//! [lockdep](https://docs.kernel.org/locking/lockdep-design.html). What is compared is the templates of the keys, so that an order
//! seen with one item counts for all; locks taken by hand have none and are left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use crate::context;

/// The orders that this process has seen. They are as many as the program has pairs of templates at most.
static SEEN: Mutex<Orders> = Mutex::new(Orders(BTreeMap::new()));

/// For each class of locks, those that were taken inside it, and where that was seen first.
#[derive(Debug, Default)]
struct Orders(BTreeMap<String, BTreeMap<String, Step>>);

/// One lock taken inside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    outer: Place,
    inner: Place,
}

/// Where a lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    template: &'static str,
    function: &'static str,
}

impl Place {
    /// A call of several keys has their templates with commas in between.
    fn of_each(template: &'static str, function: &'static str) -> impl Iterator<Item = Self> {
        let templates = template.split(", ").filter(|template| !template.is_empty());
        templates.map(move |template| Self { template, function })
    }

    /// What the locks of this template have in common with those of others: the names of the values do not matter.
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

/// Notes that a call takes a lock of one template inside those around it.
pub(crate) fn note(template: &'static str, function: &'static str) {
    if !cfg!(debug_assertions) || template.is_empty() {
        return;
    }
    let around = context::around();
    let outer = around.iter().filter(|held| !held.has_ended());
    let outer = outer.flat_map(|held| Place::of_each(held.template, held.function));
    let mut circles = Vec::new();
    {
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        for outer in outer {
            for inner in Place::of_each(template, function) {
                circles.extend(seen.add(Step { outer, inner }));
            }
        }
    }
    for circle in circles {
        tracing::warn!("{}", tell(&circle));
    }
}

impl Orders {
    /// Enters an order. If it is new, and closes a circle with those seen before, returns the circle, beginning with this step.
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

    /// The shortest way from one class to another that is taken inside it, or inside one that is, and so on.
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

fn tell(circle: &[Step]) -> String {
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
        let text = tell(&circle);
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
        let templates: Vec<_> = Place::of_each("a:<x>, b", "f").map(|place| place.template).collect();
        assert_eq!(templates, ["a:<x>", "b"]);
        assert_eq!(Place::of_each("", "f").count(), 0);
    }
}
