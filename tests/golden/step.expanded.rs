async fn step(order: &Order, workflow_id: Uuid) -> Result<(), OrderError> {
    use ::lock_runtime::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &["order:<order.id>"],
        function: ::core::concat!(::core::module_path!(), "::step"),
    };
    let __lock_call = __lock_private::for_owner(
            __lock_private::call(
                &__LOCK_SITE,
                (&mut __lock_private::key()).text("order:").value(&order.id),
            ),
            (&mut __lock_private::key()).text("workflow:").insert(&workflow_id),
        )
        .reentrant(false)
        .fair(false)
        .pipelined(false);
    let mut __lock_held = ::core::option::Option::None;
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<Result<(), OrderError>>,
            > {
                return *__lock_value;
            }
            let _ = &workflow_id;
            let _ = &order;
            let __lock_value: Result<(), OrderError> = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Result<(), OrderError>>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: { order.step(workflow_id).await }
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
