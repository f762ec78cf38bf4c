//! The events and spans that a lock logs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{LockError, current};
use lock_tests::{PATIENCE, Server, lock_child};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::stage::{LONG, connected, stored};

type Fields = BTreeMap<&'static str, String>;

/// The fields of every lock's span, in the order of their making.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(Id, Fields)>>>);

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "distributed_lock" {
            let mut fields = Fields::new();
            attributes.record(&mut Into(&mut fields));
            self.0.lock().unwrap().push((id.clone(), fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        // The last one: numbers of closed spans are used again.
        if let Some((_, fields)) = self.0.lock().unwrap().iter_mut().rev().find(|(other, _)| other == id) {
            values.record(&mut Into(fields));
        }
    }
}

impl Spans {
    fn last(&self) -> Fields {
        self.0.lock().unwrap().last().expect("a span").1.clone()
    }
}

#[tokio::test]
async fn the_span_of_a_call_tells_key_wait_attempts_holder_fence_and_outcome() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let spans = Spans::default();
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));

    let fence = locks
        .lock("told")
        .lease(LONG)
        .fencing()
        .run(async { current().unwrap().fencing_token().await.unwrap().get() })
        .await
        .unwrap();
    let told = spans.last();
    assert_eq!(told["key"], "told");
    assert_eq!(told["attempts"], "1");
    assert_eq!(told["outcome"], "ok");
    assert_eq!(told["fence"], fence.to_string());
    assert!(
        told.contains_key("template") && told.contains_key("wait") && !told.contains_key("holder"),
        "{told:?}"
    );

    // A fence that is taken later is told as well.
    let fence = locks
        .lock("later")
        .lease(LONG)
        .run(async { current().unwrap().fencing_token().await.unwrap().get() })
        .await
        .unwrap();
    assert_eq!(spans.last()["fence"], fence.to_string());

    // A busy lock: who holds it, and how often it was asked for.
    let guard = locks
        .lock("held")
        .lease(LONG)
        .label("the-owner")
        .acquire()
        .await
        .unwrap();
    let other = connected(&server.url()).await;
    let busy = other.lock("held").wait(Duration::from_secs(4)).acquire().await;
    assert!(busy.is_err_and(|error| error.is_busy()));
    let told = spans.last();
    assert_eq!(told["outcome"], "busy");
    assert!(
        told["holder"].contains("the-owner") && told["holder"].contains(&std::process::id().to_string()),
        "{told:?}"
    );
    assert!(told["attempts"].parse::<u32>().unwrap() > 1, "{told:?}");
    let value = server.value(&stored("held")).unwrap();
    assert!(
        told.values().all(|text| !text.contains(&value[..32])),
        "the log gives the token away: {told:?}"
    );
    guard.release().await.unwrap();
    let held = spans
        .0
        .lock()
        .unwrap()
        .iter()
        .rev()
        .find(|(_, fields)| fields["key"] == "held" && !fields.contains_key("holder"))
        .unwrap()
        .1
        .clone();
    assert_eq!(held["outcome"], "ok");

    // Any other end, by its name.
    let lost = locks.lock("lost").lease(LONG).run(async {
        server.cmd(&["DEL", &stored("lost")]);
        std::future::pending::<()>().await;
    });
    assert!(
        tokio::time::timeout(PATIENCE, lost)
            .await
            .unwrap()
            .is_err_and(|error| error.is_lost())
    );
    assert_eq!(spans.last()["outcome"], "lost");
    server.cmd(&["HSET", &stored("typed"), "field", "value"]);
    assert!(matches!(
        locks.lock("typed").acquire().await,
        Err(LockError::Store { .. })
    ));
    assert_eq!(spans.last()["outcome"], "store");
}

#[tokio::test]
async fn a_normal_call_logs_nothing_above_debug() {
    let server = Server::start();
    let mut child = lock_child!("log", server.url()).spawn();
    let logged = child.line("logged").await;
    let [quiet, loud] = logged.words()[..] else {
        panic!("{logged:?}")
    };
    assert_eq!(loud, "0", "{}", child.errors());
    // Something was there to be counted.
    assert!(quiet.parse::<u32>().unwrap() > 0);
}
