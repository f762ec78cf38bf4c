#[distributed_lock(key = "inventory:<item_id>", lease = 15, wait = 5)]
async fn reduce_stock(db: &Db, item_id: u64, quantity: u32) -> Result<Stock, StockError> {
    let stock = db.stock(item_id).await?;
    db.set_stock(item_id, stock.checked_sub(quantity)?).await
}
