async fn transfer(&self, from: u64, request: Json<Transfer>) -> Result<(), BankError> {
    static __LOCK_SITE: ::lock_runtime::__private::Site = ::lock_runtime::__private::Site {
        template: "account:<from>, account:<request.to>",
        function: ::core::concat!(::core::module_path!(), "::transfer"),
    };
    let __lock_call = {
        let Json(request) = &request;
        ::lock_runtime::__private::call_all_on(
                &self.locks,
                &__LOCK_SITE,
                [
                    ::lock_runtime::__private::key().text("account:").value(&from),
                    ::lock_runtime::__private::key().text("account:").value(&request.to),
                ],
            )
            .reentrant(true)
            .lock_delay(::core::time::Duration::new(5, 0))
    };
    let mut __lock_held = ::core::option::Option::None;
    let __lock_ended = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                Result<(), BankError>,
            > {
                return __lock_value;
            }
            let from = from;
            let __lock_arg2 = request;
            let Json(request) = __lock_arg2;
            let __lock_value: Result<(), BankError> = '__lock_body: {
                self.book(from, request.to, request.cents).await
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
