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
        use ::lock_runtime::__private as __lock_private;
        static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
            templates: &["account:<id>"],
            function: ::core::concat!(::core::module_path!(), "::pay"),
        };
        let __lock_call = {
            #[allow(
                unused_variables,
                clippy::pattern_type_mismatch,
                clippy::shadow_same,
                clippy::shadow_reuse,
                clippy::shadow_unrelated
            )]
            let Account(id) = &__arg1;
            __lock_private::call(
                &__LOCK_SITE,
                (&mut __lock_private::key()).text("account:").value(&id),
            )
        };
        let mut __lock_held = ::core::option::Option::None;
        let __lock_value = {
            let __lock_body = ::core::pin::pin!(async move {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Result<(), PayError>>,
                > {
                    return *__lock_value;
                }
                let __lock_value: Result<(), PayError> = '__lock_end: {
                    if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                        __lock_private::Box<Result<(), PayError>>,
                    > {
                        break '__lock_end *__lock_value;
                    }
                    '__lock_body: {
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
                        let __ret: Result<(), PayError> = {
                            __self.bank.pay(amount).await
                        };
                        #[allow(unreachable_code)] __ret
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
    })
}
