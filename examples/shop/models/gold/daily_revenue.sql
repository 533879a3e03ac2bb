-- Revenue a day (UTC), cancelled orders left out. The average is computed in whole cents, so that
-- every engine rounds it alike.
with kept as (
    select
        cast(order_date as date) as day,
        count(*) as orders,
        count(distinct customer_id) as customers,
        sum(item_count) as items,
        cast(sum(net_amount) as decimal(18, 2)) as revenue
    from silver.orders
    where order_status <> 'cancelled'
    group by cast(order_date as date)
)
select
    day,
    cast(orders as bigint) as orders,
    cast(customers as bigint) as customers,
    cast(items as bigint) as items,
    revenue,
    cast(
        cast((2 * cast(round(revenue * 100) as bigint) + orders) // (2 * orders) as decimal(18, 0))
        * cast(0.01 as decimal(3, 2))
        as decimal(12, 2)
    ) as average_order
from kept
