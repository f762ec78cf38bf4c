#[distributed_lock(keys = items.iter().map(|item| format!("item:{item}")), lease = 15, on_lost = orders::give_back)]
async fn reserve(items: Vec<u64>) -> Result<(), OrderError> {
    book(items).await
}
