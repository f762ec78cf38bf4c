async fn reduce_stock(
    db: &Db,
    item_id: u64,
    quantity: u32,
) -> Result<Stock, StockError> {
    use ::lock_runtime::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &["inventory:<item_id>"],
        function: ::core::concat!(::core::module_path!(), "::reduce_stock"),
    };
    let __lock_call = __lock_private::call(
            &__LOCK_SITE,
            (&mut __lock_private::key()).text("inventory:").insert(&item_id),
        )
        .lease(const { ::core::time::Duration::new(15, 0) })
        .wait(const { ::core::time::Duration::new(5, 0) });
    let mut __lock_held = ::core::option::Option::None;
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<Result<Stock, StockError>>,
            > {
                return *__lock_value;
            }
            let _ = &quantity;
            let _ = &item_id;
            let _ = &db;
            let __lock_value: Result<Stock, StockError> = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Result<Stock, StockError>>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: {
                    let stock = db.stock(item_id).await?;
                    db.set_stock(item_id, stock.checked_sub(quantity)?).await
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
