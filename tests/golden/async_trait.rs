// What `#[async_trait]` makes of
//
//     async fn pay(&self, Account(id): Account, amount: u64) -> Result<(), PayError> { … }
//
// before `#[distributed_lock]` sees it.
#[distributed_lock(key = "account:<id>")]
fn pay<'life0, 'async_trait>(
    &'life0 self,
    __arg1: Account,
    amount: u64,
) -> ::core::pin::Pin<
    Box<dyn ::core::future::Future<Output = Result<(), PayError>> + ::core::marker::Send + 'async_trait>,
>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        if let ::core::option::Option::Some(__ret) = ::core::option::Option::None::<Result<(), PayError>> {
            #[allow(unreachable_code)]
            return __ret;
        }
        let __self = self;
        let Account(id) = {
            let __arg1 = __arg1;
            __arg1
        };
        let amount = amount;
        let __ret: Result<(), PayError> = { __self.bank.pay(amount).await };
        #[allow(unreachable_code)]
        __ret
    })
}
