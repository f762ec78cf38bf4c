async fn step(order: &Order, workflow_id: Uuid) -> Result<(), OrderError> {
    static __LOCK_SITE: ::lock_runtime::__private::Site = ::lock_runtime::__private::Site {
        template: "order:<order.id>",
        function: ::core::concat!(::core::module_path!(), "::step"),
    };
    let __lock_call = ::lock_runtime::__private::call(
            &__LOCK_SITE,
            ::lock_runtime::__private::key().text("order:").value(&order.id),
        )
        .owner(::lock_runtime::__private::key().text("workflow:").value(&workflow_id))
        .reentrant(false);
    let mut __lock_held = ::core::option::Option::None;
    let __lock_ended = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                Result<(), OrderError>,
            > {
                return __lock_value;
            }
            let order = order;
            let workflow_id = workflow_id;
            let __lock_value: Result<(), OrderError> = '__lock_body: {
                order.step(workflow_id).await
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
