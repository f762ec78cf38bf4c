//! Without the feature `metrics`: costs nothing.

use std::time::Duration;

use crate::key::CallSite;
use crate::stats::Event;

pub(crate) const RECORDS: bool = false;

pub(crate) fn describe() {}
pub(super) fn waits(_: CallSite) {}
pub(super) fn waited(_: CallSite) {}
pub(crate) fn holds(_: CallSite, _: Duration) {}
pub(crate) fn ends(_: CallSite, _: impl FnOnce() -> Duration) {}
pub(crate) fn renewed(_: CallSite, _: Duration) {}
pub(crate) fn release_failed(_: CallSite) {}
pub(crate) fn count(_: Event, _: CallSite) {}
