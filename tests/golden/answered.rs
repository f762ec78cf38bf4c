#[distributed_lock(
    key = "report:<r#type>:<path:raw>",
    mode = exclusive,
    renew = false,
    fair,
    release = pipelined,
    on_busy = answers::cached,
    on_lost = signal,
    crate = platform::locks
)]
pub(crate) async fn report(r#type: Kind, path: &str) -> Report {
    #![allow(clippy::pedantic)]
    Report::new(path).await
}
