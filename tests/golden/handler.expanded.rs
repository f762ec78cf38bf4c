#[must_use]
pub async fn place(
    state: State<App>,
    shop: Path<(String, u32)>,
    config: Extension<Config>,
    order: Json<Order>,
    _request: Request,
    __lock_arg5: HeaderMap,
) -> Result<impl IntoResponse, AppError> {
    use ::lock_runtime::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &["{<shop>}:order:<order.id>:<REGION>"],
        function: ::core::concat!(::core::module_path!(), "::place"),
    };
    let __lock_call = {
        #[allow(
            unused_variables,
            clippy::pattern_type_mismatch,
            clippy::shadow_same,
            clippy::shadow_reuse,
            clippy::shadow_unrelated
        )]
        let State(state) = &state;
        #[allow(
            unused_variables,
            clippy::pattern_type_mismatch,
            clippy::shadow_same,
            clippy::shadow_reuse,
            clippy::shadow_unrelated
        )]
        let Path((shop, _)) = &shop;
        #[allow(
            unused_variables,
            clippy::pattern_type_mismatch,
            clippy::shadow_same,
            clippy::shadow_reuse,
            clippy::shadow_unrelated
        )]
        let Extension(config) = &config;
        __lock_private::call_on(
                &state.locks,
                &__LOCK_SITE,
                (&mut __lock_private::key())
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
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<Result<_, AppError>>,
            > {
                return *__lock_value;
            }
            let __lock_arg0 = state;
            #[allow(clippy::shadow_unrelated)]
            let State(state) = __lock_arg0;
            let __lock_arg1 = shop;
            #[allow(clippy::shadow_unrelated)]
            let Path((shop, _)) = __lock_arg1;
            let __lock_arg2 = config;
            #[allow(clippy::shadow_unrelated)]
            let Extension(config) = __lock_arg2;
            #[allow(clippy::shadow_same)]
            let mut order = order;
            #[allow(
                clippy::no_effect_underscore_binding,
                clippy::used_underscore_binding
            )]
            #[allow(clippy::shadow_same)]
            let _request = _request;
            let __lock_arg5 = __lock_arg5;
            let _ = &config;
            let __lock_value: Result<_, AppError> = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Result<_, AppError>>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: {
                    order.shop = shop;
                    state.orders.place(order).await
                }
            };
            __lock_value
        });
        __lock_private::run(
                __lock_private::enter(__lock_call).await,
                &mut __lock_held,
                __lock_body,
            )
            .await
    };
    let __lock_left = __lock_private::leave(__lock_held).await;
    __lock_private::returned(__lock_value, __lock_left, __lock_private::OrError)
}
