#[distributed_lock(key = "job:<self.name>", wait = 0, on_busy = skip, at_least = "1m30s", manager = self.locks)]
async fn run<const N: usize>(mut self, batch: [Job; N]) {
    self.runs += 1;
    for job in batch {
        job.run().await;
    }
}
