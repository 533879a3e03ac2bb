-- How far visits get, a day and device. A visit that reached a stage reached those before it.
-- The rate is computed in whole ten-thousandths, so that every engine rounds it alike.
with reached as (
    select
        session_day as day,
        device,
        count(*) as sessions,
        sum(case when product_views > 0 or added_to_cart or checked_out or purchased
            then 1 else 0 end) as viewed,
        sum(case when added_to_cart or checked_out or purchased then 1 else 0 end) as carted,
        sum(case when checked_out or purchased then 1 else 0 end) as checked,
        sum(case when purchased then 1 else 0 end) as bought
    from silver.sessions
    group by session_day, device
)
select
    day,
    device,
    cast(sessions as bigint) as sessions,
    cast(viewed as bigint) as product_views,
    cast(carted as bigint) as carts,
    cast(checked as bigint) as checkouts,
    cast(bought as bigint) as purchases,
    cast(
        cast(
            (20000 * cast(bought as bigint) + cast(sessions as bigint))
            // (2 * cast(sessions as bigint))
            as decimal(18, 0)
        ) * cast(0.0001 as decimal(5, 4))
        as decimal(9, 4)
    ) as conversion_rate
from reached
