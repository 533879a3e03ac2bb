-- One long table of daily figures: all orders, by the customer's segment when the order was placed,
-- and by product category. Net amounts for the first two; for categories what the items cost after
-- discount, because tax and shipping belong to the order and not to its lines.
with kept as (
    select order_id, customer_id, order_date, net_amount, items
    from silver.orders
    where order_status <> 'cancelled'
),
lines as (
    select
        kept.order_id as order_id,
        kept.order_date as order_date,
        item.product_id as product_id,
        cast(
            cast(item.quantity as decimal(10, 0)) * item.unit_price
            * (cast(1 as decimal(5, 2)) - item.discount)
            as decimal(18, 4)
        ) as amount
    from kept
    cross join unnest(kept.items) as opened(item)
)
select
    cast(k.order_date as date) as metric_date,
    'daily' as metric_type,
    'all' as dimension_key,
    'all' as dimension_value,
    cast(sum(k.net_amount) as decimal(18, 2)) as metric_value,
    cast(count(*) as bigint) as metric_count
from kept as k
group by cast(k.order_date as date)
union all
select
    cast(k.order_date as date) as metric_date,
    'segment' as metric_type,
    'segment' as dimension_key,
    coalesce(c.segment, 'unknown') as dimension_value,
    cast(sum(k.net_amount) as decimal(18, 2)) as metric_value,
    cast(count(*) as bigint) as metric_count
from kept as k
left join silver.customers as c
    on c.customer_id = k.customer_id
    and k.order_date >= c._valid_from
    and k.order_date < coalesce(c._valid_to, timestamptz '9999-12-31 00:00:00+00')
group by cast(k.order_date as date), coalesce(c.segment, 'unknown')
union all
select
    cast(l.order_date as date) as metric_date,
    'category' as metric_type,
    'category' as dimension_key,
    coalesce(p.category, 'unknown') as dimension_value,
    cast(round(sum(l.amount), 2) as decimal(18, 2)) as metric_value,
    cast(count(distinct l.order_id) as bigint) as metric_count
from lines as l
left join silver.products as p on p.product_id = l.product_id
group by cast(l.order_date as date), coalesce(p.category, 'unknown')
