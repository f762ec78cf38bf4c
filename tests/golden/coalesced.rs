#[distributed_lock(key = "report:<month>", mode = semaphore(limits.reports), coalesce)]
async fn report(limits: &Limits, month: u32) -> Result<Arc<Report>, ReportError> {
    Report::of(month).await
}
