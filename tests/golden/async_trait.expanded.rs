fn pay<'life0, 'async_trait>(
    &'life0 self,
    __arg1: Account,
    amount: u64,
) -> ::core::pin::Pin<
    Box<
        dyn ::core::future::Future<
            Output = Result<(), PayError>,
        > + ::core::marker::Send + 'async_trait,
    >,
>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        static __LOCK_SITE: ::lock_runtime::__private::Site = ::lock_runtime::__private::Site {
            template: "account:<id>",
            function: ::core::concat!(::core::module_path!(), "::pay"),
        };
        let __lock_call = {
            let Account(id) = &__arg1;
            ::lock_runtime::__private::call(
                &__LOCK_SITE,
                ::lock_runtime::__private::key().text("account:").value(&id),
            )
        };
        let mut __lock_held = ::core::option::Option::None;
        let __lock_ended = {
            let __lock_body = ::core::pin::pin!(async move {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    Result<(), PayError>,
                > {
                    return __lock_value;
                }
                let __lock_value: Result<(), PayError> = '__lock_body: {
                    if let ::core::option::Option::Some(__ret) = ::core::option::Option::None::<
                        Result<(), PayError>,
                    > {
                        #[allow(unreachable_code)] return __ret;
                    }
                    let __self = self;
                    let Account(id) = {
                        let __arg1 = __arg1;
                        __arg1
                    };
                    let _ = &id;
                    let amount = amount;
                    let __ret: Result<(), PayError> = { __self.bank.pay(amount).await };
                    #[allow(unreachable_code)] __ret
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
        let __lock_ended = ::lock_runtime::__private::leave(__lock_held, __lock_ended)
            .await;
        ::lock_runtime::__private::returned(
            __lock_ended,
            ::lock_runtime::__private::OrError,
        )
    })
}
