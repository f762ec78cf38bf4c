async fn reduce_stock(
    db: &Db,
    item_id: u64,
    quantity: u32,
) -> Result<Stock, StockError> {
    static __LOCK_SITE: ::lock_runtime::__private::Site = ::lock_runtime::__private::Site {
        template: "inventory:<item_id>",
        function: ::core::concat!(::core::module_path!(), "::reduce_stock"),
    };
    let __lock_call = ::lock_runtime::__private::call(
            &__LOCK_SITE,
            ::lock_runtime::__private::key().text("inventory:").value(&item_id),
        )
        .lease(::core::time::Duration::new(15, 0))
        .wait(::core::time::Duration::new(5, 0));
    let mut __lock_held = ::core::option::Option::None;
    let __lock_ended = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                Result<Stock, StockError>,
            > {
                return __lock_value;
            }
            let db = db;
            let item_id = item_id;
            let quantity = quantity;
            let __lock_value: Result<Stock, StockError> = '__lock_body: {
                let stock = db.stock(item_id).await?;
                db.set_stock(item_id, stock.checked_sub(quantity)?).await
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
