async fn reserve(items: Vec<u64>) -> Result<(), OrderError> {
    use ::lock_runtime::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &[],
        function: ::core::concat!(::core::module_path!(), "::reserve"),
    };
    let __lock_call = __lock_private::call_list(
            &__LOCK_SITE,
            __lock_private::texts(items.iter().map(|item| format!("item:{item}"))),
        )
        .lease(const { ::core::time::Duration::new(15, 0) })
        .on_lost(__lock_private::OnLost::Cancel);
    let mut __lock_held = ::core::option::Option::None;
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<Result<(), OrderError>>,
            > {
                return *__lock_value;
            }
            let _ = &items;
            let __lock_value: Result<(), OrderError> = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Result<(), OrderError>>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: { book(items).await }
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
    let __lock_began = __lock_held.is_some();
    let __lock_left = __lock_private::leave(__lock_held).await;
    let __lock_error = __lock_private::cancelled(__lock_began, &__lock_value);
    if let ::core::option::Option::Some(__lock_error) = __lock_error {
        let () = orders::give_back(__lock_error).await;
    }
    __lock_private::returned(__lock_value, __lock_left, __lock_private::OrError)
}
