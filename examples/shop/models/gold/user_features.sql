-- What a model wants to know about a customer. Everything in a row follows from that customer's
-- own rows, so a run computes only customers that something happened to. How long ago the last
-- order was is left to the reader: stored, it would be wrong tomorrow, and every row would change
-- whenever anybody orders.
with people as (
    select
        customer_id,
        max(case when _is_current then segment end) as segment,
        max(case when _is_current then country end) as country,
        max(case when _is_current then 1 else 0 end) as present
    from silver.customers
    group by customer_id
),
bought as (
    select
        customer_id,
        sum(case when order_status <> 'cancelled' then 1 else 0 end) as orders,
        sum(case when order_status = 'cancelled' then 1 else 0 end) as cancelled_orders,
        sum(case when order_status <> 'cancelled' then item_count else 0 end) as items,
        cast(
            sum(case when order_status <> 'cancelled' then net_amount
                else cast(0 as decimal(12, 2)) end)
            as decimal(18, 2)
        ) as spent,
        min(case when order_status <> 'cancelled' then order_date end) as first_order_at,
        max(case when order_status <> 'cancelled' then order_date end) as last_order_at
    from silver.orders
    group by customer_id
),
visited as (
    select
        user_id as customer_id,
        count(*) as sessions,
        sum(case when purchased then 1 else 0 end) as buying_sessions,
        max(session_day) as last_session_day
    from silver.sessions
    group by user_id
)
select
    p.customer_id as customer_id,
    p.segment as segment,
    p.country as country,
    cast(coalesce(b.orders, 0) as bigint) as orders,
    cast(coalesce(b.cancelled_orders, 0) as bigint) as cancelled_orders,
    cast(coalesce(b.items, 0) as bigint) as items,
    cast(coalesce(b.spent, 0) as decimal(18, 2)) as lifetime_value,
    cast(
        case when b.orders > 0 then
            cast(
                (2 * cast(round(b.spent * 100) as bigint) + cast(b.orders as bigint))
                // (2 * cast(b.orders as bigint))
                as decimal(18, 0)
            ) * cast(0.01 as decimal(3, 2))
        end
        as decimal(12, 2)
    ) as average_order,
    b.first_order_at as first_order_at,
    b.last_order_at as last_order_at,
    cast(
        date_diff('day', cast(b.first_order_at as date), cast(b.last_order_at as date)) as integer
    ) as active_days,
    cast(coalesce(v.sessions, 0) as bigint) as sessions,
    cast(coalesce(v.buying_sessions, 0) as bigint) as buying_sessions,
    v.last_session_day as last_session_day,
    p.present = 0 as gone
from people as p
left join bought as b on b.customer_id = p.customer_id
left join visited as v on v.customer_id = p.customer_id
