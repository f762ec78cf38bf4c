async fn transfer(&self, from: u64, request: Json<Transfer>) -> Result<(), BankError> {
    use ::lock_runtime::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &["account:<from>", "account:<request.to>"],
        function: ::core::concat!(::core::module_path!(), "::transfer"),
    };
    let __lock_call = {
        #[allow(
            unused_variables,
            clippy::pattern_type_mismatch,
            clippy::shadow_same,
            clippy::shadow_reuse,
            clippy::shadow_unrelated
        )]
        let Json(request) = &request;
        __lock_private::call_all_on(
                &self.locks,
                &__LOCK_SITE,
                [
                    (&mut __lock_private::key()).text("account:").insert(&from),
                    (&mut __lock_private::key()).text("account:").value(&request.to),
                ],
            )
            .lock_delay(const { ::core::time::Duration::new(5, 0) })
            .reentrant(true)
    };
    let mut __lock_held = ::core::option::Option::None;
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<Result<(), BankError>>,
            > {
                return *__lock_value;
            }
            let _ = &from;
            let __lock_arg2 = request;
            #[allow(clippy::shadow_unrelated)]
            let Json(request) = __lock_arg2;
            let __lock_value: Result<(), BankError> = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Result<(), BankError>>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: { self.book(from, request.to, request.cents).await }
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
