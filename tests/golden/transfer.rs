#[distributed_lock(
    keys = ["account:<from>", "account:<request.to>"],
    reentrant,
    lock_delay = "5s",
    manager = self.locks
)]
async fn transfer(&self, from: u64, Json(request): Json<Transfer>) -> Result<(), BankError> {
    self.book(from, request.to, request.cents).await
}
