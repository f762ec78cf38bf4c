#[distributed_lock(
    key = "{<shop>}:order:<order.id>:<REGION>",
    lease = config.lease,
    max_renewals = 3,
    fencing,
    manager = state.locks
)]
#[must_use]
pub async fn place(
    State(state): State<App>,
    Path((shop, _)): Path<(String, u32)>,
    Extension(config): Extension<Config>,
    mut order: Json<Order>,
    _request: Request,
    _: HeaderMap,
) -> Result<impl IntoResponse, AppError> {
    order.shop = shop;
    state.orders.place(order).await
}
