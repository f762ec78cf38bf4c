#[must_use]
pub async fn place(
    state: State<App>,
    shop: Path<(String, u32)>,
    config: Extension<Config>,
    order: Json<Order>,
    _request: Request,
    __lock_arg5: HeaderMap,
) -> Result<impl IntoResponse, AppError> {
    static __LOCK_SITE: ::lock_runtime::__private::Site = ::lock_runtime::__private::Site {
        template: "{<shop>}:order:<order.id>:<REGION>",
        function: ::core::concat!(::core::module_path!(), "::place"),
    };
    let __lock_call = {
        let State(state) = &state;
        let Path((shop, _)) = &shop;
        let Extension(config) = &config;
        ::lock_runtime::__private::call_on(
                &state.locks,
                &__LOCK_SITE,
                ::lock_runtime::__private::key()
                    .text("{")
                    .value(&shop)
                    .text("}:order:")
                    .value(&order.id)
                    .text(":")
                    .value(&REGION),
            )
            .lease(config.lease)
            .max_renewals(3)
            .fencing(true)
    };
    let mut __lock_held = ::core::option::Option::None;
    let __lock_ended = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                Result<_, AppError>,
            > {
                return __lock_value;
            }
            let __lock_arg0 = state;
            let State(state) = __lock_arg0;
            let __lock_arg1 = shop;
            let Path((shop, _)) = __lock_arg1;
            let __lock_arg2 = config;
            let Extension(config) = __lock_arg2;
            let mut order = order;
            #[allow(
                clippy::no_effect_underscore_binding,
                clippy::used_underscore_binding
            )]
            let _request = _request;
            let __lock_arg5 = __lock_arg5;
            let _ = &config;
            let __lock_value: Result<_, AppError> = '__lock_body: {
                order.shop = shop;
                state.orders.place(order).await
            };
            #[allow(unreachable_code)] __lock_value
        });
        match __lock_call.enter().await {
            ::core::result::Result::Ok(__lock_granted) => {
                __lock_held.insert(__lock_granted).run(__lock_body).await
            }
            ::core::result::Result::Err(__lock_error) => {
                ::lock_runtime::__private::Ended::Cancelled(__lock_error)
            }
        }
    };
    let __lock_ended = ::lock_runtime::__private::leave(__lock_held, __lock_ended).await;
    ::lock_runtime::__private::returned(__lock_ended, ::lock_runtime::__private::OrError)
}
