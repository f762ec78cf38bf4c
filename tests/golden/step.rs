#[distributed_lock(
    key = "order:<order.id>",
    owner = "workflow:<workflow_id>",
    reentrant = false,
    fair = false,
    release = confirmed
)]
async fn step(order: &Order, workflow_id: Uuid) -> Result<(), OrderError> {
    order.step(workflow_id).await
}
